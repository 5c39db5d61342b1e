//! Update, mutate, metadata, remove.

use std::time::Duration;

use futures_util::StreamExt;
use http::{StatusCode, header};
use lockd_core::answer::Written;
use lockd_core::key::KeyName;
use lockd_core::lease::Proof;
use lockd_core::record::Change;
use lockd_core::state::Then;
use lockd_wire::state::{Metadata, MetadataReply, MutateRequest, RemoveReply, UpdateReply};
use lockd_wire::{ErrorBody, ErrorCode, header as names};

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;
use super::reply;
use super::request::{self, COMMAND_BYTES_MAX, Params, bad};
use crate::app::document::Pieces;
use crate::app::state::WriteAsk;

/// A body of at most this many bytes is read before its lease is looked at.
const SHORT_BYTES: u64 = 64 * 1024;
/// After a refusal this much of a body is still read, so that the sender hears the answer.
const DRAIN_BYTES_MAX: u64 = 256 * 1024 * 1024;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);

/// Stage a new JSON document, or commit it at once with `then`.
#[utoipa::path(
    post, path = "/v1/update", tag = "state",
    request_body(content = Object, description = "Any JSON document, streamed", content_type = "application/json"),
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query),
        ("then" = Option<String>, Query, description = "`commit`: visible at once, the lease stays. `release`: visible at once, the lease ends"),
        ("X-Lease-ID" = String, Header), ("X-Txn-ID" = String, Header), ("X-Fencing-Token" = u64, Header),
        ("X-If-Version" = Option<i64>, Header), ("X-If-State-ETag" = Option<String>, Header),
        ("X-Expected-SHA256" = Option<String>, Header), ("X-Expected-Bytes" = Option<u64>, Header),
        ("X-Lockd-Meta-Query-Hidden" = Option<bool>, Header),
        ("X-Fence-Key" = Option<String>, Header), ("X-Fence-Token" = Option<u64>, Header),
        ("X-Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 200, description = "Staged or committed", body = UpdateReply),
        (status = 400, description = "Not JSON, or the request is wrong", body = ErrorBody),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
        (status = 409, description = "Something is not as expected", body = ErrorBody),
        (status = 413, description = "The document is too large", body = ErrorBody),
    )
)]
pub(super) async fn update(call: Call, body: Body) -> Result<Response, ApiError> {
    let params = call.params();
    let mut pieces = request::pieces(&call.api.app, body);
    let outcome = async {
        let proof = request::proof(call.headers())?;
        let key = call.query_key(&params)?;
        let then = request::then(&params)?;
        take_in(&call, key, proof, then, &mut pieces).await
    };
    let outcome = outcome.await;
    heard_out(outcome, &mut pieces).await
}

/// Replace the JSON document at once, under a lease that is named by its id alone.
#[utoipa::path(
    post, path = "/v1/update_state", tag = "state",
    request_body(content = Object, description = "Any JSON document, streamed", content_type = "application/json"),
    params(
        ("X-Lease-ID" = String, Header), ("key" = Option<String>, Query), ("namespace" = Option<String>, Query),
        ("X-If-Version" = Option<i64>, Header), ("X-If-State-ETag" = Option<String>, Header),
    ),
    responses(
        (status = 200, description = "Committed", body = UpdateReply),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
        (status = 409, description = "Something is not as expected", body = ErrorBody),
    )
)]
pub(super) async fn update_state(call: Call, body: Body) -> Result<Response, ApiError> {
    let params = call.params();
    let mut pieces = request::pieces(&call.api.app, body);
    let outcome = async {
        let (key, proof) = by_lease(&call, &params)?;
        take_in(&call, key, proof, Then::Commit, &mut pieces).await
    };
    let outcome = outcome.await;
    heard_out(outcome, &mut pieces).await
}

/// The key and proof of a request that may name nothing but its lease.
pub(super) fn by_lease(call: &Call, params: &Params<'_>) -> Result<(KeyName, Proof), ApiError> {
    let headers = call.headers();
    let lease = match request::lease_header(headers)? {
        Some(lease) => lease,
        None => request::lease_id(params.get("lease_id"), "X-Lease-ID")?,
    };
    let fence = request::fence(headers)?;
    let txn = request::joined_txn(None, headers)?;
    let key = match params.given("key") {
        Some(_) => call.query_key(params)?,
        None => call.key_of_lease(&lease)?.ok_or_else(|| {
            let detail = "nobody holds a key under this lease";
            ApiError::new(StatusCode::FORBIDDEN, ErrorCode::LeaseRequired, detail)
        })?,
    };
    Ok((key, Proof { lease, fence, txn }))
}

