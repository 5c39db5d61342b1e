//! Short expressions that change a JSON object in place.
//!
//! The rule: what an expression does not name keeps its bytes and its order; new members go last.
//! Parsing and applying are apart, so that a bad expression is refused before anything is read.
//! The clock and the files are left to callers. The grammar follows in the module's documentation.
#![doc = include_str!("mutate/grammar.md")]

mod apply;
mod edit;
mod error;
mod file;
mod find;
mod name;
mod number;
mod parse;
mod path;
mod scan;
mod time;
mod value;
mod wild;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use apply::{apply, apply_within};
pub use error::{Cause, MutationError};
pub use file::{FileValues, NoFiles};
pub use parse::{is_expression, parse};

use file::FileKind;
use number::Delta;
use path::Segment;

/// Bytes in one expression.
pub const EXPRESSION_BYTES_MAX: usize = 64 * 1024;
/// Segments in one path, the group's included.
pub const SEGMENTS_MAX: usize = 128;
/// Groups within groups.
pub const BRACES_MAX: usize = 16;
/// Mutations that one expression may stand for.
pub const EXPANDED_MAX: usize = 4096;
/// Places that one wildcard path may touch.
pub const MATCHES_MAX: usize = 100_000;
/// Bytes of the result, where the caller names no smaller bound.
pub const RESULT_BYTES_MAX: u64 = 256 << 20;
/// Bytes that all mutations of one call may read together; most read the document once.
pub const WORK_BYTES_MAX: u64 = 4 << 30;

// The wildcard search keeps one bit per segment.
const _: () = assert!(SEGMENTS_MAX <= 128);

/// Who wrote an expression, and so what it may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Came over the network: must not name files.
    Server,
    /// Typed by the user on this machine.
    Local,
}

/// One change at one path, made by [`parse`].
#[derive(Clone, Debug)]
pub struct Mutation {
    path: Vec<Segment>,
    action: Action,
    /// The whole expression, for error messages.
    expression: Arc<str>,
}

impl Mutation {
    /// The expression that this mutation came from.
    pub fn expression(&self) -> &str {
        &self.expression
    }
}

#[derive(Clone, Debug)]
enum Action {
    Set(Value),
    Add(Delta),
    Remove,
}

#[derive(Clone, Debug)]
enum Value {
    /// JSON text, ready to be written.
    Json(Arc<[u8]>),
    /// The time at which the mutation is applied.
    Now,
    File {
        kind: FileKind,
        path: Arc<str>,
    },
}
