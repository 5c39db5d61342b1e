//! What becomes of a job: pure rules. Time and new ids are arguments.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is to be done, as it is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Given to the command, as JSON.
    #[serde(default)]
    pub input: Value,
    /// The higher is given out first.
    #[serde(default)]
    pub priority: i32,
    #[serde(default = "three")]
    pub max_attempts: u32,
    /// How long one attempt may take.
    #[serde(default = "a_minute")]
    pub timeout_seconds: u64,
}

fn three() -> u32 {
    3
}

fn a_minute() -> u64 {
    60
}

/// The most that a job may bring with it.
const COMMAND_WORDS_MAX: usize = 1_000;
const TEXT_MAX: usize = 1024 * 1024;
const ATTEMPTS_MAX: u32 = 1_000;
const TIMEOUT_MAX: u64 = 30 * 24 * 3600;
/// The pause after an attempt that failed: the first, and the longest.
const PAUSE_MS: u64 = 1_000;
const PAUSE_MAX_MS: u64 = 300_000;

/// Why a job is not taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecRefused {
    #[error("a job has a command: a program and its arguments, at most {COMMAND_WORDS_MAX} words")]
    Command,
    #[error("{0:?} is no name of a variable")]
    Variable(String),
    #[error("command, env and input have at most {TEXT_MAX} bytes together")]
    TooLarge,
    #[error("max_attempts is between 1 and {ATTEMPTS_MAX}")]
    Attempts,
    #[error("timeout_seconds is between 1 and {TIMEOUT_MAX}")]
    Timeout,
}

impl JobSpec {
    /// # Errors
    /// With what is wrong with it.
    pub fn check(&self) -> Result<(), SpecRefused> {
        let named = self.command.first().is_some_and(|program| !program.is_empty());
        let sendable = self.command.iter().all(|word| !word.contains('\0'));
        if !named || !sendable || self.command.len() > COMMAND_WORDS_MAX {
            return Err(SpecRefused::Command);
        }
        let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
        let wrong = self.env.iter().find(|(name, value)| !is_name(name) || value.contains('\0'));
        if let Some((name, _)) = wrong {
            return Err(SpecRefused::Variable(name.clone()));
        }
        let words: usize = self.command.iter().map(String::len).sum();
        let variables: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if words + variables + self.input.to_string().len() > TEXT_MAX {
            return Err(SpecRefused::TooLarge);
        }
        if !(1..=ATTEMPTS_MAX).contains(&self.max_attempts) {
            return Err(SpecRefused::Attempts);
        }
        if !(1..=TIMEOUT_MAX).contains(&self.timeout_seconds) {
            return Err(SpecRefused::Timeout);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    Queued,
    Leased,
    Succeeded,
    Failed,
    Cancelled,
}

impl JobState {
    /// Whether nothing happens to it any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        match self {
            Self::Queued | Self::Leased => false,
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
        }
    }
}

/// One attempt, with one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLease {
    pub id: String,
    pub agent: String,
    pub job_epoch: u64,
    /// Of the leader that gave it out, or confirmed it last.
    pub leader_epoch: u64,
    pub expires_at_ms: u64,
    /// When the attempt is over even if it is renewed.
    pub ends_at_ms: u64,
}

/// How an attempt ended, as the agent tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobResult {
    pub success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub output: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub agent: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
    pub at_ms: u64,
}

/// A job and all that is known about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub spec: JobSpec,
    pub state: JobState,
    /// Grows with every attempt, and when it is cancelled.
    pub job_epoch: u64,
    /// Of the leader that wrote it last.
    pub leader_epoch: u64,
    pub attempts: u32,
    pub created_at_ms: u64,
    pub updated_at_ms: u64,
    /// Not given out before this.
    pub not_before_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<JobLease>,
    /// Of the latest attempt that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
}

/// Why nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The attempt, or the leader, is not the present one.
    #[error("of an attempt or a leader that is over")]
    StaleEpoch,
    #[error("the job is over")]
    Over,
    #[error("the job is not to be had now")]
    NotReady,
}

/// Who asks: the numbers that whoever has work carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    pub lease_id: &'a str,
    pub job_epoch: u64,
    pub leader_epoch: u64,
}

impl Job {
    #[must_use]
    pub fn new(id: String, spec: JobSpec, leader_epoch: u64, now: u64) -> Self {
        Self {
            id,
            spec,
            state: JobState::Queued,
            job_epoch: 0,
            leader_epoch,
            attempts: 0,
            created_at_ms: now,
            updated_at_ms: now,
            not_before_ms: now,
            lease: None,
            result: None,
        }
    }

