//! Acquire, keepalive, release, and revoking.

use http::StatusCode;
use lockd_core::key::KeyName;
use lockd_core::lease::{Proof, Release};
use lockd_core::limits::{OWNER_BYTES_MAX, REASON_BYTES_MAX};
use lockd_core::queue::{self, Role};
use lockd_core::time::Span;
use lockd_wire::lease::{
    AcquireReply, AcquireRequest, KeepaliveReply, KeepaliveRequest, ReleaseReply, ReleaseRequest,
    RevokeReply, RevokeRequest,
};
use lockd_wire::{ErrorBody, ErrorCode, header as names};

use super::body::{Body, Response};
use super::call::{Call, Waiter, belongs_to_queue};
use super::delivery::Piece;
use super::error::ApiError;
use super::reply;
use super::request::{self, COMMAND_BYTES_MAX, Params, bad};
use crate::app::lease::{AcquireAsk, Block, Grant};
use crate::app::{App, Refused};

/// Hold a key: exclusively, for a time, with a token that only grows.
#[utoipa::path(
    post, path = "/v1/acquire", tag = "leases", request_body = AcquireRequest,
    params(
        ("X-Txn-ID" = Option<String>, Header, description = "Transaction, when the body names none"),
        ("X-Idempotency-Key" = Option<String>, Header, description = "Makes the request safe to repeat"),
    ),
    responses(
        (status = 200, description = "Granted", body = AcquireReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "Held by another (`waiting`), or exists (`already_exists`)", body = ErrorBody),
        (status = 503, description = "Draining, full, or the store is unavailable", body = ErrorBody),
    )
)]
pub(super) async fn acquire(call: Call, body: Body) -> Result<Response, ApiError> {
    let (ask, shown) = acquire_ask(&call, body).await?;
    let waiter = call.for_waiting();
    let grant = waiter.api.app.acquire(ask).await?;
    Ok(granted(&waiter, grant, shown))
}

/// The command, and the key as the caller wrote it.
async fn acquire_ask(call: &Call, body: Body) -> Result<(AcquireAsk, String), ApiError> {
    let (app, headers) = (&call.api.app, call.headers());
    let (ask, text) = request::json::<AcquireRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let params = call.params();
    let namespace = ask.namespace.as_deref().or_else(|| params.given("namespace"));
    let named = ask.key.as_deref().or_else(|| params.given("key"));
    let shown = match asked_key(app, named, ask.generate_key)? {
        Some(key) => without_namespace(key, app.namespace(namespace)).to_owned(),
        None => app.ids.uuid(app.clock().now().wall).to_string(),
    };
    let key = call.key(namespace, &shown)?;
    if queue::role(&key).is_some() {
        return Err(belongs_to_queue());
    }
    let ask = AcquireAsk {
        key,
        owner: owner(&ask.owner)?.into(),
        ttl: request::ttl(app, ask.ttl_seconds, ask.ttl_ms)?,
        block: block(app, ask.block_seconds),
        if_not_exists: ask.if_not_exists,
        txn: request::joined_txn(ask.txn_id.as_deref(), headers)?,
        stamp: request::stamp(call, "acquire", &[&text])?,
    };
    Ok((ask, shown))
}

/// The key that is named; `None` for one that the server generates. A key that every caller gets
/// for itself excludes no other caller, so it takes more than a missing name to get one.
fn asked_key<'a>(
    app: &App,
    named: Option<&'a str>,
    generate: bool,
) -> Result<Option<&'a str>, ApiError> {
    if generate {
        return match named {
            Some(_) => Err(bad(
                ErrorCode::InvalidParams,
                "name a key, or ask for a generated one with generate_key: not both",
            )),
            None => Ok(None),
        };
    }
    let named = named.map(str::trim).filter(|key| !key.is_empty());
    if named.is_none() && !app.limits.generate_keys {
        let detail = "the key is missing or empty: name one, or send generate_key: true";
        return Err(bad(ErrorCode::MissingKey, detail));
    }
    Ok(named)
}

/// A key may be written with its namespace in front.
fn without_namespace<'a>(key: &'a str, namespace: &str) -> &'a str {
    let rest = key.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('/'));
    rest.filter(|rest| !rest.is_empty()).unwrap_or(key)
}

pub(super) fn owner(owner: &str) -> Result<&str, ApiError> {
    let owner = owner.trim();
    if owner.is_empty() {
        return Err(bad(
            ErrorCode::MissingOwner,
            "owner says who you are, for instance a host name",
        ));
    }
    if owner.len() > OWNER_BYTES_MAX || owner.chars().any(char::is_control) {
        let detail = "owner has at most 512 bytes and no control characters";
        return Err(bad(ErrorCode::InvalidOwner, detail));
    }
    Ok(owner)
}

pub(super) fn block(app: &App, seconds: Option<i64>) -> Block {
    match seconds.unwrap_or(0) {
        -1 => Block::No,
        0 => Block::Forever,
        seconds if seconds > 0 => Block::AtMost(Span::secs(seconds.unsigned_abs())),
        _ => Block::AtMost(app.limits.acquire_block),
    }
}

