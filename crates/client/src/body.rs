//! What is sent: bytes, or a source that is read while it is sent.
//!
//! A source that can be opened again can be sent again; one that cannot is sent once. Each body
//! notes when it last moved, so that a slow but moving upload is not taken for a hanging one.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::AsyncRead;
use tokio::time::Instant;
use tokio_util::io::ReaderStream;

/// Bytes handed to the connection at once.
const CHUNK_BYTES: usize = 64 * 1024;

type Reader = Pin<Box<dyn AsyncRead + Send>>;
type Open = dyn Fn() -> BoxFuture<'static, io::Result<Reader>> + Send + Sync;

/// A document to send, read while it is sent and never held in memory as a whole.
pub struct Source {
    kind: Kind,
    /// Sent before and after it.
    head: Bytes,
    tail: Bytes,
}

enum Kind {
    Bytes(Bytes),
    Again(Arc<Open>),
    Once(Mutex<Option<Reader>>),
}

impl Source {
    /// Bytes in memory; can be sent again.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self::of(Kind::Bytes(bytes.into()))
    }

    /// A file, opened for each attempt; can be sent again.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self::reopen(move || tokio::fs::File::open(path.clone()))
    }

    /// Whatever `open` opens, from its start each time; can be sent again.
    pub fn reopen<O, F, R>(open: O) -> Self
    where
        O: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = io::Result<R>> + Send + 'static,
        R: AsyncRead + Send + 'static,
    {
        Self::of(Kind::Again(Arc::new(move || {
            let opening = open();
            Box::pin(async move { Ok(Box::pin(opening.await?) as Reader) })
        })))
    }

    /// A reader that can be read only once: when the connection breaks on the way, the update
    /// fails instead of being sent again.
    pub fn once(reader: impl AsyncRead + Send + 'static) -> Self {
        Self::of(Kind::Once(Mutex::new(Some(Box::pin(reader)))))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, head: Bytes::new(), tail: Bytes::new() }
    }

    /// The same between a head and a tail.
    pub(crate) fn framed(self, head: Bytes, tail: Bytes) -> Self {
        Self { head, tail, ..self }
    }

    /// The body for one attempt; `None` when it was used up by an earlier one.
    pub(crate) async fn open(&self) -> io::Result<Option<Upload>> {
        let content = match &self.kind {
            Kind::Bytes(bytes) => Content::Bytes(bytes.clone()),
            Kind::Again(open) => Content::reader(open().await?),
            Kind::Once(reader) => {
                let taken = reader.lock().unwrap_or_else(PoisonError::into_inner).take();
                match taken {
                    Some(reader) => Content::reader(reader),
                    None => return Ok(None),
                }
            }
        };
        let (head, tail) = (self.head.clone(), self.tail.clone());
        let parts = VecDeque::from([Content::Bytes(head), content, Content::Bytes(tail)]);
        Ok(Some(Upload { parts, progress: Progress::start() }))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            Kind::Bytes(_) => "Source::Bytes",
            Kind::Again(_) => "Source::Again",
            Kind::Once(_) => "Source::Once",
        })
    }
}

impl From<Bytes> for Source {
    fn from(bytes: Bytes) -> Self {
        Self::bytes(bytes)
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Self {
        Self::bytes(bytes)
    }
}

impl From<&'static [u8]> for Source {
    fn from(bytes: &'static [u8]) -> Self {
        Self::bytes(bytes)
    }
}

impl From<&'static str> for Source {
    fn from(text: &'static str) -> Self {
        Self::bytes(text)
    }
}

impl From<String> for Source {
    fn from(text: String) -> Self {
        Self::bytes(text)
    }
}

/// How far an upload has come.
#[derive(Debug)]
pub(crate) struct Progress {
    moved: Mutex<Instant>,
    broke: Mutex<Option<io::Error>>,
}

impl Progress {
    fn start() -> Arc<Self> {
        Arc::new(Self { moved: Mutex::new(Instant::now()), broke: Mutex::new(None) })
    }