async fn take_in(
    call: &Call,
    key: KeyName,
    proof: Proof,
    then: Then,
    pieces: &mut Pieces,
) -> Result<Response, ApiError> {
    let headers = call.headers();
    let expected = request::expected(headers)?;
    let ask = write_ask(call, key, proof, then, "update", &[])?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length: Option<u64> = length.and_then(|length| length.parse().ok());
    let early = length.is_none_or(|length| length > SHORT_BYTES);
    let written = call.api.app.update(ask, pieces, expected, early).await?;
    Ok(updated(&written))
}

fn write_ask(
    call: &Call,
    key: KeyName,
    proof: Proof,
    then: Then,
    operation: &str,
    request: &[&[u8]],
) -> Result<WriteAsk, ApiError> {
    let headers = call.headers();
    let header_bytes = |name| headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    let then_byte = [then as u8];
    let mut asked: Vec<&[u8]> = vec![
        proof.lease.as_str().as_bytes(),
        &then_byte,
        header_bytes(names::IF_VERSION),
        header_bytes(names::IF_STATE_ETAG),
    ];
    asked.extend(request::conditions(headers));
    asked.extend(request);
    let stamp = request::stamp(call, operation, &asked)?;
    Ok(WriteAsk {
        key,
        proof,
        guard: request::guard(headers)?,
        hidden: request::hidden(headers)?,
        fences: request::fences(call)?,
        then,
        stamp,
    })
}

fn updated(written: &Written) -> Response {
    let etag = written.etag.map(|etag| etag.to_string()).unwrap_or_default();
    let mut response = reply::ok(&UpdateReply {
        new_version: written.version.0,
        new_state_etag: etag.clone(),
        bytes: written.bytes,
        metadata: metadata_of(written),
    });
    reply::text_header(&mut response, header::ETAG, &etag);
    reply::number(&mut response, names::KEY_VERSION, written.version.0);
    response
}

fn metadata_of(written: &Written) -> Metadata {
    Metadata { query_hidden: written.hidden.then_some(true) }
}

/// After a refusal, reads what is left of the body within bounds: a sender that is still busy
/// sending would not hear the answer. One that has fallen silent hears it at once.
pub(super) async fn heard_out(
    outcome: Result<Response, ApiError>,
    pieces: &mut Pieces,
) -> Result<Response, ApiError> {
    if outcome.as_ref().is_err_and(|error| error.status != StatusCode::REQUEST_TIMEOUT) {
        let rest = async {
            let mut read = 0;
            while let Some(Ok(piece)) = pieces.next().await {
                read += piece.len() as u64;
                if read > DRAIN_BYTES_MAX {
                    break;
                }
            }
        };
        let _in_time = tokio::time::timeout(DRAIN_TIME_MAX, rest).await.is_ok();
    }
    outcome
}

