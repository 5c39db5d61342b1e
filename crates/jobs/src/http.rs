//! The controller at a port: who may ask, what can be asked for, and how it is answered.

mod access;
mod answer;
mod body;
mod changes;
mod events;
mod reads;
mod routes;
mod view;

pub use access::{Access, AccessError};
pub(crate) use routes::router;
pub use view::{AgentView, JobList, JobView, ResultView};

#[cfg(test)]
mod tests;
