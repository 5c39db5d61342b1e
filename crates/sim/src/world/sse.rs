//! A watcher: reads the stream of events and tells them one by one.

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::Request;
use http_body_util::BodyExt;
use lockd_server::{Body, Handler};
use lockd_wire::watch::{self as wire, LeaseEvent, ResetEvent, StateEvent};
use tower::ServiceExt;

use crate::history::Told;

/// Watches all keys until the stream ends.
pub(super) async fn watch(
    handler: Handler,
    resume: Option<String>,
    tell: impl FnMut(Told, Option<String>),
) {
    let mut request = Request::builder().uri(lockd_wire::path::WATCH);
    if let Some(id) = resume {
        request = request.header("last-event-id", id);
    }
    let Ok(request) = request.body(Body::empty()) else { return };
    let response = match handler.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    if response.status().is_success() {
        listen(response.into_body().into_data_stream(), tell).await;
    }
}

/// Tells the events of a stream until it ends or breaks off.
pub(crate) async fn listen<E>(
    mut pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
    mut tell: impl FnMut(Told, Option<String>),
) {
    let mut text = String::new();
    while let Some(Ok(piece)) = pieces.next().await {
        text.push_str(&String::from_utf8_lossy(&piece));
        while let Some((event, rest)) = text.split_once("\n\n") {
            if let Some((told, id)) = read(event) {
                tell(told, id);
            }
            text = rest.to_owned();
        }
    }
}

/// One event; comments are none.
fn read(event: &str) -> Option<(Told, Option<String>)> {
    let field = |name: &str| {
        let mut lines = event.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let data = field("data")?;
    let told = match field("event")? {
        wire::RESET => {
            let event: ResetEvent = serde_json::from_str(data).ok()?;
            Told::Reset { complete: event.complete }
        }
        wire::STATE => {
            let event: StateEvent = serde_json::from_str(data).ok()?;
            Told::State { key: event.key, version: event.version, snapshot: event.snapshot }
        }
        wire::REMOVED => {
            let event: StateEvent = serde_json::from_str(data).ok()?;
            Told::Removed { key: event.key, version: event.version, snapshot: event.snapshot }
        }
        wire::LEASE => {
            let event: LeaseEvent = serde_json::from_str(data).ok()?;
            Told::Lease {
                key: event.key,
                change: format!("{:?}", event.change).to_lowercase(),
                token: event.fencing_token,
                snapshot: event.snapshot,
            }
        }
        _ => return None,
    };
    Some((told, field("id").map(str::to_owned)))
}
