//! Sends calls: picks the endpoint, repeats what may be repeated, and never changes the request.
//!
//! The endpoint that answered last is asked first. What a failure means is decided in `retry`;
//! what an answer means is left to the operations.

#[cfg(test)]
#[path = "../tests/fake/mod.rs"]
pub(crate) mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::Response;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Http;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use lockd_pki::Distrust;

use crate::body::{Progress, Upload};
use crate::call::Call;
use crate::clock::Clock;
use crate::dial::Dial;
use crate::endpoint::Endpoint;
use crate::error::{Cause, Failed, Failure};
use crate::reply::{self, Loaded, Reply};
use crate::retry::{self, Remedy, Tries};

/// Idle connections kept per endpoint, and for how long.
const IDLE_MAX: usize = 32;
const IDLE_FOR: Duration = Duration::from_secs(30);
/// An endless wait that lasted this long was not a failure to connect.
const STEADY: Duration = Duration::from_secs(5);

pub(crate) struct Transport {
    servers: Vec<Server>,
    /// Which server to ask first.
    current: AtomicUsize,
    clock: Clock,
    /// Longest silence while an error's body arrives.
    silence: Duration,
}

struct Server {
    endpoint: Endpoint,
    name: Arc<str>,
    http: Http<Dial, Upload>,
}

impl Transport {
    pub(crate) fn new(servers: Vec<(Endpoint, Dial)>, clock: Clock, silence: Duration) -> Self {
        let servers = servers
            .into_iter()
            .map(|(endpoint, dial)| Server {
                name: endpoint.to_string().into(),
                endpoint,
                http: Http::builder(TokioExecutor::new())
                    .pool_timer(TokioTimer::new())
                    .pool_idle_timeout(IDLE_FOR)
                    .pool_max_idle_per_host(IDLE_MAX)
                    .build(dial),
            })
            .collect();
        Self { servers, current: AtomicUsize::new(0), clock, silence }
    }

    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.servers.iter().map(|server| &*server.name)
    }

    /// Sends a call until there is an answer that stands, and leaves its body to be read.
    pub(crate) async fn open(&self, call: &Call) -> Result<Reply, Failed> {
        self.send(call, AsStream).await
    }

    /// Sends a call until there is an answer that stands and its whole body has arrived.
    pub(crate) async fn fetch(&self, call: &Call, bytes_max: usize) -> Result<Loaded, Failed> {
        self.send(call, AsWhole { bytes_max }).await
    }

    async fn send<T: Take>(&self, call: &Call, take: T) -> Result<T::Taken, Failed> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Failure::invalid("calls need a tokio runtime to run in"));
        }
        let mut tries = Tries::new(self.servers.len(), call.patience.passes);
        let mut last: Option<Failed> = None;
        loop {
            let (index, server) = self.pick()?;
            let Some(request) = call.request(&server.endpoint).await? else {
                let used_up = || Failure::invalid("the document to send was used before");
                return Err(last.unwrap_or_else(used_up));
            };
            let began = self.clock.now();
            let mut failure = match self.attempt(server, request, call, &take).await {
                Ok(taken) => return Ok(taken),
                Err(failure) => failure.at(&server.name),
            };
            if call.patience.silence.is_none() && self.clock.now().since(began) > STEADY {
                tries.reset();
            }
            if !matches!(failure.cause, Cause::Connect | Cause::Distrust(_)) {
                tries.reached(call.patience.passes_reached);
            }
            let remedy = retry::remedy(&mut failure, call.repeat);
            if matches!(remedy, Remedy::Elsewhere | Remedy::OnlyElsewhere) {
                self.move_on(index);
            }
            let asked = failure.refusal().and_then(|refusal| refusal.retry_after);
            let Some(pause) = tries.next(remedy, asked) else { return Err(failure) };
            if !self.has_time(call, pause) {
                return Err(failure);
            }
            tracing::debug!(path = call.path(), ?pause, %failure, "trying again");
            tokio::time::sleep(pause).await;
            if call.patience.worth.as_ref().is_some_and(|worth| !worth()) {
                return Err(failure);
            }
            last = Some(failure);
        }
    }

    fn pick(&self) -> Result<(usize, &Server), Failed> {
        let index = self.current.load(Ordering::Relaxed) % self.servers.len().max(1);
        let server = self.servers.get(index);
        server.map(|server| (index, server)).ok_or_else(|| Failure::invalid("no server is known"))
    }

    /// Makes the next endpoint the first to ask, unless another call has done so already.
    fn move_on(&self, from: usize) {
        let next = (from + 1) % self.servers.len().max(1);
        let swapped =
            self.current.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
        if let (Ok(_), Some(server), true) = (swapped, self.servers.get(next), next != from) {
            tracing::debug!(endpoint = %server.name, "moving to another endpoint");
        }
    }

    fn has_time(&self, call: &Call, pause: Duration) -> bool {
        call.patience.until.is_none_or(|until| self.clock.now().plus(pause) < until)
    }

    async fn attempt<T: Take>(
        &self,
        server: &Server,
        request: Request<Upload>,
        call: &Call,
        take: &T,
    ) -> Result<T::Taken, Failed> {
        let progress = request.body().progress();
        let silence = match (call.patience.silence, call.patience.until) {
            (Some(silence), Some(until)) => Some(silence.min(until.since(self.clock.now()))),
            (silence, _) => silence,
        };
        let response = answer(server, request, &progress, silence).await?;
        take.take(reply::check(response, self.silence).await?).await
    }
}

