//! Which path leads where, and what is done around every request: its correlation id, its
//! measurement, the limit on its headers, the notice that the server is going away.

use std::sync::{Arc, LazyLock};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use lockd_store::embedded::EmbeddedStore;
use lockd_wire::{ErrorCode, header as names, path};
use tower::ServiceExt;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::delivery::Outbox;
use super::error::ApiError;
use super::{lease, list, read, state, system, watch};
use crate::app::App;
use crate::clock::Stopwatch;
use crate::metrics::{Levels, Operation, Outcome};

/// What handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) app: Arc<App>,
    pub(crate) embedded: Option<Arc<EmbeddedStore>>,
}

/// What belongs to one request.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) correlation: Arc<str>,
    pub(crate) outbox: Option<Outbox>,
}

#[derive(OpenApi)]
#[openapi(info(
    title = "lockd",
    description = "Exclusive leases with fencing tokens, and atomic JSON state.",
    license(name = "Apache-2.0 OR MIT")
))]
struct Description;

/// Every route, described by its handler.
fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(lease::acquire))
        .routes(routes!(lease::keepalive))
        .routes(routes!(lease::release))
        .routes(routes!(read::get))
        .routes(routes!(read::get_state))
        .routes(routes!(read::describe))
        .routes(routes!(read::read))
        .routes(routes!(state::update))
        .routes(routes!(state::update_state))
        .routes(routes!(state::mutate))
        .routes(routes!(state::metadata))
        .routes(routes!(state::remove))
        .routes(routes!(list::leases))
        .routes(routes!(lease::revoke))
        .routes(routes!(list::keys))
        .routes(routes!(list::namespaces))
        .routes(routes!(watch::watch))
        .routes(routes!(system::backup))
        .routes(routes!(system::query))
        .routes(routes!(system::index_flush))
        .routes(routes!(system::namespace))
        .routes(routes!(system::openapi))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
}

/// The routes and their description, the same for every server of a process.
struct Made {
    router: Router<Api>,
    description: Arc<[u8]>,
}

/// Made once: putting the description together takes longer than starting a server.
static MADE: LazyLock<Made> = LazyLock::new(|| {
    let (router, description) = routes().split_for_parts();
    let router = router
        .fallback(async || not_found())
        .method_not_allowed_fallback(async || method_not_allowed());
    let description = description.to_pretty_json().unwrap_or_default();
    Made { router, description: description.into_bytes().into() }
});

/// The API's own description, as JSON.
pub(super) fn description() -> Arc<[u8]> {
    Arc::clone(&MADE.description)
}

impl Api {
    pub(crate) fn new(app: Arc<App>, embedded: Option<Arc<EmbeddedStore>>) -> Self {
        Self { app, embedded }
    }

    /// The whole API.
    pub(crate) fn entry(&self, headers_max: usize) -> Arc<Entry> {
        let router = MADE.router.clone().with_state(self.clone());
        Arc::new(Entry { router, api: self.clone(), headers_max })
    }

    /// What the metrics listener serves; needs no identity.
    pub(crate) fn metrics_router(&self) -> Router {
        Router::new()
            .route(path::METRICS, axum::routing::get(system::metrics))
            .route(path::HEALTHZ, axum::routing::get(system::healthz))
            .route(path::READYZ, axum::routing::get(system::readyz))
            .fallback(async || not_found())
            .with_state(self.clone())
    }

    pub(crate) fn metrics_page(&self) -> String {
        let records = &self.app.records;
        let gauges = records.store().gauges();
        records.metrics.page(Levels {
            leases: records.live.len(),
            waiters: records.lines.total(),
            store_bytes: gauges.size_bytes,
            store_reopened: gauges.reopened,
        })
    }
}

fn not_found() -> Response {
    let detail = "no such path; GET /v1/openapi.json describes the API";
    ApiError::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, detail).into_response()
}

