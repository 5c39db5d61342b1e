//! The HTTP API of a coordinator: answers as instances in other languages give them, who may ask,
//! and the server that gives them.

mod access;
mod answer;
mod prometheus;
mod routes;
mod serve;

pub use access::{Access, AccessError, Role, Token};
pub use answer::{
    Config, InstanceList, LeaderAnswer, LeaderView, RunsAnswer, Seconds, Status, TaskAnswer,
    TasksAnswer, This, ThisConfig, ThisInstance,
};
pub use serve::{Door, ServeError, Serving};
