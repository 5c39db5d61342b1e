//! The controller over HTTP: in one process, and at real ports.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Method, Request, StatusCode};
use lockd_serve::{Bound, Door, Secret, Serving};
use lockd_wire::node::{Assignment, Role};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::Access;
use crate::controller::tests::memory::{Memory, Mishap};
use crate::controller::tests::{Node, begun};
use crate::{Controller, Relaying, Settings, Source};

struct Answer {
    status: u16,
    headers: http::HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    fn error(&self) -> (u16, String) {
        (self.status, self.json()["error"].as_str().unwrap_or_default().to_owned())
    }
}

async fn ask(router: &Router, method: &str, path: &str, body: &str) -> Answer {
    let request = Request::builder().method(method).uri(path).body(Body::from(body.to_owned()));
    send(router, request.expect("a request")).await
}

async fn send(router: &Router, request: Request<Body>) -> Answer {
    let answer = router.clone().oneshot(request).await.expect("an answer");
    let (parts, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
    let body = String::from_utf8(body.to_vec()).expect("text");
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

async fn leader() -> (Arc<Memory>, Node, Router) {
    let memory = Arc::new(Memory::default());
    let node = Node::start(&memory, "a");
    node.lead(3).await;
    let router = node.controller.router(Access::default());
    (memory, node, router)
}

#[tokio::test(start_paused = true)]
async fn what_a_controller_counts_is_shown_to_prometheus() {
    let (_memory, _node, router) = leader().await;
    let job = r#"{"command": ["true"], "leader_epoch": 3}"#;
    assert_eq!(ask(&router, "POST", "/v1/jobs", job).await.status, 201);
    assert_eq!(ask(&router, "POST", "/v1/leases", r#"{"agent": "w"}"#).await.status, 200);
    let metrics = ask(&router, "GET", "/metrics", "").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.header("content-type").starts_with("application/openmetrics-text"));
    for line in [
        "lockd_jobs_role{role=\"LEADER\"} 1",
        "lockd_jobs_role{role=\"STANDBY\"} 0",
        "lockd_jobs_leader_epoch 3",
        "lockd_jobs_leased 1",
        "lockd_jobs_agents 1",
        "# EOF",
    ] {
        assert!(metrics.body.lines().any(|it| it == line), "{line}:\n{}", metrics.body);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_passes_through_over_http() {
    let (_memory, _node, router) = leader().await;
    let job = r#"{"command": ["true"], "leader_epoch": 3}"#;
    let submitted = ask(&router, "POST", "/v1/jobs", job).await;
    assert_eq!(submitted.status, 201);
    let id = submitted.json()["id"].as_str().unwrap().to_owned();
    let stale =
        ask(&router, "POST", "/v1/jobs", r#"{"command": ["true"], "leader_epoch": 2}"#).await;
    assert_eq!(stale.error(), (409, "STALE_EPOCH".into()));
    assert_eq!(stale.json()["leader_epoch"], 3);
    let lease = ask(&router, "POST", "/v1/leases", r#"{"agent": "w"}"#).await;
    assert_eq!((lease.status, lease.header("x-role")), (200, "LEADER"));
    let grant = lease.json();
    let lease_id = grant["lease_id"].as_str().unwrap().to_owned();
    let mut claim = json!({"job_id": id, "job_epoch": 1, "leader_epoch": 3});
    let path = format!("/v1/leases/{lease_id}/renew");
    assert_eq!(ask(&router, "POST", &path, &claim.to_string()).await.status, 200);
    claim["job_epoch"] = json!(7);
    let stale = ask(&router, "POST", &path, &claim.to_string()).await;
    assert_eq!(stale.error(), (409, "STALE_EPOCH".into()));
    let result = json!({"lease_id": lease_id, "job_id": id, "job_epoch": 1, "leader_epoch": 3,
                        "agent": "w", "success": true, "output": "done"});
    assert_eq!(ask(&router, "POST", "/v1/results", &result.to_string()).await.status, 200);
    assert_eq!(ask(&router, "POST", "/v1/results", &result.to_string()).await.status, 200);
    let shown = ask(&router, "GET", &format!("/v1/jobs/{id}"), "").await;
    assert_eq!(
        (shown.json()["state"].as_str(), shown.header("x-staleness-ms")),
        (Some("succeeded"), "0")
    );
    assert_eq!(shown.json()["result"]["output"], "done");
    let listed = ask(&router, "GET", "/v1/jobs", "").await.json()["jobs"][0]["result"].clone();
    assert_eq!((&listed["success"], listed.get("output")), (&json!(true), None), "not as empty");
    assert!(!shown.body.contains(&lease_id), "ids of leases are shown to nobody");
    let other = ask(&router, "DELETE", &format!("/v1/jobs/{id}?leader_epoch=2"), "").await;
    assert_eq!(other.error(), (409, "STALE_EPOCH".into()));
    let over = ask(&router, "DELETE", &format!("/v1/jobs/{id}?leader_epoch=3"), "").await;
    assert_eq!(over.error(), (409, "job_over".into()));
    let agents = ask(&router, "GET", "/v1/agents", "").await;
    assert_eq!(agents.json()["agents"][0]["name"], "w");
    assert_eq!(ask(&router, "DELETE", "/v1/agents/w", "").await.status, 200);
    let deleted = ask(&router, "POST", "/v1/leases", r#"{"agent": "w"}"#).await;
    assert_eq!(deleted.error(), (409, "agent_deleted".into()));
    assert_eq!(ask(&router, "POST", "/v1/leases", r#"{"agent": "v"}"#).await.status, 204);
}

#[tokio::test(start_paused = true)]
async fn input_comes_back_byte_for_byte() {
    let (_memory, _node, router) = leader().await;
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let odd = r#"{ "a" : 1.0e+999, "a":123456789012345678901234567890,"\ud800":[ ] }"#;
    for input in [deep.as_str(), odd] {
        let job = format!(r#"{{"command": ["true"], "input": {input}}}"#);
        let submitted = ask(&router, "POST", "/v1/jobs", &job).await;
        assert_eq!(submitted.status, 201, "{}", submitted.body);
        let grant = ask(&router, "POST", "/v1/leases", r#"{"agent": "w"}"#).await;
        assert!(grant.body.contains(&format!(r#""input":{input},"#)));
        let id = serde_json::from_str::<lockd_wire::job::Submitted>(&submitted.body).unwrap().id;
        let shown = ask(&router, "GET", &format!("/v1/jobs/{id}"), "").await;
        assert!(shown.body.contains(input));
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_reads_and_refuses_changes() {
    let (memory, leader, router) = leader().await;
    let id =
        ask(&router, "POST", "/v1/jobs", r#"{"command": ["true"]}"#).await.json()["id"].clone();
    let standby = Node::start(&memory, "b");
    standby.orders.send_modify(|orders| {
        orders.assignment = Assignment {
            version: 1,
            role: Role::Standby,
            leader_epoch: Some(3),
            leader_id: Some("a".into()),
            leader_url: Some("http://127.0.0.1:1".into()),
            ..Assignment::default()
        };
    });
    standby.settled().await;
    let router = standby.controller.router(Access::default());
    let paths =
        ["/v1/jobs", "/v1/leases", "/v1/leases/x/renew", "/v1/leases/x/release", "/v1/results"];
    let changes = paths.map(|path| ("POST", path)).into_iter();
    for (method, path) in changes.chain([("DELETE", "/v1/agents/x"), ("DELETE", "/v1/jobs/x")]) {
        let refused = ask(&router, method, path, "{}").await;
        assert_eq!(refused.error(), (409, "NOT_LEADER".into()), "{path}");
        let body = refused.json();
        assert_eq!((&body["leader_id"], &body["role"]), (&json!("a"), &json!("STANDBY")));
        assert_eq!((&body["leader_epoch"], &body["node_id"]), (&json!(3), &json!("b")));
    }
    let list = ask(&router, "GET", "/v1/jobs?state=queued", "").await;
    assert_eq!(list.json()["jobs"][0]["id"], id);
    assert_eq!(list.header("x-role"), "STANDBY");
    assert_eq!((list.header("x-leader-epoch"), list.header("x-leader-id")), ("3", "a"));
    assert_eq!(ask(&router, "GET", "/v1/agents", "").await.status, 200);
    assert_eq!(ask(&router, "GET", "/role", "").await.json()["assignment"], 1);
    drop(leader);
}

#[tokio::test(start_paused = true)]
async fn lists_go_on_where_they_stopped() {
    let (_memory, _node, router) = leader().await;
    for _ in 0..30 {
        ask(&router, "POST", "/v1/jobs", r#"{"command": ["true"]}"#).await;
    }
    let (mut ids, mut next) = (Vec::new(), String::new());
    loop {
        let page = ask(&router, "GET", &format!("/v1/jobs?limit=7{next}"), "").await.json();
        let jobs = page["jobs"].as_array().unwrap();
        assert!(jobs.len() <= 7);
        ids.extend(jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(after) => next = format!("&after={after}"),
            None => break,
        }
    }
    assert_eq!(ids.len(), 30);
    assert!(ids.is_sorted());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_understood_is_refused() {
    let (_memory, _node, router) = leader().await;
    for (path, body) in [
        ("/v1/jobs", "{"),
        ("/v1/jobs", r#"{"command": []}"#),
        ("/v1/jobs", r#"{"command": ["a"], "unknown": 1}"#),
        ("/v1/jobs", r#"{"command": ["a"]} {}"#),
        ("/v1/leases", r#"{"agent": "a b"}"#),
        ("/v1/results", "[]"),
    ] {
        assert_eq!(
            ask(&router, "POST", path, body).await.error(),
            (400, "invalid_body".into()),
            "{body}"
        );
    }
    let large = "x".repeat(3 * 1024 * 1024);
    assert_eq!(
        ask(&router, "POST", "/v1/jobs", &large).await.error(),
        (413, "body_too_large".into())
    );
    let get = async |path: &str| ask(&router, "GET", path, "").await.error();
    assert_eq!(get("/v1/jobs?state=odd").await, (400, "invalid_params".into()));
    assert_eq!(get("/v1/jobs?limit=x").await, (400, "invalid_params".into()));
    for after in ["%00", "", "A", "a%20b", "%C3%BC", &"a".repeat(129)] {
        let odd = get(&format!("/v1/jobs?after={after}")).await;
        assert_eq!(odd, (400, "invalid_params".into()), "{after}");
    }
    assert_eq!(get("/v1/jobs/%00").await, (404, "not_found".into()));
    assert_eq!(get("/v1/events?after=x").await, (400, "invalid_params".into()));
    assert_eq!(get("/v1/jobs/none").await, (404, "not_found".into()));
    assert_eq!(get("/v2").await, (404, "not_found".into()));
    let method = ask(&router, "PUT", "/v1/jobs", "").await;
    assert_eq!(method.error(), (405, "method_not_allowed".into()));
    assert_eq!(method.header("x-node-id"), "a", "on every answer");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_nobody_knows_is_told_as_such() {
    let (_memory, node, router) = leader().await;
    node.reach.next([Mishap::LostAfter]);
    let request = || {
        let request = Request::builder().method(Method::POST).uri("/v1/jobs");
        let request = request.header("x-idempotency-key", "k");
        request.body(Body::from(r#"{"command": ["true"]}"#)).unwrap()
    };
    let unknown = send(&router, request()).await;
    assert_eq!(unknown.error(), (503, "store_unavailable".into()));
    assert_eq!(unknown.json()["outcome"], "unknown");
    assert_eq!(unknown.header("retry-after"), "1");
    assert_eq!(send(&router, request()).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_must_be_allowed_to() {
    let (_memory, node, open) = leader().await;
    let secret = Secret::new("0123456789abcdef").unwrap();
    let closed = node.controller.router(Access::new(Some(secret), false));
    for path in ["/v1/jobs", "/v1/events", "/nowhere"] {
        assert_eq!(ask(&closed, "GET", path, "").await.error(), (401, "token_required".into()));
    }
    for path in ["/role", "/healthz"] {
        assert_eq!(ask(&closed, "GET", path, "").await.status, 200);
    }
    let with = |name: &str, value: &str, method: &str| {
        let request = Request::builder().method(method).uri("/v1/jobs").header(name, value);
        request.body(Body::from(r#"{"command": ["true"]}"#)).unwrap()
    };
    let shown = send(&closed, with("authorization", "Bearer 0123456789abcdef", "GET")).await;
    assert_eq!(shown.status, 200);
    let page = send(&open, with("origin", "http://evil", "POST")).await;
    assert_eq!(page.error(), (403, "not_allowed".into()));
    assert_eq!(send(&open, with("origin", "http://evil", "GET")).await.status, 200);
}

async fn serve(router: Router) -> (Serving, String) {
    let bound = Bound::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", bound.address);
    (bound.serve(&Door::Plain, router).expect("a server"), url)
}

/// Reads events until there are so many.
async fn events(url: &str, after: &str, count: usize) -> Vec<String> {
    use futures_util::StreamExt as _;
    let client = crate::controller::tests::client();
    let answer = client.get(format!("{url}/v1/events?after={after}")).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let (mut stream, mut text) = (answer.bytes_stream(), String::new());
    while text.matches("\n\n").count() < count {
        let piece = tokio::time::timeout(Duration::from_secs(20), stream.next()).await;
        text.push_str(std::str::from_utf8(&piece.expect("in time").unwrap().unwrap()).unwrap());
    }
    text.split("\n\n").filter(|event| !event.is_empty()).map(str::to_owned).collect()
}

/// A standby passes on what the leader tells, and goes on itself when it leads.
#[tokio::test(flavor = "multi_thread")]
async fn events_have_the_same_ids_everywhere_and_go_on_after_a_change_of_leader() {
    let memory = Arc::new(Memory::default());
    let token = "0123456789abcdef";
    let access = || Access::new(Some(Secret::new(token).unwrap()), false);
    let a = Node::start(&memory, "a");
    let office = a.lead(3).await;
    let (_serving_a, url_a) = serve(a.controller.router(access())).await;
    let b = Node::start_with(&memory, "b", 0, |settings| {
        settings.relaying = Relaying { token: Some(token.into()), tls: None };
    });
    let (_serving_b, url_b) = serve(b.controller.router(Access::default())).await;
    b.orders.send_modify(|orders| {
        orders.assignment.version = 1;
        orders.assignment.leader_url = Some(url_a.clone());
    });
    let spec = || serde_json::from_str(r#"{"command": ["true"]}"#).unwrap();
    office.submit(None, spec(), None).await.unwrap();
    let relayed = events(&url_b, "0-0", 2).await;
    assert!(
        relayed[0].contains("event: leader") && relayed[1].contains("event: job"),
        "{relayed:?}"
    );
    let id = |event: &str| {
        let line = event.lines().find(|line| line.starts_with("id:")).expect("an id").to_owned();
        line.trim_start_matches("id:").trim().to_owned()
    };
    // Whoever was there before goes on, at the other node, when that one leads.
    let office = b.lead(4).await;
    office.submit(None, spec(), None).await.unwrap();
    let after = events(&url_b, &id(&relayed[1]), 2).await;
    assert!(after[0].contains("event: leader") && id(&after[0]).starts_with("4-"), "{after:?}");
    assert!(after[1].contains("event: job"));
    // What cannot be resumed is told.
    let reset = events(&url_b, "3-1", 1).await;
    assert!(reset[0].contains("event: reset"), "{reset:?}");
    // A stream ends with its controller.
    let listening = begun(async move { events(&url_b, &id(&after[1]), 9).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let began = tokio::time::Instant::now();
    b.controller.stop().await;
    assert!(listening.await.is_err(), "it ended before there were so many");
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// A node that says what the program beside it is to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_controller_follows_its_node() {
    use axum::extract::{Query, State};
    use tokio::sync::watch;
    #[derive(serde::Deserialize)]
    struct Asked {
        after: Option<u64>,
        wait_ms: u64,
    }
    async fn assignment(
        State(told): State<watch::Sender<Assignment>>,
        Query(asked): Query<Asked>,
        headers: http::HeaderMap,
    ) -> axum::Json<Assignment> {
        assert_eq!(headers["authorization"], "Bearer t0ken");
        let mut told = told.subscribe();
        let news = told.wait_for(|now| asked.after.is_none_or(|after| now.version > after));
        let _in_time =
            tokio::time::timeout(Duration::from_millis(asked.wait_ms), news).await.is_ok();
        axum::Json(told.borrow().clone())
    }
    let told = watch::Sender::new(Assignment::default());
    let route = axum::routing::get(assignment);
    let node = Router::new().route("/assignment", route).with_state(told.clone());
    let (node, endpoint) = serve(node).await;
    let memory = Arc::new(Memory::default());
    let ledger = Arc::new(crate::controller::tests::memory::Reach::new(&memory));
    let source = Source::Follow { endpoint, token: "t0ken".into() };
    let controller = Controller::start(Settings::new("a", source), ledger);
    let until = async |wanted: Role, version: u64| {
        let seen = async {
            loop {
                let role = controller.role();
                if role.role == wanted && role.assignment == Some(version) {
                    return role;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), seen).await.expect("in time")
    };
    let order = |version, role, epoch| {
        let lease_ms = Some(1_500);
        let leader_epoch = Some(epoch);
        told.send_replace(Assignment {
            version,
            role,
            leader_epoch,
            lease_ms,
            ..Assignment::default()
        });
    };
    order(1, Role::Leader, 5);
    assert_eq!(until(Role::Leader, 1).await.leader_epoch, Some(5));
    order(2, Role::Draining, 5);
    until(Role::Draining, 2).await;
    order(3, Role::Standby, 6);
    assert_eq!(until(Role::Standby, 3).await.leader_epoch, Some(6));
    order(4, Role::Leader, 7);
    until(Role::Leader, 4).await;
    // It goes on while it hears from the node, and not much longer.
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    assert_eq!(controller.role().role, Role::Leader);
    node.stop().await;
    until(Role::Standby, 4).await;
    controller.stop().await;
}
