//! Why a mutation was refused, in words that say what to write instead.
//!
//! One cause per remedy. The expression is quoted in every message that is about one, shortened so
//! that a message stays readable.

use thiserror::Error;

use super::{BRACES_MAX, EXPANDED_MAX, EXPRESSION_BYTES_MAX, MATCHES_MAX, Mutation, SEGMENTS_MAX};
use crate::error::JsonError;

/// How much of an expression a message quotes.
const EXCERPT_CHARS: usize = 120;

/// A refusal; the document stays as it was.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MutationError {
    /// An expression cannot be read, or cannot be applied to this document.
    #[error("mutation {expression:?}: {cause}")]
    Expression { expression: String, cause: Cause },
    /// The document to change is not JSON.
    #[error("document cannot be mutated: {0}")]
    Document(JsonError),
    /// The document to change is JSON, but not an object.
    #[error("document cannot be mutated: it is not an object, so replace it with an update")]
    NotAnObject,
    /// The result would be larger than allowed.
    #[error("document too large: more than {max} bytes after the mutations")]
    TooLarge { max: u64 },
    /// Many mutations of a large document at once.
    #[error(
        "too many mutations for a document of this size: send at most {at_most} at once, \
         or replace it with an update"
    )]
    TooMuchWork { at_most: u64 },
}

/// What is wrong with one expression.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Cause {
    #[error("blank expression: write path=value, path++ or rm:path")]
    Blank,
    #[error("longer than {EXPRESSION_BYTES_MAX} bytes: split it, or send the document by update")]
    TooLong,
    #[error("no operation: write path=value, path++, path--, path=+N or rm:path")]
    NoOperation,
    #[error("no path: name a member, as in /progress/step or progress.step")]
    NoPath,
    #[error("the path names the whole document: name a member, or replace it with an update")]
    Root,
    #[error("empty name in a dotted path: write it as a json pointer, as in /a//b")]
    EmptyName,
    #[error("bad escape in the path: a pointer knows ~0 and ~1, a dotted path \\. and \\\\")]
    Escape,
    #[error("more than {SEGMENTS_MAX} segments in the path")]
    TooManySegments,
    #[error("two prefixes: write one of rm:, time:, file:, textfile: and base64file:")]
    TwoPrefixes,
    #[error("unbalanced braces: a group is written /path{{/a=1,/b=2}}, other braces need quotes")]
    Braces,
    #[error("prefix before a group: write it inside, as in /path{{rm:/a,time:/b=NOW}}")]
    PrefixBeforeGroup,
    #[error("empty group: write at least one expression between the braces")]
    EmptyGroup,
    #[error("groups nested more than {BRACES_MAX} deep")]
    GroupTooDeep,
    #[error("quote without an end in a group")]
    OpenQuote,
    #[error("more than {EXPANDED_MAX} mutations in one expression")]
    TooManyMutations,
    #[error("adding zero changes nothing: use another number, or quotes to set text")]
    ZeroDelta,
    #[error("not a finite number: use single quotes to set it as text")]
    NotFinite,
    #[error("integer outside of 64 bits: it cannot be added exactly")]
    IntegerRange,
    #[error("not a time: write NOW or rfc 3339, as in 2025-01-31T12:00:00Z")]
    Time,
    #[error("files are read on the client only: send the content itself")]
    FileRefused,
    #[error("no file: write file:path=name-of-the-file")]
    NoFile,
    #[error("file {path:?} cannot be read: {reason}")]
    File { path: String, reason: String },
    #[error("file {path:?} is not utf-8 text: use base64file:")]
    FileNotText { path: String },
    #[error("cannot add to {found}: set a number first")]
    NotNumeric { found: &'static str },
    #[error("the sum does not fit an integer of 64 bits")]
    Overflow,
    #[error("no such array element: mutations change arrays that exist, they do not extend them")]
    NoElement,
    #[error("an array element cannot be changed by its index: name a member below it, or use []")]
    InArray,
    #[error("more than {MATCHES_MAX} places match: narrow the path")]
    TooManyMatches,
}

impl MutationError {
    pub(super) fn of(expression: &str, cause: Cause) -> Self {
        let mut excerpt: String = expression.chars().take(EXCERPT_CHARS).collect();
        if excerpt.len() < expression.len() {
            excerpt.push('…');
        }
        Self::Expression { expression: excerpt, cause }
    }
}

/// What ends the search for a path: a fault of the document or of the expression.
#[derive(Debug)]
pub(super) enum Stop {
    Document(JsonError),
    Cause(Cause),
}

impl Stop {
    pub(super) fn at(self, mutation: &Mutation) -> MutationError {
        match self {
            Self::Document(error) => MutationError::Document(error),
            Self::Cause(cause) => MutationError::of(mutation.expression(), cause),
        }
    }
}

impl From<JsonError> for Stop {
    fn from(error: JsonError) -> Self {
        Self::Document(error)
    }
}

impl From<Cause> for Stop {
    fn from(cause: Cause) -> Self {
        Self::Cause(cause)
    }
}
