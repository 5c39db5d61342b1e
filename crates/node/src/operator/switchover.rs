//! Handing over: the next one gets ready first, the others let it, and only then the office is given
//! up. Whoever asked hears when the next one leads.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use lockd_core::supervise;
use lockd_wire::error::ErrorCode;
use lockd_wire::node::{NodeView, Prepare, ROLE, Role, RoleReply, SwitchoverAsk, SwitchoverDone};
use reqwest::Method;

use super::{READY_SLACK, Refusal, cluster};
use crate::actor::Note;
use crate::cause::Cause;
use crate::order::{Leader, millis};
use crate::peers::at;
use crate::shared::Shared;

/// How often the next one is asked whether it leads, and how long it may take to say so.
const ASK_EVERY: Duration = Duration::from_millis(25);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// For what takes no time of its own.
const SLACK: Duration = Duration::from_secs(2);
/// A standby asks for itself with this reason.
pub(crate) const PREFERRED: &str = "preferred";

fn refused(detail: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::CONFLICT, ErrorCode::SwitchoverRefused, detail)
}

/// Hands the office over; only who leads can.
pub(crate) async fn switchover(
    shared: &Arc<Shared>,
    ask: SwitchoverAsk,
) -> Result<SwitchoverDone, Refusal> {
    let Ok(_one_at_a_time) = Arc::clone(&shared.switching).try_lock_owned() else {
        return Err(refused("another switchover is under way"));
    };
    let began = shared.clock.now();
    let known = shared.known.borrow().clone();
    let epoch = known.node.lock.unwrap_or_default();
    match known.node.role {
        supervise::Role::Leader => {}
        supervise::Role::Standby => return Err(refused("this node does not lead")),
        supervise::Role::Draining => return Err(refused("this node hands over already")),
    }
    if known.paused {
        return Err(refused("the cluster is paused: resume it first"));
    }
    let target = target(shared, ask.to.as_deref())?;
    let ready = prepare_all(shared, &target, spare(shared)).await;
    if let Err(refusal) = ready {
        let_go(shared, &target).await;
        return Err(refusal);
    }
    let by_itself = ask.reason.as_deref() == Some(PREFERRED) && target.preferred;
    let cause = if by_itself { Cause::Preferred } else { Cause::Resigned };
    let detail = ask.reason.unwrap_or_default();
    let asked = shared.notes.send(Note::Resign { cause, detail }).await;
    asked.map_err(|_| refused("this node has ended"))?;
    let seen = tokio::time::timeout(patience(shared), succession(shared, &target, epoch)).await;
    let_go(shared, &target).await;
    let leader = seen.unwrap_or_else(|_| shared.known.borrow().leader.clone());
    let took_ms = millis(shared.clock.now().since(began));
    let now = match leader {
        Some(leader) if leader.id == target.node_id => {
            let from = shared.settings.node_id.clone();
            return Ok(SwitchoverDone { from, to: leader.id, leader_epoch: leader.epoch, took_ms });
        }
        Some(leader) => format!("{} leads now", leader.id),
        None => "nobody is known to lead now".into(),
    };
    let detail = format!("{} did not take over within {took_ms} ms: {now}", target.node_id);
    let (status, code) = (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::SwitchoverRefused);
    Err(Refusal { is_begun: true, ..Refusal::new(status, code, detail) })
}

/// How long the hand-over may take, the next one's part included.
fn patience(shared: &Shared) -> Duration {
    let settings = &shared.settings;
    let own = settings.drain_grace + settings.stop_grace * 2;
    own + settings.open_timeout(shared.ttl) + SLACK
}

/// For how long the others are asked to let the next one.
fn spare(shared: &Shared) -> Duration {
    let settings = &shared.settings;
    settings.drain_grace + settings.stop_grace * 2 + shared.ttl + SLACK
}

/// Who could lead, or why not.
fn target(shared: &Shared, to: Option<&str>) -> Result<NodeView, Refusal> {
    let others = cluster::others(shared);
    let Some(to) = to else {
        let mut fit: Vec<NodeView> =
            others.into_iter().filter(|node| unfit(shared, node).is_none()).collect();
        fit.sort_by_key(|node| (!node.preferred, node.silent_ms));
        let first = fit.into_iter().next();
        return first.ok_or_else(|| refused("no other node could lead now"));
    };
    if to == shared.settings.node_id {
        return Err(refused(format!("{to} leads already")));
    }
    let Some(node) = others.into_iter().find(|node| node.node_id == to) else {
        return Err(refused(format!("no node {to} is known")));
    };
    match unfit(shared, &node) {
        Some(why) => Err(refused(format!("{to} cannot lead now: {why}"))),
        None => Ok(node),
    }
}

