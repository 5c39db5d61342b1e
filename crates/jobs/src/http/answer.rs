//! What is answered. Here alone status codes are chosen.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use lockd_wire::error::{ErrorBody, ErrorCode};
use lockd_wire::node::{NotLeader, RoleReply};
use serde::Serialize;

use crate::controller::{KEY_MAX, Refusal};

/// When to come again.
const AGAIN: &str = "1";

pub(super) type Answered = Result<Response, Refused>;

/// An answer that says no.
#[derive(Debug)]
pub(super) struct Refused(Box<Response>);

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

pub(super) fn json<T: Serialize>(value: &T) -> Response {
    with_status(StatusCode::OK, value)
}

pub(super) fn with_status<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
            (status, headers, Body::from(body)).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

pub(super) fn nothing() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// There is no work, and will be none for a while.
pub(super) fn no_work(draining: bool) -> Response {
    let mut answer = nothing();
    if draining {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(AGAIN));
    }
    answer
}

fn refuse(status: StatusCode, code: &str, detail: &str) -> Response {
    let body = ErrorBody { error: code.into(), detail: detail.into(), ..ErrorBody::default() };
    with_status(status, &body)
}

pub(super) fn wrong(code: ErrorCode, detail: &str) -> Refused {
    refuse(StatusCode::BAD_REQUEST, code.as_str(), detail).into()
}

pub(super) fn too_large(most: usize) -> Refused {
    let detail = format!("the body has more than {most} bytes");
    refuse(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge.as_str(), &detail).into()
}

pub(super) fn too_slow() -> Refused {
    let code = ErrorCode::RequestTimeout;
    refuse(StatusCode::REQUEST_TIMEOUT, code.as_str(), "the body did not arrive in time").into()
}

pub(super) fn no_token(is_open: bool) -> Response {
    let detail = match is_open {
        true => {
            "without a token only this machine is served: start the controller with --token-file"
        }
        false => "send a token: Authorization: Bearer TOKEN",
    };
    let mut answer = refuse(StatusCode::UNAUTHORIZED, ErrorCode::TokenRequired.as_str(), detail);
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    answer
}

pub(super) fn of_a_page() -> Response {
    let detail = "requests of web pages are refused where no token is asked for";
    refuse(StatusCode::FORBIDDEN, ErrorCode::NotAllowed.as_str(), detail)
}

pub(super) fn no_such_path() -> Response {
    refuse(StatusCode::NOT_FOUND, ErrorCode::NotFound.as_str(), "no such path")
}

pub(super) fn no_such_method() -> Response {
    let code = ErrorCode::MethodNotAllowed.as_str();
    refuse(StatusCode::METHOD_NOT_ALLOWED, code, "this path has other methods")
}

/// Not now; the same request may be made again.
fn later(code: ErrorCode, detail: &str, outcome: Option<&str>) -> Response {
    let body = ErrorBody {
        error: code.as_str().into(),
        detail: detail.into(),
        retry_after_seconds: Some(1),
        outcome: outcome.map(str::to_owned),
        ..ErrorBody::default()
    };
    let mut answer = with_status(StatusCode::SERVICE_UNAVAILABLE, &body);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(AGAIN));
    answer
}

/// By a controller that is this.
pub(super) fn refusal(refusal: Refusal, role: &RoleReply) -> Refused {
    let conflict = StatusCode::CONFLICT;
    let answer = match refusal {
        Refusal::NotLeader => with_status(conflict, &NotLeader::of(role)),
        Refusal::StaleEpoch(stale) => with_status(conflict, &*stale),
        Refusal::NotFound(what) => {
            refuse(StatusCode::NOT_FOUND, ErrorCode::NotFound.as_str(), what)
        }
        Refusal::JobOver => refuse(conflict, ErrorCode::JobOver.as_str(), "the job is over"),
        Refusal::AgentDeleted => {
            let code = ErrorCode::AgentDeleted.as_str();
            refuse(conflict, code, "this agent was deleted: only a new process gets work")
        }
        Refusal::Key => {
            let detail = format!("X-Idempotency-Key has between 1 and {KEY_MAX} bytes of ASCII");
            let code = ErrorCode::InvalidIdempotencyKey.as_str();
            refuse(StatusCode::BAD_REQUEST, code, &detail)
        }
        Refusal::KeyReused => {
            let code = ErrorCode::IdempotencyKeyReused.as_str();
            refuse(conflict, code, "another job was submitted with this key")
        }
        Refusal::Spec(why) => {
            let code = ErrorCode::InvalidBody.as_str();
            refuse(StatusCode::BAD_REQUEST, code, &why.to_string())
        }
        Refusal::Invalid(why) => {
            refuse(StatusCode::BAD_REQUEST, ErrorCode::InvalidBody.as_str(), &why)
        }
        Refusal::TooManyJobs => later(ErrorCode::QueueBusy, "too many jobs are not over yet", None),
        Refusal::TooManyAgents => later(ErrorCode::QueueBusy, "too many agents", None),
        Refusal::TooManyWaiters => {
            later(ErrorCode::TooManyWaiters, "too many requests wait already", None)
        }
        Refusal::Unknown => {
            let detail = "the store did not answer: the change may or may not have happened";
            later(ErrorCode::StoreUnavailable, detail, Some("unknown"))
        }
        Refusal::Unavailable => {
            later(ErrorCode::StoreUnavailable, "the store cannot be asked", None)
        }
        Refusal::Damaged => {
            let (status, code) = (StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::StoreDamaged);
            refuse(status, code.as_str(), "what is kept of it cannot be read")
        }
    };
    answer.into()
}
