//! The queue: taking messages in, delivering them, and what consumers say about them.

mod deliver;
pub(super) mod operate;

use std::collections::HashSet;

use http::header;
use lockd_core::fence::Fence;
use lockd_core::lease::Proof;
use lockd_core::limits::{
    ATTEMPTS_MAX, ATTRIBUTES_BYTES_MAX, CONTENT_TYPE_BYTES_MAX, DELAY_MAX, LAST_ERROR_BYTES_MAX,
    TTL_MIN,
};
use lockd_core::message::{Back, Receipt};
use lockd_core::time::Span;
use lockd_wire::queue::{
    AckOne, AckReply, AckRequest, AckResult, DequeueRequest, EnqueueReply, EnqueueRequest,
    ExtendReply, ExtendRequest, NackReply, NackRequest,
};
use lockd_wire::{ErrorBody, ErrorCode};
use serde_json::value::RawValue;

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;
use super::multipart::{Parts, message_id};
use super::request::{self, COMMAND_BYTES_MAX, bad};
use super::state::heard_out;
use super::{lease, reply};
use crate::app::Refused;
use crate::app::lease::Block;
use crate::app::queue::consume::TakeAsk;
use crate::app::queue::enqueue::EnqueueAsk;
use crate::app::queue::settle::Held;

const BYTES: &str = "application/octet-stream";
const VISIBILITY_DEFAULT: Span = Span::secs(30);
const MAX_ATTEMPTS_DEFAULT: u32 = 5;
/// Messages in one answer.
const PAGE_MAX: i64 = 64;
/// Messages that are acknowledged at once.
const ACKS_MAX: usize = 1_000;
/// Messages that one subscriber may have at a time.
const PREFETCH_MAX: i64 = 1_024;

/// Put a message into a queue. The body has two parts: `meta`, a JSON object, then `payload`, any
/// bytes.
#[utoipa::path(
    post, path = "/v1/queue/enqueue", tag = "queue",
    request_body(content = EnqueueRequest, description = "Parts meta and payload", content_type = "multipart/related"),
    params(
        ("queue" = Option<String>, Query, description = "When meta does not name it"),
        ("namespace" = Option<String>, Query),
        ("X-Txn-ID" = Option<String>, Header, description = "Delivered only after this transaction is committed"),
        ("X-Idempotency-Key" = Option<String>, Header, description = "Makes the request safe to repeat"),
        ("X-Fence-Key" = Option<String>, Header, description = "namespace/key whose token must still be X-Fence-Token"),
        ("X-Fence-Token" = Option<u64>, Header, description = "The token that key must still have"),
    ),
    responses(
        (status = 200, description = "In the queue", body = EnqueueReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "A fence condition failed, or the transaction is decided", body = ErrorBody),
        (status = 413, description = "The payload is too large", body = ErrorBody),
    )
)]
pub(super) async fn enqueue(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let parts = Parts::read(app, call.headers(), body).await?;
    let asked = enqueue_ask(&call, &parts.meta);
    let mut payload = parts.into_payload();
    let outcome = async {
        let ask = asked?;
        let (queue, ttl) = (ask.queue.clone(), ask.ttl);
        let enqueued = app.enqueue(ask, &mut payload).await?;
        Ok(reply::ok(&EnqueueReply {
            namespace: queue.namespace().to_owned(),
            queue: queue.queue().to_owned(),
            message_id: enqueued.id.to_string(),
            attempts: 0,
            max_attempts: enqueued.max_attempts,
            not_visible_until_unix: enqueued.visible_at.as_secs_up(),
            visibility_timeout_seconds: enqueued.visibility.as_secs_up(),
            ttl_seconds: ttl.map(Span::as_secs_up),
            payload_bytes: enqueued.bytes,
            correlation_id: call.correlation.text().to_owned(),
        }))
    };
    let outcome = outcome.await;
    heard_out(outcome, &mut payload).await
}

