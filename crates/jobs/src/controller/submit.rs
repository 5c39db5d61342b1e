//! Jobs come in, and are called off. A key has one job, whatever happens: the job's id is made of
//! it.

use std::sync::Arc;
use std::time::Duration;

use lockd_wire::job::{JobSpec, Submitted};
use sha2::{Digest as _, Sha256};

use super::commit::Change;
use super::desk::Whereabouts;
use super::office::Office;
use super::refusal::Refusal;
use super::take::read_job;
use super::turn::DOUBT_WAIT;
use crate::job::{self, Job, Refused};
use crate::ledger::Kind;

pub(crate) const KEY_MAX: usize = 256;

/// What came of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TakenIn {
    pub(crate) submitted: Submitted,
    /// Whether it was there before.
    pub(crate) again: bool,
}

impl TakenIn {
    fn of(job: &Job, again: bool) -> Self {
        let (id, job_epoch, leader_epoch) = (job.id.clone(), job.job_epoch, job.leader_epoch);
        Self { submitted: Submitted { id, job_epoch, leader_epoch }, again }
    }
}

impl Office {
    /// What is asked of a leader must be asked of this one.
    pub(crate) fn is_meant(&self, leader_epoch: Option<u64>) -> Result<(), Refusal> {
        match leader_epoch {
            Some(epoch) if epoch != self.epoch => {
                Err(Refusal::stale(Some(self.epoch), "of another leader"))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) async fn submit(
        self: &Arc<Self>,
        key: Option<&str>,
        spec: JobSpec,
        leader_epoch: Option<u64>,
    ) -> Result<TakenIn, Refusal> {
        self.is_meant(leader_epoch)?;
        job::check(&spec).map_err(Refusal::Spec)?;
        let id = match key {
            None => new_id(),
            Some(key) if (1..=KEY_MAX).contains(&key.len()) => id_of_key(key),
            Some(_) => return Err(Refusal::Key),
        };
        let mut turn = self.turn(Kind::Job, &id, DOUBT_WAIT).await?;
        match self.find(&id).await {
            Ok(there) if there.spec == spec => return Ok(TakenIn::of(&there, true)),
            Ok(_) => return Err(Refusal::KeyReused),
            Err(Refusal::NotFound(_)) => {}
            Err(refusal) => return Err(refusal),
        }
        let job = Job::new(id, spec, self.epoch, self.time.now());
        turn.arrives(job.weight())?;
        let taken_in = TakenIn::of(&job, false);
        self.commit(turn, Change::Job(Box::new(job))).await?;
        Ok(taken_in)
    }

    /// Calls a job off. One that was called off before is as it is.
    pub(crate) async fn cancel(self: &Arc<Self>, id: &str) -> Result<Job, Refusal> {
        let turn = self.turn(Kind::Job, id, Duration::ZERO).await?;
        let job = self.find(id).await?;
        match job.cancelled(self.epoch, self.time.now()) {
            Ok(None) => Ok(job),
            Ok(Some(next)) => {
                self.commit(turn, Change::Job(Box::new(next.clone()))).await?;
                Ok(next)
            }
            Err(Refused::Over | Refused::StaleEpoch | Refused::NotReady) => Err(Refusal::JobOver),
        }
    }

    /// The job as it is, by whoever has the turn: of one that is over, as it is kept.
    pub(crate) async fn find(&self, id: &str) -> Result<Job, Refusal> {
        let whereabouts = self.desk.lock().whereabouts(id);
        match whereabouts {
            Whereabouts::OnBoard(job) => Ok(*job),
            Whereabouts::Unreadable => Err(Refusal::Damaged),
            Whereabouts::Nowhere => Err(Refusal::NotFound("no such job")),
            Whereabouts::Kept => {
                let read = self.ledger.read(Kind::Job, id).await;
                let record = read.map_err(|fault| {
                    tracing::warn!(%fault, id, "a job cannot be read");
                    Refusal::Unavailable
                })?;
                let record = record.ok_or(Refusal::NotFound("no such job"))?;
                read_job(&record).map_err(|_| Refusal::Damaged)
            }
        }
    }
}

/// Of the key alone, so that two who use it at the same time, at two leaders, make one job.
pub(crate) fn id_of_key(key: &str) -> String {
    hex(&Sha256::digest(key.as_bytes()))
}

pub(crate) fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The first 128 bits.
pub(crate) fn hex(hash: &[u8]) -> String {
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
