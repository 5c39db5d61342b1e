//! A node that is one of several, of which one leads: it runs a controller and an agent by its
//! role, and answers for them at one port.
//!
//! The rules are in `lockd_core::supervise`; here they are kept. One actor turns whatever happens
//! into their events and never waits; keepers run the programs, and everything that the outside may
//! ask only reads what the actor says.

mod actor;
mod attend;
mod cause;
mod folder;
mod history;
mod keeper;
mod local;
mod metrics;
mod node;
mod operator;
mod order;
mod peers;
mod settings;
mod shared;
#[cfg(test)]
mod tests;

pub use cause::Cause;
pub use node::{Handle, Node};
pub use operator::Refusal;
pub use settings::{Health, NodeSettings, RoleChange, StartError, Token};
