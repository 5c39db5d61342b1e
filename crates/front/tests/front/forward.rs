//! A standby that passes changes on to the leader.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::any;
use http::Method;
use lockd_front::{Forward, FrontSettings, Standing};
use lockd_pki::{ClientBundle, Credentials, LiveCredentials};
use lockd_serve::Door;
use lockd_wire::node::RoleReply;

use crate::controller::{Program, Script, nowhere};
use crate::stand::{Stand, settings, soon};

/// A standby that believes the leader to be there.
async fn standby_of(url: &str, forward: Forward) -> Stand {
    let forward = Some(forward);
    let settings = FrontSettings { forward, ..settings(nowhere().await) };
    let stand = Stand::with(settings, Door::Plain).await;
    let (leader_id, leader_url) = (Some("n2".into()), Some(url.to_owned()));
    let (leader_epoch, node_id) = (Some(4), "n1".into());
    let role = RoleReply { node_id, leader_epoch, leader_id, leader_url, ..RoleReply::default() };
    stand.standing.send_replace(Standing { role, gate: None });
    stand
}

/// Says what was asked of it.
async fn program() -> Program {
    let say = |request: Request| async move {
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        assert!(!parts.headers.contains_key("x-lockd-forwarded"));
        let header = |name: &str| parts.headers[name].to_str().unwrap().to_owned();
        let (host, client) = (header("host"), header("x-forwarded-for"));
        format!("{} {} {host} {client} {}", parts.method, parts.uri, body.len())
    };
    Program::start(Router::new().fallback(any(say))).await
}

#[tokio::test]
async fn a_change_goes_to_the_leader_and_back() {
    let program = program().await;
    let leader = Stand::before(program.address).await;
    let gate = leader.lead();
    let url = format!("http://{}/", leader.address);
    let stand = standby_of(&url, Forward::default()).await;
    let headers = [("host", "far.example")];
    let answer = stand.send(Method::POST, "/a//%2F?b", &headers, Body::from("xyz")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text(), "POST /a//%2F?b far.example 192.0.2.7, 192.0.2.7 3");
    assert_eq!(answer.header("x-node-id"), Some("n1"));
    assert_eq!(answer.header("x-role"), Some("STANDBY"));
    assert_eq!(answer.header("x-leader-epoch"), Some("4"), "as this node knows it");
    soon(gate.idle()).await;
    // Reads stay here.
    assert_eq!(stand.ask(Method::GET, "/a").await.status, 503);
}

#[tokio::test]
async fn a_change_is_passed_on_only_once() {
    let other = Stand::before(nowhere().await).await;
    let stand = standby_of(&format!("http://{}", other.address), Forward::default()).await;
    let answer = stand.ask(Method::POST, "/a").await;
    assert_eq!(answer.status, 409);
    assert_eq!(answer.json()["error"], "NOT_LEADER");
    // Two that take each other for the leader do not go round in circles.
    let marked = [("x-lockd-forwarded", "n2")];
    let answer = stand.send(Method::POST, "/a", &marked, Body::from("x")).await;
    assert_eq!((answer.status, answer.json()["node_id"].as_str()), (409, Some("n1")));
    let itself = format!("http://{}", stand.address);
    stand.standing.send_modify(|standing| standing.role.leader_url = Some(itself));
    let answer = stand.ask(Method::POST, "/a").await;
    assert_eq!((answer.status, answer.json()["error"].as_str()), (409, Some("NOT_LEADER")));
}

#[tokio::test]
async fn without_a_leader_a_change_is_refused() {
    let stand = standby_of("http://unused", Forward::default()).await;
    for url in [None, Some("no url"), Some("/path")] {
        stand.standing.send_modify(|standing| standing.role.leader_url = url.map(Into::into));
        assert_eq!(stand.ask(Method::POST, "/a").await.status, 409);
    }
    // A node that leads, and whose controller is not there just now, is the one to ask again.
    stand.standing.send_replace(crate::stand::leader("n1", None));
    let answer = stand.ask(Method::POST, "/a").await;
    assert_eq!(
        (answer.status, answer.json()["error"].as_str()),
        (503, Some("controller_unavailable"))
    );
    assert_eq!(answer.json().get("outcome"), None, "nothing was sent");
}

#[tokio::test]
async fn a_leader_that_does_not_answer_is_told_apart_from_one_that_is_not_there() {
    let gone = format!("http://{}", nowhere().await);
    let stand = standby_of(&gone, Forward::default()).await;
    for url in [gone.as_str(), "https://127.0.0.1:1"] {
        stand.standing.send_modify(|standing| standing.role.leader_url = Some(url.into()));
        let answer = stand.ask(Method::POST, "/a").await;
        assert_eq!(answer.status, 503, "{url}");
        let said = answer.json();
        assert_eq!(
            (said["error"].as_str(), said.get("outcome")),
            (Some("leader_unreachable"), None)
        );
    }

    let script = Script::start().await;
    let url = format!("http://{}", script.address);
    stand.standing.send_modify(|standing| standing.role.leader_url = Some(url));
    let dying = async {
        let mut inner = script.accept().await;
        let head = inner.head().await;
        assert!(head.contains("\r\nx-lockd-forwarded: n1\r\n"), "{head}");
    };
    let (answer, ()) = tokio::join!(stand.ask(Method::POST, "/a"), dying);
    assert_eq!(answer.status, 502);
    let said = answer.json();
    assert_eq!(
        (&said["error"], &said["outcome"]),
        (&"leader_unreachable".into(), &"unknown".into())
    );
}

fn bundles(folder: &Path) -> (Door, rustls::ClientConfig) {
    let now = jiff::Timestamp::now();
    let server = lockd_pki::bootstrap(folder, &["127.0.0.1".to_owned()], now).unwrap().server;
    let credentials = Credentials::server(&server, &[], server.denylist()).unwrap();
    let (door, _changed) = Door::tls(LiveCredentials::new(credentials));
    let text = std::fs::read_to_string(folder.join("client.pem")).unwrap();
    let client = ClientBundle::parse("client.pem", &text).unwrap();
    (door, lockd_pki::client_config(&client).unwrap())
}

#[tokio::test]
async fn a_leader_is_reached_with_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let (door, mut tls) = bundles(folder.path());
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let program = program().await;
    let leader = Stand::with(settings(program.address), door).await;
    leader.lead();
    let url = format!("https://{}", leader.address);
    let forward = Forward { tls: Some(Arc::new(tls)), ..Forward::default() };
    let stand = standby_of(&url, forward).await;
    for _ in 0..2 {
        let answer = stand.send(Method::PUT, "/a", &[("host", "h")], Body::from("x")).await;
        assert_eq!((answer.status, answer.text()), (200, "PUT /a h 192.0.2.7, 192.0.2.7 1"));
    }
}
