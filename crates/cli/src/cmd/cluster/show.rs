//! Answers of a coordinator, for people.

use jiff::Timestamp;
use lockd_coordinator::Run;
use lockd_coordinator::api::{InstanceList, LeaderAnswer, RunsAnswer, Status, TasksAnswer};

use crate::ui;

pub(super) fn status(status: &Status, list: &InstanceList) -> String {
    let down = list.total - status.active_instances.min(list.total);
    let down = down - status.drifted_instances.min(down);
    let healthy = if status.cluster_healthy { "healthy" } else { "NOT healthy" };
    let leader = match &status.leader {
        Some(leader) => format!("{} since {}", leader.instance_id, seconds(leader.since)),
        None => "nobody".into(),
    };
    let this = &status.this_instance;
    let role = if this.is_leader { "leader" } else { "follower" };
    let active = status.active_instances;
    let drifted = status.drifted_instances;
    let rows = vec![
        vec!["cluster".into(), healthy.into()],
        vec!["leader".into(), leader],
        vec!["instances".into(), format!("{active} active, {drifted} drifted, {down} down")],
        vec!["asked".into(), format!("{} ({role})", this.id)],
    ];
    ui::table(None, rows)
}

pub(super) fn instances(list: &InstanceList) -> String {
    let row = |member: &lockd_coordinator::Member| {
        vec![
            member.instance_id.clone(),
            member.status.as_str().into(),
            if member.is_leader { "leader".into() } else { String::new() },
            member.worker_count.to_string(),
            seconds(member.started_at),
            seconds(member.last_heartbeat),
        ]
    };
    let headings = ["INSTANCE", "STATUS", "ROLE", "WORKERS", "STARTED", "LAST HEARTBEAT"];
    shown(&headings, list.instances.iter().map(row).collect())
}

pub(super) fn leader(answer: &LeaderAnswer) -> String {
    answer.leader.clone().unwrap_or_default()
}

pub(super) fn tasks(answer: &TasksAnswer) -> String {
    let row = |task: &lockd_coordinator::api::TaskAnswer| {
        let last = task.last_run.as_ref();
        let state = match (&task.running, task.requested_at_ms) {
            (Some(claim), _) => format!("running on {}", claim.instance),
            (None, Some(_)) => "asked for".into(),
            (None, None) => String::new(),
        };
        vec![
            task.name.clone(),
            task.schedule.clone().unwrap_or_default(),
            task.next_time_ms.map(millis).unwrap_or_default(),
            last.map(|run| millis(run.scheduled_at_ms)).unwrap_or_default(),
            last.map(|run| run.outcome.as_str().to_owned()).unwrap_or_default(),
            state,
        ]
    };
    let headings = ["TASK", "SCHEDULE", "NEXT", "LAST", "OUTCOME", "NOW"];
    shown(&headings, answer.tasks.iter().map(row).collect())
}

pub(super) fn runs(answer: &RunsAnswer) -> String {
    let row = |run: &Run| {
        vec![
            millis(run.scheduled_at_ms),
            run.outcome.as_str().into(),
            format!("{} ms", run.duration_ms),
            run.instance_id.clone(),
            run.epoch.to_string(),
            run.error.clone().unwrap_or_default(),
        ]
    };
    let headings = ["TIME", "OUTCOME", "TOOK", "INSTANCE", "EPOCH", "ERROR"];
    shown(&headings, answer.runs.iter().map(row).collect())
}

fn shown(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    ui::table(Some(headings).filter(|_| ui::is_read_by_a_person()), rows)
}

fn seconds(seconds: u64) -> String {
    millis(seconds.saturating_mul(1_000))
}

fn millis(millis: u64) -> String {
    let time = i64::try_from(millis).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    match time {
        Some(time) if millis > 0 => time.to_string(),
        _ => String::new(),
    }
}
