//! The keeper of the agent: it runs while it may, and has ended, all of it, before that is said.

use std::sync::Arc;
use std::time::Duration;

use lockd_child::Child;
use lockd_client::clock::{Clock, Moment};
use tokio::sync::{mpsc, watch};

use super::{Pauses, Programs};
use crate::actor::Note;
use crate::metrics::Metrics;
use crate::order::Order;

/// Whether the agent is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentOrder {
    /// Grows with every order.
    pub(crate) number: u64,
    pub(crate) runs: bool,
    /// At once, without asking.
    pub(crate) force: bool,
    /// The keeper is to end too.
    pub(crate) end: bool,
}

pub(crate) struct Keeper {
    pub(crate) programs: Programs,
    pub(crate) command: Vec<String>,
    pub(crate) reports: mpsc::Sender<Note>,
    /// What the node is, for the variables.
    pub(crate) node: watch::Receiver<Order>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
}

impl Keeper {
    /// Until an order ends it, or nobody is left to give orders.
    pub(crate) async fn run(self, mut orders: watch::Receiver<AgentOrder>) {
        let (mut pauses, mut not_before): (Pauses, Option<Moment>) = Default::default();
        let (mut answered, mut started) = (0, false);
        loop {
            let order = *orders.borrow_and_update();
            if !order.runs && order.number > answered {
                answered = order.number;
                // A new beginning is not held up by what was before.
                (pauses, not_before, started) = (Pauses::default(), None, false);
                let _heard = self.reports.send(Note::AgentEnded(order.number)).await.is_ok();
            }
            if order.end {
                return;
            }
            let waits = not_before.filter(|then| *then > self.clock.now());
            if !order.runs || waits.is_some() {
                tokio::select! {
                    changed = orders.changed() => if changed.is_err() { return },
                    () = self.clock.sleep_until(waits.unwrap_or_else(|| self.clock.now())),
                        if waits.is_some() => {}
                }
                continue;
            }
            if std::mem::replace(&mut started, true) {
                self.metrics.restarted("agent");
            }
            let node = self.node.borrow().clone();
            let began = self.clock.now();
            let as_told = match self.programs.start("agent", &self.command, &node) {
                Ok(child) => self.attend(child, &mut orders).await,
                Err(error) => {
                    tracing::error!(%error, "the agent cannot be started");
                    Some(false)
                }
            };
            match as_told {
                None => return,
                Some(true) => {}
                Some(false) => {
                    let now = self.clock.now();
                    not_before = Some(now.plus(pauses.ended(now.since(began))));
                }
            }
        }
    }

    /// Until it has ended: whether it was told to. Nothing if nobody gives orders any more.
    async fn attend(
        &self,
        mut child: Child,
        orders: &mut watch::Receiver<AgentOrder>,
    ) -> Option<bool> {
        tracing::info!("the agent is started");
        let now = self.clock.now();
        let mut kill_at: Option<Moment> = None;
        let mut as_told = false;
        loop {
            tokio::select! {
                biased;
                ended = child.wait() => {
                    let status = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
                    if as_told {
                        tracing::info!(%status, "the agent has ended");
                    } else {
                        tracing::warn!(%status, "the agent has ended by itself");
                    }
                    return Some(as_told);
                }
                changed = orders.changed() => {
                    if changed.is_err() {
                        // Dropped, it is killed.
                        return None;
                    }
                    let order = *orders.borrow_and_update();
                    if order.force {
                        as_told = true;
                        child.kill();
                    } else if !order.runs && !std::mem::replace(&mut as_told, true) {
                        child.terminate().await;
                        kill_at = Some(self.clock.now().plus(self.grace()));
                    }
                }
                () = self.clock.sleep_until(kill_at.unwrap_or(now)), if kill_at.is_some() => {
                    kill_at = None;
                    child.kill();
                    tracing::warn!("the agent did not end, and is killed");
                }
            }
        }
    }

    fn grace(&self) -> Duration {
        self.programs.settings.stop_grace
    }
}
