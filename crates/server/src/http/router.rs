//! Which path leads where: one table with every route. And what is done around every request: its
//! correlation id, its measurement, the limit on its headers, the notice that the server is going
//! away.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use lockd_pki::{Access, Admitted, LiveCredentials};
use lockd_store::embedded::EmbeddedStore;
use lockd_wire::{ErrorCode, header as names, path};
use utoipa::OpenApi;

use super::auth::{self, Right, TcRules};
use super::body::{Body, BodyError, Response, keep_until_sent};
use super::call::{Call, Origin};
use super::error::ApiError;
use super::queue::operate;
use super::{attachment, coordinator, lease, list, queue, read, state, system, txn, watch};
use crate::app::App;
use crate::clock::Stopwatch;
use crate::metrics::{Levels, Operation, Outcome, QueueLevels};

/// What handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) app: Arc<App>,
    pub(crate) embedded: Option<Arc<EmbeddedStore>>,
    /// Who is let in, with mutual TLS.
    pub(crate) live: Option<Arc<LiveCredentials>>,
    pub(crate) tc_rules: TcRules,
}

type Answer = BoxFuture<'static, Result<Response, ApiError>>;

/// One path, the methods it takes, the right that its callers need, and who answers.
pub(super) struct Route {
    pub(super) path: &'static str,
    pub(super) methods: &'static [Method],
    operation: Operation,
    pub(super) right: Right,
    answer: fn(Call, Body) -> Answer,
}

/// A right as it stands in the table: access to the namespace in parentheses, or its name.
macro_rules! right {
    (($access:ident)) => {
        Right::Namespace(Access::$access)
    };
    ($right:ident) => {
        Right::$right
    };
}

/// Makes the table of routes and the description of the same handlers.
macro_rules! routes {
    ($($path:ident [$($method:ident),+] $operation:ident $right:tt $module:ident::$handler:ident,)+) => {
        /// Every route of the API, those that are asked for most first.
        pub(super) static ROUTES: &[Route] = &[$(Route {
            path: path::$path,
            methods: &[$(Method::$method),+],
            operation: Operation::$operation,
            right: right!($right),
            answer: |call, body| Box::pin($module::$handler(call, body)),
        }),+];

        #[derive(OpenApi)]
        #[openapi(
            info(
                title = "lockd",
                description = "Exclusive leases with fencing tokens, atomic JSON state, and a queue.",
                license(name = "Apache-2.0 OR MIT")
            ),
            paths($($module::$handler),+)
        )]
        struct Description;
    };
}