/// How much of an answer belongs to the attempt: what breaks within it is tried again.
trait Take: Sync {
    type Taken;

    fn take(&self, reply: Reply) -> impl Future<Output = Result<Self::Taken, Failed>> + Send;
}

struct AsStream;

struct AsWhole {
    bytes_max: usize,
}

impl Take for AsStream {
    type Taken = Reply;

    async fn take(&self, reply: Reply) -> Result<Reply, Failed> {
        Ok(reply)
    }
}

impl Take for AsWhole {
    type Taken = Loaded;

    async fn take(&self, reply: Reply) -> Result<Loaded, Failed> {
        reply.load(self.bytes_max).await
    }
}

async fn answer(
    server: &Server,
    request: Request<Upload>,
    progress: &Progress,
    silence: Option<Duration>,
) -> Result<Response<Incoming>, Failed> {
    let mut sending = server.http.request(request);
    let sent = match silence {
        None => sending.await,
        Some(silence) => loop {
            let moved = progress.moved();
            let Some(until) = moved.checked_add(silence) else { break sending.await };
            match tokio::time::timeout_at(until, &mut sending).await {
                Ok(sent) => break sent,
                // Slow, but the body has moved on since.
                Err(_) if progress.moved() > moved => {}
                Err(_) => return Err(Failure::new(Cause::TimedOut(silence))),
            }
        },
    };
    sent.map_err(|error| {
        if let Some(broke) = progress.take_error() {
            return Failure::source("the document to send cannot be read", broke);
        }
        match Distrust::find(&error) {
            Some(distrust) => Failure::new(Cause::Distrust(distrust)),
            None if error.is_connect() => {
                Failure::new(Cause::Connect).because(explained(innermost(error)))
            }
            None => Failure::new(Cause::Broken).because(explained(error.into())),
        }
    })
}

/// A connector's error without the library's wrapping, which says nothing more.
fn innermost(error: hyper_util::client::legacy::Error) -> crate::error::BoxError {
    match std::error::Error::source(&error).and_then(|inner| inner.downcast_ref::<std::io::Error>())
    {
        Some(io) => Box::new(std::io::Error::new(io.kind(), io.to_string())),
        None => Box::new(error),
    }
}

/// What a library says in its own words where two speak past each other, and the likely cause.
const LIKELY: [(&str, &str); 2] = [
    ("invalid HTTP version", "it speaks TLS: write https:// and show the bundle of a client"),
    ("InvalidContentType", "it does not speak TLS: write http://"),
];

/// An error with its likely cause in front, where one is known.
fn explained(error: crate::error::BoxError) -> crate::error::BoxError {
    let said = crate::error::chain(&*error);
    match LIKELY.iter().find(|(words, _)| said.contains(words)) {
        Some((_, likely)) => format!("{likely} ({said})").into(),
        None => error,
    }
}

/// The next piece of a body, or the failure that ended it.
pub(crate) async fn chunk(
    body: &mut Incoming,
    silence: Option<Duration>,
) -> Result<Option<Bytes>, Failed> {
    use http_body_util::BodyExt as _;

    loop {
        let next = match silence {
            None => body.frame().await,
            Some(silence) => tokio::time::timeout(silence, body.frame())
                .await
                .map_err(|_| Failure::new(Cause::TimedOut(silence)))?,
        };
        match next {
            None => return Ok(None),
            Some(Err(error)) => return Err(Failure::new(Cause::Broken).because(error)),
            Some(Ok(frame)) => {
                // Trailers say nothing that is needed here.
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}
