//! Taking office: the store's epoch is raised first, then everything is read, then the attempts
//! that go on are confirmed under the new epoch. Only then does anybody hear of a leader.
//!
//! Nothing that a record contains keeps a leader from office: what cannot be read is left alone,
//! and told.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;

use super::Shared;
use super::desk::{Desk, Ended, KnownAgent};
use super::events::LeaderEvent;
use super::office::{Office, Opening, STORE_AT_ONCE};
use super::time::OfficeTime;
use crate::agent::Agent;
use crate::job::{Job, JobState};
use crate::ledger::{Kind, LedgerFault, Opened, Record, Term, Written};

/// Pauses while the store cannot be asked: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Records that are asked for at once.
const PAGE: usize = 1_024;
/// How often the store may refuse to confirm an attempt before it is left alone.
const REFUSALS_MAX: u32 = 3;
/// A number above this was not written by a controller: the next ones would not be kept.
const VERSION_MAX: u64 = 1 << 53;

/// What came of it.
#[derive(Debug)]
pub(crate) enum Taken {
    Office(Arc<Office>),
    /// The store knows this epoch, which is not lower.
    Behind(u64),
}

enum Fault {
    Ledger(LedgerFault),
    /// Somebody else has opened the store since, under this epoch where it was seen.
    Overtaken(Option<u64>),
}

impl From<LedgerFault> for Fault {
    fn from(fault: LedgerFault) -> Self {
        Self::Ledger(fault)
    }
}