fn unfit(shared: &Shared, node: &NodeView) -> Option<String> {
    let silent = Duration::from_millis(node.silent_ms);
    if silent > shared.heard_within() {
        return Some(format!("nothing was heard of it for {} ms", node.silent_ms));
    }
    if node.never_lead {
        return Some("it never leads".into());
    }
    (node.controller == "down").then(|| "its controller is down".into())
}

/// The next one must be ready; the others are asked, and those who do not hear it are too slow for
/// a lock that somebody waits for.
async fn prepare_all(shared: &Shared, target: &NodeView, spare: Duration) -> Result<(), Refusal> {
    let ask = &Prepare { successor: target.node_id.clone(), for_ms: millis(spare) };
    let rest = cluster::others(shared).into_iter().filter(|it| it.node_id != target.node_id);
    let others = rest.map(|node| async move {
        let url = at(&node.url, "/ha/prepare");
        if let Err(error) = shared.callers.post::<NodeView>(url, ask, ANSWER_WITHIN).await {
            tracing::debug!(node = node.node_id, %error, "not told to let another lead");
        }
    });
    let within = shared.settings.stop_grace + READY_SLACK + ANSWER_WITHIN;
    let url = at(&target.url, "/ha/prepare");
    let (ready, _) =
        tokio::join!(shared.callers.post::<NodeView>(url, ask, within), join_all(others));
    match ready {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(format!("{} is not ready: {error}", target.node_id))),
    }
}

/// Everybody may stand again.
async fn let_go(shared: &Shared, target: &NodeView) {
    let ask = &Prepare { successor: target.node_id.clone(), for_ms: 0 };
    let telling = cluster::others(shared).into_iter().map(|node| async move {
        let url = at(&node.url, "/ha/prepare");
        // It ends by itself a little later.
        let _told = shared.callers.post::<NodeView>(url, ask, ANSWER_WITHIN).await.is_ok();
    });
    join_all(telling).await;
}

/// Until somebody leads under a later epoch.
async fn succession(shared: &Shared, target: &NodeView, epoch: u64) -> Option<Leader> {
    let mut known = shared.known.subscribe();
    let seen_here = async {
        let later = |leader: &Leader| leader.epoch.is_some_and(|it| it > epoch);
        let found = known.wait_for(|known| known.leader.as_ref().is_some_and(later)).await;
        found.ok().and_then(|known| known.leader.clone())
    };
    let said_there = async {
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            let role = shared.callers.get::<RoleReply>(at(&target.url, ROLE), ANSWER_WITHIN).await;
            let Ok(role) = role else { continue };
            let later = role.leader_epoch.filter(|it| *it > epoch);
            if role.role == Role::Leader && later.is_some() && role.node_id == target.node_id {
                let url = Some(target.url.clone());
                return Leader { id: role.node_id, url, epoch: later };
            }
        }
    };
    tokio::select! {
        seen = seen_here => seen,
        said = said_there => {
            let _heard = shared.notes.send(Note::Succeeded(said.clone())).await.is_ok();
            Some(said)
        }
    }
}

/// The leader is asked, and its answer is given back as it is.
pub(super) async fn pass_on(shared: &Shared, ask: &SwitchoverAsk) -> Result<Response, Refusal> {
    let Some((leader, url)) = shared.other_leader() else {
        return Err(cluster::unreachable("nobody is known to lead"));
    };
    let body = serde_json::to_vec(ask).map_err(|error| refused(error.to_string()))?;
    let within = patience(shared) + shared.settings.stop_grace + SLACK;
    let sent = shared.callers.send(Method::POST, at(&url, "/ha/switchover"), Some(body), within);
    match sent.await {
        Ok(answer) => {
            let kind = [(CONTENT_TYPE, "application/json")];
            Ok((answer.status, kind, answer.body).into_response())
        }
        Err(error) => {
            let detail = format!("{} leads and could not be asked: {error}", leader.id);
            Err(cluster::unreachable(detail))
        }
    }
}
