//! Putting a message into a queue. The request is named once and keeps its name through every
//! repetition, so a message whose answer was lost is not enqueued twice.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use lockd_wire::path;
use lockd_wire::queue::{EnqueueReply, EnqueueRequest};
use serde::Serialize;

use super::Queue;
use crate::acquire::whole_seconds;
use crate::body::Source;
use crate::call::new_request_id;
use crate::capped::Limit;
use crate::error::{EnqueueKind, Error, Failed, Failure};
use crate::lease::Lease;
use crate::multipart::Envelope;
use crate::write::{Fence, fences};

const BYTES: &str = "application/octet-stream";
const JSON: &str = "application/json";

/// Puts a message into a queue; await it.
///
/// Bytes, files and what can be opened again are sent again when a connection breaks, and to
/// another server; a reader that can be read only once is not.
#[derive(Debug)]
#[must_use = "nothing is enqueued before it is awaited"]
pub struct Enqueue {
    queue: Queue,
    payload: Result<Source, Failed>,
    request: EnqueueRequest,
    attributes: Result<(), Failed>,
    delay: Duration,
    visibility: Option<Duration>,
    ttl: Option<Duration>,
    fences: Vec<Fence>,
    name: Option<String>,
}

impl Enqueue {
    pub(super) fn new(queue: Queue, payload: Source) -> Self {
        Self::of(queue, Ok(payload))
    }

    pub(super) fn json<T: Serialize + ?Sized>(queue: Queue, value: &T) -> Self {
        let payload = serde_json::to_vec(value)
            .map(Source::bytes)
            .map_err(|error| Failure::source("the payload cannot be written as JSON", error));
        Self::of(queue, payload).content_type(JSON)
    }

    fn of(queue: Queue, payload: Result<Source, Failed>) -> Self {
        Self {
            queue,
            payload,
            request: EnqueueRequest::default(),
            attributes: Ok(()),
            delay: Duration::ZERO,
            visibility: None,
            ttl: None,
            fences: Vec::new(),
            name: None,
        }
    }

    /// Something small that the consumer gets before the payload.
    pub fn attributes<T: Serialize + ?Sized>(mut self, attributes: &T) -> Self {
        match serde_json::value::to_raw_value(attributes) {
            Ok(raw) => self.request.attributes = Some(raw),
            Err(error) => {
                let why = "the attributes cannot be written as JSON";
                self.attributes = Err(Failure::source(why, error));
            }
        }
        self
    }

    /// What kind of bytes the payload is; `application/octet-stream` when not set.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.request.payload_content_type = Some(content_type.into());
        self
    }

    /// Not delivered before so much time has passed, in whole seconds, rounded up.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// How long a consumer has it unless the consumer asks for another time, in whole seconds,
    /// rounded up; the server's default when not set.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = Some(visibility);
        self
    }

    /// Removed when it was not consumed for so long, in whole seconds, rounded up; kept for ever
    /// when not set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Dead after so many failures; the server's default when not set.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.request.max_attempts = Some(i64::from(attempts));
        self
    }

    /// Delivered only after that transaction is committed: `.in_txn(&txn)`, or its id.
    pub fn in_txn(mut self, txn: impl Into<String>) -> Self {
        self.request.txn_id = Some(txn.into());
        self
    }

    /// Only if the lease is still the latest of its key, tested in the same step.
    pub fn fenced_by(self, other: &Lease) -> Self {
        let full_name = format!("{}/{}", other.namespace(), other.key());
        self.fence(full_name, other.token())
    }

    /// Only if the latest token of that key, written `namespace/key`, is still this one.
    pub fn fence(mut self, full_name: impl Into<String>, token: u64) -> Self {
        self.fences.push(Fence { full_name: full_name.into(), token });
        self
    }

    /// Names the request, so that it can be made again after this process died. Drawn at random
    /// when not set.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.name = Some(key.into());
        self
    }

    async fn send(self) -> Result<EnqueueReply, Failed> {
        self.attributes?;
        let request = EnqueueRequest {
            namespace: self.queue.namespace.clone(),
            queue: Some(self.queue.name.clone()),
            delay_seconds: Some(whole_seconds(self.delay)?).filter(|delay| *delay > 0),
            visibility_timeout_seconds: self.visibility.map(whole_seconds).transpose()?,
            ttl_seconds: self.ttl.map(whole_seconds).transpose()?,
            ..self.request
        };
        let meta = serde_json::to_vec(&request)
            .map_err(|error| Failure::source("the request cannot be encoded", error))?;
        let content_type = request.payload_content_type.as_deref().unwrap_or(BYTES);
        let envelope = Envelope::new(&meta, content_type)?;
        let body = self.payload?.framed(envelope.head, envelope.tail);
        let name = self.name.unwrap_or_else(new_request_id);
        let call = self.queue.call(path::QUEUE_ENQUEUE).named(&name)?;
        let call = call.naming("transaction id", request.txn_id.as_deref());
        let call = fences(call, &self.fences)?.body_of(envelope.content_type, body);
        let client = &self.queue.client;
        let reply: EnqueueReply = client.fetch(&call).await?.json()?;
        let caps = &client.settings().caps;
        let given = Duration::from_secs(reply.visibility_timeout_seconds);
        caps.check(Limit::Visibility, in_seconds(request.visibility_timeout_seconds), given);
        let given = Duration::from_secs(reply.ttl_seconds.unwrap_or(0));
        caps.check(Limit::MessageTtl, in_seconds(request.ttl_seconds), given);
        Ok(reply)
    }
}

/// A time as it was sent.
fn in_seconds(seconds: Option<i64>) -> Option<Duration> {
    seconds.map(|seconds| Duration::from_secs(seconds.unsigned_abs()))
}

impl IntoFuture for Enqueue {
    type Output = Result<EnqueueReply, Error<EnqueueKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}
