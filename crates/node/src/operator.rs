//! What operators and other nodes ask of a node, below `/ha/`. Looking is free; whoever changes
//! something shows the token or a certificate.

mod access;
mod cluster;
mod switchover;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, FromRequest, Query, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use lockd_wire::error::{ErrorBody, ErrorCode};
use lockd_wire::node::{Hello, HelloReply, PauseAsk, Prepare, SwitchoverAsk};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

pub(crate) use access::Access;
pub(crate) use cluster::{history_of_all, pause, status_of_leader};
pub(crate) use switchover::{PREFERRED, switchover};

use crate::actor::Note;
use crate::peers::PASSED_ON;
use crate::shared::Shared;
use access::Denied;

/// The largest body: a node that says hello.
const BODY_MAX: usize = 64 * 1024;
/// Beside what programs have to end.
const READY_SLACK: Duration = Duration::from_secs(1);

/// An answer that says no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    pub status: StatusCode,
    pub code: ErrorCode,
    pub detail: String,
    /// It was begun, and did not end as it was asked for.
    pub is_begun: bool,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), is_begun: false }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let outcome = self.is_begun.then(|| "unknown".to_owned());
        let error = self.code.as_str().to_owned();
        let body = ErrorBody { error, detail: self.detail, outcome, ..ErrorBody::default() };
        let mut answer = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

#[derive(Clone)]
struct Api {
    shared: Arc<Shared>,
    access: Arc<Access>,
}

pub(crate) fn router(shared: Arc<Shared>, access: Access) -> Router {
    let api = Api { shared, access: Arc::new(access) };
    Router::new()
        .route("/ha/status", get(status))
        .route("/ha/history", get(history))
        .route("/ha/metrics", get(metrics))
        .route("/ha/switchover", post(ask_switchover))
        .route("/ha/pause", post(ask_pause))
        .route("/ha/resume", post(ask_resume))
        .route("/ha/hello", post(hello))
        .route("/ha/prepare", post(prepare))
        .fallback(|| async {
            Refusal::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "no such path")
        })
        .method_not_allowed_fallback(|| async {
            let (status, code) = (StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed);
            Refusal::new(status, code, "this path has other methods")
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(api)
}

type Answered = Result<Response, Refusal>;

impl Api {
    fn may_change(&self, parts: &Parts) -> Result<(), Refusal> {
        self.access.may_change(parts).map_err(|denied| match denied {
            Denied::Unknown => {
                let detail = "send a token: Authorization: Bearer TOKEN";
                Refusal::new(StatusCode::UNAUTHORIZED, ErrorCode::TokenRequired, detail)
            }
            Denied::WebPage => {
                let detail = "requests of web pages are refused where no token is asked for";
                Refusal::new(StatusCode::FORBIDDEN, ErrorCode::NotAllowed, detail)
            }
        })
    }

    /// What somebody who may change something has sent; nothing is the same as an empty object.
    async fn asked<T: DeserializeOwned>(&self, request: Request) -> Result<(Parts, T), Refusal> {
        let (parts, body) = request.into_parts();
        self.may_change(&parts)?;
        let wrong =
            |detail: String| Refusal::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidBody, detail);
        let request = Request::from_parts(parts.clone(), body);
        let body = Bytes::from_request(request, &()).await.map_err(|error| {
            if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
                let detail = format!("at most {BODY_MAX} bytes");
                return Refusal::new(error.status(), ErrorCode::BodyTooLarge, detail);
            }
            wrong(error.to_string())
        })?;
        let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
        let asked = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        Ok((parts, asked))
    }
}

/// Whether another node asks for somebody.
fn is_passed_on(parts: &Parts) -> bool {
    parts.headers.contains_key(PASSED_ON)
}

fn json(value: &impl Serialize) -> Response {
    ([(CACHE_CONTROL, "no-store")], Json(value)).into_response()
}

