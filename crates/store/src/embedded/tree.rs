//! The tree of all records that a checkpoint has written, on fjall. It is filled by bulk
//! ingestion only: a checkpoint is one sorted run that appears whole or not at all, synced by the
//! time the call returns, with no second journal. Its blocks carry checksums; a mismatch is
//! damage, anything else that fails is a reason to close it and open it again.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use fjall::config::{BlockSizePolicy, HashRatioPolicy, PinningPolicy};
use fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot,
    UserValue,
};

use super::cache::RecordCache;
use super::frame::Reader;
use super::head::{Entry, Position, Table};
use super::manifest::{StoreId, TableMark};
use crate::port::{Name, Revision, Stored};

const RECORDS: &str = "records";
/// Sorts before every record, so that a checkpoint can begin with it.
const POSITION_KEY: &[u8] = b"m";
const RECORD_PREFIX: u8 = b'r';
const REVISION_BYTES: usize = 8;
/// One thread compacts; the machine belongs to the server.
const WORKERS: usize = 1;
const OPEN_FILES: usize = 256;
const BLOCK_BYTES: u32 = 2 << 10;
const HASH_SLOTS_PER_RECORD: f32 = 1.33;
/// Most reads are of single records, which take less room than the blocks they are in.
const BLOCK_CACHE_SHARE: u64 = 8;

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum TreeError {
    /// Bytes are not what was written.
    #[error("{0}")]
    Damaged(String),
    /// The disk failed; another part of it may work.
    #[error("{0}")]
    Failed(String),
    /// The tree is of no use any more and has to be opened again.
    #[error("{0}")]
    Broken(String),
}

impl From<fjall::Error> for TreeError {
    fn from(error: fjall::Error) -> Self {
        use fjall::{Error, LsmError};
        let text = format!("tree: {error:?}");
        // What is not plainly about the disk is about the bytes on it.
        if matches!(error, Error::Storage(LsmError::Io(_)) | Error::Io(_)) {
            Self::Failed(text)
        } else if matches!(error, Error::Poisoned | Error::Locked) {
            Self::Broken(text)
        } else {
            Self::Damaged(text)
        }
    }
}

const PANICKED: &str = "tree: it panicked";

/// While the tree is opened, a file that is missing, or shorter than it was, is damage.
fn unopened(error: fjall::Error) -> TreeError {
    use std::io::ErrorKind::{AlreadyExists, InvalidData, InvalidInput, NotFound, UnexpectedEof};
    let is_lost = if let fjall::Error::Io(error)
    | fjall::Error::Storage(fjall::LsmError::Io(error)) = &error
    {
        matches!(
            error.kind(),
            AlreadyExists | InvalidData | InvalidInput | NotFound | UnexpectedEof
        )
    } else {
        false
    };
    match TreeError::from(error) {
        TreeError::Failed(what) if is_lost => TreeError::Damaged(what),
        error @ (TreeError::Failed(_) | TreeError::Damaged(_) | TreeError::Broken(_)) => error,
    }
}

/// fjall panics where a lock was poisoned by a worker that died. That is a broken tree for us,
/// not the end of the process.
fn guarded<T>(act: impl FnOnce() -> Result<T, TreeError>) -> Result<T, TreeError> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(TreeError::Broken(PANICKED.into())))
}

/// Nearly every read is of one record: blocks are small and carry a hash table of their records,
/// and what leads to them stays in memory (for the large levels, that is its upper part).
fn options() -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
        .data_block_hash_ratio_policy(HashRatioPolicy::all(HASH_SLOTS_PER_RECORD))
        .index_block_pinning_policy(PinningPolicy::all(true))
        .filter_block_pinning_policy(PinningPolicy::all(true))
}

pub(super) struct Tree {
    db: Database,
    records: Keyspace,
    store: StoreId,
    pub(super) cache: RecordCache,
}

