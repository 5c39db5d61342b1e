//! Listening: TCP and unix sockets behind one acceptor, so that another kind of connection (TLS)
//! only needs another `Conn`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::config::{Address, Family};

/// A silent connection is asked whether it is still there after this, so often, so many times.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;
/// How long what was sent may stay unheard of.
const UNHEARD_MS: u32 = 30_000;

/// An address that a server is listening on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    Tcp(SocketAddr),
    /// With mutual TLS.
    Tls(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Tls(address) => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a unix socket; removed with the listener.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have removed it before.
        let _removed = std::fs::remove_file(&self.0).is_ok();
    }
}

impl Listener {
    /// Binds an address; an empty host means every address, or loopback when `local`.
    pub(crate) async fn bind(address: &Address, local: bool) -> io::Result<Self> {
        match address {
            Address::Unix(path) => bind_unix(path).await,
            Address::Tcp { host, port, family } => {
                let host = match (host.as_str(), family) {
                    ("", Family::V6) if local => "::1",
                    ("", _) if local => "127.0.0.1",
                    ("", Family::V4) => "0.0.0.0",
                    ("", Family::Any | Family::V6) => "::",
                    (host, _) => host,
                };
                bind_tcp(host, *port, *family).await
            }
        }
    }

    pub(crate) fn bound(&self) -> io::Result<Bound> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Bound::Tcp),
            Self::Unix(_, file) => Ok(Bound::Unix(file.0.clone())),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Conn> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small answers must not wait for more to come.
                stream.set_nodelay(true)?;
                notice_dead_peers(&stream)?;
                Ok(Conn::Tcp(stream))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Conn::Unix(stream))
            }
        }
    }
}

/// A client that waits says nothing for long. One whose machine is gone must not stay in line, nor
/// be given messages that nobody will read.
fn notice_dead_peers(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, UNHEARD_MS)?;
    Ok(())
}

async fn bind_tcp(host: &str, port: u16, family: Family) -> io::Result<Listener> {
    let fits = |address: &SocketAddr| match family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    };
    let addresses: Vec<SocketAddr> =
        tokio::net::lookup_host((host, port)).await?.filter(fits).collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no such address"));
    }
    TcpListener::bind(addresses.as_slice()).await.map(Listener::Tcp)
}

async fn bind_unix(path: &Path) -> io::Result<Listener> {
    if let Ok(there) = std::fs::symlink_metadata(path) {
        if !there.file_type().is_socket() {
            let detail = "there is a file that is no socket";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, detail));
        }
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server is listening"));
        }
        // Left behind by a server that was killed.
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(Listener::Unix(listener, SocketFile(path.to_owned())))
}

/// One accepted connection.
#[derive(Debug)]
pub(crate) enum Conn {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Conn {
    /// Whether it came over the network.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Tcp(_))
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
