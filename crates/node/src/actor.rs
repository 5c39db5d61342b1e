//! The one who decides: whatever happens becomes an event of the rules, and what follows is done at
//! once or handed to somebody else. It never waits for a program, a disk or the network.

mod act;
mod errands;
mod office;
mod record;

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Moment;
use lockd_core::supervise::{Agent, Controller, Event, Node};
use lockd_elect::{Campaign, LeaderLock, Leadership, Office};
use lockd_front::Gate;
use lockd_wire::node::{Prepare, Transition};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::cause::Cause;
use crate::folder::{Folder, Remembered};
use crate::keeper::agent::AgentOrder;
use crate::keeper::controller::Report;
use crate::order::{Leader, Order};
use crate::shared::Shared;
pub(crate) use errands::Errands;
use record::{Because, Pending};

/// What waits to be heard by the actor.
pub(crate) const NOTES_MAX: usize = 64;
/// So many deaths of a leading controller within a time, and another node is to try.
const DEATHS_MAX: usize = 3;
const DEATHS_WITHIN_MIN: Duration = Duration::from_secs(10);
/// How long a node may be asked to step aside, or to be ready, for another.
const PREPARED_MAX: Duration = Duration::from_secs(120);
/// Those who wait for the agent to have ended.
const READY_MAX: usize = 8;
/// At the start, the agent waits so long for somebody to lead.
const UNDECIDED_MAX: Duration = Duration::from_secs(3);
/// How long killed programs may take to be gone when the node is dropped.
const BURIAL: Duration = Duration::from_secs(5);

/// Something that the actor hears of.
#[derive(Debug)]
pub(crate) enum Note {
    Controller(Report),
    AgentEnded(u64),
    /// Requests from before the draining have ended, or the time for them.
    Drained(u64),
    /// Nobody is at the gate any more; or some are, and there is no more time.
    Quiet {
        step: u64,
        in_time: bool,
    },
    /// The controller had its time to close.
    Overdue(u64),
    Resign {
        cause: Cause,
        detail: String,
    },
    Prepare {
        ask: Prepare,
        ready: oneshot::Sender<Result<(), String>>,
    },
    Pause(bool),
    /// Somebody else was seen to lead.
    Succeeded(Leader),
    Stop,
    /// Into a state that cannot be.
    #[cfg(test)]
    Corrupt,
}

pub(crate) struct Actor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lock: Arc<dyn LeaderLock>,
    pub(crate) campaign: Campaign,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) notes: mpsc::Receiver<Note>,
    pub(crate) orders: watch::Sender<Order>,
    pub(crate) agent_orders: watch::Sender<AgentOrder>,
    pub(crate) folder: Folder,
    /// The keepers.
    pub(crate) running: TaskTracker,
    pub(crate) errands: Errands,
    /// Fires when everything is to end at once.
    pub(crate) ends: CancellationToken,
    pub(crate) mind: Mind,
}

/// What the actor remembers.
#[derive(Default)]
pub(crate) struct Mind {
    node: Node,
    office: Option<Office>,
    /// As long as it exists, the lock is kept for this node until its time is over.
    work: Option<TaskTrackerToken>,
    /// The latest one, while its controller may not be closed.
    lost_office: Option<Office>,
    /// An office that is being given back.
    leaving: Option<Office>,
    leader: Option<Leader>,
    /// Where another node with this one's name is.
    namesake: Option<String>,
    /// Changes of this office. The second one is of those who came while draining.
    gates: Vec<Gate>,
    /// The latest drain or close; what belongs to an earlier one is not heard.
    step: u64,
    stands: bool,
    paused: bool,
    /// Whether this node was the last that led, as far as it knows.
    led: bool,
    stopping: bool,
    /// Nothing is right until then.
    broken_until: Option<Moment>,
    /// It does not stand until then: somebody else is to have a chance.
    holds_off: Option<Moment>,
    /// Whether that ends as soon as somebody else leads.
    until_succeeded: bool,
    abstains: Option<Moment>,
    prepared: Option<Moment>,
    /// Whether it leads is not known until then: it has just begun, or the lock is about to be held
    /// under a higher epoch.
    undecided: Option<Moment>,
    opening_until: Option<Moment>,
    /// When it takes the office that it holds: a lock that has forgotten everything does not know
    /// who may still lead.
    enters_at: Option<Moment>,
    deaths: Vec<Moment>,
    failures: u32,
    led_since: Option<Moment>,
    ready: Vec<oneshot::Sender<Result<(), String>>>,
    because: Option<Because>,
    pending: Option<Pending>,
    untold: Vec<(Transition, Cause)>,
}

