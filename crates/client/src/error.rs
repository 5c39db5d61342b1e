//! What can go wrong, told per operation: an [`Error<K>`] has a kind that answers "what now?" and
//! the wire's own code for programs that want it.
//!
//! Below the operations there is one [`Failure`]. Whether to try again is decided in `retry`.

mod kind;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use lockd_pki::Distrust;
use lockd_wire::ErrorBody;

use crate::lease::Lost;

pub(crate) use kind::Class;
pub use kind::{
    AcquireKind, AdminKind, DequeueKind, EnqueueKind, KeepaliveKind, Kind, ReadKind, ReleaseKind,
    SettleKind, UpdateKind,
};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failed operation, with what became of it.
pub struct Error<K> {
    kind: K,
    failure: Box<Failure>,
}

/// Boxed, so that results stay small.
pub(crate) type Failed = Box<Failure>;

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) cause: Cause,
    /// The request may have had its effect all the same.
    pub(crate) unknown: bool,
    pub(crate) endpoint: Option<Arc<str>>,
    pub(crate) source: Option<BoxError>,
}

#[derive(Debug)]
pub(crate) enum Cause {
    /// The server said no.
    Refused(Box<Refusal>),
    /// No connection, so nothing was sent.
    Connect,
    /// One side does not accept the other's certificate, so no request was read.
    Distrust(Distrust),
    /// The connection broke after something was sent.
    Broken,
    TimedOut(Duration),
    /// An answer that this API does not give.
    Garbled(String),
    /// An answer of more bytes than may be taken into memory.
    TooLarge(usize),
    /// The caller's data could not be read or encoded.
    Source(String),
    /// Refused here, before anything was sent.
    Invalid(String),
    /// The guard knew that its lease is gone, so nothing was sent.
    Lost(Lost),
}

#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) body: ErrorBody,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) correlation_id: Option<String>,
}

impl<K: Kind> Error<K> {
    /// What to do about it.
    pub fn kind(&self) -> K {
        self.kind
    }

    /// Whether the same call may well succeed later, and does no harm if it already has.
    pub fn retryable(&self) -> bool {
        match Class::of(&self.failure) {
            Class::Busy | Class::Unavailable => true,
            Class::OutcomeUnknown => self.kind == K::of(Class::Unavailable),
            Class::Exists
            | Class::LeaseLost
            | Class::Conflict
            | Class::FenceFailed
            | Class::TxnConflict
            | Class::Invalid
            | Class::TooLarge
            | Class::Forbidden
            | Class::Source
            | Class::Other => false,
        }
    }
}

impl<K> Error<K> {
    /// The server's code, such as `waiting`; none when no server answered.
    pub fn code(&self) -> Option<&str> {
        self.body().map(|body| body.error.as_str()).filter(|code| !code.is_empty())
    }

    /// The HTTP status of the refusal.
    pub fn status(&self) -> Option<u16> {
        self.refusal().map(|refusal| refusal.status.as_u16())
    }

    /// For people: what went wrong.
    pub fn detail(&self) -> String {
        self.failure.to_string()
    }

    /// How long the server asks to wait before that.
    pub fn retry_after(&self) -> Option<Duration> {
        self.refusal().and_then(|refusal| refusal.retry_after)
    }

    /// Whether the call may have had its effect although it failed. Read before doing it anew.
    pub fn outcome_unknown(&self) -> bool {
        self.failure.unknown
    }

    /// The key's version, where a condition on it failed.
    pub fn current_version(&self) -> Option<u64> {
        self.body().and_then(|body| body.current_version)
    }

    /// The key's state etag, where a condition on it failed.
    pub fn current_etag(&self) -> Option<&str> {
        self.body().and_then(|body| body.current_etag.as_deref())
    }

    /// The token that fences the caller off.
    pub fn current_token(&self) -> Option<u64> {
        self.body().and_then(|body| body.current_fencing_token)
    }

    /// The server that the last attempt went to.
    pub fn endpoint(&self) -> Option<&str> {
        self.failure.endpoint.as_deref()
    }

