//! Makes a store out of a backup: into an empty directory, everything verified, under another
//! name until it is whole and durable. Revisions go on far above those of the backup, because
//! the store it was taken from may have given more since.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::BackupError;
use super::format::{Item, ItemReader, VERSION};
use crate::embedded::blob::{BlobName, Blobs, Draft, Piece};
use crate::embedded::dir::{Layout, make_dir, sync_dir};
use crate::embedded::disk::RealDisk;
use crate::embedded::head::Position;
use crate::embedded::manifest::Manifest;
use crate::embedded::options::CACHE_BYTES;
use crate::embedded::tree::{Tree, TreeError};
use crate::port::StoreError;

/// Revisions that the original may have given after the backup.
const REVISIONS_SKIPPED: u64 = 1 << 32;
const BUFFER_BYTES: usize = 1 << 20;

/// Sees each record and may replace its bytes, or refuse the whole restore.
pub type Adjust<'a> = dyn FnMut(&str, Bytes) -> Result<Bytes, String> + 'a;

/// What was restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreSummary {
    pub records: u64,
    pub blobs: u64,
    pub blob_bytes: u64,
    /// Blobs that were damaged when the backup was made and are missing.
    pub damaged_blobs: Vec<String>,
}

/// Restores `backup` into `target`, which must be empty or not exist.
pub fn restore(
    backup: &Path,
    target: &Path,
    adjust: &mut Adjust<'_>,
) -> Result<RestoreSummary, BackupError> {
    let source = BufReader::with_capacity(BUFFER_BYTES, File::open(backup)?);
    let items = ItemReader::new(source)?;
    let existed = refuse_used(target)?;
    make_dir(target)?;
    // Inside, not beside it: the target may be a mount point.
    let draft = target.join(format!("restoring-{:016x}", rand::random::<u64>()));
    let outcome = fill(&draft, items, adjust).and_then(|summary| {
        Layout { root: draft.clone() }.move_into(target)?;
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_dir(parent.unwrap_or_else(|| Path::new(".")))?;
        Ok(summary)
    });
    if outcome.is_err() {
        fs::remove_dir_all(&draft).ok();
        Layout { root: target.to_owned() }.remove_parts();
        if !existed {
            fs::remove_dir(target).ok();
        }
    }
    outcome
}

/// Whether the target exists, being empty then.
fn refuse_used(target: &Path) -> Result<bool, BackupError> {
    let entries = match fs::read_dir(target) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    for entry in entries {
        // A fresh file system has this one.
        if entry?.file_name() != "lost+found" {
            return Err(BackupError::NotEmpty(target.to_owned()));
        }
    }
    Ok(true)
}

fn fill<R: std::io::Read>(
    root: &Path,
    mut items: ItemReader<R>,
    adjust: &mut Adjust<'_>,
) -> Result<RestoreSummary, BackupError> {
    let Item::Start { version, revision } = items.next()? else { return Err(items.damaged()) };
    if version != VERSION {
        return Err(BackupError::Version { found: version, known: VERSION });
    }
    let layout = Layout { root: root.to_owned() };
    // Network or not was for the one who made the directory to know.
    let lock = layout.claim(true)?;
    let mut summary = RestoreSummary::default();
    let position = Position { next_frame: 1, revision: revision + REVISIONS_SKIPPED };
    let manifest = Manifest { tree: position, ..Manifest::load(&RealDisk, &layout)? };
    let first = records(&layout, &mut items, &manifest, (adjust, &mut summary))?;
    let into = Arc::new(Blobs::new(layout.blobs()));
    into.belong_to(manifest.store);
    blobs(&into, &mut items, first, &mut summary)?;
    items.end()?;
    manifest.write_at_rest(&layout)?;
    drop(lock);
    sync_dir(root)?;
    Ok(summary)
}

/// Writes the records straight into a tree, in the order they come in, which is theirs. Returns
/// the item behind the last.
fn records<R: std::io::Read>(
    layout: &Layout,
    items: &mut ItemReader<R>,
    manifest: &Manifest,
    (adjust, summary): (&mut Adjust<'_>, &mut RestoreSummary),
) -> Result<Item, BackupError> {
    let unusable = |error: TreeError| BackupError::Store(StoreError::from(error));
    let position = manifest.tree;
    let opened = Tree::open(&layout.tree(), CACHE_BYTES, manifest.store);
    let (tree, _) = opened.map_err(unusable)?;
    let mut last: Option<String> = None;
    let mut behind = Err(BackupError::Damaged("the file ends too early".into()));
    let mut next = || -> Option<(String, u64, Bytes)> {
        let mut step = || {
            let item = items.next()?;
            let Item::Record { name, revision, bytes } = item else { return Ok(Err(item)) };
            let ordered = last.as_ref().is_none_or(|last| *last < name);
            if !ordered || revision > position.revision {
                return Err(items.damaged());
            }
            last = Some(name.clone());
            match adjust(&name, bytes) {
                Ok(bytes) => Ok(Ok((name, revision, bytes))),
                Err(reason) => Err(BackupError::Refused { name, reason }),
            }
        };
        match step() {
            Ok(Ok(record)) => {
                summary.records += 1;
                Some(record)
            }
            Ok(Err(other)) => {
                behind = Ok(other);
                None
            }
            Err(error) => {
                behind = Err(error);
                None
            }
        }
    };
    tree.ingest_all(&mut next, position).map_err(unusable)?;
    behind
}

fn append(draft: &Draft, mut content: &[u8]) -> Result<(), StoreError> {
    while !content.is_empty() {
        let mut piece = Piece::default();
        let taken = piece.fill(content);
        draft.append(&mut piece)?;
        content = content.get(taken..).unwrap_or_default();
    }
    Ok(())
}

fn blobs<R: std::io::Read>(
    blobs: &Arc<Blobs>,
    items: &mut ItemReader<R>,
    mut item: Item,
    summary: &mut RestoreSummary,
) -> Result<(), BackupError> {
    while let Item::Blob { name } = item {
        let draft = Draft::create(blobs, BlobName::parse(&name)?)?;
        match content(items, &draft)? {
            Some(bytes) => {
                draft.finish()?;
                summary.blobs += 1;
                summary.blob_bytes += bytes;
            }
            None => summary.damaged_blobs.push(name),
        }
        item = items.next()?;
    }
    let Item::Trailer { records, blobs, blob_bytes } = item else { return Err(items.damaged()) };
    if (summary.records, summary.blobs, summary.blob_bytes) != (records, blobs, blob_bytes) {
        return Err(BackupError::Damaged("its parts are not as many as it says".into()));
    }
    Ok(())
}

/// Copies the content of one blob and returns its length; `None` if it was damaged when saved.
fn content<R: std::io::Read>(
    items: &mut ItemReader<R>,
    draft: &Draft,
) -> Result<Option<u64>, BackupError> {
    let mut bytes = 0;
    loop {
        let item = items.next()?;
        if let Item::Content(content) = &item {
            bytes += content.len() as u64;
            append(draft, content)?;
        } else if item == (Item::BlobEnd { bytes }) {
            return Ok(Some(bytes));
        } else if item == Item::BlobDamaged {
            return Ok(None);
        } else {
            return Err(items.damaged());
        }
    }
}
