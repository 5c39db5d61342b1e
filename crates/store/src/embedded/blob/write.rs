//! Writes one blob. Content is gathered into large pieces; one piece is being written by a
//! blocking thread while the next is filled, so memory is bounded and no thread waits for a slow
//! sender. The file is removed when the last hand lets go of it unfinished.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::Blobs;
use super::format::{Nonce, Piece, Whole};
use super::name::{BlobName, Kind};
use crate::embedded::dir::{make_dir, sync_dir};
use crate::embedded::disk::new_file;
use crate::embedded::store::off_thread;
use crate::port::{BlobWriter, StoreError};

/// How much is written before a sync of what is there begins beside the next writes, so that
/// little is left to wait for at the end.
const SYNC_EVERY_BYTES: usize = 4 << 20;
/// How often a folder that vanishes under us is made again.
const FOLDER_ATTEMPTS: usize = 16;

/// A file under construction.
pub(crate) struct Draft {
    blobs: Arc<Blobs>,
    name: BlobName,
    path: PathBuf,
    nonce: Nonce,
    content: Mutex<Content>,
    /// The same file, for syncs beside the writes.
    early: File,
    /// A failed sync is reported once by the system; the blob must not be finished after it.
    sync_failed: Mutex<Option<String>>,
}

struct Content {
    file: File,
    whole: Whole,
    /// Set once the file has its final name, or is known to be gone.
    done: bool,
}

impl Draft {
    pub(crate) fn create(blobs: &Arc<Blobs>, name: BlobName) -> Result<Self, StoreError> {
        if name.path(&blobs.root, Kind::Finished).exists() {
            return Err(StoreError::Conflict);
        }
        let path = name.path(&blobs.root, Kind::Unfinished);
        let created = create_in_folder(&name.folder(&blobs.root), &path);
        let mut file = created.map_err(|error| {
            let used = error.kind() == io::ErrorKind::AlreadyExists;
            if used { StoreError::Conflict } else { unwritten(&error) }
        })?;
        let nonce = Nonce(rand::random());
        let prepared =
            file.write_all(&nonce.header(blobs.mark(&name))).and_then(|()| file.try_clone());
        let early = match prepared {
            Ok(early) => early,
            Err(error) => {
                fs::remove_file(&path).ok();
                blobs.prune(&name);
                return Err(unwritten(&error));
            }
        };
        let content = Mutex::new(Content { file, whole: Whole::default(), done: false });
        let (blobs, sync_failed) = (Arc::clone(blobs), Mutex::default());
        Ok(Self { blobs, name, path, nonce, content, early, sync_failed })
    }

    pub(crate) fn append(&self, piece: &mut Piece) -> Result<(), StoreError> {
        let mut content = self.content.lock();
        let Content { file, whole, .. } = &mut *content;
        file.write_all(piece.seal(self.nonce, whole)).map_err(|error| unwritten(&error))
    }

    fn sync_early(&self) {
        if let Err(error) = self.early.sync_data() {
            *self.sync_failed.lock() = Some(error.to_string());
        }
    }

    /// Syncs the content, gives the file its name and syncs that.
    pub(crate) fn finish(&self) -> Result<(), StoreError> {
        let mut content = self.content.lock();
        if let Some(error) = &*self.sync_failed.lock() {
            return Err(unwritten(error));
        }
        let trailer = self.nonce.trailer(content.whole);
        content.file.write_all(&trailer).map_err(|error| unwritten(&error))?;
        content.file.sync_all().map_err(|error| unwritten(&error))?;
        let length = content.file.metadata().map_err(|error| unwritten(&error))?.len();
        let target = self.name.path(&self.blobs.root, Kind::Finished);
        match fs::rename(&self.path, target) {
            Ok(()) => content.done = true,
            // Somebody deleted it: the collector may take an unfinished blob.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                content.done = true;
                return Err(StoreError::NoBlob);
            }
            Err(error) => return Err(unwritten(&error)),
        }
        self.blobs.grown(length);
        for folder in self.name.folders(&self.blobs.root) {
            sync_dir(&folder).map_err(|error| {
                StoreError::Unknown(format!("cannot make a blob's name durable: {error}"))
            })?;
        }
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.content.get_mut().done {
            fs::remove_file(&self.path).ok();
            self.blobs.prune(&self.name);
        }
    }
}

fn unwritten(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("cannot write a blob: {error}"))
}

/// A delete may remove a folder it finds empty just before the file is made in it.
fn create_in_folder(folder: &std::path::Path, path: &std::path::Path) -> io::Result<File> {
    let mut attempt = 1;
    loop {
        match make_dir(folder).and_then(|()| new_file(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < FOLDER_ATTEMPTS => {
                attempt += 1;
            }
            outcome => return outcome,
        }
    }
}

/// The writing end given to callers.
pub(super) struct FileBlobWriter {
    draft: Arc<Draft>,
    piece: Piece,
    in_flight: Option<JoinHandle<Result<Piece, StoreError>>>,
    syncing: Option<JoinHandle<()>>,
    unsynced: usize,
    failed: Option<StoreError>,
}

impl FileBlobWriter {
    pub(super) fn new(draft: Draft) -> Self {
        Self {
            draft: Arc::new(draft),
            piece: Piece::default(),
            in_flight: None,
            syncing: None,
            unsynced: 0,
            failed: None,
        }
    }

    /// Waits for the piece that is being written; its buffer is used again.
    async fn settle(&mut self) -> Result<Piece, StoreError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(handle) = &mut self.in_flight else { return Ok(Piece::default()) };
        // Taken out only when it has ended: this future may be dropped while it waits.
        let outcome = handle.await;
        self.in_flight = None;
        let outcome = outcome.unwrap_or_else(|error| Err(unwritten(&error)));
        outcome.inspect_err(|error| self.failed = Some(error.clone()))
    }

    async fn hand_over(&mut self) -> Result<(), StoreError> {
        let mut spare = self.settle().await?;
        spare.clear();
        self.sync_beside();
        self.unsynced += self.piece.len();
        let mut piece = std::mem::replace(&mut self.piece, spare);
        let draft = Arc::clone(&self.draft);
        let write = move || draft.append(&mut piece).map(|()| piece);
        self.in_flight = Some(tokio::task::spawn_blocking(write));
        Ok(())
    }

    /// Begins to sync what is written, unless that is under way.
    fn sync_beside(&mut self) {
        let free = self.syncing.as_ref().is_none_or(JoinHandle::is_finished);
        if free && self.unsynced >= SYNC_EVERY_BYTES {
            let draft = Arc::clone(&self.draft);
            self.syncing = Some(tokio::task::spawn_blocking(move || draft.sync_early()));
            self.unsynced = 0;
        }
    }
}

impl BlobWriter for FileBlobWriter {
    fn write(&mut self, mut chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            while !chunk.is_empty() {
                if self.piece.is_full() {
                    self.hand_over().await?;
                }
                let taken = self.piece.fill(&chunk);
                chunk.advance(taken);
            }
            Ok(())
        })
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move {
            if !self.piece.is_empty() {
                self.hand_over().await?;
            }
            self.settle().await?;
            if let Some(syncing) = self.syncing.take() {
                // What it found is with the draft.
                syncing.await.map_err(|error| unwritten(&error))?;
            }
            let draft = Arc::clone(&self.draft);
            drop(self);
            off_thread(move || draft.finish()).await
        })
    }
}
