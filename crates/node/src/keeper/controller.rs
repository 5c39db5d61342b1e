//! The keeper of the controller: it runs always, and is brought to be what it is to be. An order is
//! acknowledged once; whoever is dead is closed.
//!
//! A controller that dies while it is to lead is not started again before it was ordered anew: the
//! actor may have decided otherwise in the meantime.

use std::sync::Arc;
use std::time::Duration;

use lockd_child::Child;
use lockd_client::clock::{Clock, Moment};
use lockd_wire::node::{Role, RoleReply};
use tokio::sync::{mpsc, watch};

use super::probe::{Probe, Said};
use super::{Pauses, Programs, signal};
use crate::actor::Note;
use crate::metrics::Metrics;
use crate::order::Order;
use crate::settings::{NodeSettings, RoleChange};

/// How often it is asked whether it is well, and how often until it has become what it is to be.
const PROBE_EVERY: Duration = Duration::from_millis(500);
const ASK_EVERY: Duration = Duration::from_millis(25);
/// This many bad answers in a row, and it is killed.
const UNWELL_MAX: u32 = 3;
/// How long it may take at least to be well for the first time.
const FIRST_GRACE_MIN: Duration = Duration::from_secs(10);
/// One that is to lead is not kept waiting for longer.
const PAUSE_TO_LEAD_MAX: Duration = Duration::from_secs(1);

/// What became of an order, by the version that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Opened(u64),
    Closed(u64),
    /// The store knows this epoch.
    Behind {
        asked: u64,
        seen: u64,
    },
    Died(u64),
}

pub(crate) struct Keeper {
    pub(crate) programs: Programs,
    pub(crate) probe: Probe,
    pub(crate) reports: mpsc::Sender<Note>,
    pub(crate) healthy: watch::Sender<bool>,
    /// How long a new process may take to be well.
    pub(crate) first_grace: Duration,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
}

/// What is remembered from one process to the next.
#[derive(Default)]
struct Memory {
    /// The order that was answered last.
    answered: u64,
    /// The order under which the latest one died.
    died_under: Option<u64>,
    /// The order under which its store refused it.
    fenced_under: Option<u64>,
    pauses: Pauses,
    not_before: Option<Moment>,
    started: bool,
}

/// One process.
struct Run {
    /// Whether its variables say that it leads, and under which epoch.
    variables: (bool, Option<u64>),
    /// What it was told last.
    told: Role,
    began: Moment,
    /// Since when it is well.
    well: Option<Moment>,
    was_well: bool,
    unwell: u32,
    /// Bad answers count this often.
    counts_from: Moment,
    /// When it is killed, once it was told to end.
    kill_at: Option<Moment>,
    /// Whether it ends because it was to.
    ends_as_told: bool,
}

impl Keeper {
    fn settings(&self) -> &NodeSettings {
        &self.programs.settings
    }

    /// Until an order ends it, or nobody is left to give orders.
    pub(crate) async fn run(self, mut orders: watch::Receiver<Order>) {
        let mut memory = Memory::default();
        loop {
            let order = orders.borrow_and_update().clone();
            if order.leads() {
                let soon = self.clock.now().plus(PAUSE_TO_LEAD_MAX);
                memory.not_before = memory.not_before.map(|then| then.min(soon));
            } else {
                self.answer(&mut memory, &order, Report::Closed(order.asked)).await;
            }
            if order.end {
                return;
            }
            let waits_for_order = order.leads() && memory.died_under == Some(order.asked);
            let waits = memory.not_before.filter(|then| *then > self.clock.now());
            if waits_for_order || waits.is_some() {
                tokio::select! {
                    changed = orders.changed() => if changed.is_err() { return },
                    () = self.clock.sleep_until(waits.unwrap_or_else(|| self.clock.now())),
                        if !waits_for_order => {}
                }
                continue;
            }
            if std::mem::replace(&mut memory.started, true) {
                self.metrics.restarted("controller");
            }
            match self.programs.start("controller", &self.settings().controller, &order) {
                Ok(child) => self.attend(child, &order, &mut orders, &mut memory).await,
                Err(error) => {
                    tracing::error!(%error, "the controller cannot be started");
                    self.died(&mut memory, &order, Duration::ZERO).await;
                }
            }
        }
    }

