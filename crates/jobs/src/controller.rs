//! The controller: it leads or stands by, as it is told, and serves jobs accordingly.

mod agents;
mod commit;
mod desk;
mod events;
mod follow;
mod lead;
mod lease;
mod line;
mod office;
mod refusal;
mod relay;
mod settings;
mod submit;
mod take;
mod tick;
mod time;
mod turn;

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Clock;
use lockd_wire::node::{Assignment, Role, RoleReply};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(crate) use agents::WRITE_EVERY_MS;
pub(crate) use desk::KnownAgent;
pub(crate) use events::{Event, EventId, Events, Next, Place};
pub(crate) use office::Office;
pub(crate) use refusal::Refusal;
pub use settings::{Orders, Relaying, Settings, Source};
pub(crate) use submit::KEY_MAX;
pub(crate) use take::read_job;
use time::Time;

use crate::http::Access;
use crate::ledger::Ledger;

/// How long everything may take to end at the stop.
const FAREWELL: Duration = Duration::from_secs(10);

/// A controller that runs. It ends when it is stopped or dropped.
#[derive(Clone, Debug)]
pub struct Controller {
    shared: Arc<Shared>,
    _running: Arc<DropGuard>,
}

/// What all parts of a controller have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) events: Arc<Events>,
    pub(crate) time: Time,
    pub(crate) post: Mutex<Post>,
    /// Places for those who listen to events.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
}

/// What the controller is.
#[derive(Debug, Default)]
pub(crate) struct Post {
    /// What it heard last.
    pub(crate) assignment: Assignment,
    /// The version that it has acted upon.
    pub(crate) acted: Option<u64>,
    pub(crate) office: Option<Arc<Office>>,
    /// What its store knows, where that keeps it from office.
    pub(crate) store_epoch: Option<u64>,
}

impl Controller {
    /// Starts in the background.
    #[must_use]
    pub fn start(settings: Settings, ledger: Arc<dyn Ledger>) -> Self {
        Self::start_at(settings, ledger, Time { clock: Clock::Boot, ahead_ms: 0 })
    }

    pub(crate) fn start_at(settings: Settings, ledger: Arc<dyn Ledger>, time: Time) -> Self {
        let stop = CancellationToken::new();
        let running = Arc::new(stop.clone().drop_guard());
        let shared = Arc::new(Shared {
            events: Arc::new(Events::new(settings.events_max, settings.events_bytes_max)),
            streams: Arc::new(Semaphore::new(settings.streams_max)),
            settings: Arc::new(settings),
            ledger,
            time,
            post: Mutex::default(),
            stop,
            tasks: TaskTracker::new(),
        });
        shared.tasks.spawn(lead::run(Arc::clone(&shared)));
        Self { shared, _running: running }
    }

    /// What the controller answers.
    pub fn router(&self, access: Access) -> axum::Router {
        crate::http::router(Arc::clone(&self.shared), access)
    }

    /// What it is at this moment.
    #[must_use]
    pub fn role(&self) -> RoleReply {
        self.shared.role()
    }

    /// Changes nothing any more, ends what was begun, and all streams.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        if tokio::time::timeout(FAREWELL, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("something goes on after the farewell");
        }
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// The office, while changes are allowed.
    pub(crate) fn office(&self) -> Result<Arc<Office>, Refusal> {
        let office = self.post.lock().office.clone().filter(|office| office.is_held());
        office.ok_or(Refusal::NotLeader)
    }

    pub(crate) fn role(&self) -> RoleReply {
        let post = self.post.lock();
        let node_id = self.settings.node_id.clone();
        let (assignment, store_epoch) = (post.acted, post.store_epoch);
        if let Some(office) = post.office.as_ref().filter(|office| office.is_held()) {
            return RoleReply {
                leader_id: Some(node_id.clone()),
                leader_url: post.assignment.leader_url.clone().or(self.settings.url.clone()),
                leader_epoch: Some(office.epoch),
                role: if office.is_draining() { Role::Draining } else { Role::Leader },
                node_id,
                assignment,
                store_epoch,
            };
        }
        // One that is to lead and does not (yet) knows of no leader.
        let leader = match post.assignment.role {
            Role::Standby => post.assignment.clone(),
            Role::Leader | Role::Draining => Assignment::default(),
        };
        RoleReply {
            node_id,
            role: Role::Standby,
            leader_epoch: leader.leader_epoch,
            leader_id: leader.leader_id,
            leader_url: leader.leader_url,
            assignment,
            store_epoch,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
