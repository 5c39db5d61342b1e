//! Attachments: upload, list, download, delete.

use http::{HeaderName, HeaderValue, header};
use lockd_core::attachment::Which;
use lockd_core::lease::Proof;
use lockd_core::limits::ATTACHMENT_NAME_BYTES_MAX;
use lockd_core::record::Attachment;
use lockd_wire::attachment::{
    AttachReply, AttachmentInfo, AttachmentsReply, DetachAllReply, DetachReply,
};
use lockd_wire::{ErrorBody, ErrorCode, header as names};

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;
use super::reply;
use super::request::{self, Params, bad};
use super::state::heard_out;
use crate::app::attachment::{AttachAsk, Viewer};

const BYTES: &str = "application/octet-stream";

/// Attach bytes of any kind to a key, under a name; staged like an update.
#[utoipa::path(
    post, path = "/v1/attachments", tag = "attachments",
    request_body(content = Vec<u8>, description = "Any bytes, streamed", content_type = "application/octet-stream"),
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query), ("name" = String, Query),
        ("content_type" = Option<String>, Query, description = "Otherwise the header Content-Type"),
        ("max_bytes" = Option<u64>, Query, description = "Refuse more; 0 for no bound of the caller's own"),
        ("prevent_overwrite" = Option<bool>, Query, description = "Leave one of that name alone"),
        ("X-Lease-ID" = String, Header), ("X-Txn-ID" = String, Header), ("X-Fencing-Token" = u64, Header),
        ("X-Expected-SHA256" = Option<String>, Header), ("X-Expected-Bytes" = Option<u64>, Header),
    ),
    responses(
        (status = 200, description = "Staged", body = AttachReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
        (status = 413, description = "The attachment is too large", body = ErrorBody),
    )
)]
pub(super) async fn attach(call: Call, body: Body) -> Result<Response, ApiError> {
    let mut pieces = request::pieces(&call.api.app, body);
    let outcome = async {
        let ask = attach_ask(&call)?;
        let token = ask.proof.fence;
        let attached = call.api.app.attach(ask, &mut pieces).await?;
        let version = attached.version.0;
        let mut response = reply::ok(&AttachReply {
            attachment: info(&attached.attachment),
            noop: attached.kept,
            version,
        });
        let id = HeaderName::from_static(names::ATTACHMENT_ID);
        reply::text_header(&mut response, id, &attached.attachment.id);
        reply::number(&mut response, names::KEY_VERSION, version);
        reply::number(&mut response, names::FENCING_TOKEN, token.unwrap_or_default().0);
        Ok(response)
    };
    let outcome = outcome.await;
    heard_out(outcome, &mut pieces).await
}

fn attach_ask(call: &Call) -> Result<AttachAsk, ApiError> {
    let (params, headers) = (call.params(), call.headers());
    let proof = request::proof(headers)?;
    let key = call.query_key(&params)?;
    let name = params.get("name").ok_or_else(|| {
        bad(ErrorCode::MissingAttachment, "say what the attachment is called: ?name=")
    })?;
    if name.len() > ATTACHMENT_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let detail = "the name of an attachment has at most 255 bytes and no control characters";
        return Err(bad(ErrorCode::InvalidParams, detail));
    }
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = params.get("content_type").or(sent).unwrap_or(BYTES).trim();
    if content_type.len() > ATTACHMENT_NAME_BYTES_MAX
        || HeaderValue::from_str(content_type).is_err()
    {
        return Err(bad(ErrorCode::InvalidParams, "content_type cannot be sent in a header"));
    }
    let own_max = match params.get("max_bytes").map(str::parse::<u64>) {
        None | Some(Ok(0)) => None,
        Some(Ok(max)) => Some(max),
        Some(Err(_)) => {
            let detail = "max_bytes is a whole number of bytes";
            return Err(bad(ErrorCode::InvalidMaxBytes, detail));
        }
    };
    let server_max = call.api.app.limits.attachment_max;
    Ok(AttachAsk {
        key,
        proof,
        name: name.into(),
        content_type: content_type.into(),
        bytes_max: own_max.into_iter().chain(server_max).min(),
        keep_existing: params.flag("prevent_overwrite"),
        expected: request::expected(headers)?,
    })
}

/// The attachments of a key: the committed ones with `public`, else what the holder sees.
#[utoipa::path(
    get, path = "/v1/attachments", tag = "attachments",
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query), ("public" = Option<bool>, Query),
        ("X-Lease-ID" = Option<String>, Header), ("X-Txn-ID" = Option<String>, Header), ("X-Fencing-Token" = Option<u64>, Header),
    ),
    responses(
        (status = 200, description = "In the order of their names", body = AttachmentsReply),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
    )
)]
pub(super) async fn list(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let params = call.params();
    let viewer = viewer(&call, &params)?;
    let key = call.query_key(&params)?;
    let attachments = call.api.app.attachments(&key, &viewer).await?;
    Ok(reply::ok(&AttachmentsReply {
        namespace: key.namespace().to_owned(),
        key: key.key().to_owned(),
        attachments: attachments.iter().map(info).collect(),
    }))
}

