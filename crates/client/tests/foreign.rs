//! Driving a server of the public Go implementation. It refuses a request with a field that it does
//! not know, says times in whole seconds only, and leaves out of its answers what is ours.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;

use fake::{Answer, Fake, released};
use lockd_client::{AcquireKind, Client, secs};
use serde_json::{Value, json};

const ACQUIRE: &str = "/v1/acquire";
const KEEPALIVE: &str = "/v1/keepalive";
const RELEASE: &str = "/v1/release";
const DESCRIBE: &str = "/v1/describe";
const STATS: &str = "/v1/queue/stats";
const ENQUEUE: &str = "/v1/queue/enqueue";
const DEQUEUE: &str = "/v1/queue/dequeue";
const ACK: &str = "/v1/queue/ack";
const NACK: &str = "/v1/queue/nack";
const EXTEND: &str = "/v1/queue/extend";
/// The server's second.
const DATE: &str = "Wed, 21 Oct 2026 07:28:00 GMT";
const NOW: u64 = 1_792_567_680;

async fn client(fake: &Fake) -> Client {
    Client::builder().endpoint(fake.listen().await).owner("me").attempts(1).build().unwrap()
}

fn at(answer: Answer) -> Answer {
    answer.with("date", &DATE)
}

/// A grant as that server says it.
fn granted(seconds: u64) -> Answer {
    at(Answer::ok(json!({
        "namespace": "default", "lease_id": "L1", "txn_id": "T1", "key": "jobs/7", "owner": "me",
        "expires_at_unix": NOW + seconds, "version": 0, "fencing_token": 5
    })))
}

/// Whether it would take the request: these are the fields that it knows.
#[track_caller]
fn known(body: &Value, fields: &[&str]) {
    for field in body.as_object().unwrap().keys() {
        assert!(fields.contains(&field.as_str()), "{field} is not known there: {body}");
    }
}

const ACQUIRE_FIELDS: [&str; 7] =
    ["namespace", "key", "ttl_seconds", "owner", "block_seconds", "if_not_exists", "txn_id"];
const KEEPALIVE_FIELDS: [&str; 5] = ["namespace", "key", "lease_id", "ttl_seconds", "txn_id"];
const DEQUEUE_FIELDS: [&str; 8] = [
    "namespace",
    "queue",
    "owner",
    "txn_id",
    "visibility_timeout_seconds",
    "wait_seconds",
    "page_size",
    "start_after",
];
const MESSAGE_FIELDS: [&str; 14] = [
    "namespace",
    "queue",
    "message_id",
    "lease_id",
    "txn_id",
    "fencing_token",
    "meta_etag",
    "state_etag",
    "state_lease_id",
    "state_fencing_token",
    "delay_seconds",
    "intent",
    "last_error",
    "extend_by_seconds",
];

#[tokio::test]
async fn a_lease_of_a_server_that_knows_only_seconds_can_be_held() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(ACQUIRE, granted(30)).always(RELEASE, released);
    let lease = client.lease("jobs/7").ttl(secs(30)).wait(secs(2)).await.unwrap();
    let asked = fake.asked(ACQUIRE).await.json();
    known(&asked, &ACQUIRE_FIELDS);
    assert_eq!(asked["ttl_seconds"], 30);
    // The date is a second that has begun: so much is left at least.
    assert_eq!(lease.grant().ttl, secs(29));
    assert_eq!(lease.grant().expires_at_unix_ms, (NOW + 30) * 1_000);
    lease.release().await.unwrap();

    fake.then(ACQUIRE, granted(1_800));
    let grant = client.lease("jobs/7").detached().await.unwrap();
    assert_eq!(grant.ttl, secs(1_799), "the server's default");
    fake.then(KEEPALIVE, at(Answer::ok(json!({"expires_at_unix": NOW + 60}))));
    let renewed = client.raw(grant.context).keepalive(Some(secs(60))).await.unwrap();
    assert_eq!((renewed.ttl, renewed.expires_at_unix_ms), (secs(59), (NOW + 60) * 1_000));
    let asked = fake.asked(KEEPALIVE).await.json();
    known(&asked, &KEEPALIVE_FIELDS);
    assert_eq!(asked["ttl_seconds"], 60);
}

