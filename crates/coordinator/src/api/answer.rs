//! The answers, field by field as the other implementations give them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::Place;
use crate::coordinator::{Coordinator, TaskView};
use crate::member::{Member, State};
use crate::shared::ClusterView;
use crate::task::{Claim, Missed, Run};

/// `GET /api/cluster/status`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub cluster_healthy: bool,
    pub instance_count: usize,
    pub active_instances: usize,
    pub drifted_instances: usize,
    pub leader: Option<LeaderView>,
    pub this_instance: ThisInstance,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderView {
    pub instance_id: String,
    /// Seconds since 1970.
    pub since: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThisInstance {
    pub id: String,
    pub is_leader: bool,
}

impl ThisInstance {
    #[must_use]
    pub fn of(coordinator: &Coordinator) -> Self {
        Self { id: coordinator.settings().instance_id.clone(), is_leader: coordinator.is_leader() }
    }
}

impl Status {
    #[must_use]
    pub fn of(view: &ClusterView, coordinator: &Coordinator) -> Self {
        let leader = view.leader.clone();
        Self {
            cluster_healthy: view.is_healthy(),
            instance_count: view.members.len(),
            active_instances: view.count(State::Active),
            drifted_instances: view.count(State::Drifted),
            leader: leader.map(|(instance_id, since)| LeaderView { instance_id, since }),
            this_instance: ThisInstance::of(coordinator),
        }
    }
}

/// `GET /api/cluster/instances`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceList {
    pub total: usize,
    pub current_leader: Option<String>,
    pub instances: Vec<Member>,
}

impl InstanceList {
    #[must_use]
    pub fn of(view: ClusterView) -> Self {
        let current_leader = view.leader.map(|(id, _)| id);
        Self { total: view.members.len(), current_leader, instances: view.members }
    }
}

/// `GET /api/cluster/leader`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderAnswer {
    pub leader: Option<String>,
    pub this_instance: ThisInstance,
}

/// Seconds, without a point where none is needed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Seconds {
    Whole(u64),
    Parts(f64),
}

impl From<Duration> for Seconds {
    fn from(span: Duration) -> Self {
        match span.subsec_nanos() {
            0 => Self::Whole(span.as_secs()),
            _ => Self::Parts(span.as_secs_f64()),
        }
    }
}

/// `GET /api/cluster/config`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub instance_id: String,
    pub heartbeat_interval: Seconds,
    pub heartbeat_ttl: Seconds,
    pub leader_ttl: Seconds,
    pub leader_renew_interval: Seconds,
    pub drift_threshold: Seconds,
    pub stale_threshold: Seconds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_port: Option<u16>,
    /// Instead of the two before, where lockd keeps the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lockd_url: Option<String>,
}

impl Config {
    #[must_use]
    pub fn of(coordinator: &Coordinator) -> Self {
        let settings = coordinator.settings();
        let (redis_host, redis_port, lockd_url) = match coordinator.place() {
            Place::Redis { host, port } => (Some(host.clone()), Some(*port), None),
            Place::Lockd { url } => (None, None, Some(url.clone())),
        };
        Self {
            instance_id: settings.instance_id.clone(),
            heartbeat_interval: settings.heartbeat_interval.into(),
            heartbeat_ttl: settings.heartbeat_ttl.into(),
            leader_ttl: settings.leader_ttl.into(),
            leader_renew_interval: settings.leader_renew_interval.into(),
            drift_threshold: settings.drift_threshold.into(),
            stale_threshold: settings.stale_threshold.into(),
            redis_host,
            redis_port,
            lockd_url,
        }
    }
}

/// `GET /api/cluster/this`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct This {
    pub instance_id: String,
    pub is_leader: bool,
    /// One process speaks for all workers: the first.
    pub worker_id: u64,
    pub worker_count: u64,
    pub config: ThisConfig,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThisConfig {
    pub heartbeat_interval: Seconds,
    pub leader_ttl: Seconds,
    pub drift_threshold: Seconds,
    pub stale_threshold: Seconds,
}

impl This {
    #[must_use]
    pub fn of(coordinator: &Coordinator) -> Self {
        let settings = coordinator.settings();
        Self {
            instance_id: settings.instance_id.clone(),
            is_leader: coordinator.is_leader(),
            worker_id: 0,
            worker_count: settings.worker_count,
            config: ThisConfig {
                heartbeat_interval: settings.heartbeat_interval.into(),
                leader_ttl: settings.leader_ttl.into(),
                drift_threshold: settings.drift_threshold.into(),
                stale_threshold: settings.stale_threshold.into(),
            },
        }
    }
}

/// `GET /api/cluster/tasks`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TasksAnswer {
    pub total: usize,
    pub tasks: Vec<TaskAnswer>,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAnswer {
    pub name: String,
    /// Whether the instance that was asked could run it.
    pub registered: bool,
    pub schedule: Option<String>,
    pub missed: Option<Missed>,
    /// The latest time that was begun or left out, in ms since 1970.
    pub last_time_ms: Option<u64>,
    pub next_time_ms: Option<u64>,
    /// The run that goes on now.
    pub running: Option<Claim>,
    pub requested_at_ms: Option<u64>,
    pub last_run: Option<Run>,
}

impl TaskAnswer {
    #[must_use]
    pub fn of(view: TaskView, last_run: Option<Run>) -> Self {
        let mark = view.mark.as_ref();
        Self {
            registered: view.registered,
            schedule: mark.map(|mark| mark.schedule.clone()),
            missed: view.missed,
            last_time_ms: mark.map(|mark| mark.last).filter(|last| *last > 0),
            next_time_ms: view.next,
            running: mark.and_then(|mark| mark.claim.clone()),
            requested_at_ms: mark.and_then(|mark| mark.requested),
            last_run,
            name: view.name,
        }
    }
}

/// `GET /api/cluster/tasks/{name}/runs`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunsAnswer {
    pub task: String,
    pub runs: Vec<Run>,
}
