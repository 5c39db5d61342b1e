//! Responses: JSON with a newline at its end, and documents that stream.

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderName, HeaderValue, StatusCode, header};
use lockd_store::StoreError;
use lockd_wire::header as names;
use serde::Serialize;

use super::body::{Body, Response};
use crate::app::read::{Document, Source};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The JSON text of a reply.
pub(super) fn text(body: &impl Serialize) -> Bytes {
    let mut text = Vec::with_capacity(256);
    // Our replies have string keys and no failing serializers.
    if serde_json::to_writer(&mut text, body).is_err() {
        text.clear();
    }
    text.push(b'\n');
    Bytes::from(text)
}

pub(super) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    with_body(status, Body::from(text(body)))
}

pub(super) fn ok(body: &impl Serialize) -> Response {
    json(StatusCode::OK, body)
}

pub(super) fn with_body(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

pub(super) fn number(response: &mut Response, name: &'static str, value: u64) {
    response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from(value));
}

pub(super) fn text_header(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// A document with its version and etag, or 204 when there is none.
pub(super) fn document(document: Option<Document>) -> Response {
    let Some(document) = document else {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    };
    let etag = document.etag.to_string();
    let (version, bytes) = (document.version.0, document.bytes);
    let mut response = with_body(StatusCode::OK, document.into_body());
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    text_header(&mut response, header::ETAG, &etag);
    number(&mut response, names::KEY_VERSION, version);
    response
}

impl Document {
    fn into_body(self) -> Body {
        match self.content {
            Source::Inline(bytes) => Body::from(bytes),
            Source::Blob(reader) => Body::from_stream(pieces(reader)),
        }
    }
}

/// The pieces of a blob. A damaged one ends the connection: the reader sees that it is not whole.
pub(super) fn pieces(
    reader: Box<dyn lockd_store::BlobReader>,
) -> impl futures_util::Stream<Item = Result<Bytes, StoreError>> + Send {
    stream::try_unfold(reader, |mut reader| async move {
        match reader.next().await {
            Ok(piece) => Ok(piece.map(|piece| (piece, reader))),
            Err(error) => {
                tracing::error!(%error, "a document could not be read to its end");
                Err(error)
            }
        }
    })
}
