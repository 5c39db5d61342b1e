//! Clusters of instances over a real Redis and a real lockd: who is there, who leads, what runs.

#[path = "coordinator/site.rs"]
mod site;

#[path = "coordinator/api.rs"]
mod api;
#[path = "coordinator/cluster.rs"]
mod cluster;
#[path = "coordinator/foreign.rs"]
mod foreign;
#[path = "coordinator/kinds.rs"]
mod kinds;
#[path = "coordinator/load.rs"]
mod load;
#[path = "coordinator/registry.rs"]
mod registry;
#[path = "coordinator/runs.rs"]
mod runs;
#[path = "coordinator/sidecar.rs"]
mod sidecar;
#[path = "coordinator/trouble.rs"]
mod trouble;
