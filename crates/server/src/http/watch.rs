//! Watching over server-sent events.

use std::fmt::Write as _;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use lockd_core::key::{self, KeyName};
use lockd_store::StoreError;
use lockd_wire::ErrorBody;
use lockd_wire::watch::{self as wire, LeaseEvent, ResetEvent, StateEvent};

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;
use super::reply;
use super::request::{self, Params};
use crate::app::event::What;
use crate::app::watch::{Scope, Told};

/// Follow a key, or all keys of a namespace that begin with a prefix.
#[utoipa::path(
    get, path = "/v1/watch", tag = "operators",
    params(
        ("key" = Option<String>, Query), ("prefix" = Option<String>, Query), ("namespace" = Option<String>, Query),
        ("Last-Event-ID" = Option<String>, Header, description = "Go on after this event"),
    ),
    responses(
        (status = 200, description = "Events `state`, `removed`, `lease` and `reset`", body = String, content_type = "text/event-stream"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(super) async fn watch(call: Call, _body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    app.refuse_draining()?;
    let params = call.params();
    let scope = match params.given("key") {
        Some(_) => Scope::Key(call.query_key(&params)?),
        None => Scope::Prefix {
            namespace: namespace(&call, &params)?,
            prefix: params.get("prefix").unwrap_or_default().to_ascii_lowercase(),
        },
    };
    let resume =
        request::text(call.headers(), "last-event-id").or_else(|| params.get("last_event_id"));
    let watch = app.watch(scope, resume);
    let incarnation = app.incarnation.clone();
    let state = (watch, incarnation, call.watch());
    let events = stream::try_unfold(state, |(mut watch, incarnation, watching)| async move {
        let Some(told) = watch.next().await? else { return Ok::<_, StoreError>(None) };
        let text = event_text(&told, &incarnation);
        Ok(Some((Bytes::from(text), (watch, incarnation, watching))))
    });
    let mut response = reply::with_body(StatusCode::OK, Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn namespace(call: &Call, params: &Params<'_>) -> Result<String, ApiError> {
    let named = call.api.app.namespace(params.given("namespace"));
    let namespace = key::parse_namespace(named)?;
    call.permit(&namespace)?;
    Ok(namespace)
}

fn event_text(told: &Told, incarnation: &str) -> String {
    match told {
        Told::Quiet => ": nothing new\n\n".to_owned(),
        Told::Reset { reason, complete, id } => {
            let event = ResetEvent { reason: (*reason).to_owned(), complete: *complete };
            one(wire::RESET, &event, *id, incarnation)
        }
        Told::Change { key, what, snapshot, id } => {
            change_text(key, what, *snapshot, *id, incarnation)
        }
    }
}

fn change_text(
    key: &KeyName,
    what: &What,
    snapshot: bool,
    id: Option<u64>,
    incarnation: &str,
) -> String {
    let (namespace, name) = (key.namespace().to_owned(), key.key().to_owned());
    match what {
        What::State { version, etag, bytes } => {
            let event = StateEvent {
                namespace,
                key: name,
                version: *version,
                state_etag: etag.clone(),
                bytes: *bytes,
                snapshot,
            };
            one(wire::STATE, &event, id, incarnation)
        }
        What::Removed { version } => {
            let event = StateEvent {
                namespace,
                key: name,
                version: *version,
                snapshot,
                ..Default::default()
            };
            one(wire::REMOVED, &event, id, incarnation)
        }
        What::Lease { change, owner, token, expires_unix_ms } => {
            let event = LeaseEvent {
                namespace,
                key: name,
                change: *change,
                owner: owner.to_string(),
                fencing_token: *token,
                expires_at_unix_ms: *expires_unix_ms,
                snapshot,
            };
            one(wire::LEASE, &event, id, incarnation)
        }
    }
}

fn one(kind: &str, data: &impl serde::Serialize, id: Option<u64>, incarnation: &str) -> String {
    let data = serde_json::to_string(data).unwrap_or_default();
    let mut text = format!("event: {kind}\n");
    if let Some(id) = id {
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "id: {incarnation}-{id}").is_ok();
    }
    let _infallible = write!(text, "data: {data}\n\n").is_ok();
    text
}
