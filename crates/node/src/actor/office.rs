//! The lock: being granted it, losing it, running for it or not.

use std::time::Duration;

use lockd_client::clock::Moment;
use lockd_core::supervise::Event;
use lockd_elect::{Leadership, Loss, Office};

use super::Actor;
use crate::cause::Cause;
use crate::order::Leader;
use crate::settings::RoleChange;

/// After an office was given up, somebody else has the lock's time to live and this to take it.
const HOLD_OFF: Duration = Duration::from_secs(1);
/// A node whose controller fails again and again stands back for longer, up to this.
const STAND_BACK_MAX: Duration = Duration::from_secs(60);
/// Having led for so long, it did not fail again and again.
const LED_WELL: Duration = Duration::from_secs(30);

impl Actor {
    /// What the lock says now.
    pub(super) fn look(&mut self) {
        let now = self.leadership.borrow_and_update().clone();
        if self.mind.office.as_ref().is_some_and(|office| office.over().is_cancelled()) {
            self.lost();
        }
        if self.mind.leaving.as_ref().is_some_and(|office| office.gone().is_cancelled()) {
            self.has_left();
        }
        match now {
            Leadership::Leading(office) => {
                let free = self.mind.office.is_none() && self.mind.leaving.is_none();
                // One that does not stand any more gives it back at once.
                if free && self.mind.stands && office.is_held() {
                    self.granted(office);
                }
            }
            Leadership::Following { leader, lost } => {
                if let Some(loss) = &lost {
                    self.lost_because(loss);
                }
                let leader = leader.as_ref().map(Leader::of);
                let (own, namesake): (Option<Leader>, _) = match leader {
                    Some(it) if it.id == self.shared.settings.node_id => (None, it.url),
                    other => (other, None),
                };
                self.suspect(namesake);
                self.follow(own);
                self.settle();
            }
        }
    }

    fn granted(&mut self, office: Office) {
        let epoch = office.epoch.0;
        tracing::info!(epoch, "the lock is held");
        self.because(Cause::Elected, String::new());
        self.mind.work = Some(office.work().token());
        self.mind.office = Some(office);
        self.mind.lost_office = None;
        (self.mind.leader, self.mind.led_since) = (None, None);
        self.mind.deaths.clear();
        self.publish_standing();
        let waits = self.waits();
        if waits.is_zero() {
            self.enter(epoch);
            return;
        }
        tracing::warn!(
            ?waits,
            "the lock may have forgotten who led: the node leads after this, when a former leader \
             has ended"
        );
        self.mind.enters_at = Some(self.now().plus(waits));
        self.settle();
    }

    /// A lock without its memory was perhaps granted to somebody before, who leads until the end of
    /// its time. Where the controller follows, its store keeps them apart.
    fn waits(&self) -> Duration {
        let Some(office) = &self.mind.office else { return Duration::ZERO };
        let apart = self.shared.settings.role_change == RoleChange::Follow;
        let waits = office.waits_out(self.shared.ttl).filter(|_| !apart);
        waits.unwrap_or_default()
    }

    fn enter(&mut self, epoch: u64) {
        self.feed(Event::Granted(epoch));
        // What these were for has come; and not before, lest the agent begins.
        (self.mind.prepared, self.mind.abstains, self.mind.holds_off) = (None, None, None);
        self.mind.undecided = None;
        self.moonlight();
    }

    /// Another node with the name of this one holds the lock: that is this one before it was started
    /// again, or a mistake.
    fn suspect(&mut self, namesake: Option<String>) {
        let namesake = namesake.filter(|url| *url != self.shared.settings.url);
        if let Some(url) = namesake.as_ref().filter(|_| namesake != self.mind.namesake) {
            let id = &self.shared.settings.node_id;
            tracing::warn!(
                "the lock is held by a node that is called {id} as this one, at {url}: each needs a \
                 name of its own"
            );
        }
        self.mind.namesake = namesake;
    }

    /// The office is over, or in doubt. First of all nobody is let in any more.
    pub(super) fn lost(&mut self) {
        self.mind.enters_at = None;
        let Some(office) = self.mind.office.take() else { return };
        self.mind.leader = None;
        self.because_of_a_loss();
        self.mind.lost_office = Some(office);
        self.feed(Event::Lost);
        self.publish_standing();
        tracing::warn!("the lock is lost");
    }

    /// An office that was given back is nobody's, or somebody else's.
    pub(super) fn has_left(&mut self) {
        self.mind.leaving = None;
        self.settle();
        self.look();
    }

