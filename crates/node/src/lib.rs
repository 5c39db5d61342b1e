//! Nodes of which one leads: the jobs that its controller gives to agents.
//!
//! Whatever a leader writes carries its epoch, and the store refuses what carries another. Work
//! that was given out carries the job's own epoch, which grows with every attempt: a result of an
//! attempt that is over is refused, whoever leads.

pub mod board;
pub mod job;
pub mod ledger;
