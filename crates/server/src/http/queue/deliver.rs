//! The bytes of deliveries: each message a JSON text and its payload, one part each. A message
//! counts as delivered when the socket has taken all of it; until then it can be taken back.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderName, HeaderValue, StatusCode, header};
use lockd_store::{BlobReader, StoreError};
use lockd_wire::header as names;
use lockd_wire::queue::{DeliveredMessage, Delivery as Wire};
use serde_json::value::RawValue;

use super::{afterwards, set_type};
use crate::app::lease::Undelivered;
use crate::app::queue::QueueRefused;
use crate::app::queue::consume::{Delivery, Subscription, TakeAsk};
use crate::app::read::Source;
use crate::app::{App, Refused};
use crate::http::body::{Body, Response};
use crate::http::call::Call;
use crate::http::delivery::{Outbox, Piece, Watching};
use crate::http::error::ApiError;
use crate::http::multipart::{Frames, Naming};
use crate::http::reply;

/// One answer with all the messages that there are.
pub(super) async fn once(call: Call, ask: TakeAsk) -> Result<Response, ApiError> {
    let waiter = call.for_waiting();
    let app = &waiter.api.app;
    let delivered = app.take(&ask).await?;
    let mut frames = Frames::new(&app.ids.unique());
    let first = delivered.first().map(correlation).unwrap_or_default();
    let numbered = delivered.len() > 1;
    let mut run = Run::new(waiter.outbox.clone());
    for (number, delivery) in delivered.into_iter().enumerate() {
        let naming = if numbered { Naming::Numbered(number) } else { Naming::Single };
        run.add(app, &mut frames, naming, delivery);
    }
    run.end(&frames);
    let mut response = reply::with_body(StatusCode::OK, run.into_body());
    set_type(&mut response, &frames.content_type());
    reply::text_header(&mut response, HeaderName::from_static(names::CORRELATION_ID), &first);
    Ok(response)
}

/// One message after the other, as they come.
pub(super) async fn stream(call: Call, ask: TakeAsk) -> Result<Response, ApiError> {
    let waiter = call.for_waiting();
    let app = &waiter.api.app;
    let (block, prefetch) = (ask.block, ask.count);
    let mut subscription = app.subscribe(ask, prefetch).await?;
    let delivered = subscription.next(block).await?;
    let first = delivered.first().map(correlation).unwrap_or_default();
    let mut frames = Frames::new(&app.ids.unique());
    let content_type = frames.content_type();
    let mut run = Run::new(waiter.outbox.clone());
    run.add_all(app, &mut frames, delivered);
    let _watching = waiter.watching;
    let state = Stream { subscription: Some(subscription), frames, run, _watching };
    let app = std::sync::Arc::clone(app);
    let pieces = stream::try_unfold(state, move |mut state| {
        let app = std::sync::Arc::clone(&app);
        async move {
            loop {
                if let Some(piece) = state.run.next().await? {
                    return Ok::<_, StoreError>(Some((piece, state)));
                }
                let Some(subscription) = &mut state.subscription else { return Ok(None) };
                match subscription.next(afterwards(block)).await {
                    Ok(delivered) => state.run.add_all(&app, &mut state.frames, delivered),
                    Err(refused) => {
                        told_why(&refused);
                        state.subscription = None;
                        state.run.end(&state.frames);
                    }
                }
            }
        }
    });
    let mut response = reply::with_body(StatusCode::OK, Body::from_pieces(pieces));
    set_type(&mut response, &content_type);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    reply::text_header(&mut response, HeaderName::from_static(names::CORRELATION_ID), &first);
    Ok(response)
}

/// A stream that has begun cannot say why it ends.
fn told_why(refused: &Refused) {
    let in_order =
        matches!(refused, Refused::Queue(QueueRefused::Empty { .. }) | Refused::Draining { .. });
    if !in_order {
        tracing::warn!(%refused, "a subscription ends early");
    }
}

struct Stream {
    /// `None` after its end.
    subscription: Option<Subscription>,
    frames: Frames,
    run: Run,
    _watching: Option<Watching>,
}

/// What is on its way to one consumer, piece by piece.
struct Run {
    parts: VecDeque<Part>,
    outbox: Option<Outbox>,
}

enum Part {
    /// Bytes, and the message that is whole with them.
    Text(Bytes, Option<Undelivered>),
    /// A payload with the piece that comes next: the last one carries the message.
    Blob(Box<dyn BlobReader>, Option<Bytes>, Undelivered),
}

impl Run {
    fn new(outbox: Option<Outbox>) -> Self {
        Self { parts: VecDeque::new(), outbox }
    }

    fn add_all(&mut self, app: &App, frames: &mut Frames, delivered: Vec<Delivery>) {
        for delivery in delivered {
            self.add(app, frames, Naming::Single, delivery);
        }
    }

