//! Coordination of instances that share one place: who is there, who leads, and tasks that run on
//! the leader only.
//!
//! ```no_run
//! use std::time::Duration;
//! use lockd_coordinator::{Backend, Coordinator, Settings};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = Settings::new("waf-0");
//! let backend = Backend::redis("redis://127.0.0.1:6379", &settings)?;
//! let coordinator = Coordinator::start(settings, backend).await?;
//!
//! let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
//! coordinator.register_for_leader_task("cleanup", hour, minute, |task| async move {
//!     println!("only the leader does this, under epoch {}", task.epoch);
//!     Ok::<_, std::io::Error>(())
//! })?;
//! println!("{} instances", coordinator.cluster_status().await?.instance_count);
//! coordinator.deregister().await;
//! # Ok(())
//! # }
//! ```
//!
//! A task is given the epoch of its leader and a token that fires the moment the leadership is
//! lost or in doubt. Whatever a task writes elsewhere should carry the epoch, so that the place it
//! is written to can refuse a leader that was paused and does not know yet.

mod settings;

mod member;
mod metrics;
mod schedule;
mod task;

pub mod registry;

pub mod lockd;
pub mod redis;

mod backend;
mod shared;

mod attend;
mod heartbeat;
mod runner;

mod coordinator;

pub mod api;
pub mod sidecar;

#[cfg(test)]
mod memory;

pub use backend::{Backend, BackendError, Place};
pub use coordinator::{Coordinator, StartError, Task, TaskContext, TaskError, TaskView};
pub use member::{Entry, Member, Sign, State};
pub use metrics::{Global, Total};
pub use registry::Fault;
pub use schedule::{Schedule, ScheduleError};
pub use settings::{Settings, SettingsError, has_hash_tag};
pub use shared::{ClusterView, Health};
pub use task::{Claim, Mark, Missed, Outcome, Run};