impl Tree {
    /// Opens the tree of a store and tells how far the log is in it.
    pub(super) fn open(
        path: &Path,
        cache_bytes: u64,
        store: StoreId,
    ) -> Result<(Self, Position), TreeError> {
        let opened = guarded(|| {
            let block_bytes = cache_bytes / BLOCK_CACHE_SHARE;
            let db = Database::builder(path)
                .cache_size(block_bytes)
                .worker_threads(WORKERS)
                .max_cached_files(Some(OPEN_FILES))
                .open()
                .map_err(unopened)?;
            let records = db.keyspace(RECORDS, options).map_err(unopened)?;
            let position = match records.get(POSITION_KEY).map_err(unopened)? {
                Some(bytes) => decode_position(&bytes, store)?,
                None => Position { next_frame: 1, revision: 0 },
            };
            let cache = RecordCache::new(cache_bytes - block_bytes);
            Ok((Self { db, records, store, cache }, position))
        });
        // It trusts its files: it panics when they are not what it wrote.
        opened.map_err(|error| match error {
            TreeError::Broken(what) if what == PANICKED => {
                TreeError::Damaged("tree: its files are not what was written".into())
            }
            error @ (TreeError::Broken(_) | TreeError::Damaged(_) | TreeError::Failed(_)) => error,
        })
    }

    /// What the tree holds, from memory if it is there.
    pub(super) fn get(&self, name: &str) -> Result<Option<Stored>, TreeError> {
        match self.cache.get(name) {
            Some(stored) => Ok(Some(stored)),
            None => self.read(name),
        }
    }

    /// What the tree holds, from its files.
    pub(super) fn read(&self, name: &str) -> Result<Option<Stored>, TreeError> {
        guarded(|| self.records.get(key(name))?.map(|bytes| decode(name, bytes)).transpose())
    }

    pub(super) fn snapshot(self: &Arc<Self>) -> TreeSnapshot {
        TreeSnapshot { tree: Arc::clone(self), snapshot: self.db.snapshot() }
    }

    /// Writes a whole generation and the position it reaches, durable on return.
    pub(super) fn ingest(&self, table: &Table, position: Position) -> Result<(), TreeError> {
        guarded(|| {
            self.check_alive()?;
            let mut run = self.records.start_ingestion()?;
            run.write(POSITION_KEY, encode_position(position, self.store))?;
            for (name, entry) in table.iter() {
                match &entry.bytes {
                    Some(bytes) => run.write(key(name), encode(entry.revision, bytes))?,
                    None if entry.in_tree => run.write_tombstone(key(name))?,
                    None => {}
                }
            }
            run.finish()?;
            Ok(())
        })
    }

    /// Fills an empty tree with records that come in name order.
    pub(super) fn ingest_all(
        &self,
        next: &mut dyn FnMut() -> Option<(String, u64, Bytes)>,
        position: Position,
    ) -> Result<(), TreeError> {
        guarded(|| {
            let mut run = self.records.start_ingestion()?;
            run.write(POSITION_KEY, encode_position(position, self.store))?;
            while let Some((name, revision, bytes)) = next() {
                run.write(key(name), encode(revision, &bytes))?;
            }
            run.finish()?;
            Ok(())
        })
    }

    /// An error if a worker has failed, after which the tree no longer compacts.
    pub(super) fn check_alive(&self) -> Result<(), TreeError> {
        guarded(|| Ok(self.db.persist(PersistMode::Buffer)?))
    }

    /// What tells the files of the tree from others.
    pub(super) fn tables(&self) -> Vec<TableMark> {
        let marks = || {
            let version = self.records.tree.current_version();
            let marks = version.iter_tables().map(|table| {
                // By the name of its file: what is in the file may be another's.
                let name = table.path.file_name().and_then(|name| name.to_str());
                let id = name.and_then(|name| name.parse().ok()).unwrap_or(u64::MAX);
                let checksum = table.checksum().into_u128();
                TableMark { id, checksum, made: *table.metadata.created_at }
            });
            marks.collect()
        };
        guarded(|| Ok(marks())).unwrap_or_default()
    }

    /// Runs that wait to be merged; each costs every read a look.
    pub(super) fn unmerged(&self) -> usize {
        self.records.l0_table_count()
    }

    /// Bytes on disk; no I/O but a `stat`.
    pub(super) fn bytes(&self) -> u64 {
        guarded(|| Ok(self.records.disk_space())).unwrap_or_default()
    }
}

/// The tree as of one moment.
pub(super) struct TreeSnapshot {
    tree: Arc<Tree>,
    snapshot: Snapshot,
}

impl TreeSnapshot {
    pub(super) fn get(&self, name: &str) -> Result<Option<Stored>, TreeError> {
        guarded(|| {
            let found = self.snapshot.get(&self.tree.records, key(name))?;
            found.map(|bytes| decode(name, bytes)).transpose()
        })
    }

