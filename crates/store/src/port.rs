//! The storage port: small records that change by compare-and-swap, and immutable blobs that
//! stream. An adapter keeps the promises written on each method, and the conformance suite tests
//! them; what a record means is none of its business.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::time::StoreTime;

/// The name of a record: `/`-separated segments of `[a-z0-9._!-]`, none empty. Names are ordered by
/// their bytes; a scan walks that order.
pub type Name = Arc<str>;

/// Changes on every write of a record, never repeats for the same name, and is never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// What is stored under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub bytes: Bytes,
    pub revision: Revision,
}

/// What must hold for the record under a name when a commit happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No record is there.
    Absent,
    /// No record is there, nor was there one that left a mark when it was removed. Only for names
    /// that are used once; where removed records leave no mark, the same as `Absent`.
    Never,
    /// The record is there with exactly this revision.
    Revision(Revision),
    /// Anything: only for heartbeats, memberships and derived index records.
    Any,
}

impl Expect {
    /// The expectation that nothing has changed since this was loaded.
    #[must_use]
    pub fn unchanged(loaded: Option<&Stored>) -> Self {
        loaded.map_or(Self::Absent, |stored| Self::Revision(stored.revision))
    }

    /// Whether the expectation is met by a record of this revision (or by none).
    #[must_use]
    pub fn is_met_by(self, current: Option<Revision>) -> bool {
        match self {
            Self::Absent | Self::Never => current.is_none(),
            Self::Revision(expected) => current == Some(expected),
            Self::Any => true,
        }
    }
}

/// One part of a commit.
#[derive(Clone, Debug)]
pub enum Write {
    Put(Bytes),
    Delete,
    /// Changes nothing, but the expectation must hold at the moment of the commit.
    Check,
}

/// A write to one record under a condition.
#[derive(Clone, Debug)]
pub struct Op {
    pub name: Name,
    pub expect: Expect,
    pub write: Write,
}

/// What an adapter can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "four independent abilities, not a state")]
pub struct Abilities {
    /// A commit over several records is all or nothing.
    pub atomic_batch: bool,
    /// `load_many` sees all its records as of one moment.
    pub snapshot: bool,
    /// Other processes write to the same store too.
    pub shared: bool,
    /// The adapter reports changes made by others.
    pub watch: bool,
}

/// By remedy: read again, wait and retry, or tell a human.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// An expectation did not hold. Nothing was written: load again and decide again.
    #[error("the record changed in between")]
    Conflict,
    /// The store cannot be used now and nothing was written by this call: retry later.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The write may or may not have happened: load before deciding anything.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
    /// Stored bytes are not what was written: never served, a human must look.
    #[error("stored data is damaged: {0}")]
    Damaged(String),
    /// A blob that does not exist (it may have been collected since its name was read).
    #[error("no such blob")]
    NoBlob,
}

/// A page of a scan, in name order.
pub type Page = Vec<(Name, Stored)>;

/// The longest segment of a blob name, and the longest name.
const BLOB_SEGMENT_BYTES_MAX: usize = 200;
const BLOB_NAME_BYTES_MAX: usize = 2048;

/// Whether a blob may have this name: `/`-separated segments of `[a-z0-9._~-]`, none empty, none
/// longer than 200 bytes.
#[must_use]
pub fn is_blob_name(name: &str) -> bool {
    name.len() <= BLOB_NAME_BYTES_MAX && name.split('/').all(is_blob_segment)
}

pub(crate) fn is_blob_segment(segment: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._~-".contains(&byte);
    (1..=BLOB_SEGMENT_BYTES_MAX).contains(&segment.len()) && segment.bytes().all(allowed)
}

/// Receives the bytes of one blob. Dropping it before `finish` removes what was written.
pub trait BlobWriter: Send {
    /// Appends a chunk. Waits when the disk is slower than the caller: memory stays bounded.
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Makes the blob durable under its name. After `Ok` it survives a power cut.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// Gives the bytes of one blob in order, each chunk verified before it is handed out.
pub trait BlobReader: Send {
    /// The next chunk, `None` at the end.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>>;
}

/// The port.
///
/// Every method may be called from many tasks at once. A future that is dropped leaves the store
/// as if the call had either happened whole or not at all.
pub trait Store: Send + Sync + 'static {
    fn abilities(&self) -> Abilities;

    /// The record under `name`, as of a moment between call and return. Only durable writes are
    /// ever seen: what a load showed is still there after a power cut.
    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>>;

    /// The record as it was last seen here, without asking anybody: a guess, on which a conditional
    /// write may be built, but no answer. `None`: nothing is known.
    fn recall(&self, name: &Name) -> Option<Option<Stored>> {
        let _unknown = name;
        None
    }

    /// Several records; with `Abilities::snapshot` all as of the same moment.
    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>>;

    /// At most `limit` records whose names start with `prefix` and are greater than `after`, in
    /// name order. A short page means the end.
    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>>;

    /// As `scan`, without the records. Where records are removed by leaving a mark, a name may be
    /// that of a mark.
    fn scan_names(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Name>, StoreError>> {
        let page = self.scan(prefix, after, limit);
        Box::pin(async move { Ok(page.await?.into_iter().map(|(name, _)| name).collect()) })
    }

    /// Tests every expectation and applies every write, all at one moment and all or nothing
    /// (with `Abilities::atomic_batch`; without it, several writes are refused as unavailable).
    /// Returns after the writes are durable, with the new revision of each put in order of `ops`
    /// (checks and deletes answer with the revision of the whole commit).
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>>;

    /// Starts a blob under a name that was never used before (`Conflict` if it is in use). A name
    /// for which `is_blob_name` does not hold is refused as unavailable.
    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>>;

    /// Opens a finished blob for reading. A blob deleted while it is read is read to its end.
    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>>;

    /// Removes a blob; removing one that is not there is no error.
    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>>;

    /// At most `limit` blob names greater than `after`, in order, unfinished ones included.
    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>>;

    /// The clock by which those who share the store place each other's leases.
    fn time(&self) -> Option<Arc<StoreTime>> {
        None
    }

    /// Removes what the adapter itself no longer needs, some of it at a time; says how much.
    fn tidy(&self) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async { Ok(0) })
    }

    /// `Ok` while reads and writes are expected to work, else why not.
    fn health(&self) -> Result<(), StoreError>;

    /// Sizes and timings for the metrics page.
    fn gauges(&self) -> Gauges;

    /// Writes everything out and lets go of files and locks. Later calls are `Unavailable`.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// What a store tells about itself. Counters only grow while the process lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Bytes on disk (or in memory), log and blobs included; cheap to obtain, may lag seconds.
    pub size_bytes: u64,
    /// Group commits made durable.
    pub batches: u64,
    /// Commits in those batches.
    pub commits: u64,
    /// Nanoseconds spent in fsync.
    pub sync_nanos: u64,
    /// How often the store failed and was opened again.
    pub reopened: u64,
}

/// Told of every group commit; the server puts it into its histograms.
pub trait Observer: Send + Sync + 'static {
    /// One batch of `commits` commits became durable; the sync took `nanos`.
    fn batch_synced(&self, commits: usize, nanos: u64);
}
