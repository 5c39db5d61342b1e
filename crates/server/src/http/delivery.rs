//! Making sure that a grant reaches its holder. The answer to an acquire carries the grant; the
//! connection holds on to it until the answer's bytes were taken by the socket. If that does not
//! happen, the grant is dropped, and dropping it gives the lease back.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::app::lease::Undelivered;

/// The grants that a connection has in its write buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    waiting: Arc<Mutex<Vec<Undelivered>>>,
}

impl Outbox {
    pub(super) fn put(&self, grant: Undelivered) {
        self.waiting.lock().push(grant);
    }

    /// Everything written so far was taken by the socket.
    fn flushed(&self) {
        let taken = {
            let mut waiting = self.waiting.lock();
            if waiting.is_empty() {
                return;
            }
            std::mem::take(&mut *waiting)
        };
        for grant in taken {
            grant.delivered();
        }
    }
}

/// The body of an answer that grants leases.
#[derive(Debug)]
pub(crate) struct GrantBody {
    text: Option<Bytes>,
    grant: Option<Undelivered>,
    more: Vec<Undelivered>,
    outbox: Option<Outbox>,
}

impl GrantBody {
    /// Without an outbox the answer counts as delivered when it is read.
    pub(crate) fn new(text: Bytes, grant: Undelivered, outbox: Option<Outbox>) -> Self {
        Self { text: Some(text), grant: Some(grant), more: Vec::new(), outbox }
    }

    /// An answer that grants several at once.
    pub(crate) fn several(text: Bytes, more: Vec<Undelivered>, outbox: Option<Outbox>) -> Self {
        Self { text: Some(text), grant: None, more, outbox }
    }

    /// The text, once; with it the grant goes to the outbox.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        let text = self.text.take()?;
        for grant in self.grant.take().into_iter().chain(self.more.drain(..)) {
            match &self.outbox {
                Some(outbox) => outbox.put(grant),
                None => grant.delivered(),
            }
        }
        Some(text)
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.text.is_none()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.text.as_ref().map_or(0, |text| text.len() as u64)
    }
}

/// A socket that tells the outbox when everything was written.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    socket: S,
    outbox: Outbox,
}

impl<S> Watched<S> {
    pub(crate) fn new(socket: S, outbox: Outbox) -> Self {
        Self { socket, outbox }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    // The HTTP layer flushes the socket only after its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = std::task::ready!(Pin::new(&mut self.socket).poll_flush(cx));
        if flushed.is_ok() {
            self.outbox.flushed();
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
