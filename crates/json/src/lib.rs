//! JSON as lockd needs it: checked and compacted while it streams, and changed in place by short
//! mutation expressions.
//!
//! Every value that nobody touched keeps its bytes: numbers are never rounded, strings never
//! rewritten, repeated names never merged. Reading files, clocks and sockets is left to callers.

pub mod compact;
mod error;
pub mod mutate;

pub use compact::{Compactor, Limits, compact};
pub use error::JsonError;
