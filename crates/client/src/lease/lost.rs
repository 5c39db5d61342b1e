//! Why a lease ended.

use std::fmt;
use std::time::Duration;

use lockd_wire::ErrorCode;

use crate::error::Refusal;

/// The server says this before the operator's reason.
const REVOKED_PREFIX: &str = "the lease was revoked: ";

/// When and why a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lost {
    pub reason: LostReason,
    /// For people.
    pub detail: String,
    /// When the guard learned of it, on the wall clock.
    pub at_unix_ms: u64,
    /// How long the lease was held.
    pub held_for: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// Its time ran out, and it was not renewed in time.
    Expired,
    /// An operator took it, and said why.
    Revoked(String),
    /// Somebody else was granted the key.
    Fenced {
        /// The token that fences this lease off, where the server told.
        current: Option<u64>,
    },
    /// The server knows no such lease: it was released by other means than this guard.
    Gone,
    /// No server could be reached to renew it until its time ran out.
    Unreachable,
    /// A message went to another consumer, or was given back by other means than this guard.
    Redelivered,
    /// This guard let it go.
    Released,
}

impl LostReason {
    /// The reason that a refusal tells; `None` for refusals that leave the lease alone.
    pub(crate) fn told_by(refusal: &Refusal) -> Option<Self> {
        match refusal.body.error.as_str() {
            code if code == ErrorCode::LeaseExpired.as_str() => Some(Self::Expired),
            code if code == ErrorCode::Revoked.as_str() => {
                let detail = refusal.body.detail.as_str();
                let reason = detail.strip_prefix(REVOKED_PREFIX).unwrap_or(detail);
                Some(Self::Revoked(reason.to_owned()))
            }
            code if code == ErrorCode::FencingMismatch.as_str() => {
                Some(Self::Fenced { current: refusal.body.current_fencing_token })
            }
            code if code == ErrorCode::LeaseRequired.as_str() => Some(Self::Gone),
            code if code == ErrorCode::QueueMessageLeaseMismatch.as_str() => {
                Some(Self::Redelivered)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            write!(f, "{}", self.reason)
        } else {
            write!(f, "{} ({})", self.reason, self.detail)
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("the lease ran out"),
            Self::Revoked(reason) if reason.is_empty() => f.write_str("the lease was revoked"),
            Self::Revoked(reason) => write!(f, "the lease was revoked: {reason}"),
            Self::Fenced { current: Some(current) } => {
                write!(f, "the key was granted to another, its token is {current}")
            }
            Self::Fenced { current: None } => f.write_str("the key was granted to another"),
            Self::Gone => f.write_str("the lease was released elsewhere"),
            Self::Unreachable => f.write_str("the lease ran out, no server could be reached"),
            Self::Redelivered => f.write_str("the message is with another consumer, or given back"),
            Self::Released => f.write_str("the lease was released"),
        }
    }
}
