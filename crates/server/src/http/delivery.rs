//! Making sure that a grant reaches its holder, and that what waits for a client ends with it. A
//! grant travels with the bytes of its answer; the connection holds on to it until the socket has
//! taken all of them and the client is still there. If that does not happen, the grant is dropped,
//! and dropping it gives the lease back.
//!
//! A client that closes its sending side counts as gone: from here, closing one direction and
//! closing both look the same.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use lockd_serve::Transport;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::peer::{self, Fate};
use crate::app::lease::Undelivered;

/// How often a connection is looked at on which something waits behind unread bytes. The end of
/// all others shows at once.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long the kernel of a client that has closed may take to say whether it had the last answer.
const SETTLE_MAX: Duration = Duration::from_secs(1);
const SETTLE_EVERY: Duration = Duration::from_millis(5);

/// What a connection owes: the grants on their way through it, and how many of its requests wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outbox {
    owed: Arc<Owed>,
}

#[derive(Debug, Default)]
struct Owed {
    waits: AtomicUsize,
    grants: Mutex<Grants>,
}

#[derive(Debug, Default)]
struct Grants {
    /// All bytes of their answers are in the write buffer.
    buffered: Vec<Undelivered>,
    /// Taken by the socket, with nothing written since.
    sent: Vec<Undelivered>,
}

impl Drop for Grants {
    /// Without evidence of the contrary, what was sent has arrived: a lease that its holder knows
    /// of must not go to another.
    fn drop(&mut self) {
        for grant in self.sent.drain(..) {
            grant.delivered();
        }
    }
}

impl Outbox {
    /// While this lives, the connection ends when its client goes.
    pub(super) fn watch(&self) -> Watching {
        self.owed.waits.fetch_add(1, Ordering::Relaxed);
        Watching(self.clone())
    }

    fn has_waits(&self) -> bool {
        self.owed.waits.load(Ordering::Relaxed) > 0
    }

    fn put(&self, grants: impl Iterator<Item = Undelivered>) {
        self.owed.grants.lock().buffered.extend(grants);
    }

    fn has_buffered(&self) -> bool {
        !self.owed.grants.lock().buffered.is_empty()
    }

    /// The socket has taken everything written so far. Whether a grant was with it.
    fn flushed(&self) -> bool {
        let mut grants = self.owed.grants.lock();
        let Grants { buffered, sent } = &mut *grants;
        sent.append(buffered);
        !sent.is_empty()
    }

    /// What was sent has arrived.
    fn arrived(&self) {
        let sent = std::mem::take(&mut self.owed.grants.lock().sent);
        sent.into_iter().for_each(Undelivered::delivered);
    }

    /// What was sent has not arrived: dropping the grants gives them back.
    fn lost(&self) {
        let sent = std::mem::take(&mut self.owed.grants.lock().sent);
        tracing::debug!(grants = sent.len(), "answer not received, grants given back");
    }
}

/// A request that waits, or an answer without end.
#[derive(Debug)]
pub(super) struct Watching(Outbox);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.owed.waits.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes of an answer, and the grants that are whole with the last of them.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    grants: Vec<Undelivered>,
    outbox: Option<Outbox>,
}

impl Piece {
    pub(crate) const fn plain(bytes: Bytes) -> Self {
        Self { bytes, grants: Vec::new(), outbox: None }
    }

    /// Without an outbox the grants count as delivered when the piece is read.
    pub(crate) fn granting(bytes: Bytes, grants: Vec<Undelivered>, outbox: Option<Outbox>) -> Self {
        Self { bytes, grants, outbox }
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes, read by the client itself: it is in this process.
    pub(crate) fn into_delivered(mut self) -> Bytes {
        self.grants.drain(..).for_each(Undelivered::delivered);
        self.bytes
    }
}

/// The HTTP layer advances over bytes when they go to the socket or its buffer, whichever stream of
/// the connection they belong to: not before flow control lets them pass.
impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if self.bytes.is_empty() && !self.grants.is_empty() {
            let grants = self.grants.drain(..);
            match &self.outbox {
                Some(outbox) => outbox.put(grants),
                None => grants.for_each(Undelivered::delivered),
            }
        }
    }
}