    fn follow(&mut self, leader: Option<Leader>) {
        if self.mind.office.is_some() {
            return;
        }
        if leader.is_some() {
            if self.mind.led {
                self.mind.led = false;
                self.remember();
            }
            if self.mind.until_succeeded {
                self.mind.holds_off = None;
            }
            self.mind.undecided = None;
            self.moonlight();
        }
        if self.mind.leader == leader {
            return;
        }
        self.mind.leader.clone_from(&leader);
        self.publish_standing();
        self.orders.send_modify(|order| {
            if !order.leads() {
                order.version += 1;
                order.leader = leader;
            }
        });
    }

    /// Somebody was seen to lead before the lock said so.
    pub(super) fn succeeded(&mut self, leader: Leader) {
        let is_news = leader.epoch > self.mind.leader.as_ref().and_then(|it| it.epoch);
        if self.mind.leaving.is_none() && is_news {
            self.follow(Some(leader));
            self.settle();
        }
    }

    /// Somebody else is to have a chance.
    pub(super) fn hold_off(&mut self) {
        let once = self.shared.ttl + HOLD_OFF;
        let failed = self.cause() == Some(Cause::ControllerFailed);
        let now = self.now();
        let span = if failed {
            let led_well = self.mind.led_since.is_some_and(|it| now.since(it) >= LED_WELL);
            self.mind.failures = if led_well { 0 } else { self.mind.failures.min(16) };
            self.mind.failures += 1;
            once.saturating_mul(1 << (self.mind.failures - 1)).min(STAND_BACK_MAX.max(once))
        } else {
            once
        };
        self.mind.holds_off = Some(now.plus(span));
        self.mind.until_succeeded = !failed;
    }

    /// Whether it should run for the lock, or keep it.
    fn wants(&self) -> bool {
        let mind = &self.mind;
        let aside = mind.abstains.is_some() || mind.holds_off.is_some();
        let may = !mind.paused || mind.led;
        let fit = !mind.stopping && mind.broken_until.is_none();
        let free = !self.shared.settings.never_lead && fit && may && !aside;
        mind.leaving.is_none() && (mind.office.is_some() || free)
    }

    pub(super) fn stand(&mut self) {
        let wants = self.wants();
        self.campaign.stand(wants);
        // What was granted while it did not stand may be held still.
        if wants && !std::mem::replace(&mut self.mind.stands, wants) {
            self.leadership.mark_changed();
        }
        self.mind.stands = wants;
    }

    /// Whether the agent may work beside somebody else's controller.
    pub(super) fn moonlight(&mut self) {
        let (mind, settings) = (&self.mind, &self.shared.settings);
        let busy = mind.stopping || mind.prepared.is_some() || mind.undecided.is_some();
        let may =
            settings.agent.is_some() && settings.moonlight && !busy && mind.broken_until.is_none();
        if may != mind.node.moonlight {
            self.feed(Event::Moonlight(may));
        }
    }

    pub(super) fn next_alarm(&self) -> Option<Moment> {
        let mind = &self.mind;
        let alarms = [
            mind.broken_until,
            mind.holds_off,
            mind.abstains,
            mind.prepared,
            mind.undecided,
            mind.opening_until,
            mind.enters_at,
        ];
        alarms.into_iter().flatten().min()
    }

    pub(super) fn tick(&mut self) {
        let now = self.now();
        let mind = &mut self.mind;
        let waiting = [
            &mut mind.broken_until,
            &mut mind.holds_off,
            &mut mind.abstains,
            &mut mind.prepared,
            &mut mind.undecided,
        ];
        for alarm in waiting {
            alarm.take_if(|then| *then <= now);
        }
        let overdue = mind.opening_until.take_if(|then| *then <= now).is_some();
        let enters = mind.enters_at.take_if(|then| *then <= now).is_some();
        self.moonlight();
        self.settle();
        if overdue {
            self.fail("the controller did not open in time");
        }
        if let Some(epoch) = self.mind.office.as_ref().map(|it| it.epoch.0).filter(|_| enters) {
            self.enter(epoch);
        }
    }

    fn lost_because(&mut self, loss: &Loss) {
        let cause = match loss {
            Loss::Expired(_) => Cause::LockExpired,
            Loss::TakenBy(_) | Loss::Vanished => Cause::LockLost,
            // Said by whoever gave it up.
            Loss::Resigned => return,
        };
        self.found_out(cause, &loss.to_string());
    }
}
