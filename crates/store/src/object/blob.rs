//! Blobs: written once, in one PUT when they are small, otherwise in parts while they arrive. Their
//! bytes travel in frames with checksums, so that nothing is handed out that was not written. An
//! upload in parts is noted down under its own name before it begins: whoever collects what was
//! abandoned finds it by that note.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt as _, PutMode, PutOptions};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use super::reach::Operation;
use super::{BLOBS, Fault, Shared, UPLOADS, payload};
use crate::port::{BlobReader, BlobWriter, StoreError, is_blob_name};

const FRAME_BYTES_MAX: usize = 256 << 10;
const FRAME_HEAD_BYTES: usize = 8;
/// Parts of one upload that are on their way at a time, and those of all uploads together. An
/// upload fills one more part meanwhile: a client that sends slowly keeps only what it has sent,
/// and nothing that the others wait for.
const PARTS_AT_ONCE: usize = 2;
pub(super) const PARTS_AT_ONCE_ALL: usize = 4;
/// A part may take so many times as long as another request.
const PART_TIMES: u32 = 6;

pub(super) async fn put(
    shared: &Arc<Shared>,
    name: &str,
) -> Result<Box<dyn BlobWriter>, StoreError> {
    if !is_blob_name(name) {
        return Err(StoreError::Unavailable(format!("{name:?} cannot be the name of a blob")));
    }
    let path = shared.prefix.path(BLOBS, name);
    let note = shared.prefix.path(UPLOADS, name);
    for path in [&path, &note] {
        match shared.ask(Operation::Read, shared.bucket.head(path)).await {
            Ok(_) => return Err(StoreError::Conflict),
            Err((Fault::NotFound, _)) => {}
            Err((_, why)) => return Err(StoreError::Unavailable(why)),
        }
    }
    let target = Target { shared: Arc::clone(shared), path, note };
    Ok(Box::new(Writer {
        target,
        buffer: BytesMut::new(),
        total: 0,
        upload: None,
        finished: false,
    }))
}

pub(super) async fn get(
    shared: &Arc<Shared>,
    name: &str,
) -> Result<Box<dyn BlobReader>, StoreError> {
    let path = shared.prefix.path(BLOBS, name);
    let mut reader = Reader {
        shared: Arc::clone(shared),
        path,
        stream: None,
        taken: 0,
        buffer: BytesMut::new(),
        total: 0,
        ended: false,
    };
    reader.connect().await?;
    Ok(Box::new(reader))
}

pub(super) async fn delete(shared: &Arc<Shared>, name: &str) -> Result<(), StoreError> {
    let target = Target {
        shared: Arc::clone(shared),
        path: shared.prefix.path(BLOBS, name),
        note: shared.prefix.path(UPLOADS, name),
    };
    let noted =
        async { shared.bucket.get_opts(&target.note, GetOptions::default()).await?.bytes().await };
    match shared.ask(Operation::Read, noted).await {
        Ok(id) => target.give_up(&String::from_utf8_lossy(&id)).await,
        Err((Fault::NotFound, _)) => {}
        Err((_, why)) => return Err(StoreError::Unavailable(why)),
    }
    shared.remove(&target.path).await
}

