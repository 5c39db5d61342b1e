//! Queues for those who look after them: counts, lists, payloads, and what is done to many
//! messages at once.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use lockd_core::message::Place;
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::time::UnixMillis;
use lockd_store::StoreError;
use lockd_wire::queue::{
    CountReply, DeadRequest, MessageView, PeekReply, PeekRequest, PurgeRequest, QueueRequest,
    QueuesReply, StatsReply, WATCH_EVENT, WatchEvent,
};
use lockd_wire::{ErrorBody, ErrorCode};

use super::deliver::raw;
use super::set_type;
use crate::app::list::Page;
use crate::app::queue::board::{Bookmark, Shelf};
use crate::app::queue::look::{self, Seen};
use crate::app::queue::tidy::{Deed, Meant};
use crate::http::body::{Body, Response};
use crate::http::call::Call;
use crate::http::cursor::Listing;
use crate::http::error::ApiError;
use crate::http::multipart::message_id;
use crate::http::reply;
use crate::http::request::{self, COMMAND_BYTES_MAX, bad};

const PAGE_DEFAULT: u64 = 100;
const PAGE_MAX: u64 = 1_000;
const IDS_MAX: usize = 1_000;

/// How a queue stands.
#[utoipa::path(
    post, path = "/v1/queue/stats", tag = "queue", request_body = QueueRequest,
    responses(
        (status = 200, description = "Counts, and the message at the head", body = StatsReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn stats(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<QueueRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let queue = call.queue(ask.namespace.as_deref(), Some(&ask.queue))?;
    let stats = app.stats(&queue).await?;
    let (counts, head) = (stats.counts, stats.head.as_ref());
    let now = app.clock().now().wall;
    let age = |since: UnixMillis| now.0.saturating_sub(since.0) / 1_000;
    Ok(reply::ok(&StatsReply {
        namespace: queue.namespace().to_owned(),
        queue: queue.queue().to_owned(),
        waiting_consumers: counts.waiting as u64,
        pending_candidates: counts.ready as u64,
        total_consumers: (counts.waiting.max(counts.subscribers)) as u64,
        has_active_watcher: counts.watchers > 0,
        available: counts.ready > 0,
        ready: Some(counts.ready as u64),
        in_flight: Some(counts.in_flight as u64),
        delayed: Some(counts.delayed as u64),
        dead: Some(counts.dead as u64),
        oldest_ready_age_seconds: head
            .filter(|head| head.due)
            .map(|head| head.waiting_for.0 / 1_000),
        head_message_id: head.map(|head| head.id.to_string()),
        head_enqueued_at_unix: head.map(|head| head.enqueued_at.as_secs_up()),
        head_not_visible_until_unix: head.map(|head| head.visible_at.as_secs_up()),
        head_age_seconds: head.map(|head| age(head.enqueued_at)),
        correlation_id: call.correlation.text().to_owned(),
    }))
}

/// Follow whether a message could be delivered, and which; takes nothing.
#[utoipa::path(
    post, path = "/v1/queue/watch", tag = "queue", request_body = QueueRequest,
    responses(
        (status = 200, description = "Events `queue_watch`", body = String, content_type = "text/event-stream"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn watch(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<QueueRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let queue = call.queue(ask.namespace.as_deref(), Some(&ask.queue))?;
    let watch = app.watch_queue(&queue).await?;
    let state = (watch, 0_u64, call.watch());
    let app = std::sync::Arc::clone(app);
    let correlation = call.correlation.text().to_owned();
    let events = stream::try_unfold(state, move |(mut watch, mut number, watching)| {
        let (app, queue, correlation) =
            (std::sync::Arc::clone(&app), queue.clone(), correlation.clone());
        async move {
            let text = match watch.next().await {
                None => return Ok::<_, StoreError>(None),
                Some(Seen::Quiet) => ": keepalive\n\n".to_owned(),
                Some(Seen::Head(head)) => {
                    number += 1;
                    let event = WatchEvent {
                        namespace: queue.namespace().to_owned(),
                        queue: queue.queue().to_owned(),
                        available: head.is_some(),
                        head_message_id: head.map(|id| id.to_string()),
                        changed_at_unix: app.clock().now().wall.0 / 1_000,
                        correlation_id: correlation,
                    };
                    let data = serde_json::to_string(&event).unwrap_or_default();
                    format!("id: {number}\nevent: {WATCH_EVENT}\ndata: {data}\n\n")
                }
            };
            Ok(Some((Bytes::from(text), (watch, number, watching))))
        }
    });
    let mut response = reply::with_body(StatusCode::OK, Body::from_stream(events));
    set_type(&mut response, "text/event-stream");
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Messages in the order of the queue, without taking them.
#[utoipa::path(
    post, path = "/v1/queue/peek", tag = "queue", request_body = PeekRequest,
    responses(
        (status = 200, description = "A page of messages", body = PeekReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn peek(call: Call, body: Body) -> Result<Response, ApiError> {
    shelf(call, body, Shelf::Queued).await
}

/// Messages that failed too often, in the order in which they died.
#[utoipa::path(
    post, path = "/v1/queue/dlq", tag = "queue", request_body = PeekRequest,
    responses(
        (status = 200, description = "A page of messages", body = PeekReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn dlq(call: Call, body: Body) -> Result<Response, ApiError> {
    shelf(call, body, Shelf::Dead).await
}

async fn shelf(call: Call, body: Body, shelf: Shelf) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<PeekRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let queue = call.queue(ask.namespace.as_deref(), Some(&ask.queue))?;
    let limit = usize::try_from(ask.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)).unwrap_or(1);
    let name = match shelf {
        Shelf::Queued => "peek",
        Shelf::Dead => "dlq",
    };
    let listing = Listing::new(name, [queue.namespace(), queue.queue()]);
    let after = listing.last(ask.cursor.as_deref(), |last| parse_bookmark(&last))?;
    let (views, next) = app.shelf(&queue, shelf, after, limit).await?;
    Ok(reply::ok(&PeekReply {
        namespace: queue.namespace().to_owned(),
        queue: queue.queue().to_owned(),
        messages: views.into_iter().map(view).collect(),
        next_cursor: next.map(|(at, id)| listing.cursor(&format!("{at}-{id}"))),
    }))
}

fn parse_bookmark(text: &str) -> Option<Bookmark> {
    let (at, id) = text.split_once('-')?;
    Some((at.parse().ok()?, MessageId::parse(id).ok()?))
}

fn view(seen: look::MessageView) -> MessageView {
    let record = seen.record;
    let message = record.message.unwrap_or_default();
    let status = match seen.place {
        Place::InFlight => "in_flight",
        Place::Dead(_) => "dead",
        Place::Queued(_) if seen.due => "ready",
        Place::Queued(_) | Place::Draft | Place::Gone => "delayed",
    };
    MessageView {
        message_id: seen.id.to_string(),
        status: status.to_owned(),
        attempts: message.attempts,
        failure_attempts: message.failures,
        max_attempts: message.max_attempts,
        enqueued_at_unix_ms: message.enqueued_at.0,
        not_visible_until_unix_ms: message.visible.wall.0,
        expires_at_unix_ms: message.expires.map(|expiry| expiry.at.wall.0),
        dead_at_unix_ms: message.dead.map(|at| at.0),
        owner: record.lease.map(|lease| lease.owner.into()),
        visibility_timeout_ms: message.visibility.0,
        attributes: raw(message.attributes),
        last_error: raw(message.last_error),
        payload_content_type: message.content_type.into(),
        payload_bytes: record.state.as_ref().map_or(0, |state| state.bytes),
        payload_sha256: record.state.map(|state| state.etag.to_string()).unwrap_or_default(),
        correlation_id: message.correlation.into(),
    }
}

/// The payload of a message, without taking it.
#[utoipa::path(
    get, path = "/v1/queue/payload", tag = "queue",
    params(("queue" = String, Query), ("message_id" = String, Query), ("namespace" = Option<String>, Query)),
    responses(
        (status = 200, description = "The bytes, streamed", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 400, description = "The request is wrong", body = ErrorBody),
        (status = 404, description = "There is no such message", body = ErrorBody),
    )
)]
pub(in crate::http) async fn payload(call: Call, _body: Body) -> Result<Response, ApiError> {
    let params = call.params();
    let queue = call.queue(params.given("namespace"), params.get("queue"))?;
    let id = message_id(params.get("message_id").unwrap_or_default())?;
    let (seen, document) = call.api.app.payload(&queue, id).await?;
    let mut response = reply::document(Some(document));
    let message = seen.record.message.unwrap_or_default();
    set_type(&mut response, &message.content_type);
    Ok(response)
}

/// Remove what waits in a queue. What consumers have is left to them.
#[utoipa::path(
    post, path = "/v1/queue/purge", tag = "queue", request_body = PurgeRequest,
    responses(
        (status = 200, description = "How many were removed", body = CountReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn purge(call: Call, body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<PurgeRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let queue = call.queue(ask.namespace.as_deref(), Some(&ask.queue))?;
    let count = app.purge(queue, ask.dead).await?;
    Ok(reply::ok(&CountReply { count: count as u64 }))
}

/// Give dead messages all their attempts again.
#[utoipa::path(
    post, path = "/v1/queue/dlq/redrive", tag = "queue", request_body = DeadRequest,
    responses(
        (status = 200, description = "How many are in the queue again", body = CountReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn redrive(call: Call, body: Body) -> Result<Response, ApiError> {
    deal_with_dead(call, body, Deed::Redrive).await
}

/// Remove dead messages.
#[utoipa::path(
    post, path = "/v1/queue/dlq/delete", tag = "queue", request_body = DeadRequest,
    responses(
        (status = 200, description = "How many were removed", body = CountReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn delete_dead(call: Call, body: Body) -> Result<Response, ApiError> {
    deal_with_dead(call, body, Deed::Delete).await
}

async fn deal_with_dead(call: Call, body: Body, deed: Deed) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let (ask, _) = request::json::<DeadRequest>(app, body, COMMAND_BYTES_MAX).await?;
    let queue = call.queue(ask.namespace.as_deref(), Some(&ask.queue))?;
    let meant = match (ask.all, ask.message_ids.as_slice()) {
        (true, []) => Meant::All,
        (false, [_, ..]) if ask.message_ids.len() <= IDS_MAX => {
            let ids = ask.message_ids.iter().map(|id| message_id(id));
            // Each once, however often it was named.
            let ids = ids.collect::<Result<BTreeSet<_>, _>>()?;
            Meant::These(ids.into_iter().collect())
        }
        (_, _) => {
            let detail = "name 1 to 1000 message_ids, or say all: true";
            return Err(bad(ErrorCode::MissingFields, detail));
        }
    };
    let count = app.deal_with_dead(queue, meant, deed).await?;
    Ok(reply::ok(&CountReply { count: count as u64 }))
}

/// The queues of a namespace that have messages.
#[utoipa::path(
    get, path = "/v1/queues", tag = "queue",
    params(("namespace" = Option<String>, Query), ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query)),
    responses(
        (status = 200, description = "A page in the order of names", body = QueuesReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(in crate::http) async fn queues(call: Call, _body: Body) -> Result<Response, ApiError> {
    let (app, params) = (&call.api.app, call.params());
    let namespace = lockd_core::key::parse_namespace(app.namespace(params.given("namespace")))?;
    call.permit(&namespace)?;
    let limit = params.limit(100, 1_000)?;
    let listing = Listing::new("queues", [&namespace, ""]);
    let parse = |last: String| QueueName::parse(&namespace, &last).ok();
    let after = listing.last(params.get("cursor"), parse)?;
    let after = after.as_ref().map(QueueName::queue);
    let queues = app.queues(&namespace, after, limit + 1).await;
    let page = Page::of(queues.map_err(crate::app::Refused::from)?, limit);
    let next_cursor = page.end().map(|last| listing.cursor(last));
    Ok(reply::ok(&QueuesReply { namespace, queues: page.rows, next_cursor }))
}
