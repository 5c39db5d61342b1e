//! What is told of a transition: from what caused it to its end.

use lockd_client::clock::Moment;
use lockd_core::supervise::Controller;
use lockd_wire::node::{Role, Transition};

use super::Actor;
use crate::cause::Cause;
use crate::order::millis;

/// Why something is about to happen.
#[derive(Clone, Debug)]
pub(super) struct Because {
    cause: Cause,
    detail: String,
    since: Moment,
    /// The lock has not said yet how it was lost.
    guessed: bool,
}

/// A transition that has happened and is not at its end: the controller is not closed, or nobody
/// has said why it was.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    from: Role,
    to: Role,
    epoch: Option<u64>,
    at_unix_ms: u64,
    because: Because,
    ended: Option<Moment>,
}

impl Actor {
    pub(super) fn because(&mut self, cause: Cause, detail: String) {
        self.finish_record();
        let since = self.now();
        self.mind.because = Some(Because { cause, detail, since, guessed: false });
    }

    /// Lost, and the lock says why a moment later.
    pub(super) fn because_of_a_loss(&mut self) {
        self.because(Cause::LockLost, String::new());
        if let Some(because) = &mut self.mind.because {
            because.guessed = true;
        }
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        self.mind.because.as_ref().map(|because| because.cause)
    }

    /// The lock says how it was lost.
    pub(super) fn found_out(&mut self, cause: Cause, detail: &str) {
        let pending = self.mind.pending.as_mut().map(|pending| &mut pending.because);
        for because in [pending, self.mind.because.as_mut()].into_iter().flatten() {
            if std::mem::take(&mut because.guessed) {
                (because.cause, because.detail) = (cause, detail.into());
            }
        }
    }

    pub(super) fn record(&mut self, to: Role) {
        self.write_record();
        let Some(because) = self.mind.because.clone() else { return };
        let office = self.mind.office.as_ref().or(self.mind.lost_office.as_ref());
        let epoch = office.map(|office| office.epoch.0);
        let from = self.shared.standing.borrow().role.role;
        let at_unix_ms = self.shared.clock.unix_ms();
        let pending = Pending { from, to, epoch, at_unix_ms, because, ended: None };
        self.mind.pending = Some(pending);
    }

    /// Something happened, and nothing is another than before.
    pub(super) fn record_here(&mut self) {
        let now = self.shared.standing.borrow().role.role;
        self.record(now);
    }

    /// An office ends in which it was never said to lead.
    pub(super) fn record_end(&mut self) {
        if self.mind.pending.is_none() {
            self.record_here();
        }
    }

    /// Writes it down once it is at its end.
    pub(super) fn finish_record(&mut self) {
        let now = self.now();
        let closing = self.mind.node.controller == Controller::Closing;
        let Some(pending) = &mut self.mind.pending else { return };
        if pending.to == Role::Standby && closing {
            return;
        }
        pending.ended.get_or_insert(now);
        if !pending.because.guessed {
            self.write_record();
        }
    }

    fn write_record(&mut self) {
        let Some(pending) = self.mind.pending.take() else { return };
        let Pending { from, to, epoch, at_unix_ms, because, ended } = pending;
        let took = ended.unwrap_or_else(|| self.now()).since(because.since);
        let cause = because.cause;
        let transition = Transition {
            node_id: self.shared.settings.node_id.clone(),
            at_unix_ms,
            from,
            to,
            leader_epoch: epoch,
            cause: cause.as_str().into(),
            detail: because.detail,
            took_ms: millis(took),
        };
        self.mind.untold.push((transition, cause));
    }

    /// Tells of what is at its end.
    pub(super) fn tell(&mut self) {
        for (transition, cause) in self.mind.untold.drain(..) {
            tracing::info!(
                from = transition.from.as_str(),
                to = transition.to.as_str(),
                cause = cause.as_str(),
                epoch = transition.leader_epoch,
                took_ms = transition.took_ms,
                detail = transition.detail,
                "what the node is"
            );
            self.shared.metrics.became(&transition, cause);
            self.shared.chronicle.add(transition);
        }
    }
}
