//! The jobs that are not over, as a leader looks at them: which is next, which attempt has lapsed,
//! and when to look again. In memory; what it shows was kept before.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::job::{Job, JobState, Taker};

/// Jobs that are not over.
#[derive(Clone, Debug, Default)]
pub struct Board {
    jobs: BTreeMap<String, Posted>,
    /// By what is given out first.
    ready: BTreeSet<Rank>,
    /// By when they may be given out.
    later: BTreeSet<(u64, String)>,
    /// By when nobody has renewed them.
    leased: BTreeSet<(u64, String)>,
    /// By when they must be over.
    deadlines: BTreeSet<(u64, String)>,
    /// From the id of a lease to that of its job.
    leases: BTreeMap<String, String>,
    /// From the question by which a job was given out to that job.
    taken: BTreeMap<Taker, String>,
    /// How many were put up so far.
    puts: u64,
    weight: usize,
}

#[derive(Clone, Debug)]
struct Posted {
    job: Job,
    /// In which order they were put up: two leaders' clocks may differ, so times say nothing.
    order: u64,
    /// Somebody changes it: it is neither given out nor does it lapse.
    held: bool,
}

/// What is given out first has the smaller one.
type Rank = (Reverse<i32>, u64, String);

impl Board {
    /// The job as it is now. One that is over goes.
    pub fn put(&mut self, job: Job) {
        let before = self.take_down(&job.id);
        let is_there = match (job.state, &job.lease) {
            (JobState::Queued, _) | (JobState::Leased, Some(_)) => true,
            (JobState::Leased, None)
            | (JobState::Succeeded | JobState::Failed | JobState::Cancelled, _) => false,
        };
        if !is_there {
            return;
        }
        let (order, held) = before.unwrap_or_else(|| {
            self.puts += 1;
            (self.puts, false)
        });
        self.weight += job.weight();
        if let Some(lease) = &job.lease {
            self.leases.insert(lease.id.clone(), job.id.clone());
            if !lease.taker.request_id.is_empty() {
                self.taken.insert(lease.taker.clone(), job.id.clone());
            }
        }
        let id = job.id.clone();
        self.jobs.insert(id.clone(), Posted { job, order, held });
        self.show(&id);
    }

    /// Takes a job off; its order and whether it is held.
    fn take_down(&mut self, id: &str) -> Option<(u64, bool)> {
        self.hide(id);
        let old = self.jobs.remove(id)?;
        self.weight = self.weight.saturating_sub(old.job.weight());
        if let Some(lease) = &old.job.lease {
            self.leases.remove(&lease.id);
            self.taken.remove(&lease.taker);
        }
        Some((old.order, old.held))
    }

    /// Takes a job off, whatever becomes of it.
    pub fn remove(&mut self, id: &str) {
        self.take_down(id);
    }

    /// Puts it where its time comes, unless it is held.
    fn show(&mut self, id: &str) {
        let Some(Posted { job, held: false, .. }) = self.jobs.get(id) else { return };
        match &job.lease {
            None => self.later.insert((job.not_before_ms, id.into())),
            Some(lease) => self.leased.insert((lease.expires_at_ms, id.into())),
        };
        if let Some(at) = job.deadline_at_ms {
            self.deadlines.insert((at, id.into()));
        }
    }

    fn hide(&mut self, id: &str) {
        let Some(Posted { job, order, .. }) = self.jobs.get(id) else { return };
        self.later.remove(&(job.not_before_ms, id.into()));
        self.ready.remove(&(Reverse(job.spec.priority), *order, id.into()));
        if let Some(lease) = &job.lease {
            self.leased.remove(&(lease.expires_at_ms, id.into()));
        }
        if let Some(at) = job.deadline_at_ms {
            self.deadlines.remove(&(at, id.into()));
        }
    }

    /// Somebody is about to change it.
    pub fn hold(&mut self, id: &str) {
        self.hide(id);
        if let Some(posted) = self.jobs.get_mut(id) {
            posted.held = true;
        }
    }

    /// Nobody changes it any more.
    pub fn let_go(&mut self, id: &str) {
        let held = self.jobs.get_mut(id).filter(|posted| posted.held);
        if let Some(posted) = held {
            posted.held = false;
            self.show(id);
        }
    }

    /// Whatever may be given out by now is ready.
    pub fn ripen(&mut self, now: u64) {
        while let Some((at, _)) = self.later.first()
            && *at <= now
            && let Some((_, id)) = self.later.pop_first()
        {
            if let Some(posted) = self.jobs.get(&id) {
                self.ready.insert((Reverse(posted.job.spec.priority), posted.order, id));
            }
        }
    }

    /// The job to be given out next.
    pub fn next(&mut self, now: u64) -> Option<&Job> {
        self.ripen(now);
        // What is not over by its deadline lapses, and is not given out before it does.
        while let Some((_, _, id)) = self.ready.first()
            && self.jobs.get(id).is_none_or(|posted| posted.job.is_overdue(now))
        {
            self.ready.pop_first();
        }
        let (_, _, id) = self.ready.first()?;
        self.get(id)
    }

    /// A job whose attempt nobody has renewed in time, or which is not over by its deadline.
    #[must_use]
    pub fn lapsed(&self, now: u64) -> Option<&Job> {
        let (at, id) = self.deadlines.first().into_iter().chain(self.leased.first()).min()?;
        if *at <= now { self.get(id) } else { None }
    }

    /// When the next job may be given out, or the next attempt lapses.
    #[must_use]
    pub fn look_at(&self) -> Option<u64> {
        let firsts = [self.later.first(), self.leased.first(), self.deadlines.first()];
        firsts.into_iter().flatten().map(|(at, _)| *at).min()
    }

    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Job> {
        self.jobs.get(id).map(|posted| &posted.job)
    }

