//! Health, metrics, the API's own description, backups, and what is not there yet.

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use lockd_core::key;
use lockd_wire::{ErrorBody, ErrorCode};

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;
use super::reply;
use super::request::{self, COMMAND_BYTES_MAX};
use super::router::description;

/// Pieces of a backup on their way to the client.
const BACKUP_PIECES: usize = 4;
const BACKUP_PIECE_BYTES: usize = 256 * 1024;

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, description = "It does")))]
pub(super) async fn healthz(_call: Call, _body: Body) -> Result<Response, ApiError> {
    Ok(plain("ok\n".to_owned()))
}

/// Whether requests would be served: not while the store fails or the server drains.
#[utoipa::path(
    get, path = "/readyz", tag = "system",
    responses((status = 200, description = "Ready"), (status = 503, description = "Not ready, and why", body = ErrorBody))
)]
pub(super) async fn readyz(call: Call, _body: Body) -> Result<Response, ApiError> {
    if call.api.app.is_draining() {
        let detail = "the server is shutting down";
        let code = ErrorCode::ShutdownDraining;
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, detail));
    }
    if let Err(error) = call.api.app.records.store().health() {
        let code = ErrorCode::StoreUnavailable;
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, error.to_string()));
    }
    Ok(plain("ready\n".to_owned()))
}

/// Measurements for Prometheus; served on the metrics listener.
pub(super) async fn metrics(call: Call, _body: Body) -> Result<Response, ApiError> {
    let mut response = plain(call.api.metrics_page());
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

fn plain(text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "system", responses((status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi(_call: Call, _body: Body) -> Result<Response, ApiError> {
    Ok(reply::with_body(StatusCode::OK, Body::from(description())))
}

/// Not available: queries come with the index.
#[utoipa::path(method(get, post), path = "/v1/query", tag = "system", responses((status = 501, description = "`query_disabled`", body = ErrorBody)))]
pub(super) async fn query(call: Call, body: Body) -> Result<Response, ApiError> {
    permit_named(&call, body).await?;
    Err(missing(ErrorCode::QueryDisabled, "this server has no queries"))
}

/// Not available: there is no index to flush.
#[utoipa::path(post, path = "/v1/index/flush", tag = "system", responses((status = 501, description = "`index_unavailable`", body = ErrorBody)))]
pub(super) async fn index_flush(call: Call, body: Body) -> Result<Response, ApiError> {
    permit_named(&call, body).await?;
    Err(missing(ErrorCode::IndexUnavailable, "this server has no index"))
}

/// Not available: namespaces have no configuration.
#[utoipa::path(method(get, post), path = "/v1/namespace", tag = "system", responses((status = 501, description = "`namespace_config_unavailable`", body = ErrorBody)))]
pub(super) async fn namespace(call: Call, body: Body) -> Result<Response, ApiError> {
    permit_named(&call, body).await?;
    Err(missing(ErrorCode::NamespaceConfigUnavailable, "namespaces have no configuration here"))
}

/// Checks the right to the namespace that a request names in its query or body. The body of an
/// operation that is not available may be of any form.
async fn permit_named(call: &Call, body: Body) -> Result<(), ApiError> {
    #[derive(Default, serde::Deserialize)]
    struct Named {
        namespace: Option<String>,
    }
    let app = &call.api.app;
    let text = request::bytes(app, body, COMMAND_BYTES_MAX).await?;
    let named: Named = request::object(&text).unwrap_or_default();
    let params = call.params();
    let namespace = params.get("namespace").or(named.namespace.as_deref());
    call.permit(&key::parse_namespace(app.namespace(namespace))?)
}

fn missing(code: ErrorCode, detail: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, code, detail)
}

/// A consistent copy of the whole store, while it is in use. It holds secrets: lease ids.
#[utoipa::path(
    post, path = "/v1/store/backup", tag = "operators",
    responses(
        (status = 200, description = "The backup, for `lockd store restore`", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 501, description = "`store_unsupported`: this store has no backups", body = ErrorBody),
    )
)]
pub(super) async fn backup(call: Call, body: Body) -> Result<Response, ApiError> {
    body.drain().await;
    let Some(store) = call.api.embedded.clone() else {
        let detail = "only the embedded store can be backed up";
        return Err(missing(ErrorCode::StoreUnsupported, detail));
    };
    let (sender, receiver) = tokio::sync::mpsc::channel(BACKUP_PIECES);
    let task = tokio::task::spawn_blocking(move || {
        let mut sink = std::io::BufWriter::with_capacity(BACKUP_PIECE_BYTES, Pipe(sender.clone()));
        let outcome = store.backup(&mut sink).map(drop).map_err(|error| error.to_string());
        let flushed = std::io::Write::flush(&mut sink).map_err(|error| error.to_string());
        if let Err(error) = outcome.and(flushed) {
            tracing::warn!(%error, "a backup was not finished");
            // The reader may be gone; then nobody needs to know.
            let _told = sender.blocking_send(Err(error)).is_ok();
        }
    });
    drop(task);
    let pieces = stream::unfold(receiver, |mut receiver| async move {
        let piece: Result<Bytes, String> = receiver.recv().await?;
        Some((piece, receiver))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Blocking writes into a response body; fails when the reader is gone.
struct Pipe(tokio::sync::mpsc::Sender<Result<Bytes, String>>);

impl std::io::Write for Pipe {
    fn write(&mut self, piece: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(piece)));
        sent.map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