fn enqueue_ask(call: &Call, meta: &[u8]) -> Result<EnqueueAsk, ApiError> {
    let (app, headers, params) = (&call.api.app, call.headers(), call.params());
    let ask: EnqueueRequest = match meta {
        [] => EnqueueRequest::default(),
        meta => request::object(meta).map_err(|error| {
            bad(ErrorCode::InvalidBody, format!("the part meta is not what this takes: {error}"))
        })?,
    };
    let namespace = ask.namespace.as_deref().or_else(|| params.given("namespace"));
    let name = ask.queue.as_deref().or_else(|| params.get("queue"));
    let content_type = ask.payload_content_type.as_deref().map(str::trim);
    let content_type = content_type.filter(|text| !text.is_empty()).unwrap_or(BYTES);
    if content_type.len() > CONTENT_TYPE_BYTES_MAX
        || http::HeaderValue::from_str(content_type).is_err()
    {
        let detail = "payload_content_type cannot be sent in a header";
        return Err(bad(ErrorCode::InvalidBody, detail));
    }
    let txn = request::joined_txn(ask.txn_id.as_deref(), headers)?;
    let mut asked = request::conditions(headers);
    asked.push(meta);
    asked.push(txn.as_ref().map_or("", |txn| txn.as_str()).as_bytes());
    Ok(EnqueueAsk {
        queue: call.queue(namespace, name)?,
        content_type: content_type.into(),
        correlation: call.correlation.text().into(),
        attributes: json_text(
            ask.attributes,
            ATTRIBUTES_BYTES_MAX,
            "attributes",
            ErrorCode::InvalidBody,
        )?,
        delay: delay(ask.delay_seconds, None)?,
        visibility: visibility(ask.visibility_timeout_seconds, None)?
            .unwrap_or(VISIBILITY_DEFAULT)
            .min(app.limits.max_ttl),
        ttl: lifetime(ask.ttl_seconds)?,
        max_attempts: max_attempts(ask.max_attempts)?,
        txn,
        fences: request::fences(call)?,
        stamp: request::stamp(call, "enqueue", &asked)?,
    })
}

/// JSON of the caller's own, kept as text; null is nothing.
fn json_text(
    value: Option<Box<RawValue>>,
    max: usize,
    name: &str,
    code: ErrorCode,
) -> Result<Option<Box<str>>, ApiError> {
    let text = value.map(|value| Box::<str>::from(value.get()));
    match text.filter(|text| **text != *"null") {
        Some(text) if text.len() > max => {
            Err(bad(code, format!("{name} may have at most {max} bytes")))
        }
        text => Ok(text),
    }
}

fn delay(seconds: Option<i64>, ms: Option<u64>) -> Result<Span, ApiError> {
    let delay = match (ms, seconds) {
        (Some(ms), _) => Span(ms),
        (None, Some(seconds)) if seconds < 0 => {
            return Err(bad(ErrorCode::InvalidDelay, "a delay is not below zero"));
        }
        (None, seconds) => Span::secs(seconds.unwrap_or(0).unsigned_abs()),
    };
    if delay > DELAY_MAX {
        return Err(bad(ErrorCode::InvalidDelay, "a delay is at most 366 days"));
    }
    Ok(delay)
}

/// `None`: as it was said before.
fn visibility(seconds: Option<i64>, ms: Option<u64>) -> Result<Option<Span>, ApiError> {
    let span = match (ms, seconds) {
        (Some(ms), _) if ms > 0 => Span(ms),
        (_, Some(seconds)) if seconds > 0 => Span::secs(seconds.unsigned_abs()),
        (_, _) => return Ok(None),
    };
    if span < TTL_MIN {
        let detail = format!("a delivery lives for at least {} ms", TTL_MIN.0);
        return Err(bad(ErrorCode::InvalidTtl, detail));
    }
    Ok(Some(span))
}

fn lifetime(seconds: Option<i64>) -> Result<Option<Span>, ApiError> {
    match seconds {
        None | Some(0) => Ok(None),
        Some(seconds) if seconds < 0 => {
            Err(bad(ErrorCode::InvalidTtl, "ttl_seconds is not below zero"))
        }
        Some(seconds) => Ok(Some(Span::secs(seconds.unsigned_abs()).min(DELAY_MAX))),
    }
}

