//! Serving connections: accepting never waits for a connection's bytes, each connection is a task
//! of its own, and their number is bounded. When the server stops, a connection ends after the
//! request it is serving.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Semaphore;

use crate::farewell;
use crate::handshake::{Door, Guest};
use crate::http::auth::Who;
use crate::http::body::{Body, Outgoing, keep_until_sent};
use crate::http::call::Origin;
use crate::http::delivery::{Outbox, Watched};
use crate::http::peer::Peer;
use crate::http::router::Entry;
use crate::listen::{Conn, Listener};
use crate::metrics::Metrics;
use crate::tasks::Tasks;

/// Bounds on connections.
#[derive(Clone)]
pub(crate) struct Rules {
    /// Silence between requests, and the time a request's head may take.
    pub(crate) idle_timeout: Duration,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) headers_max: usize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Tasks,
    /// Mutual TLS for connections over the network.
    pub(crate) door: Option<Door>,
}

/// After running out of file handles, accepting rests for a moment.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Requests that one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 256;
/// How often an HTTP/2 client is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(30);

/// When the server stops, a connection without a request ends after being quiet for this long.
const QUIET_SPAN: Duration = Duration::from_millis(200);

/// Said without reading a request: there is no room to read one.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
retry-after: 1\r\nconnection: close\r\ncontent-length: 100\r\n\r\n\
{\"error\":\"too_many_connections\",\"detail\":\"the server has no room for more\",\"retry_after_seconds\":1}\n";
/// The same over HTTP/2: our settings, then GOAWAY for stream 0 with ENHANCE_YOUR_CALM.
const FULL_H2: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
\0\0\x1c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0btoo_many_connections";

/// Accepts until the server stops.
pub(crate) async fn accept(listener: Listener, rules: Arc<Rules>, entry: Arc<Entry>) {
    let mut stopping = pin!(rules.tasks.stopping());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopping => return,
        };
        let conn = match accepted {
            Ok(conn) => conn,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            }
        };
        let (shared, entry) = (Arc::clone(&rules), Arc::clone(&entry));
        // Whoever may write to a socket file is on this machine and allowed to.
        match &rules.door {
            Some(door) if conn.is_remote() => {
                let door = door.clone();
                rules.tasks.spawn("connection", async move {
                    admit_guest(&door, conn, &shared, entry).await;
                });
            }
            Some(_) | None => rules.tasks.spawn("connection", async move {
                admit(conn, &shared, entry, Caller::default()).await;
            }),
        }
    }
}

/// Serves a client that comes in through the door, until it is revoked.
async fn admit_guest(door: &Door, conn: Conn, rules: &Rules, entry: Arc<Entry>) {
    let shaken = tokio::select! {
        shaken = door.shake(conn) => shaken,
        // Who has not come in yet does not hold up the end.
        () = rules.tasks.stopping() => None,
    };
    let Some(Guest { stream, who, speaks_h2 }) = shaken else { return };
    let caller = Caller { who: Some(Arc::clone(&who)), speaks_h2 };
    tokio::select! {
        () = admit(stream, rules, entry, caller) => {}
        () = door.revoked(&who) => {}
    }
}

/// Who is at the other end.
#[derive(Clone, Default)]
struct Caller {
    who: Who,
    speaks_h2: bool,
}

/// Serves a connection if there is room for one more.
async fn admit<S: Socket>(socket: S, rules: &Rules, entry: Arc<Entry>, caller: Caller) {
    let Ok(_room) = rules.room.try_acquire() else {
        refuse(socket, caller.speaks_h2).await;
        return;
    };
    let _open = Open::new(&rules.metrics);
    serve(socket, rules, entry, caller).await;
}

/// Any stream of bytes both ways.
trait Socket: AsyncRead + AsyncWrite + Peer + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Peer + Send + Unpin + 'static> Socket for S {}

/// Counts an open connection.
struct Open<'a>(&'a Metrics);

impl<'a> Open<'a> {
    fn new(metrics: &'a Metrics) -> Self {
        metrics.connections.inc();
        Self(metrics)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

/// Says why, for as long as the other side takes it at once.
async fn refuse(mut conn: impl Socket, speaks_h2: bool) {
    let words = if speaks_h2 { FULL_H2 } else { FULL };
    let refusing = async {
        if conn.write_all(words).await.is_ok() {
            farewell::part(conn).await;
        }
    };
    let said = tokio::time::timeout(ACCEPT_REST, refusing).await;
    tracing::debug!(said = said.is_ok(), "no room for a connection");
}

async fn serve<S: Socket>(socket: S, rules: &Rules, entry: Arc<Entry>, caller: Caller) {
    let outbox = Outbox::default();
    let activity = Arc::new(Activity::default());
    let socket = Counted { socket, activity: Arc::clone(&activity) };
    let io = TokioIo::new(Watched::new(socket, outbox.clone()));
    let origin = Origin { outbox: Some(outbox), who: caller.who };
    let service = Calls { entry, origin, activity: Arc::clone(&activity) };
    if caller.speaks_h2 {
        let mut serving = Box::pin(http2(rules).serve_connection(io, service));
        drive(serving.as_mut(), |serving| serving.graceful_shutdown(), &activity, rules).await;
    } else {
        let serving = pin!(http1().serve_connection(io, service));
        drive(serving, |serving| serving.graceful_shutdown(), &activity, rules).await;
    }
}

fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    // Idle connections are found by `Activity`: a timer per connection, not per request. And no
    // `pipeline_flush`: it lifts the bound on what is buffered for a reader that stalls.
    builder.header_read_timeout(None);
    // One buffer and one `send` for head and body: cheaper than `writev` for what we mostly say.
    builder.writev(false);
    builder
}

fn http2(rules: &Rules) -> http2::Builder<TokioExecutor> {
    let headers_max = u32::try_from(rules.headers_max).unwrap_or(u32::MAX);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(PING_EVERY))
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(headers_max)
        .adaptive_window(true);
    builder
}

