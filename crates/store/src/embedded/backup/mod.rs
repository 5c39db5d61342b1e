//! Backups: one file with every record as of one moment and every finished blob that existed
//! then, written while the store is in use, and the way back into an empty directory.

mod format;
mod restore;
mod save;

use std::path::PathBuf;

pub use self::restore::{Adjust, RestoreSummary, restore};
pub use self::save::BackupSummary;

use super::options::OpenError;
use crate::port::StoreError;

/// Why a backup or a restore did not come about.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backup file could not be written or read.
    #[error("the backup cannot be written or read: {0}")]
    Io(#[from] std::io::Error),
    /// The file is no backup, or not whole, or not what was written.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
    #[error("the backup has format version {found}, this program reads version {known}")]
    Version { found: u32, known: u32 },
    #[error("{0} exists and is not empty: a backup is restored into an empty directory only")]
    NotEmpty(PathBuf),
    #[error("record {name:?} was refused: {reason}")]
    Refused { name: String, reason: String },
    /// The directory it is restored into cannot be used.
    #[error(transparent)]
    Target(#[from] OpenError),
}