fn max_attempts(asked: Option<i64>) -> Result<u32, ApiError> {
    match asked.map(u32::try_from) {
        None | Some(Ok(0)) => Ok(MAX_ATTEMPTS_DEFAULT),
        Some(Ok(asked)) if asked <= ATTEMPTS_MAX => Ok(asked),
        Some(Ok(_) | Err(_)) => {
            Err(bad(ErrorCode::InvalidBody, "max_attempts is a whole number from 1 to 1000000"))
        }
    }
}

/// What a consumer asks for; `max` bounds how many at once.
async fn take_ask(call: &Call, body: Body, max: i64, stateful: bool) -> Result<TakeAsk, ApiError> {
    let app = &call.api.app;
    let text = request::bytes(app, body, COMMAND_BYTES_MAX).await?;
    let ask: DequeueRequest = match text.trim_ascii() {
        [] => DequeueRequest::default(),
        text => request::object(text).map_err(|error| {
            bad(ErrorCode::InvalidBody, format!("the body is not what this takes: {error}"))
        })?,
    };
    let params = call.params();
    let namespace = ask.namespace.as_deref().or_else(|| params.given("namespace"));
    let queue = call.queue(namespace, ask.queue.as_deref().or_else(|| params.get("queue")))?;
    let owner = ask.owner.as_deref().or_else(|| params.get("owner")).unwrap_or_default();
    let count = ask.page_size.unwrap_or(1).clamp(1, max);
    Ok(TakeAsk {
        queue,
        owner: lease::owner(owner)?.into(),
        txn: request::joined_txn(ask.txn_id.as_deref(), call.headers())?,
        visibility: visibility(ask.visibility_timeout_seconds, ask.visibility_timeout_ms)?,
        block: lease::block(app, ask.wait_seconds),
        count: usize::try_from(count).unwrap_or(1),
        stateful,
    })
}

/// Take messages: each is yours until its time is over, you acknowledge it or give it back.
#[utoipa::path(
    post, path = "/v1/queue/dequeue", tag = "queue", request_body = DequeueRequest,
    responses(
        (status = 200, description = "Parts meta and payload of each message", body = String, content_type = "multipart/related"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "Nothing can be delivered now (`waiting`)", body = ErrorBody),
        (status = 503, description = "Draining, too many consumers, or the store is unavailable", body = ErrorBody),
    )
)]
pub(super) async fn dequeue(call: Call, body: Body) -> Result<Response, ApiError> {
    let ask = take_ask(&call, body, PAGE_MAX, false).await?;
    deliver::once(call, ask).await
}

/// Take a message together with the state that consumers keep beside it.
#[utoipa::path(
    post, path = "/v1/queue/dequeueWithState", tag = "queue", request_body = DequeueRequest,
    responses(
        (status = 200, description = "Parts meta and payload", body = String, content_type = "multipart/related"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "Nothing can be delivered now (`waiting`)", body = ErrorBody),
    )
)]
pub(super) async fn dequeue_with_state(call: Call, body: Body) -> Result<Response, ApiError> {
    let ask = take_ask(&call, body, 1, true).await?;
    deliver::once(call, ask).await
}

/// Stay, and be given one message after the other; at most `page_size` of them at a time.
#[utoipa::path(
    post, path = "/v1/queue/subscribe", tag = "queue", request_body = DequeueRequest,
    responses(
        (status = 200, description = "Parts meta and payload of each message, without end", body = String, content_type = "multipart/related"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "Nothing came in time (`waiting`)", body = ErrorBody),
    )
)]
pub(super) async fn subscribe(call: Call, body: Body) -> Result<Response, ApiError> {
    let ask = take_ask(&call, body, PREFETCH_MAX, false).await?;
    deliver::stream(call, ask).await
}

/// Stay, and be given messages together with the state beside them.
#[utoipa::path(
    post, path = "/v1/queue/subscribeWithState", tag = "queue", request_body = DequeueRequest,
    responses(
        (status = 200, description = "Parts meta and payload of each message, without end", body = String, content_type = "multipart/related"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "Nothing came in time (`waiting`)", body = ErrorBody),
    )
)]
pub(super) async fn subscribe_with_state(call: Call, body: Body) -> Result<Response, ApiError> {
    let ask = take_ask(&call, body, PREFETCH_MAX, true).await?;
    deliver::stream(call, ask).await
}

