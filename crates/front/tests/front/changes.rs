//! Changes pass while the node leads, and not a moment longer.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::any;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Method;
use http_body_util::BodyExt as _;
use lockd_front::{FrontSettings, Rules, Standing};
use lockd_serve::Door;
use lockd_wire::node::{NotLeader, Role, RoleReply};
use serde_json::json;
use tokio::sync::Notify;

use crate::controller::{Program, Script};
use crate::stand::{Stand, settings, soon, standby};

#[tokio::test]
async fn a_standby_refuses_changes_and_names_the_leader() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let answer = stand.send(Method::POST, "/v1/jobs", &[], Body::from("{}")).await;
    assert_eq!(answer.status, 409);
    let said = json!({"error": "NOT_LEADER", "leader_id": null, "leader_url": null,
        "leader_epoch": null, "node_id": "n1", "role": "STANDBY"});
    assert_eq!(answer.json(), said);
    assert_eq!(answer.header("x-role"), Some("STANDBY"));

    let (leader_id, leader_url) = (Some("n2".into()), Some("http://n2:80".into()));
    let (leader_epoch, node_id) = (Some(4), "n1".into());
    let role = RoleReply { node_id, leader_epoch, leader_id, leader_url, ..RoleReply::default() };
    stand.standing.send_replace(Standing { role: role.clone(), gate: None });
    for method in [Method::PUT, Method::PATCH, Method::DELETE] {
        let answer = stand.ask(method, "/v1/agents/a").await;
        assert_eq!(answer.status, 409);
        let body: NotLeader = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body, NotLeader::of(&role));
        assert_eq!(answer.header("x-leader-epoch"), Some("4"));
        assert_eq!(answer.header("x-leader-id"), Some("n2"));
    }
    assert!(script.accept().now_or_never().is_none(), "the controller has heard of none of it");
}

#[tokio::test]
async fn a_refusal_does_not_wait_for_the_body() {
    let stand = Stand::before(Script::start().await.address).await;
    let mut line = stand.connect().await;
    line.write("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\nab").await;
    let head = line.head().await;
    assert!(head.starts_with("HTTP/1.1 409 Conflict\r\n"), "{head}");
    assert!(line.until("}").await.contains("NOT_LEADER"));

    // Whoever sends its body late still has its answer, and its connection.
    let mut line = stand.connect().await;
    for _ in 0..2 {
        line.write("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n").await;
        assert!(line.head().await.starts_with("HTTP/1.1 409 Conflict\r\n"));
        line.until("}").await;
        line.write("later").await;
    }
}

#[tokio::test]
async fn those_inside_end_while_nobody_else_comes_in() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let gate = stand.lead();
    let mut line = stand.connect().await;
    line.write("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx").await;
    let mut inner = script.accept().await;
    inner.head().await;
    assert_eq!(gate.inside(), 1);
    gate.shut();
    assert_eq!(stand.ask(Method::POST, "/b").await.status, 409);
    let idle = gate.idle();
    tokio::pin!(idle);
    assert!(idle.as_mut().now_or_never().is_none());
    inner.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").await;
    assert!(line.head().await.starts_with("HTTP/1.1 200 OK\r\n"));
    assert_eq!(line.until("o").await, "o");
    assert_eq!(gate.inside(), 1, "until the answer was passed on completely");
    inner.write("k").await;
    assert_eq!(line.until("k").await, "k");
    soon(idle).await;
}

#[tokio::test]
async fn a_change_that_waits_for_its_answer_is_given_up_with_the_office() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let gate = stand.lead();
    let mut line = stand.connect().await;
    line.write("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx").await;
    let mut inner = script.accept().await;
    inner.head().await;
    stand.standing.send_replace(standby("n1"));
    gate.cut();
    let head = line.head().await;
    assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
    assert!(head.contains("x-role: STANDBY"), "as of when it leaves: {head}");
    let body = line.until("}").await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["error"], &body["outcome"]), (&json!("leadership_lost"), &json!("unknown")));
    assert_eq!(inner.rest().await, "x", "the controller sees the connection end");
    soon(gate.idle()).await;
}

#[tokio::test]
async fn an_answer_on_its_way_is_broken_off_with_the_office() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let gate = stand.lead();
    let mut line = stand.connect().await;
    line.write("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
    let mut inner = script.accept().await;
    inner.head().await;
    inner.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
    line.head().await;
    assert_eq!(line.until("half").await, "half");
    gate.cut();
    assert_eq!(line.rest().await, "");
    assert_eq!(inner.rest().await, "");
    soon(gate.idle()).await;
}

