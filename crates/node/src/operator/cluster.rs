//! What concerns all nodes: who is there, what they became, and whether others may take over.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;
use lockd_wire::error::ErrorCode;
use lockd_wire::node::{HaStatus, History, NodeView, PauseAsk};

use super::Refusal;
use crate::actor::Note;
use crate::peers::at;
use crate::shared::Shared;

/// The leader must be asked, and cannot be.
pub(super) fn unreachable(detail: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::LeaderUnreachable, detail)
}

/// How long another node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The most transitions in one answer.
const HISTORY_MAX: usize = 5_000;

/// The leader hears of everybody; without it, what is known here.
pub(crate) async fn status_of_leader(shared: &Shared) -> HaStatus {
    if !shared.leads()
        && let Some((_, url)) = shared.other_leader()
    {
        match shared.callers.get(at(&url, "/ha/status"), ANSWER_WITHIN).await {
            Ok(status) => return status,
            Err(error) => tracing::debug!(%error, "the leader does not say who is there"),
        }
    }
    shared.status()
}

pub(crate) fn others(shared: &Shared) -> Vec<NodeView> {
    shared.table.lock().views(shared.clock.now())
}

/// What all nodes that can be asked became, the latest last.
pub(crate) async fn history_of_all(shared: &Shared) -> History {
    let asking = others(shared).into_iter().map(|node| async move {
        shared.callers.get::<History>(at(&node.url, "/ha/history"), ANSWER_WITHIN).await.ok()
    });
    let mut transitions = shared.chronicle.all().transitions;
    for history in join_all(asking).await.into_iter().flatten() {
        transitions.extend(history.transitions);
    }
    transitions.sort_by_key(|it| it.at_unix_ms);
    let more = transitions.len().saturating_sub(HISTORY_MAX);
    transitions.drain(..more);
    History { transitions }
}

/// Sets it here and tells the others; the leader must hear it, since everybody hears it from there.
pub(crate) async fn pause(shared: &Arc<Shared>, paused: bool) -> Result<HaStatus, Refusal> {
    let path = if paused { "/ha/pause?told=1" } else { "/ha/resume?told=1" };
    let tell = |url: String| async move {
        let ask = PauseAsk::default();
        let told = shared.callers.post::<HaStatus>(at(&url, path), &ask, ANSWER_WITHIN);
        told.await.map(drop)
    };
    let leader = shared.other_leader();
    if let Some((leader, url)) = &leader
        && let Err(error) = tell(url.clone()).await
    {
        let detail = format!("{} leads and could not be told: {error}", leader.id);
        return Err(unreachable(detail));
    }
    let led_by = leader.map(|(leader, _)| leader.id);
    let rest = others(shared).into_iter().filter(|it| Some(&it.node_id) != led_by.as_ref());
    let telling = rest.map(|node| async move {
        if let Err(error) = tell(node.url).await {
            tracing::warn!(node = node.node_id, %error, "hears it later, from the leader");
        }
    });
    join_all(telling).await;
    Ok(set_paused(shared, paused).await)
}

/// Sets it here only.
pub(crate) async fn set_paused(shared: &Shared, paused: bool) -> HaStatus {
    let mut known = shared.known.subscribe();
    if shared.notes.send(Note::Pause(paused)).await.is_ok() {
        let heard = known.wait_for(|known| known.paused == paused);
        let _in_time = tokio::time::timeout(ANSWER_WITHIN, heard).await.is_ok();
    }
    shared.status()
}
