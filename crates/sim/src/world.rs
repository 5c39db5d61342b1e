//! A world of one server and several clients under one seed. What the clients ask, when the store
//! answers, what fails, when the process dies: everything follows from the seed, so the same seed
//! gives the same history.

pub(crate) mod client;
mod gate;
mod plan;
mod process;
mod scheduler;
pub(crate) mod sse;

pub use gate::{Fault, Gate, GatedStore};
pub use plan::Plan;
pub use process::{Door, Edges};
pub use scheduler::{World, play};
