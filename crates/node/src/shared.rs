//! What the parts of a node share: what it is now, who else is there, and how to reach the actor.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Clock;
use lockd_core::supervise;
use lockd_front::Standing;
use lockd_wire::node::{HaStatus, NodeView, Role, SeenRole};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_util::task::TaskTracker;

use crate::actor::Note;
use crate::history::Chronicle;
use crate::metrics::Metrics;
use crate::order::Leader;
use crate::peers::{Callers, Table};
use crate::settings::NodeSettings;

/// How often a standby says hello, and how late it may be.
const HELLO_MIN: Duration = Duration::from_millis(100);
const HELLO_MAX: Duration = Duration::from_secs(1);
const HELLO_SLACK: Duration = Duration::from_millis(500);

/// What the actor knows, for those who only look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) node: supervise::Node,
    pub(crate) leader: Option<Leader>,
    pub(crate) paused: bool,
    /// Whether it runs for the lock.
    pub(crate) stands: bool,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: Arc<NodeSettings>,
    pub(crate) clock: Clock,
    /// The lock's time to live.
    pub(crate) ttl: Duration,
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) healthy: watch::Sender<bool>,
    pub(crate) known: watch::Sender<Known>,
    pub(crate) table: Mutex<Table>,
    pub(crate) callers: Callers,
    pub(crate) chronicle: Chronicle,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) notes: mpsc::Sender<Note>,
    /// One switchover at a time.
    pub(crate) switching: Arc<tokio::sync::Mutex<()>>,
    /// What goes on for as long as the node does, or is to be brought to its end.
    pub(crate) running: TaskTracker,
}

impl Shared {
    /// This node, as it shows itself to others.
    pub(crate) fn view(&self) -> NodeView {
        let known = self.known.borrow().clone();
        let controller = if *self.healthy.borrow() {
            match known.node.controller {
                supervise::Controller::Closed => "closed",
                supervise::Controller::Opening(_) => "opening",
                supervise::Controller::Open(_) => "open",
                supervise::Controller::Closing => "closing",
            }
        } else {
            "down"
        };
        let agent = match known.node.agent {
            _ if self.settings.agent.is_none() => "none",
            supervise::Agent::Off => "off",
            supervise::Agent::On => "on",
            supervise::Agent::Stopping => "stopping",
        };
        NodeView {
            node_id: self.settings.node_id.clone(),
            url: self.settings.url.clone(),
            role: spoken(known.node.role).into(),
            controller: controller.into(),
            agent: agent.into(),
            preferred: self.settings.preferred,
            never_lead: self.settings.never_lead,
            paused: known.paused,
            version: env!("CARGO_PKG_VERSION").into(),
            silent_ms: 0,
        }
    }

    /// Everybody this node knows, itself first.
    pub(crate) fn nodes(&self) -> Vec<NodeView> {
        let mut nodes = vec![self.view()];
        nodes.extend(self.table.lock().views(self.clock.now()));
        nodes
    }

    pub(crate) fn status(&self) -> HaStatus {
        let (leader, paused) = {
            let known = self.known.borrow();
            (known.leader.clone(), known.paused)
        };
        let mut nodes = self.nodes();
        let own = &self.settings.node_id;
        for node in nodes.iter_mut().filter(|node| node.node_id != *own) {
            match &leader {
                Some(leader) => bring_up_to_date(node, node.node_id == leader.id),
                // Between two leaders the one that led may still go on.
                None if Duration::from_millis(node.silent_ms) > self.heard_within() => {
                    bring_up_to_date(node, false);
                }
                None => {}
            }
        }
        HaStatus {
            node_id: self.settings.node_id.clone(),
            leader_id: leader.as_ref().map(|leader| leader.id.clone()),
            leader_url: leader.as_ref().and_then(|leader| leader.url.clone()),
            leader_epoch: leader.as_ref().and_then(|leader| leader.epoch),
            paused,
            nodes,
        }
    }

    /// How often a standby tells the leader that it is there.
    pub(crate) fn hello_every(&self) -> Duration {
        (self.ttl / 5).clamp(HELLO_MIN, HELLO_MAX)
    }

    /// A node of which nothing was heard for longer is not relied on.
    pub(crate) fn heard_within(&self) -> Duration {
        self.hello_every() * 4 + HELLO_SLACK
    }

    pub(crate) fn leads(&self) -> bool {
        self.known.borrow().node.role != supervise::Role::Standby
    }

    /// Somebody else who leads, and where.
    pub(crate) fn other_leader(&self) -> Option<(Leader, String)> {
        let leader = self.known.borrow().leader.clone()?;
        let url = leader.url.clone()?;
        (leader.id != self.settings.node_id).then_some((leader, url))
    }
}

/// What another node said last may be older than the latest change of leader, which the lock has
/// told. One that led does not lead any more: it has handed over, and says so within a second, or it
/// died; a dead node is not a standby that could take over.
fn bring_up_to_date(node: &mut NodeView, leads: bool) {
    let led = match node.role {
        SeenRole::Leader | SeenRole::Draining => true,
        SeenRole::Standby | SeenRole::Unknown => false,
    };
    if leads && !led {
        (node.role, node.controller) = (SeenRole::Leader, "open".into());
    } else if led && !leads {
        let unknown = || "unknown".to_owned();
        (node.role, node.controller, node.agent) = (SeenRole::Unknown, unknown(), unknown());
    }
}

/// A role of the rules, as it is said.
pub(crate) fn spoken(role: supervise::Role) -> Role {
    match role {
        supervise::Role::Standby => Role::Standby,
        supervise::Role::Leader => Role::Leader,
        supervise::Role::Draining => Role::Draining,
    }
}
