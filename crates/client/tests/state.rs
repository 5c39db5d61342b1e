//! What operations on state send, and what they make of the answers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use fake::{Answer, Fake, granted, released, renewed, updated};
use futures_util::{StreamExt as _, TryStreamExt as _};
use hyper::body::Frame;
use lockd_client::wire::state::Metadata;
use lockd_client::{
    AcquireKind, AdminKind, Client, CycleError, Lease, LeaseContext, ReadKind, ReleaseKind, Source,
    UpdateKind, secs,
};
use serde_json::json;
use tokio::sync::mpsc;

const ACQUIRE: &str = "/v1/acquire";
const KEEPALIVE: &str = "/v1/keepalive";
const RELEASE: &str = "/v1/release";
const UPDATE: &str = "/v1/update";
const GET: &str = "/v1/get";

async fn client(fake: &Fake) -> Client {
    Client::builder().endpoint(fake.listen().await).owner("me").attempts(2).build().unwrap()
}

async fn held(fake: &Fake, client: &Client) -> Lease {
    fake.then(ACQUIRE, granted(secs(30), 5)).always(RELEASE, released);
    client.lease("jobs/7").await.unwrap()
}

#[tokio::test]
async fn an_empty_name_is_never_sent() {
    let fake = Fake::default();
    let client = client(&fake).await;
    for blank in ["", "  "] {
        let said = |what: &str| format!("the request is not valid: the {what} is empty");
        let acquire = client.lease(blank).await.unwrap_err();
        assert_eq!((acquire.kind(), acquire.to_string()), (AcquireKind::Invalid, said("key")));
        let acquire = client.lease("k").namespace(blank).await.unwrap_err();
        assert_eq!(acquire.to_string(), said("namespace"));
        let acquire = client.lease("k").owner(blank).await.unwrap_err();
        assert_eq!(acquire.to_string(), said("owner"));
        let acquire = client.lease("k").txn(blank).await.unwrap_err();
        assert_eq!(acquire.to_string(), said("transaction id"));
        let read = client.get(blank).await.unwrap_err();
        assert_eq!((read.kind(), read.to_string()), (ReadKind::Invalid, said("key")));
        let read = client.read_many(["k", blank]).await.unwrap_err();
        assert_eq!(read.to_string(), said("key"));
        assert_eq!(client.describe(None, blank).await.unwrap_err().to_string(), said("key"));
        let enqueued = client.queue(blank).enqueue("x").await.unwrap_err();
        assert_eq!(enqueued.to_string(), said("queue"));
        let taken = client.queue("q").namespace(blank).dequeue().await.unwrap_err();
        assert_eq!(taken.to_string(), said("namespace"));
    }
    assert!(fake.asked_already(ACQUIRE).is_empty(), "also none that gives a grant back");
}

fn document(text: &'static [u8]) -> Answer {
    Answer::Raw(200, Vec::new(), text).with("x-key-version", &7).with("etag", &"\"e7\"")
}

#[tokio::test]
async fn acquiring_says_all_that_was_asked_for() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(ACQUIRE, granted(secs(30), 5)).always(RELEASE, released);
    let lease = client
        .lease("jobs/7")
        .namespace("team")
        .owner("host-1")
        .ttl(std::time::Duration::from_millis(1_500))
        .if_not_exists()
        .wait(std::time::Duration::from_millis(2_100))
        .await
        .unwrap();
    assert_eq!(
        fake.asked(ACQUIRE).await.json(),
        json!({
            "namespace": "team", "key": "jobs/7", "ttl_ms": 1_500, "owner": "host-1",
            "block_seconds": 3, "if_not_exists": true
        })
    );
    assert_eq!((lease.namespace(), lease.owner(), lease.token()), ("default", "me", 5));

    fake.then(ACQUIRE, granted(secs(30), 6)).then(ACQUIRE, granted(secs(30), 7));
    client.lease_new_key().detached().await.unwrap();
    client.lease("k").wait_forever().detached().await.unwrap();
    assert_eq!(
        fake.asked(ACQUIRE).await.json(),
        json!({ "owner": "me", "block_seconds": -1, "generate_key": true })
    );
    assert_eq!(fake.asked(ACQUIRE).await.json()["block_seconds"], 0);
}

