//! What is known about a task, and what is to be done about it: pure rules. Each scheduled time is
//! claimed by one leader before it runs, under its epoch, and recorded when the run has ended, only
//! while that claim stands.

use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;

/// What becomes of times that passed while nobody could run them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Missed {
    /// They are left out, but for the latest if it is hardly late.
    #[default]
    Skip,
    /// The latest of them is run.
    Once,
    /// All of them are run, the oldest first, also those whose leader went in the middle.
    All,
}

/// Under [`Missed::Skip`] nothing is run that is later than this, or than its next time.
const HARDLY_LATE_MS: u64 = 60_000;

/// A task in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Counts its changes.
    pub revision: u64,
    /// The schedule that `base` belongs to.
    pub schedule: String,
    /// No time is before it.
    pub base: u64,
    /// Times up to this one are claimed, or were left out.
    pub last: u64,
    /// The leader who wrote it.
    pub epoch: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Somebody wants it to run now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<u64>,
}

/// A run that was begun and is not recorded yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub time: u64,
    pub epoch: u64,
    pub started: u64,
    pub instance: String,
    #[serde(default)]
    pub manual: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    Failed,
    /// It took longer than it may.
    Timeout,
    /// Its leader gave up the office, and it ended for that.
    Cancelled,
    /// Its leader went without a word; what it has done is not known.
    Lost,
}

impl Outcome {
    pub const ALL: [Self; 5] = [Self::Ok, Self::Failed, Self::Timeout, Self::Cancelled, Self::Lost];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// For which time, in ms.
    pub scheduled_at_ms: u64,
    pub epoch: u64,
    pub instance_id: String,
    pub started_at_ms: u64,
    pub duration_ms: u64,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Asked for by hand.
    #[serde(default)]
    pub manual: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Claim this time, then run.
    Claim { time: u64, manual: bool },
    /// It is claimed by this very leader: run.
    Run(Claim),
    /// Record that this one was lost.
    Settle(Claim),
    /// Nothing until then.
    Wait(Option<u64>),
}

impl Mark {
    /// A task with this schedule; a new schedule counts from now.
    #[must_use]
    pub fn defined(old: Option<&Self>, schedule: &Schedule, delay: u64, now: u64) -> Self {
        let text = schedule.to_string();
        match old {
            Some(old) if old.schedule == text => old.clone(),
            _ => Self {
                revision: old.map_or(0, |old| old.revision),
                schedule: text,
                base: now.saturating_add(delay),
                last: old.map_or(0, |old| old.last),
                epoch: old.map_or(0, |old| old.epoch),
                claim: old.and_then(|old| old.claim.clone()),
                requested: old.and_then(|old| old.requested),
            },
        }
    }

    /// Times up to this one must not run again.
    #[must_use]
    pub fn raised(&self, last: u64) -> Self {
        Self { last: self.last.max(last), ..self.clone() }
    }

    /// The registry has forgotten something: times up to this one are left out, also one that was
    /// begun by an earlier leader, whose record may be what was forgotten.
    #[must_use]
    pub fn forgotten_up_to(&self, floor: u64, epoch: u64) -> Self {
        let mut next = self.raised(floor);
        next.claim.take_if(|claim| claim.epoch != epoch && claim.time <= floor);
        next
    }

    /// Somebody asks for a run. A request that was not begun yet stays as it is.
    #[must_use]
    pub fn requested(&self, now: u64) -> Self {
        Self { requested: self.requested.or(Some(now)), ..self.clone() }
    }

    #[must_use]
    pub fn next(&self, schedule: &Schedule, missed: Missed, now: u64, epoch: u64) -> Next {
        match &self.claim {
            Some(claim) if claim.epoch == epoch => return Next::Run(claim.clone()),
            Some(claim) if missed == Missed::All && !claim.manual => {
                return Next::Claim { time: claim.time, manual: false };
            }
            Some(claim) => return Next::Settle(claim.clone()),
            None => {}
        }
        if let Some(time) = self.requested {
            return Next::Claim { time, manual: true };
        }
        let due = match missed {
            Missed::All => schedule.after(self.last, self.base).filter(|time| *time <= now),
            Missed::Once => self.latest(schedule, now),
            Missed::Skip => self.latest(schedule, now).filter(|time| {
                let next = schedule.after(*time, self.base).unwrap_or(u64::MAX);
                now - time <= HARDLY_LATE_MS.min(next - time)
            }),
        };
        match due {
            Some(time) => Next::Claim { time, manual: false },
            None => Next::Wait(schedule.after(self.waits_from(missed, now), self.base)),
        }
    }

    fn latest(&self, schedule: &Schedule, now: u64) -> Option<u64> {
        schedule.latest(now, self.base).filter(|time| *time > self.last)
    }

    fn waits_from(&self, missed: Missed, now: u64) -> u64 {
        match missed {
            Missed::All => self.last,
            Missed::Skip | Missed::Once => self.last.max(now),
        }
    }

    /// This leader begins with this time.
    #[must_use]
    pub fn claimed(&self, claim: Claim) -> Self {
        let mut next = self.clone();
        if claim.manual {
            next.requested = None;
        } else {
            next.last = next.last.max(claim.time);
        }
        next.epoch = claim.epoch;
        next.claim = Some(claim);
        next
    }

