//! Serving connections: accepting never waits for a connection's bytes, each connection is a task
//! of its own, and their number is bounded. When the server stops, a connection ends after the
//! request it is serving.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Request;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;

use crate::http::body::{Body, Response};
use crate::http::delivery::{Outbox, Watched};
use crate::http::router::Entry;
use crate::listen::{Conn, Listener};
use crate::metrics::Metrics;
use crate::tasks::Tasks;

/// Bounds on connections.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// Silence between requests, and the time a request's head may take.
    pub(crate) idle_timeout: Duration,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Tasks,
}

/// After running out of file handles, accepting rests for a moment.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// What certainly fits into the buffers of a socket.
const SHORT_BODY_BYTES: u64 = 16 * 1024;

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
retry-after: 1\r\nconnection: close\r\ncontent-length: 100\r\n\r\n\
{\"error\":\"too_many_connections\",\"detail\":\"the server has no room for more\",\"retry_after_seconds\":1}\n";

/// Accepts until the server stops.
pub(crate) async fn accept(listener: Listener, rules: Rules, entry: Arc<Entry>) {
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
        let Ok(room) = Arc::clone(&rules.room).try_acquire_owned() else {
            rules.tasks.spawn("refuse connection", refuse(conn));
            continue;
        };
        let serving = rules.clone();
        let entry = Arc::clone(&entry);
        rules.tasks.spawn("connection", async move {
            serving.metrics.connections.inc();
            serve(conn, &serving, entry).await;
            serving.metrics.connections.dec();
            drop(room);
        });
    }
}

/// Says why, for as long as the other side takes it at once.
async fn refuse(mut conn: Conn) {
    let said = tokio::time::timeout(ACCEPT_REST, conn.write_all(FULL)).await;
    tracing::debug!(said = matches!(said, Ok(Ok(()))), "no room for a connection");
}

async fn serve(conn: Conn, rules: &Rules, entry: Arc<Entry>) {
    let outbox = Outbox::default();
    let io = TokioIo::new(Watched::new(conn, outbox.clone()));
    let activity = Arc::new(Activity::default());
    let service = Calls { entry, outbox, activity: Arc::clone(&activity) };
    let mut builder = http1::Builder::new();
    // Idle connections are found by `Activity`: a timer per connection, not per request. And no
    // `pipeline_flush`: it lifts the bound on what is buffered for a reader that stalls.
    builder.header_read_timeout(None);
    // One buffer and one `send` for head and body: cheaper than `writev` for what we mostly say.
    builder.writev(false);
    let mut serving = pin!(builder.serve_connection(io, service));
    let mut stopping = pin!(rules.tasks.stopping());
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = activity.idle_for(rules.idle_timeout) => {
            tracing::debug!("an idle connection was closed");
            return;
        }
        () = &mut stopping => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Whether a connection does anything: how many requests it began and how many it answered.
#[derive(Debug, Default)]
struct Activity {
    begun: AtomicU64,
    answered: AtomicU64,
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
}

/// Counts a request as answered, or given up, when it goes.
struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// A body that streams for long is part of its request; a short one is as good as sent.
fn keep_until_sent(answer: Response, under_way: UnderWay) -> Response {
    let short = answer.body().size_hint().exact().is_some_and(|bytes| bytes <= SHORT_BODY_BYTES);
    if short {
        return answer;
    }
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _keep = &under_way;
            frame
        }))
    })
}

struct Calls {
    entry: Arc<Entry>,
    outbox: Outbox,
    activity: Arc<Activity>,
}

impl Service<Request<Incoming>> for Calls {
    type Response = Response;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.activity.begun.fetch_add(1, Ordering::Relaxed);
        let under_way = UnderWay(Arc::clone(&self.activity));
        let (entry, outbox) = (Arc::clone(&self.entry), self.outbox.clone());
        Box::pin(async move {
            let answer = entry.handle(request.map(Body::from), Some(outbox)).await;
            Ok(keep_until_sent(answer, under_way))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::FULL;

    #[test]
    fn the_refusal_counts_its_bytes_right() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
    }
}
