//! Requests in progress: a connection counts each from the end of its head until its answer is
//! sent, without a lock, a timer or an allocation for a request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::slots::{InProgress, RequestCounter};

/// What certainly fits into the buffers of a socket.
const SHORT_BODY_BYTES: u64 = 16 * 1024;

/// A service whose requests are counted.
#[derive(Debug)]
pub(crate) struct CountedService<S> {
    pub(crate) service: S,
    pub(crate) counter: RequestCounter,
}

impl<S, B> Service<Request<Incoming>> for CountedService<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Future: Unpin>,
    B: Body + Unpin,
{
    type Response = Response<SentBody<B>>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let begun = self.counter.begin();
        Answering(begun.map(|progress| (self.service.call(request), progress)))
    }
}

/// A request in progress; without one, a request that came after its connection lost its slot. That
/// one stays unanswered: its connection is closed before it can be.
#[derive(Debug)]
pub(crate) struct Answering<F>(Option<(F, InProgress)>);

impl<F, B, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
    B: Body + Unpin,
{
    type Output = Result<Response<SentBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((future, _)) = &mut self.0 else { return Poll::Pending };
        let answered = ready!(Pin::new(future).poll(cx));
        let progress = self.0.take().map(|(_, progress)| progress);
        Poll::Ready(answered.map(|answer| {
            answer.map(|body| {
                // A short body is as good as sent, a long one is part of its request.
                let short = body.size_hint().exact().is_some_and(|bytes| bytes <= SHORT_BODY_BYTES);
                SentBody { _progress: progress.filter(|_| !short), body }
            })
        }))
    }
}

/// The body of an answer; while a long one is sent, its request is in progress.
#[derive(Debug)]
pub(crate) struct SentBody<B> {
    body: B,
    _progress: Option<InProgress>,
}

impl<B: Body + Unpin> Body for SentBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket that knows when the client does not take what is sent to it: until it has, a request is
/// in progress.
#[derive(Debug)]
pub(crate) struct Sending<S> {
    socket: S,
    counter: RequestCounter,
    stalled: Option<InProgress>,
}

impl<S> Sending<S> {
    pub(crate) fn new(socket: S, counter: RequestCounter) -> Self {
        Self { socket, counter, stalled: None }
    }

    fn stalls(&mut self) {
        if self.stalled.is_none() {
            self.stalled = Some(self.counter.sending());
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Sending<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Sending<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        if written.is_pending() {
            self.stalls();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        if written.is_pending() {
            self.stalls();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    // The HTTP layer flushes the socket only after its own buffer is empty; TLS flushes what it has
    // encrypted.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if flushed.is_pending() {
            self.stalls();
        } else if self.stalled.is_some() {
            self.stalled = None;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