#[tokio::test]
async fn an_update_shows_its_lease_and_its_conditions() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = held(&fake, &client).await;
    let other = held(&fake, &client).await;
    fake.then(UPDATE, updated(4));
    let done = lease
        .update(&json!({ "a": 1 }))
        .if_version(3)
        .if_etag("e3")
        .fenced_by(&other)
        .fence("team/epoch", 12)
        .hidden(true)
        .await
        .unwrap();
    assert_eq!((done.version, done.bytes), (4, 2));
    let asked = fake.asked(UPDATE).await;
    assert_eq!(asked.body, r#"{"a":1}"#);
    assert_eq!(asked.query["key"], "jobs/7");
    assert_eq!(asked.query["namespace"], "default");
    assert!(!asked.query.contains_key("then"));
    for (name, value) in [
        ("x-lease-id", "L1"),
        ("x-txn-id", "T1"),
        ("x-fencing-token", "5"),
        ("x-if-version", "3"),
        ("x-if-state-etag", "e3"),
        ("x-lockd-meta-query-hidden", "true"),
    ] {
        assert_eq!(asked.header(name), Some(value), "{name}");
    }
    assert_eq!(asked.headers_of("x-fence-key"), ["default/jobs/7", "team/epoch"]);
    assert_eq!(asked.headers_of("x-fence-token"), ["5", "12"]);
}

#[tokio::test]
async fn publishing_is_said_in_the_query() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = held(&fake, &client).await;
    fake.always(UPDATE, || updated(4));
    lease.checkpoint(&1).await.unwrap();
    lease.update(&2).then_commit().await.unwrap();
    assert!(lease.is_held());
    lease.finish(&3).fence("a/b", 1).await.unwrap();
    let asked = fake.asked_already(UPDATE);
    let then: Vec<_> = asked.iter().map(|asked| asked.query["then"].as_str()).collect();
    assert_eq!(then, ["commit", "commit", "release"]);
    client.close().await;
    assert!(fake.asked_already(RELEASE).is_empty(), "a finished lease is not released again");
}

#[tokio::test]
async fn refusals_have_the_kind_of_their_operation() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = held(&fake, &client).await;
    let conflict = json!({
        "error": "version_conflict", "current_version": 9, "current_etag": "e9"
    });
    fake.then(UPDATE, Answer::Json(409, Vec::new(), conflict));
    let error = lease.update(&1).if_version(3).await.unwrap_err();
    assert_eq!(error.kind(), UpdateKind::Conflict);
    assert_eq!((error.current_version(), error.current_etag()), (Some(9), Some("e9")));

    fake.then(UPDATE, Answer::error(413, "document_too_large"));
    assert_eq!(lease.update(&1).await.unwrap_err().kind(), UpdateKind::TooLarge);
    fake.then("/v1/mutate", Answer::error(400, "invalid_mutations"));
    assert_eq!(lease.mutate(["x"]).await.unwrap_err().kind(), UpdateKind::Invalid);
    fake.then("/v1/remove", Answer::error(409, "txn_conflict"));
    assert_eq!(lease.remove().await.unwrap_err().kind(), UpdateKind::TxnConflict);
    fake.then("/v1/leases/revoke", Answer::error(403, "namespace_forbidden"));
    let error = client.revoke(None, "k", "why").await.unwrap_err();
    assert_eq!(error.kind(), AdminKind::Forbidden);

    let fenced = json!({ "error": "fence_failed", "current_fencing_token": 13 });
    fake.then(RELEASE, Answer::Json(409, Vec::new(), fenced));
    let error = lease.release().fence("a/b", 12).await.unwrap_err();
    assert_eq!(error.kind(), ReleaseKind::FenceFailed);
    assert_eq!(error.current_token(), Some(13));
}

#[tokio::test]
async fn an_answer_that_is_not_lockds_is_an_error() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then("/v1/describe", Answer::Raw(200, Vec::new(), b"<html>hello"));
    let error = client.describe(None, "k").await.unwrap_err();
    assert_eq!(error.kind(), ReadKind::Other);
    fake.then("/v1/describe", Answer::Raw(302, Vec::new(), b""));
    assert_eq!(client.describe(None, "k").await.unwrap_err().kind(), ReadKind::Other);
    fake.then(GET, Answer::Raw(200, Vec::new(), b"{}"));
    assert_eq!(client.get("k").await.unwrap_err().kind(), ReadKind::Other, "no version");
}

