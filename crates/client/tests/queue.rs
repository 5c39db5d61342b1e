//! What operations on queues send, and what they make of the answers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake;

use std::time::Duration;

use bytes::Bytes;
use fake::{
    Answer, Fake, acked, deliveries, delivery, delivery_of, extended, feed, granted, nacked,
    released, updated,
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use hyper::body::Frame;
use lockd_client::{
    Client, DequeueKind, EnqueueKind, LostReason, Message, Queue, ReadKind, Receipt, SettleKind,
    Source, secs,
};
use serde_json::{Value, json};

const ENQUEUE: &str = "/v1/queue/enqueue";
const DEQUEUE: &str = "/v1/queue/dequeue";
const ACK: &str = "/v1/queue/ack";
const NACK: &str = "/v1/queue/nack";
const EXTEND: &str = "/v1/queue/extend";
const PAYLOAD: &str = "/v1/queue/payload";

const VISIBILITY: Duration = Duration::from_secs(30);

async fn client(fake: &Fake) -> Client {
    Client::builder().endpoint(fake.listen().await).owner("me").attempts(2).build().unwrap()
}

async fn jobs(fake: &Fake) -> Queue {
    client(fake).await.queue("jobs")
}

async fn taken(fake: &Fake, jobs: &Queue) -> Message {
    fake.then(DEQUEUE, deliveries(&[delivery("m1", VISIBILITY, b"hello")]));
    jobs.dequeue().await.unwrap().unwrap()
}

fn enqueued() -> Answer {
    Answer::ok(json!({
        "namespace": "default", "queue": "jobs", "message_id": "m1", "attempts": 0,
        "max_attempts": 5, "not_visible_until_unix": 1, "visibility_timeout_seconds": 30,
        "payload_bytes": 5, "correlation_id": "c"
    }))
}

/// The JSON in an enqueue, after a look at everything around it.
fn meta_of(asked: &fake::Seen, payload_type: &str, payload: &str) -> Value {
    let kind = asked.header("content-type").unwrap();
    let boundary = kind.strip_prefix("multipart/related; boundary=").unwrap();
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"meta\"\r\nContent-Type: \
         application/json\r\n\r\n"
    );
    let tail = format!(
        "\n\r\n--{boundary}\r\nContent-Disposition: form-data; name=\"payload\"\r\nContent-Type: \
         {payload_type}\r\n\r\n{payload}\r\n--{boundary}--\r\n"
    );
    let body = std::str::from_utf8(&asked.body).unwrap();
    let json = body.strip_prefix(&head).and_then(|rest| rest.strip_suffix(&tail));
    serde_json::from_str(json.unwrap_or_else(|| panic!("{body:?}"))).unwrap()
}

#[tokio::test]
async fn an_enqueue_says_all_that_was_asked_for() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then("/v1/acquire", granted(secs(30), 5)).always("/v1/release", released);
    let lease = client.lease("jobs/7").await.unwrap();
    let txn = client.txn();
    fake.always(ENQUEUE, enqueued);
    let sent = client
        .queue("jobs")
        .namespace("team")
        .enqueue("hello")
        .attributes(&json!({ "size": 7 }))
        .content_type("text/plain")
        .delay(Duration::from_millis(1_500))
        .visibility(secs(60))
        .ttl(secs(3_600))
        .max_attempts(3)
        .in_txn(&txn)
        .fenced_by(&lease)
        .fence("team/epoch", 12)
        .idempotency_key("mine")
        .await
        .unwrap();
    assert_eq!((sent.message_id.as_str(), sent.payload_bytes), ("m1", 5));
    let asked = fake.asked(ENQUEUE).await;
    assert_eq!(
        meta_of(&asked, "text/plain", "hello"),
        json!({
            "namespace": "team", "queue": "jobs", "delay_seconds": 2,
            "visibility_timeout_seconds": 60, "ttl_seconds": 3_600, "max_attempts": 3,
            "attributes": { "size": 7 }, "payload_content_type": "text/plain", "txn_id": txn.id()
        })
    );
    assert_eq!(asked.name(), "mine");
    assert_eq!(asked.headers_of("x-fence-key"), ["default/jobs/7", "team/epoch"]);
    assert_eq!(asked.headers_of("x-fence-token"), ["5", "12"]);

    client.queue("jobs").enqueue(Source::once(&b"raw"[..])).await.unwrap();
    let asked = fake.asked(ENQUEUE).await;
    assert_eq!(meta_of(&asked, "application/octet-stream", "raw"), json!({ "queue": "jobs" }));
    client.queue("jobs").enqueue_json(&json!([1])).in_txn("T9").await.unwrap();
    let asked = fake.asked(ENQUEUE).await;
    let meta = meta_of(&asked, "application/json", "[1]");
    assert_eq!(
        (&meta["payload_content_type"], &meta["txn_id"]),
        (&json!("application/json"), &json!("T9"))
    );
}

