//! What only looks: answered by every node, from what is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use lockd_wire::error::ErrorCode;
use lockd_wire::node::Role;
use serde::Deserialize;

use super::answer::{Answered, json, wrong};
use super::routes::Api;
use super::view::{AgentList, AgentView, JobList, JobView};
use crate::agent::Agent;
use crate::controller::{Refusal, WRITE_EVERY_MS, read_job};
use crate::job::JobState;
use crate::ledger::{Kind, LedgerFault, Record, is_id};

/// How old what is shown may be.
const STALENESS: &str = "x-staleness-ms";
/// Jobs of a list unless told otherwise, and at most.
const JOBS: usize = 100;
const JOBS_MAX: usize = 1_000;
/// How many pages are looked through for one answer.
const PAGES_MAX: usize = 8;
/// Agents that are shown.
const AGENTS_MAX: usize = 10_000;

#[derive(Deserialize)]
pub(super) struct Which {
    state: Option<String>,
    limit: Option<usize>,
    after: Option<String>,
}

pub(super) async fn jobs(
    State(api): State<Arc<Api>>,
    which: Result<Query<Which>, axum::extract::rejection::QueryRejection>,
) -> Answered {
    let invalid = |detail: &str| wrong(ErrorCode::InvalidParams, detail);
    let Query(which) = which.map_err(|error| invalid(&error.body_text()))?;
    let state = match which.state.as_deref().map(JobState::parse) {
        None => None,
        Some(Some(state)) => Some(state),
        Some(None) => {
            let detail = "state is queued, leased, succeeded, failed or cancelled";
            return Err(invalid(detail));
        }
    };
    if which.after.as_deref().is_some_and(|after| !is_id(after)) {
        return Err(invalid("after is the id of a job: the next of the page before"));
    }
    let limit = which.limit.unwrap_or(JOBS).clamp(1, JOBS_MAX);
    let mut list = JobList { jobs: Vec::new(), next: which.after };
    for _ in 0..PAGES_MAX {
        let page = api.shared.ledger.list(Kind::Job, list.next.as_deref(), limit).await;
        let page = page.map_err(|fault| api.refused(unread(&fault)))?;
        if page.is_empty() {
            list.next = None;
            break;
        }
        for record in page {
            let job = read_job(&record);
            list.next = Some(record.id);
            let shown = job.ok().filter(|job| state.is_none_or(|state| state == job.state));
            list.jobs.extend(shown.map(|job| JobView::of(&job)));
            if list.jobs.len() >= limit {
                return Ok(as_of(json(&list), 0));
            }
        }
    }
    Ok(as_of(json(&list), 0))
}

pub(super) async fn job(State(api): State<Arc<Api>>, Path(id): Path<String>) -> Answered {
    let is_id = id.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase());
    let none = || api.refused(Refusal::NotFound("no such job"));
    if !is_id || id.len() != 32 {
        return Err(none());
    }
    let read = api.shared.ledger.read(Kind::Job, &id).await;
    let record = read.map_err(|fault| api.refused(unread(&fault)))?.ok_or_else(none)?;
    let job = read_job(&record).map_err(|_| api.refused(Refusal::Damaged))?;
    Ok(as_of(json(&JobView::whole(job)), 0))
}

/// The leader knows when they were seen; the others know what it has written.
pub(super) async fn agents(State(api): State<Arc<Api>>) -> Answered {
    if let Ok(office) = api.shared.office() {
        let desk = office.desk.lock();
        let mut jobs: BTreeMap<&str, usize> = BTreeMap::new();
        for lease in desk.board.with_agents().filter_map(|job| job.lease.as_ref()) {
            *jobs.entry(lease.taker.agent.as_str()).or_default() += 1;
        }
        let agents = desk.agents.values().take(AGENTS_MAX).map(|known| {
            let count = jobs.get(known.kept.name.as_str()).copied().unwrap_or(0);
            AgentView::known(known, count)
        });
        return Ok(as_of(json(&AgentList { agents: agents.collect() }), 0));
    }
    let mut agents: Vec<AgentView> = Vec::new();
    let mut after: Option<String> = None;
    while agents.len() < AGENTS_MAX {
        let page = api.shared.ledger.list(Kind::Agent, after.as_deref(), 256).await;
        let page = page.map_err(|fault| api.refused(unread(&fault)))?;
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        let read = |record: &Record| serde_json::from_str::<Agent>(&record.body).ok();
        agents.extend(page.iter().filter_map(read).map(|agent| AgentView::kept(&agent)));
    }
    agents.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(as_of(json(&AgentList { agents }), WRITE_EVERY_MS))
}

fn unread(fault: &LedgerFault) -> Refusal {
    tracing::warn!(%fault, "the store cannot be read");
    Refusal::Unavailable
}

fn as_of(mut answer: Response, staleness_ms: u64) -> Response {
    answer.headers_mut().insert(STALENESS, HeaderValue::from(staleness_ms));
    answer
}

pub(super) async fn role(State(api): State<Arc<Api>>) -> Response {
    json(&api.shared.role())
}

/// For Prometheus: what this controller is, and while it leads what it looks after.
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    let role = api.shared.role();
    let mut text = String::new();
    let mut family = |name: &str, help: &str, values: &[(&str, u64)]| {
        text.push_str(&format!(
            "# HELP lockd_jobs_{name} {help}.\n# TYPE lockd_jobs_{name} gauge\n"
        ));
        for (labels, value) in values {
            text.push_str(&format!("lockd_jobs_{name}{labels} {value}\n"));
        }
    };
    let is = |other: Role| u64::from(role.role == other);
    family(
        "role",
        "1 for what this controller is",
        &[
            ("{role=\"STANDBY\"}", is(Role::Standby)),
            ("{role=\"LEADER\"}", is(Role::Leader)),
            ("{role=\"DRAINING\"}", is(Role::Draining)),
        ],
    );
    if let Some(epoch) = role.leader_epoch {
        family("leader_epoch", "Epoch of the leader that is known", &[("", epoch)]);
    }
    if let Ok(office) = api.shared.office() {
        let desk = office.desk.lock();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        family("leased", "Jobs that agents have", &[("", count(desk.board.with_agents().count()))]);
        family("agents", "Agents that are known", &[("", count(desk.agents.len()))]);
    }
    text.push_str("# EOF\n");
    let kind =
        HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    ([(CONTENT_TYPE, kind)], text).into_response()
}

pub(super) async fn health() -> Response {
    "ok\n".into_response()
}
