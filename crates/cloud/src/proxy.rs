//! An HTTP/1.1 proxy in front of an object store, for the faults of networks and of large
//! services: answers that get lost, errors about work that was done, requests that arrive late.

mod dates;
mod forward;
mod plan;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::DATE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::clock::http_date;
use crate::op::{Counts, Op, Tally};
use crate::serve::{ConnectionNumber, Hangup, Service};
use crate::xml;
use dates::Rule;
pub(crate) use forward::Forward;
use forward::Stream;
use plan::Fate;

pub use dates::Dates;
pub use plan::{Fault, Plan};

/// Ends, with all it carries and still holds, when it goes.
#[derive(Debug)]
pub struct Proxy {
    service: Service,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    forward: Forward,
    fate: Mutex<Fate>,
    dates: Mutex<Rule>,
    tally: Tally,
    late: AtomicU64,
}

impl Proxy {
    /// `upstream` is an endpoint such as `http://127.0.0.1:40123`, without a path.
    pub async fn start(upstream: &str) -> Self {
        Self::start_now(upstream)
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now(upstream: &str) -> Self {
        let shared = Arc::new(Shared {
            forward: Forward::to(upstream),
            fate: Mutex::new(Fate::new()),
            dates: Mutex::new(Rule::new(Dates::Kept)),
            tally: Tally::default(),
            late: AtomicU64::new(0),
        });
        let handler = Arc::clone(&shared);
        let service = Service::start(move |request| handle(Arc::clone(&handler), request));
        Self { service, shared }
    }

    #[must_use]
    pub fn endpoint(&self) -> String {
        self.service.endpoint()
    }

    /// For all requests that come from now on. Panics if the chances add up to more than 1000.
    pub fn set_plan(&self, plan: Plan) {
        self.shared.fate.lock().set_plan(plan);
    }

    #[must_use]
    pub fn plan(&self) -> Plan {
        self.shared.fate.lock().plan
    }

    /// What becomes of the dates of all answers from now on.
    pub fn set_dates(&self, dates: Dates) {
        *self.shared.dates.lock() = Rule::new(dates);
    }

    /// Chance starts again from here. Which request meets which throw depends on their order.
    pub fn set_seed(&self, seed: u64) {
        self.shared.fate.lock().set_seed(seed);
    }

    /// One fault for the next request with this method whose decoded path and query contain
    /// `path`. It comes before what the plan would do. Several wait side by side.
    pub fn arm(&self, fault: Fault, method: Method, path: &str) {
        self.shared.fate.lock().arm(fault, method, path);
    }

    /// How many armed faults still wait for their request.
    #[must_use]
    pub fn armed(&self) -> usize {
        self.shared.fate.lock().armed()
    }

    /// The store is away: from now on requests wait, until [`Self::release`]. One whose client
    /// gives up meanwhile is never forwarded.
    pub fn hold(&self) {
        self.shared.forward.hold(true);
    }

    pub fn release(&self) {
        self.shared.forward.hold(false);
    }

    /// No latency, no faults, nothing armed, nothing held, dates as they are. Requests already late
    /// stay so.
    pub fn heal(&self) {
        self.set_dates(Dates::Kept);
        let mut fate = self.shared.fate.lock();
        fate.set_plan(Plan::default());
        fate.disarm();
        drop(fate);
        self.release();
    }

    /// The host is as the client sent it, for its signature covers it; `true` replaces it by that
    /// of the store.
    pub fn rewrite_host(&self, rewrite: bool) {
        self.shared.forward.rewrite_host(rewrite);
    }

    /// What came in from clients, also what was never forwarded.
    #[must_use]
    pub fn requests(&self) -> Counts {
        self.shared.tally.read()
    }

    pub fn reset_counts(&self) {
        self.shared.tally.reset();
    }

    /// How many requests met a fault so far.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.shared.fate.lock().struck
    }

    /// How many requests are late and not done yet.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.shared.late.load(Ordering::SeqCst)
    }
}

async fn handle(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Stream>, Hangup> {
    shared.tally.count(Op::of(request.method(), request.uri()));
    let ConnectionNumber(connection) = request.extensions().get().copied().unwrap_or_default();
    let (fault, latency) = {
        let mut fate = shared.fate.lock();
        (fate.decide(&request), fate.plan.latency)
    };
    tokio::time::sleep(latency / 2).await;
    let mut answer = match fault {
        None => shared.forward.send(request).await?,
        Some(Fault::DropRequest) => return Err(Hangup),
        Some(Fault::DropAnswer) => {
            finish(&shared, request).await?;
            return Err(Hangup);
        }
        Some(Fault::ErrorBefore(status)) => error(status),
        Some(Fault::ErrorAfter(status)) => {
            finish(&shared, request).await?;
            error(status)
        }
        Some(Fault::Conflict) => {
            let message = "The conditional request cannot succeed due to a conflicting operation.";
            own(xml::error(StatusCode::CONFLICT, "ConditionalRequestConflict", message))
        }
        Some(Fault::Late(by)) => {
            let whole = forward::whole(request).await?;
            shared.late.fetch_add(1, Ordering::SeqCst);
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                tokio::time::sleep(by).await;
                shared.forward.finish(whole).await.ok();
                shared.late.fetch_sub(1, Ordering::SeqCst);
            });
            return Err(Hangup);
        }
    };
    tokio::time::sleep(latency / 2).await;
    let rule = *shared.dates.lock();
    rule.apply(answer.headers_mut(), connection);
    Ok(answer)
}

/// Forwards to the end, also if the client leaves meanwhile.
async fn finish(shared: &Arc<Shared>, request: Request<Incoming>) -> Result<(), Hangup> {
    let whole = forward::whole(request).await?;
    let shared = Arc::clone(shared);
    let work = tokio::spawn(async move { shared.forward.finish(whole).await });
    work.await.map_err(|_panicked| Hangup)?
}

fn error(status: StatusCode) -> Response<Stream> {
    let code = match status {
        StatusCode::SERVICE_UNAVAILABLE => "SlowDown",
        _ => "InternalError",
    };
    own(xml::error(status, code, "The proxy was told to fail this request."))
}

/// An answer of the proxy itself, dated by this machine.
fn own(mut answer: xml::Answer) -> Response<Stream> {
    let now = HeaderValue::from_str(&http_date(Timestamp::now())).expect("a date");
    answer.headers_mut().insert(DATE, now);
    answer.map(|body| body.map_err(|never| match never {}).boxed_unsync())
}
