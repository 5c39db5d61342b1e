//! A controller as far as an agent can see one: its jobs in memory, and its moods on request.
//! Several ports may share one, as nodes share a store.

#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "a refusal is a whole answer")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use lockd_agent::{Agent, AgentSettings};
use lockd_wire::job::{LeaseAsk, LeaseClaim, ResultReport};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

/// How long anything here may take.
pub(crate) const IN_TIME: Duration = Duration::from_secs(10);

/// What all ports know.
#[derive(Debug, Default)]
pub(crate) struct Book {
    pub(crate) leader_epoch: u64,
    pub(crate) ttl_ms: u64,
    /// How long work takes to be granted.
    pub(crate) delay: Duration,
    queued: VecDeque<Value>,
    /// By the question that it answers.
    granted: BTreeMap<String, Value>,
    /// The present attempts: lease id to job epoch.
    pub(crate) held: BTreeMap<String, u64>,
    /// So many answers of each kind get lost, after they took effect.
    pub(crate) lose_asks: usize,
    pub(crate) lose_results: usize,
    /// Nothing works.
    pub(crate) is_down: bool,
    pub(crate) refuses_asks_with: Option<&'static str>,
    /// The largest output that is taken.
    pub(crate) output_max: Option<usize>,
    pub(crate) asks: Vec<LeaseAsk>,
    pub(crate) renewals: Vec<LeaseClaim>,
    pub(crate) results: Vec<ResultReport>,
    pub(crate) releases: Vec<(String, LeaseClaim)>,
}

#[derive(Clone)]
pub(crate) struct Controller {
    pub(crate) book: Arc<Mutex<Book>>,
    changes: watch::Sender<u64>,
}

/// What one port says it is.
#[derive(Clone)]
pub(crate) struct Port {
    controller: Controller,
    pub(crate) leader: Arc<Mutex<Leader>>,
    pub(crate) url: String,
}

#[derive(Clone)]
pub(crate) enum Leader {
    This,
    Other(Option<String>),
}

impl Controller {
    pub(crate) fn new(ttl_ms: u64) -> Self {
        let book = Book { leader_epoch: 1, ttl_ms, ..Book::default() };
        Self { book: Arc::new(Mutex::new(book)), changes: watch::Sender::new(0) }
    }

    pub(crate) async fn port(&self, leader: Leader) -> Port {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let port = Port { controller: self.clone(), leader: Arc::new(Mutex::new(leader)), url };
        let routes = Router::new()
            .route("/v1/leases", post(ask))
            .route("/v1/leases/{id}/renew", post(renew))
            .route("/v1/leases/{id}/release", post(release))
            .route("/v1/results", post(result))
            .layer(axum::extract::DefaultBodyLimit::max(16 * 1024 * 1024))
            .with_state(port.clone());
        #[expect(clippy::disallowed_methods, reason = "ends with the test")]
        tokio::spawn(async move { axum::serve(listener, routes).await });
        port
    }

    /// A job with this command, the number of which is its id.
    pub(crate) fn queue(&self, id: &str, spec: &Value) {
        self.queue_for(id, spec, 60_000);
    }

    pub(crate) fn queue_for(&self, id: &str, spec: &Value, ends_in_ms: u64) {
        let grant = json!({
            "lease_id": format!("lease-{id}"), "job_id": id, "job_epoch": 7, "attempt": 1,
            "ends_in_ms": ends_in_ms, "spec": spec,
        });
        self.book.lock().queued.push_back(grant);
        self.changed();
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Book)) {
        change(&mut self.book.lock());
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits for something to be so.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&Book) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        let looked = tokio::time::timeout(IN_TIME, async {
            loop {
                if let Some(found) = look(&self.book.lock()) {
                    return found;
                }
                changes.changed().await.unwrap();
            }
        });
        let found = looked.await;
        found.map_err(|_| format!("never: {what}; {:?}", self.book.lock())).unwrap()
    }

    pub(crate) async fn result(&self) -> ResultReport {
        self.until("a result", |book| book.results.first().cloned()).await
    }
}

pub(crate) fn shell(script: &str) -> Value {
    json!({"command": ["/bin/sh", "-c", script]})
}

pub(crate) fn agent(urls: &[&Port]) -> Agent {
    agent_with(urls, |_| {})
}

pub(crate) fn agent_with(urls: &[&Port], change: impl FnOnce(&mut AgentSettings)) -> Agent {
    let urls = urls.iter().map(|port| port.url.clone()).collect();
    let mut settings = AgentSettings::new("worker", urls);
    settings.poll_wait = Duration::from_secs(5);
    change(&mut settings);
    Agent::start(settings).unwrap()
}

/// A URL where nobody listens.
pub(crate) async fn nobody() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

type Said = Result<Response, Response>;

