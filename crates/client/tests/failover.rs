//! Which server is asked, how often, and what stays the same from one attempt to the next.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;

use std::time::Duration;

use fake::{Answer, Fake, granted, released, updated};
use lockd_client::{AcquireKind, Client, ReadKind, UpdateKind, secs};
use serde_json::json;

const ACQUIRE: &str = "/v1/acquire";
const KEEPALIVE: &str = "/v1/keepalive";
const RELEASE: &str = "/v1/release";
const UPDATE: &str = "/v1/update";
const GET: &str = "/v1/get";
const DESCRIBE: &str = "/v1/describe";

async fn pair() -> (Fake, Fake, Client) {
    let (first, second) = (Fake::default(), Fake::default());
    let endpoints = [first.listen().await, second.listen().await];
    (first, second, Client::builder().endpoints(endpoints).build().unwrap())
}

/// An address where nobody listens.
async fn closed() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn described() -> Answer {
    Answer::ok(json!({
        "namespace": "default", "key": "k", "fencing_token": 2, "version": 9, "metadata": {}
    }))
}

#[tokio::test]
async fn a_server_that_is_down_is_passed_over_and_not_asked_again() {
    let up = Fake::default();
    up.always(DESCRIBE, described);
    let client = Client::builder().endpoints([closed().await, up.listen().await]).build().unwrap();
    for _ in 0..3 {
        assert_eq!(client.describe(None, "k").await.unwrap().version, 9);
    }
    assert_eq!(up.asked_already(DESCRIBE).len(), 3);
}

#[tokio::test]
async fn the_server_that_answered_last_is_asked_first() {
    let (first, second, client) = pair().await;
    first.then(DESCRIBE, Answer::error(503, "node_passive"));
    first.always(DESCRIBE, described);
    second.always(DESCRIBE, described);
    for _ in 0..3 {
        client.describe(None, "k").await.unwrap();
    }
    assert_eq!(first.asked_already(DESCRIBE).len(), 1);
    assert_eq!(second.asked_already(DESCRIBE).len(), 3);
}