#[tokio::test]
async fn an_enqueue_keeps_its_name_and_its_bytes_when_sent_again() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    fake.then(ENQUEUE, Answer::Hangup).then(ENQUEUE, enqueued());
    jobs.enqueue("hello").await.unwrap();
    let (first, again) = (fake.asked(ENQUEUE).await, fake.asked(ENQUEUE).await);
    assert_eq!((first.name(), &first.body), (again.name(), &again.body));

    fake.then(ENQUEUE, Answer::Hangup);
    let error = jobs.enqueue(Source::once(&b"hello"[..])).await.unwrap_err();
    assert_eq!(error.kind(), EnqueueKind::OutcomeUnknown, "it cannot be sent again");
}

#[tokio::test]
async fn a_message_that_cannot_be_sent_is_refused_before_sending() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let unwritable = std::collections::BTreeMap::from([(vec![1], 1)]);
    let error = jobs.enqueue("x").attributes(&unwritable).await.unwrap_err();
    assert_eq!(error.kind(), EnqueueKind::Source);
    let error = jobs.enqueue("x").content_type("a\r\nb").await.unwrap_err();
    assert_eq!(error.kind(), EnqueueKind::Invalid);
    assert!(fake.asked_already(ENQUEUE).is_empty());
}

#[tokio::test]
async fn an_empty_queue_is_an_answer() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    fake.always(DEQUEUE, || Answer::error(409, "waiting").with("retry-after", &9));
    assert!(jobs.dequeue().wait(secs(1)).await.unwrap().is_none());
    assert!(jobs.dequeue().batch(3).await.unwrap().is_empty());
    assert_eq!(fake.asked_already(DEQUEUE).len(), 2, "nobody asks again by himself");
    fake.then(DEQUEUE, Answer::error(400, "invalid_queue"));
    assert_eq!(jobs.dequeue().await.unwrap_err().kind(), DequeueKind::Invalid);
}

#[tokio::test]
async fn a_dequeue_says_all_that_was_asked_for() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    fake.always(DEQUEUE, || Answer::error(409, "waiting"));
    fake.always("/v1/queue/dequeueWithState", || Answer::error(409, "waiting"));
    jobs.dequeue()
        .owner("host-1")
        .visibility(Duration::from_millis(1_500))
        .wait(Duration::from_millis(2_100))
        .in_txn("T9")
        .batch(99)
        .await
        .unwrap();
    assert_eq!(
        fake.asked(DEQUEUE).await.json(),
        json!({
            "queue": "jobs", "owner": "host-1", "txn_id": "T9", "visibility_timeout_ms": 1_500,
            "wait_seconds": 3, "page_size": 64
        })
    );
    jobs.dequeue().await.unwrap();
    let plain = json!({ "queue": "jobs", "owner": "me", "wait_seconds": -1, "page_size": 1 });
    assert_eq!(fake.asked(DEQUEUE).await.json(), plain);
    jobs.dequeue().with_state().wait_forever().await.unwrap();
    assert_eq!(fake.asked("/v1/queue/dequeueWithState").await.json()["wait_seconds"], 0);
}

#[tokio::test]
async fn a_message_tells_what_it_is() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let mut message = taken(&fake, &jobs).await;
    assert_eq!((message.id(), message.queue(), message.namespace()), ("m1", "jobs", "default"));
    assert_eq!((message.attempts(), message.failures(), message.max_attempts()), (2, 1, 5));
    assert_eq!((message.content_type(), message.sha256()), ("text/plain", Some("abc")));
    assert_eq!((message.token(), message.payload_bytes()), (3, 5));
    assert_eq!(message.attributes::<Value>().unwrap(), Some(json!({ "size": 7 })));
    assert!(message.attributes::<u8>().is_err());
    assert!(message.is_held() && message.expires_in() > secs(29));
    assert_eq!(message.bytes().await.unwrap(), "hello");
    assert_eq!(message.bytes().await.unwrap(), "hello", "it stays");
    assert_eq!(message.json::<u8>().await.unwrap_err().kind(), ReadKind::Decode);
    let pieces: Vec<Bytes> = message.stream().try_collect().await.unwrap();
    assert_eq!(pieces.concat(), b"hello");
    assert!(message.state().is_none());
    assert!(!format!("{message:?}").contains("L-m1"), "the lease is a secret");
}

