//! The claim on one attempt of a job: what is shown to controllers for it, and until when it is
//! certainly held by this machine's own count. Another leader may take over the attempt; then the
//! claim goes on under that one's epoch.

use std::time::Duration;

use lockd_client::clock::{Clock, Moment};
use lockd_wire::job::{LeaseClaim, LeaseGrant, Renewed, STALE_LEASE, StaleEpoch};
use parking_lot::Mutex;
use serde::Serialize;

use crate::call::{Call, Controllers, Refusal, Reply};
use crate::pace::Pace;

/// The shortest and the longest that one try of a renewal may take: one that hangs must leave time
/// for others.
const RENEW_TRY_MIN: Duration = Duration::from_millis(200);
const RENEW_TRY_MAX: Duration = Duration::from_secs(2);
/// Renewals are at least this far apart, however short the lease.
const RENEW_APART: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) lease_id: String,
    pub(crate) job_id: String,
    pub(crate) job_epoch: u64,
    held: Mutex<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    leader_epoch: u64,
    /// When it was asked for the last time with success, and for how long it is held from then.
    asked: Moment,
    ttl: Duration,
}

impl Held {
    fn until(&self) -> Moment {
        self.asked.plus(self.ttl)
    }
}

/// How a claim ends that is not given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It could not be renewed in time.
    Over,
    /// The attempt is no longer the job's.
    Refused(Refusal),
}

/// An answer that will not change.
pub(crate) struct Definite {
    /// Before it was asked.
    pub(crate) asked: Moment,
    pub(crate) body: Vec<u8>,
}

impl Claim {
    /// As it was granted to somebody who had asked then.
    pub(crate) fn new(grant: &LeaseGrant, asked: Moment) -> Self {
        let ttl = Duration::from_millis(grant.ttl_ms);
        Self {
            lease_id: grant.lease_id.clone(),
            job_id: grant.job_id.clone(),
            job_epoch: grant.job_epoch,
            held: Mutex::new(Held { leader_epoch: grant.leader_epoch, asked, ttl }),
        }
    }

    pub(crate) fn leader_epoch(&self) -> u64 {
        self.held.lock().leader_epoch
    }

    /// When it is over unless it is renewed.
    pub(crate) fn until(&self) -> Moment {
        self.held.lock().until()
    }