/// Tries until there is an answer.
pub(crate) async fn take(shared: &Shared, epoch: u64) -> Taken {
    let mut pause = PAUSE_MIN;
    loop {
        match attempt(shared, epoch).await {
            Ok(taken) => return taken,
            Err(Fault::Overtaken(seen)) => return Taken::Behind(seen.unwrap_or(epoch)),
            Err(Fault::Ledger(fault)) => {
                tracing::warn!(%fault, epoch, "the office cannot be taken yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

async fn attempt(shared: &Shared, epoch: u64) -> Result<Taken, Fault> {
    let term = Term { epoch, node: shared.settings.node_id.clone() };
    match shared.ledger.open(&term).await? {
        Opened::Behind(seen) => return Ok(Taken::Behind(seen)),
        Opened::Yes => {}
    }
    let time = shared.time.begin();
    let desk = load(shared, epoch, &time).await?;
    let (jobs, agents) = (desk.board.len(), desk.agents.len());
    let opening = Opening {
        epoch,
        settings: Arc::clone(&shared.settings),
        ledger: Arc::clone(&shared.ledger),
        events: Arc::clone(&shared.events),
        time,
    };
    let office = Arc::new(Office::new(opening, desk));
    shared.events.begin(epoch, shared.time.unix_ms());
    let leader = LeaderEvent { leader_id: &shared.settings.node_id, leader_epoch: epoch };
    shared.events.tell(epoch, "leader", &leader);
    tracing::info!(epoch, jobs, agents, "took office");
    Ok(Taken::Office(office))
}

/// Everything that is kept, with the attempts that go on confirmed.
async fn load(shared: &Shared, epoch: u64, time: &OfficeTime) -> Result<Desk, Fault> {
    let mut desk = Desk::default();
    let mut unfinished = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = page(shared, Kind::Job, after.as_deref()).await?;
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        for record in page {
            match read_job(&record) {
                Ok(job) if job.state.is_over() => {
                    let at_ms = job.updated_at_ms.min(time.now());
                    desk.finished.put(&job.id, Ended { at_ms, bytes: record.body.len() });
                }
                Ok(job) => unfinished.push(job),
                Err(why) => {
                    tracing::error!(id = %record.id, %why, "a job cannot be read");
                    desk.unreadable.insert(record.id);
                }
            }
        }
    }
    load_agents(shared, &mut desk, time).await?;
    // In the order in which they came, as far as the clocks of those who took them in agree.
    unfinished
        .sort_by(|one, other| (one.created_at_ms, &one.id).cmp(&(other.created_at_ms, &other.id)));
    let ids: Vec<String> = unfinished.iter().map(|job| job.id.clone()).collect();
    for job in confirm(shared, epoch, time, unfinished).await? {
        desk.board.put(job);
    }
    let left = ids.into_iter().filter(|id| desk.board.get(id).is_none());
    desk.unreadable.extend(left);
    Ok(desk)
}

/// The next records, tried until they come: whoever began from the start again because one page was
/// late might never get to the end.
async fn page(shared: &Shared, kind: Kind, after: Option<&str>) -> Result<Vec<Record>, Fault> {
    let mut pause = PAUSE_MIN;
    loop {
        match shared.ledger.load(kind, after, PAGE).await {
            Ok(page) => return Ok(page),
            Err(LedgerFault::Unavailable(why)) => {
                tracing::warn!(%why, after, "what is kept cannot be read yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(fault @ LedgerFault::Refused(_)) => return Err(fault.into()),
        }
    }
}

async fn load_agents(shared: &Shared, desk: &mut Desk, time: &OfficeTime) -> Result<(), Fault> {
    let mut after: Option<String> = None;
    loop {
        let page = page(shared, Kind::Agent, after.as_deref()).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.id.clone());
        for record in page {
            match serde_json::from_str::<Agent>(&record.body) {
                Ok(agent) if record.version <= VERSION_MAX => {
                    let agent = Agent { version: record.version, ..agent };
                    let seen_ms = agent.last_seen_ms.min(time.now());
                    let known = KnownAgent::kept(agent, None, seen_ms);
                    desk.agents.insert(known.kept.name.clone(), known);
                }
                Ok(_) => tracing::error!(id = %record.id, "an agent's version cannot be"),
                Err(error) => tracing::error!(id = %record.id, %error, "an agent cannot be read"),
            }
        }
    }
}

/// All jobs as they are under the new leader, in the same order. Attempts that go on are written.
async fn confirm(
    shared: &Shared,
    epoch: u64,
    time: &OfficeTime,
    jobs: Vec<Job>,
) -> Result<Vec<Job>, Fault> {
    let ttl = shared.settings.lease_ttl_ms();
    let one_by_one = jobs.into_iter().map(|job| confirm_one(shared, epoch, time, job));
    let mut confirming = futures_util::stream::iter(one_by_one).buffered(STORE_AT_ONCE);
    let mut confirmed = Vec::new();
    while let Some(job) = confirming.next().await {
        confirmed.extend(job?);
    }
    // Writing has taken its time: it is counted once more, in memory.
    let now = time.now();
    for job in &mut confirmed {
        let (version, updated_at_ms) = (job.version, job.updated_at_ms);
        if job.lease.is_some() {
            *job = Job { version, updated_at_ms, ..job.adopted(epoch, (now, ttl)) };
        }
    }
    Ok(confirmed)
}

/// Nothing, if the store does not take it.
fn confirm_one<'a>(
    shared: &'a Shared,
    epoch: u64,
    time: &'a OfficeTime,
    job: Job,
) -> BoxFuture<'a, Result<Option<Job>, Fault>> {
    Box::pin(async move {
        let job = job.adopted(epoch, (time.now(), shared.settings.lease_ttl_ms()));
        let is_kept = job.lease.is_none() || write(shared, epoch, &job).await?;
        Ok(is_kept.then_some(job))
    })
}

/// The same write until it is certain. One that the store refuses for good is left alone.
async fn write(shared: &Shared, epoch: u64, job: &Job) -> Result<bool, Fault> {
    let body = serde_json::to_string(job)
        .map_err(|error| Fault::Ledger(LedgerFault::Refused(error.to_string())))?;
    let (id, version) = (job.id.clone(), job.version);
    let record = Record { kind: Kind::Job, id, version, body };
    let (mut pause, mut refusals) = (PAUSE_MIN, 0);
    loop {
        match shared.ledger.write(epoch, &record).await {
            Ok(Written::Done) => return Ok(true),
            Ok(Written::Stale(seen)) => return Err(Fault::Overtaken(seen)),
            Ok(Written::Superseded) => {
                let why = format!("the store has another version of {}", record.id);
                return Err(LedgerFault::Unavailable(why).into());
            }
            Err(LedgerFault::Refused(why)) if refusals >= REFUSALS_MAX => {
                tracing::error!(%why, id = %record.id, "an attempt cannot be confirmed");
                return Ok(false);
            }
            Err(fault) => {
                refusals += u32::from(matches!(fault, LedgerFault::Refused(_)));
                tracing::warn!(%fault, id = %record.id, "an attempt is not confirmed yet");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// A job, if the record is one.
pub(crate) fn read_job(record: &Record) -> Result<Job, String> {
    let job: Job = serde_json::from_str(&record.body).map_err(|error| error.to_string())?;
    if job.id != record.id {
        return Err("it has another id than its record".into());
    }
    let is_whole = match job.state {
        JobState::Leased => job.lease.is_some(),
        JobState::Queued | JobState::Succeeded | JobState::Failed | JobState::Cancelled => {
            job.lease.is_none()
        }
    };
    if !is_whole {
        return Err("its state and its lease do not go together".into());
    }
    if record.version > VERSION_MAX {
        return Err("its version cannot be".into());
    }
    Ok(Job { version: record.version, ..job })
}
