//! Answers that say no, each with its code.

use std::io::Write as _;

use lockd_tests::http::Connection;
use lockd_tests::{Request, eventually, within};
use serde_json::json;

use super::site::{Kind, Plan, SOON, Site, nothing};

fn job(id: &str) -> String {
    format!("/v1/jobs/{id}")
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let plan = Plan { moonlight: false, lock_ttl: "10s", ..Plan::default() };
    let site = Site::start(Kind::Lockd, Kind::Lockd, 1, &plan);
    let node = &site.nodes[0];
    for (body, part) in [
        ("", ""),
        ("[]", ""),
        ("{", ""),
        (r#"{"command": []}"#, "command"),
        (r#"{"command": ["a\u0000b"]}"#, "command"),
        (r#"{"command": ["true"], "comand": 1}"#, "comand"),
        (r#"{"command": ["true"], "max_attempts": 0}"#, "max_attempts"),
        (r#"{"command": ["true"], "timeout_seconds": 0}"#, "timeout_seconds"),
        (r#"{"command": ["true"], "deadline_seconds": 0}"#, "deadline_seconds"),
        (r#"{"command": ["true"], "env": {"A=B": "c"}}"#, "A=B"),
        (r#"{"command": ["true"], "priority": 1e99}"#, ""),
        (r#"{"command": ["true"]} {}"#, ""),
    ] {
        let reply = node.call(&Request::post("/v1/jobs").body(body));
        reply.refused(400, "invalid_body");
        assert!(reply.text().contains(part), "{body}: {}", reply.text());
    }
    let large = json!({"command": ["true"], "input": "x".repeat(4 << 20)}).to_string();
    let refused = node.call(&Request::post("/v1/jobs").body(large));
    assert!([400, 413].contains(&refused.status), "{}", refused.text());
    node.get("/v1/jobs/none").refused(404, "not_found");
    node.call(&Request::new("DELETE", "/v1/jobs/none")).refused(404, "not_found");
    node.call(&Request::new("DELETE", "/v1/agents/none")).refused(404, "not_found");
    node.get("/v1/nothing").refused(404, "not_found");
    node.call(&Request::new("PUT", "/v1/jobs")).refused(405, "method_not_allowed");
    node.get("/v1/jobs?state=odd").refused(400, "invalid_params");
    assert_eq!(node.get("/v1/jobs").ok().json()["jobs"], json!([]));
    // A key has one job.
    let keyed = |body: &serde_json::Value| {
        node.call(&Request::post("/v1/jobs").json(body).header("x-idempotency-key", "k"))
    };
    let first = keyed(&nothing());
    assert_eq!(first.status, 201);
    let again = keyed(&nothing());
    assert_eq!((again.status, again.json()["id"].clone()), (200, first.json()["id"].clone()));
    keyed(&json!({"command": ["false"]})).refused(409, "idempotency_key_reused");
    // What is over is over.
    let ask = json!({"agent": "x", "incarnation": "1", "request_id": "1"});
    let grant = node.post("/v1/leases", &ask).ok().json();
    assert_eq!(node.post("/v1/leases", &ask).ok().json()["lease_id"], grant["lease_id"]);
    let report = json!({"lease_id": grant["lease_id"], "job_id": grant["job_id"], "agent": "x",
        "job_epoch": grant["job_epoch"], "leader_epoch": grant["leader_epoch"], "success": true});
    node.post("/v1/results", &report).ok();
    let id = grant["job_id"].as_str().expect("an id");
    node.call(&Request::new("DELETE", &job(id))).refused(409, "job_over");
    // A deleted agent works no more, until it is started anew.
    node.call(&Request::new("DELETE", "/v1/agents/x")).ok();
    let again = json!({"agent": "x", "incarnation": "1", "request_id": "2"});
    node.post("/v1/leases", &again).refused(409, "agent_deleted");
    let anew = json!({"agent": "x", "incarnation": "2", "request_id": "3"});
    assert_eq!(node.post("/v1/leases", &anew).status, 204);
    let upgrade =
        Request::get("/v1/jobs").header("connection", "upgrade").header("upgrade", "websocket");
    node.call(&upgrade).refused(501, "upgrade_unsupported");
    for path in ["/v1/jobs/%c0%af", "/v1/jobs/%", "/v1/jobs/a%00"] {
        node.call(&Request::get(path)).refused(400, "invalid_path");
    }
}

#[test]
fn a_controller_that_is_not_there_is_told() {
    let plan =
        Plan { moonlight: false, controller: Some(|_| "sleep 1000".into()), ..Plan::default() };
    let mut site = Site::prepare(Kind::Lockd, Kind::Lockd, 1, &plan);
    site.nodes[0].start();
    let node = &site.nodes[0];
    eventually("the front answers", || node.role()["node_id"] == "a");
    let reply = node.get("/anything");
    assert!([502, 503].contains(&reply.status), "{}", reply.text());
    assert_eq!(reply.code(), "controller_unavailable");
    assert_eq!(node.get("/healthz").status, 503);
}

#[test]
fn a_leader_that_is_gone_is_told_to_whom_it_would_be_passed_on() {
    let more = vec!["--forward".into()];
    let plan = Plan { moonlight: false, lock_ttl: "10s", more, ..Plan::default() };
    let mut site = Site::start(Kind::Lockd, Kind::Lockd, 2, &plan);
    let (leader, standby) = site.two();
    within(SOON, "changes are passed on", || {
        let reply = standby.post("/v1/jobs", &nothing());
        reply.status == 201 && reply.header("x-node-id") == Some(standby.id.as_str())
    });
    assert_eq!(leader.get("/v1/jobs").ok().json()["jobs"].as_array().map(Vec::len), Some(1));
    let leader = site.leader();
    site.nodes[leader].kill();
    let refused = site.nodes[1 - leader].post("/v1/jobs", &nothing());
    refused.refused(503, "leader_unreachable");
}

/// Whoever is elsewhere may not use a controller that trusts this machine, although the node's port
/// is asked from there, and passes it on.
#[test]
fn without_a_token_only_this_machine_is_served() {
    let plan = Plan { moonlight: false, lock_ttl: "10s", ..Plan::default() };
    let site = Site::start(Kind::Lockd, Kind::Lockd, 1, &plan);
    let node = &site.nodes[0];
    let from = |request: Request, place: &str| request.header("x-forwarded-for", place);
    let submit = || Request::post("/v1/jobs").json(&nothing());
    let elsewhere = node.call(&from(submit(), "192.0.2.7"));
    elsewhere.refused(401, "token_required");
    assert!(elsewhere.json()["detail"].as_str().is_some_and(|it| it.contains("--token-file")));
    node.call(&from(Request::get("/v1/jobs"), "192.0.2.7")).refused(401, "token_required");
    let claims = from(submit(), "192.0.2.7").header("x-lockd-certified", "1");
    node.call(&claims).refused(401, "token_required");
    assert_eq!(node.call(&from(submit(), "127.0.0.1")).status, 201);
    assert_eq!(node.call(&from(Request::get("/role"), "192.0.2.7")).status, 200);
}

#[test]
fn a_change_that_is_under_way_when_the_leadership_ends_is_cut_off() {
    let plan = Plan { moonlight: false, ..Plan::default() };
    let site = Site::start(Kind::Redis, Kind::Lockd, 2, &plan);
    let before = site.leader();
    let leader = &site.nodes[before];
    let mut sending = Connection::open(&leader.place()).expect("a connection");
    let head = Request::new("POST", "/v1/jobs").head("content-length: 1000\r\n");
    sending.socket.write_all(&head).expect("sent");
    sending.socket.write_all(b"{").expect("sent");
    // It leads for a while yet: long enough for what was sent to arrive.
    leader.lock.cut();
    let refused = sending.reply().expect("an answer");
    refused.refused(503, "leadership_lost");
    assert_eq!(refused.json()["outcome"], "unknown");
    site.leader_after(before);
    leader.lock.mend();
}