/// A socket that follows the grants through it, and ends when a client goes for which something
/// waits.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    socket: S,
    outbox: Outbox,
    /// The HTTP layer has read to the end.
    ended: bool,
    /// The last thing written were grants, and nothing shows yet that they have arrived.
    in_doubt: bool,
    look_again: Option<Pin<Box<Sleep>>>,
    settling: Option<Settling>,
}

/// The end of a connection whose client may not have had its last answer.
#[derive(Debug)]
struct Settling {
    until: Instant,
    again: Pin<Box<Sleep>>,
}

impl<S: Transport> Watched<S> {
    pub(crate) fn new(socket: S, outbox: Outbox) -> Self {
        Self { socket, outbox, ended: false, in_doubt: false, look_again: None, settling: None }
    }

    /// Whether the client has closed its sending side, or all of the connection.
    fn has_ended(&self) -> bool {
        self.ended || peer::has_closed(self.socket.conn())
    }

    fn arrived(&mut self) {
        self.in_doubt = false;
        self.outbox.arrived();
    }

    fn lost(&mut self) {
        self.in_doubt = false;
        self.outbox.lost();
    }

    /// Fails when the client has gone and something waits for it; else the task is woken when it
    /// goes.
    fn look(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.outbox.has_waits() {
            self.look_again = None;
            return Ok(());
        }
        loop {
            if self.has_ended() {
                return Err(gone());
            }
            if peer::poll_news(self.socket.conn(), cx).is_pending() {
                self.look_again = None;
                return Ok(());
            }
            let again =
                self.look_again.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK_EVERY)));
            if again.as_mut().poll(cx).is_pending() {
                // The end may have come between the first look and this one.
                return if self.has_ended() { Err(gone()) } else { Ok(()) };
            }
            self.look_again = None;
        }
    }

    /// No grant is written to a client that has gone.
    fn before_write(&mut self) -> io::Result<()> {
        if self.in_doubt {
            // From here on a reset may be the answer to other bytes.
            self.arrived();
        }
        if self.outbox.has_buffered() && (self.ended || peer::is_known_closed(self.socket.conn())) {
            return Err(gone());
        }
        Ok(())
    }

    /// Finds out whether the client had the last answer before it closed. Ends our side without a
    /// word of TLS: any further byte would be answered with a reset of its own.
    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.settling.is_none() {
            ready!(peer::poll_end(self.socket.conn_mut(), cx));
        }
        loop {
            match peer::fate(self.socket.conn()) {
                Fate::Taken => self.arrived(),
                Fate::Lost => self.lost(),
                Fate::Open => {}
            }
            let settling = self.settling.get_or_insert_with(|| Settling {
                until: Instant::now() + SETTLE_MAX,
                again: Box::pin(tokio::time::sleep(SETTLE_EVERY)),
            });
            if settling.until <= Instant::now() {
                self.in_doubt = false;
            }
            if !self.in_doubt {
                return Poll::Ready(());
            }
            ready!(settling.again.as_mut().poll(cx));
            settling.again.as_mut().reset(Instant::now() + SETTLE_EVERY);
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the client has closed the connection")
}

impl<S: Transport> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let room = buf.remaining() > 0;
        let read = ready!(Pin::new(&mut self.socket).poll_read(cx, buf));
        self.ended |= match &read {
            Ok(()) => room && buf.filled().len() == before,
            Err(error) => error.kind() == io::ErrorKind::UnexpectedEof,
        };
        if self.in_doubt {
            match &read {
                Err(error) if peer::left_unread(self.socket.conn(), error) => self.lost(),
                Ok(()) | Err(_) if self.ended => ready!(self.poll_settle(cx)),
                // The client may have sent these before it had the answer, and closed since.
                Ok(()) if self.has_ended() => {}
                Ok(()) => self.arrived(),
                Err(_) => {}
            }
        }
        Poll::Ready(read)
    }
}

impl<S: Transport> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.before_write()?;
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        if written.is_pending() {
            self.look(cx)?;
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.before_write()?;
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        if written.is_pending() {
            self.look(cx)?;
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    // The HTTP layer flushes the socket only after its own buffer is empty, and whenever it has
    // nothing more to do for now.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.in_doubt = self.outbox.flushed();
        }
        self.look(cx)?;
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.in_doubt && self.has_ended() {
            ready!(self.poll_settle(cx));
        }
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