#[tokio::test]
async fn an_upload_that_began_in_office_does_not_end_after_it() {
    let got = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (some, broken) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (kept, told, ended) = (Arc::clone(&got), Arc::clone(&some), Arc::clone(&broken));
    let take = move |request: Request| {
        let (kept, told, ended) = (Arc::clone(&kept), Arc::clone(&told), Arc::clone(&ended));
        async move {
            let mut body = request.into_body();
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else {
                    ended.notify_one();
                    return;
                };
                kept.lock().extend_from_slice(frame.data_ref().unwrap());
                told.notify_one();
            }
            panic!("the upload ended as if it were whole");
        }
    };
    let program = Program::start(Router::new().fallback(any(take))).await;
    let stand = Stand::before(program.address).await;
    let gate = stand.lead();
    let mut line = stand.connect().await;
    line.write("PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf").await;
    soon(some.notified()).await;
    gate.cut();
    assert!(line.head().await.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
    line.write("rest").await;
    soon(broken.notified()).await;
    assert_eq!(*got.lock(), b"half");
    soon(gate.idle()).await;
}

#[tokio::test]
async fn an_answer_that_comes_early_leaves_its_upload_inside() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let gate = stand.lead();
    let request = "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf";
    let early = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nearly";
    let mut line = stand.connect().await;
    line.write(request).await;
    let mut inner = script.accept().await;
    inner.until("half").await;
    inner.write(early).await;
    line.until("early").await;
    assert_eq!(gate.inside(), 1);
    line.write("rest").await;
    assert_eq!(inner.until("rest").await, "rest");
    soon(gate.idle()).await;
    drop(inner);

    let mut line = stand.connect().await;
    line.write(request).await;
    let mut inner = script.accept().await;
    inner.until("half").await;
    inner.write(early).await;
    line.until("early").await;
    gate.cut();
    soon(gate.idle()).await;
    line.write("rest").await;
    assert_eq!(inner.rest().await, "");
}

#[tokio::test]
async fn a_client_that_leaves_is_inside_no_longer() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let gate = stand.lead();
    let mut line = stand.connect().await;
    line.write("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
    let mut inner = script.accept().await;
    inner.head().await;
    inner.write("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await;
    line.until("half").await;
    assert_eq!(gate.inside(), 1);
    drop(line);
    soon(gate.idle()).await;
    assert_eq!(inner.rest().await, "");
}

#[tokio::test]
async fn exceptions_hold_on_a_standby() {
    let program = Program::start(Router::new().fallback(any(|| async { "done" }))).await;
    let rules =
        Rules::new(&["GET /admin/flush".to_owned()], &["POST /v1/search".to_owned()]).unwrap();
    let settings = FrontSettings { rules, ..settings(program.address) };
    let stand = Stand::with(settings, Door::Plain).await;
    assert_eq!(stand.send(Method::POST, "/v1/search", &[], Body::from("x")).await.status, 200);
    assert_eq!(stand.ask(Method::GET, "/v1/jobs").await.status, 200);
    assert_eq!(stand.ask(Method::OPTIONS, "/v1/jobs").await.status, 200);
    for path in ["/admin/flush", "//admin/flush", "/x/..%2Fadmin/%66lush;a=b/", "/a?_method=PUT"] {
        assert_eq!(stand.ask(Method::GET, path).await.status, 409, "{path}");
    }
    let other = [("x-http-method-override", "DELETE")];
    assert_eq!(stand.send(Method::GET, "/a", &other, Body::empty()).await.status, 409);
    stand.lead();
    assert_eq!(stand.ask(Method::GET, "/admin/flush").await.status, 200);
}

#[tokio::test]
async fn a_read_goes_on_through_changes_of_office() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    let gate = stand.lead();
    let mut line = stand.connect().await;
    line.write("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let mut inner = script.accept().await;
    inner.head().await;
    assert_eq!(gate.inside(), 0);
    gate.cut();
    stand.standing.send_modify(|standing| {
        standing.role = RoleReply { role: Role::Draining, ..standing.role.clone() };
    });
    inner.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-role: LEADER\r\n\r\nok").await;
    let head = line.head().await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("x-role: DRAINING"), "{head}");
    assert_eq!(line.until("ok").await, Bytes::from("ok"));
}