routes! {
    ACQUIRE [POST] Acquire (Write) lease::acquire,
    UPDATE [POST] Update (Write) state::update,
    RELEASE [POST] Release (Write) lease::release,
    GET [POST] Get (Read) read::get,
    KEEPALIVE [POST] Keepalive (Write) lease::keepalive,
    GET_STATE [POST] Get (Read) read::get_state,
    UPDATE_STATE [POST] Update (Write) state::update_state,
    DESCRIBE [GET] Describe (Read) read::describe,
    READ [POST] Read (Read) read::read,
    MUTATE [POST] Mutate (Write) state::mutate,
    METADATA [POST] Metadata (Write) state::metadata,
    REMOVE [POST] Remove (Write) state::remove,
    ATTACHMENTS [POST] Attachment (Write) attachment::attach,
    ATTACHMENTS [GET] Attachment (Read) attachment::list,
    ATTACHMENTS [DELETE] Attachment (Write) attachment::delete_all,
    ATTACHMENT [GET] Attachment (Read) attachment::get,
    ATTACHMENT [DELETE] Attachment (Write) attachment::delete,
    QUEUE_ENQUEUE [POST] Enqueue (Write) queue::enqueue,
    QUEUE_DEQUEUE [POST] Dequeue (ReadWrite) queue::dequeue,
    QUEUE_ACK [POST] Ack (Write) queue::ack,
    QUEUE_NACK [POST] Nack (Write) queue::nack,
    QUEUE_EXTEND [POST] Extend (Write) queue::extend,
    QUEUE_DEQUEUE_STATE [POST] Dequeue (ReadWrite) queue::dequeue_with_state,
    QUEUE_SUBSCRIBE [POST] Dequeue (ReadWrite) queue::subscribe,
    QUEUE_SUBSCRIBE_STATE [POST] Dequeue (ReadWrite) queue::subscribe_with_state,
    QUEUE_WATCH [POST] Watch (Read) operate::watch,
    QUEUE_STATS [POST] Queue (Read) operate::stats,
    QUEUE_PEEK [POST] Queue (Read) operate::peek,
    QUEUE_PAYLOAD [GET] Queue (Read) operate::payload,
    QUEUE_PURGE [POST] Queue (ReadWrite) operate::purge,
    QUEUE_DLQ [POST] Queue (Read) operate::dlq,
    QUEUE_DLQ_REDRIVE [POST] Queue (ReadWrite) operate::redrive,
    QUEUE_DLQ_DELETE [POST] Queue (ReadWrite) operate::delete_dead,
    QUEUES [GET] List (Read) operate::queues,
    LEASES [GET] List (Read) list::leases,
    LEASES_REVOKE [POST] Revoke (ReadWrite) lease::revoke,
    KEYS [GET] List (Read) list::keys,
    NAMESPACES [GET] List (Read) list::namespaces,
    WATCH [GET] Watch (Read) watch::watch,
    BACKUP [POST] Other Everything system::backup,
    QUERY [GET, POST] Other (Read) system::query,
    INDEX_FLUSH [POST] Other (ReadWrite) system::index_flush,
    NAMESPACE [GET, POST] Other (ReadWrite) system::namespace,
    TC_LEADER [GET] Coordinate TcClient coordinator::tc_leader,
    TC_LEASE_ACQUIRE [POST] Coordinate TcClient coordinator::tc_lease_acquire,
    TC_LEASE_RENEW [POST] Coordinate TcClient coordinator::tc_lease_renew,
    TC_LEASE_RELEASE [POST] Coordinate TcClient coordinator::tc_lease_release,
    TC_CLUSTER_LIST [GET] Coordinate TcClient coordinator::tc_cluster_list,
    TC_CLUSTER_ANNOUNCE [POST] Coordinate TcServer coordinator::tc_cluster_announce,
    TC_CLUSTER_LEAVE [POST] Coordinate TcServer coordinator::tc_cluster_leave,
    TC_RM_LIST [GET] Coordinate TcClient coordinator::tc_rm_list,
    TC_RM_REGISTER [POST] Coordinate TcServer coordinator::tc_rm_register,
    TC_RM_UNREGISTER [POST] Coordinate TcServer coordinator::tc_rm_unregister,
    TXN_DECIDE [POST] Coordinate TcClient txn::decide,
    TXN_COMMIT [POST] Coordinate TcClient txn::commit,
    TXN_ROLLBACK [POST] Coordinate TcClient txn::rollback,
    TXN_REPLAY [POST] Coordinate TcClient txn::replay,
    TXNS [GET] List Everything txn::txns,
    TXN [GET] List Everything txn::txn,
    OPENAPI [GET] Other Open system::openapi,
    HEALTHZ [GET] Health Open system::healthz,
    READYZ [GET] Health Open system::readyz,
}

/// What the metrics listener serves; needs no identity.
static PAGES: &[Route] = &[
    Route {
        path: path::METRICS,
        methods: &[Method::GET],
        operation: Operation::Other,
        right: Right::Open,
        answer: |call, body| Box::pin(system::metrics(call, body)),
    },
    Route {
        path: path::HEALTHZ,
        methods: &[Method::GET],
        operation: Operation::Health,
        right: Right::Open,
        answer: |call, body| Box::pin(system::healthz(call, body)),
    },
    Route {
        path: path::READYZ,
        methods: &[Method::GET],
        operation: Operation::Health,
        right: Right::Open,
        answer: |call, body| Box::pin(system::readyz(call, body)),
    },
];

