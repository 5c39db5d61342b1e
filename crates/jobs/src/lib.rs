//! A controller of jobs: they are submitted, given to agents, and their results kept.
//!
//! Whatever a leader writes carries its epoch, and the store refuses what carries another. Work
//! that was given out carries the job's own epoch, which grows with every attempt: a result of an
//! attempt that is over is refused, whoever leads.

// The rules, and what a leader has in front of it.
pub mod agent;
pub mod board;
pub mod job;

// Where it is kept.
pub mod ledger;

// Who may change it, and how.
mod controller;

// How it is asked for.
mod http;

pub use controller::{Controller, Orders, Relaying, Settings, Source};
pub use http::{Access, AccessError, AgentView, JobList, JobView, ResultView};
