//! How long a lease is certainly held, and what became of it. The one place where that changes.
//!
//! Time is counted from before the request that granted or renewed it was sent, so it is over here
//! no later than on the server. Once a lease is being let go of, nothing prolongs it.

use std::time::Duration;

use tokio::sync::watch;

use super::lost::{Lost, LostReason};
use crate::clock::{Clock, Moment};
use crate::error::Failure;

/// Two clocks may drift apart by a thousandth; that much is not counted on.
const DRIFT: u32 = 1_000;
const ROUNDING: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Tenure {
    clock: Clock,
    began: Moment,
    state: watch::Sender<State>,
}

#[derive(Clone, Debug)]
struct State {
    phase: Phase,
    deadline: Moment,
    version: u64,
    /// Why the last renewal failed, if it did.
    trouble: Option<Trouble>,
}

#[derive(Clone, Debug)]
struct Trouble {
    unreachable: bool,
    detail: String,
}

#[derive(Clone, Debug)]
enum Phase {
    Held,
    /// A write that also releases is on its way. Still renewed, since the write may take long.
    Finishing,
    /// Being let go of.
    Leaving,
    Over(Lost),
}

/// The end of what one grant or renewal gives.
pub(crate) fn deadline(counted_from: Moment, ttl: Duration) -> Moment {
    counted_from.plus(ttl.saturating_sub(ttl / DRIFT).saturating_sub(ROUNDING))
}

impl Tenure {
    pub(crate) fn new(clock: Clock, counted_from: Moment, ttl: Duration, version: u64) -> Self {
        let deadline = deadline(counted_from, ttl);
        let state = State { phase: Phase::Held, deadline, version, trouble: None };
        Self { clock, began: counted_from, state: watch::Sender::new(state) }
    }

    pub(crate) fn is_held(&self) -> bool {
        let state = self.state.borrow();
        state.phase.is_held() && self.clock.now() < state.deadline
    }

    /// Zero when it is not held.
    pub(crate) fn remaining(&self) -> Duration {
        let state = self.state.borrow();
        if state.phase.is_held() { state.deadline.since(self.clock.now()) } else { Duration::ZERO }
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.state.borrow().deadline
    }

    pub(crate) fn version(&self) -> u64 {
        self.state.borrow().version
    }

    pub(crate) fn wrote(&self, version: u64) {
        self.state.send_modify(|state| state.version = version);
    }

    /// Takes a renewal into account, unless the lease is over or being let go of.
    pub(crate) fn extend(&self, counted_from: Moment, ttl: Duration) {
        let until = deadline(counted_from, ttl);
        let now = self.clock.now();
        self.state.send_if_modified(|state| {
            let alive = state.phase.is_held() && now < state.deadline;
            if alive {
                state.deadline = until;
                state.trouble = None;
            }
            alive
        });
    }

    /// Notes that a renewal failed, and whether it says that the lease is gone.
    pub(crate) fn renewal_failed(&self, failure: &Failure) {
        let trouble =
            Trouble { unreachable: failure.refusal().is_none(), detail: failure.to_string() };
        self.state.send_modify(|state| state.trouble = Some(trouble));
        self.observe(failure);
    }

    /// The lease is gone, whatever this guard wanted.
    pub(crate) fn lose(&self, reason: LostReason, detail: impl Into<String>) {
        let lost = self.lost_now(reason, detail.into());
        self.state.send_if_modified(|state| {
            let held = matches!(state.phase, Phase::Held);
            if held {
                tracing::debug!(%lost, "lease lost");
                state.phase = Phase::Over(lost);
            }
            held
        });
    }

    /// A write that also releases is about to be sent.
    pub(crate) fn finishing(&self) {
        self.state.send_if_modified(|state| {
            let held = matches!(state.phase, Phase::Held);
            if held {
                state.phase = Phase::Finishing;
            }
            held
        });
    }

    /// From now on nothing renews the lease. Says whether it was not over yet.
    pub(crate) fn leave(&self) -> bool {
        let mut open = false;
        self.state.send_if_modified(|state| {
            open = !matches!(state.phase, Phase::Over(_));
            let change = state.phase.is_held();
            if change {
                state.phase = Phase::Leaving;
            }
            change
        });
        open
    }

    /// It has been let go of, or the server said what became of it instead.
    pub(crate) fn end(&self, reason: LostReason) {
        let lost = self.lost_now(reason, String::new());
        self.state.send_if_modified(|state| {
            let open = !matches!(state.phase, Phase::Over(_));
            if open {
                state.phase = Phase::Over(lost);
            }
            open
        });
    }

