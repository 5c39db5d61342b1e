//! The `embedded` adapter: a directory owned by one process. A commit is one frame in a
//! write-ahead log and one sync shared with whatever else was waiting; a tree holds what
//! checkpoints have moved out of the log; blobs are files of their own. After any failed write
//! or sync the store opens itself again from disk and goes on from what is there.

mod backup;
mod blob;
mod cache;
mod check;
mod checkpoint;
mod clock;
mod committer;
mod dir;
mod disk;
mod engine;
mod frame;
mod head;
mod hold;
mod log;
mod manifest;
mod options;
mod recover;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod tree;

pub use backup::{Adjust, BackupError, BackupSummary, RestoreSummary, restore};
pub use check::{Problem, Report, check};
pub use options::{
    BACKOFF_MAX, BACKOFF_MIN, CACHE_BYTES, CHECKPOINT_BYTES, COMMIT_BYTES_MAX, EmbeddedOptions,
    HEAD_BYTES, IDLE_AFTER, IDLE_BYTES, NAME_BYTES_MAX, OpenError, SEGMENT_BYTES,
};
pub use store::EmbeddedStore;
