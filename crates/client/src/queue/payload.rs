//! Payloads: in memory, on their way, or still with the server.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use lockd_wire::{ErrorCode, path};

use super::Queue;
use super::delivery::Deliveries;
use super::hold::has_code;
use crate::error::{Error, Failed, Failure, ReadKind};
use crate::transport::chunk;

/// Where the rest of a payload is.
#[derive(Debug)]
pub(super) enum Payload {
    /// All that is left of it.
    Here(Bytes),
    /// It comes with the answer that brought the message.
    Arriving(Box<Deliveries>),
    /// It was too large to be kept; the server is asked for it when it is wanted.
    Away,
    Fetched(Box<PayloadStream>),
}

impl Payload {
    /// The next piece; `None` at the end.
    pub(super) async fn chunk(
        &mut self,
        queue: &Queue,
        message_id: &str,
    ) -> Result<Option<Bytes>, Failed> {
        loop {
            match self {
                Self::Here(rest) if rest.is_empty() => return Ok(None),
                Self::Here(rest) => return Ok(Some(std::mem::take(rest))),
                Self::Arriving(deliveries) => match deliveries.chunk().await? {
                    Some(bytes) => return Ok(Some(bytes)),
                    None => {
                        deliveries.finish().await;
                        *self = Self::Here(Bytes::new());
                    }
                },
                Self::Away => {
                    let Some(stream) = open(queue, message_id).await? else {
                        return Err(Failure::invalid("the message is gone, and its payload too"));
                    };
                    *self = Self::Fetched(Box::new(stream));
                }
                Self::Fetched(stream) => return stream.next().await,
            }
        }
    }
}

/// The payload of a message while it arrives.
#[derive(Debug)]
pub struct PayloadStream {
    content_type: Option<String>,
    sha256: Option<String>,
    length: Option<u64>,
    body: Incoming,
    silence: Duration,
}

impl PayloadStream {
    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// In hexadecimal.
    pub fn sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    /// The number of bytes to come, where the server told.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; `None` at the end. An error means that the rest cannot be had.
    ///
    /// # Errors
    /// When the connection breaks or falls silent.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error<ReadKind>> {
        Ok(self.next().await?)
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failed> {
        chunk(&mut self.body, Some(self.silence)).await
    }
}

/// Asks for a payload; `None` when there is no such message.
pub(super) async fn open(queue: &Queue, message_id: &str) -> Result<Option<PayloadStream>, Failed> {
    let call = queue
        .client
        .call(Method::GET, path::QUEUE_PAYLOAD)
        .query_if("namespace", queue.namespace.as_deref())
        .query("queue", &queue.name)
        .query("message_id", message_id);
    let reply = match queue.client.open(&call).await {
        Ok(reply) => reply,
        Err(failure) if has_code(&failure, ErrorCode::NotFound) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    Ok(Some(PayloadStream {
        content_type: reply.head.text(CONTENT_TYPE.as_str()),
        sha256: reply.head.etag(),
        length: reply.length(),
        silence: reply.silence(),
        body: reply.into_body(),
    }))
}
