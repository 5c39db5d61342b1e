//! Jobs and agents as they are shown. Ids of leases are shown to nobody but those who have them.

use lockd_wire::job::JobSpec;
use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::controller::KnownAgent;
use crate::job::{Job, JobResult, JobState};

/// A job. In lists without what it brings and what it wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobView {
    pub id: String,
    pub state: JobState,
    pub command: Vec<String>,
    pub priority: i32,
    pub attempts: u32,
    pub max_attempts: u32,
    pub job_epoch: u64,
    pub leader_epoch: u64,
    pub version: u64,
    pub created_at_ms: u64,
    pub updated_at_ms: u64,
    pub not_before_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<u64>,
    /// Who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at_ms: Option<u64>,
    /// As it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<JobSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultView>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultView {
    pub success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Not in lists: one that is empty would say that nothing was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub agent: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
    pub at_ms: u64,
}

impl ResultView {
    fn of(result: &JobResult) -> Self {
        Self {
            success: result.success,
            exit_code: result.exit_code,
            output: None,
            truncated: result.truncated,
            error: result.error.clone(),
            agent: result.agent.clone(),
            job_epoch: result.job_epoch,
            leader_epoch: result.leader_epoch,
            at_ms: result.at_ms,
        }
    }
}

impl JobView {
    /// All of it.
    pub(super) fn whole(job: Job) -> Self {
        let mut view = Self::of(&job);
        view.result = job.result.map(|result| {
            let brief = ResultView::of(&result);
            ResultView { output: Some(result.output), ..brief }
        });
        view.spec = Some(job.spec);
        view
    }

    /// For lists.
    pub(super) fn of(job: &Job) -> Self {
        Self {
            id: job.id.clone(),
            state: job.state,
            command: job.spec.command.clone(),
            priority: job.spec.priority,
            attempts: job.attempts,
            max_attempts: job.spec.max_attempts,
            job_epoch: job.job_epoch,
            leader_epoch: job.leader_epoch,
            version: job.version,
            created_at_ms: job.created_at_ms,
            updated_at_ms: job.updated_at_ms,
            not_before_ms: job.not_before_ms,
            deadline_at_ms: job.deadline_at_ms,
            agent: job.lease.as_ref().map(|lease| lease.taker.agent.clone()),
            lease_expires_at_ms: job.lease.as_ref().map(|lease| lease.expires_at_ms),
            spec: None,
            result: job.result.as_ref().map(ResultView::of),
        }
    }
}

/// `GET /v1/jobs`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobList {
    pub jobs: Vec<JobView>,
    /// Pass it as `after` for more. There may be none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentView {
    pub name: String,
    pub incarnation: String,
    /// `active` or `deleted`.
    pub state: String,
    pub leader_epoch: u64,
    pub first_seen_ms: u64,
    pub last_seen_ms: u64,
    /// How many jobs it has, as far as the one who answers knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<usize>,
}

impl AgentView {
    pub(super) fn kept(agent: &Agent) -> Self {
        Self {
            name: agent.name.clone(),
            incarnation: agent.incarnation.clone(),
            state: if agent.is_deleted() { "deleted" } else { "active" }.into(),
            leader_epoch: agent.leader_epoch,
            first_seen_ms: agent.first_seen_ms,
            last_seen_ms: agent.last_seen_ms,
            jobs: None,
        }
    }

    pub(super) fn known(known: &KnownAgent, jobs: usize) -> Self {
        let seen = Agent { incarnation: known.incarnation.clone(), ..known.kept.clone() };
        Self { last_seen_ms: known.seen_ms, jobs: Some(jobs), ..Self::kept(&seen) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AgentList {
    pub(super) agents: Vec<AgentView>,
}