    /// When the connection last took a piece of it.
    pub(crate) fn moved(&self) -> Instant {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error of the caller's reader, if that is what ended the upload.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.broke.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn step(&self) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Keeps the error and gives the connection another that says as much.
    fn fail(&self, error: io::Error) -> io::Error {
        let told = io::Error::new(error.kind(), "the document could not be read to its end");
        *self.broke.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        told
    }
}

/// One attempt's body.
pub(crate) struct Upload {
    /// What is left of it.
    parts: VecDeque<Content>,
    progress: Arc<Progress>,
}

enum Content {
    Bytes(Bytes),
    Reader(Box<ReaderStream<Reader>>),
}

impl Content {
    fn reader(reader: Reader) -> Self {
        Self::Reader(Box::new(ReaderStream::with_capacity(reader, CHUNK_BYTES)))
    }
}

impl Upload {
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let next = loop {
            let next = match this.parts.front_mut() {
                None => break None,
                Some(Content::Bytes(rest)) if rest.is_empty() => None,
                Some(Content::Bytes(rest)) => Some(Ok(rest.split_to(rest.len().min(CHUNK_BYTES)))),
                Some(Content::Reader(reader)) => ready!(Pin::new(reader.as_mut()).poll_next(cx)),
            };
            if next.is_some() {
                break next;
            }
            this.parts.pop_front();
        };
        this.progress.step();
        Poll::Ready(next.map(|chunk| match chunk {
            Ok(bytes) => Ok(Frame::data(bytes)),
            Err(error) => Err(this.progress.fail(error)),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        let lengths = self.parts.iter().map(|part| match part {
            Content::Bytes(rest) => Some(rest.len() as u64),
            Content::Reader(_) => None,
        });
        lengths.sum::<Option<u64>>().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_go_out_in_chunks_with_their_length_known() {
        let source = Source::bytes(vec![7_u8; CHUNK_BYTES + 1]);
        let mut upload = source.open().await.unwrap().unwrap();
        assert_eq!(upload.size_hint().exact(), Some(CHUNK_BYTES as u64 + 1));
        let progress = upload.progress();
        let opened = progress.moved();
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let first = upload.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first.len(), CHUNK_BYTES);
        assert!(progress.moved() > opened, "taking a piece is progress");
        assert_eq!(upload.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1);
        assert!(upload.is_end_stream());
    }

    #[tokio::test]
    async fn a_frame_goes_around_whatever_it_frames() {
        for source in [Source::bytes("[1]"), Source::once(&b"[1]"[..])] {
            let source = source.framed("<".into(), ">".into());
            let upload = source.open().await.unwrap().unwrap();
            assert!(!upload.is_end_stream());
            assert_eq!(upload.collect().await.unwrap().to_bytes(), "<[1]>");
        }
        let known = Source::bytes("[1]").framed("<".into(), ">".into());
        assert_eq!(known.open().await.unwrap().unwrap().size_hint().exact(), Some(5));
    }

    #[tokio::test]
    async fn a_one_shot_source_opens_once_and_another_again() {
        let once = Source::once(&b"[1]"[..]);
        assert!(once.open().await.unwrap().is_some());
        assert!(once.open().await.unwrap().is_none());

        let again = Source::reopen(|| async { Ok(&b"[1]"[..]) });
        for _ in 0..2 {
            let upload = again.open().await.unwrap().unwrap();
            assert_eq!(upload.collect().await.unwrap().to_bytes(), "[1]");
        }
    }

    #[tokio::test]
    async fn the_readers_own_error_is_kept() {
        let broken = tokio_util::io::StreamReader::new(futures_util::stream::iter([
            Ok(Bytes::from_static(b"{")),
            Err(io::Error::other("the disk is gone")),
        ]));
        let upload = Source::once(broken).open().await.unwrap().unwrap();
        let progress = upload.progress();
        assert!(upload.collect().await.is_err());
        assert_eq!(progress.take_error().unwrap().to_string(), "the disk is gone");
    }
}
