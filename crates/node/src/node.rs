//! A node from its start to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Clock;
use lockd_elect::{Campaign, LeaderLock, Pace};
use lockd_front::{Front, Standing};
use lockd_serve::{Bound, Secret, Serving};
use lockd_wire::node::{HaStatus, History, RoleReply, SwitchoverAsk, SwitchoverDone};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::actor::{Actor, Errands, Mind, NOTES_MAX, Note};
use crate::folder::Folder;
use crate::history::Chronicle;
use crate::keeper::agent::AgentOrder;
use crate::keeper::probe::Probe;
use crate::keeper::{Programs, agent, controller, let_through};
use crate::metrics::Metrics;
use crate::operator::{self, Access, Refusal};
use crate::order::Order;
use crate::peers::{Callers, Table};
use crate::settings::{NodeSettings, RoleChange, StartError};
use crate::shared::{Known, Shared};
use crate::{attend, local};

/// Everybody else looks at the lock at least this often.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// An office that was not renewed is over at least this long before its time.
const NOTICE_MIN: Duration = Duration::from_millis(100);
/// Beside what is told in the settings, for a stop.
const STOP_SLACK: Duration = Duration::from_secs(10);
/// How long the rest may take, which has nothing to lose.
const REST: Duration = Duration::from_secs(1);

/// A node that runs. Dropped, its programs are killed; [`Node::stop`] hands over first.
#[derive(Debug)]
pub struct Node {
    handle: Handle,
    actor: Mutex<Option<JoinHandle<()>>>,
    port: Serving,
    local: Serving,
    /// Fires when everything is to end at once.
    ends: CancellationToken,
    _dropped: DropGuard,
}

impl Node {
    /// Takes the port, starts the programs and runs for the lock, whose candidate must be
    /// [`NodeSettings::candidate_id`].
    ///
    /// # Errors
    /// When the settings do not fit together, or the port cannot be had.
    pub async fn start(
        settings: NodeSettings,
        lock: Arc<dyn LeaderLock>,
    ) -> Result<Self, StartError> {
        settings.check(&lock.candidate().id)?;
        if let RoleChange::Signal(signal) = settings.role_change {
            let_through(signal);
        }
        let settings = Arc::new(settings);
        let probe = Probe::new(&settings.front.controller, settings.health.clone())
            .map_err(|error| StartError::Client(error.to_string()))?;
        let bound = Bound::bind(&settings.listen).await?;
        let access = Access::new(&settings, bound.address)?;
        let (folder, remembered, folder_writer) = Folder::open(settings.folder.as_deref())?;
        let (chronicle, history_writer) = Chronicle::open(settings.folder.as_deref());
        let (notes, heard) = mpsc::channel(NOTES_MAX);
        let shared = shared(&settings, chronicle, lock.ttl(), notes.clone())?;
        let orders = watch::Sender::new(Order { version: 1, ..Order::default() });
        let token = local::random_token();
        let secret = Secret::new(&token).map_err(|e| StartError::Client(e.to_string()))?;
        let local = local::serve(&settings.node_id, secret, orders.subscribe()).await?;
        let endpoint = format!("http://{}", local.address);
        let programs = Programs { settings: Arc::clone(&settings), endpoint, token };
        let front = Front::new(
            settings.front.clone(),
            shared.standing.subscribe(),
            shared.healthy.subscribe(),
        );
        let own = operator::router(Arc::clone(&shared), access);
        let port = bound.serve(&settings.door, front.router(own))?;
        let ends = CancellationToken::new();
        if let Some(writer) = folder_writer {
            shared.running.spawn(writer.run());
        }
        if let Some(writer) = history_writer {
            shared.running.spawn(writer.run(ends.clone()));
        }
        until(&shared, &ends, attend::greet(Arc::clone(&shared)));
        if settings.preferred && !settings.never_lead {
            until(&shared, &ends, attend::prefer(Arc::clone(&shared)));
        }
        let agent_orders = watch::Sender::new(AgentOrder::default());
        let keepers = keepers(&shared, programs, probe, (&orders, &agent_orders));
        let campaign = Campaign::start(Arc::clone(&lock), pace(&settings, lock.ttl()));
        // The actor knows whether it may.
        campaign.stand(false);
        let leadership = campaign.leadership();
        let actor = Actor {
            shared: Arc::clone(&shared),
            lock,
            campaign,
            leadership,
            notes: heard,
            orders,
            agent_orders,
            folder,
            running: keepers,
            errands: Errands::new(notes),
            ends: ends.clone(),
            mind: Mind::new(remembered),
        };
        #[expect(clippy::disallowed_methods, reason = "awaited by stop, and ended by the token")]
        let actor = tokio::spawn(actor.run());
        let handle = Handle { address: port.address, shared };
        let (actor, dropped) = (Mutex::new(Some(actor)), ends.clone().drop_guard());
        Ok(Self { handle, actor, port, local, ends, _dropped: dropped })
    }