    fn add(&mut self, app: &App, frames: &mut Frames, naming: Naming, delivery: Delivery) {
        let meta = reply::text(&Wire { message: described(app, &delivery), next_cursor: None });
        let content_type =
            delivery.record.message.as_ref().map_or(super::BYTES, |message| &message.content_type);
        let mut text = frames.open(naming, &meta, content_type, delivery.payload.bytes);
        match delivery.payload.content {
            Source::Inline(bytes) => {
                text.extend_from_slice(&bytes);
                self.parts.push_back(Part::Text(text.into(), Some(delivery.undelivered)));
            }
            Source::Blob(reader) => {
                self.parts.push_back(Part::Text(text.into(), None));
                self.parts.push_back(Part::Blob(reader, None, delivery.undelivered));
            }
        }
    }

    fn end(&mut self, frames: &Frames) {
        self.parts.push_back(Part::Text(frames.close(), None));
    }

    /// Small answers as one piece of known length; others as they are read.
    fn into_body(mut self) -> Body {
        let has_blob = self.parts.iter().any(|part| matches!(part, Part::Blob(..)));
        if has_blob {
            return Body::from_pieces(stream::try_unfold(self, |mut run| async move {
                let piece = run.next().await?;
                Ok::<_, StoreError>(piece.map(|piece| (piece, run)))
            }));
        }
        let mut whole = Vec::new();
        let mut grants = Vec::new();
        for part in self.parts.drain(..) {
            if let Part::Text(text, grant) = part {
                whole.extend_from_slice(&text);
                grants.extend(grant);
            }
        }
        Body::from(Piece::granting(whole.into(), grants, self.outbox))
    }

    async fn next(&mut self) -> Result<Option<Piece>, StoreError> {
        loop {
            match self.parts.pop_front() {
                None => return Ok(None),
                Some(Part::Text(text, grant)) => return Ok(Some(self.piece(text, grant))),
                Some(Part::Blob(mut reader, ahead, grant)) => match (reader.next().await, ahead) {
                    (Ok(Some(next)), ahead) => {
                        self.parts.push_front(Part::Blob(reader, Some(next), grant));
                        if let Some(piece) = ahead {
                            return Ok(Some(Piece::plain(piece)));
                        }
                    }
                    (Ok(None), Some(last)) => return Ok(Some(self.piece(last, Some(grant)))),
                    // Without a payload, the message was whole with the piece before.
                    (Ok(None), None) => grant.delivered(),
                    (Err(error), _) => {
                        tracing::error!(%error, "a payload could not be read to its end");
                        grant.unreadable();
                        return Err(error);
                    }
                },
            }
        }
    }

    fn piece(&self, bytes: Bytes, grant: Option<Undelivered>) -> Piece {
        Piece::granting(bytes, grant.into_iter().collect(), self.outbox.clone())
    }
}

fn correlation(delivery: &Delivery) -> String {
    delivery
        .record
        .message
        .as_ref()
        .map(|message| message.correlation.to_string())
        .unwrap_or_default()
}

fn described(app: &App, delivery: &Delivery) -> DeliveredMessage {
    let now = app.clock().now();
    let expires = now.wall.plus(delivery.lease.expires.remaining(now));
    let message = delivery.record.message.clone().unwrap_or_default();
    let state = delivery.state.as_ref();
    let state_expires = state.map(|state| now.wall.plus(state.lease.expires.remaining(now)));
    DeliveredMessage {
        namespace: delivery.queue.namespace().to_owned(),
        queue: delivery.queue.queue().to_owned(),
        message_id: delivery.id.to_string(),
        attempts: message.attempts,
        max_attempts: message.max_attempts,
        failure_attempts: message.failures,
        not_visible_until_unix: expires.as_secs_up(),
        visibility_timeout_seconds: delivery.lease.ttl.as_secs_up(),
        visibility_timeout_ms: delivery.lease.ttl.0,
        attributes: raw(message.attributes),
        payload_content_type: message.content_type.into(),
        payload_bytes: delivery.payload.bytes,
        payload_sha256: delivery.payload.etag.to_string(),
        enqueued_at_unix_ms: message.enqueued_at.0,
        correlation_id: message.correlation.into(),
        lease_id: delivery.lease.id.as_str().to_owned(),
        lease_expires_at_unix: expires.as_secs_up(),
        lease_expires_at_unix_ms: expires.0,
        fencing_token: delivery.record.fence.0,
        txn_id: delivery.lease.txn.as_str().to_owned(),
        meta_etag: lockd_core::message::etag(&delivery.record).into(),
        state_etag: state.map(|state| state.etag.map(|etag| etag.to_string()).unwrap_or_default()),
        state_lease_id: state.map(|state| state.lease.id.as_str().to_owned()),
        state_lease_expires_at_unix: state_expires.map(lockd_core::UnixMillis::as_secs_up),
        state_fencing_token: state.map(|state| state.token.0),
        state_txn_id: state.map(|state| state.lease.txn.as_str().to_owned()),
    }
}

/// JSON text that was checked when it came in.
pub(super) fn raw(text: Option<Box<str>>) -> Option<Box<RawValue>> {
    text.and_then(|text| RawValue::from_string(text.into()).ok())
}