/// Finished blobs and uploads that were begun, in one order.
pub(super) async fn list(
    shared: &Arc<Shared>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>, StoreError> {
    let mut all = Vec::new();
    for area in [BLOBS, UPLOADS] {
        let mut names = Vec::new();
        shared
            .list(area, "", after, |object| {
                names.extend(shared.prefix.name(area, object.location.as_ref()));
                names.len() < limit
            })
            .await?;
        all.append(&mut names);
    }
    all.sort_unstable();
    all.dedup();
    all.truncate(limit);
    Ok(all)
}

/// Where a blob goes.
#[derive(Clone)]
struct Target {
    shared: Arc<Shared>,
    path: Path,
    /// Where its upload in parts is noted down.
    note: Path,
}

impl Target {
    async fn begin(&self) -> Result<Arc<str>, StoreError> {
        let shared = &self.shared;
        let begun = shared.ask(Operation::Upload, shared.bucket.create_multipart(&self.path)).await;
        let id = begun.map_err(|(_, why)| StoreError::Unavailable(why))?;
        let note = shared.bucket.put(&self.note, payload(Bytes::from(id.clone())));
        if let Err((_, why)) = shared.ask(Operation::Write, note).await {
            self.give_up(&id).await;
            return Err(StoreError::Unavailable(why));
        }
        Ok(id.into())
    }

    /// Sends one part; the others may send theirs once `_turn` is dropped.
    async fn part(
        self,
        id: Arc<str>,
        number: usize,
        bytes: Bytes,
        _turn: OwnedSemaphorePermit,
    ) -> Result<PartId, StoreError> {
        let (shared, id) = (&self.shared, id.to_string());
        let mut patience = shared.patience();
        loop {
            let part = shared.bucket.put_part(&self.path, &id, number, payload(bytes.clone()));
            match shared.ask_within(shared.timeout * PART_TIMES, Operation::Upload, part).await {
                Ok(part) => return Ok(part),
                // Somebody has given up this upload.
                Err((Fault::NotFound, _)) => return Err(StoreError::NoBlob),
                Err((Fault::Refused | Fault::Rejected, why)) => {
                    return Err(StoreError::Unavailable(why));
                }
                Err((_, why)) => {
                    if !patience.wait().await {
                        return Err(StoreError::Unavailable(why));
                    }
                }
            }
        }
    }

    async fn complete(&self, id: &str, parts: Vec<PartId>) -> Result<(), StoreError> {
        let (shared, id) = (&self.shared, id.to_owned());
        let mut patience = shared.patience();
        loop {
            let complete = shared.bucket.complete_multipart(&self.path, &id, parts.clone());
            let asked =
                shared.ask_within(shared.timeout * PART_TIMES, Operation::Upload, complete).await;
            let Err((fault, why)) = asked else { break };
            // It may have happened all the same; then the upload is no longer there.
            match shared.ask(Operation::Read, shared.bucket.head(&self.path)).await {
                Ok(_) => break,
                Err((Fault::NotFound, _)) if fault == Fault::NotFound => {
                    return Err(StoreError::NoBlob);
                }
                Err(_) => {}
            }
            if !patience.wait().await {
                return Err(StoreError::Unknown(why));
            }
        }
        if shared.remove(&self.note).await.is_err() {
            tracing::debug!(note = %self.note, "the note about a finished upload stays");
        }
        Ok(())
    }

    /// A blob that is no larger than a part.
    async fn put_whole(&self, bytes: Bytes) -> Result<(), StoreError> {
        let shared = &self.shared;
        let mut patience = shared.patience();
        let mut mode = PutMode::Create;
        loop {
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            let put = shared.bucket.put_opts(&self.path, payload(bytes.clone()), options);
            match shared.ask_within(shared.timeout * PART_TIMES, Operation::Write, put).await {
                Ok(_) => return Ok(()),
                Err((Fault::Lost, _)) => return Err(StoreError::Conflict),
                Err((Fault::Refused | Fault::Rejected, why)) => {
                    return Err(StoreError::Unavailable(why));
                }
                // The name is ours and nobody else's: the same bytes again do no harm.
                Err((_, why)) => {
                    mode = PutMode::Overwrite;
                    if !patience.wait().await {
                        return Err(StoreError::Unknown(why));
                    }
                }
            }
        }
    }

    async fn give_up(&self, id: &str) {
        let (shared, id) = (&self.shared, id.to_owned());
        let aborted =
            shared.ask(Operation::Upload, shared.bucket.abort_multipart(&self.path, &id)).await;
        if matches!(aborted, Ok(()) | Err((Fault::NotFound, _))) {
            let _found_again_otherwise = shared.remove(&self.note).await.is_ok();
        }
    }
}

struct Writer {
    target: Target,
    /// Frames that are not on their way yet.
    buffer: BytesMut,
    total: u64,
    upload: Option<Upload>,
    finished: bool,
}

struct Upload {
    id: Arc<str>,
    parts: Vec<PartId>,
    begun: usize,
    under_way: VecDeque<JoinHandle<Result<PartId, StoreError>>>,
}

impl Upload {
    /// Waits for the oldest part.
    async fn settle_one(&mut self) -> Result<(), StoreError> {
        if let Some(part) = self.under_way.front_mut() {
            let part = part.await.map_err(|error| StoreError::Unavailable(error.to_string()));
            self.under_way.pop_front();
            self.parts.push(part??);
        }
        Ok(())
    }
}

impl Writer {
    fn frame(&mut self, chunk: &[u8]) {
        for data in chunk.chunks(FRAME_BYTES_MAX) {
            self.make_room(FRAME_HEAD_BYTES + data.len());
            self.buffer.put_u32_le(u32::try_from(data.len()).unwrap_or(0));
            self.buffer.put_u32_le(crc32c::crc32c(data));
            self.buffer.put_slice(data);
            self.total += data.len() as u64;
        }
    }

    /// Grows the buffer, by doubling while the document is small and never beyond a part and a
    /// frame: left to itself it would double beyond a part.
    fn make_room(&mut self, more: usize) {
        let needed = self.buffer.len() + more;
        if needed <= self.buffer.capacity() {
            return;
        }
        let most = self.target.shared.part_bytes + FRAME_HEAD_BYTES + FRAME_BYTES_MAX;
        let next = if self.upload.is_some() { most } else { most.min(self.buffer.capacity() * 2) };
        let mut grown = BytesMut::with_capacity(next.max(needed));
        grown.put_slice(&self.buffer);
        self.buffer = grown;
    }

    async fn send_full(&mut self) -> Result<(), StoreError> {
        let part_bytes = self.target.shared.part_bytes;
        while self.buffer.len() >= part_bytes {
            let part = self.buffer.split_to(part_bytes).freeze();
            self.send(part).await?;
        }
        Ok(())
    }

    async fn send(&mut self, part: Bytes) -> Result<(), StoreError> {
        if self.upload.is_none() {
            let id = self.target.begin().await?;
            let (parts, under_way) = (Vec::new(), VecDeque::new());
            self.upload = Some(Upload { id, parts, begun: 0, under_way });
        }
        let Some(upload) = &mut self.upload else { return Ok(()) };
        while upload.under_way.len() >= PARTS_AT_ONCE {
            upload.settle_one().await?;
        }
        let turns = Arc::clone(&self.target.shared.part_turns);
        let turn = turns.acquire_owned().await.map_err(super::unavailable)?;
        let task = self.target.clone().part(Arc::clone(&upload.id), upload.begun, part, turn);
        #[expect(
            clippy::disallowed_methods,
            reason = "it ends with its writer, which waits for it"
        )]
        upload.under_way.push_back(tokio::spawn(task));
        upload.begun += 1;
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), StoreError> {
        self.buffer.put_u32_le(0);
        self.buffer.put_u32_le(crc32c::crc32c(&self.total.to_le_bytes()));
        let rest = self.buffer.split().freeze();
        if self.upload.is_none() && rest.len() <= self.target.shared.part_bytes {
            self.target.put_whole(rest).await?;
        } else {
            self.send(rest).await?;
            let Some(upload) = &mut self.upload else { return Ok(()) };
            while !upload.under_way.is_empty() {
                upload.settle_one().await?;
            }
            let parts = std::mem::take(&mut upload.parts);
            self.target.complete(&upload.id, parts).await?;
        }
        self.finished = true;
        Ok(())
    }
}

