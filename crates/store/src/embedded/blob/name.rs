//! Blob names and the files they stand for. Every segment of a name gets a prefix on disk, so
//! that none can be `.`, `..` or hidden, and so that a blob and a folder of the same name live
//! side by side.

use std::path::{Path, PathBuf};

use crate::port::{StoreError, is_blob_name, is_blob_segment};

/// What a file under `blobs/` is, told by the prefix of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Folder,
    /// Written and synced whole.
    Finished,
    /// Being written, or left behind by a crash.
    Unfinished,
    /// Deleted while a backup was running; removed when it is over.
    Deleted,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Folder, Self::Finished, Self::Unfinished, Self::Deleted];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Folder => "d.",
            Self::Finished => "b.",
            Self::Unfinished => "u.",
            Self::Deleted => "t.",
        }
    }

    /// The kind and the segment that a file name stands for.
    pub(super) fn parse(file_name: &str) -> Option<(Self, &str)> {
        Self::ALL
            .into_iter()
            .find_map(|kind| Some((kind, file_name.strip_prefix(kind.prefix())?)))
            .filter(|(_, segment)| is_blob_segment(segment))
    }
}

/// A name that is fit for the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlobName {
    folders: PathBuf,
    leaf: String,
}

impl BlobName {
    pub(crate) fn parse(name: &str) -> Result<Self, StoreError> {
        if !is_blob_name(name) {
            return Err(StoreError::Unavailable(format!("{name:?} is no name for a blob")));
        }
        let (folders, leaf) = match name.rsplit_once('/') {
            Some((folders, leaf)) => (Some(folders), leaf),
            None => (None, name),
        };
        let folders = folders.into_iter().flat_map(|folders| folders.split('/'));
        let folders = folders.map(|folder| format!("{}{folder}", Kind::Folder.prefix())).collect();
        Ok(Self { folders, leaf: leaf.to_owned() })
    }

    pub(super) fn folder(&self, root: &Path) -> PathBuf {
        root.join(&self.folders)
    }

    pub(super) fn path(&self, root: &Path, kind: Kind) -> PathBuf {
        self.folder(root).join(format!("{}{}", kind.prefix(), self.leaf))
    }

    /// The folder of the blob and all above it, up to and including the root.
    pub(super) fn folders(&self, root: &Path) -> Vec<PathBuf> {
        let depth = self.folders.components().count();
        self.folder(root).ancestors().take(depth + 1).map(Path::to_owned).collect()
    }
}
