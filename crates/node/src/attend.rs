//! What a standby does all the time: it tells the leader that it is there and hears who else is, and
//! asks for the office if it is preferred.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Moment;
use lockd_wire::node::{Hello, HelloReply, SwitchoverAsk, SwitchoverDone};

use crate::actor::Note;
use crate::operator::PREFERRED;
use crate::peers::at;
use crate::shared::{Known, Shared};

/// How long the leader may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take to hand over, before it is asked again.
const SWITCH_WITHIN: Duration = Duration::from_secs(120);
/// Pauses after a leader that refuses: the first, and the longest.
const REFUSED_MIN: Duration = Duration::from_secs(1);
const REFUSED_MAX: Duration = Duration::from_secs(300);

/// Says hello: every so often, and at once to a new leader, which knows only what this node said
/// before the change.
pub(crate) async fn greet(shared: Arc<Shared>) {
    let mut known = shared.known.subscribe();
    let mut greeted: Option<String> = None;
    loop {
        let is_new = |now: &Known| is_new_leader(&shared, now, greeted.as_deref());
        let changed = async { known.wait_for(is_new).await.is_ok() };
        // Either way it is time.
        let _new = tokio::time::timeout(shared.hello_every(), changed).await.is_ok();
        if shared.leads() {
            greeted = None;
            continue;
        }
        let Some((leader, url)) = shared.other_leader() else { continue };
        greeted = Some(leader.id.clone());
        let hello = Hello { node: shared.view() };
        let said = shared.callers.post::<HelloReply>(at(&url, "/ha/hello"), &hello, ANSWER_WITHIN);
        match said.await {
            Ok(reply) => hear(&shared, &leader.id, reply).await,
            Err(error) => tracing::debug!(%error, leader = leader.id, "the leader does not hear"),
        }
    }
}

/// Whether another node leads than the one that heard of this node last.
fn is_new_leader(shared: &Shared, now: &Known, greeted: Option<&str>) -> bool {
    let other = now
        .leader
        .as_ref()
        .filter(|leader| leader.url.is_some() && leader.id != shared.settings.node_id);
    let follows = now.node.role == lockd_core::supervise::Role::Standby;
    follows && other.is_some_and(|leader| Some(leader.id.as_str()) != greeted)
}

async fn hear(shared: &Shared, leader: &str, reply: HelloReply) {
    let now = shared.clock.now();
    {
        let mut table = shared.table.lock();
        for node in reply.nodes {
            let _noted = table.hear(node, now);
        }
    }
    // Only who leads decides.
    let decides = reply.leader_id.as_deref() == Some(leader);
    if decides && reply.paused != shared.known.borrow().paused {
        let _heard = shared.notes.send(Note::Pause(reply.paused)).await.is_ok();
    }
}

/// Asks for the office when everything has been well for a while.
pub(crate) async fn prefer(shared: Arc<Shared>) {
    let settings = &shared.settings;
    let mut well_since: Option<Moment> = None;
    let mut pause = REFUSED_MIN;
    loop {
        tokio::time::sleep(shared.hello_every()).await;
        let Some((leader, url)) = wished_for(&shared) else {
            (well_since, pause) = (None, REFUSED_MIN);
            continue;
        };
        let now = shared.clock.now();
        if now.since(*well_since.get_or_insert(now)) < settings.preferred_after {
            continue;
        }
        let (to, reason) = (Some(settings.node_id.clone()), Some(PREFERRED.to_owned()));
        let ask = SwitchoverAsk { to, reason };
        let url = at(&url, "/ha/switchover");
        match shared.callers.post::<SwitchoverDone>(url, &ask, SWITCH_WITHIN).await {
            Ok(done) => tracing::info!(took_ms = done.took_ms, "preferred, and leads now"),
            Err(error) => {
                tracing::info!(%error, leader, "preferred, but not let lead yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(REFUSED_MAX);
            }
        }
    }
}

/// Somebody leads who should not, and this node could.
fn wished_for(shared: &Shared) -> Option<(String, String)> {
    let (leader, url) = shared.other_leader()?;
    let stands = {
        let known = shared.known.borrow();
        known.stands && !known.paused
    };
    let nodes = shared.table.lock().views(shared.clock.now());
    let seen = nodes.into_iter().find(|node| node.node_id == leader.id)?;
    let heard = Duration::from_millis(seen.silent_ms) <= shared.heard_within();
    let well = stands && heard && *shared.healthy.borrow();
    (well && !seen.preferred).then_some((leader.id, url))
}
