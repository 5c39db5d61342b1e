//! The Rust client of lockd: exclusive leases with fencing tokens, the JSON state they guard, and
//! queues of messages.
//!
//! ```no_run
//! use lockd_client::{Client, secs};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("http://127.0.0.1:9341")?;
//!
//! let lease = client.lease("jobs/7").ttl(secs(30)).wait(secs(5)).await?;
//! let done: u64 = match lease.get().await? {
//!     Some(document) => document.json()?,
//!     None => 0,
//! };
//! lease.update(&(done + 1)).await?; // Staged: nobody else sees it yet.
//! lease.release().await?; // Commits it and lets the next holder in.
//! # Ok(())
//! # }
//! ```
//!
//! A [`Lease`] renews itself and says so when it is lost. Whatever is written elsewhere under it
//! should carry [`Lease::token`], so that the place it is written to can refuse a late holder.

mod client;
mod endpoint;
mod error;
mod settings;
mod ttl;

mod acquire;
mod capped;
mod context;
mod cycle;
mod lease;
mod release;

mod attachment;
mod read;
mod txn;
mod update;
mod write;

mod backup;
mod listing;
pub mod queue;
mod watch;

mod body;
mod call;
pub mod clock;
mod dial;
mod multipart;
mod reply;
mod retry;
mod transport;

pub use acquire::{Acquire, Detached, Grant, NoWaitSet, WaitSet};
pub use attachment::{Attached, AttachmentStream, Attachments, AttachmentsView, PutAttachment};
pub use backup::BackupStream;
pub use body::Source;
pub use client::Client;
pub use context::{LeaseContext, RawLease, Renewed, Resume};
pub use cycle::{CycleError, UpdateCycle};
pub use endpoint::{Endpoint, EndpointError, PORT};
pub use error::{
    AcquireKind, AdminKind, DequeueKind, EnqueueKind, Error, KeepaliveKind, Kind, ReadKind,
    ReleaseKind, SettleKind, UpdateKind, chain,
};
pub use lease::{Lease, Lost, LostReason};
pub use listing::{KeyPages, LeasePages, NamespacePages, TxnPages};
pub use queue::{Message, Queue, Receipt};
pub use read::{Document, DocumentStream, Entry, Get, GetStream, ReadMany};
pub use release::Release;
pub use settings::{Capped, ClientBuilder, Limit, secs};
pub use txn::Txn;
pub use update::{Finish, Update, Updated};
pub use watch::{Change, Event, Watch};
pub use write::{Mutate, Remove, Removed, SetMetadata};

/// The wire's own types, where they are handed out as they are.
pub use lockd_pki::ClientBundle;
pub use lockd_wire as wire;
