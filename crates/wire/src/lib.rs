//! The HTTP API as data: paths, headers, requests, replies and error codes, shared by server and
//! client. Plain serde types, no logic: what they mean is decided elsewhere.

pub mod admin;
pub mod attachment;
pub mod error;
pub mod header;
pub mod job;
pub mod lease;
pub mod node;
pub mod path;
pub mod queue;
pub mod state;
pub mod txn;
pub mod watch;

pub use error::{ErrorBody, ErrorCode};