#[tokio::test]
async fn reading_is_public_without_a_lease_and_shows_it_with_one() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(GET, document(br#"{"n":1}"#)).then(GET, Answer::Raw(204, Vec::new(), b""));
    let got = client.get("a b").namespace("team").await.unwrap().unwrap();
    assert_eq!((got.version, got.etag.as_deref()), (7, Some("e7")));
    assert_eq!(got.json::<serde_json::Value>().unwrap(), json!({ "n": 1 }));
    assert_eq!(got.json::<Vec<u8>>().unwrap_err().kind(), ReadKind::Decode);
    let asked = fake.asked(GET).await;
    assert_eq!((asked.query["key"].as_str(), asked.query["public"].as_str()), ("a b", "1"));
    assert_eq!(asked.query["namespace"], "team");
    assert_eq!(asked.header("x-lease-id"), None);

    let lease = held(&fake, &client).await;
    assert_eq!(lease.get().await.unwrap(), None);
    let asked = fake.asked(GET).await;
    assert!(!asked.query.contains_key("public"));
    assert_eq!(asked.header("x-lease-id"), Some("L1"));
    assert_eq!(asked.header("x-fencing-token"), Some("5"));
}

#[tokio::test]
async fn a_document_that_breaks_off_is_read_again() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let broken = futures_util::stream::iter([
        Ok(Frame::data(Bytes::from_static(b"{\"n\""))),
        Err(std::io::Error::other("as scripted")),
    ]);
    fake.then(GET, Answer::Stream(Vec::new(), Box::pin(broken)).with("x-key-version", &7));
    fake.then(GET, document(br#"{"n":1}"#));
    assert_eq!(client.get("k").await.unwrap().unwrap().bytes, r#"{"n":1}"#);
}

#[tokio::test]
async fn a_document_too_large_for_memory_is_refused_but_streams() {
    let fake = Fake::default();
    let client =
        Client::builder().endpoint(fake.listen().await).document_bytes_max(4).build().unwrap();
    fake.always(GET, || document(b"[1,2]"));
    assert_eq!(client.get("k").await.unwrap_err().kind(), ReadKind::TooLarge);
    let stream = client.get_stream("k").await.unwrap().unwrap();
    assert_eq!((stream.version(), stream.etag(), stream.length()), (7, Some("e7"), Some(5)));
    let all: Vec<Bytes> = stream.into_stream().try_collect().await.unwrap();
    assert_eq!(all.concat(), b"[1,2]");
}

#[tokio::test]
async fn a_read_hands_over_each_piece_as_it_comes() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let (pieces, received) = mpsc::channel::<Bytes>(1);
    let chunks = futures_util::stream::unfold(received, |mut received| async move {
        Some((Ok(Frame::data(received.recv().await?)), received))
    });
    fake.then(GET, Answer::Stream(Vec::new(), Box::pin(chunks)).with("x-key-version", &1));
    let mut stream = client.get_stream("k").await.unwrap().unwrap();
    // Each piece is sent only after the one before has arrived.
    for piece in ["[1", ",2", "]"] {
        pieces.send(Bytes::from(piece)).await.unwrap();
        assert_eq!(stream.chunk().await.unwrap().unwrap(), piece);
    }
    drop(pieces);
    assert_eq!(stream.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn an_upload_sends_each_piece_as_it_comes() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = held(&fake, &client).await;
    let (seen, mut arrived) = mpsc::channel(1);
    fake.then(UPDATE, Answer::Unread(seen, Box::new(updated(4))));
    let (mut pieces, reader) = tokio::io::duplex(64);
    let sending = fake::spawn(lease.update_stream(Source::once(reader)).into_future());
    // Each piece is written only after the one before has arrived.
    for piece in ["[1", ",2", "]"] {
        tokio::io::AsyncWriteExt::write_all(&mut pieces, piece.as_bytes()).await.unwrap();
        assert_eq!(arrived.recv().await.unwrap(), piece);
    }
    drop(pieces);
    assert_eq!(sending.await.unwrap().unwrap().version, 4);
}

#[tokio::test]
async fn a_source_that_opens_again_is_sent_again_and_one_that_does_not_is_not() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = held(&fake, &client).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state.json");
    std::fs::write(&file, "[1,2,3]").unwrap();

    fake.then(UPDATE, Answer::Hangup).then(UPDATE, updated(4));
    lease.update_stream(Source::file(&file)).await.unwrap();
    let (first, second) = (fake.asked(UPDATE).await, fake.asked(UPDATE).await);
    assert_eq!((&first.body[..], &second.body[..]), (&b"[1,2,3]"[..], &b"[1,2,3]"[..]));
    assert_eq!(first.name(), second.name());

    fake.then(UPDATE, Answer::Hangup);
    let error = lease.update_stream(Source::once(&b"[1]"[..])).await.unwrap_err();
    assert_eq!(error.kind(), UpdateKind::OutcomeUnknown);
    fake.asked(UPDATE).await;
    assert!(fake.asked_already(UPDATE).is_empty());

    let missing = lease.update_stream(Source::file(dir.path().join("none"))).await.unwrap_err();
    assert_eq!(missing.kind(), UpdateKind::Source);
}

#[tokio::test]
async fn a_source_that_fails_on_the_way_is_the_callers_error() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = held(&fake, &client).await;
    fake.always(UPDATE, || updated(4));
    let broken = tokio_util::io::StreamReader::new(futures_util::stream::iter([
        Ok(Bytes::from_static(b"[1")),
        Err(std::io::Error::other("the disk is gone")),
    ]));
    let error = lease.update_stream(Source::once(broken)).await.unwrap_err();
    assert_eq!(error.kind(), UpdateKind::Source);
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the disk is gone");
    assert!(!error.outcome_unknown());
}

#[tokio::test]
async fn mutations_removals_and_attributes_go_to_their_endpoints() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let lease = held(&fake, &client).await;
    fake.then("/v1/mutate", Answer::Hangup).then("/v1/mutate", updated(4));
    assert_eq!(lease.mutate(["/n++", "rm:/x"]).if_version(3).await.unwrap().version, 4);
    let (first, second) = (fake.asked("/v1/mutate").await, fake.asked("/v1/mutate").await);
    assert_eq!(first.json(), json!({ "mutations": ["/n++", "rm:/x"] }));
    assert_eq!(first.header("x-if-version"), Some("3"));
    assert_eq!(first.name(), second.name());

    fake.then("/v1/remove", Answer::ok(json!({ "removed": true, "new_version": 5 })));
    let removed = lease.remove().if_etag("e4").then_commit().await.unwrap();
    assert_eq!((removed.removed, removed.version, lease.version()), (true, Some(5), 5));
    assert_eq!(fake.asked("/v1/remove").await.query["then"], "commit");

    let answer = json!({ "namespace": "n", "key": "k", "version": 6, "metadata": {} });
    fake.then("/v1/metadata", Answer::ok(answer));
    lease.metadata(Metadata { query_hidden: Some(true) }).await.unwrap();
    assert_eq!(fake.asked("/v1/metadata").await.json(), json!({ "query_hidden": true }));
}