async fn status(State(api): State<Api>, parts: Parts) -> Response {
    if is_passed_on(&parts) {
        return json(&api.shared.status());
    }
    json(&status_of_leader(&api.shared).await)
}

#[derive(Deserialize)]
struct Whose {
    all: Option<String>,
}

async fn history(State(api): State<Api>, Query(whose): Query<Whose>, parts: Parts) -> Response {
    if whose.all.is_some() && !is_passed_on(&parts) {
        return json(&history_of_all(&api.shared).await);
    }
    json(&api.shared.chronicle.all())
}

async fn metrics(State(api): State<Api>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, kind)], api.shared.metrics.text(&api.shared.settings.door)).into_response()
}

async fn ask_switchover(State(api): State<Api>, request: Request) -> Answered {
    let (parts, ask) = api.asked::<SwitchoverAsk>(request).await?;
    if api.shared.leads() {
        // It is brought to its end, whether or not somebody waits for it.
        let shared = Arc::clone(&api.shared);
        let switching = async move { switchover(&shared, ask).await };
        let done = api.shared.running.spawn(switching).await.map_err(|_| {
            let (status, code) = (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal);
            Refusal::new(status, code, "the hand-over was given up")
        })??;
        return Ok(json(&done));
    }
    if is_passed_on(&parts) {
        let detail = "this node does not lead";
        return Err(Refusal::new(StatusCode::CONFLICT, ErrorCode::SwitchoverRefused, detail));
    }
    switchover::pass_on(&api.shared, &ask).await
}

#[derive(Deserialize)]
struct Told {
    /// One node tells another, which tells nobody.
    told: Option<String>,
}

async fn ask_pause(state: State<Api>, told: Query<Told>, request: Request) -> Answered {
    set_paused(state, told, request, true).await
}

async fn ask_resume(state: State<Api>, told: Query<Told>, request: Request) -> Answered {
    set_paused(state, told, request, false).await
}

async fn set_paused(
    State(api): State<Api>,
    Query(told): Query<Told>,
    request: Request,
    paused: bool,
) -> Answered {
    let (_, ask) = api.asked::<PauseAsk>(request).await?;
    if let Some(reason) = ask.reason {
        tracing::info!(paused, reason, "asked for by an operator");
    }
    if told.told.is_some() {
        return Ok(json(&cluster::set_paused(&api.shared, paused).await));
    }
    Ok(json(&pause(&api.shared, paused).await?))
}

async fn hello(State(api): State<Api>, request: Request) -> Answered {
    let (_, Hello { mut node }) = api.asked::<Hello>(request).await?;
    let shared = &api.shared;
    // It was heard just now, whatever it says.
    node.silent_ms = 0;
    let _noted = shared.table.lock().hear(node, shared.clock.now());
    let status = shared.status();
    let (leader_id, leader_epoch) = (status.leader_id, status.leader_epoch);
    // As they said it: what it means for a reader is the reader's to judge.
    let nodes = shared.nodes();
    Ok(json(&HelloReply { leader_id, leader_epoch, paused: status.paused, nodes }))
}

async fn prepare(State(api): State<Api>, request: Request) -> Answered {
    let (_, ask) = api.asked::<Prepare>(request).await?;
    let shared = &api.shared;
    let refused =
        |detail: String| Refusal::new(StatusCode::CONFLICT, ErrorCode::SwitchoverRefused, detail);
    let (ready, is_ready) = oneshot::channel();
    let sent = shared.notes.send(Note::Prepare { ask, ready }).await;
    sent.map_err(|_| refused("it has ended".into()))?;
    let within = shared.settings.stop_grace + READY_SLACK;
    match tokio::time::timeout(within, is_ready).await {
        Ok(Ok(Ok(()))) => Ok(json(&shared.view())),
        Ok(Ok(Err(why))) => Err(refused(why)),
        Ok(Err(_)) => Err(refused("it has ended, or too many ask at once".into())),
        Err(_) => Err(refused("its agent did not end in time".into())),
    }
}
