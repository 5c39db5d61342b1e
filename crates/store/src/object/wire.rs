//! Every request to the store passes here: bounded in number, counted, and its answer's date taken
//! down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use tokio::sync::Semaphore;

use crate::time::StoreTime;

/// Requests that are with the store at a time.
const AT_ONCE_MAX: usize = 512;

/// Our clock: it runs through suspend and is never set.
pub(super) fn tick_ms() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.saturating_mul(1_000).saturating_add(now.tv_nsec / 1_000_000)
}

/// What is known about the store from its answers.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) time: Arc<StoreTime>,
    /// Names the bucket: answers of others, such as those who lend credentials, tell nothing.
    bucket: String,
    pub(super) requests: AtomicU64,
    pub(super) failures: AtomicU64,
    permits: Semaphore,
}

impl Line {
    pub(super) fn new(bucket: &str, longest_lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            time: Arc::new(StoreTime::new(longest_lease)),
            bucket: bucket.to_owned(),
            requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            permits: Semaphore::new(AT_ONCE_MAX),
        })
    }
}

/// Makes clients whose requests pass over the line.
#[derive(Debug)]
pub(super) struct Connector(pub(super) Arc<Line>);

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Service { line: Arc::clone(&self.0), inner }))
    }
}

#[derive(Debug)]
struct Service {
    line: Arc<Line>,
    inner: HttpClient,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let line = &self.line;
        let permit = line.permits.acquire().await;
        let _permit = permit.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let of_store = request.uri().to_string().contains(&line.bucket);
        line.requests.fetch_add(1, Ordering::Relaxed);
        let sent = tick_ms();
        let answer = self.inner.execute(request).await;
        match &answer {
            Ok(answer) if of_store && answer.status().is_server_error() => {
                // A gateway may have made it, and dated it by a clock of its own.
                line.failures.fetch_add(1, Ordering::Relaxed);
            }
            Ok(answer) if of_store => {
                if let Some(date) = date_ms(answer) {
                    line.time.learn(date, sent, tick_ms());
                }
            }
            Ok(_) => {}
            Err(_) => {
                line.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer
    }
}

fn date_ms(answer: &HttpResponse) -> Option<i64> {
    let date = answer.headers().get("date")?.to_str().ok()?;
    let date = jiff::fmt::rfc2822::parse(date).ok()?;
    Some(date.timestamp().as_second().saturating_mul(1_000))
}