#[tokio::test]
async fn several_keys_are_read_together() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(
        "/v1/read",
        Answer::ok(json!({ "entries": [
        { "namespace": "d", "key": "a", "version": 2, "state_etag": "e", "state": { "n": 1 } },
        { "namespace": "d", "key": "b", "version": 0 },
    ] })),
    );
    let entries = client.read_many(&["a", "b"]).namespace("d").await.unwrap();
    assert_eq!(entries[0].document.as_ref().unwrap().bytes, r#"{"n":1}"#);
    assert_eq!((entries[1].version, &entries[1].document), (0, &None));
    let asked = fake.asked("/v1/read").await.json();
    assert_eq!(asked, json!({ "namespace": "d", "keys": ["a", "b"] }));

    fake.then("/v1/read", Answer::ok(json!({ "entries": [] })));
    assert_eq!(client.read_many(["a"]).await.unwrap_err().kind(), ReadKind::Other);
}

#[tokio::test]
async fn pages_follow_each_other_to_the_end() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let key = |name: &str| {
        json!({ "key": name, "version": 1, "fencing_token": 1, "updated_at_unix_ms": 1,
                "held": false })
    };
    let first = json!({ "namespace": "d", "keys": [key("p/1"), key("p/2")], "next_cursor": "c" });
    fake.then("/v1/keys", Answer::ok(first));
    fake.then("/v1/keys", Answer::ok(json!({ "namespace": "d", "keys": [key("p/3")] })));
    let keys: Vec<_> = client.keys("p/").limit(2).into_stream().collect().await;
    let names: Vec<_> = keys.into_iter().map(|key| key.unwrap().key).collect();
    assert_eq!(names, ["p/1", "p/2", "p/3"]);
    let (one, two) = (fake.asked("/v1/keys").await, fake.asked("/v1/keys").await);
    assert_eq!((one.query["prefix"].as_str(), one.query["limit"].as_str()), ("p/", "2"));
    assert!(!one.query.contains_key("cursor"));
    assert_eq!(two.query["cursor"], "c");

    let again = || Answer::ok(json!({ "namespaces": ["a"], "next_cursor": "a" }));
    fake.always("/v1/namespaces", again);
    let mut pages = client.namespaces();
    assert_eq!(pages.next_page().await.unwrap().unwrap(), ["a"]);
    assert_eq!(pages.next_page().await.unwrap_err().kind(), ReadKind::Other, "no endless loop");
}