    /// The job that was given out under this lease.
    #[must_use]
    pub fn of_lease(&self, lease_id: &str) -> Option<&Job> {
        self.leases.get(lease_id).and_then(|id| self.get(id))
    }

    /// The job that was given out upon this question.
    #[must_use]
    pub fn taken_by(&self, taker: &Taker) -> Option<&Job> {
        self.taken.get(taker).and_then(|id| self.get(id))
    }

    /// All that are with agents now.
    pub fn with_agents(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|posted| &posted.job).filter(|job| job.lease.is_some())
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// About how much memory the jobs take.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::JobSpec;

    fn job(id: &str, priority: i32, at: u64) -> Job {
        let spec: JobSpec = serde_json::from_str(r#"{"command": ["true"]}"#).unwrap();
        let deadline_seconds = id.ends_with('1').then_some(1);
        Job::new(id.into(), JobSpec { priority, deadline_seconds, ..spec }, 1, at)
    }

    fn given_out(board: &mut Board, now: u64) -> Option<String> {
        let next = board.next(now)?;
        let lease = format!("{}-{}", next.id, next.job_epoch);
        let taker = Taker { agent: "a".into(), request_id: lease.clone(), ..Taker::default() };
        let next = next.leased(taker, lease, 1, (now, 100)).ok()?;
        let id = next.id.clone();
        board.put(next);
        Some(id)
    }

    #[test]
    fn jobs_are_given_out_by_priority_then_in_the_order_they_came() {
        let mut board = Board::default();
        // The clock of whoever took in the third was behind: it does not overtake the first.
        for job in [job("old", 0, 4), job("urgent", 9, 5), job("new", 0, 1), job("later", 99, 50)] {
            board.put(job);
        }
        let order: Vec<String> = (10..13).filter_map(|now| given_out(&mut board, now)).collect();
        assert_eq!(order, ["urgent", "old", "new"]);
        assert_eq!(given_out(&mut board, 14), None, "it is not time");
        assert_eq!(board.look_at(), Some(50));
        assert_eq!(given_out(&mut board, 50).as_deref(), Some("later"));
        assert_eq!(board.with_agents().count(), 4);
    }

    #[test]
    fn attempts_lapse_and_jobs_that_are_over_go() {
        let mut board = Board::default();
        board.put(job("a", 0, 1));
        given_out(&mut board, 10);
        assert!(board.of_lease("a-0").is_some() && board.lapsed(109).is_none());
        let taker = board.get("a").unwrap().lease.as_ref().unwrap().taker.clone();
        assert_eq!(board.taken_by(&taker).map(|job| job.id.as_str()), Some("a"));
        let again = board.lapsed(110).unwrap().lapsed(1, 110).unwrap();
        board.put(again);
        assert!(board.of_lease("a-0").is_none() && board.lapsed(999_999).is_none());
        assert!(board.taken_by(&taker).is_none());
        assert_eq!(board.look_at(), Some(1_110), "after a pause");
        let cancelled = board.get("a").unwrap().cancelled(1, 200).unwrap().unwrap();
        board.put(cancelled);
        assert!(board.is_empty() && board.look_at().is_none() && board.weight() == 0);
    }

    #[test]
    fn a_job_that_is_held_is_neither_given_out_nor_lapses() {
        let mut board = Board::default();
        board.put(job("a1", 0, 1));
        board.put(job("b", 0, 1));
        board.hold("a1");
        assert_eq!(board.next(10).unwrap().id, "b");
        assert!(board.lapsed(5_000).is_none());
        // A change of it is put up while it is held.
        board.put(board.get("a1").unwrap().clone());
        assert_eq!(board.next(10).unwrap().id, "b");
        board.let_go("a1");
        assert_eq!(board.next(10).unwrap().id, "a1");
        assert_eq!(board.lapsed(1_001).unwrap().id, "a1", "its deadline");
    }

    proptest! {
        #[test]
        fn every_job_is_in_one_place(steps in prop::collection::vec((0_u8..6, 0_usize..5, 0_u64..300), 0..80)) {
            let (mut board, mut now) = (Board::default(), 0);
            for (what, which, wait) in steps {
                now += wait;
                let id = format!("j{which}");
                match what {
                    // As it was when it was submitted: only if it is not there.
                    0 if board.get(&id).is_none() => board.put(job(&id, 0, now)),
                    0 => {}
                    1 => drop(given_out(&mut board, now)),
                    2 => {
                        let lapsed = board.lapsed(now).and_then(|job| job.lapsed(1, now));
                        lapsed.into_iter().for_each(|job| board.put(job));
                    }
                    3 => board.hold(&id),
                    4 => board.let_go(&id),
                    _ => {
                        let over = board.get(&id).and_then(|job| job.cancelled(1, now).ok());
                        over.flatten().into_iter().for_each(|job| board.put(job));
                    }
                }
                let places = board.ready.len() + board.later.len() + board.leased.len();
                let shown = board.jobs.values().filter(|posted| !posted.held).count();
                let overdue = |posted: &&Posted| !posted.held && posted.job.lease.is_none() && posted.job.is_overdue(now);
                let overdue = board.jobs.values().filter(overdue).count();
                prop_assert!((shown - overdue..=shown).contains(&places));
                let with_deadline = board.jobs.iter().filter(|(id, posted)| !posted.held && id.ends_with('1'));
                prop_assert_eq!(board.deadlines.len(), with_deadline.count());
                prop_assert_eq!(board.leases.len(), board.with_agents().count());
                prop_assert_eq!(board.taken.len(), board.leases.len());
                let weight: usize = board.jobs.values().map(|posted| posted.job.weight()).sum();
                prop_assert_eq!(board.weight(), weight);
            }
        }
    }
}