    /// Once for each order.
    async fn answer(&self, memory: &mut Memory, order: &Order, report: Report) {
        if order.asked > memory.answered {
            memory.answered = order.asked;
            self.report(report).await;
        }
    }

    async fn report(&self, report: Report) {
        // Without an actor nobody wants to know.
        let _heard = self.reports.send(Note::Controller(report)).await.is_ok();
    }

    async fn died(&self, memory: &mut Memory, order: &Order, well_for: Duration) {
        memory.not_before = Some(self.clock.now().plus(memory.pauses.ended(well_for)));
        if order.leads() {
            memory.died_under = Some(order.asked);
            self.report(Report::Died(order.asked)).await;
        }
    }

    /// Looks after one process until it has ended.
    async fn attend(
        &self,
        mut child: Child,
        order: &Order,
        orders: &mut watch::Receiver<Order>,
        memory: &mut Memory,
    ) {
        let now = self.clock.now();
        let mut run = Run {
            variables: wanted(order),
            told: order.role,
            began: now,
            well: None,
            was_well: false,
            unwell: 0,
            counts_from: now,
            kill_at: None,
            ends_as_told: false,
        };
        tracing::info!(role = order.role.as_str(), "the controller is started");
        let mut order = order.clone();
        let ended = loop {
            tokio::select! {
                biased;
                ended = child.wait() => break ended,
                changed = orders.changed() => {
                    if changed.is_err() {
                        // Dropped, it is killed.
                        return;
                    }
                    order = orders.borrow_and_update().clone();
                    self.obey(&order, &mut child, &mut run, memory).await;
                }
                () = self.clock.sleep_until(run.kill_at.unwrap_or(now)), if run.kill_at.is_some() => {
                    run.kill_at = None;
                    child.kill();
                    tracing::warn!("the controller did not end, and is killed");
                }
                (well, said) = self.look(&run, &order, memory), if !run.ends_as_told => {
                    self.judge_health(well, &mut child, &mut run);
                    self.judge_role(said, &order, &run, memory).await;
                }
            }
        };
        self.is_well(false);
        if run.ends_as_told {
            return;
        }
        let status = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
        tracing::warn!(%status, "the controller has ended by itself");
        let well_for = run.well.map(|since| self.clock.now().since(since)).unwrap_or_default();
        let order = orders.borrow().clone();
        if self.settings().role_change == RoleChange::Restart && run.variables != wanted(&order) {
            // It was to be replaced: what it was told is over.
            return;
        }
        self.died(memory, &order, well_for).await;
    }

    /// Brings it nearer to what it is to be.
    async fn obey(&self, order: &Order, child: &mut Child, run: &mut Run, memory: &mut Memory) {
        let mode = self.settings().role_change;
        let replaced = mode == RoleChange::Restart && run.variables != wanted(order);
        let forced = order.force && (order.end || order.asked > memory.answered);
        if forced {
            run.ends_as_told = true;
            child.kill();
            return;
        }
        if order.end || replaced {
            if !std::mem::replace(&mut run.ends_as_told, true) {
                child.terminate().await;
                run.kill_at = Some(self.clock.now().plus(self.settings().stop_grace));
            }
            return;
        }
        match mode {
            RoleChange::Signal(signal) if run.told != order.role => {
                signal::send(child, !self.settings().guard.is_empty(), signal);
            }
            RoleChange::Restart | RoleChange::None if !order.leads() => {
                self.answer(memory, order, Report::Closed(order.asked)).await;
            }
            RoleChange::Signal(_) | RoleChange::Follow | RoleChange::Restart | RoleChange::None => {
            }
        }
        run.told = order.role;
    }

