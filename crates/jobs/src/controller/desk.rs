//! What a leader has in front of it, in memory. Everything here was kept before, but for what is
//! under way: turns, and who waits.

use std::collections::{BTreeMap, BTreeSet};

use super::line::Line;
use crate::agent::Agent;
use crate::board::Board;
use crate::job::{Job, JobState, Taker};
use crate::ledger::Kind;

#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) board: Board,
    pub(crate) finished: Finished,
    /// Jobs whose records cannot be read.
    pub(crate) unreadable: BTreeSet<String>,
    /// By name.
    pub(crate) agents: BTreeMap<String, KnownAgent>,
    /// What somebody changes just now, and whether nobody knows what became of the change.
    pub(crate) turns: BTreeMap<(Kind, String), Doubt>,
    /// Questions upon which a job is given out just now.
    pub(crate) granting: BTreeMap<Taker, String>,
    pub(crate) line: Line,
    /// New jobs that are being kept, and about how many bytes of them.
    pub(crate) arriving: usize,
    pub(crate) arriving_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doubt {
    No,
    Yes,
}

/// An agent as it was kept, and as it was seen since.
#[derive(Clone, Debug)]
pub(crate) struct KnownAgent {
    pub(crate) kept: Agent,
    pub(crate) incarnation: String,
    pub(crate) seen_ms: u64,
    /// When it was written last, by this office.
    pub(crate) written_ms: Option<u64>,
}

impl KnownAgent {
    pub(crate) fn kept(agent: Agent, written_ms: Option<u64>, seen_ms: u64) -> Self {
        Self { incarnation: agent.incarnation.clone(), seen_ms, written_ms, kept: agent }
    }
}

/// Where a job is to be found.
#[derive(Clone, Debug)]
pub(crate) enum Whereabouts {
    OnBoard(Box<Job>),
    /// In the ledger only.
    Kept,
    Unreadable,
    Nowhere,
}

impl Desk {
    pub(crate) fn whereabouts(&self, id: &str) -> Whereabouts {
        if let Some(job) = self.board.get(id) {
            return Whereabouts::OnBoard(Box::new(job.clone()));
        }
        if self.unreadable.contains(id) {
            return Whereabouts::Unreadable;
        }
        if self.finished.contains(id) { Whereabouts::Kept } else { Whereabouts::Nowhere }
    }

    /// Whether that process of an agent was deleted.
    pub(crate) fn refuses(&self, taker: &Taker) -> bool {
        let known = self.agents.get(&taker.agent);
        known.is_some_and(|known| known.kept.refuses(&taker.incarnation))
    }

    /// The job as it is kept now, in so many bytes.
    pub(crate) fn put(&mut self, job: Job, bytes: usize, now: u64) {
        self.unreadable.remove(&job.id);
        match job.state {
            JobState::Succeeded | JobState::Failed | JobState::Cancelled => {
                self.finished.put(&job.id, Ended { at_ms: now, bytes });
            }
            JobState::Queued | JobState::Leased => self.finished.remove(&job.id),
        }
        self.board.put(job);
    }

    /// The job is not kept any more.
    pub(crate) fn forget(&mut self, id: &str) {
        self.board.remove(id);
        self.finished.remove(id);
        self.unreadable.remove(id);
    }

    /// The job is kept and cannot be read.
    pub(crate) fn misread(&mut self, id: &str) {
        self.forget(id);
        self.unreadable.insert(id.into());
    }
}

/// Jobs that are over: their ids, by when they ended. All else about them is in the ledger.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    ended: BTreeMap<String, Ended>,
    by_end: BTreeSet<(u64, String)>,
    bytes: usize,
}

/// When a job ended, and how many bytes are kept of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) at_ms: u64,
    pub(crate) bytes: usize,
}

/// How much is kept of jobs that are over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    pub(crate) jobs_max: usize,
    /// Younger ones do not count as too many.
    pub(crate) young_since_ms: u64,
    /// Of all, however young: whoever takes office reads them.
    pub(crate) bytes_max: usize,
}

impl Finished {
    pub(crate) fn put(&mut self, id: &str, ended: Ended) {
        self.remove(id);
        self.ended.insert(id.into(), ended);
        self.by_end.insert((ended.at_ms, id.into()));
        self.bytes = self.bytes.saturating_add(ended.bytes);
    }

    pub(crate) fn remove(&mut self, id: &str) {
        if let Some(ended) = self.ended.remove(id) {
            self.by_end.remove(&(ended.at_ms, id.to_owned()));
            self.bytes = self.bytes.saturating_sub(ended.bytes);
        }
    }

    pub(crate) fn contains(&self, id: &str) -> bool {
        self.ended.contains_key(id)
    }

    /// Those that must go, the oldest first.
    pub(crate) fn too_many(&self, keep: Keep) -> impl Iterator<Item = &str> {
        let (mut jobs, mut bytes) = (self.ended.len(), self.bytes);
        self.by_end.iter().map_while(move |(at, id)| {
            let goes =
                bytes > keep.bytes_max || (jobs > keep.jobs_max && *at < keep.young_since_ms);
            jobs = jobs.saturating_sub(1);
            bytes = bytes.saturating_sub(self.ended.get(id).map_or(0, |ended| ended.bytes));
            goes.then_some(id.as_str())
        })
    }
}