#[tokio::test]
async fn a_large_payload_is_read_while_it_arrives() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let (pieces, answer) = feed();
    fake.then(DEQUEUE, answer).always(ACK, acked);
    let payload = vec![7; 5 * 1024 * 1024];
    let mut whole = delivery("m1", VISIBILITY, &payload);
    let rest = whole.split_off(whole.len() - 1_000);
    let sending = fake::spawn(async move {
        pieces.send(whole).await.unwrap();
        pieces
    });
    // Whoever waits for all of it waits for ever.
    let asked = tokio::time::timeout(secs(10), jobs.dequeue().into_future()).await;
    let mut message = asked.unwrap().unwrap().unwrap();
    let pieces = sending.await.unwrap();
    let mut got = message.chunk().await.unwrap().unwrap().len();
    while got < payload.len() - 1_000 {
        got += message.chunk().await.unwrap().unwrap().len();
    }
    pieces.send(rest).await.unwrap();
    while got < payload.len() {
        got += message.chunk().await.unwrap().unwrap().len();
    }
    drop(pieces);
    assert!(message.chunk().await.unwrap().is_none());
    assert_eq!(got, payload.len());
    message.ack().await.unwrap();
}

#[tokio::test]
async fn a_payload_that_breaks_off_is_asked_for_again() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let mut half = delivery("m1", VISIBILITY, b"hello");
    half.truncate(half.len() - 2);
    let (pieces, answer) = feed();
    fake.then(DEQUEUE, answer).always(ACK, acked);
    fake::spawn(async move { pieces.send(half).await });
    fake.then(PAYLOAD, Answer::Raw(200, Vec::new(), b"hello"));
    let mut message = jobs.dequeue().await.unwrap().unwrap();
    assert_eq!(message.bytes().await.unwrap(), "hello");
    let asked = fake.asked(PAYLOAD).await;
    assert_eq!((asked.method.as_str(), asked.query["message_id"].as_str()), ("GET", "m1"));
    assert_eq!(
        (asked.query["queue"].as_str(), asked.query["namespace"].as_str()),
        ("jobs", "default")
    );
    message.ack().await.unwrap();
}

#[tokio::test]
async fn payloads_of_a_batch_can_be_read_in_any_order() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let all = ["one", "three", "two"].map(|text| delivery(text, VISIBILITY, text.as_bytes()));
    fake.then(DEQUEUE, deliveries(&all)).always(ACK, acked);
    fake.then(PAYLOAD, Answer::Raw(200, Vec::new(), b"three"));
    let batch = jobs.dequeue().batch(5).buffer_max(3).await.unwrap();
    assert_eq!(batch.len(), 3);
    let mut messages: Vec<Message> = batch.collect();
    messages.reverse();
    assert!(fake.asked_already(PAYLOAD).is_empty(), "not before it is wanted");
    for message in &mut messages {
        assert_eq!(message.bytes().await.unwrap(), message.id().to_owned());
        message.ack().await.unwrap();
    }
    assert_eq!(fake.asked_already(PAYLOAD).len(), 1, "only what was too large to keep");
}

#[tokio::test]
async fn what_is_not_a_delivery_is_an_error() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let sound = String::from_utf8(delivery("m1", VISIBILITY, b"hello").to_vec()).unwrap();
    let changed = |from: &str, to: &str| deliveries(&[Bytes::from(sound.replace(from, to))]);
    for (answer, why) in [
        (Answer::ok(json!({})), "not multipart"),
        (changed("\"payload_bytes\":5", "\"payload_bytes\":6"), "another length"),
        (changed("name=\"payload\"", "name=\"meta\""), "not in order"),
        (changed("{\"message\"", "\"message\""), "not readable"),
    ] {
        fake.then(DEQUEUE, answer);
        let error = jobs.dequeue().await.unwrap_err();
        assert_eq!(error.kind(), DequeueKind::Other, "{why}");
        assert!(error.detail().contains(why), "{error}");
    }
}