impl BlobWriter for Writer {
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            // A large chunk is taken in pieces: no more than a part is kept beside it.
            for piece in chunk.chunks(FRAME_BYTES_MAX) {
                self.frame(piece);
                self.send_full().await?;
            }
            Ok(())
        })
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move { Self::finish(&mut self).await })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some(upload) = self.upload.take().filter(|_| !self.finished) else { return };
        for part in &upload.under_way {
            part.abort();
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let target = self.target.clone();
            runtime.spawn(async move { target.give_up(&upload.id).await });
        }
    }
}

struct Reader {
    shared: Arc<Shared>,
    path: Path,
    stream: Option<BoxStream<'static, object_store::Result<Bytes>>>,
    /// Bytes of the object that were taken from the store.
    taken: u64,
    buffer: BytesMut,
    total: u64,
    ended: bool,
}

impl Reader {
    /// Opens the object where it was left off.
    async fn connect(&mut self) -> Result<(), StoreError> {
        let mut patience = self.shared.patience();
        loop {
            let range = (self.taken > 0).then_some(GetRange::Offset(self.taken));
            let options = GetOptions { range, ..GetOptions::default() };
            let get = self.shared.bucket.get_opts(&self.path, options);
            match self.shared.ask(Operation::Read, get).await {
                Ok(got) => {
                    self.stream = Some(got.into_stream());
                    return Ok(());
                }
                Err((Fault::NotFound, _)) => return Err(StoreError::NoBlob),
                Err((Fault::Refused | Fault::Rejected, why)) => {
                    return Err(StoreError::Unavailable(why));
                }
                Err((_, why)) => {
                    if !patience.wait().await {
                        return Err(StoreError::Unavailable(why));
                    }
                }
            }
        }
    }

