//! Reads one blob, a piece ahead of the caller. Each frame is verified before it is handed out,
//! and a file that does not end in its trailer is never opened as a blob.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::format::{
    FRAME_HEADER_BYTES, HEADER_BYTES, Nonce, TRAILER_BYTES, Whole, parse_frame_header,
};
use crate::port::{BlobReader, StoreError};

/// Frames read at once.
const FRAMES_AHEAD: usize = 4;
const BUFFER_BYTES: usize = 64 << 10;

/// Buffers kept for the next frames.
const SPARES_MAX: usize = 2 * FRAMES_AHEAD;

/// Buffers that come back when a frame was used up. A large blob is read with a few of them:
/// one for each frame, made by one thread and freed by another, would stay with the allocator.
#[derive(Clone, Default)]
struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

struct Lent {
    bytes: Vec<u8>,
    home: Buffers,
}

impl Buffers {
    fn take(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    fn lend(&self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { bytes, home: self.clone() })
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut spares = self.home.0.lock();
        if spares.len() < SPARES_MAX {
            spares.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// A finished blob, open.
pub(crate) struct BlobFile {
    file: BufReader<File>,
    buffers: Buffers,
    nonce: Nonce,
    whole: Whole,
    next: u64,
    read: u64,
}

impl BlobFile {
    /// Opens a file and makes sure that it is a whole blob, and
    /// of this mark, if it has one.
    pub(super) fn open(path: &Path, mark: u32) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(|error| {
            let missing = error.kind() == io::ErrorKind::NotFound;
            if missing { StoreError::NoBlob } else { unreadable(&error) }
        })?;
        let len = file.metadata().map_err(|error| unreadable(&error))?.len();
        let damaged = || StoreError::Damaged(format!("blob {} is not whole", path.display()));
        let trailer_at = len.checked_sub(TRAILER_BYTES as u64).ok_or_else(damaged)?;
        let mut trailer = [0; TRAILER_BYTES];
        file.read_exact_at(&mut trailer, trailer_at).map_err(|error| unreadable(&error))?;
        let mut file = BufReader::with_capacity(BUFFER_BYTES, file);
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header).map_err(|_| damaged())?;
        let nonce = Nonce::parse(&header).ok_or_else(damaged)?;
        let whole = nonce.parse_trailer(&trailer, len).ok_or_else(damaged)?;
        let found = Nonce::mark(&header);
        if found != 0 && mark != 0 && found != mark {
            let what = format!("blob {} is that of another store or name", path.display());
            return Err(StoreError::Damaged(what));
        }
        Ok(Self { file, buffers: Buffers::default(), nonce, whole, next: 0, read: 0 })
    }

    /// The length of the content.
    pub(crate) fn bytes(&self) -> u64 {
        self.whole.bytes
    }

    /// The next frame's content, `None` after the last.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Bytes>, StoreError> {
        if self.next == self.whole.frames {
            let short = self.read != self.whole.bytes;
            return if short { Err(self.damaged()) } else { Ok(None) };
        }
        let mut header = [0; FRAME_HEADER_BYTES];
        self.fill(&mut header)?;
        let (len, crc) = parse_frame_header(&header).ok_or_else(|| self.damaged())?;
        let mut content = self.buffers.take(len);
        self.fill(&mut content)?;
        if !self.nonce.verify(self.next, crc, &content) {
            return Err(self.damaged());
        }
        self.next += 1;
        self.read += len as u64;
        Ok(Some(self.buffers.lend(content)))
    }

    fn fill(&mut self, place: &mut [u8]) -> Result<(), StoreError> {
        self.file.read_exact(place).map_err(|error| {
            let short = error.kind() == io::ErrorKind::UnexpectedEof;
            if short { self.damaged() } else { unreadable(&error) }
        })
    }

    fn damaged(&self) -> StoreError {
        StoreError::Damaged(format!("frame {} of a blob is not what was written", self.next))
    }
}

fn unreadable(error: &io::Error) -> StoreError {
    StoreError::Unavailable(format!("cannot read a blob: {error}"))
}

type Piece = (BlobFile, VecDeque<Bytes>, Result<bool, StoreError>);

/// The reading end given to callers.
pub(super) struct FileBlobReader {
    ready: VecDeque<Bytes>,
    /// The file, while nothing is being read.
    idle: Option<BlobFile>,
    in_flight: Option<JoinHandle<Piece>>,
    ended: Option<Result<(), StoreError>>,
}

impl FileBlobReader {
    pub(super) fn new(file: BlobFile) -> Self {
        Self { ready: VecDeque::new(), idle: Some(file), in_flight: None, ended: None }
    }

    fn read_ahead(&mut self) {
        if self.ended.is_some() {
            return;
        }
        if let Some(file) = self.idle.take() {
            self.in_flight = Some(tokio::task::spawn_blocking(move || read_piece(file)));
        }
    }

    async fn settle(&mut self) {
        let Some(handle) = &mut self.in_flight else { return };
        let outcome = handle.await;
        self.in_flight = None;
        match outcome {
            Ok((file, frames, state)) => {
                self.ready.extend(frames);
                self.idle = Some(file);
                match state {
                    Ok(true) => {}
                    Ok(false) => self.ended = Some(Ok(())),
                    Err(error) => self.ended = Some(Err(error)),
                }
            }
            Err(error) => {
                let error = StoreError::Unavailable(format!("a blob was not read: {error}"));
                self.ended = Some(Err(error));
            }
        }
    }
}

/// Reads some frames; `true`: there may be more.
fn read_piece(mut file: BlobFile) -> Piece {
    let mut frames = VecDeque::with_capacity(FRAMES_AHEAD);
    while frames.len() < FRAMES_AHEAD {
        match file.next_frame() {
            Ok(Some(frame)) => frames.push_back(frame),
            Ok(None) => return (file, frames, Ok(false)),
            Err(error) => return (file, frames, Err(error)),
        }
    }
    (file, frames, Ok(true))
}

impl BlobReader for FileBlobReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            loop {
                if let Some(frame) = self.ready.pop_front() {
                    if self.ready.is_empty() {
                        self.read_ahead();
                    }
                    return Ok(Some(frame));
                }
                if let Some(ended) = &self.ended {
                    return ended.clone().map(|()| None);
                }
                if self.in_flight.is_none() {
                    self.read_ahead();
                }
                self.settle().await;
            }
        })
    }
}
