//! Opens connections. The HTTP client above sees one stream type, so that another kind of
//! transport is one more arm here and nothing else.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::endpoint::Target;

/// A peer that went away without a word is noticed after about half a minute, which is what ends
/// a request that waits for ever on a dead machine.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Opens connections to one target.
#[derive(Clone)]
pub(crate) struct Dial {
    way: Way,
    timeout: Duration,
    tls: Option<TlsConnector>,
}

#[derive(Clone)]
enum Way {
    Net(Target),
    /// Hands out one end of an in-memory pipe; tests hold the other.
    #[cfg(test)]
    Memory(tokio::sync::mpsc::Sender<tokio::io::DuplexStream>),
}

impl Dial {
    pub(crate) fn new(target: Target, timeout: Duration, tls: Option<TlsConnector>) -> Self {
        Self { way: Way::Net(target), timeout, tls }
    }

    #[cfg(test)]
    pub(crate) fn memory(accepts: tokio::sync::mpsc::Sender<tokio::io::DuplexStream>) -> Self {
        Self { way: Way::Memory(accepts), timeout: Duration::from_secs(3), tls: None }
    }

    async fn open(self) -> io::Result<TokioIo<Wire>> {
        let opened = tokio::time::timeout(self.timeout, open(self.way, self.tls)).await;
        let wire = opened.map_err(|_| {
            let waited = self.timeout;
            io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {waited:?}"))
        })??;
        Ok(TokioIo::new(wire))
    }
}

async fn open(way: Way, tls: Option<TlsConnector>) -> io::Result<Wire> {
    match way {
        Way::Net(Target::Tcp { host, port, tls: secure }) => {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            tune(&stream)?;
            match tls.filter(|_| secure) {
                Some(tls) => Ok(Wire(Box::new(tls.connect(name(&host), stream).await?))),
                None => Ok(Wire(Box::new(stream))),
            }
        }
        Way::Net(Target::Unix { path }) => Ok(Wire(Box::new(UnixStream::connect(path).await?))),
        #[cfg(test)]
        Way::Memory(accepts) => {
            const PIPE_BYTES: usize = 64 * 1024;
            let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
            let refused = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
            accepts.send(theirs).await.map_err(refused)?;
            Ok(Wire(Box::new(ours)))
        }
    }
}

/// What the server is called in the handshake. Nobody checks it; a proxy may route by it.
fn name(host: &str) -> ServerName<'static> {
    let lockd = || ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
    ServerName::try_from(host.to_owned()).unwrap_or_else(|_| lockd())
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;

    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

impl tower::Service<Uri> for Dial {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Wire>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().open())
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// An open connection of any kind.
pub(crate) struct Wire(Box<dyn Stream>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }
}