fn method_not_allowed() -> Response {
    let detail = "this path takes another method; see the Allow header";
    let code = ErrorCode::MethodNotAllowed;
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, code, detail).into_response()
}

/// The entrance for every request, whichever listener it came from.
pub(crate) struct Entry {
    router: Router,
    api: Api,
    headers_max: usize,
}

impl Entry {
    pub(crate) async fn handle(
        self: Arc<Self>,
        mut request: Request<Body>,
        outbox: Option<Outbox>,
    ) -> Response {
        let app = &self.api.app;
        let operation = operation(request.uri().path());
        let mut measure = Measure { app, operation, watch: Stopwatch::start(), done: false };
        let correlation = correlation(app, &request);
        let mut response = if headers_bytes(&request) > self.headers_max {
            let detail = format!("the headers may have at most {} bytes", self.headers_max);
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            ApiError::new(status, ErrorCode::HeadersTooLarge, detail).into_response()
        } else {
            let context = Context { correlation: Arc::clone(&correlation), outbox };
            request.extensions_mut().insert(context);
            match self.router.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        };
        measure.done(response.status());
        let headers = response.headers_mut();
        if let Ok(value) = HeaderValue::from_str(&correlation) {
            headers.insert(HeaderName::from_static(names::CORRELATION_ID), value);
        }
        if app.is_draining() {
            let name = HeaderName::from_static(names::SHUTDOWN_IMMINENT);
            headers.insert(name, HeaderValue::from_static("true"));
        }
        response
    }
}

/// The API as a service that another program can call or mount.
#[derive(Clone)]
pub(crate) struct EntryService(pub(crate) Arc<Entry>);

impl tower::Service<Request<Body>> for EntryService {
    type Response = Response;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<'static, Result<Response, Self::Error>>;

    fn poll_ready(&mut self, _cx: &mut TaskContext<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let entry = Arc::clone(&self.0);
        Box::pin(async move { Ok(entry.handle(request, None).await) })
    }
}

/// The caller's correlation id if it is printable and short, else a new one.
fn correlation(app: &App, request: &Request<Body>) -> Arc<str> {
    let sent = request.headers().get(names::CORRELATION_ID).and_then(|value| value.to_str().ok());
    match sent.map(str::trim) {
        Some(sent) if (1..=128).contains(&sent.len()) && is_printable(sent) => sent.into(),
        Some(_) | None => {
            let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
            let uuid = app.ids.uuid(app.clock().now().wall);
            (&*uuid.hyphenated().encode_lower(&mut text)).into()
        }
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

fn headers_bytes(request: &Request<Body>) -> usize {
    let headers = request.headers().iter();
    let uri = request.uri().path().len() + request.uri().query().map_or(0, str::len);
    headers.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() + uri
}

fn operation(path: &str) -> Operation {
    match path {
        path::ACQUIRE => Operation::Acquire,
        path::KEEPALIVE => Operation::Keepalive,
        path::RELEASE => Operation::Release,
        path::GET | path::GET_STATE => Operation::Get,
        path::UPDATE | path::UPDATE_STATE => Operation::Update,
        path::MUTATE => Operation::Mutate,
        path::METADATA => Operation::Metadata,
        path::REMOVE => Operation::Remove,
        path::DESCRIBE => Operation::Describe,
        path::READ => Operation::Read,
        path::WATCH => Operation::Watch,
        path::LEASES | path::KEYS | path::NAMESPACES => Operation::List,
        path::LEASES_REVOKE => Operation::Revoke,
        path::HEALTHZ | path::READYZ => Operation::Health,
        _ => Operation::Other,
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

    use super::routes;

    #[test]
    fn every_path_of_the_api_is_described() {
        let (_, description) = routes().split_for_parts();
        let described: Vec<&str> = description.paths.paths.keys().map(String::as_str).collect();
        for path in path::ALL {
            assert!(described.contains(path), "{path} is not described");
        }
        assert_eq!(
            described.len(),
            path::ALL.len(),
            "a path is missing from the list: {described:?}"
        );
    }
}
