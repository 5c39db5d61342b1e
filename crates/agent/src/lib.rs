//! An agent: asks a controller for work, runs it, and reports how it went.
//!
//! Whoever leads may change at any time. The agent follows, keeps its work as long as the attempt is
//! the job's present one, and kills it before anybody else can have it.

mod agent;
mod settings;

mod ask;
mod claim;
mod work;

mod output;
mod run;

mod call;
mod pace;
mod routes;

pub use agent::Agent;
pub use settings::{AgentSettings, OUTPUT_MAX, SettingsError};
