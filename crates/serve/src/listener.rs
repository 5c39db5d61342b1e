//! TCP and unix sockets to listen on, and the connections that they accept.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::connection::Socket;

/// TCP keep-alive: a silent peer is probed after this, at this interval, so many times.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// How long sent data may stay unacknowledged.
const UNHEARD_MS: u32 = 30_000;

/// Connections that the kernel keeps until they are accepted, as far as the system allows.
const BACKLOG: u32 = 4_096;

/// Which addresses a host name may stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    #[default]
    Any,
    V4,
    V6,
}

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a unix socket; removed with the listener.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been removed before.
        let _removed = std::fs::remove_file(&self.0).is_ok();
    }
}

impl Listener {
    /// Listens on the first address of the host that can be had.
    ///
    /// # Errors
    /// When none can.
    pub async fn tcp(host: &str, port: u16, family: Family) -> io::Result<Self> {
        let fits = |address: &SocketAddr| match family {
            Family::Any => true,
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
        };
        let addresses = tokio::net::lookup_host((host, port)).await?;
        Self::first_of(addresses.filter(fits))
    }

    fn first_of(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<Self> {
        let mut failed = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such address");
        for address in addresses {
            match listen(address) {
                Ok(listener) => return Ok(Self(Kind::Tcp(listener))),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Listens on a host and a port that are written as one.
    pub(crate) async fn at(slot: &str) -> io::Result<Self> {
        Self::first_of(tokio::net::lookup_host(slot).await?)
    }

    /// Listens on a unix socket, for the user of this process alone.
    ///
    /// # Errors
    /// When another process listens there, or another file is there.
    pub async fn unix(path: &Path) -> io::Result<Self> {
        if let Ok(there) = std::fs::symlink_metadata(path) {
            if !there.file_type().is_socket() {
                let detail = "there is a file that is no socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, detail));
            }
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another server is listening",
                ));
            }
            // Left behind by a server that was killed.
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self(Kind::Unix(listener, SocketFile(path.to_owned()))))
    }

    /// # Errors
    /// When the system does not say.
    pub fn local(&self) -> io::Result<LocalAddress> {
        match &self.0 {
            Kind::Tcp(listener) => listener.local_addr().map(LocalAddress::Tcp),
            Kind::Unix(_, file) => Ok(LocalAddress::Unix(file.0.clone())),
        }
    }

    /// The next connection, and the address of a client that came over the network.
    pub(crate) async fn accept(&self) -> io::Result<(Conn, Option<SocketAddr>)> {
        match &self.0 {
            Kind::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // They fail for a client that has gone already, which is no reason to stop accepting.
                let _set = configure(&stream).is_ok();
                Ok((Conn::Tcp(stream), Some(address)))
            }
            Kind::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Conn::Unix(stream), None))
            }
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A port that was served a moment ago can be had again.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn configure(stream: &TcpStream) -> io::Result<()> {
    // Small answers must not wait for more to come.
    stream.set_nodelay(true)?;
    notice_dead_peers(stream)
}

/// A client that waits sends nothing for long. One whose machine is gone must not stay in a wait
/// queue, nor be sent messages that it cannot read.
fn notice_dead_peers(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, UNHEARD_MS)?;
    Ok(())
}

/// One accepted connection.
#[derive(Debug)]
pub enum Conn {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The stream of a connection, with or without TLS: what the system knows of the client is asked of
/// the [`Conn`] below it.
pub trait Transport: Socket {
    fn conn(&self) -> &Conn;
    fn conn_mut(&mut self) -> &mut Conn;
}

impl Transport for Conn {
    fn conn(&self) -> &Conn {
        self
    }

    fn conn_mut(&mut self) -> &mut Conn {
        self
    }
}

impl Transport for TlsStream<Conn> {
    fn conn(&self) -> &Conn {
        self.get_ref().0
    }

    fn conn_mut(&mut self) -> &mut Conn {
        self.get_mut().0
    }
}

macro_rules! each {
    ($conn:expr, $stream:ident => $act:expr) => {
        match $conn.get_mut() {
            Conn::Tcp($stream) => $act,
            Conn::Unix($stream) => $act,
        }
    };
}

impl AsyncRead for Conn {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}
