//! The jobs that are not over, as a leader looks at them: which is next, which attempt has lapsed,
//! and when to look again. In memory; what it shows was kept before.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::{Job, JobState};

/// Jobs that are not over.
#[derive(Clone, Debug, Default)]
pub struct Board {
    jobs: BTreeMap<String, Job>,
    /// By what is given out first.
    ready: BTreeSet<(std::cmp::Reverse<i32>, u64, String)>,
    /// By when they may be given out.
    later: BTreeSet<(u64, String)>,
    /// By when nobody has renewed them.
    leased: BTreeSet<(u64, String)>,
    /// From the id of a lease to that of its job.
    leases: BTreeMap<String, String>,
}

impl Board {
    /// The job as it is now. One that is over goes.
    pub fn put(&mut self, job: Job) {
        self.take_down(&job.id);
        match (job.state, &job.lease) {
            (JobState::Queued, _) => {
                self.later.insert((job.not_before_ms, job.id.clone()));
            }
            (JobState::Leased, Some(lease)) => {
                self.leased.insert((lease.expires_at_ms, job.id.clone()));
                self.leases.insert(lease.id.clone(), job.id.clone());
            }
            (JobState::Leased, None)
            | (JobState::Succeeded | JobState::Failed | JobState::Cancelled, _) => return,
        }
        self.jobs.insert(job.id.clone(), job);
    }

    fn take_down(&mut self, id: &str) {
        let Some(old) = self.jobs.remove(id) else { return };
        self.later.remove(&(old.not_before_ms, old.id.clone()));
        self.ready.remove(&rank(&old));
        if let Some(lease) = &old.lease {
            self.leased.remove(&(lease.expires_at_ms, old.id.clone()));
            self.leases.remove(&lease.id);
        }
    }

    /// The job to be given out next.
    pub fn next(&mut self, now: u64) -> Option<&Job> {
        while let Some((at, _)) = self.later.first()
            && *at <= now
            && let Some((_, id)) = self.later.pop_first()
        {
            if let Some(job) = self.jobs.get(&id) {
                self.ready.insert(rank(job));
            }
        }
        let (_, _, id) = self.ready.first()?;
        self.jobs.get(id)
    }

    /// A job whose attempt nobody has renewed in time.
    #[must_use]
    pub fn lapsed(&self, now: u64) -> Option<&Job> {
        let (at, id) = self.leased.first()?;
        if *at <= now { self.jobs.get(id) } else { None }
    }

    /// When the next job may be given out, or the next attempt lapses.
    #[must_use]
    pub fn look_at(&self) -> Option<u64> {
        let later = self.later.first().map(|(at, _)| *at);
        let leased = self.leased.first().map(|(at, _)| *at);
        later.into_iter().chain(leased).min()
    }

    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Job> {
        self.jobs.get(id)
    }

    /// The job that was given out under this lease.
    #[must_use]
    pub fn of_lease(&self, lease_id: &str) -> Option<&Job> {
        self.leases.get(lease_id).and_then(|id| self.jobs.get(id))
    }

    /// All that are with agents now.
    pub fn with_agents(&self) -> impl Iterator<Item = &Job> {
        self.leased.iter().filter_map(|(_, id)| self.jobs.get(id))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

fn rank(job: &Job) -> (std::cmp::Reverse<i32>, u64, String) {
    let (priority, created, id) = job.rank();
    (priority, created, id.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::JobSpec;

    fn job(id: &str, priority: i32, at: u64) -> Job {
        let spec: JobSpec = serde_json::from_str(r#"{"command": ["true"]}"#).unwrap();
        Job::new(id.into(), JobSpec { priority, ..spec }, 1, at)
    }

    fn given_out(board: &mut Board, now: u64) -> Option<String> {
        let next = board.next(now)?;
        let lease = format!("{}-{}", next.id, next.job_epoch);
        let next = next.leased("a", lease, 1, (now, 100)).unwrap();
        let id = next.id.clone();
        board.put(next);
        Some(id)
    }

    #[test]
    fn jobs_are_given_out_by_priority_then_age() {
        let mut board = Board::default();
        for job in [job("old", 0, 1), job("urgent", 9, 5), job("new", 0, 4), job("later", 99, 50)] {
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
        let again = board.lapsed(110).unwrap().lapsed(1, 110).unwrap();
        board.put(again);
        assert!(board.of_lease("a-0").is_none() && board.lapsed(999_999).is_none());
        assert_eq!(board.look_at(), Some(1_110), "after a pause");
        let cancelled = board.get("a").unwrap().cancelled(1, 200).unwrap();
        board.put(cancelled);
        assert!(board.is_empty() && board.look_at().is_none());
    }

    proptest! {
        #[test]
        fn every_job_is_in_one_place(steps in prop::collection::vec((0_u8..4, 0_usize..5, 0_u64..300), 0..80)) {
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
                    _ => {
                        let over = board.get(&id).and_then(|job| job.cancelled(1, now).ok());
                        over.into_iter().for_each(|job| board.put(job));
                    }
                }
                let places = board.ready.len() + board.later.len() + board.leased.len();
                prop_assert_eq!(places, board.jobs.len());
                prop_assert_eq!(board.leases.len(), board.leased.len());
            }
        }
    }
}