/// The route that takes the method, else any of that path.
fn find(routes: &'static [Route], path: &str, method: &Method) -> Option<&'static Route> {
    let mut all = at(routes, path);
    let first = all.next()?;
    if first.takes(method) {
        return Some(first);
    }
    Some(all.find(|route| route.takes(method)).unwrap_or(first))
}

/// All routes of a path: several when their methods are answered by different handlers.
fn at(routes: &'static [Route], path: &str) -> impl Iterator<Item = &'static Route> {
    routes.iter().filter(move |route| match route.path.strip_suffix("{id}") {
        Some(folder) => path.strip_prefix(folder).is_some_and(is_one_segment),
        None => route.path == path,
    })
}

fn is_one_segment(rest: &str) -> bool {
    !rest.is_empty() && !rest.contains('/')
}

impl Route {
    /// A page that can be got can also be asked for its head alone.
    fn takes(&self, method: &Method) -> bool {
        let as_asked = self.methods.contains(method);
        as_asked || (method == Method::HEAD && self.methods.contains(&Method::GET))
    }

    /// The methods of the path, whichever handlers answer them.
    fn allowed(&self, routes: &'static [Self]) -> Option<HeaderValue> {
        let same = routes.iter().filter(|route| route.path == self.path);
        let names: Vec<&str> = same.flat_map(|route| route.methods).map(Method::as_str).collect();
        HeaderValue::from_str(&names.join(", ")).ok()
    }
}

/// The rows of the table in `docs/security.md`: each right, and the routes that need it.
#[must_use]
pub fn rights() -> Vec<String> {
    let row = |right: &Right| {
        let routes = ROUTES.iter().filter(|route| route.right == *right);
        let named = routes.flat_map(|route| {
            route.methods.iter().map(move |method| format!("`{method} {}`", route.path))
        });
        let named: Vec<String> = named.collect();
        (!named.is_empty()).then(|| format!("| {} | {} |", right.label(), named.join(", ")))
    };
    Right::ALL.iter().filter_map(row).collect()
}

/// The API's own description, as JSON. Made once: it takes longer than starting a server.
pub(super) fn description() -> Bytes {
    static MADE: LazyLock<Bytes> =
        LazyLock::new(|| Bytes::from(Description::openapi().to_pretty_json().unwrap_or_default()));
    MADE.clone()
}

impl Api {
    /// The whole API.
    pub(crate) fn entry(&self, headers_max: usize) -> Arc<Entry> {
        Arc::new(Entry { api: self.clone(), routes: ROUTES, headers_max })
    }

    /// What the metrics listener serves.
    pub(crate) fn pages(&self, headers_max: usize) -> Arc<Entry> {
        Arc::new(Entry { api: self.clone(), routes: PAGES, headers_max })
    }

    pub(crate) fn metrics_page(&self) -> String {
        let records = &self.app.records;
        let gauges = records.store().gauges();
        records.metrics.page(&Levels {
            leases: records.live.len(),
            waiters: records.lines.total(),
            consumers: records.boards.waiting(),
            store_bytes: gauges.size_bytes,
            store_reopened: gauges.reopened,
            queues: QueueLevels::of(
                &records.boards,
                &self.app.limits.named_queues,
                self.app.clock().now(),
            ),
        })
    }
}

/// The entrance for every request, whichever listener it came from.
pub(crate) struct Entry {
    pub(super) api: Api,
    routes: &'static [Route],
    headers_max: usize,
}

impl Entry {
    pub(crate) async fn handle(
        self: Arc<Self>,
        request: Request<Body>,
        origin: Origin,
    ) -> Response {
        let app = &self.api.app;
        let in_flight = app.begin_request();
        let (head, body) = request.into_parts();
        let route = find(self.routes, head.uri.path(), &head.method);
        let right = route.map_or(Right::Open, |route| route.right);
        let call = Call::new(self.api.clone(), head, origin, right);
        let (correlation, who) = (call.correlation.clone(), call.who().clone());
        let operation = route.map_or(Operation::Other, |route| route.operation);
        let mut measure = Measure { app, operation, watch: Stopwatch::start(), done: false };
        let answered = match self.choose(route, &call) {
            Ok(chosen) => (chosen.answer)(call, body).await,
            Err(refused) => {
                body.drain().await;
                Err(refused)
            }
        };
        let mut response = answered.unwrap_or_else(|error| error.seen_by(&who).into_response());
        measure.done(response.status());
        let wrong_method = response.status() == StatusCode::METHOD_NOT_ALLOWED;
        let headers = response.headers_mut();
        if let Some(allowed) =
            route.filter(|_| wrong_method).and_then(|route| route.allowed(self.routes))
        {
            headers.insert(header::ALLOW, allowed);
        }
        // A delivery answers with that of its message.
        let name = HeaderName::from_static(names::CORRELATION_ID);
        headers.entry(name).or_insert(correlation.into_header());
        if app.is_draining() {
            let name = HeaderName::from_static(names::SHUTDOWN_IMMINENT);
            headers.insert(name, HeaderValue::from_static("true"));
        }
        keep_until_sent(response, in_flight)
    }

    /// Who answers, or why nobody does.
    fn choose(
        &self,
        route: Option<&'static Route>,
        call: &Call,
    ) -> Result<&'static Route, ApiError> {
        if call.head_bytes() > self.headers_max {
            let detail = format!("the headers may have at most {} bytes", self.headers_max);
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Err(ApiError::new(status, ErrorCode::HeadersTooLarge, detail));
        }
        if let Some(who) = call.who() {
            self.still_welcome(who)?;
        }
        match route {
            Some(route) if route.takes(call.method()) => {
                auth::enter(call.who(), call.right(), self.api.tc_rules)?;
                Ok(route)
            }
            Some(_) => {
                let detail = "this path takes another method; see the Allow header";
                let code = ErrorCode::MethodNotAllowed;
                Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, code, detail))
            }
            None => {
                let detail = "no such path; GET /v1/openapi.json describes the API";
                Err(ApiError::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, detail))
            }
        }
    }
}

