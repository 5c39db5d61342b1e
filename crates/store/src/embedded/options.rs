//! How an embedded store is opened, and why opening may be refused. Every bound of the adapter is
//! named here, so that tests can lower it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::disk::{Disk, RealDisk};
use crate::port::Observer;

/// The size of one log segment.
pub const SEGMENT_BYTES: u64 = 16 << 20;
/// The log on disk that makes a checkpoint due.
pub const CHECKPOINT_BYTES: u64 = 64 << 20;
/// The records in memory that make a checkpoint due.
pub const HEAD_BYTES: u64 = 16 << 20;
/// What is kept in memory of the tree: records, and blocks.
pub const CACHE_BYTES: u64 = 256 << 20;
/// Records younger than this are not worth an idle checkpoint.
pub const IDLE_AFTER: Duration = Duration::from_secs(10);
/// Less than this in memory is left to the log, however idle the store is.
pub const IDLE_BYTES: u64 = 1 << 20;

/// The longest record name.
pub const NAME_BYTES_MAX: usize = 16 << 10;
/// The largest commit, names included.
pub const COMMIT_BYTES_MAX: usize = 64 << 20;
/// Commits that may wait for the committer; more callers wait at the door.
pub(super) const QUEUE_COMMITS: usize = 1024;
/// How much is put into one group commit.
pub(super) const BATCH_COMMITS: usize = 1024;
pub(super) const BATCH_BYTES: usize = 2 << 20;
/// Log and head may grow to this many times the checkpoint threshold before commits wait.
pub(super) const BACKLOG_TIMES: u64 = 4;
/// How long a commit waits for a checkpoint or for a new segment before it is refused.
pub(super) const STALL_MAX: Duration = Duration::from_secs(10);
/// Pauses between attempts to heal.
pub const BACKOFF_MIN: Duration = Duration::from_millis(100);
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Recycled segments kept for reuse.
pub(super) const SPARES_MAX: usize = 2;

/// Settings of an embedded store.
#[derive(Clone)]
pub struct EmbeddedOptions {
    /// The directory; made if missing.
    pub path: PathBuf,
    /// Told of every group commit.
    pub observer: Option<Arc<dyn Observer>>,
    /// Open even on a network file system, whose locks and syncs are not to be trusted.
    pub allow_network_fs: bool,
    /// Size of one log segment; made smaller on a small file system.
    pub segment_bytes: u64,
    /// Log on disk that makes a checkpoint due; made smaller on a small file system.
    pub checkpoint_bytes: u64,
    /// Records in memory that make a checkpoint due.
    pub head_bytes: u64,
    /// What may be kept in memory of the tree.
    pub cache_bytes: u64,
    /// An idle store writes records older than this to the tree.
    pub idle_after: Duration,
    /// ... if there are at least this many bytes of them.
    pub idle_bytes: u64,
    /// The first pause before a failed store is opened again; it grows to `backoff_max`.
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    pub(crate) disk: Arc<dyn Disk>,
    /// So many checkpoints fail in the tree.
    #[cfg(test)]
    pub(crate) failing_checkpoints: Arc<std::sync::atomic::AtomicU32>,
}

impl EmbeddedOptions {
    /// Defaults for a store in this directory.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            observer: None,
            allow_network_fs: false,
            segment_bytes: SEGMENT_BYTES,
            checkpoint_bytes: CHECKPOINT_BYTES,
            head_bytes: HEAD_BYTES,
            cache_bytes: CACHE_BYTES,
            idle_after: IDLE_AFTER,
            idle_bytes: IDLE_BYTES,
            backoff_min: BACKOFF_MIN,
            backoff_max: BACKOFF_MAX,
            disk: Arc::new(RealDisk),
            #[cfg(test)]
            failing_checkpoints: Arc::default(),
        }
    }
}

impl fmt::Debug for EmbeddedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedOptions")
            .field("path", &self.path)
            .field("segment_bytes", &self.segment_bytes)
            .field("checkpoint_bytes", &self.checkpoint_bytes)
            .finish_non_exhaustive()
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process (or another store of this one) has it open.
    #[error("the store at {path} is in use{}", holder(*.pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error(
        "{path} is on a network file system ({kind}), where locks and syncs cannot be trusted; \
         allow it explicitly if you know better"
    )]
    NetworkFs { path: PathBuf, kind: &'static str },
    #[error("{path} is not an empty directory and not a lockd store: {detail}")]
    NotAStore { path: PathBuf, detail: String },
    #[error("{path} has format version {found}, this program reads version {known}")]
    Version { path: PathBuf, found: u32, known: u32 },
    /// Stored bytes are not what was written. Nothing was changed.
    #[error(
        "the store at {path} is damaged: {detail}; keep a copy of the directory, see what else is \
         damaged with `lockd store check`, and make a new one from the latest backup with \
         `lockd store restore`"
    )]
    Damaged { path: PathBuf, detail: String },
    /// The directory is not the one that this process holds.
    #[error("{detail}")]
    Lost { path: PathBuf, detail: String },
    #[error("cannot open the store at {path}: {detail}")]
    Io { path: PathBuf, detail: String },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" by process {pid}"))
}
