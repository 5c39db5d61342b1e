//! Writes a backup of a store in use. Records come from one moment; blobs cannot change, and
//! those deleted meanwhile are kept aside until the backup has ended.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::BackupError;
use super::format::{Item, ItemWriter, VERSION};
use crate::embedded::blob::{Kind, Pause};
use crate::embedded::disk::new_file;
use crate::embedded::head::Entry;
use crate::embedded::shared::{Shared, State};
use crate::embedded::store::EmbeddedStore;
use crate::embedded::tree::{TreeError, TreeSnapshot, Walk};
use crate::port::{Name, StoreError, Stored};

/// How long the checkpoint before a backup may take.
const FLUSH_PATIENCE: Duration = Duration::from_secs(300);
const BUFFER_BYTES: usize = 1 << 20;
/// Names of blobs listed at once.
const PAGE_BLOBS: usize = 1000;

/// What a backup holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupSummary {
    pub records: u64,
    pub blobs: u64,
    pub blob_bytes: u64,
    /// The size of the backup itself.
    pub bytes: u64,
    /// Blobs that could not be read and are not in the backup. A human must look.
    pub damaged_blobs: Vec<String>,
}

impl EmbeddedStore {
    /// Writes a backup. The store stays in use; blocks until everything is written.
    pub fn backup(&self, sink: &mut dyn Write) -> Result<BackupSummary, BackupError> {
        let shared = self.shared();
        let paused = shared.blobs.pause_deletions();
        let outcome = Save::begin(shared, sink).and_then(|save| save.run(&paused));
        drop(paused);
        outcome
    }

    /// Writes a backup to a file that appears under its name only when it is whole and durable.
    pub fn backup_to(&self, path: &Path) -> Result<BackupSummary, BackupError> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{:016x}.tmp", rand::random::<u64>()));
        let temporary = Path::new(&temporary);
        let outcome = self.backup_file(temporary, path);
        if outcome.is_err() {
            fs::remove_file(temporary).ok();
        }
        outcome
    }

    fn backup_file(&self, temporary: &Path, path: &Path) -> Result<BackupSummary, BackupError> {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, new_file(temporary)?);
        let summary = self.backup(&mut file)?;
        let file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()?;
        Ok(summary)
    }
}

struct Save<'a> {
    writer: ItemWriter<'a>,
    summary: BackupSummary,
    snapshot: TreeSnapshot,
    /// What is newer than the snapshot of the tree.
    dirty: BTreeMap<Name, Entry>,
    revision: u64,
}

impl<'a> Save<'a> {
    /// Takes the moment. The checkpoint before it keeps what must be copied under the lock small.
    fn begin(shared: &Shared, sink: &'a mut dyn Write) -> Result<Self, BackupError> {
        let checkpoints = match &*shared.state.read() {
            State::Open { checkpoints, .. } => Some(Arc::clone(checkpoints)),
            State::Failed(_) | State::Closed => None,
        };
        if let Some(checkpoints) = checkpoints
            && let Err(reason) = checkpoints.flush(FLUSH_PATIENCE)
        {
            tracing::warn!(%reason, "backup without a checkpoint before it");
        }
        let state = shared.state.read();
        let published = state.published()?;
        let dirty = published.dirty_range(Bound::Unbounded, "", usize::MAX);
        let snapshot = published.tree.snapshot();
        let revision = published.position.revision;
        drop(state);
        let writer = ItemWriter::new(sink)?;
        Ok(Self { writer, summary: BackupSummary::default(), snapshot, dirty, revision })
    }

    fn run(mut self, blobs: &Pause) -> Result<BackupSummary, BackupError> {
        self.writer.write(&Item::Start { version: VERSION, revision: self.revision })?;
        self.records()?;
        self.blobs(blobs)?;
        let BackupSummary { records, blobs, blob_bytes, .. } = self.summary;
        self.writer.write(&Item::Trailer { records, blobs, blob_bytes })?;
        self.summary.bytes = self.writer.bytes;
        Ok(self.summary)
    }

    fn records(&mut self) -> Result<(), BackupError> {
        let Self { writer, summary, snapshot, dirty, .. } = self;
        let mut failed = None;
        let mut write = |name: &str, stored: Stored| {
            summary.records += 1;
            let (name, revision) = (name.to_owned(), stored.revision.0);
            writer.write(&Item::Record { name, revision, bytes: stored.bytes })
        };
        let mut dirty = std::mem::take(dirty).into_iter().peekable();
        let walked = snapshot.walk(Bound::Unbounded, |name, stored| {
            let step = || {
                let mut hidden = false;
                while let Some((newer, entry)) = dirty.next_if(|(newer, _)| **newer <= *name) {
                    hidden = *newer == *name;
                    if let Some(stored) = entry.stored() {
                        write(&newer, stored)?;
                    }
                }
                if hidden { Ok(()) } else { write(name, stored) }
            };
            match step() {
                Ok(()) => Walk::On,
                Err(error) => {
                    failed = Some(error);
                    Walk::Stop
                }
            }
        });
        walked.map_err(|error: TreeError| StoreError::from(error))?;
        if let Some(error) = failed {
            return Err(error);
        }
        for (name, entry) in dirty {
            if let Some(stored) = entry.stored() {
                write(&name, stored)?;
            }
        }
        Ok(())
    }

    /// Every blob that was finished when its turn came, or has been deleted since.
    fn blobs(&mut self, blobs: &Pause) -> Result<(), BackupError> {
        let mut after: Option<String> = None;
        loop {
            let mut page: Vec<(String, Kind)> = Vec::new();
            blobs.walk(after.as_deref(), &[Kind::Finished, Kind::Deleted], &mut |name, kind| {
                // A name used again after its deletion: the present blob counts.
                if page.last().is_none_or(|(last, _)| *last != name) {
                    page.push((name, kind));
                }
                page.len() < PAGE_BLOBS
            })?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = Some(last.clone());
            for (name, kind) in page {
                self.blob(blobs, name, kind)?;
            }
        }
    }

    fn blob(&mut self, blobs: &Pause, name: String, kind: Kind) -> Result<(), BackupError> {
        let opened = match blobs.open(&name, kind) {
            // Deleted between the listing and now.
            Err(StoreError::NoBlob) => blobs.open(&name, Kind::Deleted),
            opened => opened,
        };
        let mut file = match opened {
            Ok(file) => file,
            Err(StoreError::Damaged(reason)) => {
                tracing::warn!(blob = name, %reason, "a damaged blob is left out of the backup");
                self.writer.write(&Item::Blob { name: name.clone() })?;
                self.summary.damaged_blobs.push(name);
                return self.writer.write(&Item::BlobDamaged);
            }
            // Its deletion was under way before the backup began.
            Err(StoreError::NoBlob) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.writer.write(&Item::Blob { name: name.clone() })?;
        loop {
            match file.next_frame() {
                Ok(Some(content)) => self.writer.write(&Item::Content(content))?,
                Ok(None) => break,
                Err(StoreError::Damaged(reason)) => {
                    tracing::warn!(blob = name, %reason, "a damaged blob is left out");
                    self.summary.damaged_blobs.push(name);
                    return self.writer.write(&Item::BlobDamaged);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.writer.write(&Item::BlobEnd { bytes: file.bytes() })?;
        self.summary.blobs += 1;
        self.summary.blob_bytes += file.bytes();
        Ok(())
    }
}
