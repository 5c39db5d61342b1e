//! Events as they happen. A reader that is too slow is cut off, and finds out when it comes back.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::{Stream, StreamExt as _};
use http::header::{CACHE_CONTROL, HeaderMap};
use lockd_wire::error::ErrorCode;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::answer::{Answered, wrong};
use super::routes::Api;
use crate::controller::{Event, EventId, Next, Place, Refusal, Shared};

/// How often something is said.
const ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
pub(super) struct From {
    after: Option<String>,
}

pub(super) async fn events(
    State(api): State<Arc<Api>>,
    headers: HeaderMap,
    from: Result<Query<From>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let invalid = |detail: &str| wrong(ErrorCode::InvalidParams, detail);
    let Query(from) = from.map_err(|error| invalid(&error.body_text()))?;
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let after = match seen.or(from.after).map(|id| EventId::parse(&id)) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => return Err(invalid("after is the id of an event: EPOCH-SEQ")),
    };
    let place = Arc::clone(&api.shared.streams).try_acquire_owned();
    let seat = place.map_err(|_| api.refused(Refusal::TooManyWaiters))?;
    let shared = Arc::clone(&api.shared);
    let changes = shared.events.changes();
    let place = shared.events.place(after);
    let reader = Reader { shared, changes, place, _seat: seat };
    let alive = KeepAlive::new().interval(ALIVE).text("alive");
    let stream = Sse::new(told(reader)).keep_alive(alive);
    Ok(([(CACHE_CONTROL, "no-store"), (ACCEL, "no")], stream).into_response())
}

/// Proxies are not to hold events back.
const ACCEL: http::HeaderName = http::HeaderName::from_static("x-accel-buffering");

struct Reader {
    shared: Arc<Shared>,
    changes: watch::Receiver<u64>,
    place: Place,
    _seat: OwnedSemaphorePermit,
}

fn told(reader: Reader) -> impl Stream<Item = Result<Sent, Infallible>> {
    let batches = futures_util::stream::unfold(reader, |mut reader| async move {
        loop {
            match reader.shared.events.next(&mut reader.place) {
                Next::Events(events) => {
                    let sent: Vec<Sent> = events.iter().map(|event| sent(event)).collect();
                    return Some((sent, reader));
                }
                Next::Reset => {
                    return Some((vec![Sent::default().event("reset").data("{}")], reader));
                }
                Next::Overtaken => return None,
                Next::Nothing => {}
            }
            tokio::select! {
                () = reader.shared.stop.cancelled() => return None,
                changed = reader.changes.changed() => if changed.is_err() {
                    return None;
                },
            }
        }
    });
    batches.flat_map(futures_util::stream::iter).map(Ok)
}

fn sent(event: &Event) -> Sent {
    Sent::default().id(event.id.to_string()).event(&event.kind).data(&event.data)
}
