//! Messages in transactions, the state beside a message, and conditions on the tokens of others.

use lockd_core::time::Span;
use lockd_tests::inside::Inside;
use lockd_tests::queue::{Enqueue, Message, messages, take};
use lockd_tests::world::{KINDS, Kind, World};
use lockd_tests::{Ask, Held, Request, eventually};
use lockd_wire::{header, path};
use serde_json::{Value, json};

use super::{TXN, counts, get, get_as, put, put_as};

#[test]
fn what_a_transaction_enqueues_is_visible_on_commit_only() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let key = |txn: &str| Ask::new("k", "o").field("txn_id", txn);
        for (commit, txn) in [(false, "abcdefghij0000000001"), (true, "abcdefghij0000000002")] {
            let held = server.acquire(&key(txn));
            put_as(&server, &Enqueue::new("jobs", "x").field("txn_id", txn));
            assert_eq!(counts(&server, "jobs"), [0; 4], "{kind:?}: not yet");
            server.done(&if commit { held.release() } else { held.rollback() });
            assert_eq!(counts(&server, "jobs"), [u64::from(commit), 0, 0, 0], "{kind:?}");
            let late = Enqueue::new("jobs", "late").field("txn_id", txn).request();
            server.call(&late).refused(409, "txn_conflict");
        }
        // By the lease of one key, which becomes a transaction by it.
        let held = server.acquire(&Ask::new("k", "o"));
        put_as(&server, &Enqueue::new("jobs", "y").header(header::TXN_ID, &held.txn));
        server.done(&held.release());
        assert_eq!(counts(&server, "jobs"), [2, 0, 0, 0], "{kind:?}");
        drop(server);
        assert_eq!(counts(&world.server(), "jobs"), [2, 0, 0, 0], "{kind:?}");
    }
}

#[test]
fn committing_acknowledges_what_was_dequeued_and_rolling_back_gives_it_back() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put(&server, "jobs", "x");
        let first = "abcdefghij0000000001";
        let message = get_as(&server, "jobs", &json!({"txn_id": first}));
        assert_eq!(message.text("txn_id"), first);
        let held = server.acquire(&Ask::new("k", "o").field("txn_id", first));
        server.done(&held.update("1"));
        server.done(&held.rollback());
        assert_eq!(counts(&server, "jobs"), [1, 0, 0, 0], "{kind:?}: given back");
        server.call(&message.ack()).refused(409, "queue_message_lease_mismatch");
        let second = "abcdefghij0000000002";
        let message = get_as(&server, "jobs", &json!({"txn_id": second}));
        assert_eq!(message.number("failure_attempts"), 1);
        let held = server.acquire(&Ask::new("k", "o").field("txn_id", second));
        server.done(&held.update("2"));
        // The word of the consumer decides for all.
        server.done(&message.ack());
        assert_eq!(counts(&server, "jobs"), [0, 0, 0, 0], "{kind:?}: acknowledged");
        let read = Request::post(path::GET).query("key", "k").query("public", "1");
        assert_eq!(server.call(&read).ok().body, b"2");
        server.done(&message.ack());
    }
}

#[test]
fn giving_a_message_back_rolls_its_transaction_back_in_the_way_the_consumer_says() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put(&server, "jobs", "x");
        let message = get_as(&server, "jobs", &json!({"txn_id": TXN}));
        let held = server.acquire(&Ask::new("k", "o").field("txn_id", TXN));
        server.done(&held.update("1"));
        server.done(&message.nack(&json!({"intent": "defer", "delay_seconds": 9})));
        assert_eq!(counts(&server, "jobs"), [0, 1, 0, 0], "{kind:?}");
        server.call(&held.release()).refused(403, "lease_expired");
        world.clock.advance(Span::secs(9));
        assert_eq!(get(&server, "jobs").number("failure_attempts"), 0, "{kind:?}");
    }
}

#[test]
fn an_enlisted_message_is_not_redelivered_before_the_decision() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put(&server, "jobs", "x");
        let short = json!({"txn_id": TXN, "visibility_timeout_seconds": 1});
        let message = get_as(&server, "jobs", &short);
        let held = server.acquire(&Ask::new("k", "o").field("txn_id", TXN).ttl_ms(60_000));
        server.done(&held.update("1"));
        let mut longer = message.clone();
        let reply = server.look(&message.extend(&json!({"extend_by_seconds": 3})));
        longer.meta["meta_etag"] = reply["meta_etag"].clone();
        world.clock.advance(Span::secs(3));
        // Its time is over: the whole transaction is rolled back, and only then it comes back.
        eventually("it comes back", || counts(&server, "jobs") == [1, 0, 0, 0]);
        server.call(&held.release()).refused(403, "lease_expired");
        server.call(&longer.ack()).refused(409, "queue_message_lease_mismatch");
        let read = Request::post(path::GET).query("key", "k").query("public", "1");
        assert_eq!(server.call(&read).status, 204, "{kind:?}");
    }
}

pub(super) fn with_state(server: &Inside, more: &Value) -> (Message, Held) {
    let reply = server.call(&take(path::QUEUE_DEQUEUE_STATE, "jobs", more));
    let message = messages(&reply).remove(0);
    let state = Held {
        namespace: "default".into(),
        key: format!("q/jobs/state/{}", message.id()),
        lease: message.text("state_lease_id"),
        txn: message.text("state_txn_id"),
        token: message.number("state_fencing_token"),
        version: 0,
        expires_at_unix_ms: 0,
    };
    (message, state)
}