#[tokio::test]
async fn answers_show_the_receipt_and_an_extension_renews_it() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let message = taken(&fake, &jobs).await;
    let receipt = json!({
        "namespace": "default", "queue": "jobs", "message_id": "m1", "lease_id": "L-m1",
        "txn_id": "T1", "fencing_token": 3
    });
    let showing = |more: Value| {
        let mut all = receipt.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    fake.then(EXTEND, extended(secs(60), "e2"));
    let extension = message.extend(secs(60)).await.unwrap();
    assert_eq!(extension.visibility, secs(60));
    assert!(message.expires_in() > secs(59));
    let asked = fake.asked(EXTEND).await.json();
    assert_eq!(asked, showing(json!({ "meta_etag": "e1", "extend_by_seconds": 60 })));

    fake.then(NACK, Answer::error(503, "shutdown_draining")).then(NACK, nacked());
    let how = message.nack().delay(Duration::from_millis(2_500)).error("no ink");
    assert!(!how.await.unwrap().dead);
    for asked in [fake.asked(NACK).await.json(), fake.asked(NACK).await.json()] {
        let more = json!({ "meta_etag": "e2", "delay_ms": 2_500, "last_error": "no ink" });
        assert_eq!(asked, showing(more), "the etag of the extension");
    }
    assert_eq!(message.ack().await.unwrap_err().kind(), SettleKind::Invalid);
    assert!(!message.nack().await.unwrap().dead, "once is enough");
    assert!(fake.asked_already(NACK).is_empty());

    let message = taken(&fake, &jobs).await;
    fake.then(ACK, acked());
    message.ack().fence("team/epoch", 12).await.unwrap();
    let asked = fake.asked(ACK).await;
    assert_eq!(asked.json(), showing(json!({ "meta_etag": "e1" })));
    assert_eq!(asked.headers_of("x-fence-key"), ["team/epoch"]);
    message.ack().await.unwrap();
    assert!(fake.asked_already(ACK).is_empty(), "once is enough");

    let message = taken(&fake, &jobs).await;
    fake.then(
        NACK,
        Answer::ok(json!({
            "requeued": false, "dead": true, "meta_etag": "", "correlation_id": ""
        })),
    );
    assert!(message.nack().defer().await.unwrap().dead);
    assert_eq!(fake.asked(NACK).await.json()["intent"], "defer");
}

#[tokio::test]
async fn an_extension_that_may_have_happened_is_repeated_without_its_etag() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let message = taken(&fake, &jobs).await;
    fake.then(EXTEND, Answer::Hangup).then(EXTEND, extended(secs(60), "e3"));
    message.extend(secs(60)).await.unwrap();
    assert_eq!(fake.asked(EXTEND).await.json()["meta_etag"], "e1");
    assert!(fake.asked(EXTEND).await.json().get("meta_etag").is_none());
    assert_eq!(message.receipt().meta_etag.as_deref(), Some("e3"));

    fake.always(EXTEND, || Answer::Hangup).then(NACK, nacked());
    assert_eq!(message.extend(secs(60)).await.unwrap_err().kind(), SettleKind::Unavailable);
    message.nack().await.unwrap();
    assert!(fake.asked(NACK).await.json().get("meta_etag").is_none(), "it may be another by now");
}

#[tokio::test]
async fn an_answer_that_was_lost_is_found_to_have_happened() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let message = taken(&fake, &jobs).await;
    fake.then(ACK, Answer::Hangup).then(ACK, Answer::error(404, "not_found"));
    message.ack().await.unwrap();

    let message = taken(&fake, &jobs).await;
    let mismatch = || Answer::error(409, "queue_message_lease_mismatch");
    fake.then(NACK, Answer::Hangup).then(NACK, mismatch());
    message.nack().await.unwrap();

    let message = taken(&fake, &jobs).await;
    fake.then(ACK, Answer::error(404, "not_found"));
    let error = message.ack().await.unwrap_err();
    assert_eq!(error.kind(), SettleKind::LeaseLost);
    assert_eq!(error.lost().unwrap().reason, LostReason::Gone);
    assert!(!message.is_held());

    let message = taken(&fake, &jobs).await;
    fake.then(ACK, mismatch());
    assert_eq!(message.ack().await.unwrap_err().kind(), SettleKind::LeaseLost);
    assert_eq!(message.lost().await.reason, LostReason::Redelivered);
    fake.asked_already(NACK);
    assert_eq!(message.nack().await.unwrap_err().kind(), SettleKind::LeaseLost);
    assert!(fake.asked_already(NACK).is_empty(), "there is no point in asking");
}