#[tokio::test]
async fn a_lease_whose_time_cannot_be_known_is_not_held() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let answer = json!({
        "namespace": "default", "lease_id": "L1", "txn_id": "T1", "key": "k", "owner": "me",
        "expires_at_unix": NOW + 30, "version": 0, "fencing_token": 5
    });
    fake.then(ACQUIRE, Answer::ok(answer).with("date", &"soon")).always(RELEASE, released);
    let error = client.lease("k").ttl(secs(30)).detached().await.unwrap_err();
    assert_eq!(error.kind(), AcquireKind::Other);
    assert!(error.to_string().contains("how long the lease lives"), "{error}");
}

#[tokio::test]
async fn what_it_does_not_tell_is_not_known() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(
        DESCRIBE,
        Answer::ok(json!({
            "namespace": "default", "key": "k", "owner": "o", "lease_id": "L", "version": 3,
            "expires_at_unix": NOW, "updated_at_unix": NOW, "metadata": {}
        })),
    );
    let described = client.describe(None, "k").await.unwrap();
    let described = serde_json::to_value(described).unwrap();
    assert_eq!((&described["version"], &described["fencing_token"]), (&json!(3), &Value::Null));
    fake.then(STATS, Answer::ok(json!({
        "namespace": "default", "queue": "jobs", "waiting_consumers": 0, "pending_candidates": 2,
        "total_consumers": 0, "has_active_watcher": false, "available": true
    })));
    let stats = client.queue("jobs").stats().await.unwrap();
    let stats = serde_json::to_value(stats).unwrap();
    assert_eq!(stats["pending_candidates"], 2);
    for depth in ["ready", "in_flight", "delayed", "dead"] {
        assert_eq!(stats[depth], Value::Null, "{depth} is not nothing, it is not known");
    }
    known(&fake.asked(STATS).await.json(), &["namespace", "queue"]);
}

/// A message as that server delivers it.
fn delivered() -> Answer {
    let message = json!({ "message": {
        "queue": "jobs", "message_id": "0190b3a4-7c1d-7000-8000-000000000001", "attempts": 1,
        "max_attempts": 5, "not_visible_until_unix": NOW + 60, "visibility_timeout_seconds": 60,
        "payload_bytes": 1, "lease_id": "L2", "lease_expires_at_unix": NOW + 60,
        "fencing_token": 3, "meta_etag": "e1"
    } });
    fake::deliveries(&[fake::delivery_of(&message, b"x")])
}

#[tokio::test]
async fn a_message_of_a_server_that_knows_only_seconds_can_be_worked_off() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let queue = client.queue("jobs");
    fake.then(
        ENQUEUE,
        Answer::ok(json!({
            "queue": "jobs", "message_id": "m", "attempts": 0, "max_attempts": 5,
            "not_visible_until_unix": NOW, "visibility_timeout_seconds": 30, "payload_bytes": 1
        })),
    );
    queue.enqueue("x").await.unwrap();

    fake.then(DEQUEUE, delivered());
    let message = queue.dequeue().visibility(secs(60)).await.unwrap().unwrap();
    let asked = fake.asked(DEQUEUE).await.json();
    known(&asked, &DEQUEUE_FIELDS);
    assert_eq!(asked["visibility_timeout_seconds"], 60);
    fake.then(
        EXTEND,
        Answer::ok(json!({
            "lease_expires_at_unix": NOW + 90, "visibility_timeout_seconds": 90, "meta_etag": "e2"
        })),
    );
    let extended = message.extend(secs(90)).await.unwrap();
    assert_eq!(extended.visibility, secs(90));
    known(&fake.asked(EXTEND).await.json(), &MESSAGE_FIELDS);
    fake.then(ACK, Answer::ok(json!({"acked": true})));
    message.ack().await.unwrap();
    known(&fake.asked(ACK).await.json(), &MESSAGE_FIELDS);

    fake.then(DEQUEUE, delivered());
    let message = queue.dequeue().await.unwrap().unwrap();
    fake.then(NACK, Answer::ok(json!({"requeued": true, "meta_etag": "e3"})));
    message.nack().delay(secs(5)).await.unwrap();
    let asked = fake.asked(NACK).await.json();
    known(&asked, &MESSAGE_FIELDS);
    assert_eq!(asked["delay_seconds"], 5);
}