    /// Gives it to an agent.
    ///
    /// # Errors
    /// When it is not to be had.
    pub fn leased(
        &self,
        agent: &str,
        lease_id: String,
        leader_epoch: u64,
        (now, ttl): (u64, u64),
    ) -> Result<Self, Refused> {
        if self.state != JobState::Queued || self.not_before_ms > now {
            return Err(if self.state.is_over() { Refused::Over } else { Refused::NotReady });
        }
        let ends_at_ms = now.saturating_add(self.spec.timeout_seconds.saturating_mul(1_000));
        let mut next = self.written(leader_epoch, now);
        next.job_epoch += 1;
        next.attempts += 1;
        next.state = JobState::Leased;
        next.lease = Some(JobLease {
            id: lease_id,
            agent: agent.into(),
            job_epoch: next.job_epoch,
            leader_epoch,
            expires_at_ms: now.saturating_add(ttl).min(ends_at_ms),
            ends_at_ms,
        });
        Ok(next)
    }

    /// The attempt goes on. It cannot be made longer than it may take.
    ///
    /// # Errors
    /// When it is not the present one, or over.
    pub fn renewed(&self, claim: &Claim<'_>, (now, ttl): (u64, u64)) -> Result<Self, Refused> {
        let lease = self.held(claim, now)?.clone();
        let mut next = self.written(claim.leader_epoch, now);
        let expires_at_ms = now.saturating_add(ttl).min(lease.ends_at_ms);
        next.lease = Some(JobLease { expires_at_ms, ..lease });
        Ok(next)
    }

    /// The attempt has ended.
    ///
    /// # Errors
    /// When it is not the present one, or over.
    pub fn concluded(
        &self,
        claim: &Claim<'_>,
        result: JobResult,
        now: u64,
    ) -> Result<Self, Refused> {
        self.held(claim, now)?;
        let mut next = self.written(claim.leader_epoch, now);
        next.lease = None;
        next.state = match result.success {
            true => JobState::Succeeded,
            false => next.after_failure(now),
        };
        next.result = Some(result);
        Ok(next)
    }

    /// Nobody has renewed the attempt: it counts as failed. `None` if there is nothing to do.
    #[must_use]
    pub fn lapsed(&self, leader_epoch: u64, now: u64) -> Option<Self> {
        let lease = self.lease.as_ref().filter(|lease| lease.expires_at_ms <= now)?;
        let mut next = self.written(leader_epoch, now);
        next.lease = None;
        next.state = next.after_failure(now);
        next.result = Some(JobResult {
            success: false,
            exit_code: None,
            output: String::new(),
            error: Some("the agent was not heard of in time".into()),
            agent: lease.agent.clone(),
            job_epoch: lease.job_epoch,
            leader_epoch,
            at_ms: now,
        });
        Some(next)
    }

    /// A new leader takes over what goes on: the attempt stays the same. A leader counts anew, so
    /// that nobody loses its work to the time nobody led. `None` if there is nothing to do.
    #[must_use]
    pub fn confirmed(&self, leader_epoch: u64, (now, ttl): (u64, u64)) -> Option<Self> {
        let lease = self.lease.as_ref().filter(|lease| lease.leader_epoch < leader_epoch)?;
        let mut next = self.written(leader_epoch, now);
        let expires_at_ms = now.saturating_add(ttl).min(lease.ends_at_ms.max(now));
        next.lease = Some(JobLease { leader_epoch, expires_at_ms, ..lease.clone() });
        Some(next)
    }

    /// # Errors
    /// When it is over already.
    pub fn cancelled(&self, leader_epoch: u64, now: u64) -> Result<Self, Refused> {
        if self.state.is_over() {
            return Err(Refused::Over);
        }
        let mut next = self.written(leader_epoch, now);
        next.state = JobState::Cancelled;
        next.job_epoch += 1;
        next.lease = None;
        Ok(next)
    }

    /// Its lease, if the claim is of the present attempt under the present leader.
    fn held(&self, claim: &Claim<'_>, now: u64) -> Result<&JobLease, Refused> {
        let lease = self.lease.as_ref().ok_or(Refused::StaleEpoch)?;
        let is_present = lease.id == claim.lease_id
            && lease.job_epoch == claim.job_epoch
            && lease.leader_epoch == claim.leader_epoch
            && lease.expires_at_ms > now;
        if is_present { Ok(lease) } else { Err(Refused::StaleEpoch) }
    }

    fn written(&self, leader_epoch: u64, now: u64) -> Self {
        Self { leader_epoch, updated_at_ms: now, ..self.clone() }
    }

    /// Again after a pause that grows, or given up.
    fn after_failure(&mut self, now: u64) -> JobState {
        if self.attempts >= self.spec.max_attempts {
            return JobState::Failed;
        }
        let doubled = self.attempts.saturating_sub(1).min(20);
        let pause = (PAUSE_MS << doubled).min(PAUSE_MAX_MS);
        self.not_before_ms = now.saturating_add(pause);
        JobState::Queued
    }

    /// What is given out first has the smaller one.
    #[must_use]
    pub fn rank(&self) -> (std::cmp::Reverse<i32>, u64, &str) {
        (std::cmp::Reverse(self.spec.priority), self.created_at_ms, &self.id)
    }
}

#[cfg(test)]
mod tests;