    /// Whether it is held long enough to begin with something. A question for work may have waited
    /// long, and nobody knows when it was granted.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        let held = *self.held.lock();
        held.until().since(now) > held.ttl / 3
    }

    /// Renews whenever a third of its time has passed. Returns when it is lost.
    pub(crate) async fn keep(&self, controllers: &Controllers, clock: &Clock) -> Lost {
        loop {
            let held = *self.held.lock();
            let due = held.asked.plus((held.ttl / 3).max(RENEW_APART));
            clock.sleep_until(due.min(held.until())).await;
            if let Err(lost) = self.renew(controllers, clock, held.until()).await {
                return lost;
            }
        }
    }

    /// Until it is renewed, refused, or too late.
    pub(crate) async fn renew(
        &self,
        controllers: &Controllers,
        clock: &Clock,
        too_late: Moment,
    ) -> Result<(), Lost> {
        let one_try = (self.held.lock().ttl / 6).clamp(RENEW_TRY_MIN, RENEW_TRY_MAX);
        let mut pace = Pace::new();
        let renewed = async {
            loop {
                let call = Call::Renew(&self.lease_id);
                let body = |leader_epoch| self.shown(leader_epoch);
                let answer = self.definite(controllers, clock, (call, one_try), body).await?;
                match serde_json::from_slice::<Renewed>(&answer.body) {
                    Ok(renewed) => return Ok((answer.asked, renewed)),
                    Err(_) => pace.wait(false).await,
                }
            }
        };
        let renewed = tokio::select! {
            biased;
            renewed = renewed => renewed,
            () = clock.sleep_until(too_late) => return Err(Lost::Over),
        };
        let (asked, renewed) = renewed.map_err(Lost::Refused)?;
        if renewed.job_epoch != self.job_epoch {
            let (status, code) = (200, "another attempt".into());
            let leader_epoch = Some(renewed.leader_epoch);
            return Err(Lost::Refused(Refusal { status, code, leader_epoch }));
        }
        let mut held = self.held.lock();
        held.leader_epoch = held.leader_epoch.max(renewed.leader_epoch);
        (held.asked, held.ttl) = (asked, Duration::from_millis(renewed.ttl_ms));
        Ok(())
    }

    /// As a controller is shown it.
    pub(crate) fn shown(&self, leader_epoch: u64) -> LeaseClaim {
        LeaseClaim { job_id: self.job_id.clone(), job_epoch: self.job_epoch, leader_epoch }
    }

    /// Asks until there is an answer that will not change. Whoever cannot wait any longer drops it.
    pub(crate) async fn definite<T: Serialize>(
        &self,
        controllers: &Controllers,
        clock: &Clock,
        (call, one_try): (Call<'_>, Duration),
        body: impl Fn(u64) -> T,
    ) -> Result<Definite, Refusal> {
        let mut pace = Pace::new();
        loop {
            let (asked, leader_epoch) = (clock.now(), self.leader_epoch());
            let at_once = match controllers.ask(call, &body(leader_epoch), one_try).await {
                Reply::Done(body) => return Ok(Definite { asked, body }),
                Reply::Nothing(_) => return Ok(Definite { asked, body: Vec::new() }),
                Reply::Stale(from, stale) => match self.judged(leader_epoch, &stale) {
                    Judged::Taken(by) => {
                        self.held.lock().leader_epoch = by;
                        true
                    }
                    Judged::Behind => {
                        controllers.leave(&from);
                        false
                    }
                    Judged::Over => {
                        let (status, leader_epoch) = (409, stale.leader_epoch);
                        return Err(Refusal { status, code: stale.error, leader_epoch });
                    }
                },
                Reply::Refused(from, refusal) => {
                    if refusal.leader_epoch.is_none_or(|by| by >= leader_epoch) {
                        return Err(refusal);
                    }
                    controllers.leave(&from);
                    false
                }
                Reply::Unclear { at_once } => at_once,
            };
            pace.wait(at_once).await;
        }
    }

    fn judged(&self, leader_epoch: u64, stale: &StaleEpoch) -> Judged {
        match stale.leader_epoch {
            Some(by) if by < leader_epoch => Judged::Behind,
            Some(by) if by > leader_epoch => match stale.job_epoch {
                Some(job_epoch) if job_epoch == self.job_epoch => Judged::Taken(by),
                Some(_) => Judged::Over,
                None => Judged::Behind,
            },
            None if stale.error != STALE_LEASE => Judged::Behind,
            Some(_) | None => Judged::Over,
        }
    }
}

/// What `STALE_EPOCH` means for the claim.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    /// A later leader has taken over the attempt.
    Taken(u64),
    /// An earlier leader, whose store has told it perhaps that there is a later one: what it says
    /// of the attempt does not count.
    Behind,
    /// The attempt is over.
    Over,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_later_leader_can_take_over_or_end_an_attempt() {
        let grant = serde_json::json!({
            "lease_id": "l", "job_id": "j", "job_epoch": 3, "leader_epoch": 5, "ttl_ms": 900,
            "ends_in_ms": 1000, "attempt": 1, "spec": {"command": ["true"]},
        });
        let grant: LeaseGrant = serde_json::from_str(&grant.to_string()).unwrap();
        let claim = Claim::new(&grant, Clock::Boot.now());
        let judged = |leader_epoch, job_epoch| {
            claim.judged(5, &StaleEpoch { leader_epoch, job_epoch, ..StaleEpoch::default() })
        };
        assert_eq!(judged(Some(6), Some(3)), Judged::Taken(6));
        assert_eq!(judged(Some(6), Some(4)), Judged::Over);
        assert_eq!(judged(Some(5), Some(3)), Judged::Over);
        // Refused by its store: the one that is there now may have confirmed the attempt.
        assert_eq!(judged(Some(6), None), Judged::Behind);
        assert_eq!(judged(None, None), Judged::Behind);
        assert_eq!(judged(Some(4), None), Judged::Behind);
        assert_eq!(judged(Some(4), Some(3)), Judged::Behind);
        let stale = StaleEpoch { error: STALE_LEASE.into(), ..StaleEpoch::default() };
        assert_eq!(claim.judged(5, &stale), Judged::Over);
    }
}
