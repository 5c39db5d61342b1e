//! Watching: events in order, resumed where they left off, and told when they cannot be.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake;

use bytes::Bytes;
use fake::{Answer, Fake};
use futures_util::StreamExt as _;
use hyper::body::Frame;
use lockd_client::{Change, Client, Event, ReadKind, Watch};
use serde_json::json;

const WATCH: &str = "/v1/watch";

async fn client(fake: &Fake) -> Client {
    Client::builder().endpoint(fake.listen().await).attempts(2).build().unwrap()
}

/// Events that are sent in one piece each; then the connection ends, or stays if told to.
fn events(texts: &[String], stays: bool) -> Answer {
    let chunks: Vec<_> =
        texts.iter().map(|text| Ok(Frame::data(Bytes::from(text.clone())))).collect();
    let said = futures_util::stream::iter(chunks);
    let headers = vec![("content-type", "text/event-stream".to_owned())];
    if stays {
        Answer::Stream(headers, Box::pin(said.chain(futures_util::stream::pending())))
    } else {
        Answer::Stream(headers, Box::pin(said))
    }
}

fn state(id: u32, key: &str, version: u64) -> String {
    let data = json!({ "namespace": "d", "key": key, "version": version });
    format!("event: state\nid: {id}\ndata: {data}\n\n")
}

fn snapshot(key: &str) -> String {
    let data = json!({ "namespace": "d", "key": key, "version": 1, "snapshot": true });
    format!("event: state\nid: 77\ndata: {data}\n\n")
}

fn reset(reason: &str, complete: bool, id: Option<u32>) -> String {
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    let data = json!({ "reason": reason, "complete": complete });
    format!("event: reset\n{id}data: {data}\n\n")
}

async fn version(watch: &mut Watch) -> u64 {
    let Change::State(event) = watch.next().await.unwrap().change else { panic!("no state") };
    event.version
}

async fn next_reset(watch: &mut Watch) -> (String, bool) {
    let Change::Reset(reset) = watch.next().await.unwrap().change else { panic!("no reset") };
    (reset.reason, reset.complete)
}

#[tokio::test]
async fn events_come_in_order_and_with_their_places() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = json!({ "namespace": "d", "key": "k", "change": "granted", "owner": "me",
                        "fencing_token": 4 });
    let removed = json!({ "namespace": "d", "key": "k", "version": 3 });
    fake.then(
        WATCH,
        events(
            &[
                ": hello\n\n".to_owned(),
                state(1, "k", 2),
                format!("event: lease\nid: 2\ndata: {lease}\n\n"),
                "event: news\nid: 3\ndata: {}\n\n".to_owned(),
                format!("event: removed\nid: 4\ndata: {removed}\n\n"),
            ],
            true,
        ),
    );
    let mut watch = client.watch("k").namespace("d");
    let first = watch.next().await.unwrap();
    assert_eq!(first.id.as_deref(), Some("1"));
    assert!(matches!(first.change, Change::State(event) if event.version == 2));
    let Event { change: Change::Lease(lease), .. } = watch.next().await.unwrap() else {
        panic!("a lease event")
    };
    assert_eq!((lease.owner.as_str(), lease.fencing_token), ("me", 4));
    let Event { change: Change::Removed(removed), .. } = watch.next().await.unwrap() else {
        panic!("unknown kinds are passed over, and this one is a removal")
    };
    assert_eq!(removed.version, 3);
    let asked = fake.asked(WATCH).await;
    assert_eq!((asked.query["key"].as_str(), asked.query["namespace"].as_str()), ("k", "d"));
    assert_eq!(asked.header("last-event-id"), None);
}

#[tokio::test]
async fn a_broken_watch_goes_on_after_the_last_event() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(WATCH, events(&[state(1, "k", 1), state(2, "k", 2)], false));
    fake.then(WATCH, Answer::Hangup);
    fake.then(WATCH, events(&[state(3, "k", 3)], true));
    let mut watch = client.watch_prefix("k/");
    for expected in 1..=3 {
        assert_eq!(version(&mut watch).await, expected);
    }
    let asked = fake.asked(WATCH).await;
    assert_eq!(asked.query["prefix"], "k/");
    assert_eq!(fake.asked(WATCH).await.header("last-event-id"), Some("2"));
    assert_eq!(fake.asked(WATCH).await.header("last-event-id"), Some("2"));
}

#[tokio::test]
async fn a_gap_is_told_as_a_reset() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(
        WATCH,
        events(
            &[
                reset("gap", false, None),
                snapshot("a"),
                reset("gap", true, Some(9)),
                state(10, "a", 2),
            ],
            false,
        ),
    );
    fake.then(WATCH, events(&[], true));
    let mut watch = client.watch("a").resume_from("5");
    assert_eq!(next_reset(&mut watch).await, ("gap".to_owned(), false));
    let in_snapshot = watch.next().await.unwrap();
    assert_eq!(in_snapshot.id, None, "there is no place in the middle of a snapshot");
    assert_eq!(next_reset(&mut watch).await, ("gap".to_owned(), true));
    assert_eq!(version(&mut watch).await, 2);
    assert_eq!(fake.asked(WATCH).await.header("last-event-id"), Some("5"));
}

#[tokio::test]
async fn a_watch_that_breaks_within_a_snapshot_starts_anew() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(WATCH, events(&[reset("gap", false, Some(7)), snapshot("a")], false));
    fake.then(WATCH, events(&[reset("start", false, None), reset("start", true, Some(8))], false));
    fake.then(WATCH, events(&[state(9, "a", 2)], true));
    let mut watch = client.watch("a").resume_from("5");
    assert_eq!(next_reset(&mut watch).await, ("gap".to_owned(), false));
    watch.next().await.unwrap();
    assert_eq!(next_reset(&mut watch).await, ("start".to_owned(), false));
    assert_eq!(next_reset(&mut watch).await, ("start".to_owned(), true));
    assert_eq!(version(&mut watch).await, 2);
    assert_eq!(fake.asked(WATCH).await.header("last-event-id"), Some("5"));
    assert_eq!(fake.asked(WATCH).await.header("last-event-id"), None);
    assert_eq!(fake.asked(WATCH).await.header("last-event-id"), Some("8"));
}

#[tokio::test]
async fn a_silent_server_is_asked_anew() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(WATCH, events(&[state(1, "k", 1)], true));
    fake.then(WATCH, events(&[state(2, "k", 2)], true));
    let mut watch = client.watch("k").silence(std::time::Duration::from_millis(500));
    assert_eq!(version(&mut watch).await, 1);
    assert_eq!(version(&mut watch).await, 2);
    fake.asked(WATCH).await;
    assert_eq!(fake.asked(WATCH).await.header("last-event-id"), Some("1"));
}

#[tokio::test]
async fn a_refused_watch_is_an_error_and_ends_the_stream() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.always(WATCH, || Answer::error(400, "invalid_key"));
    let all: Vec<_> = client.watch("?").into_stream().collect().await;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].as_ref().unwrap_err().kind(), ReadKind::Invalid);
}

#[tokio::test]
async fn an_unreadable_event_is_an_error_not_a_gap() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(WATCH, events(&["event: state\ndata: {\"key\":\n\n".to_owned()], true));
    let error = client.watch("k").next().await.unwrap_err();
    assert_eq!(error.kind(), ReadKind::Other);
}