impl Mind {
    pub(crate) fn new(remembered: Remembered) -> Self {
        let Remembered { paused, led } = remembered;
        Self { paused, led, ..Self::default() }
    }
}

impl Actor {
    pub(crate) async fn run(mut self) {
        self.begin();
        let ends = self.ends.clone();
        while !self.is_over() {
            let (over, gone) = (over(self.mind.office.as_ref()), gone(self.mind.leaving.as_ref()));
            let alarm = sleep_until(&self.shared, self.next_alarm());
            tokio::select! {
                biased;
                () = over => self.lost(),
                () = ends.cancelled() => break,
                () = gone => self.has_left(),
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.look();
                }
                note = self.notes.recv() => {
                    let Some(note) = note else { break };
                    self.hear(note);
                }
                () = alarm => self.tick(),
            }
        }
        self.end().await;
    }

    fn begin(&mut self) {
        self.because(Cause::Started, String::new());
        self.record_here();
        self.mind.undecided = Some(self.now().plus(self.shared.ttl.min(UNDECIDED_MAX)));
        self.settle();
        self.look();
    }

    /// Told to stop, and nothing is left to be done in order.
    fn is_over(&self) -> bool {
        let mind = &self.mind;
        mind.stopping
            && mind.office.is_none()
            && mind.leaving.is_none()
            && mind.node.controller == Controller::Closed
            && mind.node.agent == Agent::Off
    }

    /// Everything that runs ends: in order if it was told to stop, else by force.
    async fn end(mut self) {
        let force = !self.is_over();
        self.cut_gates();
        self.publish_standby();
        self.orders.send_modify(|order| {
            order.version += 1;
            order.asked = order.version;
            (order.role, order.office) = (Default::default(), None);
            (order.end, order.force) = (true, force);
        });
        self.agent_orders.send_modify(|order| {
            order.number += 1;
            (order.runs, order.end, order.force) = (false, true, force);
        });
        self.running.close();
        let within = if force { BURIAL } else { self.shared.settings.stop_grace + BURIAL };
        let buried = tokio::time::timeout(within, async {
            // Nobody may be held up by a report that is not heard.
            let deaf = async { while self.notes.recv().await.is_some() {} };
            tokio::select! {
                () = self.running.wait() => {}
                () = deaf => {}
            }
        });
        if buried.await.is_ok() {
            // Only now may somebody else have the lock.
            self.mind.work = None;
        } else {
            tracing::warn!("something goes on after the end");
        }
        self.campaign.stop().await;
    }

    fn hear(&mut self, note: Note) {
        match note {
            Note::Controller(report) => self.hear_controller(report),
            Note::AgentEnded(number) => {
                if number == self.agent_orders.borrow().number {
                    self.feed(Event::AgentEnded);
                }
            }
            Note::Drained(step) => {
                if step == self.mind.step {
                    self.feed(Event::Drained);
                }
            }
            Note::Quiet { step, in_time } => self.quiet(step, in_time),
            Note::Overdue(step) => self.overdue(step),
            Note::Resign { cause, detail } => self.resign(cause, detail),
            Note::Prepare { ask, ready } => self.prepare(&ask, ready),
            Note::Pause(paused) => self.pause(paused),
            Note::Succeeded(leader) => self.succeeded(leader),
            Note::Stop => self.stop(),
            #[cfg(test)]
            Note::Corrupt => {
                self.mind.node.agent = Agent::On;
                self.feed(Event::Drained);
            }
        }
    }

    fn hear_controller(&mut self, report: Report) {
        let order = self.orders.borrow().clone();
        let is_now = |asked: u64| asked == order.asked;
        match report {
            Report::Opened(asked) if is_now(asked) => {
                if let Some(epoch) = order.epoch() {
                    self.feed(Event::Opened(epoch));
                    self.publish_standing();
                }
            }
            Report::Closed(asked) if is_now(asked) => self.feed(Event::Closed),
            Report::Behind { asked, seen } if is_now(asked) => {
                self.because(Cause::Behind, format!("the store knows epoch {seen}"));
                // The agent is not started for the moment until the next grant.
                self.mind.undecided = Some(self.now().plus(self.shared.ttl));
                self.moonlight();
                self.feed(Event::Behind(seen));
            }
            Report::Died(asked) if is_now(asked) => self.died(),
            Report::Opened(_) | Report::Closed(_) | Report::Behind { .. } | Report::Died(_) => {
                tracing::debug!(?report, "too late");
            }
        }
    }

    fn died(&mut self) {
        let (now, within) = (self.now(), self.shared.ttl.max(DEATHS_WITHIN_MIN));
        self.mind.deaths.retain(|then| now.since(*then) < within);
        self.mind.deaths.push(now);
        self.feed(Event::Died);
        self.publish_standing();
        if self.mind.deaths.len() >= DEATHS_MAX {
            self.mind.deaths.clear();
            self.fail(&format!("the controller died {DEATHS_MAX} times"));
        }
    }

    /// The controller does not get on: somebody else is to try.
    fn fail(&mut self, detail: &str) {
        self.resign(Cause::ControllerFailed, detail.into());
        tracing::warn!("{detail}: another node is to lead");
    }

    fn resign(&mut self, cause: Cause, detail: String) {
        if self.mind.office.is_none() || self.mind.node.resigns {
            return;
        }
        self.because(cause, detail);
        if self.mind.enters_at.take().is_some() {
            // Nothing was begun yet.
            self.record_end();
            self.hold_off();
            self.leave();
            self.settle();
            return;
        }
        self.feed(Event::Resign);
    }

    fn stop(&mut self) {
        self.mind.stopping = true;
        self.moonlight();
        self.resign(Cause::Stopping, String::new());
        self.settle();
    }

    fn pause(&mut self, paused: bool) {
        if self.mind.paused != paused {
            tracing::info!(paused, "whether others may take over");
            self.mind.paused = paused;
            self.remember();
            self.settle();
        }
    }

    fn remember(&self) {
        self.folder.remember(Remembered { paused: self.mind.paused, led: self.mind.led });
    }

    fn prepare(&mut self, ask: &Prepare, ready: oneshot::Sender<Result<(), String>>) {
        if self.mind.office.is_some() {
            let _told = ready.send(Err("it holds the office itself".into())).is_ok();
            return;
        }
        let span = Duration::from_millis(ask.for_ms).min(PREPARED_MAX);
        let until = (!span.is_zero()).then(|| self.now().plus(span));
        if ask.successor != self.shared.settings.node_id {
            (self.mind.abstains, self.mind.prepared) = (until, None);
            let _told = ready.send(Ok(())).is_ok();
        } else if let Some(why) = self.unfit().filter(|_| until.is_some()) {
            let _told = ready.send(Err(why.into())).is_ok();
        } else {
            (self.mind.abstains, self.mind.prepared) = (None, until);
            self.mind.ready.retain(|waiting| !waiting.is_closed());
            if until.is_none() {
                // It need not be ready any more.
                let _told = ready.send(Ok(())).is_ok();
            } else if self.mind.ready.len() < READY_MAX {
                self.mind.ready.push(ready);
            }
        }
        self.moonlight();
        self.settle();
    }

    /// Why it could not lead.
    fn unfit(&self) -> Option<&'static str> {
        let mind = &self.mind;
        match () {
            () if self.shared.settings.never_lead => Some("it never leads"),
            () if mind.paused && !mind.led => Some("the cluster is paused"),
            () if mind.stopping => Some("it is about to stop"),
            () if mind.broken_until.is_some() => Some("one of its rules did not hold"),
            () if mind.holds_off.is_some() => Some("it has just given up the office"),
            () if !*self.shared.healthy.borrow() => Some("its controller is down"),
            () => None,
        }
    }

    fn now(&self) -> Moment {
        self.shared.clock.now()
    }
}

async fn over(office: Option<&Office>) {
    match office {
        Some(office) => office.over().cancelled().await,
        None => std::future::pending().await,
    }
}

async fn gone(office: Option<&Office>) {
    match office {
        Some(office) => office.gone().cancelled().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(shared: &Shared, alarm: Option<Moment>) {
    match alarm {
        Some(alarm) => shared.clock.sleep_until(alarm).await,
        None => std::future::pending().await,
    }
}
