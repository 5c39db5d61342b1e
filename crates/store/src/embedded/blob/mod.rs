//! Blobs as files of their own under `blobs/`. A finished blob never changes; its name becomes
//! visible by a rename after its content is synced.

mod format;
mod name;
mod read;
mod write;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

pub(crate) use self::format::Piece;
pub(crate) use self::name::{BlobName, Kind};
pub(crate) use self::read::BlobFile;
use self::read::FileBlobReader;
pub(crate) use self::write::Draft;
use self::write::FileBlobWriter;
use super::manifest::StoreId;
use super::store::off_thread;
use crate::port::{BlobReader, BlobWriter, StoreError};

/// The blobs of one store.
pub(crate) struct Blobs {
    root: PathBuf,
    /// Whose blobs they are, once that is known.
    store: OnceLock<StoreId>,
    bytes: AtomicU64,
    /// How many backups are running. A deletion holds it while it deletes.
    backups: RwLock<u32>,
}

impl Blobs {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, store: OnceLock::new(), bytes: AtomicU64::new(0), backups: RwLock::new(0) }
    }

    /// Blobs that are written from now on are marked as those of this store, and those that are
    /// marked otherwise are not read.
    pub(super) fn belong_to(&self, store: StoreId) {
        self.store.get_or_init(|| store);
    }

    fn mark(&self, name: &BlobName) -> u32 {
        let Some(store) = self.store.get() else { return 0 };
        let path = name.path(Path::new(""), Kind::Finished);
        let crc = crc32c::crc32c(&store.0.to_le_bytes());
        crc32c::crc32c_append(crc, path.as_os_str().as_encoded_bytes()).max(1)
    }

    /// Opens a blob of this name.
    pub(crate) fn open(&self, name: &str, kind: Kind) -> Result<BlobFile, StoreError> {
        let name = BlobName::parse(name)?;
        BlobFile::open(&name.path(&self.root, kind), self.mark(&name))
    }

    /// Bytes of finished blobs on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn grown(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn shrunk(&self, bytes: u64) {
        self.bytes
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |all| Some(all.saturating_sub(bytes)))
            .ok();
    }

    pub(super) async fn put(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<Box<dyn BlobWriter>, StoreError> {
        let name = BlobName::parse(name)?;
        let blobs = Arc::clone(self);
        let draft = off_thread(move || Draft::create(&blobs, name)).await?;
        Ok(Box::new(FileBlobWriter::new(draft)))
    }

    pub(super) async fn get(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<Box<dyn BlobReader>, StoreError> {
        let (blobs, name) = (Arc::clone(self), name.to_owned());
        let file = off_thread(move || blobs.open(&name, Kind::Finished)).await?;
        Ok(Box::new(FileBlobReader::new(file)))
    }

    pub(super) async fn delete(self: &Arc<Self>, name: &str) -> Result<(), StoreError> {
        let name = BlobName::parse(name)?;
        let blobs = Arc::clone(self);
        off_thread(move || blobs.delete_now(&name)).await
    }

    fn delete_now(&self, name: &BlobName) -> Result<(), StoreError> {
        let backups = self.backups.read();
        remove_if_there(&name.path(&self.root, Kind::Unfinished))?;
        let path = name.path(&self.root, Kind::Finished);
        let bytes = fs::metadata(&path).map_or(0, |meta| meta.len());
        let deleted = if *backups > 0 {
            // A backup may still need it.
            if_there(fs::rename(&path, name.path(&self.root, Kind::Deleted)))
        } else {
            remove_if_there(&path)
        };
        if deleted? {
            self.shrunk(bytes);
        }
        self.prune(name);
        Ok(())
    }

    /// Keeps deleted blobs aside while the result lives.
    pub(crate) fn pause_deletions(self: &Arc<Self>) -> Pause {
        *self.backups.write() += 1;
        Pause { blobs: Arc::clone(self) }
    }

    /// Removes what was deleted during backups, unless one is running. A process that died in
    /// one leaves such files behind.
    pub(crate) fn sweep_deleted(&self) {
        let backups = self.backups.read();
        if *backups > 0 {
            return;
        }
        let mut names = Vec::new();
        let listed = self.walk(None, &[Kind::Deleted], &mut |name, _| {
            names.push(name);
            true
        });
        if let Err(error) = listed {
            tracing::warn!(%error, "cannot look for deleted blobs");
        }
        for name in names.iter().filter_map(|name| BlobName::parse(name).ok()) {
            if let Err(error) = remove_if_there(&name.path(&self.root, Kind::Deleted)) {
                tracing::warn!(%error, "cannot remove a deleted blob");
            }
            self.prune(&name);
        }
    }

    /// Counts what is there. May take long: for a thread of its own.
    pub(super) fn measure(&self) {
        let measured = self.walk(None, &[Kind::Finished], &mut |name, kind| {
            let length = self.path(&name, kind).ok().and_then(|path| fs::metadata(path).ok());
            self.grown(length.map_or(0, |meta| meta.len()));
            true
        });
        if let Err(error) = measured {
            tracing::warn!(%error, "cannot measure the blobs");
        }
    }

    /// Removes folders that have become empty.
    fn prune(&self, name: &BlobName) {
        for folder in name.folders(&self.root) {
            // The first that is not empty ends it, and so does the root.
            if folder == self.root || fs::remove_dir(&folder).is_err() {
                break;
            }
        }
    }

    pub(super) async fn list(
        self: &Arc<Self>,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let blobs = Arc::clone(self);
        off_thread(move || {
            let mut names = Vec::new();
            let mut take = |name: String, _: Kind| {
                // Both kinds of one name are next to each other.
                if names.last() != Some(&name) && names.len() < limit {
                    names.push(name);
                }
                names.len() < limit
            };
            if limit > 0 {
                blobs.walk(after.as_deref(), &[Kind::Finished, Kind::Unfinished], &mut take)?;
            }
            Ok(names)
        })
        .await
    }

    /// Walks the names greater than `after` in order, until `act` says enough.
    pub(crate) fn walk(
        &self,
        after: Option<&str>,
        kinds: &[Kind],
        act: &mut dyn FnMut(String, Kind) -> bool,
    ) -> Result<(), StoreError> {
        let walk = Walk { after, kinds };
        walk.folder(&self.root, "", act)
            .map(|_| ())
            .map_err(|error| StoreError::Unavailable(format!("cannot list blobs: {error}")))
    }

    /// Where the blob of this kind is.
    pub(crate) fn path(&self, name: &str, kind: Kind) -> Result<PathBuf, StoreError> {
        Ok(BlobName::parse(name)?.path(&self.root, kind))
    }
}

/// While this lives, deleted blobs are kept aside.
pub(crate) struct Pause {
    blobs: Arc<Blobs>,
}

impl std::ops::Deref for Pause {
    type Target = Blobs;

    fn deref(&self) -> &Blobs {
        &self.blobs
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        *self.blobs.backups.write() -= 1;
        self.blobs.sweep_deleted();
    }
}

/// Removes a file; `false` if it was not there.
fn remove_if_there(path: &Path) -> Result<bool, StoreError> {
    if_there(fs::remove_file(path))
}

fn if_there(outcome: io::Result<()>) -> Result<bool, StoreError> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StoreError::Unavailable(format!("cannot delete a blob: {error}"))),
    }
}