    /// To look at it, and to ask it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Hands over if it leads, ends the programs, and is gone. A second one does nothing.
    pub async fn stop(&self) {
        let shared = &self.handle.shared;
        let actor = self.actor.lock().take();
        if let Some(mut actor) = actor {
            let _told = shared.notes.send(Note::Stop).await.is_ok();
            let settings = &shared.settings;
            let within = settings.drain_grace + settings.stop_grace * 4 + STOP_SLACK;
            if tokio::time::timeout(within, &mut actor).await.is_err() {
                tracing::warn!("the node does not stop in order, and is ended");
                self.ends.cancel();
                let _ended = actor.await;
            }
        }
        self.ends.cancel();
        self.port.stop().await;
        self.local.stop().await;
        shared.running.close();
        let _in_time = tokio::time::timeout(REST, shared.running.wait()).await.is_ok();
    }
}

fn shared(
    settings: &Arc<NodeSettings>,
    chronicle: Chronicle,
    ttl: Duration,
    notes: mpsc::Sender<Note>,
) -> Result<Arc<Shared>, StartError> {
    let role = RoleReply { node_id: settings.node_id.clone(), ..RoleReply::default() };
    Ok(Arc::new(Shared {
        clock: Clock::Boot,
        ttl,
        standing: watch::Sender::new(Standing { role, gate: None }),
        healthy: watch::Sender::new(false),
        known: watch::Sender::new(Known::default()),
        table: Mutex::new(Table::new(&settings.node_id)),
        callers: Callers::new(settings)?,
        chronicle,
        metrics: Arc::new(Metrics::new()),
        notes,
        switching: Arc::default(),
        running: TaskTracker::new(),
        settings: Arc::clone(settings),
    }))
}

fn until(
    shared: &Shared,
    ends: &CancellationToken,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let ends = ends.clone();
    shared.running.spawn(async move {
        tokio::select! {
            () = ends.cancelled() => {}
            () = task => {}
        }
    });
}

fn keepers(
    shared: &Shared,
    programs: Programs,
    probe: Probe,
    (orders, agent_orders): (&watch::Sender<Order>, &watch::Sender<AgentOrder>),
) -> TaskTracker {
    let running = TaskTracker::new();
    if let Some(command) = shared.settings.agent.clone() {
        let keeper = agent::Keeper {
            programs: programs.clone(),
            command,
            reports: shared.notes.clone(),
            node: orders.subscribe(),
            metrics: Arc::clone(&shared.metrics),
            clock: shared.clock.clone(),
        };
        running.spawn(keeper.run(agent_orders.subscribe()));
    }
    let keeper = controller::Keeper {
        programs,
        probe,
        reports: shared.notes.clone(),
        healthy: shared.healthy.clone(),
        first_grace: shared.settings.open_timeout(shared.ttl),
        metrics: Arc::clone(&shared.metrics),
        clock: shared.clock.clone(),
    };
    running.spawn(keeper.run(orders.subscribe()));
    running
}

fn pace(settings: &NodeSettings, ttl: Duration) -> Pace {
    Pace {
        renew_every: ttl / 3,
        look_every: (ttl / 2).min(LOOK_MAX),
        // Everything is closed before the lock is given back; this is for what goes wrong.
        grace: settings.stop_grace * 2 + STOP_SLACK,
        notice: (ttl / 5).max(NOTICE_MIN).min(ttl / 2),
    }
}

/// To look at a node, and to ask it what an operator could.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Where its port listens.
    pub address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// What it is, now and from now on.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.shared.standing.subscribe()
    }

    /// Whether its controller is well.
    #[must_use]
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.shared.healthy.subscribe()
    }

    /// Everybody, as this node sees it.
    #[must_use]
    pub fn status(&self) -> HaStatus {
        self.shared.status()
    }

    /// What it became, the latest last.
    #[must_use]
    pub fn history(&self) -> History {
        self.shared.chronicle.all()
    }

    /// In the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.shared.metrics.text(&self.shared.settings.door)
    }

    /// Hands the office over, if it leads.
    ///
    /// # Errors
    /// When it cannot be, or did not end as it was asked for.
    pub async fn switchover(&self, ask: SwitchoverAsk) -> Result<SwitchoverDone, Refusal> {
        operator::switchover(&self.shared, ask).await
    }

    /// Whether nobody but the last leader may take office, here and at all other nodes.
    ///
    /// # Errors
    /// When the leader could not be told.
    pub async fn pause(&self, paused: bool) -> Result<HaStatus, Refusal> {
        operator::pause(&self.shared, paused).await
    }
}