    /// Notes when a refusal says that the lease is gone.
    pub(crate) fn observe(&self, failure: &Failure) {
        let refusal = failure.refusal();
        if let Some(reason) = refusal.and_then(LostReason::told_by) {
            let detail = match (&reason, refusal) {
                (LostReason::Revoked(_), _) | (_, None) => String::new(),
                (_, Some(refusal)) => refusal.body.detail.clone(),
            };
            self.lose(reason, detail);
        }
    }

    /// What became of the lease, once it is over by any count.
    pub(crate) fn lost_yet(&self) -> Option<Lost> {
        self.expire();
        match &self.state.borrow().phase {
            Phase::Over(lost) => Some(lost.clone()),
            Phase::Held | Phase::Finishing | Phase::Leaving => None,
        }
    }

    /// Ends the lease if its time is over.
    pub(crate) fn expire(&self) {
        if self.clock.now() < self.deadline() {
            return;
        }
        let trouble = self.state.borrow().trouble.clone();
        match trouble {
            Some(Trouble { unreachable: true, detail }) => {
                self.lose(LostReason::Unreachable, detail);
            }
            Some(Trouble { unreachable: false, detail }) => self.lose(LostReason::Expired, detail),
            None => self.lose(LostReason::Expired, ""),
        }
    }

    /// Waits until the lease is over.
    pub(crate) async fn lost(&self) -> Lost {
        let mut changes = self.state.subscribe();
        loop {
            if let Some(lost) = self.lost_yet() {
                return lost;
            }
            let deadline = changes.borrow_and_update().deadline;
            let running = self.clock.now() < deadline;
            tokio::select! {
                // The sender lives as long as `self`, so this cannot fail.
                _ = changes.changed() => {}
                () = self.clock.sleep_until(deadline), if running => {}
            }
        }
    }

    /// Waits until the lease is to be renewed no more.
    pub(crate) async fn left(&self) {
        let mut changes = self.state.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        drop(changes.wait_for(|state| !state.phase.is_held()).await);
    }

    fn lost_now(&self, reason: LostReason, detail: String) -> Lost {
        let held_for = self.clock.now().since(self.began);
        Lost { reason, detail, at_unix_ms: self.clock.unix_ms(), held_for }
    }
}

impl Phase {
    fn is_held(&self) -> bool {
        matches!(self, Self::Held | Self::Finishing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn tenure() -> (Clock, Tenure) {
        let clock = Clock::Runtime(tokio::time::Instant::now());
        let tenure = Tenure::new(clock.clone(), clock.now(), TTL, 1);
        (clock, tenure)
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_a_little_before_its_time_and_never_after() {
        let (_, tenure) = tenure();
        assert!(tenure.remaining() < TTL);
        assert!(tenure.remaining() > TTL - Duration::from_millis(20));
        tokio::time::advance(TTL - Duration::from_millis(20)).await;
        assert!(tenure.is_held());
        tokio::time::advance(Duration::from_millis(20)).await;
        assert!(!tenure.is_held());
        assert_eq!(tenure.lost_yet().unwrap().reason, LostReason::Expired);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_counts_from_before_it_was_sent() {
        let (clock, tenure) = tenure();
        tokio::time::advance(Duration::from_secs(3)).await;
        let sent = clock.now();
        tokio::time::advance(Duration::from_secs(2)).await;
        tenure.extend(sent, TTL);
        assert!(tenure.remaining() <= Duration::from_secs(8));
        assert!(tenure.remaining() > Duration::from_millis(7_980));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_renewal_revives_nothing() {
        let (clock, expired) = tenure();
        let sent = clock.now();
        tokio::time::advance(TTL).await;
        expired.extend(sent.plus(TTL), TTL);
        assert!(!expired.is_held());

        let (clock, left) = tenure();
        assert!(left.leave());
        left.extend(clock.now(), TTL);
        assert!(!left.is_held());
        assert_eq!(left.remaining(), Duration::ZERO);

        let (clock, lost) = tenure();
        lost.lose(LostReason::Gone, "");
        lost.extend(clock.now(), TTL);
        assert!(!lost.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_reason_stands() {
        let (_, tenure) = tenure();
        tenure.lose(LostReason::Fenced { current: Some(9) }, "");
        tenure.lose(LostReason::Gone, "");
        tenure.end(LostReason::Released);
        let lost = tenure.lost().await;
        assert_eq!(lost.reason, LostReason::Fenced { current: Some(9) });
        assert!(!tenure.leave(), "there is nothing left to let go of");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_loss_ends_when_time_does() {
        let (clock, tenure) = tenure();
        let start = clock.now();
        let lost = tenure.lost().await;
        assert_eq!(lost.reason, LostReason::Expired);
        assert!(clock.now().since(start) <= TTL);
        assert!(lost.held_for <= TTL && lost.held_for > TTL - Duration::from_millis(20));
    }
}
