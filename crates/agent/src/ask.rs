//! One asker for all free slots. A question is the same one until it has a definite answer: work
//! that was granted in an answer that got lost is then granted again.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Moment;
use lockd_wire::job::{LeaseAsk, LeaseGrant};
use tokio::sync::OwnedSemaphorePermit;

use crate::agent::{Phase, Shared, reached};
use crate::call::{Call, Refusal, Reply};
use crate::pace::Pace;
use crate::work::Work;

/// How much longer than it lets the question wait a controller may take for the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Nobody has to be asked later than this, whatever a controller says: another may lead by then.
const LATER_MAX: Duration = Duration::from_secs(1);
/// A controller that answers sooner, with nothing, has not let the question wait.
const WAITED_MIN: Duration = Duration::from_millis(500);
/// An agent that leaves looks this long whether its last question was granted.
const LAST_LOOK: Duration = Duration::from_millis(300);
/// The name of this process was struck off.
const AGENT_DELETED: &str = "agent_deleted";

struct Question {
    id: String,
    /// Before it was sent for the first time.
    asked: Option<Moment>,
}

impl Question {
    fn new() -> Self {
        Self { id: format!("{:032x}", rand::random::<u128>()), asked: None }
    }
}

/// What follows from an answer.
enum Next {
    /// Work was granted: there may be more.
    More,
    /// A new question, after this.
    Anew(Duration),
    /// The same one.
    Again {
        at_once: bool,
    },
    End,
}

/// Asks until the agent leaves.
pub(crate) async fn keep_asking(shared: Arc<Shared>) {
    let mut question = Question::new();
    let asking = async {
        let mut pace = Pace::new();
        // Only this takes slots, and nobody closes them.
        while let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await {
            let sent = shared.clock.now();
            let asked = *question.asked.get_or_insert(sent);
            let reply = answer(&shared, &question.id).await;
            let waited = shared.clock.now().since(sent);
            let next = follow(&shared, reply, slot, asked);
            if matches!(next, Next::More | Next::Anew(_)) {
                question = Question::new();
            }
            // Somebody who does not let questions wait is not asked all the time.
            let has_waited = waited >= (shared.settings.poll_wait / 2).max(WAITED_MIN);
            if has_waited || matches!(next, Next::More) {
                pace = Pace::new();
            }
            let pause = match next {
                Next::More => continue,
                Next::Anew(pause) if has_waited => pause,
                Next::Anew(pause) => pause.max(pace.next(false)),
                Next::Again { at_once } => pace.next(at_once),
                Next::End => return,
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        biased;
        () = reached(shared.phase(), Phase::Leaving) => {}
        () = asking => {}
    }
    if let Some(asked) = question.asked {
        last_look(&shared, &question.id, asked).await;
    }
}

/// Asks once. Given up when it turns out otherwise that somebody else is to be asked: the question
/// may wait long at one that is no longer there.
async fn answer(shared: &Shared, id: &str) -> Reply {
    let mut moves = shared.controllers.moves();
    let wait = shared.settings.poll_wait;
    let ask = asking(shared, id, wait);
    tokio::select! {
        biased;
        reply = shared.controllers.ask(Call::Work, &ask, wait + ANSWER_WITHIN) => reply,
        _ = moves.changed() => Reply::Unclear { at_once: true },
    }
}

fn asking(shared: &Shared, id: &str, wait: Duration) -> LeaseAsk {
    LeaseAsk {
        agent: shared.settings.name.clone(),
        incarnation: shared.incarnation.clone(),
        request_id: id.to_owned(),
        wait_seconds: wait.as_secs(),
        leader_epoch: None,
    }
}

fn follow(shared: &Arc<Shared>, reply: Reply, slot: OwnedSemaphorePermit, asked: Moment) -> Next {
    match reply {
        Reply::Done(body) => {
            let grant: LeaseGrant = match serde_json::from_slice(&body) {
                Ok(grant) => grant,
                Err(error) => {
                    tracing::warn!(%error, "work was granted that cannot be understood");
                    return Next::Again { at_once: false };
                }
            };
            let work = Work::new(Arc::clone(shared), grant, asked);
            shared.jobs.spawn(async move {
                work.run().await;
                drop(slot);
            });
            Next::More
        }
        Reply::Nothing(later) => Next::Anew(later.unwrap_or_default().min(LATER_MAX)),
        Reply::Refused(_, refusal) if refusal.code == AGENT_DELETED => {
            tracing::warn!("this agent was deleted: it asks for no more work");
            shared.dismissed.cancel();
            Next::End
        }
        Reply::Refused(_, refusal) => refused(&refusal),
        Reply::Stale(_, stale) => {
            refused(&Refusal { status: 409, code: stale.error, leader_epoch: stale.leader_epoch })
        }
        Reply::Unclear { at_once } => Next::Again { at_once },
    }
}

fn refused(refusal: &Refusal) -> Next {
    tracing::warn!(status = refusal.status, code = %refusal.code, "work was refused");
    Next::Anew(LATER_MAX)
}

/// What was granted in an answer that is on its way is given back at once, not when its lease has
/// run out.
async fn last_look(shared: &Arc<Shared>, id: &str, asked: Moment) {
    let ask = asking(shared, id, Duration::ZERO);
    let Reply::Done(body) = shared.controllers.ask(Call::Work, &ask, LAST_LOOK).await else {
        return;
    };
    if let Ok(grant) = serde_json::from_slice(&body) {
        Work::new(Arc::clone(shared), grant, asked).give_back().await;
    }
}