/// The fields that every call about a message has.
struct About<'a> {
    namespace: Option<&'a str>,
    queue: &'a str,
    message_id: &'a str,
    lease_id: &'a str,
    txn_id: Option<&'a str>,
    fencing_token: Option<u64>,
    meta_etag: Option<&'a str>,
    state_lease_id: Option<&'a str>,
    state_fencing_token: Option<u64>,
}

impl About<'_> {
    fn held(&self, call: &Call) -> Result<Held, ApiError> {
        let missing =
            [self.queue, self.message_id, self.lease_id].iter().any(|text| text.trim().is_empty());
        if missing {
            let detail =
                "name the queue, the message_id and the lease_id, as the delivery gave them";
            return Err(bad(ErrorCode::MissingFields, detail));
        }
        let present = |text: Option<&str>| text.map(str::trim).is_some_and(|text| !text.is_empty());
        // Zero was never given: clients that know of none send it.
        let token = |token: Option<u64>| token.filter(|token| *token > 0).map(Fence);
        let state = match self.state_lease_id {
            Some(_) => {
                let lease = request::lease_id(self.state_lease_id, "state_lease_id")?;
                Some(Proof { lease, fence: token(self.state_fencing_token), txn: None })
            }
            None => None,
        };
        Ok(Held {
            queue: call.queue(self.namespace, Some(self.queue))?,
            id: message_id(self.message_id)?,
            receipt: Receipt {
                proof: Proof {
                    lease: request::lease_id(Some(self.lease_id), "lease_id")?,
                    fence: token(self.fencing_token),
                    txn: request::txn(self.txn_id)?,
                },
                etag: self.meta_etag.filter(|_| present(self.meta_etag)).map(Into::into),
            },
            state,
        })
    }
}

macro_rules! about {
    ($ask:expr) => {
        About {
            namespace: $ask.namespace.as_deref(),
            queue: &$ask.queue,
            message_id: &$ask.message_id,
            lease_id: &$ask.lease_id,
            txn_id: $ask.txn_id.as_deref(),
            fencing_token: $ask.fencing_token,
            meta_etag: $ask.meta_etag.as_deref(),
            state_lease_id: $ask.state_lease_id.as_deref(),
            state_fencing_token: $ask.state_fencing_token,
        }
    };
}

/// The work is done: the message is gone for good. In a transaction, the transaction is committed.
#[utoipa::path(
    post, path = "/v1/queue/ack", tag = "queue", request_body = AckRequest,
    params(
        ("X-Fence-Key" = Option<String>, Header, description = "namespace/key whose token must still be X-Fence-Token"),
        ("X-Fence-Token" = Option<u64>, Header, description = "The token that key must still have"),
    ),
    responses(
        (status = 200, description = "Acknowledged", body = AckReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 404, description = "There is no such message", body = ErrorBody),
        (status = 409, description = "It is not delivered under this lease any more, or a fence condition failed", body = ErrorBody),
    )
)]
pub(super) async fn ack(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<AckRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let fences = request::fences(&call)?;
    let correlation_id = call.correlation.text().to_owned();
    if ask.messages.is_empty() {
        app.ack(about!(ask).held(&call)?, fences).await?;
        return Ok(reply::ok(&AckReply { acked: true, correlation_id, results: Vec::new() }));
    }
    let held = several(&call, &ask)?;
    let outcomes = app.ack_all(held, fences).await?;
    let result = |(one, outcome): (&AckOne, Result<(), Refused>)| AckResult {
        message_id: one.message_id.clone(),
        acked: outcome.is_ok(),
        error: outcome.err().map(|refused| ApiError::from(refused).body.error),
    };
    let results: Vec<AckResult> = ask.messages.iter().zip(outcomes).map(result).collect();
    let acked = results.iter().all(|result| result.acked);
    Ok(reply::ok(&AckReply { acked, correlation_id, results }))
}