#[tokio::test]
async fn an_extension_and_an_acknowledgement_do_not_cross() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let message = std::sync::Arc::new(taken(&fake, &jobs).await);
    let (answer, later) = extended(secs(60), "e2").when();
    fake.then(EXTEND, later).then(ACK, acked());
    let extending = fake::spawn({
        let message = std::sync::Arc::clone(&message);
        async move { message.extend(secs(60)).await }
    });
    fake.asked(EXTEND).await;
    let acking = fake::spawn(message.ack().into_future());
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert!(fake.asked_already(ACK).is_empty(), "one after the other");
    answer.send(()).unwrap();
    extending.await.unwrap().unwrap();
    acking.await.unwrap().unwrap();
    assert_eq!(fake.asked(ACK).await.json()["meta_etag"], "e2");
}

#[tokio::test]
async fn what_is_dropped_is_given_back() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let jobs = client.queue("jobs");
    fake.always(NACK, nacked).always(ACK, acked);
    drop(taken(&fake, &jobs).await);
    client.close().await;
    let asked = fake.asked(NACK).await.json();
    assert_eq!((&asked["message_id"], asked.get("intent")), (&json!("m1"), None), "it failed");

    let message = taken(&fake, &jobs).await;
    message.ack().await.unwrap();
    drop(message);
    assert_eq!(taken(&fake, &jobs).await.detach().lease_id, "L-m1", "somebody else answers");
    let all = ["a", "b", "c"].map(|id| delivery(id, VISIBILITY, b""));
    fake.then(DEQUEUE, deliveries(&all));
    let mut batch = jobs.dequeue().batch(3).await.unwrap();
    let begun = batch.next().unwrap();
    drop(batch);
    drop(begun);
    client.close().await;
    let mut given_back: Vec<_> = fake
        .asked_already(NACK)
        .iter()
        .map(|asked| (asked.json()["message_id"].clone(), asked.json().get("intent").cloned()))
        .collect();
    given_back.sort_by_key(|(id, _)| id.to_string());
    let defer = Some(json!("defer"));
    let expected = [(json!("a"), None), (json!("b"), defer.clone()), (json!("c"), defer)];
    assert_eq!(given_back, expected, "only the first was begun");
}

#[tokio::test]
async fn under_a_transaction_a_lost_delivery_is_told_and_not_asked_for_again() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    fake.then(DEQUEUE, Answer::Hangup);
    let error = jobs.dequeue().in_txn("T9").await.unwrap_err();
    assert_eq!(error.kind(), DequeueKind::OutcomeUnknown);
    assert_eq!(fake.asked_already(DEQUEUE).len(), 1);

    fake.always(NACK, nacked);
    let (pieces, answer) = feed();
    fake.then(DEQUEUE, answer);
    let first = delivery("a", VISIBILITY, b"x");
    let half = delivery("b", VISIBILITY, b"y").split_to(30);
    fake::spawn(async move {
        pieces.send(first).await.unwrap();
        pieces.send(half).await.unwrap();
    });
    let error = jobs.dequeue().in_txn("T9").batch(2).await.unwrap_err();
    assert_eq!(error.kind(), DequeueKind::OutcomeUnknown);

    fake.then(DEQUEUE, Answer::Hangup);
    fake.then(DEQUEUE, deliveries(&[delivery("m1", VISIBILITY, b"")]));
    assert!(jobs.dequeue().await.unwrap().is_some(), "without one it is asked for again");
}

#[tokio::test]
async fn a_batch_that_breaks_off_is_what_has_arrived() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    fake.always(ACK, acked);
    let (pieces, answer) = feed();
    fake.then(DEQUEUE, answer);
    let first = delivery("a", VISIBILITY, b"x");
    let half = delivery("b", VISIBILITY, b"y").split_to(30);
    fake::spawn(async move {
        pieces.send(first).await.unwrap();
        pieces.send(half).await.unwrap();
    });
    let batch = jobs.dequeue().batch(2).await.unwrap();
    let ids: Vec<_> = batch.map(|message| message.id().to_owned()).collect();
    assert_eq!(ids, ["a"]);
}

