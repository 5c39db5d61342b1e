//! The paths, and what is done for each.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ORIGIN, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use lockd_serve::{Certificate, Certified, bearer};
use lockd_wire::error::{ErrorBody, ErrorCode};
use serde::{Deserialize, Serialize};

use super::access::{Access, Denied, Role};
use super::answer::{
    Config, InstanceList, LeaderAnswer, RunsAnswer, Status, TaskAnswer, TasksAnswer, This,
    ThisInstance,
};
use super::prometheus;
use crate::coordinator::{Coordinator, TaskError};
use crate::registry::Fault;

/// The largest body: numbers of one instance.
const BODY_MAX: usize = 256 * 1024;
/// How many runs are shown unless told otherwise, and at most.
const RUNS: usize = 20;
const RUNS_MAX: usize = 10_000;

#[derive(Clone)]
pub(super) struct Api {
    pub(super) coordinator: Coordinator,
    pub(super) access: Arc<Access>,
    pub(super) certificate: Certificate,
}

pub(super) fn router(api: Api) -> Router {
    Router::new()
        .route("/api/cluster/status", get(status))
        .route("/api/cluster/instances", get(instances))
        .route("/api/cluster/leader", get(leader))
        .route("/api/cluster/config", get(config))
        .route("/api/cluster/this", get(this))
        .route("/api/cluster/tasks", get(tasks))
        .route("/api/cluster/tasks/{name}/runs", get(runs))
        .route("/api/cluster/tasks/{name}/run", post(run))
        .route("/api/cluster/metrics", get(metrics).put(set_metrics))
        .route("/leader", get(leads))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(prometheus_text))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, ErrorCode::NotFound, "no such path") })
        .method_not_allowed_fallback(|| async {
            let code = ErrorCode::MethodNotAllowed;
            refuse(StatusCode::METHOD_NOT_ALLOWED, code, "this path has other methods")
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(api)
}

type Answered = Result<Response, Refused>;

/// An answer that says no.
struct Refused(Box<Response>);

impl From<Response> for Refused {
    fn from(answer: Response) -> Self {
        Self(Box::new(answer))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        *self.0
    }
}

impl Api {
    fn may(&self, role: Role, parts: &Parts) -> Result<(), Refused> {
        // A page in somebody's browser must not act through a port that trusts this machine.
        if self.access.is_open()
            && parts.method != Method::GET
            && parts.headers.contains_key(ORIGIN)
        {
            let detail = "requests of web pages are refused where no token is asked for";
            return Err(refuse(StatusCode::FORBIDDEN, ErrorCode::NotAllowed, detail).into());
        }
        let certified = parts.extensions.get::<Certified>().is_some();
        match self.access.allows(role, bearer(&parts.headers), certified) {
            Ok(()) => Ok(()),
            Err(Denied::Unknown) => {
                let detail = "send a token: Authorization: Bearer TOKEN";
                let mut answer = refuse(StatusCode::UNAUTHORIZED, ErrorCode::TokenRequired, detail);
                let how = HeaderValue::from_static("Bearer");
                answer.headers_mut().insert(WWW_AUTHENTICATE, how);
                Err(answer.into())
            }
            Err(Denied::Forbidden) => {
                let detail = format!("the token does not have the role {}", role.as_str());
                Err(refuse(StatusCode::FORBIDDEN, ErrorCode::NotAllowed, &detail).into())
            }
        }
    }

    fn this(&self) -> ThisInstance {
        ThisInstance::of(&self.coordinator)
    }
}

async fn status(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    let view = api.coordinator.cluster().await.map_err(unavailable)?;
    Ok(json(&Status::of(&view, &api.coordinator)))
}

async fn instances(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    let view = api.coordinator.cluster().await.map_err(unavailable)?;
    Ok(json(&InstanceList::of(view)))
}

/// Answered from what is known, so that a proxy may ask for every request.
async fn leader(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    let this_instance = api.this();
    Ok(json(&LeaderAnswer { leader: api.coordinator.known_leader(), this_instance }))
}

async fn config(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    Ok(json(&Config::of(&api.coordinator)))
}

async fn this(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    Ok(json(&This::of(&api.coordinator)))
}

async fn tasks(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    let mut tasks = Vec::new();
    for view in api.coordinator.tasks().await.map_err(unavailable)? {
        let last = api.coordinator.runs(&view.name, 1).await.map_err(unavailable)?;
        tasks.push(TaskAnswer::of(view, last.into_iter().next()));
    }
    Ok(json(&TasksAnswer { total: tasks.len(), tasks }))
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn runs(
    State(api): State<Api>,
    Path(task): Path<String>,
    Query(asked): Query<Limit>,
    parts: Parts,
) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    let limit = asked.limit.unwrap_or(RUNS).clamp(1, RUNS_MAX);
    let runs = api.coordinator.runs(&task, limit).await.map_err(unavailable)?;
    Ok(json(&RunsAnswer { task, runs }))
}

#[derive(Serialize)]
struct Requested {
    task: String,
    requested_at_ms: u64,
}

async fn run(State(api): State<Api>, Path(task): Path<String>, parts: Parts) -> Answered {
    api.may(Role::TasksRun, &parts)?;
    match api.coordinator.run_now(&task).await {
        Ok(requested_at_ms) => {
            let mut answer = json(&Requested { task, requested_at_ms });
            *answer.status_mut() = StatusCode::ACCEPTED;
            Ok(answer)
        }
        Err(TaskError::Fault(fault)) => Err(unavailable(fault)),
        Err(error) => {
            let detail = format!("{error}; a task is known once a leader has it");
            Err(refuse(StatusCode::NOT_FOUND, ErrorCode::NotFound, &detail).into())
        }
    }
}

async fn metrics(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    match api.coordinator.global_metrics().await.map_err(unavailable)? {
        Some(global) => Ok(json(&global)),
        None => {
            let detail = "no leader has added up the metrics yet";
            Err(refuse(StatusCode::NOT_FOUND, ErrorCode::NotFound, detail).into())
        }
    }
}

async fn set_metrics(State(api): State<Api>, request: axum::extract::Request) -> Answered {
    let (parts, body) = request.into_parts();
    api.may(Role::MetricsWrite, &parts)?;
    let wrong = |detail: &str| -> Refused {
        refuse(StatusCode::BAD_REQUEST, ErrorCode::InvalidBody, detail).into()
    };
    let body =
        axum::body::to_bytes(body, BODY_MAX).await.map_err(|error| wrong(&error.to_string()))?;
    let numbers: BTreeMap<String, Option<f64>> = serde_json::from_slice(&body)
        .map_err(|error| wrong(&format!("an object of numbers is wanted: {error}")))?;
    api.coordinator.set_metrics(numbers).map_err(|why| wrong(&why))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// For load balancers and probes, which have no tokens.
async fn leads(State(api): State<Api>) -> Response {
    let (status, text) = match api.coordinator.is_leader() {
        true => (StatusCode::OK, "leader\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not leader\n"),
    };
    let mut answer = (status, [(CACHE_CONTROL, "no-store")], text).into_response();
    let leader = api.coordinator.known_leader().and_then(|id| HeaderValue::try_from(id).ok());
    if let Some(leader) = leader {
        answer.headers_mut().insert("x-leader-id", leader);
    }
    answer
}

/// Whether the instance takes part.
async fn ready(State(api): State<Api>) -> Response {
    let health = api.coordinator.health();
    if health.heartbeat_age.is_some_and(|age| age < api.coordinator.settings().heartbeat_ttl) {
        return "ok\n".into_response();
    }
    let code = ErrorCode::RegistryUnavailable;
    let why = health.fault.map(|fault| format!(": {fault}")).unwrap_or_default();
    let detail = format!("no heartbeat has counted lately{why}");
    refuse(StatusCode::SERVICE_UNAVAILABLE, code, &detail)
}

async fn prometheus_text(State(api): State<Api>, parts: Parts) -> Answered {
    api.may(Role::MetricsRead, &parts)?;
    let text = prometheus::text(&api.coordinator, &api.certificate).await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

fn json<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
            (headers, Body::from(body)).into_response()
        }
        Err(error) => {
            let (status, code) = (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal);
            refuse(status, code, &error.to_string())
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is made to be given to map_err")]
fn unavailable(fault: Fault) -> Refused {
    let answer = refuse(
        StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::RegistryUnavailable,
        &format!("the cluster's registry cannot be asked: {fault}"),
    );
    answer.into()
}

fn refuse(status: StatusCode, code: ErrorCode, detail: &str) -> Response {
    let body =
        ErrorBody { error: code.as_str().into(), detail: detail.into(), ..ErrorBody::default() };
    let mut answer = json(&body);
    *answer.status_mut() = status;
    answer
}
