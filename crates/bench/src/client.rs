//! One keep-alive connection with one request at a time on it. Requests come as finished bytes and
//! answers are looked at in place, so that the driver leaves the processor to the servers.

use std::io;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::parse::{self, Framing};

/// No measure asks for an answer of more than a few KiB.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const READ_BYTES: usize = 2 * 1024;

/// Where a server is, and how to get in.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<TlsConnector>,
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
    inbox: Vec<u8>,
    joined: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
    /// Bytes of head and body on the wire.
    pub(crate) wire_bytes: usize,
}

impl<'a> Answer<'a> {
    /// The answer itself if its status is 200; a measure has no use for any other.
    pub(crate) fn ok(self) -> Result<Self> {
        if self.status != 200 {
            let text = String::from_utf8_lossy(self.body.get(..300).unwrap_or(self.body));
            bail!("status {}: {}", self.status, text.trim_end());
        }
        Ok(self)
    }
}

impl Connection {
    pub(crate) async fn open(place: impl Into<Place>) -> Result<Self> {
        let place = place.into();
        let stream = TcpStream::connect(place.address).await.context("connect")?;
        stream.set_nodelay(true)?;
        let stream = match place.tls {
            None => Either::Left(stream),
            Some(tls) => {
                let name = place.address.ip().into();
                Either::Right(Box::new(tls.connect(name, stream).await.context("handshake")?))
            }
        };
        Ok(Self { stream, inbox: Vec::new(), joined: Vec::new() })
    }

    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.send(request).await?;
        self.receive().await
    }

    /// Sends head and body one after the other, for bodies that are not worth a copy. A server may
    /// refuse in the middle of the body: then its answer is worth more than the broken pipe.
    pub(crate) async fn upload(&mut self, head: &[u8], body: &[u8]) -> Result<Answer<'_>> {
        self.send(head).await?;
        let sent = self.stream.write_all(body).await;
        let answer = self.receive().await;
        if let Err(error) = sent {
            answer.and_then(Answer::ok).with_context(|| format!("sending the body: {error}"))?;
            bail!("sending the body: {error}");
        }
        answer
    }

    pub(crate) async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).await.context("send")
    }

    pub(crate) async fn receive(&mut self) -> Result<Answer<'_>> {
        self.inbox.clear();
        loop {
            self.inbox.reserve(READ_BYTES);
            let count = self.stream.read_buf(&mut self.inbox).await.context("receive")?;
            ensure!(count > 0, "the server closed the connection");
            ensure!(self.inbox.len() <= ANSWER_BYTES_MAX, "the answer is too long");
            if let Some(found) = parse::answer(&self.inbox, &mut self.joined)? {
                ensure!(found.wire_bytes == self.inbox.len(), "more than one answer arrived");
                let body = match found.head.framing {
                    Framing::Fixed(_) => self.inbox.get(found.head.size..).unwrap_or_default(),
                    Framing::Chunked => &self.joined,
                };
                let status = found.head.status;
                return Ok(Answer { status, body, wire_bytes: found.wire_bytes });
            }
        }
    }

    /// Whether nothing has come in since the last request was sent.
    pub(crate) fn is_silent(&self) -> bool {
        let socket = match &self.stream {
            Either::Left(stream) => stream,
            Either::Right(stream) => stream.get_ref().0,
        };
        let mut byte = [0];
        matches!(socket.try_read(&mut byte),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
