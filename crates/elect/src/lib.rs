//! Electing one of many. A [`LeaderLock`] is held by one candidate at a time, for a time, under an
//! [`Epoch`] that only grows; a [`Campaign`] runs for it, renews it, and says when it is over.
//!
//! Whatever a leader changes elsewhere must carry its epoch, and the place where it is changed must
//! refuse lower ones: no lock can stop a leader that was paused and does not know yet.

mod lock;

mod campaign;
mod outside;
mod tls;

pub mod etcd;
pub mod lockd;
pub mod postgres;
pub mod redis;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use campaign::{Campaign, Leadership, Office, Pace};
pub use lock::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};
pub use tls::{Identity, Tls};