    /// More bytes of the object; `false` at its end.
    async fn fill(&mut self) -> Result<bool, StoreError> {
        for _ in 0..RESUMED_MAX {
            if self.stream.is_none() {
                self.connect().await?;
            }
            let Some(stream) = &mut self.stream else { continue };
            let piece = tokio::select! {
                biased;
                piece = tokio::time::timeout(self.shared.timeout, stream.next()) => piece,
                () = self.shared.reach.gone() => {
                    self.stream = None;
                    continue;
                }
            };
            match piece {
                Ok(Some(Ok(bytes))) => {
                    self.taken += bytes.len() as u64;
                    self.buffer.extend_from_slice(&bytes);
                    return Ok(true);
                }
                Ok(None) => return Ok(false),
                Ok(Some(Err(_))) | Err(_) => self.stream = None,
            }
            tokio::time::sleep(RESUME_AFTER).await;
        }
        Err(StoreError::Unavailable(format!("{} breaks off again and again", self.path)))
    }

    async fn frame(&mut self) -> Result<Option<Bytes>, StoreError> {
        let path = self.path.clone();
        let damaged = || StoreError::Damaged(format!("the blob {path}"));
        let mut needed = FRAME_HEAD_BYTES;
        loop {
            if let Some((mut head, _)) = self.buffer.split_at_checked(FRAME_HEAD_BYTES) {
                let (length, checksum) = (head.get_u32_le() as usize, head.get_u32_le());
                if length > FRAME_BYTES_MAX {
                    return Err(damaged());
                }
                needed = FRAME_HEAD_BYTES + length;
                if self.buffer.len() >= needed {
                    self.buffer.advance(FRAME_HEAD_BYTES);
                    let data = self.buffer.split_to(length).freeze();
                    let expected = match length {
                        0 => crc32c::crc32c(&self.total.to_le_bytes()),
                        _ => crc32c::crc32c(&data),
                    };
                    if expected != checksum {
                        return Err(damaged());
                    }
                    self.total += data.len() as u64;
                    return Ok((length > 0).then_some(data));
                }
            }
            self.buffer.reserve(needed);
            if !self.fill().await? {
                return Err(StoreError::Damaged(format!("the blob {path} ends early")));
            }
        }
    }
}

/// How often one read goes on from where it broke off.
const RESUMED_MAX: usize = 8;
const RESUME_AFTER: Duration = Duration::from_millis(100);

impl BlobReader for Reader {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            if self.ended {
                return Ok(None);
            }
            let frame = self.frame().await?;
            self.ended = frame.is_none();
            Ok(frame)
        })
    }
}