    /// The run has ended; `None` unless it is the one that was claimed.
    #[must_use]
    pub fn finished(&self, claim: &Claim, epoch: u64) -> Option<Self> {
        let stands = self.claim.as_ref() == Some(claim);
        stands.then(|| Self { claim: None, epoch, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn seconds(every: u64) -> Schedule {
        Schedule::every(Duration::from_secs(every)).unwrap()
    }

    fn mark(schedule: &Schedule) -> Mark {
        Mark::defined(None, schedule, 0, 100_000)
    }

    fn claim(time: u64, epoch: u64, manual: bool) -> Claim {
        Claim { time, epoch, started: time, instance: "a".into(), manual }
    }

    fn due(time: u64) -> Next {
        Next::Claim { time, manual: false }
    }

    #[test]
    fn a_schedule_goes_on_where_it_was_and_a_new_one_counts_anew() {
        let every = seconds(10);
        let first = Mark::defined(None, &every, 5_000, 100_000);
        assert_eq!((first.base, first.last), (105_000, 0));
        let done = first.raised(115_000);
        assert_eq!(Mark::defined(Some(&done), &every, 5_000, 200_000), done);
        let other = Mark::defined(Some(&done), &seconds(20), 0, 200_000);
        assert_eq!((other.base, other.last), (200_000, 115_000));
    }

    #[test]
    fn each_time_comes_once() {
        let every = seconds(10);
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            let mark = mark(&every);
            assert_eq!(mark.next(&every, missed, 99_999, 1), Next::Wait(Some(100_000)));
            assert_eq!(mark.next(&every, missed, 100_000, 1), due(100_000));
            let mark = mark.claimed(claim(100_000, 1, false));
            let mark = mark.finished(&claim(100_000, 1, false), 1).unwrap();
            assert_eq!(mark.next(&every, missed, 100_000, 1), Next::Wait(Some(110_000)));
            assert_eq!(mark.next(&every, missed, 99_000, 2), Next::Wait(Some(110_000)));
        }
    }

    #[test]
    fn missed_times_are_treated_as_asked() {
        let (every, hourly) = (seconds(10), seconds(3_600));
        let late = mark(&every).raised(100_000);
        // 110, 120, 130 were missed.
        assert_eq!(late.next(&every, Missed::Once, 137_000, 1), due(130_000));
        assert_eq!(late.next(&every, Missed::All, 137_000, 1), due(110_000));
        assert_eq!(late.next(&every, Missed::Skip, 137_000, 1), due(130_000));
        let late = mark(&hourly);
        assert_eq!(late.next(&hourly, Missed::Skip, 160_000, 1), due(100_000));
        assert_eq!(late.next(&hourly, Missed::Skip, 160_001, 1), Next::Wait(Some(3_700_000)));
        assert_eq!(late.next(&hourly, Missed::Once, 160_001, 1), due(100_000));
    }

    #[test]
    fn a_run_whose_leader_went_is_lost_or_run_again() {
        let every = seconds(10);
        let begun = mark(&every).claimed(claim(100_000, 1, false));
        assert_eq!(
            begun.next(&every, Missed::All, 200_000, 1),
            Next::Run(claim(100_000, 1, false))
        );
        assert_eq!(begun.next(&every, Missed::All, 200_000, 2), due(100_000));
        let settle = Next::Settle(claim(100_000, 1, false));
        assert_eq!(begun.next(&every, Missed::Once, 200_000, 2), settle);
        // The new leader has claimed it: the old one cannot end it any more.
        let again = begun.claimed(claim(100_000, 2, false));
        assert_eq!(again.finished(&claim(100_000, 1, false), 1), None);
        assert!(again.finished(&claim(100_000, 2, false), 2).is_some());
    }

    #[test]
    fn what_may_have_been_recorded_is_not_run_again() {
        let every = seconds(10);
        let begun = mark(&every).claimed(claim(100_000, 1, false));
        let after = begun.forgotten_up_to(150_000, 2);
        assert_eq!((after.last, &after.claim), (150_000, &None));
        assert_eq!(after.next(&every, Missed::All, 155_000, 2), Next::Wait(Some(160_000)));
        // What this very leader has begun since goes on.
        let own = begun.claimed(claim(100_000, 2, false));
        assert!(own.forgotten_up_to(150_000, 2).claim.is_some());
        assert!(begun.forgotten_up_to(0, 2).claim.is_some(), "nothing was forgotten");
    }

    #[test]
    fn a_run_by_hand_comes_between_and_moves_nothing() {
        let every = seconds(10);
        let asked = mark(&every).raised(100_000).requested(104_000).requested(104_500);
        let by_hand = Next::Claim { time: 104_000, manual: true };
        assert_eq!(asked.next(&every, Missed::Skip, 105_000, 1), by_hand);
        let begun = asked.claimed(claim(104_000, 1, true));
        assert_eq!((begun.last, begun.requested), (100_000, None));
        // Not repeated by the next leader, whatever the policy.
        let settle = Next::Settle(claim(104_000, 1, true));
        assert_eq!(begun.next(&every, Missed::All, 105_000, 2), settle);
    }
}
