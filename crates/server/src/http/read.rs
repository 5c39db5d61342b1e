//! Get, describe, and the read of several keys.

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::StatusCode;
use lockd_core::key::KeyName;
use lockd_core::lease::Proof;
use lockd_store::StoreError;
use lockd_wire::state::{DescribeReply, Metadata, ReadReply, ReadRequest};
use lockd_wire::{ErrorBody, ErrorCode, header as names};

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;
use super::reply;
use super::request::{self, COMMAND_BYTES_MAX, bad};
use super::state::by_lease;
use crate::app::App;
use crate::app::read::{Entry, Source};

/// How many keys one read may name.
const READ_KEYS_MAX: usize = 1_000;

/// Read a document: the committed one with `public`, else what the holder sees.
#[utoipa::path(
    post, path = "/v1/get", tag = "state",
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query), ("public" = Option<bool>, Query),
        ("X-Lease-ID" = Option<String>, Header), ("X-Fencing-Token" = Option<u64>, Header),
    ),
    responses(
        (status = 200, description = "The document", body = Object),
        (status = 204, description = "There is none"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
    )
)]
pub(super) async fn get(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let app = &call.api.app;
    let params = call.params();
    if params.get("key").is_none() {
        return Err(bad(ErrorCode::MissingParams, "say which key: ?key="));
    }
    let lease = request::lease_header(call.headers())?;
    if lease.is_none() && params.flag("public") {
        let key = call.query_key(&params)?;
        return Ok(reply::document(app.get_public(&key).await?));
    }
    let Some(fence) = request::fence(call.headers())? else {
        let detail = "send X-Lease-ID and X-Fencing-Token, or ask for public=1";
        return Err(bad(ErrorCode::MissingFencingToken, detail));
    };
    let Some(lease) = lease else {
        let detail = "send X-Lease-ID, or ask for public=1";
        return Err(bad(ErrorCode::MissingParams, detail));
    };
    let txn = request::joined_txn(None, call.headers())?;
    let proof = Proof { lease, fence: Some(fence), txn };
    held(app, &call.query_key(&params)?, &proof).await
}

/// Read what the holder sees, under a lease that is named by its id alone.
#[utoipa::path(
    post, path = "/v1/get_state", tag = "state",
    params(("X-Lease-ID" = String, Header), ("key" = Option<String>, Query), ("namespace" = Option<String>, Query)),
    responses(
        (status = 200, description = "The document", body = Object),
        (status = 204, description = "There is none"),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
    )
)]
pub(super) async fn get_state(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let params = call.params();
    let (key, proof) = by_lease(&call, &params)?;
    held(&call.api.app, &key, &proof).await
}

async fn held(app: &App, key: &KeyName, proof: &Proof) -> Result<Response, ApiError> {
    let (document, token) = app.get_held(key, proof).await?;
    let mut response = reply::document(document);
    reply::number(&mut response, names::FENCING_TOKEN, token);
    Ok(response)
}

/// What is known about a key, without its document and without the secret of its lease.
#[utoipa::path(
    get, path = "/v1/describe", tag = "state",
    params(("key" = String, Query), ("namespace" = Option<String>, Query)),
    responses(
        (status = 200, description = "Also for a key that nobody has asked for", body = DescribeReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(super) async fn describe(call: Call, _body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let key = call.query_key(&call.params())?;
    let record = app.describe(&key).await?;
    let now = app.clock().now();
    let lease = record.live_lease(now);
    let expires = lease.map(|lease| now.wall.plus(lease.expires.remaining(now)));
    let updated = Some(record.updated_at).filter(|at| at.0 > 0);
    Ok(reply::ok(&DescribeReply {
        namespace: key.namespace().to_owned(),
        key: key.key().to_owned(),
        owner: lease.map(|lease| lease.owner.to_string()),
        expires_at_unix: expires.map(lockd_core::UnixMillis::as_secs_up),
        expires_at_unix_ms: expires.map(|at| at.0),
        fencing_token: Some(if record.stored { record.fence.0 } else { 0 }),
        version: record.version.0,
        state_etag: record.state.as_ref().map(|state| state.etag.to_string()),
        bytes: record.state.as_ref().map(|state| state.bytes),
        updated_at_unix: updated.map(|at| at.0 / 1_000),
        updated_at_unix_ms: updated.map(|at| at.0),
        metadata: Metadata { query_hidden: record.hidden.then_some(true) },
    }))
}

/// Read several keys as of one moment.
#[utoipa::path(
    post, path = "/v1/read", tag = "state", request_body = ReadRequest,
    responses(
        (status = 200, description = "All as of one moment, in the order asked for", body = ReadReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 409, description = "They changed faster than they could be read", body = ErrorBody),
    )
)]
pub(super) async fn read(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<ReadRequest>(app, body, COMMAND_BYTES_MAX).await?;
    if ask.keys.is_empty() || ask.keys.len() > READ_KEYS_MAX {
        return Err(bad(ErrorCode::InvalidBody, "keys names 1 to 1000 keys"));
    }
    let parse = |key: &String| {
        if ask.full_names { call.full_key(key) } else { call.key(ask.namespace.as_deref(), key) }
    };
    let keys = ask.keys.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let entries = app.read_many(keys).await?;
    Ok(reply::with_body(StatusCode::OK, Body::from_stream(read_text(entries))))
}

/// `{"entries":[...]}`, written as it is read: large documents pass through.
fn read_text(entries: Vec<Entry>) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    let opening = stream::iter([Ok(Bytes::from_static(b"{\"entries\":["))]);
    let closing = stream::iter([Ok(Bytes::from_static(b"]}\n"))]);
    let middle = stream::iter(entries.into_iter().enumerate()).flat_map(|(index, entry)| {
        let (head, document) = entry_head(index, entry);
        let tail = if document.is_some() { "}" } else { "" };
        let document = match document {
            Some(Source::Inline(bytes)) => stream::iter([Ok(bytes)]).left_stream(),
            Some(Source::Blob(reader)) => reply::pieces(reader).boxed().right_stream(),
            None => stream::iter([Ok(Bytes::new())]).left_stream(),
        };
        let head = stream::iter([Ok(Bytes::from(head))]);
        head.chain(document).chain(stream::iter([Ok(Bytes::from_static(tail.as_bytes()))]))
    });
    opening.chain(middle).chain(closing).filter(|piece| {
        // An empty chunk would end a chunked body early.
        std::future::ready(!piece.as_ref().is_ok_and(Bytes::is_empty))
    })
}

/// An entry up to its document. Names need no escaping: their alphabet has nothing to escape.
fn entry_head(index: usize, entry: Entry) -> (String, Option<Source>) {
    let comma = if index > 0 { "," } else { "" };
    let (namespace, key) = (entry.key.namespace(), entry.key.key());
    let start = format!(
        "{comma}{{\"namespace\":\"{namespace}\",\"key\":\"{key}\",\"version\":{}",
        entry.version.0
    );
    match entry.document {
        Some(document) => {
            let head = format!("{start},\"state_etag\":\"{}\",\"state\":", document.etag);
            (head, Some(document.content))
        }
        None => (format!("{start}}}"), None),
    }
}