#[test]
fn the_state_of_a_message_survives_its_failures_and_dies_with_it() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put(&server, "jobs", "x");
        let (message, state) = with_state(&server, &json!({}));
        assert_eq!(message.text("state_etag"), "");
        server.done(&state.update(r#"{"step":1}"#));
        server.done(&message.nack(&json!({"intent": "defer"})));
        // A consumer that dies leaves nothing half done.
        let (_, state) = with_state(&server, &json!({"visibility_timeout_seconds": 5}));
        assert_eq!(server.call(&state.get()).ok().json(), json!({"step": 1}), "{kind:?}");
        server.done(&state.update(r#"{"step":2}"#));
        server.call(&state.keepalive(1_000)).refused(403, "queue_state_keepalive_unsupported");
        world.clock.advance(Span::secs(5));
        eventually("it comes back", || counts(&server, "jobs") == [1, 0, 0, 0]);
        let (message, state) = with_state(&server, &json!({"visibility_timeout_seconds": 5}));
        assert_eq!(server.call(&state.get()).ok().json(), json!({"step": 1}), "{kind:?}");
        // Message and state are extended together.
        world.clock.advance(Span::secs(4));
        let reply = server.look(&message.extend(&json!({})));
        assert!(reply["state_lease_expires_at_unix"].is_u64());
        assert_eq!(server.look(&Request::get(path::KEYS))["keys"][0]["key"], state.key);
        world.clock.advance(Span::secs(4));
        server.done(&state.update(r#"{"step":3}"#));
        server.done(&message.ack());
        let gone = Request::post(path::GET).query("key", &state.key).query("public", "1");
        assert_eq!(server.call(&gone).status, 204);
        assert_eq!(server.look(&Request::get(path::KEYS))["keys"], json!([]));
        server.call(&state.update("1")).refused(403, "lease_required");
    }
}

#[test]
fn in_a_transaction_message_and_state_share_its_fate() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put(&server, "jobs", "x");
        let first = json!({"txn_id": "abcdefghij0000000001"});
        let (message, state) = with_state(&server, &first);
        assert_eq!(state.txn, message.text("txn_id"));
        server.done(&state.update("1"));
        server.done(&message.nack(&json!({"intent": "defer"})));
        let (message, state) = with_state(&server, &json!({"txn_id": "abcdefghij0000000002"}));
        assert_eq!(server.call(&state.get()).status, 204, "{kind:?}: rolled back");
        server.done(&state.update("2"));
        let longer = server.look(&message.extend(&json!({})));
        assert!(longer["state_lease_expires_at_unix"].is_u64(), "{kind:?}: {longer}");
        server.done(&message.ack());
        assert_eq!(server.look(&Request::get(path::KEYS))["keys"], json!([]), "{kind:?}");
        assert_eq!(counts(&server, "jobs"), [0; 4], "{kind:?}");
    }
}

#[test]
fn the_state_of_a_message_that_somebody_else_acknowledged_does_not_stay() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put(&server, "jobs", "x");
        let (message, state) = with_state(&server, &json!({"visibility_timeout_seconds": 5}));
        server.done(&state.update("1"));
        // A key joins the message in a transaction that knows nothing of the state.
        let held = server.acquire(&Ask::new("k", "o").field("txn_id", message.text("txn_id")));
        server.done(&held.release());
        assert_eq!(counts(&server, "jobs"), [0; 4], "{kind:?}: acknowledged");
        world.clock.advance(Span::secs(5));
        eventually("it goes", || {
            let keys = server.look(&Request::get(path::KEYS));
            keys["keys"].as_array().is_some_and(|keys| keys.len() == 1 && keys[0]["key"] == "k")
        });
    }
}

#[test]
fn fence_conditions_guard_enqueue_and_ack() {
    let server = Inside::default();
    let leader = server.acquire(&Ask::new("leader", "o"));
    let fenced = |request: Request, token: u64| {
        request.header(header::FENCE_KEY, "default/leader").header(header::FENCE_TOKEN, token)
    };
    let ask = Enqueue::new("jobs", "x").request();
    server.call(&fenced(ask.clone(), leader.token + 1)).refused(409, "fence_failed");
    assert_eq!(counts(&server, "jobs"), [0; 4]);
    server.done(&fenced(ask, leader.token));
    let message = get(&server, "jobs");
    server.call(&fenced(message.ack(), 9)).refused(409, "fence_failed");
    server.done(&fenced(message.ack(), leader.token));
    // Kept with what a transaction enqueues, and tested when it is committed.
    let key = server.acquire(&Ask::new("k", "o").field("txn_id", TXN));
    let draft = Enqueue::new("jobs", "y").field("txn_id", TXN).request();
    server.done(&fenced(draft, leader.token));
    server.done(&leader.release());
    server.acquire(&Ask::new("leader", "other"));
    server.call(&key.release()).refused(409, "fence_failed");
    server.done(&key.rollback());
    assert_eq!(counts(&server, "jobs"), [0; 4]);
}

#[test]
fn the_state_of_a_message_joins_no_transaction_of_its_own() {
    let world = World::new(Kind::Memory);
    let server = world.server();
    put(&server, "jobs", "x");
    let (message, state) = with_state(&server, &json!({}));
    let join = Ask::new("k", "o").field("txn_id", state.txn.as_str());
    server.call(&join.request()).refused(409, "txn_conflict");
    server.done(&state.update("1"));
    // Let go of early: what was staged is published, and the message can still be settled.
    server.done(&state.release());
    server.done(&message.ack());
    eventually("the state goes", || server.look(&Request::get(path::KEYS))["keys"] == json!([]));
}
