//! What becomes of a job: pure rules. Time and new ids are arguments.

use serde::{Deserialize, Serialize};

pub use lockd_wire::job::JobSpec;
use lockd_wire::job::ResultReport;

/// The most that a job may bring with it.
const COMMAND_WORDS_MAX: usize = 1_000;
const TEXT_MAX: usize = 1024 * 1024;
const ATTEMPTS_MAX: u32 = 1_000;
const TIMEOUT_MAX: u64 = 30 * 24 * 3600;
const DEADLINE_MAX: u64 = 366 * 24 * 3600;
/// The most that is kept of what an attempt wrote, and of its error.
pub const OUTPUT_MAX: usize = 1024 * 1024;
const ERROR_MAX: usize = 16 * 1024;
/// What is kept of an attempt that failed while the job goes on: the end of what it wrote, and the
/// beginning of its error. The whole would be in the leader's memory until the job is over.
const LAST_OUTPUT_MAX: usize = 4 * 1024;
const LAST_ERROR_MAX: usize = 1024;
/// About what a job takes besides its texts, and each of its words besides its letters.
const JOB_WEIGHT: usize = 512;
const WORD_WEIGHT: usize = 64;
/// How long after its end an attempt may still be told of: whoever has stopped in time has a way to
/// say so.
const REPORT_MS: u64 = 5_000;
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
    #[error("deadline_seconds is between 1 and {DEADLINE_MAX}")]
    Deadline,
}

/// # Errors
/// With what is wrong with it.
pub fn check(spec: &JobSpec) -> Result<(), SpecRefused> {
    let named = spec.command.first().is_some_and(|program| !program.is_empty());
    let sendable = spec.command.iter().all(|word| !word.contains('\0'));
    if !named || !sendable || spec.command.len() > COMMAND_WORDS_MAX {
        return Err(SpecRefused::Command);
    }
    let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    let wrong = spec.env.iter().find(|(name, value)| !is_name(name) || value.contains('\0'));
    if let Some((name, _)) = wrong {
        return Err(SpecRefused::Variable(name.clone()));
    }
    let words: usize = spec.command.iter().map(String::len).sum();
    let variables: usize = spec.env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if words + variables + spec.input.get().len() > TEXT_MAX {
        return Err(SpecRefused::TooLarge);
    }
    if !(1..=ATTEMPTS_MAX).contains(&spec.max_attempts) {
        return Err(SpecRefused::Attempts);
    }
    if !(1..=TIMEOUT_MAX).contains(&spec.timeout_seconds) {
        return Err(SpecRefused::Timeout);
    }
    if spec.deadline_seconds.is_some_and(|seconds| !(1..=DEADLINE_MAX).contains(&seconds)) {
        return Err(SpecRefused::Deadline);
    }
    Ok(())
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
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Leased, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Whether nothing happens to it any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        match self {
            Self::Queued | Self::Leased => false,
            Self::Succeeded | Self::Failed | Self::Cancelled => true,
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Leased => "leased",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Who gets a job, and by which question.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taker {
    pub agent: String,
    /// Of the agent's process.
    #[serde(default)]
    pub incarnation: String,
    /// The same for the same question.
    #[serde(default)]
    pub request_id: String,
}

/// One attempt, with one agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobLease {
    pub id: String,
    pub taker: Taker,
    pub job_epoch: u64,
    /// Of the leader that gave it out, or confirmed it last.
    pub leader_epoch: u64,
    pub expires_at_ms: u64,
    /// When the attempt must stop even if it is renewed.
    pub ends_at_ms: u64,
}

/// How an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobResult {
    /// Of the attempt, if its agent told how it ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lease_id: String,
    pub success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub output: String,
    /// Whether there was more output than is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub agent: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
    pub at_ms: u64,
}

impl JobResult {
    /// As an agent tells it. What is too long is cut, so that a result is never lost for its size.
    #[must_use]
    pub fn told(report: ResultReport, now: u64) -> Self {
        let (output, was_cut) = cut(report.output, OUTPUT_MAX);
        Self {
            lease_id: report.lease_id,
            success: report.success,
            exit_code: report.exit_code,
            output,
            truncated: report.truncated || was_cut,
            error: report.error.map(|error| cut(error, ERROR_MAX).0),
            agent: report.agent,
            job_epoch: report.job_epoch,
            leader_epoch: report.leader_epoch,
            at_ms: now,
        }
    }

    /// As it is kept of a job that goes on.
    fn shortened(self) -> Self {
        let (output, was_cut) = tail(self.output, LAST_OUTPUT_MAX);
        let error = self.error.map(|error| cut(error, LAST_ERROR_MAX).0);
        Self { output, truncated: self.truncated || was_cut, error, ..self }
    }
}