/// Runs a connection to its end: by itself, for being idle, or because the server stops. Takes it
/// by reference: a future that is passed on leaves its room behind in every hand it went through.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    mut serving: Pin<&mut C>,
    wind_down: fn(Pin<&mut C>),
    activity: &Activity,
    rules: &Rules,
) {
    let mut stopping = pin!(rules.tasks.stopping());
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = activity.idle_for(rules.idle_timeout) => {
            tracing::debug!("an idle connection was closed");
            return;
        }
        () = &mut stopping => {
            wind_down(serving.as_mut());
            // The connection first: it takes in what has arrived before it counts as quiet.
            tokio::select! {
                biased;
                ended = &mut serving => ended,
                () = activity.quiet_for(QUIET_SPAN) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Whether a connection does anything: how many requests it began and how many it answered, and
/// how many bytes of answers the socket took.
#[derive(Debug, Default)]
struct Activity {
    begun: AtomicU64,
    answered: AtomicU64,
    sent: AtomicU64,
}

impl Activity {
    /// Ready when no request was begun or under way for `span` to twice that. A request counts
    /// as begun when its head is complete, so a head that trickles in does not keep a connection.
    async fn idle_for(&self, span: Duration) {
        let mut seen = u64::MAX;
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            let busy = self.answered.load(Ordering::Relaxed) != begun;
            if !busy && begun == seen {
                return;
            }
            seen = begun;
            tokio::time::sleep(span).await;
        }
    }

    /// Ready when no request was under way and nothing was sent for `span` to twice that. A peer
    /// that says half a request, or does not answer a GOAWAY, does not hold up the end; an answer
    /// on its way through a slow network is not cut off.
    async fn quiet_for(&self, span: Duration) {
        let mut seen = None;
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            let busy = self.answered.load(Ordering::Relaxed) != begun;
            let now = (begun, self.sent.load(Ordering::Relaxed));
            if !busy && seen == Some(now) {
                return;
            }
            seen = Some(now);
            tokio::time::sleep(span).await;
        }
    }
}

/// A socket that counts the bytes it takes.
struct Counted<S> {
    socket: S,
    activity: Arc<Activity>,
}

impl<S: Peer> Peer for Counted<S> {
    fn conn(&self) -> &Conn {
        self.socket.conn()
    }

    fn conn_mut(&mut self) -> &mut Conn {
        self.socket.conn_mut()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = std::task::ready!(Pin::new(&mut self.socket).poll_write(cx, bytes))?;
        self.activity.sent.fetch_add(sent as u64, Ordering::Relaxed);
        Poll::Ready(Ok(sent))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = std::task::ready!(Pin::new(&mut self.socket).poll_write_vectored(cx, pieces))?;
        self.activity.sent.fetch_add(sent as u64, Ordering::Relaxed);
        Poll::Ready(Ok(sent))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// Counts a request as answered, or given up, when it goes.
struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

struct Calls {
    entry: Arc<Entry>,
    origin: Origin,
    activity: Arc<Activity>,
}

impl Service<Request<Incoming>> for Calls {
    type Response = http::Response<Outgoing>;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.activity.begun.fetch_add(1, Ordering::Relaxed);
        let under_way = UnderWay(Arc::clone(&self.activity));
        let (entry, origin) = (Arc::clone(&self.entry), self.origin.clone());
        Box::pin(async move {
            let answer = entry.handle(request.map(Body::from), origin).await;
            Ok(keep_until_sent(answer, under_way).map(Outgoing::new))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{FULL, FULL_H2};

    #[test]
    fn the_refusal_counts_its_bytes_right() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    }
    #[test]
    fn the_refusal_over_http2_counts_its_bytes_right() {
        let (settings, goaway) = FULL_H2.split_at(9);
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let (head, payload) = goaway.split_at(9);
        assert_eq!(head, [0, 0, u8::try_from(payload.len()).unwrap(), 7, 0, 0, 0, 0, 0]);
        assert_eq!(payload, b"\0\0\0\0\0\0\0\x0btoo_many_connections");
    }
}
