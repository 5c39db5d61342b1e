//! Where the doubles differ: how a client states a condition for a write, and what answers tell
//! about an object beyond its `ETag`.

use http::{HeaderMap, HeaderValue, StatusCode};

use super::Flaw;
use super::ask::Ask;
use super::shelf::{Object, same_tag};
use crate::xml::{self, Answer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    S3,
    Gcs,
}

/// What must hold for a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Absent,
    Tag(String),
    Generation(u64),
}

impl Dialect {
    pub(super) fn conditions(self, ask: &Ask) -> Result<Vec<Condition>, Box<Answer>> {
        let mut conditions = Vec::new();
        match self {
            Self::S3 => {
                if let Some(tag) = ask.header("if-match") {
                    conditions.push(Condition::Tag(tag.to_owned()));
                }
                match ask.header("if-none-match") {
                    None => {}
                    Some("*") => conditions.push(Condition::Absent),
                    Some(_) => return Err(Box::new(not_implemented("If-None-Match takes only *"))),
                }
            }
            Self::Gcs => match ask.header("x-goog-if-generation-match").map(str::parse) {
                None => {}
                Some(Ok(0)) => conditions.push(Condition::Absent),
                Some(Ok(generation)) => conditions.push(Condition::Generation(generation)),
                Some(Err(_)) => {
                    let message = "x-goog-if-generation-match is no number";
                    let answer = xml::error(StatusCode::BAD_REQUEST, "InvalidArgument", message);
                    return Err(Box::new(answer));
                }
            },
        }
        Ok(conditions)
    }

    /// What an answer about this object tells.
    pub(super) fn describe(self, object: &Object, headers: &mut HeaderMap) {
        headers.insert("etag", value(&object.etag));
        if self == Self::Gcs {
            headers.insert("x-goog-generation", HeaderValue::from(object.generation));
            headers.insert("x-goog-metageneration", HeaderValue::from(1));
        }
    }

    /// Whether deleting what is not there succeeds.
    pub(super) fn deletes_nothing(self) -> bool {
        self == Self::S3
    }

    pub(super) fn copy_source(self) -> &'static str {
        match self {
            Self::S3 => "x-amz-copy-source",
            Self::Gcs => "x-goog-copy-source",
        }
    }
}

impl Condition {
    pub(super) fn is_ignored_by(&self, flaw: Flaw) -> bool {
        match (self, flaw) {
            (Self::Absent, Flaw::IgnoresIfNoneMatch)
            | (Self::Tag(_) | Self::Generation(_), Flaw::IgnoresIfMatch) => true,
            (
                _,
                Flaw::Honest
                | Flaw::ChecksThenWrites
                | Flaw::IgnoresIfMatch
                | Flaw::IgnoresIfNoneMatch
                | Flaw::RefusesIfMatch
                | Flaw::DoesNotKnowIfMatch
                | Flaw::ListsNothing,
            ) => false,
        }
    }

    /// The answer of a store that wants no such condition.
    pub(super) fn refused_by(&self, flaw: Flaw) -> Result<(), Box<Answer>> {
        match (self, flaw) {
            (Self::Tag(_) | Self::Generation(_), Flaw::RefusesIfMatch) => {
                Err(Box::new(precondition_failed()))
            }
            (Self::Tag(_) | Self::Generation(_), Flaw::DoesNotKnowIfMatch) => {
                let message = "A header you provided implies functionality that is not implemented";
                Err(Box::new(xml::error(StatusCode::BAD_REQUEST, "InvalidArgument", message)))
            }
            (
                _,
                Flaw::Honest
                | Flaw::ChecksThenWrites
                | Flaw::IgnoresIfMatch
                | Flaw::IgnoresIfNoneMatch
                | Flaw::RefusesIfMatch
                | Flaw::DoesNotKnowIfMatch
                | Flaw::ListsNothing,
            ) => Ok(()),
        }
    }

    pub(super) fn check(&self, current: Option<&Object>) -> Result<(), Box<Answer>> {
        let holds = match (self, current) {
            (Self::Absent, current) => current.is_none(),
            // As AWS has it: there is nothing to compare with.
            (Self::Tag(_), None) => return Err(Box::new(no_such_key())),
            (Self::Tag(tag), Some(object)) => tag == "*" || same_tag(tag, &object.etag),
            (Self::Generation(wanted), current) => {
                current.is_some_and(|object| object.generation == *wanted)
            }
        };
        if holds { Ok(()) } else { Err(Box::new(precondition_failed())) }
    }
}

pub(super) fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("text for a header")
}

pub(super) fn precondition_failed() -> Answer {
    let message = "At least one of the pre-conditions you specified did not hold";
    xml::error(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
}

pub(super) fn no_such_key() -> Answer {
    xml::error(StatusCode::NOT_FOUND, "NoSuchKey", "The specified key does not exist.")
}

pub(super) fn not_implemented(message: &str) -> Answer {
    xml::error(StatusCode::NOT_IMPLEMENTED, "NotImplemented", message)
}