struct Walk<'a> {
    after: Option<&'a str>,
    kinds: &'a [Kind],
}

impl Walk<'_> {
    /// One folder whose names begin with `prefix`; `false`: enough.
    fn folder(
        &self,
        path: &Path,
        prefix: &str,
        act: &mut dyn FnMut(String, Kind) -> bool,
    ) -> io::Result<bool> {
        for (name, kind, path) in self.entries(path, prefix)? {
            let more = match kind {
                Kind::Folder => self.folder(&path, &name, act)?,
                Kind::Finished | Kind::Unfinished | Kind::Deleted => act(name, kind),
            };
            if !more {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What is in a folder and not before `after`, in order of the full names. A folder's name
    /// ends in `/` here, which is where the names in it sort.
    fn entries(&self, path: &Path, prefix: &str) -> io::Result<Vec<(String, Kind, PathBuf)>> {
        let mut entries = Vec::new();
        let folder = match fs::read_dir(path) {
            Ok(folder) => folder,
            // Deleted since its name was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(entries),
            Err(error) => return Err(error),
        };
        for entry in folder {
            let entry = entry?;
            let file_name = entry.file_name();
            let Some((kind, segment)) = file_name.to_str().and_then(Kind::parse) else { continue };
            let name = match kind {
                Kind::Folder => format!("{prefix}{segment}/"),
                Kind::Finished | Kind::Unfinished | Kind::Deleted => format!("{prefix}{segment}"),
            };
            let wanted = kind == Kind::Folder || self.kinds.contains(&kind);
            if wanted && self.is_ahead(&name, kind) {
                entries.push((name, kind, entry.path()));
            }
        }
        entries.sort_by(|one, two| one.0.cmp(&two.0));
        Ok(entries)
    }

    fn is_ahead(&self, name: &str, kind: Kind) -> bool {
        let Some(after) = self.after else { return true };
        name > after || (kind == Kind::Folder && after.starts_with(name))
    }
}
