//! What the front answers itself: what the node is, and why a request was not passed on.

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use lockd_wire::error::{ErrorBody, ErrorCode};
use lockd_wire::node::{NotLeader, Role, RoleReply};
use serde::Serialize;

use crate::path::PathFault;
use crate::upstream::Failure;

const UNKNOWN: &str = "unknown";
const RETRY_AFTER_SECONDS: u64 = 1;

/// For load balancers and people.
#[derive(Serialize)]
pub(crate) struct Health<'a> {
    node_id: &'a str,
    role: Role,
    controller: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'static str>,
}

pub(crate) fn health(role: &RoleReply, healthy: bool) -> Response {
    let (node_id, role) = (role.node_id.as_str(), role.role);
    if healthy {
        let health = Health { node_id, role, controller: "healthy", error: None, detail: None };
        return json(StatusCode::OK, &health);
    }
    let health = Health {
        node_id,
        role,
        controller: "unhealthy",
        error: Some(ErrorCode::ControllerUnavailable.as_str()),
        detail: Some("the controller does not answer its health check"),
    };
    json(StatusCode::SERVICE_UNAVAILABLE, &health)
}

/// Yes or no, for load balancers.
pub(crate) fn is_it(yes: bool, what: &'static str, not: &'static str) -> Response {
    let (status, text) = match yes {
        true => (StatusCode::OK, what),
        false => (StatusCode::SERVICE_UNAVAILABLE, not),
    };
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}

/// Nothing has happened, and it may be asked of the leader.
pub(crate) fn not_leader(role: &RoleReply) -> Response {
    json(StatusCode::CONFLICT, &NotLeader::of(role))
}

pub(crate) fn method_not_allowed(allowed: &'static str) -> Response {
    let code = ErrorCode::MethodNotAllowed;
    let detail = format!("this path has other methods: {allowed}");
    let mut answer = refuse(StatusCode::METHOD_NOT_ALLOWED, code, detail, None);
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// What the controller would make of such a path is unknown, so is whether it is a change.
pub(crate) fn invalid_path(fault: PathFault) -> Response {
    refuse(StatusCode::BAD_REQUEST, ErrorCode::InvalidPath, fault.to_string(), None)
}

/// An upgraded connection could write after the node has ceased to lead.
pub(crate) fn no_upgrade() -> Response {
    let detail = "connections cannot be upgraded here: only HTTP requests are passed on".to_owned();
    refuse(StatusCode::NOT_IMPLEMENTED, ErrorCode::UpgradeUnsupported, detail, None)
}

pub(crate) fn too_many(most: usize) -> Response {
    let code = ErrorCode::TooManyConnections;
    let detail = format!("{most} requests are under way already");
    let mut answer = retriable(refuse(StatusCode::SERVICE_UNAVAILABLE, code, detail, None));
    // Its connection is another's to have.
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Who did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silent {
    Controller,
    Leader,
}

/// No answer came. That a change may have happened must not be hidden, and that it cannot have
/// must not be either.
pub(crate) fn failed(who: Silent, failure: &Failure, change: bool) -> Response {
    let (name, code) = match who {
        Silent::Controller => ("the controller", ErrorCode::ControllerUnavailable),
        Silent::Leader => ("the leader", ErrorCode::LeaderUnreachable),
    };
    let unknown = change.then_some(UNKNOWN);
    let (status, code, outcome) = match failure {
        Failure::Unsent(_) => (StatusCode::SERVICE_UNAVAILABLE, code, None),
        Failure::Sent(_) => (StatusCode::BAD_GATEWAY, code, unknown),
        Failure::Late(_) => (StatusCode::GATEWAY_TIMEOUT, code, unknown),
        Failure::Body(_) => (StatusCode::BAD_REQUEST, ErrorCode::InvalidBody, unknown),
        Failure::Cut => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::LeadershipLost, unknown),
    };
    let detail = match failure {
        Failure::Body(_) => failure.to_string(),
        Failure::Cut => "the node ceased to lead while the change was under way".to_owned(),
        Failure::Unsent(_) | Failure::Sent(_) | Failure::Late(_) => format!("{name} {failure}"),
    };
    let answer = refuse(status, code, detail, outcome);
    match failure {
        Failure::Unsent(_) => retriable(answer),
        // Whoever repeats it may do it twice.
        Failure::Sent(_) | Failure::Late(_) | Failure::Body(_) | Failure::Cut => answer,
    }
}

fn retriable(mut answer: Response) -> Response {
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
    answer
}

fn refuse(
    status: StatusCode,
    code: ErrorCode,
    detail: String,
    outcome: Option<&'static str>,
) -> Response {
    let outcome = outcome.map(Into::into);
    json(
        status,
        &ErrorBody { error: code.as_str().into(), detail, outcome, ..ErrorBody::default() },
    )
}

pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
            (status, headers, Body::from(body)).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
