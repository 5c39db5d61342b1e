//! Serves one connection, within the limits of its port: HTTP/1.1 and HTTP/2, a first request in
//! time, no long silence between requests, and an end after the requests in progress when the port
//! closes.

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Display;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use lockd_pki::Admitted;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::listener::Transport;
use crate::progress::{CountedService, Sending};
use crate::slots::{ConnectionStage, SlotGuard};

/// How often an HTTP/2 client is asked whether it is still there, and how long it may take to say.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// HTTP/2 streams that a client reset before they were accepted, and streams that the server reset
/// for errors of the client, before the connection is closed.
const RESETS_PENDING_MAX: usize = 20;
const RESETS_LOCAL_MAX: usize = 1_024;
/// How long a connection without a request in progress has to end when the port closes.
const WIND_DOWN: Duration = Duration::from_millis(250);

/// A stream of bytes both ways.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Socket for S {}

/// What answers at a port.
pub trait Serve: Send + Sync + 'static {
    /// The socket that HTTP is spoken over: the one of the connection, or one around it.
    type Socket<S: Transport>: Socket;
    type Body: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static;
    type Service: Service<
            Request<Incoming>,
            Response = Response<Self::Body>,
            Error = Infallible,
            Future: Send + Unpin + 'static,
        > + Send
        + 'static;

    /// A new connection: the socket to use for it, and the service that answers its requests.
    fn open<S: Transport>(&self, socket: S, caller: Caller) -> (Self::Socket<S>, Self::Service);

    /// For what the application counts.
    fn saw(&self, _event: ConnectionEvent) {}
}

/// The client of a connection.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// Where it comes from, over the network.
    pub address: Option<SocketAddr>,
    /// Who it showed itself to be, over TLS.
    pub admitted: Option<Arc<Admitted>>,
}

/// What happens to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    Opened,
    Closed,
    HandshakeFailed,
    /// A connection lost its slot to another.
    Evicted(ConnectionStage),
    /// There was no slot for a connection.
    Refused,
}

/// Bounds of each connection of a port.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// From the connection, or its handshake, to the end of the head of its first request: the time
    /// for the first byte, and for the preface of HTTP/2.
    pub first_request: Duration,
    /// Silence between two requests, with the time that the head of the second one takes.
    pub idle: Duration,
    /// Size of a request's headers over HTTP/2.
    pub headers_max: usize,
    /// Requests that one HTTP/2 connection may have in progress.
    pub streams_max: u32,
    /// Whether HTTP/2 is spoken without TLS, to clients that begin with its preface.
    pub plain_h2: bool,
    /// How long requests in progress may take when the port closes; without a bound of its own, as
    /// long as the owner of the port waits.
    pub wind_down: Option<Duration>,
}

impl ConnectionLimits {
    /// The usual time to a first request.
    pub const FIRST_REQUEST: Duration = Duration::from_secs(10);
    /// The usual silence between requests.
    pub const IDLE: Duration = Duration::from_secs(120);
}

/// How HTTP is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    Http2,
    /// As its first bytes show.
    Either,
}

struct Open<'a, A: Serve>(&'a A);

impl<A: Serve> Drop for Open<'_, A> {
    fn drop(&mut self) {
        self.0.saw(ConnectionEvent::Closed);
    }
}

/// Serves a connection to its end.
pub(crate) async fn serve<A: Serve, S: Transport>(
    app: &A,
    socket: S,
    caller: Caller,
    speaks: Speaks,
    (guard, limits): (&SlotGuard, &ConnectionLimits),
) {
    app.saw(ConnectionEvent::Opened);
    let _open = Open(app);
    let (socket, service) = app.open(socket, caller);
    let io = TokioIo::new(Sending::new(socket, guard.counter()));
    let service = CountedService { service, counter: guard.counter() };
    match speaks {
        Speaks::Http1 => {
            let serving = pin!(http1().serve_connection(io, service));
            drive(serving, |serving| serving.graceful_shutdown(), guard, limits).await;
        }
        Speaks::Http2 => {
            let mut serving = Box::pin(http2(limits).serve_connection(io, service));
            drive(serving.as_mut(), |serving| serving.graceful_shutdown(), guard, limits).await;
        }
        Speaks::Either => {
            let builder = either(limits);
            let mut serving = Box::pin(builder.serve_connection(io, service));
            drive(serving.as_mut(), |serving| serving.graceful_shutdown(), guard, limits).await;
        }
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // The guard has a timer for a connection, not for a request. And no `pipeline_flush`: it lifts
    // the bound on what is buffered for a reader that stalls.
    builder.header_read_timeout(None);
    // One buffer and one `send` for head and body: cheaper than `writev` for most answers.
    builder.writev(false);
    builder
}

fn http2(limits: &ConnectionLimits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(PING_EVERY))
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(headers_max(limits))
        .max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
        .max_local_error_reset_streams(Some(RESETS_LOCAL_MAX))
        .adaptive_window(true);
    builder
}

fn either(limits: &ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().header_read_timeout(None).writev(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(PING_EVERY))
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(headers_max(limits))
        .max_pending_accept_reset_streams(Some(RESETS_PENDING_MAX))
        .max_local_error_reset_streams(Some(RESETS_LOCAL_MAX))
        .adaptive_window(true);
    builder
}

fn headers_max(limits: &ConnectionLimits) -> u32 {
    u32::try_from(limits.headers_max).unwrap_or(u32::MAX)
}

/// Runs a connection to its end: by itself, for being silent, for another that needs its slot, or
/// because the port closes. Takes it by reference: a future that is passed on leaves its size behind
/// in every function it went through.
async fn drive<C, E>(
    mut serving: Pin<&mut C>,
    wind_down: fn(Pin<&mut C>),
    guard: &SlotGuard,
    limits: &ConnectionLimits,
) where
    C: Future<Output = Result<(), E>>,
    E: Display,
{
    tokio::select! {
        // The connection first: what it has answered is sent before its slot is looked at.
        biased;
        ended = serving.as_mut() => log_end(ended),
        () = guard.nudged() => {
            if guard.is_lost() {
                tracing::debug!("a silent connection lost its slot to another");
                return;
            }
            wind_down(serving.as_mut());
            finish(serving, guard, limits.wind_down).await;
        }
        () = guard.overdue(limits.first_request, limits.idle) => {
            tracing::debug!("an idle connection was closed");
        }
    }
}

/// Until the requests in progress are answered; what is no request yet is not waited for.
async fn finish<C, E>(mut serving: Pin<&mut C>, guard: &SlotGuard, bound: Option<Duration>)
where
    C: Future<Output = Result<(), E>>,
    E: Display,
{
    let late = async {
        match bound {
            Some(bound) => tokio::time::sleep(bound).await,
            None => std::future::pending().await,
        }
    };
    let silent = async {
        loop {
            tokio::time::sleep(WIND_DOWN).await;
            if guard.is_silent(WIND_DOWN) {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        ended = serving.as_mut() => log_end(ended),
        () = silent => {}
        () = late => tracing::debug!("a connection was cut: its requests took too long"),
    }
}

fn log_end<E: Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
