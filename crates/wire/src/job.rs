//! Jobs, as submitters and agents talk about them with a controller.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Every path begins with this.
pub const JOBS: &str = "/v1/jobs";
pub const LEASES: &str = "/v1/leases";
pub const RESULTS: &str = "/v1/results";
pub const AGENTS: &str = "/v1/agents";
pub const EVENTS: &str = "/v1/events";

/// What is to be done, as it is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// The program and its arguments.
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Given to the command on its standard input: JSON, byte for byte.
    #[serde(default = "null")]
    pub input: Box<RawValue>,
    /// The higher is given out first.
    #[serde(default)]
    pub priority: i32,
    #[serde(default = "three")]
    pub max_attempts: u32,
    /// How long one attempt may take.
    #[serde(default = "a_minute")]
    pub timeout_seconds: u64,
    /// How long after its submission the job must be over; without it, never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
}

impl PartialEq for JobSpec {
    fn eq(&self, other: &Self) -> bool {
        let parts = |spec: &Self| {
            let numbers = (spec.priority, spec.max_attempts, spec.timeout_seconds);
            (spec.command.clone(), spec.env.clone(), numbers, spec.deadline_seconds)
        };
        self.input.get() == other.input.get() && parts(self) == parts(other)
    }
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

fn three() -> u32 {
    3
}

fn a_minute() -> u64 {
    60
}

/// A job was taken in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    pub id: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
}

/// An agent asks for work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAsk {
    pub agent: String,
    /// Of the process: the same name in another process is another agent.
    #[serde(default)]
    pub incarnation: String,
    /// The same for the same question: one whose answer was lost gets the same work again.
    #[serde(default)]
    pub request_id: String,
    /// How long to wait for work.
    #[serde(default)]
    pub wait_seconds: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u64>,
}

/// Work for an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeaseGrant {
    pub lease_id: String,
    pub job_id: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
    /// How long it is the agent's unless it is renewed, from before it asked.
    pub ttl_ms: u64,
    /// How long the attempt may take, renewed or not.
    pub ends_in_ms: u64,
    /// Which attempt it is, from one.
    pub attempt: u32,
    pub spec: JobSpec,
}

/// What whoever has work carries, to renew it or to give it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseClaim {
    pub job_id: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
}

/// The attempt goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewed {
    pub ttl_ms: u64,
    pub job_epoch: u64,
    pub leader_epoch: u64,
}

/// How an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultReport {
    pub lease_id: String,
    pub job_id: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
    pub agent: String,
    pub success: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What it wrote, as text; bytes that are no text are replaced.
    #[serde(default)]
    pub output: String,
    /// Whether there was more than is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A result is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultKept {
    pub job_id: String,
    pub state: String,
    pub job_epoch: u64,
    pub leader_epoch: u64,
}

/// 409 `STALE_EPOCH`: of a leader or an attempt that is over. An agent whose attempt is still the
/// job's, as `job_epoch` tells, may repeat what it asked under the leader that is named here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaleEpoch {
    /// `STALE_EPOCH`; clients treat `STALE_LEASE` the same.
    pub error: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Of the leader that answers, or the later one that its store knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_epoch: Option<u64>,
    /// Of the attempt under the lease that was named, if it is the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_epoch: Option<u64>,
    /// How it is with the job, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_state: Option<String>,
}

pub const STALE_EPOCH: &str = "STALE_EPOCH";
pub const STALE_LEASE: &str = "STALE_LEASE";