impl Entry {
    /// A connection may be older than what is known about its client now.
    fn still_welcome(&self, who: &Admitted) -> Result<(), ApiError> {
        let peer = &who.peer;
        let revoked = |live: &Arc<LiveCredentials>| live.is_revoked(&peer.serial);
        if self.api.live.as_ref().is_some_and(revoked) {
            let detail = format!("the certificate with serial {} was revoked", peer.serial);
            let code = ErrorCode::CertificateRevoked;
            return Err(ApiError::new(StatusCode::FORBIDDEN, code, detail));
        }
        let now = i64::try_from(self.api.app.clock().now().wall.0).unwrap_or(i64::MAX);
        if peer.not_after.as_millisecond() < now {
            let detail = format!("the certificate ended at {}", peer.not_after);
            let code = ErrorCode::CertificateExpired;
            return Err(ApiError::new(StatusCode::FORBIDDEN, code, detail));
        }
        Ok(())
    }
}

/// The API as a service: call it, or mount it in another program.
#[derive(Clone)]
pub struct Handler(pub(crate) Arc<Entry>);

impl<B> tower::Service<Request<B>> for Handler
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BodyError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let entry = Arc::clone(&self.0);
        Box::pin(async move { Ok(entry.handle(request.map(Body::new), Origin::default()).await) })
    }
}

/// Counts a request when it is answered, or when its caller went away.
struct Measure<'a> {
    app: &'a App,
    operation: Operation,
    watch: Stopwatch,
    done: bool,
}

impl Measure<'_> {
    fn done(&mut self, status: StatusCode) {
        self.done = true;
        let outcome = match status.as_u16() {
            ..400 => Outcome::Ok,
            400..500 => Outcome::Refused,
            500.. => Outcome::Failed,
        };
        self.count(outcome, self.watch.elapsed());
    }

    fn count(&self, outcome: Outcome, took: Duration) {
        self.app.metrics().request(self.operation, outcome, took);
        tracing::debug!(operation = ?self.operation, ?outcome, ?took, "request");
    }
}

impl Drop for Measure<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.count(Outcome::Canceled, self.watch.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use lockd_wire::path;
    use utoipa::OpenApi as _;

    use super::{Description, ROUTES};

    #[test]
    fn every_path_of_the_api_is_served_and_described() {
        let description = Description::openapi();
        let described: Vec<&str> = description.paths.paths.keys().map(String::as_str).collect();
        let mut served: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
        // One path may have a handler for each method.
        served.dedup();
        for path in path::ALL {
            assert!(described.contains(path), "{path} is not described");
            assert!(served.contains(path), "{path} is not served");
        }
        assert_eq!(described.len(), path::ALL.len(), "more is described: {described:?}");
        assert_eq!(served.len(), path::ALL.len(), "more is served: {served:?}");
    }

    #[test]
    fn every_route_stands_in_the_table_of_rights() {
        let listed: usize = super::rights().iter().map(|row| row.matches("/").count()).sum();
        let slashes = |route: &super::Route| route.path.matches('/').count() * route.methods.len();
        assert_eq!(listed, ROUTES.iter().map(slashes).sum::<usize>());
    }

    /// What a handler says about its methods is what the table lets through.
    #[test]
    fn every_route_is_described_with_the_methods_it_takes() {
        let described = serde_json::to_value(Description::openapi()).unwrap();
        for route in ROUTES {
            let page = described["paths"][route.path].as_object().unwrap();
            let mut says: Vec<String> = page.keys().map(|name| name.to_uppercase()).collect();
            let same = ROUTES.iter().filter(|other| other.path == route.path);
            let mut takes: Vec<&str> =
                same.flat_map(|route| route.methods).map(http::Method::as_str).collect();
            says.sort();
            takes.sort_unstable();
            assert_eq!(says, takes, "{}", route.path);
        }
    }
}