#[tokio::test]
async fn a_context_is_enough_to_act_and_to_become_a_guard() {
    let fake = Fake::default();
    let client = client(&fake).await;
    let context = LeaseContext {
        namespace: Some("team".into()),
        key: "jobs/7".into(),
        lease_id: "L1".into(),
        txn_id: Some("T1".into()),
        token: Some(5),
    };
    assert!(!format!("{context:?}").contains("L1"), "the lease id is a secret");
    let raw = client.raw(context);
    fake.always(KEEPALIVE, || renewed(secs(30)));
    assert_eq!(raw.keepalive(Some(secs(30))).await.unwrap().ttl, secs(30));
    fake.then(UPDATE, updated(4)).then(UPDATE, updated(5));
    raw.update(&1).await.unwrap();
    raw.finish_stream(Source::bytes("2")).await.unwrap();
    assert_eq!(fake.asked(UPDATE).await.query["namespace"], "team");
    assert_eq!(fake.asked(UPDATE).await.query["then"], "release");

    fake.then(
        "/v1/describe",
        Answer::ok(json!({
            "namespace": "team", "key": "jobs/7", "owner": "me", "fencing_token": 5, "version": 9,
            "metadata": {}
        })),
    );
    let lease = raw.resume().ttl(secs(30)).await.unwrap();
    assert!(lease.is_held());
    assert_eq!((lease.version(), lease.token(), lease.namespace()), (9, 5, "team"));
    fake.then(RELEASE, released());
    lease.rollback().await.unwrap();
    assert_eq!(fake.asked(RELEASE).await.json()["rollback"], true);
}

#[tokio::test]
async fn a_cycle_reads_changes_and_commits_under_one_lease() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.then(ACQUIRE, granted(secs(30), 5)).then(GET, document(b"41")).then(UPDATE, updated(8));
    let change = |state: Option<u64>| async move { Ok::<_, String>(state.unwrap_or(0) + 1) };
    let done = client.acquire_for_update("jobs/7", change).await.unwrap();
    assert_eq!(done.version, 8);
    let asked = fake.asked(UPDATE).await;
    assert_eq!((&asked.body[..], asked.query["then"].as_str()), (&b"42"[..], "release"));
}

#[tokio::test]
async fn a_cycle_starts_anew_when_its_lease_is_lost_and_gives_up_in_the_end() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.always(ACQUIRE, || granted(secs(30), 5));
    fake.always(GET, || document(b"1"));
    fake.then(UPDATE, Answer::error(403, "lease_expired")).then(UPDATE, updated(8));
    let calls = Arc::new(AtomicU32::new(0));
    let change = {
        let calls = Arc::clone(&calls);
        move |state: Option<u64>| {
            calls.fetch_add(1, Ordering::Relaxed);
            async move { Ok::<_, String>(state.unwrap_or(0) + 1) }
        }
    };
    client.acquire_for_update("k", change.clone()).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);

    fake.always(UPDATE, || Answer::error(403, "revoked"));
    let error = client.acquire_for_update("k", change).attempts(3).await.unwrap_err();
    assert!(matches!(error, CycleError::Write(_)), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn a_cycle_does_not_repeat_what_may_have_happened_nor_the_callers_error() {
    let fake = Fake::default();
    let client = client(&fake).await;
    fake.always(ACQUIRE, || granted(secs(30), 5)).always(RELEASE, released);
    fake.always(GET, || document(b"1"));
    fake.always(UPDATE, || Answer::Hangup);
    let add = |state: Option<u64>| async move { Ok::<_, String>(state.unwrap_or(0) + 1) };
    let error = client.acquire_for_update("k", add).await.unwrap_err();
    assert!(matches!(&error, CycleError::Write(e) if e.outcome_unknown()), "{error}");
    assert_eq!(fake.asked_already(ACQUIRE).len(), 1);

    let refuse = |_: Option<u64>| async move { Err::<u64, _>("no".to_owned()) };
    let error = client.acquire_for_update("k", refuse).await.unwrap_err();
    assert!(matches!(error, CycleError::Change(why) if why == "no"));
    assert_eq!(fake.asked_already(ACQUIRE).len(), 1);
}
