//! Nodes of which one leads, as real processes with real locks and real stores: what they promise
//! to clients, and what happens when they are killed, stopped, cut off and told the wrong time.

mod node {
    pub mod judge;
    pub mod site;
    pub mod way;

    mod contract;
    mod foreign;
    mod handover;
    mod late;
    mod nemesis;
    mod operators;
    mod refusals;
    mod secure;
    mod stray;
}
