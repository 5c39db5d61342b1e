//! Writes one blob. Content is gathered into large pieces; one piece is being written by a
//! blocking thread while the next is filled, so memory is bounded and no thread waits for a slow
//! sender. The file is removed when the last hand lets go of it unfinished.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::format::{FRAME_BYTES, FRAME_HEADER_BYTES, Nonce, Whole};
use super::name::{BlobName, Kind};
use super::Blobs;
use crate::embedded::disk::new_file;
use crate::embedded::dir::{make_dir, sync_dir};
use crate::embedded::store::off_thread;
use crate::port::{BlobWriter, StoreError};

/// What is handed to the disk at once.
const PIECE_BYTES: usize = 4 * FRAME_BYTES;
/// How often a folder that vanishes under us is made again.
const FOLDER_ATTEMPTS: usize = 16;

/// A file under construction.
pub(crate) struct Draft {
    blobs: Arc<Blobs>,
    name: BlobName,
    path: PathBuf,
    nonce: Nonce,
    content: Mutex<Content>,
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
        let mut file = create_in_folder(&name.folder(&blobs.root), &path).map_err(|error| {
            match error.kind() {
                io::ErrorKind::AlreadyExists => StoreError::Conflict,
                _ => StoreError::Unavailable(format!("cannot make a blob: {error}")),
            }
        })?;
        let nonce = Nonce(rand::random());
        let written = file.write_all(&nonce.header());
        let content = Mutex::new(Content { file, whole: Whole::default(), done: false });
        let draft = Self { blobs: Arc::clone(blobs), name, path, nonce, content };
        written.map_err(|error| StoreError::Unavailable(format!("cannot write a blob: {error}")))?;
        Ok(draft)
    }

    pub(crate) fn append(&self, piece: &[u8]) -> Result<(), StoreError> {
        let mut content = self.content.lock();
        let mut framed =
            Vec::with_capacity(piece.len() + piece.len().div_ceil(FRAME_BYTES) * FRAME_HEADER_BYTES);
        for frame in piece.chunks(FRAME_BYTES) {
            self.nonce.frame(content.whole.frames, frame, &mut framed);
            content.whole.frames += 1;
            content.whole.bytes += frame.len() as u64;
        }
        content
            .file
            .write_all(&framed)
            .map_err(|error| StoreError::Unavailable(format!("cannot write a blob: {error}")))
    }

    /// Syncs the content, gives the file its name and syncs that.
    pub(crate) fn finish(&self) -> Result<(), StoreError> {
        let mut content = self.content.lock();
        let unwritten = |error| StoreError::Unavailable(format!("cannot finish a blob: {error}"));
        let trailer = self.nonce.trailer(content.whole);
        content.file.write_all(&trailer).map_err(unwritten)?;
        content.file.sync_all().map_err(unwritten)?;
        let length = content.file.metadata().map_err(unwritten)?.len();
        let target = self.name.path(&self.blobs.root, Kind::Finished);
        match fs::rename(&self.path, target) {
            Ok(()) => content.done = true,
            // Somebody deleted it: the collector may take an unfinished blob.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                content.done = true;
                return Err(StoreError::NoBlob);
            }
            Err(error) => return Err(unwritten(error)),
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
    piece: Vec<u8>,
    in_flight: Option<JoinHandle<Result<Vec<u8>, StoreError>>>,
    failed: Option<StoreError>,
}

impl FileBlobWriter {
    pub(super) fn new(draft: Draft) -> Self {
        let draft = Arc::new(draft);
        Self { draft, piece: Vec::new(), in_flight: None, failed: None }
    }

    /// Waits for the piece that is being written; its buffer is used again.
    async fn settle(&mut self) -> Result<Vec<u8>, StoreError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Some(handle) = &mut self.in_flight else { return Ok(Vec::new()) };
        // Taken out only when it has ended: this future may be dropped while it waits.
        let outcome = handle.await;
        self.in_flight = None;
        let outcome = outcome.unwrap_or_else(|error| {
            Err(StoreError::Unavailable(format!("a blob was not written: {error}")))
        });
        outcome.inspect_err(|error| self.failed = Some(error.clone()))
    }

    async fn hand_over(&mut self) -> Result<(), StoreError> {
        let mut spare = self.settle().await?;
        spare.clear();
        let piece = std::mem::replace(&mut self.piece, spare);
        let draft = Arc::clone(&self.draft);
        let write = move || draft.append(&piece).map(|()| piece);
        self.in_flight = Some(tokio::task::spawn_blocking(write));
        Ok(())
    }
}

impl BlobWriter for FileBlobWriter {
    fn write(&mut self, mut chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            while !chunk.is_empty() {
                if self.piece.len() >= PIECE_BYTES {
                    self.hand_over().await?;
                }
                let room = (PIECE_BYTES - self.piece.len()).min(chunk.len());
                self.piece.extend_from_slice(&chunk.split_to(room));
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
            let draft = Arc::clone(&self.draft);
            drop(self);
            off_thread(move || draft.finish()).await
        })
    }
}
