//! A request, taken apart.

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use crate::op::Op;
use crate::serve::Hangup;

#[derive(Debug)]
pub(super) struct Ask {
    pub method: Method,
    pub op: Option<Op>,
    pub bucket: String,
    /// Empty when it is about the bucket.
    pub key: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    query: Vec<(String, String)>,
}

impl Ask {
    /// Reads it to its end; a client that leaves in the middle has asked nothing.
    pub(super) async fn read(request: Request<Incoming>) -> Result<Self, Hangup> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_gone| Hangup)?.to_bytes();
        let path = head.uri.path().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let pairs = head.uri.query().unwrap_or_default().split('&');
        let query = pairs
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(name, value)| (decode(name), decode(&value.replace('+', " "))))
            .collect();
        Ok(Self {
            op: Op::of(&head.method, &head.uri),
            bucket: decode(bucket),
            key: decode(key),
            method: head.method,
            headers: head.headers,
            body,
            query,
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.query(name).is_some()
    }

    pub(super) fn query(&self, wanted: &str) -> Option<&str> {
        let found = self.query.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(super) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
