//! The port: where a cluster keeps what all instances know. Whatever a leader does is done only
//! while it leads, tested where it is kept, in the same step.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;
use lockd_elect::{Candidate, Epoch};

use crate::member::Entry;
use crate::task::{Mark, Run};

/// The registry could not be asked, or said no.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// Nothing is known about what became of the request.
    #[error("{0}")]
    Unavailable(String),
    /// It will not get better by trying again: wrong password, wrong type, missing rights.
    #[error("{0}")]
    Refused(String),
}

/// The answer of a registry, some time.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Fault>>;

/// This instance, as it is written into the registry.
#[derive(Clone, Debug)]
pub struct Myself {
    pub candidate: Candidate,
    pub worker_count: u64,
    /// Seconds since 1970; `None` until it was registered.
    pub started_at: Option<u64>,
}

/// What came of a heartbeat.
#[derive(Clone, Debug)]
pub enum Beat {
    Counted(Pulse),
    /// Another process has registered under the same name since, and is alive.
    Displaced,
}

/// What a heartbeat brings back.
#[derive(Clone, Debug, Default)]
pub struct Pulse {
    /// The registry's time, in ms.
    pub now: u64,
    pub started_at: u64,
    /// Nobody has looked after the others for a while.
    pub survey_due: bool,
    pub marks: BTreeMap<String, Mark>,
}

/// Everything about the instances, as of one moment or a few close ones.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub now: u64,
    pub leader: Option<Leader>,
    /// In order of their ids.
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub id: String,
    /// Seconds since 1970.
    pub since: u64,
}

/// A change of an entry, by the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amendment {
    /// If it still is as it was.
    Restate { id: String, old: String, new: String },
    /// If its heartbeat is still missing, since long enough.
    Remove { id: String },
}

/// What came of amendments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amended {
    /// Whether whoever asked was still the leader; nothing was changed otherwise.
    pub led: bool,
    pub removed: Vec<String>,
}

/// A change of a task.
#[derive(Clone, Debug)]
pub struct Swap<'a> {
    pub task: &'a str,
    /// The revision that it must have; none if there must be no such task.
    pub old: Option<u64>,
    pub new: &'a Mark,
    /// Only while this leads.
    pub under: Option<Epoch>,
    /// To be recorded with it.
    pub run: Option<&'a Run>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swapped {
    Done,
    /// It was not as expected, but so.
    Changed(Option<Mark>),
    NotLeader,
}

/// The most instances that one cluster may have.
pub const INSTANCES_MAX: usize = 100_000;

/// Where a cluster is kept, as one instance reaches it.
pub trait Registry: fmt::Debug + Send + Sync {
    /// Takes the name, whoever had it before, and counts as a heartbeat.
    fn register<'a>(&'a self, me: &'a Myself) -> Answer<'a, Pulse>;

    /// Says that the instance is there.
    fn beat<'a>(&'a self, me: &'a Myself) -> Answer<'a, Beat>;

    /// Takes the instance out, unless another process has its name by now.
    fn deregister<'a>(&'a self, me: &'a Myself) -> Answer<'a, ()>;

    /// Looks after all; heartbeats that are missing are remembered from the first time.
    fn survey(&self) -> Answer<'_, Survey>;

    fn amend<'a>(&'a self, epoch: Epoch, changes: &'a [Amendment]) -> Answer<'a, Amended>;

    fn marks(&self) -> Answer<'_, BTreeMap<String, Mark>>;

    fn swap<'a>(&'a self, swap: Swap<'a>) -> Answer<'a, Swapped>;

    /// The latest runs, the newest first.
    fn runs<'a>(&'a self, task: &'a str, limit: usize) -> Answer<'a, Vec<Run>>;

    /// The instance's own numbers, as JSON.
    fn push_metrics<'a>(&'a self, json: &'a str) -> Answer<'a, ()>;

    /// The numbers of these instances, as far as there are any.
    fn metrics<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<(String, String)>>;

    /// Writes the numbers of all; `false` when this does not lead.
    fn set_global<'a>(&'a self, epoch: Epoch, json: &'a str) -> Answer<'a, bool>;

    fn global(&self) -> Answer<'_, Option<String>>;
}