    /// What to look for in the server's log.
    pub fn correlation_id(&self) -> Option<&str> {
        self.refusal().and_then(|refusal| refusal.correlation_id.as_deref())
    }

    /// When and why the lease was lost, where the guard knew before asking.
    pub fn lost(&self) -> Option<&Lost> {
        match &self.failure.cause {
            Cause::Lost(lost) => Some(lost),
            Cause::Refused(_)
            | Cause::Connect
            | Cause::Distrust(_)
            | Cause::Broken
            | Cause::TimedOut(_)
            | Cause::Garbled(_)
            | Cause::TooLarge(_)
            | Cause::Source(_)
            | Cause::Invalid(_) => None,
        }
    }

    fn refusal(&self) -> Option<&Refusal> {
        self.failure.refusal()
    }

    fn body(&self) -> Option<&ErrorBody> {
        self.refusal().map(|refusal| &refusal.body)
    }
}

impl<K: Kind> From<Failed> for Error<K> {
    fn from(failure: Failed) -> Self {
        Self { kind: K::of(Class::of(&failure)), failure }
    }
}

impl<K: Kind> fmt::Display for Error<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, failure) = (self.kind.to_string(), self.failure.to_string());
        // Some details are the words of the kind, said by the server.
        if failure.starts_with(&kind) {
            return f.write_str(&failure);
        }
        write!(f, "{kind}: {failure}")
    }
}

impl<K: Kind> fmt::Debug for Error<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("kind", &self.kind).field("failure", &self.failure).finish()
    }
}

impl<K: Kind> std::error::Error for Error<K> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.failure.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}

impl Failure {
    pub(crate) fn new(cause: Cause) -> Failed {
        Box::new(Self { cause, unknown: false, endpoint: None, source: None })
    }

    pub(crate) fn invalid(detail: impl Into<String>) -> Failed {
        Self::new(Cause::Invalid(detail.into()))
    }

    pub(crate) fn source(detail: impl Into<String>, source: impl Into<BoxError>) -> Failed {
        let mut failure = Self::new(Cause::Source(detail.into()));
        failure.source = Some(source.into());
        failure
    }

    pub(crate) fn garbled(detail: impl Into<String>) -> Failed {
        Self::new(Cause::Garbled(detail.into()))
    }

    pub(crate) fn because(mut self: Box<Self>, source: impl Into<BoxError>) -> Failed {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn at(mut self: Box<Self>, endpoint: &Arc<str>) -> Failed {
        self.endpoint = Some(Arc::clone(endpoint));
        self
    }

    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        match &self.cause {
            Cause::Refused(refusal) => Some(refusal),
            Cause::Connect
            | Cause::Distrust(_)
            | Cause::Broken
            | Cause::TimedOut(_)
            | Cause::Garbled(_)
            | Cause::TooLarge(_)
            | Cause::Source(_)
            | Cause::Invalid(_)
            | Cause::Lost(_) => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.endpoint.as_deref().unwrap_or("the server");
        match &self.cause {
            Cause::Refused(refusal) => write!(f, "{refusal}"),
            Cause::Connect => write!(f, "no connection to {at}"),
            Cause::Distrust(why) => write!(f, "no connection to {at}: {why}"),
            Cause::Broken => write!(f, "the connection to {at} broke before the answer"),
            Cause::TimedOut(waited) => write!(f, "no answer from {at} within {waited:?}"),
            Cause::Garbled(detail) => {
                write!(f, "{at} gave an answer that is not lockd's: {detail}")
            }
            Cause::TooLarge(max) => {
                write!(f, "the answer has more than {max} bytes: read it as a stream")
            }
            Cause::Source(detail) | Cause::Invalid(detail) => f.write_str(detail),
            Cause::Lost(lost) => write!(f, "{lost}"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.body.error.as_str(), self.body.detail.as_str()) {
            ("", _) => write!(f, "status {}", self.status.as_u16()),
            (code, "") => f.write_str(code),
            (code, detail) => write!(f, "{detail} ({code})"),
        }
    }
}

/// An error with all its causes in one line, each said once.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests;
