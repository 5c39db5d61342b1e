//! The thin skin: requests to commands, answers to responses. Nothing here decides about leases
//! or state; `error` alone chooses status codes, `request` alone reads headers.

mod attachment;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod call;
mod coordinator;
mod cursor;
pub(crate) mod delivery;
mod error;
mod intake;
mod lease;
mod list;
mod multipart;
pub(crate) mod peer;
mod queue;
mod read;
mod reply;
mod request;
pub(crate) mod router;
mod state;
mod system;
mod txn;
mod watch;

pub(crate) use router::Api;

#[cfg(test)]
mod tests;