/// Change parts of the document by short expressions; everything else keeps its bytes.
#[utoipa::path(
    post, path = "/v1/mutate", tag = "state", request_body = MutateRequest,
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query), ("then" = Option<String>, Query),
        ("X-Lease-ID" = String, Header), ("X-Txn-ID" = String, Header), ("X-Fencing-Token" = u64, Header),
        ("X-If-Version" = Option<i64>, Header), ("X-If-State-ETag" = Option<String>, Header),
        ("X-Fence-Key" = Option<String>, Header), ("X-Fence-Token" = Option<u64>, Header),
        ("X-Idempotency-Key" = Option<String>, Header),
    ),
    responses(
        (status = 200, description = "Staged or committed", body = UpdateReply),
        (status = 400, description = "An expression is wrong", body = ErrorBody),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
        (status = 413, description = "The document is too large to be mutated here", body = ErrorBody),
    )
)]
pub(super) async fn mutate(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let params = call.params();
    let max = usize::try_from(app.limits.mutate_max).unwrap_or(usize::MAX);
    let (ask, text) = request::json::<MutateRequest>(app, body, max).await?;
    let proof = request::proof(call.headers())?;
    let namespace = params.given("namespace").or(ask.namespace.as_deref());
    let key = call.key(namespace, params.get("key").unwrap_or_default())?;
    let mut mutations = Vec::new();
    for expression in ask.mutations.iter().filter(|text| !text.trim().is_empty()) {
        let parsed = lockd_json::mutate::parse(expression, lockd_json::mutate::Source::Server);
        mutations.extend(parsed.map_err(crate::app::Refused::from)?);
    }
    if mutations.is_empty() {
        return Err(bad(ErrorCode::InvalidBody, "mutations names at least one change"));
    }
    let then = request::then(&params)?;
    let write = write_ask(&call, key, proof, then, "mutate", &[&text])?;
    let mutated = app.mutate(write, &mutations).await?;
    let mut response = updated(&mutated.written);
    let count = mutations.len() as u64;
    for (name, value) in [
        (names::MUTATE_CANDIDATES_SEEN, count),
        (names::MUTATE_CANDIDATES_WRITTEN, count),
        (names::MUTATE_BYTES_READ, mutated.bytes_read),
        (names::MUTATE_BYTES_WRITTEN, mutated.written.bytes),
        (names::MUTATE_BYTES_CAPTURED, 0),
        (names::MUTATE_SPILL_COUNT, 0),
        (names::MUTATE_SPILL_BYTES, 0),
    ] {
        reply::number(&mut response, name, value);
    }
    Ok(response)
}

/// Change what is known about a document without changing the document.
#[utoipa::path(
    post, path = "/v1/metadata", tag = "state", request_body = Metadata,
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query), ("then" = Option<String>, Query),
        ("X-Lease-ID" = String, Header), ("X-Txn-ID" = String, Header), ("X-Fencing-Token" = u64, Header),
        ("X-If-Version" = Option<i64>, Header), ("X-Lockd-Meta-Query-Hidden" = Option<bool>, Header),
    ),
    responses(
        (status = 200, description = "Staged or committed", body = MetadataReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
    )
)]
pub(super) async fn metadata(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let params = call.params();
    let text = request::bytes(app, body, COMMAND_BYTES_MAX).await?;
    let asked: Metadata = if text.is_empty() {
        Metadata::default()
    } else {
        let wrong = |error| bad(ErrorCode::InvalidMetadata, format!("not metadata: {error}"));
        request::object(&text).map_err(wrong)?
    };
    let proof = request::proof(call.headers())?;
    let key = call.query_key(&params)?;
    let then = request::then(&params)?;
    let mut ask = write_ask(&call, key.clone(), proof, then, "metadata", &[&text])?;
    ask.hidden = ask.hidden.or(asked.query_hidden);
    if ask.hidden.is_none() {
        return Err(bad(ErrorCode::InvalidMetadata, "say what to change: query_hidden"));
    }
    let written = app.change(ask, Change::Keep).await?;
    let mut response = reply::ok(&MetadataReply {
        namespace: key.namespace().to_owned(),
        key: key.key().to_owned(),
        version: written.version.0,
        metadata: Metadata { query_hidden: Some(written.hidden) },
    });
    reply::number(&mut response, names::KEY_VERSION, written.version.0);
    Ok(response)
}

/// Remove the document. The key itself stays, with its token.
#[utoipa::path(
    post, path = "/v1/remove", tag = "state",
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query), ("then" = Option<String>, Query),
        ("X-Lease-ID" = String, Header), ("X-Txn-ID" = String, Header), ("X-Fencing-Token" = u64, Header),
        ("X-If-Version" = Option<i64>, Header), ("X-If-State-ETag" = Option<String>, Header),
        ("X-Fence-Key" = Option<String>, Header), ("X-Fence-Token" = Option<u64>, Header),
    ),
    responses(
        (status = 200, description = "Staged or committed", body = RemoveReply),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
        (status = 409, description = "Something is not as expected", body = ErrorBody),
    )
)]
pub(super) async fn remove(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let app = &call.api.app;
    let params = call.params();
    let proof = request::proof(call.headers())?;
    let key = call.query_key(&params)?;
    let ask = write_ask(&call, key, proof, request::then(&params)?, "remove", &[])?;
    let written = app.change(ask, Change::Remove).await?;
    let mut response = reply::ok(&RemoveReply {
        removed: written.removed,
        new_version: written.removed.then_some(written.version.0),
    });
    reply::number(&mut response, names::KEY_VERSION, written.version.0);
    Ok(response)
}
