//! The queue in the words of the tests: messages in, messages out, and what is said about them.

use lockd_wire::{header, path};
use serde_json::{Value, json};

use crate::http::{Reply, Request};

const BOUNDARY: &str = "test-boundary";

/// A message on its way in.
#[derive(Clone, Debug)]
pub struct Enqueue {
    meta: Value,
    payload: Vec<u8>,
    headers: Vec<(String, String)>,
}

impl Enqueue {
    #[must_use]
    pub fn new(queue: &str, payload: impl Into<Vec<u8>>) -> Self {
        let meta = json!({ "queue": queue });
        Self { meta, payload: payload.into(), headers: Vec::new() }
    }

    /// Any other field of `meta`.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.meta[name] = value.into();
        self
    }

    #[must_use]
    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// Makes the request safe to repeat.
    #[must_use]
    pub fn repeatable(self, key: &str) -> Self {
        self.header(header::IDEMPOTENCY_KEY, key)
    }

    #[must_use]
    pub fn request(&self) -> Request {
        let mut request = raw(self.meta.to_string().as_bytes(), &self.payload);
        request.headers.extend(self.headers.clone());
        request
    }
}

/// The two parts of a message, whatever is in them.
#[must_use]
pub fn raw(meta: &[u8], payload: &[u8]) -> Request {
    let mut body = Vec::with_capacity(payload.len() + 512);
    body.extend_from_slice(
        format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"meta\"\r\n\
             Content-Type: application/json\r\n\r\n"
        )
        .as_bytes(),
    );
    body.extend_from_slice(meta);
    body.extend_from_slice(
        format!(
            "\n\r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"payload\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        )
        .as_bytes(),
    );
    body.extend_from_slice(payload);
    body.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    Request::post(path::QUEUE_ENQUEUE)
        .header("content-type", format!("multipart/related; boundary={BOUNDARY}"))
        .body(body)
}

/// A wish for messages. Does not wait unless told to.
#[must_use]
pub fn dequeue(queue: &str, more: &Value) -> Request {
    take(path::QUEUE_DEQUEUE, queue, more)
}

#[must_use]
pub fn take(path: &str, queue: &str, more: &Value) -> Request {
    let mut body = json!({"queue": queue, "owner": "consumer", "wait_seconds": -1});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    Request::post(path).json(&body)
}

/// A message with its consumer.
#[derive(Clone, Debug)]
pub struct Message {
    pub meta: Value,
    pub payload: Vec<u8>,
}

impl Message {
    #[must_use]
    pub fn text(&self, name: &str) -> String {
        self.meta[name].as_str().unwrap_or_default().to_owned()
    }

    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.meta[name].as_u64().unwrap_or_default()
    }

    #[must_use]
    pub fn id(&self) -> String {
        self.text("message_id")
    }

    fn about(&self, path: &str, more: &Value) -> Request {
        let mut body = json!({
            "namespace": self.meta["namespace"],
            "queue": self.meta["queue"],
            "message_id": self.meta["message_id"],
            "lease_id": self.meta["lease_id"],
            "txn_id": self.meta["txn_id"],
            "fencing_token": self.meta["fencing_token"],
            "meta_etag": self.meta["meta_etag"],
        });
        for name in ["state_lease_id", "state_fencing_token"] {
            if !self.meta[name].is_null() {
                body[name] = self.meta[name].clone();
            }
        }
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        Request::post(path).json(&body)
    }

    #[must_use]
    pub fn ack(&self) -> Request {
        self.about(path::QUEUE_ACK, &json!({}))
    }

    #[must_use]
    pub fn nack(&self, more: &Value) -> Request {
        self.about(path::QUEUE_NACK, more)
    }

    #[must_use]
    pub fn extend(&self, more: &Value) -> Request {
        self.about(path::QUEUE_EXTEND, more)
    }
}

/// The messages in an answer.
#[must_use]
#[track_caller]
pub fn messages(reply: &Reply) -> Vec<Message> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let kind = reply.header("content-type").expect("a content type");
    let boundary = kind.strip_prefix("multipart/related; boundary=").expect("several parts");
    let delimiter = format!("--{boundary}");
    let mut parts = split(&reply.body, delimiter.as_bytes()).into_iter();
    assert_eq!(parts.next(), Some(&b""[..]), "nothing before the first delimiter");
    let mut messages = Vec::new();
    loop {
        let part = parts.next().expect("a closing delimiter");
        if part == b"--\r\n" {
            assert!(parts.next().is_none(), "nothing after the last delimiter");
            return messages;
        }
        let meta: Value = serde_json::from_slice(&content(part)).expect("JSON");
        let payload = content(parts.next().expect("a payload"));
        messages.push(Message { meta: meta["message"].clone(), payload });
    }
}

/// What stands between the headers of a part and its end.
fn content(part: &[u8]) -> Vec<u8> {
    let start = part.windows(4).position(|four| four == b"\r\n\r\n").expect("headers") + 4;
    let end = part.len() - 2;
    assert_eq!(&part[end..], b"\r\n");
    part[start..end].to_vec()
}

fn split<'a>(bytes: &'a [u8], delimiter: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(delimiter.len()).position(|some| some == delimiter) {
        parts.push(&rest[..at]);
        rest = &rest[at + delimiter.len()..];
    }
    parts.push(rest);
    parts
}

/// How a queue stands.
#[must_use]
pub fn stats(queue: &str) -> Request {
    Request::post(path::QUEUE_STATS).json(&json!({ "queue": queue }))
}