    /// Walks records in name order until `act` says stop.
    pub(super) fn walk(
        &self,
        from: Bound<&str>,
        mut act: impl FnMut(&str, Stored) -> Walk,
    ) -> Result<(), TreeError> {
        guarded(|| {
            let end = Bound::Excluded(vec![RECORD_PREFIX + 1]);
            let from = match from {
                Bound::Unbounded => Bound::Included(key("")),
                Bound::Included(_) | Bound::Excluded(_) => from.map(key),
            };
            let range = (from, end);
            for item in self.snapshot.range::<Vec<u8>, _>(&self.tree.records, range) {
                let (key, bytes) = item.into_inner()?;
                let name = name(&key)?;
                if act(name, decode(name, bytes)?) == Walk::Stop {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Whether a walk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    On,
    Stop,
}

fn key(name: impl AsRef<str>) -> Vec<u8> {
    let name = name.as_ref().as_bytes();
    let mut key = Vec::with_capacity(name.len() + 1);
    key.push(RECORD_PREFIX);
    key.extend_from_slice(name);
    key
}

fn name(key: &[u8]) -> Result<&str, TreeError> {
    key.split_first()
        .and_then(|(_, name)| std::str::from_utf8(name).ok())
        .ok_or_else(|| TreeError::Damaged("tree: a key is not a record name".into()))
}

fn encode(revision: u64, bytes: &Bytes) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes.len() + 8);
    value.extend_from_slice(&revision.to_le_bytes());
    value.extend_from_slice(bytes);
    value
}

fn decode(name: &str, value: UserValue) -> Result<Stored, TreeError> {
    let mut bytes = Bytes::from(value);
    let revision = Reader(&bytes)
        .u64()
        .ok_or_else(|| TreeError::Damaged(format!("tree: record {name:?} has no revision")))?;
    bytes.advance(REVISION_BYTES);
    Ok(Stored { bytes, revision: Revision(revision) })
}

fn encode_position(position: Position, store: StoreId) -> Vec<u8> {
    let mut value = position.next_frame.to_le_bytes().to_vec();
    value.extend_from_slice(&position.revision.to_le_bytes());
    value.extend_from_slice(&store.0.to_le_bytes());
    value
}

fn decode_position(value: &[u8], store: StoreId) -> Result<Position, TreeError> {
    let mut reader = Reader(value);
    let position =
        reader.u64().and_then(|next_frame| Some(Position { next_frame, revision: reader.u64()? }));
    let Some(position) = position else {
        return Err(TreeError::Damaged("tree: unreadable position".into()));
    };
    // Trees of the version without a manifest do not name their store.
    if !reader.0.is_empty() && reader.0 != store.0.to_le_bytes() {
        return Err(TreeError::Damaged("tree: it is that of another store".into()));
    }
    Ok(position)
}

/// Merges a walk of the tree with newer entries: the page of at most `limit` live records.
pub(super) fn merge(
    snapshot: &TreeSnapshot,
    from: Bound<&str>,
    prefix: &str,
    limit: usize,
    dirty: std::collections::BTreeMap<Name, Entry>,
) -> Result<Vec<(Name, Stored)>, TreeError> {
    let mut page = Vec::with_capacity(limit.min(dirty.len() + 64));
    let mut dirty = dirty.into_iter().peekable();
    let mut take_dirty = |page: &mut Vec<(Name, Stored)>, before: Option<&str>| {
        let mut hides = false;
        while page.len() < limit {
            let Some((name, entry)) =
                dirty.next_if(|(name, _)| before.is_none_or(|before| **name <= *before))
            else {
                break;
            };
            hides = before == Some(&*name);
            if let Some(stored) = entry.stored() {
                page.push((name, stored));
            }
        }
        hides
    };
    if limit > 0 {
        snapshot.walk(from, |name, stored| {
            if !name.starts_with(prefix) {
                return Walk::Stop;
            }
            let hidden = take_dirty(&mut page, Some(name));
            if !hidden && page.len() < limit {
                page.push((Arc::from(name), stored));
            }
            if page.len() < limit { Walk::On } else { Walk::Stop }
        })?;
    }
    take_dirty(&mut page, None);
    Ok(page)
}