#[tokio::test]
async fn the_state_of_a_message_is_written_under_its_lease() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let message = json!({ "message": {
        "namespace": "default", "queue": "jobs", "message_id": "m1", "attempts": 1,
        "max_attempts": 5, "not_visible_until_unix": 1, "visibility_timeout_seconds": 30,
        "payload_bytes": 0, "lease_id": "L1", "lease_expires_at_unix": 1, "fencing_token": 3,
        "meta_etag": "e1", "state_etag": "s1", "state_lease_id": "SL", "state_fencing_token": 8,
        "state_txn_id": "ST"
    } });
    fake.then("/v1/queue/dequeueWithState", deliveries(&[delivery_of(&message, b"")]));
    fake.then("/v1/update", updated(4)).then(ACK, acked());
    let message = jobs.dequeue().with_state().await.unwrap().unwrap();
    let state = message.state().unwrap();
    assert_eq!(state.context().key, "q/jobs/state/m1");
    state.update(&json!({ "step": 1 })).await.unwrap();
    let asked = fake.asked("/v1/update").await;
    assert_eq!(
        (asked.query["key"].as_str(), asked.header("x-lease-id")),
        ("q/jobs/state/m1", Some("SL"))
    );
    assert_eq!(
        (asked.header("x-txn-id"), asked.header("x-fencing-token")),
        (Some("ST"), Some("8"))
    );
    message.ack().await.unwrap();
    let asked = fake.asked(ACK).await.json();
    assert_eq!((&asked["state_lease_id"], &asked["state_etag"]), (&json!("SL"), &json!("s1")));
    assert_eq!(asked["state_fencing_token"], 8);
    assert!(state.update(&1).await.is_err(), "it ended with the message");
}

#[tokio::test]
async fn a_receipt_is_enough_to_answer() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let receipt = Receipt {
        queue: "jobs".into(),
        message_id: "m1".into(),
        lease_id: "L1".into(),
        meta_etag: Some("e1".into()),
        ..Receipt::default()
    };
    fake.then(EXTEND, extended(secs(9), "e2")).then(ACK, acked());
    let message = client.raw_message(receipt);
    message.extend(None).await.unwrap();
    assert_eq!(
        fake.asked(EXTEND).await.json(),
        json!({ "queue": "jobs", "message_id": "m1", "lease_id": "L1", "meta_etag": "e1" })
    );
    assert_eq!(message.receipt().meta_etag.as_deref(), Some("e2"));
    message.ack().await.unwrap();
    assert!(!format!("{message:?}").contains("L1"));
}

fn view(id: &str) -> Value {
    json!({
        "message_id": id, "status": "dead", "attempts": 5, "failure_attempts": 5,
        "max_attempts": 5, "enqueued_at_unix_ms": 1, "not_visible_until_unix_ms": 1,
        "visibility_timeout_ms": 1, "last_error": "no ink", "payload_content_type": "text/plain",
        "payload_bytes": 5
    })
}

#[tokio::test]
async fn messages_and_queues_are_listed_page_by_page() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let jobs = client.queue("jobs");
    for path in ["/v1/queue/peek", "/v1/queue/dlq"] {
        let page = |ids: &[&str], next: Option<&str>| {
            let messages: Vec<_> = ids.iter().map(|id| view(id)).collect();
            let mut page = json!({ "namespace": "d", "queue": "jobs", "messages": messages });
            page["next_cursor"] = json!(next);
            Answer::ok(page)
        };
        fake.then(path, page(&["a", "b"], Some("x"))).then(path, page(&["c"], None));
        let pages = if path.ends_with("peek") { jobs.peek() } else { jobs.dead_letters() };
        let all: Vec<_> = pages
            .limit(2)
            .into_stream()
            .map_ok(|view| view.message_id)
            .try_collect()
            .await
            .unwrap();
        assert_eq!(all, ["a", "b", "c"]);
        assert_eq!(fake.asked(path).await.json(), json!({ "queue": "jobs", "limit": 2 }));
        assert_eq!(fake.asked(path).await.json()["cursor"], "x");
    }
    let queues = "/v1/queues";
    let page = json!({ "namespace": "team", "queues": ["jobs"], "next_cursor": "jobs" });
    fake.then(queues, Answer::ok(page.clone())).then(queues, Answer::ok(page));
    let mut pages = client.queues().namespace("team").limit(1);
    assert_eq!(pages.next_page().await.unwrap().unwrap(), ["jobs"]);
    assert!(pages.next_page().await.is_err(), "the same page for ever");
    let asked = fake.asked(queues).await;
    assert_eq!((asked.query["namespace"].as_str(), asked.query["limit"].as_str()), ("team", "1"));
}