/// Download an attachment, by name or id.
#[utoipa::path(
    get, path = "/v1/attachment", tag = "attachments",
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query), ("public" = Option<bool>, Query),
        ("name" = Option<String>, Query), ("id" = Option<String>, Query),
        ("X-Lease-ID" = Option<String>, Header), ("X-Txn-ID" = Option<String>, Header), ("X-Fencing-Token" = Option<u64>, Header),
    ),
    responses(
        (status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
        (status = 404, description = "`attachment_not_found`", body = ErrorBody),
    )
)]
pub(super) async fn get(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let params = call.params();
    let viewer = viewer(&call, &params)?;
    let key = call.query_key(&params)?;
    let which = which(&params)?;
    let (found, document) = call.api.app.attachment(&key, &viewer, &which).await?;
    let mut response = reply::document(Some(document));
    let headers = response.headers_mut();
    headers.remove(names::KEY_VERSION);
    let shown = HeaderValue::from_str(&found.content_type);
    headers.insert(header::CONTENT_TYPE, shown.unwrap_or(HeaderValue::from_static(BYTES)));
    let text = |response: &mut Response, name: &'static str, value: &str| {
        reply::text_header(response, HeaderName::from_static(name), value);
    };
    text(&mut response, names::ATTACHMENT_ID, &found.id);
    text(&mut response, names::ATTACHMENT_NAME, &found.name);
    text(&mut response, names::ATTACHMENT_SHA256, &found.body.etag.to_string());
    reply::number(&mut response, names::ATTACHMENT_SIZE, found.body.bytes);
    reply::number(&mut response, names::ATTACHMENT_CREATED_AT, found.created_at.0 / 1_000);
    reply::number(&mut response, names::ATTACHMENT_UPDATED_AT, found.updated_at.0 / 1_000);
    Ok(response)
}

/// Delete an attachment, by name or id; staged like an update.
#[utoipa::path(
    delete, path = "/v1/attachment", tag = "attachments",
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query),
        ("name" = Option<String>, Query), ("id" = Option<String>, Query),
        ("X-Lease-ID" = String, Header), ("X-Txn-ID" = String, Header), ("X-Fencing-Token" = u64, Header),
    ),
    responses(
        (status = 200, description = "Whether there was one", body = DetachReply),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
    )
)]
pub(super) async fn delete(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let params = call.params();
    let (proof, key) = (request::proof(call.headers())?, call.query_key(&params)?);
    let which = which(&params)?;
    let token = proof.fence;
    let detached = call.api.app.detach(key, proof, which).await?;
    let version = detached.version.0;
    let mut response = reply::ok(&DetachReply { deleted: detached.count > 0, version });
    reply::number(&mut response, names::KEY_VERSION, version);
    reply::number(&mut response, names::FENCING_TOKEN, token.unwrap_or_default().0);
    Ok(response)
}

/// Delete all attachments of a key; staged like an update.
#[utoipa::path(
    delete, path = "/v1/attachments", tag = "attachments",
    params(
        ("key" = String, Query), ("namespace" = Option<String>, Query),
        ("X-Lease-ID" = String, Header), ("X-Txn-ID" = String, Header), ("X-Fencing-Token" = u64, Header),
    ),
    responses(
        (status = 200, description = "How many there were", body = DetachAllReply),
        (status = 403, description = "The lease is over, revoked or another's", body = ErrorBody),
    )
)]
pub(super) async fn delete_all(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let params = call.params();
    let (proof, key) = (request::proof(call.headers())?, call.query_key(&params)?);
    let token = proof.fence;
    let detached = call.api.app.detach(key, proof, Which::All).await?;
    let version = detached.version.0;
    let mut response = reply::ok(&DetachAllReply { deleted: detached.count as u64, version });
    reply::number(&mut response, names::KEY_VERSION, version);
    reply::number(&mut response, names::FENCING_TOKEN, token.unwrap_or_default().0);
    Ok(response)
}

fn viewer(call: &Call, params: &Params<'_>) -> Result<Viewer, ApiError> {
    if request::lease_header(call.headers())?.is_none() && params.flag("public") {
        return Ok(Viewer::Public);
    }
    let proof: Proof = request::proof(call.headers())?;
    Ok(Viewer::Holder(proof))
}

fn which(params: &Params<'_>) -> Result<Which, ApiError> {
    match (params.given("id"), params.given("name")) {
        (Some(id), _) if !id.is_empty() => Ok(Which::Id(id.into())),
        (None, Some(name)) if !name.is_empty() => Ok(Which::Name(name.into())),
        (_, _) => {
            let detail = "say which attachment: ?name= or ?id=";
            Err(bad(ErrorCode::MissingAttachment, detail))
        }
    }
}

fn info(attachment: &Attachment) -> AttachmentInfo {
    AttachmentInfo {
        id: attachment.id.clone().into(),
        name: attachment.name.clone().into(),
        size: attachment.body.bytes,
        plaintext_sha256: attachment.body.etag.to_string(),
        content_type: attachment.content_type.clone().into(),
        created_at_unix: attachment.created_at.0 / 1_000,
        updated_at_unix: attachment.updated_at.0 / 1_000,
    }
}