/// Messages that are acknowledged at once.
fn several(call: &Call, ask: &AckRequest) -> Result<Vec<Held>, ApiError> {
    let mut ids = HashSet::new();
    let distinct = ask.messages.iter().all(|one| ids.insert(one.message_id.trim()));
    if ask.messages.len() > ACKS_MAX || !distinct || !ask.message_id.is_empty() {
        let detail = "messages names 1 to 1000 messages, each once, instead of message_id";
        return Err(bad(ErrorCode::InvalidBody, detail));
    }
    let held = |one: &AckOne| {
        let about = About {
            namespace: ask.namespace.as_deref(),
            queue: &ask.queue,
            message_id: &one.message_id,
            lease_id: &one.lease_id,
            txn_id: one.txn_id.as_deref(),
            fencing_token: one.fencing_token,
            meta_etag: None,
            state_lease_id: None,
            state_fencing_token: None,
        };
        about.held(call)
    };
    ask.messages.iter().map(held).collect()
}

/// Give a message back. In a transaction, the transaction is rolled back.
#[utoipa::path(
    post, path = "/v1/queue/nack", tag = "queue", request_body = NackRequest,
    responses(
        (status = 200, description = "Given back", body = NackReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 404, description = "There is no such message", body = ErrorBody),
        (status = 409, description = "It is not delivered under this lease any more", body = ErrorBody),
    )
)]
pub(super) async fn nack(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<NackRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let held = about!(ask).held(&call)?;
    let failed = failed(ask.intent.as_deref())?;
    let code = ErrorCode::InvalidNackLastError;
    let error = json_text(ask.last_error, LAST_ERROR_BYTES_MAX, "last_error", code)?;
    if !failed && error.is_some() {
        return Err(bad(code, "what is only deferred has no last_error"));
    }
    let back = Back { failed, delay: delay(ask.delay_seconds, ask.delay_ms)?, error };
    let given = app.nack(held, back).await?;
    Ok(reply::ok(&NackReply {
        requeued: !given.dead,
        dead: given.dead,
        meta_etag: given.etag.into(),
        correlation_id: call.correlation.text().to_owned(),
    }))
}

fn failed(intent: Option<&str>) -> Result<bool, ApiError> {
    match intent.map(str::trim) {
        None | Some("") => Ok(true),
        Some(intent) if intent.eq_ignore_ascii_case("failure") => Ok(true),
        Some(intent) if intent.eq_ignore_ascii_case("defer") => Ok(false),
        Some(_) => Err(bad(ErrorCode::InvalidNackIntent, "intent is failure or defer")),
    }
}

/// More time for the work, counted from now.
#[utoipa::path(
    post, path = "/v1/queue/extend", tag = "queue", request_body = ExtendRequest,
    responses(
        (status = 200, description = "Extended; use the new meta_etag", body = ExtendReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 404, description = "There is no such message", body = ErrorBody),
        (status = 409, description = "It is not delivered under this lease any more", body = ErrorBody),
    )
)]
pub(super) async fn extend(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<ExtendRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let held = about!(ask).held(&call)?;
    let by = visibility(ask.extend_by_seconds, ask.extend_by_ms)?;
    let extended = app.extend(held, by).await?;
    let now = app.clock().now();
    let expires = now.wall.plus(extended.lease.expires.remaining(now));
    let state = extended.state.map(|state| now.wall.plus(state.expires.remaining(now)));
    Ok(reply::ok(&ExtendReply {
        lease_expires_at_unix: expires.as_secs_up(),
        lease_expires_at_unix_ms: expires.0,
        visibility_timeout_seconds: extended.lease.ttl.as_secs_up(),
        visibility_timeout_ms: extended.lease.ttl.0,
        meta_etag: extended.etag.into(),
        state_lease_expires_at_unix: state.map(lockd_core::UnixMillis::as_secs_up),
        correlation_id: call.correlation.text().to_owned(),
    }))
}

/// The payload of an answer is of this type.
fn set_type(response: &mut Response, content_type: &str) {
    reply::text_header(response, header::CONTENT_TYPE, content_type);
}

/// How long a stream waits after its first message.
fn afterwards(block: Block) -> Block {
    match block {
        Block::No => Block::No,
        Block::Forever | Block::AtMost(_) => Block::Forever,
    }
}