    /// Whether it is well, and what it says it is if that is waited for.
    async fn look(&self, run: &Run, order: &Order, memory: &Memory) -> (bool, Option<Said>) {
        let waited_for = order.asked > memory.answered;
        let soon = waited_for || run.well.is_none();
        tokio::time::sleep(if soon { ASK_EVERY } else { PROBE_EVERY }).await;
        match self.settings().role_change {
            RoleChange::Signal(_) | RoleChange::Follow if waited_for => {
                let said = self.probe.role().await;
                (matches!(said, Said::Role(_)) || self.probe.is_well().await, Some(said))
            }
            RoleChange::Restart if waited_for => {
                let well = self.probe.is_well().await;
                (well, if well { Some(self.probe.role().await) } else { None })
            }
            RoleChange::None if waited_for => (self.probe.is_well().await, Some(Said::Nothing)),
            // While it leads, its store may refuse it, and only it can know.
            RoleChange::Signal(_) | RoleChange::Follow | RoleChange::Restart if order.leads() => {
                let well = self.probe.is_well().await;
                (well, if well { Some(self.probe.role().await) } else { None })
            }
            RoleChange::Signal(_) | RoleChange::Follow | RoleChange::Restart | RoleChange::None => {
                (self.probe.is_well().await, None)
            }
        }
    }

    fn is_well(&self, well: bool) {
        self.metrics.is_healthy(well);
        self.healthy.send_if_modified(|was| std::mem::replace(was, well) != well);
    }

    fn judge_health(&self, well: bool, child: &mut Child, run: &mut Run) {
        let now = self.clock.now();
        if well {
            run.well = run.well.or(Some(now));
            run.was_well = true;
            run.unwell = 0;
            self.is_well(true);
            return;
        }
        if now < run.counts_from {
            return;
        }
        run.counts_from = now.plus(PROBE_EVERY);
        run.unwell = run.unwell.saturating_add(1);
        let patient = !run.was_well && now.since(run.began) < self.first_grace.max(FIRST_GRACE_MIN);
        if run.unwell >= UNWELL_MAX && !patient {
            self.is_well(false);
            child.kill();
            tracing::warn!("the controller does not answer, and is killed");
        }
    }

    async fn judge_role(&self, said: Option<Said>, order: &Order, run: &Run, memory: &mut Memory) {
        let by_role = |role: &RoleReply| judged(role, order);
        let report = match (self.settings().role_change, said) {
            (_, None | Some(Said::Silent)) => None,
            (RoleChange::Signal(_) | RoleChange::Follow, Some(Said::Role(role))) => by_role(&role),
            (RoleChange::Restart, Some(Said::Role(role))) if order.leads() => by_role(&role),
            (RoleChange::Restart | RoleChange::None, Some(Said::Nothing)) if order.leads() => {
                run.well.map(|_| Report::Opened(order.asked))
            }
            // Processes that know no roles are closed by their end, or by the port.
            (RoleChange::Restart | RoleChange::None, Some(_)) => None,
            (RoleChange::Signal(_) | RoleChange::Follow, Some(Said::Nothing)) => None,
        };
        match report {
            // Also after it has led.
            Some(fenced @ Report::Behind { asked, .. }) => {
                memory.answered = memory.answered.max(asked);
                if memory.fenced_under.replace(asked) != Some(asked) {
                    self.report(fenced).await;
                }
            }
            Some(report) => self.answer(memory, order, report).await,
            None => {}
        }
    }
}

/// What the variables of a process that is started for an order say.
fn wanted(order: &Order) -> (bool, Option<u64>) {
    (order.leads(), order.epoch().filter(|_| order.leads()))
}

/// What a controller's own words mean for what it was asked.
fn judged(role: &RoleReply, order: &Order) -> Option<Report> {
    let asked = order.asked;
    if !order.leads() {
        let heard = role.assignment.is_none_or(|version| version >= asked);
        return (role.role == Role::Standby && heard).then_some(Report::Closed(asked));
    }
    let epoch = order.epoch()?;
    if role.role != Role::Standby && role.leader_epoch == Some(epoch) {
        return Some(Report::Opened(asked));
    }
    let seen = role.store_epoch.filter(|seen| *seen >= epoch)?;
    Some(Report::Behind { asked, seen })
}
