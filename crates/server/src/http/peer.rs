//! What the kernel knows about the other end of a connection, without reading from it: the HTTP
//! layer stops reading while an answer is pending, and bytes that wait unread hide the end behind
//! them from every reader.

use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use lockd_serve::Conn;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncWrite as _, Interest};

/// What became of the last bytes on a connection that the client has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Not known yet.
    Open,
    /// The client's kernel has acknowledged them.
    Taken,
    /// They came to a socket that was closed already.
    Lost,
}

macro_rules! each {
    ($conn:expr, $stream:ident => $act:expr) => {
        match $conn {
            Conn::Tcp($stream) => $act,
            Conn::Unix($stream) => $act,
        }
    };
}

/// Whether the client has closed its sending side, or all of the connection, as far as the runtime
/// has heard: it may hear of it late. Unread bytes do not hide it.
pub(super) fn is_known_closed(conn: &Conn) -> bool {
    // A socket can nearly always be written to: then this only reads what is known.
    let interest = Interest::READABLE | Interest::WRITABLE;
    let ready = each!(conn, stream => stream.ready(interest).now_or_never());
    matches!(ready, Some(Ok(ready)) if ready.is_read_closed())
}

/// As [`is_known_closed`], by asking the kernel: what it says does not wait for a busy runtime.
pub(super) fn has_closed(conn: &Conn) -> bool {
    let socket = each!(conn, stream => stream.as_fd());
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut asked, Some(&now)) {
        Ok(_) => asked.iter().any(|asked| asked.revents().intersects(ends)),
        Err(_) => is_known_closed(conn),
    }
}

/// Wakes the task when bytes come, or the end. `Ready` when unread bytes are there: then the end
/// wakes nothing.
pub(super) fn poll_news(conn: &Conn, cx: &mut Context<'_>) -> Poll<()> {
    each!(conn, stream => stream.poll_read_ready(cx)).map(drop)
}

/// Sends the end of the connection from this side, below any encryption.
pub(super) fn poll_end(conn: &mut Conn, cx: &mut Context<'_>) -> Poll<()> {
    // It fails when the connection is over already, which `fate` shows.
    Pin::new(conn).poll_shutdown(cx).map(drop)
}

/// To be asked after `has_closed` and `poll_end`, if nothing was written after the bytes in
/// question: only they can have been answered with a reset then.
pub(super) fn fate(conn: &Conn) -> Fate {
    // Our end is acknowledged last; then the socket has no peer any more. So it has after a reset,
    // which leaves an error behind.
    let is_over = match conn {
        Conn::Tcp(stream) => stream.peer_addr().is_err(),
        Conn::Unix(_) => true,
    };
    let error = each!(conn, stream => stream.take_error());
    match (error, is_over) {
        (Ok(Some(_)), _) => Fate::Lost,
        (Ok(None) | Err(_), true) => Fate::Taken,
        (Ok(None) | Err(_), false) => Fate::Open,
    }
}

/// Whether an error of a read says that the client has closed without reading what was sent. TCP
/// tells a reset that follows the end of the client (`EPIPE`) from one without: a client that only
/// resets its connection may have read everything.
pub(super) fn left_unread(conn: &Conn, error: &io::Error) -> bool {
    match conn {
        Conn::Tcp(_) => error.kind() == io::ErrorKind::BrokenPipe,
        Conn::Unix(_) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}