fn cut(mut text: String, longest: usize) -> (String, bool) {
    if text.len() <= longest {
        return (text, false);
    }
    let end = (0..=longest).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text.truncate(end);
    (text, true)
}

/// The end of it, and whether something was before that.
fn tail(text: String, longest: usize) -> (String, bool) {
    let Some(start) = text.len().checked_sub(longest).filter(|start| *start > 0) else {
        return (text, false);
    };
    let start = (start..=text.len()).find(|at| text.is_char_boundary(*at));
    let end = start.and_then(|at| text.get(at..)).unwrap_or_default();
    // A text of its own: what was cut off is given back.
    (end.to_owned(), true)
}

/// A job and all that is known about it. Times are those of the leader that wrote it last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: String,
    pub spec: JobSpec,
    pub state: JobState,
    /// Grows with every write.
    pub version: u64,
    /// Grows with every attempt, and when it is cancelled.
    pub job_epoch: u64,
    /// Of the leader that wrote it last.
    pub leader_epoch: u64,
    pub attempts: u32,
    pub created_at_ms: u64,
    pub updated_at_ms: u64,
    /// Not given out before this.
    pub not_before_ms: u64,
    /// When it fails if it is not over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<u64>,
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
        let deadline_at_ms = spec.deadline_seconds.map(|seconds| after_seconds(now, seconds));
        Self {
            id,
            spec,
            state: JobState::Queued,
            version: 1,
            job_epoch: 0,
            leader_epoch,
            attempts: 0,
            created_at_ms: now,
            updated_at_ms: now,
            not_before_ms: now,
            deadline_at_ms,
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
        taker: Taker,
        lease_id: String,
        leader_epoch: u64,
        (now, ttl): (u64, u64),
    ) -> Result<Self, Refused> {
        if self.state.is_over() {
            return Err(Refused::Over);
        }
        if self.state != JobState::Queued || self.not_before_ms > now || self.is_overdue(now) {
            return Err(Refused::NotReady);
        }
        let ends_at_ms = self.attempt_ends(now);
        let mut next = self.written(leader_epoch, now);
        next.job_epoch = next.job_epoch.saturating_add(1);
        next.attempts = next.attempts.saturating_add(1);
        next.state = JobState::Leased;
        next.lease = Some(JobLease {
            id: lease_id,
            taker,
            job_epoch: next.job_epoch,
            leader_epoch,
            expires_at_ms: self.expires((now, ttl), ends_at_ms),
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
        if lease.ends_at_ms <= now {
            return Err(Refused::StaleEpoch);
        }
        let mut next = self.written(claim.leader_epoch, now);
        let expires_at_ms = self.expires((now, ttl), lease.ends_at_ms);
        next.lease = Some(JobLease { expires_at_ms, ..lease });
        Ok(next)
    }

    /// The agent gives it back as it was: the attempt does not count, and its numbers are not used
    /// again.
    ///
    /// # Errors
    /// When it is not the present one, or over.
    pub fn released(&self, claim: &Claim<'_>, now: u64) -> Result<Self, Refused> {
        self.held(claim, now)?;
        let mut next = self.written(claim.leader_epoch, now);
        next.lease = None;
        next.state = JobState::Queued;
        next.attempts = next.attempts.saturating_sub(1);
        next.not_before_ms = now;
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
        next.result = Some(if next.state.is_over() { result } else { result.shortened() });
        Ok(next)
    }

    /// Whether the claim is of the attempt whose result is kept: the same result, told again.
    #[must_use]
    pub fn has_result_of(&self, lease_id: &str, job_epoch: u64) -> bool {
        let result = self.result.as_ref().filter(|result| !result.lease_id.is_empty());
        result.is_some_and(|kept| kept.lease_id == lease_id && kept.job_epoch == job_epoch)
    }

    /// Time has passed: the job is not over by its deadline, or nobody has renewed the attempt,
    /// which counts as failed. `None` if there is nothing to do.
    #[must_use]
    pub fn lapsed(&self, leader_epoch: u64, now: u64) -> Option<Self> {
        if self.state.is_over() {
            return None;
        }
        let lease = self.lease.as_ref();
        if self.is_overdue(now) {
            let mut next = self.written(leader_epoch, now);
            next.job_epoch = next.job_epoch.saturating_add(1);
            next.state = JobState::Failed;
            next.lease = None;
            let why = "the job was not over by its deadline";
            next.result = Some(self.unheard(why, lease, (leader_epoch, now)));
            return Some(next);
        }
        let lease = lease.filter(|lease| lease.expires_at_ms <= now)?;
        let mut next = self.written(leader_epoch, now);
        next.lease = None;
        next.state = next.after_failure(now);
        let why = match lease.ends_at_ms <= now {
            true => "the attempt took longer than it may",
            false => "the agent was not heard of in time",
        };
        next.result = Some(self.unheard(why, Some(lease), (leader_epoch, now)));
        Some(next)
    }

    /// Of the present attempt, as this leader sees it.
    fn unheard(
        &self,
        why: &str,
        lease: Option<&JobLease>,
        (leader_epoch, now): (u64, u64),
    ) -> JobResult {
        JobResult {
            error: Some(why.into()),
            agent: lease.map(|lease| lease.taker.agent.clone()).unwrap_or_default(),
            job_epoch: self.job_epoch,
            leader_epoch,
            at_ms: now,
            ..JobResult::default()
        }
    }

    /// As a new leader takes it over. It counts anew, by its own clock: nothing that a leader of
    /// before wrote as a time may hold up work or end it, for that one's clock may have been wrong.
    /// A pause is not longer than the attempts deserve, and of a deadline as much is left as there
    /// was at the latest write. An attempt goes on as it was, under the new leader.
    #[must_use]
    pub fn adopted(&self, leader_epoch: u64, (now, ttl): (u64, u64)) -> Self {
        let longest = self.spec.deadline_seconds.map(|seconds| seconds.saturating_mul(1_000));
        let mut next = self.clone();
        if !self.state.is_over() {
            let left = self.deadline_at_ms.map(|at| at.saturating_sub(self.updated_at_ms));
            next.deadline_at_ms =
                left.map(|left| now.saturating_add(left.min(longest.unwrap_or(left))));
            let pause = if self.attempts == 0 { 0 } else { pause_after(self.attempts) };
            next.not_before_ms = self.not_before_ms.min(now.saturating_add(pause));
            next.result = next.result.map(JobResult::shortened);
        }
        let Some(lease) = &self.lease else { return next };
        let ends_at_ms = next.attempt_ends(now);
        let expires_at_ms = next.expires((now, ttl), ends_at_ms);
        next = next.written(leader_epoch, now);
        next.lease = Some(JobLease { leader_epoch, expires_at_ms, ends_at_ms, ..lease.clone() });
        next
    }

    /// `None` if it was cancelled before.
    ///
    /// # Errors
    /// When it is over otherwise.
    pub fn cancelled(&self, leader_epoch: u64, now: u64) -> Result<Option<Self>, Refused> {
        match self.state {
            JobState::Queued | JobState::Leased => {}
            JobState::Cancelled => return Ok(None),
            JobState::Succeeded | JobState::Failed => return Err(Refused::Over),
        }
        let mut next = self.written(leader_epoch, now);
        next.state = JobState::Cancelled;
        next.job_epoch = next.job_epoch.saturating_add(1);
        next.lease = None;
        Ok(Some(next))
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
        let version = self.version.saturating_add(1);
        Self { leader_epoch, version, updated_at_ms: now, ..self.clone() }
    }

    #[must_use]
    pub fn is_overdue(&self, now: u64) -> bool {
        self.deadline_at_ms.is_some_and(|at| at <= now)
    }

    /// When an attempt that begins now is over at the latest.
    fn attempt_ends(&self, now: u64) -> u64 {
        let ends = after_seconds(now, self.spec.timeout_seconds);
        self.deadline_at_ms.map_or(ends, |at| at.min(ends))
    }

    /// When an attempt lapses that was renewed now: not long after its end.
    fn expires(&self, (now, ttl): (u64, u64), ends_at_ms: u64) -> u64 {
        let expires = now.saturating_add(ttl).min(ends_at_ms.saturating_add(REPORT_MS));
        self.deadline_at_ms.map_or(expires, |at| at.min(expires))
    }

    /// Again after a pause that grows, or given up.
    fn after_failure(&mut self, now: u64) -> JobState {
        if self.attempts >= self.spec.max_attempts {
            return JobState::Failed;
        }
        self.not_before_ms = now.saturating_add(pause_after(self.attempts));
        JobState::Queued
    }

    /// About how much memory it takes at most until it is over. What an attempt that fails leaves
    /// behind is counted from the start: there is a bound for jobs that come, none for results.
    #[must_use]
    pub fn weight(&self) -> usize {
        let word = |text: &String| text.len() + WORD_WEIGHT;
        let words: usize = self.spec.command.iter().map(word).sum();
        let variables: usize =
            self.spec.env.iter().map(|(name, value)| word(name) + word(value)).sum();
        let left_behind = match self.spec.max_attempts {
            0 | 1 => 0,
            2.. => LAST_OUTPUT_MAX + LAST_ERROR_MAX,
        };
        words + variables + self.spec.input.get().len() + left_behind + JOB_WEIGHT
    }
}

fn after_seconds(now: u64, seconds: u64) -> u64 {
    now.saturating_add(seconds.saturating_mul(1_000))
}

fn pause_after(attempts: u32) -> u64 {
    (PAUSE_MS << attempts.saturating_sub(1).min(20)).min(PAUSE_MAX_MS)
}

#[cfg(test)]
mod tests;