#[tokio::test]
async fn passive_draining_and_empty_answers_move_on() {
    for answer in [
        Answer::error(503, "node_passive"),
        Answer::error(503, "shutdown_draining").with("retry-after", &9),
        Answer::Raw(503, Vec::new(), b""),
        Answer::Raw(502, Vec::new(), b"<html>"),
        Answer::Hangup,
    ] {
        let (first, second, client) = pair().await;
        first.then(ACQUIRE, answer);
        second.then(ACQUIRE, granted(secs(30), 1)).always(RELEASE, released);
        let lease = client.lease("jobs/7").await.unwrap();
        let (there, here) = (first.asked(ACQUIRE).await, second.asked(ACQUIRE).await);
        assert_eq!(there.name(), here.name(), "the same call keeps its name");
        assert_eq!(there.body, here.body, "and everything else");
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_refusal_is_not_taken_to_another_server() {
    let (first, second, client) = pair().await;
    first.then(ACQUIRE, Answer::error(409, "waiting").with("retry-after", &3));
    let error = client.lease("jobs/7").await.unwrap_err();
    assert_eq!(error.kind(), AcquireKind::Busy);
    assert_eq!(error.code(), Some("waiting"));
    assert_eq!(error.retry_after(), Some(secs(3)));
    assert!(error.retryable());
    assert!(second.asked_already(ACQUIRE).is_empty());
}

#[tokio::test]
async fn every_repetition_has_the_name_of_the_first_and_every_call_its_own() {
    let fake = Fake::default();
    let client = Client::connect(&fake.listen().await).unwrap();
    let unknown = || {
        let body = json!({ "error": "store_unavailable", "outcome": "unknown" });
        Answer::Json(503, Vec::new(), body)
    };
    fake.then(ACQUIRE, Answer::Hangup).then(ACQUIRE, granted(secs(30), 1));
    fake.then(UPDATE, unknown()).then(UPDATE, Answer::Hangup).then(UPDATE, updated(4));
    fake.then(UPDATE, updated(5));
    fake.then(RELEASE, unknown()).then(RELEASE, released());

    let lease = client.lease("jobs/7").await.unwrap();
    assert_eq!(lease.update(&json!({ "n": 1 })).await.unwrap().version, 4);
    lease.update(&json!({ "n": 2 })).await.unwrap();
    assert_eq!(lease.version(), 5);
    lease.release().await.unwrap();

    let acquires = fake.asked_already(ACQUIRE);
    let updates = fake.asked_already(UPDATE);
    let releases = fake.asked_already(RELEASE);
    assert_eq!((acquires.len(), updates.len(), releases.len()), (2, 4, 2));
    assert_eq!(acquires[0].name(), acquires[1].name());
    assert_eq!(updates[0].name(), updates[1].name());
    assert_eq!(updates[0].name(), updates[2].name());
    assert_eq!(updates[0].body, updates[2].body);
    assert_ne!(updates[0].name(), updates[3].name());
    assert_eq!(releases[0].name(), releases[1].name());
    assert_ne!(acquires[0].name(), updates[0].name());
}

#[tokio::test]
async fn a_call_keeps_the_name_it_was_given() {
    let fake = Fake::default();
    let client = Client::connect(&fake.listen().await).unwrap();
    fake.then(ACQUIRE, granted(secs(30), 1)).then(UPDATE, updated(4)).then(RELEASE, released());
    let lease = client.lease("jobs/7").idempotency_key("a").await.unwrap();
    lease.update(&1).idempotency_key("u").await.unwrap();
    lease.release().idempotency_key("r").await.unwrap();
    assert_eq!(fake.asked(ACQUIRE).await.name(), "a");
    assert_eq!(fake.asked(UPDATE).await.name(), "u");
    assert_eq!(fake.asked(RELEASE).await.name(), "r");
}

#[tokio::test]
async fn attempts_are_bounded_and_the_error_says_where_it_ended() {
    let at = closed().await;
    let client = Client::builder().endpoint(&at).attempts(2).build().unwrap();
    let error = client.get("k").await.unwrap_err();
    assert_eq!(error.kind(), ReadKind::Unavailable);
    assert_eq!(error.endpoint(), Some(at.as_str()));
    assert!(error.retryable() && !error.outcome_unknown());
    assert!(std::error::Error::source(&error).is_some());

    let fake = Fake::default();
    fake.always(GET, || Answer::error(503, "store_unavailable"));
    let client = Client::builder().endpoint(fake.listen().await).attempts(3).build().unwrap();
    let error = client.get("k").await.unwrap_err();
    assert_eq!((error.status(), error.code()), (Some(503), Some("store_unavailable")));
    assert_eq!(fake.asked_already(GET).len(), 3);
}

#[tokio::test]
async fn a_wait_does_not_wait_for_a_server_that_never_was_there() {
    let client = Client::builder().endpoint(closed().await).attempts(1).build().unwrap();
    let error = client.lease("k").wait(secs(600)).await.unwrap_err();
    assert_eq!(error.kind(), AcquireKind::Unavailable);
    let error = client.lease("k").wait_forever().await.unwrap_err();
    assert_eq!(error.kind(), AcquireKind::Unavailable);
}

#[tokio::test]
async fn a_wait_goes_on_through_more_failures_than_other_calls() {
    let fake = Fake::default();
    let client = Client::builder().endpoint(fake.listen().await).attempts(1).build().unwrap();
    fake.then(ACQUIRE, Answer::Hangup).then(ACQUIRE, Answer::error(503, "shutdown_draining"));
    fake.then(ACQUIRE, granted(secs(30), 1)).always(RELEASE, released);
    client.lease("jobs/7").wait(secs(20)).await.unwrap();
    assert_eq!(fake.asked_already(ACQUIRE).len(), 3);
}

#[tokio::test]
async fn an_unknown_outcome_that_stays_unknown_is_told() {
    let fake = Fake::default();
    let client = Client::builder().endpoint(fake.listen().await).attempts(2).build().unwrap();
    fake.then(ACQUIRE, granted(secs(30), 1)).always(RELEASE, released);
    fake.always(UPDATE, || Answer::Hangup);
    let lease = client.lease("jobs/7").await.unwrap();
    let error = lease.update(&1).await.unwrap_err();
    assert_eq!(error.kind(), UpdateKind::OutcomeUnknown);
    assert!(error.outcome_unknown() && !error.retryable());
    assert!(lease.is_held(), "a failed write loses no lease");
}

#[tokio::test]
async fn silence_is_cut_off_except_while_waiting_for_a_key() {
    let fake = Fake::default();
    let client = Client::builder()
        .endpoint(fake.listen().await)
        .timeout(Duration::from_millis(500))
        .attempts(1)
        .build()
        .unwrap();
    fake.always(GET, || Answer::Silence);
    let error = client.get("k").await.unwrap_err();
    assert_eq!(error.kind(), ReadKind::Unavailable);
    assert!(error.to_string().contains("within 500ms"), "{error}");

    let (answer, later) = granted(secs(30), 1).when();
    fake.then(ACQUIRE, later).always(KEEPALIVE, || fake::renewed(secs(30)));
    fake.always(RELEASE, released);
    let waiting = fake::spawn(client.lease("jobs/7").wait(secs(20)).into_future());
    fake.asked(ACQUIRE).await;
    // Another call times out meanwhile, so more time than a timeout has passed.
    client.get("k").await.unwrap_err();
    answer.send(()).unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn giving_up_a_wait_closes_the_connection() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::connect(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let waiting = fake::spawn(client.lease("jobs/7").wait_forever().into_future());
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = [0; 16];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut head).await.unwrap();
    assert!(head.starts_with(b"POST /v1/acquire"));
    waiting.abort();
    let mut rest = Vec::new();
    // Ends only because the client hangs up.
    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await.unwrap();
}

#[tokio::test]
async fn a_unix_socket_is_an_address_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lockd.sock");
    let fake = Fake::default();
    fake.listen_unix(&path);
    fake.then(DESCRIBE, described());
    let client = Client::connect(&format!("unix://{}", path.display())).unwrap();
    assert_eq!(client.describe(None, "k").await.unwrap().version, 9);
    assert_eq!(fake.asked(DESCRIBE).await.header("host"), Some("localhost"));
}

#[test]
fn without_a_runtime_there_is_an_error_and_no_panic() {
    let client = Client::connect("http://127.0.0.1:1").unwrap();
    let asking = client.get("k").into_future();
    let error = futures_util::FutureExt::now_or_never(asking).unwrap().unwrap_err();
    assert_eq!(error.kind(), ReadKind::Invalid);
}
