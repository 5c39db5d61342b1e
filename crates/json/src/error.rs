//! Why bytes were refused as a JSON document.
//!
//! Offsets count input bytes from zero, across all chunks, and point at the first byte that cannot
//! be part of a document; cutting the same input into other chunks never changes the answer.

use thiserror::Error;

/// A refusal of the whole document; the compacted bytes produced so far are meaningless.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum JsonError {
    /// The grammar does not allow this byte here.
    #[error("not json at byte {offset}: {what}")]
    NotJson { offset: u64, what: &'static str },
    /// A string holds bytes that are not UTF-8.
    #[error("not utf-8 at byte {offset}: strings must be valid utf-8")]
    NotUtf8 { offset: u64 },
    /// Arrays and objects are nested deeper than allowed.
    #[error("nested too deep at byte {offset}: at most {max} levels are allowed")]
    TooDeep { offset: u64, max: u32 },
    /// The compacted document is larger than allowed.
    #[error("document too large: more than {max} bytes after compaction")]
    TooLarge { max: u64 },
    /// Something follows the one value that a document consists of.
    #[error("unexpected content at byte {offset}: a document is exactly one json value")]
    Trailing { offset: u64 },
    /// The input ended inside a value.
    #[error("document is cut off: the input ended inside a value")]
    CutOff,
    /// The input held nothing but blanks.
    #[error("document is empty: expected one json value")]
    Empty,
}
