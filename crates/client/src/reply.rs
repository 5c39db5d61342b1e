//! Answers: refusals told apart from successes, and bodies read within bounds.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ETAG, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use lockd_wire::{ErrorBody, header};
use serde::de::DeserializeOwned;

use crate::error::{Cause, Failed, Failure, Refusal};
use crate::transport::chunk;

/// Most of an error's body that is looked at.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Largest answer of the calls that answer with an object of ours.
pub(crate) const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Room made ahead for a body of known length; the length is only somebody's word.
const RESERVE_BYTES_MAX: usize = 1024 * 1024;

/// Status and headers of a success.
#[derive(Debug)]
pub(crate) struct Head {
    status: StatusCode,
    headers: HeaderMap,
}

/// A successful answer whose body has not been read.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) head: Head,
    body: Incoming,
    silence: Duration,
}

/// A successful answer with all of its body.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) head: Head,
    pub(crate) bytes: Bytes,
}

/// Turns everything but success into a failure.
pub(crate) async fn check(
    response: Response<Incoming>,
    silence: Duration,
) -> Result<Reply, Failed> {
    let (parts, body) = response.into_parts();
    let head = Head { status: parts.status, headers: parts.headers };
    let status = head.status;
    let mut reply = Reply { head, body, silence };
    if status.is_success() {
        return Ok(reply);
    }
    if status.is_redirection() || status.is_informational() {
        return Err(Failure::garbled(format!("status {}", status.as_u16())));
    }
    let told = reply.read_some(ERROR_BYTES_MAX).await;
    let body = serde_json::from_slice(&told).unwrap_or_else(|_| ErrorBody::default());
    let retry_after = retry_after(&reply.head.headers)
        .or_else(|| body.retry_after_seconds.map(Duration::from_secs));
    let correlation_id = reply.head.text(header::CORRELATION_ID);
    let refusal = Refusal { status, body, retry_after, correlation_id };
    Err(Failure::new(Cause::Refused(Box::new(refusal))))
}

impl Head {
    pub(crate) fn has_content(&self) -> bool {
        self.status != StatusCode::NO_CONTENT
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.headers.get(name)?.to_str().ok()?.trim().parse().ok()
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        Some(self.headers.get(name)?.to_str().ok()?.to_owned())
    }

    pub(crate) fn etag(&self) -> Option<String> {
        self.text(ETAG.as_str()).map(|etag| etag.trim().trim_matches('"').to_owned())
    }
}

impl Reply {
    pub(crate) fn length(&self) -> Option<u64> {
        hyper::body::Body::size_hint(&self.body).exact()
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    pub(crate) fn into_body(self) -> Incoming {
        self.body
    }

    /// The whole body, if it has at most `bytes_max` bytes.
    pub(crate) async fn load(mut self, bytes_max: usize) -> Result<Loaded, Failed> {
        let length = self.length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
        let mut whole = BytesMut::with_capacity(length.min(bytes_max).min(RESERVE_BYTES_MAX));
        while let Some(bytes) = chunk(&mut self.body, Some(self.silence)).await? {
            if whole.len().saturating_add(bytes.len()) > bytes_max {
                return Err(Failure::new(Cause::TooLarge(bytes_max)));
            }
            whole.extend_from_slice(&bytes);
        }
        Ok(Loaded { head: self.head, bytes: whole.freeze() })
    }

    /// As much of the body as comes, up to a bound.
    async fn read_some(&mut self, bytes_max: usize) -> BytesMut {
        let mut some = BytesMut::new();
        while some.len() < bytes_max
            && let Ok(Some(bytes)) = chunk(&mut self.body, Some(self.silence)).await
        {
            some.extend_from_slice(&bytes);
        }
        some
    }
}

impl Loaded {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        serde_json::from_slice(&self.bytes)
            .map_err(|error| Failure::garbled("its body is not the expected one").because(error))
    }
}

/// Whole or fractional seconds. Dates are ignored: the clock they refer to is not ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn retry_after_is_seconds_and_nothing_else() {
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        for (text, expected) in [
            ("3", Some(Duration::from_secs(3))),
            ("0.5", Some(Duration::from_millis(500))),
            ("-1", None),
            ("inf", None),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ] {
            headers.insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            assert_eq!(retry_after(&headers), expected, "{text}");
        }
    }
}