impl Port {
    /// The book, if this port leads.
    fn leads(&self) -> Result<(), Response> {
        if self.controller.book.lock().is_down {
            return Err(unclear());
        }
        match &*self.leader.lock() {
            Leader::This => Ok(()),
            Leader::Other(url) => Err(conflict(&json!({
                "error": "NOT_LEADER", "leader_id": null, "leader_url": url, "leader_epoch": null,
                "node_id": "n", "role": "STANDBY",
            }))),
        }
    }

    fn check(&self, lease: &str, job_epoch: u64, leader_epoch: u64) -> Result<(), Response> {
        let book = self.controller.book.lock();
        let present = book.held.get(lease).copied();
        if present == Some(job_epoch) && leader_epoch == book.leader_epoch {
            return Ok(());
        }
        let stale = json!({
            "error": "STALE_EPOCH", "leader_epoch": book.leader_epoch, "job_epoch": present,
        });
        Err(conflict(&stale))
    }
}

fn conflict(body: &Value) -> Response {
    (StatusCode::CONFLICT, Json(body)).into_response()
}

fn unclear() -> Response {
    let body = json!({"error": "store_unavailable", "outcome": "unknown"});
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

async fn ask(State(port): State<Port>, Json(ask): Json<LeaseAsk>) -> Said {
    let controller = &port.controller;
    controller.change(|book| book.asks.push(ask.clone()));
    port.leads()?;
    if let Some(code) = controller.book.lock().refuses_asks_with {
        return Err(conflict(&json!({"error": code})));
    }
    let delay = controller.book.lock().delay;
    tokio::time::sleep(delay).await;
    let mut changes = controller.changes.subscribe();
    let wait = tokio::time::sleep(Duration::from_secs(ask.wait_seconds));
    tokio::pin!(wait);
    loop {
        if let Some(answer) = grant(&mut controller.book.lock(), &ask.request_id) {
            controller.changed();
            return answer;
        }
        tokio::select! {
            () = &mut wait => return Ok(StatusCode::NO_CONTENT.into_response()),
            _ = changes.changed() => port.leads()?,
        }
    }
}

fn grant(book: &mut Book, request_id: &str) -> Option<Said> {
    let known = book.granted.get(request_id).cloned();
    let mut grant = known.or_else(|| book.queued.pop_front())?;
    grant["leader_epoch"] = book.leader_epoch.into();
    grant["ttl_ms"] = book.ttl_ms.into();
    book.granted.insert(request_id.to_owned(), grant.clone());
    book.held.insert(grant["lease_id"].as_str()?.to_owned(), grant["job_epoch"].as_u64()?);
    if book.lose_asks > 0 {
        book.lose_asks -= 1;
        return Some(Err(unclear()));
    }
    Some(Ok(Json(grant).into_response()))
}

async fn renew(
    State(port): State<Port>,
    Path(lease): Path<String>,
    Json(claim): Json<LeaseClaim>,
) -> Said {
    port.leads()?;
    port.controller.change(|book| book.renewals.push(claim.clone()));
    port.check(&lease, claim.job_epoch, claim.leader_epoch)?;
    let book = port.controller.book.lock();
    Ok(Json(json!({
        "ttl_ms": book.ttl_ms, "job_epoch": claim.job_epoch, "leader_epoch": book.leader_epoch,
    }))
    .into_response())
}

async fn release(
    State(port): State<Port>,
    Path(lease): Path<String>,
    Json(claim): Json<LeaseClaim>,
) -> Said {
    port.leads()?;
    port.check(&lease, claim.job_epoch, claim.leader_epoch)?;
    port.controller.change(|book| {
        book.held.remove(&lease);
        book.releases.push((lease, claim));
    });
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn result(State(port): State<Port>, Json(report): Json<ResultReport>) -> Said {
    port.leads()?;
    let again = port.controller.book.lock().results.iter().any(|one| one == &report);
    if !again {
        port.check(&report.lease_id, report.job_epoch, report.leader_epoch)?;
    }
    let max = port.controller.book.lock().output_max.unwrap_or(usize::MAX);
    if report.output.len() > max {
        let body = json!({"error": "body_too_large"});
        return Err((StatusCode::PAYLOAD_TOO_LARGE, Json(body)).into_response());
    }
    let mut is_lost = false;
    port.controller.change(|book| {
        book.held.remove(&report.lease_id);
        is_lost = book.lose_results > 0;
        book.lose_results = book.lose_results.saturating_sub(1);
        book.results.push(report.clone());
    });
    if is_lost {
        return Err(unclear());
    }
    let leader_epoch = port.controller.book.lock().leader_epoch;
    Ok(Json(json!({
        "job_id": report.job_id, "state": "succeeded", "job_epoch": report.job_epoch,
        "leader_epoch": leader_epoch,
    }))
    .into_response())
}
