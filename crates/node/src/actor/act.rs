//! What follows from events, done. Nothing here waits: who is to wait is sent off, and comes back
//! with a note.

use std::time::Duration;

use lockd_core::supervise::{Action, Agent, Broken, Controller, Event, Node, Role};
use lockd_elect::Epoch;
use lockd_front::{Gate, Standing};
use lockd_wire::node::RoleReply;

use super::{Actor, Note};
use crate::cause::Cause;
use crate::order::Leader;
use crate::settings::RoleChange;
use crate::shared::spoken;

/// How long nothing is tried after a rule did not hold.
const BROKEN_FOR: Duration = Duration::from_secs(60);

impl Actor {
    /// An event, and all that follows.
    pub(super) fn feed(&mut self, event: Event) {
        let (next, actions) = self.mind.node.after(event);
        self.mind.node = next;
        if let Err(broken) = next.check() {
            self.fail_safe(broken);
            return;
        }
        for action in &actions {
            self.act(*action);
        }
        self.settle();
        tracing::debug!(?event, ?actions, "what followed");
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Publish(role) => self.publish(role),
            Action::StopAgent => self.order_agent(false),
            Action::StartAgent => self.order_agent(true),
            Action::Open(epoch) => self.open(epoch),
            Action::Close => self.close(),
            Action::Drain => self.drain(),
            Action::Release => {
                self.record_end();
                self.hold_off();
                self.leave();
            }
            Action::Raise(seen) => {
                self.lock.saw(Epoch(seen));
                self.record_end();
                self.leave();
            }
        }
    }

    /// Changes are let in only while it leads, and nobody who asks hears otherwise for a moment.
    fn publish(&mut self, role: Role) {
        self.record(spoken(role));
        match role {
            Role::Standby => self.shut_gates(),
            Role::Leader => {
                self.new_gate();
                self.mind.leader = self.myself();
                self.mind.led_since = Some(self.now());
                self.mind.led = true;
            }
            Role::Draining => self.new_gate(),
        }
        self.publish_standing();
        if role == Role::Leader {
            self.remember();
        }
    }

    /// Those who come from now on; who is inside the one before goes on there.
    fn new_gate(&mut self) {
        let gate = Gate::new();
        if let Some(office) = &self.mind.office {
            let (gone, gate) = (office.gone(), gate.clone());
            self.errands.wait(async move {
                gone.cancelled().await;
                gate.cut();
                None
            });
        }
        self.mind.gates.push(gate);
    }

    fn shut_gates(&self) {
        for gate in &self.mind.gates {
            gate.shut();
        }
    }

    pub(super) fn cut_gates(&self) {
        for gate in &self.mind.gates {
            gate.cut();
        }
    }

    fn myself(&self) -> Option<Leader> {
        let settings = &self.shared.settings;
        let epoch = self.mind.office.as_ref().map(|office| office.epoch.0);
        Some(Leader { id: settings.node_id.clone(), url: Some(settings.url.clone()), epoch })
    }

    pub(super) fn publish_standing(&self) {
        let role = spoken(self.mind.node.role);
        let leader = self.mind.leader.as_ref();
        let reply = RoleReply {
            node_id: self.shared.settings.node_id.clone(),
            role,
            leader_epoch: leader.and_then(|leader| leader.epoch),
            leader_id: leader.map(|leader| leader.id.clone()),
            leader_url: leader.and_then(|leader| leader.url.clone()),
            assignment: None,
            store_epoch: None,
        };
        // Nobody is let in to a controller that has died, and is to lead again.
        let leads = self.mind.node.role != Role::Standby
            && matches!(self.mind.node.controller, Controller::Open(_));
        let gate = self.mind.gates.last().filter(|_| leads).cloned();
        self.shared.standing.send_replace(Standing { role: reply, gate });
        self.shared.metrics.is(role);
        if let Some(epoch) = leader.and_then(|leader| leader.epoch) {
            self.shared.metrics.saw_epoch(epoch);
        }
    }

    /// At the very end, whatever it was.
    pub(super) fn publish_standby(&mut self) {
        self.mind.node.role = Role::Standby;
        self.mind.leader = None;
        self.publish_standing();
    }

    fn order_agent(&self, runs: bool) {
        self.agent_orders.send_modify(|order| {
            order.number += 1;
            (order.runs, order.force) = (runs, false);
        });
    }

    fn open(&mut self, epoch: u64) {
        let Some(office) = self.mind.office.clone() else { return };
        let until = self.now().plus(self.shared.settings.open_timeout(self.shared.ttl));
        self.mind.opening_until.get_or_insert(until);
        let leader = self.myself();
        self.orders.send_modify(|order| {
            order.version += 1;
            order.asked = order.version;
            order.role = lockd_wire::node::Role::Leader;
            (order.leader, order.office) = (leader, Some(office));
            order.force = false;
        });
        tracing::info!(epoch, "the controller is to lead");
    }

    fn drain(&mut self) {
        self.mind.step += 1;
        let step = self.mind.step;
        self.orders.send_modify(|order| {
            order.version += 1;
            order.role = lockd_wire::node::Role::Draining;
        });
        // The latest gate is of those who come while draining.
        let before = self.mind.gates.len().saturating_sub(1);
        let gates: Vec<Gate> = self.mind.gates.iter().take(before).cloned().collect();
        let grace = self.shared.settings.drain_grace;
        self.errands.wait(async move {
            let _in_time = tokio::time::timeout(grace, idle(gates)).await.is_ok();
            Some(Note::Drained(step))
        });
    }

    /// With the lock still held there is time for those inside; without it, until somebody else may
    /// have it.
    fn close(&mut self) {
        self.mind.step += 1;
        self.mind.opening_until = None;
        self.shut_gates();
        let planned = self.mind.node.lock.is_some();
        let ignorant = self.shared.settings.role_change == RoleChange::None;
        if !planned && !ignorant {
            self.order_standby(false);
            self.watch_closing();
            return;
        }
        let (step, gates) = (self.mind.step, self.mind.gates.clone());
        let grace = planned.then_some(self.shared.settings.stop_grace);
        let office = self.orders.borrow().office.clone();
        self.errands.wait(async move {
            let time_is_over = async {
                let gone = async {
                    match office {
                        Some(office) if ignorant => office.gone().cancelled().await,
                        Some(office) => office.over().cancelled().await,
                        None => {}
                    }
                };
                match grace {
                    None => gone.await,
                    Some(grace) => {
                        let _gone = tokio::time::timeout(grace, gone).await.is_ok();
                    }
                }
            };
            tokio::select! {
                biased;
                () = idle(gates) => Some(Note::Quiet { step, in_time: true }),
                () = time_is_over => Some(Note::Quiet { step, in_time: false }),
            }
        });
    }

    /// Nobody is inside any more, or there is no more time for them. A controller that knows no
    /// roles can only be kept from writing on by its end.
    pub(super) fn quiet(&mut self, step: u64, in_time: bool) {
        if step != self.mind.step || self.mind.node.controller != Controller::Closing {
            return;
        }
        let ignorant = self.shared.settings.role_change == RoleChange::None;
        if !in_time && ignorant {
            // They hear that it is not known what became of them, and not that it was killed.
            self.cut_gates();
        }
        self.order_standby(!in_time && ignorant);
        self.watch_closing();
    }

    pub(super) fn order_standby(&self, force: bool) {
        let leader = self.mind.leader.clone().filter(|it| it.id != self.shared.settings.node_id);
        // One that is closed by its end is not started again for a node that stops.
        let restarts = self.shared.settings.role_change == RoleChange::Restart;
        let end = self.mind.stopping && restarts;
        self.orders.send_modify(|order| {
            order.version += 1;
            order.asked = order.version;
            order.end |= end;
            order.role = lockd_wire::node::Role::Standby;
            (order.leader, order.office) = (leader, None);
            order.force = force;
        });
    }

    /// What does not close in time is closed by force.
    fn watch_closing(&self) {
        let Some(office) = self.mind.office.clone().or_else(|| self.mind.lost_office.clone())
        else {
            self.overdue(self.mind.step);
            return;
        };
        let (step, grace) = (self.mind.step, self.shared.settings.stop_grace);
        let planned = self.mind.node.lock.is_some();
        self.errands.wait(async move {
            let gone = office.gone();
            if planned {
                let _gone = tokio::time::timeout(grace, gone.cancelled()).await.is_ok();
            } else {
                gone.cancelled().await;
            }
            Some(Note::Overdue(step))
        });
    }

    pub(super) fn overdue(&self, step: u64) {
        if step == self.mind.step && self.mind.node.controller == Controller::Closing {
            self.orders.send_modify(|order| order.force = true);
            tracing::warn!("the controller did not close in time, and is killed");
        }
    }

    /// Gives the lock back.
    pub(super) fn leave(&mut self) {
        self.mind.work = None;
        if let Some(office) = self.mind.office.take() {
            self.mind.leaving = Some(office);
        }
        if self.mind.leader.as_ref().is_some_and(|it| it.id == self.shared.settings.node_id) {
            self.mind.leader = None;
        }
    }

    /// A rule does not hold. That cannot be, so nothing is believed any more: everything is closed,
    /// and the lock is given back.
    fn fail_safe(&mut self, broken: Broken) {
        let node = self.mind.node;
        self.mind.broken_until = Some(self.now().plus(BROKEN_FOR));
        self.because(Cause::Broken, broken.to_string());
        self.cut_gates();
        self.record(lockd_wire::node::Role::Standby);
        self.agent_orders.send_modify(|order| {
            order.number += 1;
            (order.runs, order.force) = (false, true);
        });
        self.mind.step += 1;
        self.mind.node = Node { controller: Controller::Closing, ..Node::default() };
        let work = self.mind.work.take();
        self.leave();
        // The lock is kept until the controller is closed.
        self.mind.work = work;
        self.publish_standing();
        self.order_standby(true);
        self.settle();
        tracing::error!(%broken, ?node, "a rule did not hold: everything is closed");
    }

    /// After every event: what is not a step of the rules, and follows from where they stand.
    pub(super) fn settle(&mut self) {
        let node = self.mind.node;
        if node.controller == Controller::Closed {
            self.mind.opening_until = None;
            if self.orders.borrow().role != lockd_wire::node::Role::Standby {
                self.order_standby(false);
            }
            if node.lock.is_none() {
                self.mind.work = None;
                self.mind.lost_office = None;
                self.mind.gates.clear();
            }
        }
        if matches!(node.controller, Controller::Open(_)) {
            self.mind.opening_until = None;
        }
        if node.agent == Agent::Off {
            for ready in self.mind.ready.drain(..) {
                let _told = ready.send(Ok(())).is_ok();
            }
        }
        self.finish_record();
        self.stand();
        let leader = self.mind.leader.as_ref().map(|leader| leader.id.as_str());
        self.shared.table.lock().lead(leader);
        self.shared.known.send_modify(|known| {
            known.node = node;
            known.leader.clone_from(&self.mind.leader);
            (known.paused, known.stands) = (self.mind.paused, self.mind.stands);
        });
        // What is told and written down comes after all that is done.
        self.tell();
    }
}

async fn idle(gates: Vec<Gate>) {
    for gate in gates {
        gate.idle().await;
    }
}