fn granted(waiter: &Waiter, grant: Grant, shown: String) -> Response {
    let app = &waiter.api.app;
    let left = grant.lease.expires.remaining(app.clock().now());
    let expires = app.clock().now().wall.plus(left);
    let answer = AcquireReply {
        namespace: grant.key.namespace().to_owned(),
        lease_id: grant.lease.id.as_str().to_owned(),
        txn_id: grant.lease.txn.as_str().to_owned(),
        key: shown,
        owner: grant.lease.owner.into(),
        expires_at_unix: expires.as_secs_up(),
        expires_at_unix_ms: expires.0,
        ttl_ms: grant.lease.ttl.0,
        version: grant.version.0,
        state_etag: grant.etag.map(|etag| etag.to_string()),
        fencing_token: grant.token.0,
        correlation_id: waiter.correlation.text().to_owned(),
    };
    let text = reply::text(&answer);
    let body = Piece::granting(text, vec![grant.undelivered], waiter.outbox.clone());
    let mut response = reply::with_body(StatusCode::OK, Body::from(body));
    reply::number(&mut response, names::FENCING_TOKEN, answer.fencing_token);
    reply::number(&mut response, names::KEY_VERSION, answer.version);
    response
}

/// Give a lease a new time to live.
#[utoipa::path(
    post, path = "/v1/keepalive", tag = "leases", request_body = KeepaliveRequest,
    params(("X-Fencing-Token" = Option<u64>, Header, description = "Needed when a key is given")),
    responses(
        (status = 200, description = "Renewed", body = KeepaliveReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
    )
)]
pub(super) async fn keepalive(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<KeepaliveRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let params = call.params();
    let named = Named::of(&params, ask.namespace.as_deref(), ask.key.as_deref());
    let proof = request::body_proof(
        call.headers(),
        &ask.lease_id,
        ask.txn_id.as_deref(),
        named.key.is_some(),
    )?;
    let ttl = request::ttl(app, ask.ttl_seconds, ask.ttl_ms)?;
    let key = named.find(&call, &proof, ErrorCode::LeaseRequired)?;
    if queue::role(&key) == Some(Role::State) {
        let detail = "the state of a message lives as long as its delivery: extend that";
        let code = ErrorCode::QueueStateKeepaliveUnsupported;
        return Err(ApiError::new(StatusCode::FORBIDDEN, code, detail));
    }
    let (lease, token) = app.keepalive(key, proof, ttl).await?;
    let expires = app.clock().now().wall.plus(lease.expires.remaining(app.clock().now()));
    let mut response = reply::ok(&KeepaliveReply {
        expires_at_unix: expires.as_secs_up(),
        expires_at_unix_ms: expires.0,
        ttl_ms: lease.ttl.0,
    });
    reply::number(&mut response, names::FENCING_TOKEN, token.0);
    Ok(response)
}

/// Let go of a key: what was staged is committed, or forgotten with `rollback`.
#[utoipa::path(
    post, path = "/v1/release", tag = "leases", request_body = ReleaseRequest,
    params(
        ("X-Fencing-Token" = Option<u64>, Header, description = "Needed when a key is given"),
        ("X-Fence-Key" = Option<String>, Header, description = "namespace/key whose token must still be X-Fence-Token"),
        ("X-Fence-Token" = Option<u64>, Header, description = "The token that key must still have"),
        ("X-Idempotency-Key" = Option<String>, Header, description = "Makes the request safe to repeat"),
    ),
    responses(
        (status = 200, description = "Released; the same release again gets the same answer", body = ReleaseReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 403, description = "The lease is over and staged data was lost, or it is another's", body = ErrorBody),
        (status = 409, description = "A fence condition failed, or it was released the other way", body = ErrorBody),
    )
)]
pub(super) async fn release(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, text) = request::json::<ReleaseRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let params = call.params();
    let named = Named::of(&params, ask.namespace.as_deref(), ask.key.as_deref());
    let proof = request::body_proof(
        call.headers(),
        &ask.lease_id,
        ask.txn_id.as_deref(),
        named.key.is_some(),
    )?;
    let fences = request::fences(&call)?;
    let mut asked = request::conditions(call.headers());
    asked.push(&text);
    let stamp = request::stamp(&call, "release", &asked)?;
    let key = named.find(&call, &proof, ErrorCode::FencingMismatch)?;
    app.release(key, Release { proof, rollback: ask.rollback, fences, stamp }).await?;
    Ok(reply::ok(&ReleaseReply { released: true }))
}

/// The key of a request that may name it in the body, in the query, or by the lease alone.
struct Named<'a> {
    namespace: Option<&'a str>,
    key: Option<&'a str>,
}

impl<'a> Named<'a> {
    fn of(params: &'a Params<'_>, namespace: Option<&'a str>, key: Option<&'a str>) -> Self {
        Self {
            namespace: namespace.or_else(|| params.given("namespace")),
            key: key.or_else(|| params.given("key")),
        }
    }

    fn find(&self, call: &Call, proof: &Proof, unknown: ErrorCode) -> Result<KeyName, ApiError> {
        if let Some(key) = self.key {
            return call.key(self.namespace, key);
        }
        call.key_of_lease(&proof.lease)?.ok_or_else(|| {
            let detail = "this server does not know the lease; name the key it holds";
            ApiError::new(StatusCode::FORBIDDEN, unknown, detail)
        })
    }
}

/// Take a key from its holder. Its token grows, what it staged is forgotten, and its next call is
/// refused with `revoked`.
#[utoipa::path(
    post, path = "/v1/leases/revoke", tag = "operators", request_body = RevokeRequest,
    responses(
        (status = 200, description = "Nobody holds the key any more", body = RevokeReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(super) async fn revoke(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<RevokeRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let key = call.any_key(ask.namespace.as_deref(), &ask.key)?;
    let reason = ask.reason.trim();
    if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
        let detail = "reason says why, in at most 512 bytes: the holder and the log are told";
        return Err(Refused::Request(ErrorCode::InvalidBody, detail.into()).into());
    }
    let revoked = app.revoke(key, reason.to_owned()).await?;
    Ok(reply::ok(&RevokeReply {
        revoked: revoked.owner.is_some(),
        owner: revoked.owner.map(Into::into),
        fencing_token: revoked.token.0,
    }))
}