#[tokio::test]
async fn operators_count_look_remove_and_put_back() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    fake.then(
        "/v1/queue/stats",
        Answer::ok(json!({
            "namespace": "d", "queue": "jobs", "waiting_consumers": 1, "pending_candidates": 2,
            "total_consumers": 1, "has_active_watcher": false, "available": true, "ready": 2,
            "correlation_id": "c"
        })),
    );
    assert_eq!(jobs.stats().await.unwrap().ready, Some(2));
    let (purge, redrive, delete) =
        ("/v1/queue/purge", "/v1/queue/dlq/redrive", "/v1/queue/dlq/delete");
    for path in [purge, redrive, delete] {
        fake.always(path, || Answer::ok(json!({ "count": 3 })));
    }
    assert_eq!(jobs.purge().await.unwrap(), 3);
    assert_eq!(fake.asked(purge).await.json(), json!({ "queue": "jobs" }));
    jobs.purge_with_dead().await.unwrap();
    assert_eq!(fake.asked(purge).await.json()["dead"], true);
    assert_eq!(jobs.redrive(["a"]).await.unwrap(), 3);
    let asked = fake.asked(redrive).await.json();
    assert_eq!(asked, json!({ "queue": "jobs", "message_ids": ["a"] }));
    jobs.redrive_all().await.unwrap();
    assert_eq!(fake.asked(redrive).await.json(), json!({ "queue": "jobs", "all": true }));
    let many: Vec<String> = (0..1_500).map(|number| number.to_string()).collect();
    assert_eq!(jobs.delete_dead(&many).await.unwrap(), 6, "in two requests");
    assert_eq!(fake.asked(delete).await.json()["message_ids"].as_array().unwrap().len(), 1_000);
    assert_eq!(jobs.delete_dead([""; 0]).await.unwrap(), 0, "none are none, not all");
    assert_eq!(jobs.delete_all_dead().await.unwrap(), 3);

    let found = Answer::Raw(200, Vec::new(), b"hello").with("etag", &"\"abc\"");
    fake.then(PAYLOAD, found.with("content-type", &"text/plain"));
    fake.then(PAYLOAD, Answer::error(404, "not_found"));
    let mut payload = jobs.payload("m1").await.unwrap().unwrap();
    assert_eq!((payload.sha256(), payload.content_type()), (Some("abc"), Some("text/plain")));
    assert_eq!(payload.length(), Some(5));
    assert_eq!(payload.chunk().await.unwrap().unwrap(), "hello");
    assert!(jobs.payload("m2").await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_tells_only_news_and_survives_a_broken_connection() {
    let fake = Fake::default();
    let jobs = jobs(&fake).await;
    let watch = "/v1/queue/watch";
    let event = |head: Option<&str>| {
        let mut data = json!({
            "namespace": "d", "queue": "jobs", "available": head.is_some(), "changed_at_unix": 1
        });
        if let Some(head) = head {
            data["head_message_id"] = json!(head);
        }
        Ok(Frame::data(Bytes::from(format!("id: 1\nevent: queue_watch\ndata: {data}\n\n"))))
    };
    let answer = |events: Vec<_>| {
        let headers = vec![("content-type", "text/event-stream".to_owned())];
        Answer::Stream(headers, Box::pin(futures_util::stream::iter(events)))
    };
    fake.then(watch, answer(vec![event(None), event(Some("a"))]));
    fake.then(watch, answer(vec![event(Some("a")), event(Some("b"))]));
    let events: Vec<_> = jobs.watch().into_stream().take(3).try_collect().await.unwrap();
    let heads: Vec<_> = events.iter().map(|event| event.head_message_id.as_deref()).collect();
    assert_eq!(heads, [None, Some("a"), Some("b")]);
    assert_eq!(fake.asked(watch).await.json(), json!({ "queue": "jobs" }));
    fake.then(watch, Answer::error(400, "invalid_queue"));
    assert_eq!(jobs.watch().next().await.unwrap_err().kind(), ReadKind::Invalid);
}
