//! The queue as its users meet it: who gets which message and when, what becomes of it, and every
//! way in which it can come back.

#[path = "queue/joined.rs"]
mod joined;

use std::sync::Arc;
use std::thread::JoinHandle;

use joined::with_state;
use lockd_core::time::{BootId, Span};
use lockd_store::{Expect, Name, Op, Stored, Write};
use lockd_tests::http::Reply;
use lockd_tests::inside::{self, Inside};
use lockd_tests::queue::{Enqueue, Message, dequeue, messages, raw, stats};
use lockd_tests::world::{KINDS, Kind, World};
use lockd_tests::{Ask, Request, eventually};
use lockd_wire::{header, path};
use serde_json::{Value, json};

const TXN: &str = "abcdefghij0123456780";

fn put(server: &Inside, queue: &str, payload: &str) -> String {
    put_as(server, &Enqueue::new(queue, payload))
}

fn put_as(server: &Inside, ask: &Enqueue) -> String {
    let reply = server.look(&ask.request());
    reply["message_id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn get(server: &Inside, queue: &str) -> Message {
    get_as(server, queue, &json!({}))
}

#[track_caller]
fn get_as(server: &Inside, queue: &str, more: &Value) -> Message {
    let mut all = messages(&server.call(&dequeue(queue, more)));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn is_empty(server: &Inside, queue: &str) -> bool {
    server.call(&dequeue(queue, &json!({}))).says() == (409, "waiting".to_owned())
}

/// Ready, delayed, in flight, dead.
fn counts(server: &Inside, queue: &str) -> [u64; 4] {
    let stats = server.look(&stats(queue));
    ["ready", "delayed", "in_flight", "dead"].map(|name| stats[name].as_u64().expect("a number"))
}

#[test]
fn a_message_is_delivered_acknowledged_and_gone() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let ask = Enqueue::new("jobs", "hello").field("attributes", json!({"n": 1}));
        let ask =
            ask.field("payload_content_type", "text/plain").header(header::CORRELATION_ID, "c7");
        let reply = server.look(&ask.request());
        assert_eq!(reply["payload_bytes"], 5);
        assert_eq!(
            (&reply["max_attempts"], &reply["visibility_timeout_seconds"]),
            (&json!(5), &json!(30))
        );
        assert_eq!(counts(&server, "jobs"), [1, 0, 0, 0]);
        let reply_to_consumer = server.call(&dequeue("jobs", &json!({})));
        assert_eq!(reply_to_consumer.header(header::CORRELATION_ID), Some("c7"));
        let message = messages(&reply_to_consumer).remove(0);
        assert_eq!(message.payload, b"hello");
        assert_eq!(message.meta["attributes"], json!({"n": 1}));
        assert_eq!(message.text("payload_content_type"), "text/plain");
        assert_eq!(message.text("correlation_id"), "c7");
        assert_eq!(message.meta["message_id"], reply["message_id"]);
        assert_eq!((message.number("attempts"), message.number("fencing_token")), (1, 1));
        assert!(is_empty(&server, "jobs"), "one consumer at a time");
        assert_eq!(counts(&server, "jobs"), [0, 0, 1, 0]);
        assert_eq!(server.look(&message.ack())["acked"], true);
        assert_eq!(counts(&server, "jobs"), [0, 0, 0, 0]);
        // Again, because the answer was lost: it is as it was.
        assert_eq!(server.look(&message.ack())["acked"], true);
        server.call(&message.nack(&json!({}))).refused(404, "not_found");
        world.clock.advance(Span::secs(600));
        assert!(is_empty(&server, "jobs"));
    }
}

#[test]
fn messages_come_in_the_order_in_which_they_become_visible() {
    let world = World::new(Kind::Memory);
    let server = world.server();
    put_as(&server, &Enqueue::new("jobs", "late").field("delay_seconds", 20));
    for payload in ["a", "b", "c"] {
        put(&server, "jobs", payload);
    }
    put_as(&server, &Enqueue::new("jobs", "soon").field("delay_seconds", 10));
    assert_eq!(counts(&server, "jobs"), [3, 2, 0, 0]);
    let given_back = get(&server, "jobs");
    world.clock.advance(Span::secs(1));
    server.done(&given_back.nack(&json!({"intent": "defer"})));
    world.clock.advance(Span::secs(30));
    let order = messages(&server.call(&dequeue("jobs", &json!({"page_size": 9}))));
    let order: Vec<&[u8]> = order.iter().map(|message| message.payload.as_slice()).collect();
    assert_eq!(order, [&b"b"[..], b"c", b"a", b"soon", b"late"]);
}

#[test]
fn the_order_is_the_same_after_a_restart() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        for number in 0..20 {
            put(&server, "jobs", &number.to_string());
        }
        put_as(&server, &Enqueue::new("jobs", "late").field("delay_seconds", 50));
        let first = get(&server, "jobs");
        drop(server);
        world.clock.restart(BootId(2));
        let server = world.server();
        assert_eq!(counts(&server, "jobs"), [19, 1, 1, 0], "{kind:?}");
        for number in 1..20 {
            assert_eq!(get(&server, "jobs").payload, number.to_string().into_bytes());
        }
        assert!(is_empty(&server, "jobs"));
        server.done(&first.ack());
        world.clock.advance(Span::secs(29));
        assert_eq!(counts(&server, "jobs")[1], 1, "{kind:?}: a delay outlives a reboot");
    }
}

/// Asks in the background, for as long as it takes.
fn waiting(server: &Inside, queue: &str) -> JoinHandle<Reply> {
    let request = inside::to_http(&dequeue(queue, &json!({"wait_seconds": 0})));
    let (handler, runtime) = (server.handler.clone(), server.runtime.handle().clone());
    let before = server.look(&stats(queue))["waiting_consumers"].as_u64().expect("a number");
    let thread = std::thread::spawn(move || runtime.block_on(inside::ask(&handler, request)));
    eventually("it waits", || {
        server.look(&stats(queue))["waiting_consumers"].as_u64() == Some(before + 1)
    });
    thread
}

fn one(reply: JoinHandle<Reply>) -> Message {
    messages(&reply.join().expect("an answer")).remove(0)
}

#[test]
fn consumers_are_woken_in_the_order_in_which_they_wait() {
    let world = World::new(Kind::Memory);
    let server = world.server();
    let waiters: Vec<_> = (0..4).map(|_| waiting(&server, "jobs")).collect();
    for payload in ["a", "b", "c"] {
        put(&server, "jobs", payload);
    }
    let late = Enqueue::new("jobs", "d").field("delay_seconds", 5);
    put_as(&server, &late);
    let mut waiters = waiters.into_iter();
    for payload in [b"a", b"b", b"c"] {
        assert_eq!(one(waiters.next().expect("four")).payload, payload);
    }
    let last = waiters.next().expect("four");
    assert!(!last.is_finished());
    world.clock.advance(Span::secs(5));
    assert_eq!(one(last).payload, b"d", "woken by the time, not by anybody");
}

#[test]
fn a_consumer_that_does_not_answer_in_time_has_failed_and_the_last_failure_kills() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let ask = Enqueue::new("jobs", "poison").field("max_attempts", 3);
        let id = put_as(&server, &ask.field("visibility_timeout_seconds", 7));
        for attempt in 1..=3 {
            let message = get(&server, "jobs");
            assert_eq!(message.number("attempts"), attempt);
            assert_eq!(message.number("failure_attempts"), attempt - 1);
            assert_eq!(message.number("visibility_timeout_seconds"), 7, "as the sender wished");
            world.clock.advance(Span(6_999));
            assert_eq!(counts(&server, "jobs")[2], 1, "{kind:?}");
            world.clock.advance(Span(1));
            eventually("it comes back", || counts(&server, "jobs")[2] == 0);
            server.call(&message.ack()).refused(409, "queue_message_lease_mismatch");
        }
        assert_eq!(counts(&server, "jobs"), [0, 0, 0, 1]);
        assert!(is_empty(&server, "jobs"));
        let dead = server.look(&Request::post(path::QUEUE_DLQ).json(&json!({"queue": "jobs"})));
        let dead = &dead["messages"][0];
        assert_eq!((&dead["message_id"], &dead["status"]), (&json!(id), &json!("dead")));
        assert_eq!(dead["last_error"], json!({"reason": "visibility_timeout"}));
        assert_eq!((&dead["attempts"], &dead["failure_attempts"]), (&json!(3), &json!(3)));
    }
}

#[test]
fn dead_messages_are_listed_read_brought_back_and_removed() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let ids: Vec<String> = (0..5)
            .map(|number| {
                put_as(
                    &server,
                    &Enqueue::new("jobs", format!("m{number}")).field("max_attempts", 1),
                )
            })
            .collect();
        for _ in 0..5 {
            let message = get(&server, "jobs");
            let reply = server.look(&message.nack(&json!({"last_error": "no"})));
            assert_eq!((&reply["requeued"], &reply["dead"]), (&json!(false), &json!(true)));
            world.clock.advance(Span(1));
        }
        let list = |more: Value| {
            let mut body = json!({"queue": "jobs"});
            body.as_object_mut().expect("one").extend(more.as_object().cloned().expect("one"));
            server.look(&Request::post(path::QUEUE_DLQ).json(&body))
        };
        let page = list(json!({"limit": 3}));
        let shown: Vec<&Value> = page["messages"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| &one["message_id"])
            .collect();
        assert_eq!(shown, [&ids[0], &ids[1], &ids[2]]);
        let rest = list(json!({"limit": 3, "cursor": page["next_cursor"]}));
        assert_eq!(rest["messages"].as_array().expect("a list").len(), 2);
        assert_eq!(rest["messages"][0]["last_error"], "no");
        let payload = Request::get(path::QUEUE_PAYLOAD).query("queue", "jobs");
        let payload = payload.query("message_id", &ids[1]);
        assert_eq!(server.call(&payload).ok().body, b"m1");
        let deal = |path: &str, body: Value| {
            server.look(&Request::post(path).json(&body))["count"].clone()
        };
        assert_eq!(
            deal(
                path::QUEUE_DLQ_REDRIVE,
                json!({"queue": "jobs", "message_ids": [ids[1], ids[1]]})
            ),
            1
        );
        assert_eq!(
            deal(path::QUEUE_DLQ_DELETE, json!({"queue": "jobs", "message_ids": [ids[0], ids[1]]})),
            1
        );
        assert_eq!(counts(&server, "jobs"), [1, 0, 0, 3]);
        assert_eq!(deal(path::QUEUE_DLQ_REDRIVE, json!({"queue": "jobs", "all": true})), 3);
        assert_eq!(counts(&server, "jobs"), [4, 0, 0, 0]);
        let again = get(&server, "jobs");
        assert_eq!((again.payload.as_slice(), again.number("failure_attempts")), (&b"m1"[..], 0));
        assert_eq!(deal(path::QUEUE_PURGE, json!({"queue": "jobs"})), 3);
        assert_eq!(counts(&server, "jobs"), [0, 0, 1, 0], "what a consumer has is left to it");
        server.done(&again.ack());
    }
}

/// Where records and their entries in the index are written one after the other, an entry may
/// arrive late and replace a newer one.
#[test]
fn an_entry_that_comes_late_neither_hides_the_dead_nor_buries_the_living() {
    let world = World::new(Kind::Stepwise);
    let server = world.server();
    put_as(&server, &Enqueue::new("jobs", "x").field("max_attempts", 1));
    let entry = || {
        let page = server.runtime.block_on(world.store.scan("r/", None, 2)).expect("a page");
        assert_eq!(page.len(), 1);
        page.into_iter().next().expect("an entry")
    };
    let write = |(name, stored): (Name, Stored)| {
        let op = Op { name, expect: Expect::Any, write: Write::Put(stored.bytes) };
        server.runtime.block_on(world.store.commit(vec![op])).expect("written");
    };
    let queued = entry();
    server.done(&get(&server, "jobs").nack(&json!({})));
    let dead = entry();
    write(queued);
    assert_eq!(counts(&world.server(), "jobs"), [0, 0, 0, 1], "it is dead");
    let all = json!({"queue": "jobs", "all": true});
    server.done(&Request::post(path::QUEUE_DLQ_REDRIVE).json(&all));
    write(dead);
    let other = world.server();
    assert_eq!(counts(&other, "jobs"), [1, 0, 0, 0], "it is not dead any more");
    assert_eq!(get(&other, "jobs").payload, b"x");
}

#[test]
fn giving_back_says_how_it_went_and_when_to_try_again() {
    let world = World::new(Kind::Memory);
    let server = world.server();
    put(&server, "jobs", "x");
    let message = get(&server, "jobs");
    let reply = server.look(&message.nack(&json!({"delay_seconds": 10, "last_error": {"a": [1]}})));
    assert_eq!(reply["requeued"], true);
    assert_ne!(reply["meta_etag"], message.meta["meta_etag"]);
    assert_eq!(counts(&server, "jobs"), [0, 1, 0, 0]);
    let peek = server.look(&Request::post(path::QUEUE_PEEK).json(&json!({"queue": "jobs"})));
    assert_eq!(peek["messages"][0]["status"], "delayed");
    assert_eq!(peek["messages"][0]["last_error"], json!({"a": [1]}));
    world.clock.advance(Span::secs(10));
    let message = get(&server, "jobs");
    assert_eq!(message.number("failure_attempts"), 1);
    server.done(&message.nack(&json!({"intent": "DEFER"})));
    let message = get(&server, "jobs");
    assert_eq!((message.number("attempts"), message.number("failure_attempts")), (3, 1));
    server.call(&message.nack(&json!({"intent": "maybe"}))).refused(400, "invalid_nack_intent");
    let both = json!({"intent": "defer", "last_error": 1});
    server.call(&message.nack(&both)).refused(400, "invalid_nack_last_error");
    server.call(&message.nack(&json!({"delay_seconds": -1}))).refused(400, "invalid_delay");
    let stale = json!({"meta_etag": "0-0"});
    server.call(&message.nack(&stale)).refused(409, "cas_mismatch");
    server.call(&message.nack(&json!({"lease_id": ""}))).refused(400, "missing_fields");
    server.call(&message.nack(&json!({"message_id": "x"}))).refused(400, "invalid_message_id");
    let token = json!({"fencing_token": 99});
    server.call(&message.nack(&token)).refused(409, "queue_message_lease_mismatch");
    server.done(&message.ack());
}

#[test]
fn an_extension_counts_from_now_and_by_default_as_long_as_before() {
    let world = World::new(Kind::Memory);
    let server = world.server();
    put(&server, "jobs", "x");
    let mut message = get_as(&server, "jobs", &json!({"visibility_timeout_seconds": 5}));
    for _ in 0..4 {
        world.clock.advance(Span::secs(4));
        let reply = server.look(&message.extend(&json!({"extend_by_seconds": 0})));
        assert_eq!(reply["visibility_timeout_seconds"], 5);
        server.call(&message.extend(&json!({}))).refused(409, "cas_mismatch");
        message.meta["meta_etag"] = reply["meta_etag"].clone();
    }
    let reply = server.look(&message.extend(&json!({"extend_by_ms": 60_000})));
    message.meta["meta_etag"] = reply["meta_etag"].clone();
    world.clock.advance(Span::secs(59));
    assert_eq!(counts(&server, "jobs"), [0, 0, 1, 0]);
    world.clock.advance(Span::secs(1));
    eventually("it comes back", || counts(&server, "jobs") == [1, 0, 0, 0]);
    server.call(&message.extend(&json!({}))).refused(409, "queue_message_lease_mismatch");
}

#[test]
fn several_messages_come_in_one_answer_each_numbered() {
    let server = Inside::default();
    for number in 0..70 {
        put(&server, "jobs", &number.to_string());
    }
    let reply = server.call(&dequeue("jobs", &json!({"page_size": 1_000})));
    let all = messages(&reply);
    assert_eq!(all.len(), 64, "at most");
    let text = reply.text();
    assert!(text.contains("name=\"meta\"; filename=\"meta-63.json\"\r\n"), "{text}");
    assert!(text.contains("name=\"payload\"; filename=\"payload-63\"\r\nContent-Length: 2\r\n"));
    assert!(all.iter().map(Message::id).is_sorted());
    for message in &all {
        server.done(&message.ack());
    }
    assert_eq!(counts(&server, "jobs"), [6, 0, 0, 0]);
}

#[test]
fn several_messages_are_acknowledged_at_once_each_for_itself() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        for number in 0..6 {
            put(&server, "jobs", &number.to_string());
        }
        let mut all: Vec<Message> = (0..4).map(|_| get(&server, "jobs")).collect();
        all.push(get_as(&server, "jobs", &json!({"txn_id": TXN})));
        all.push(with_state(&server, &json!({})).0);
        server.done(&all[1].nack(&json!({"delay_seconds": 60})));
        let one = |message: &Message| json!({"message_id": message.id(), "lease_id": message.text("lease_id")});
        let ack = |messages: Vec<Value>| {
            Request::post(path::QUEUE_ACK).json(&json!({"queue": "jobs", "messages": messages}))
        };
        let reply = server.look(&ack(all.iter().map(one).collect()));
        let acked: Vec<&Value> =
            reply["results"].as_array().expect("a list").iter().map(|one| &one["acked"]).collect();
        assert_eq!(acked, [true, false, true, true, true, true], "{kind:?}");
        assert_eq!(reply["results"][1]["error"], "queue_message_lease_mismatch");
        assert_eq!(reply["acked"], false);
        assert_eq!(counts(&server, "jobs"), [0, 1, 0, 0], "{kind:?}");
        server.call(&ack(vec![one(&all[0]), one(&all[0])])).refused(400, "invalid_body");
        let again = server.look(&ack(vec![one(&all[0]), one(&all[2])]));
        assert_eq!(again["acked"], true, "{kind:?}: as they were the first time");
    }
}

#[test]
fn the_same_enqueue_again_is_one_message() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let ask = Enqueue::new("jobs", "x").repeatable("once");
        let id = put_as(&server, &ask);
        assert_eq!(put_as(&server, &ask), id);
        let other = Enqueue::new("jobs", "y").repeatable("once");
        server.call(&other.request()).refused(409, "idempotency_key_reused");
        assert_ne!(put_as(&server, &Enqueue::new("other", "x").repeatable("once")), id);
        drop(server);
        world.clock.advance(Span::secs(590));
        let server = world.server();
        assert_eq!(put_as(&server, &ask), id, "{kind:?}: for ten minutes, whatever happens");
        assert_eq!(counts(&server, "jobs"), [1, 0, 0, 0]);
        world.clock.advance(Span::secs(1_210));
        assert_ne!(put_as(&server, &ask), id);
    }
}

#[test]
fn of_many_equal_enqueues_at_once_one_counts() {
    let server = Arc::new(Inside::default());
    let asks: Vec<_> = (0..16)
        .map(|_| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || {
                put_as(&server, &Enqueue::new("jobs", "x").repeatable("one"))
            })
        })
        .collect();
    let ids: std::collections::BTreeSet<String> =
        asks.into_iter().map(|ask| ask.join().expect("an answer")).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(counts(&server, "jobs"), [1, 0, 0, 0]);
}

#[test]
fn a_clock_that_was_set_back_hides_nothing() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put(&server, "jobs", "x");
        put_as(&server, &Enqueue::new("jobs", "y").field("delay_seconds", 10));
        drop(server);
        let now = lockd_core::time::UnixMillis(1_900_000_000_000 - 3_600_000);
        world.clock.set_wall(now);
        let server = world.server();
        assert_eq!(counts(&server, "jobs"), [1, 1, 0, 0], "{kind:?}");
        world.clock.advance(Span::secs(10));
        assert_eq!(counts(&server, "jobs"), [2, 0, 0, 0], "{kind:?}");
    }
}

#[test]
fn a_message_whose_payload_is_lost_dies_and_lets_the_others_pass() {
    let world = World::new(Kind::Memory);
    let server = world.server();
    put_as(&server, &Enqueue::new("jobs", vec![7; 100_000]).field("max_attempts", 2));
    put(&server, "jobs", "next");
    let blobs = server.runtime.block_on(world.store.list_blobs(None, 10)).expect("a list");
    server.runtime.block_on(world.store.delete_blob(&blobs[0])).expect("deleted");
    let message = get(&server, "jobs");
    assert_eq!(message.payload, b"next");
    server.done(&message.ack());
    for failures in 1..=2 {
        eventually("it has failed", || counts(&server, "jobs")[2] == 0);
        world.clock.advance(Span::secs(1));
        if failures == 1 {
            assert!(is_empty(&server, "jobs"));
        }
    }
    eventually("it is dead", || counts(&server, "jobs") == [0, 0, 0, 1]);
}

#[test]
fn a_message_that_nobody_takes_in_time_is_removed() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        put_as(&server, &Enqueue::new("jobs", "x").field("ttl_seconds", 10));
        put_as(&server, &Enqueue::new("jobs", "y").field("ttl_seconds", 10));
        world.clock.advance(Span::secs(9));
        let held = get(&server, "jobs");
        world.clock.advance(Span::secs(1));
        assert!(is_empty(&server, "jobs"), "{kind:?}");
        assert_eq!(counts(&server, "jobs"), [0, 0, 1, 0], "{kind:?}");
        server.done(&held.ack());
    }
}

#[test]
fn what_is_wrong_with_a_message_is_said_and_changes_nothing() {
    let server = Inside::default();
    let code = |request: &Request| server.call(request).says();
    let refused = |status: u16, code: &str| (status, code.to_owned());
    let ask = |name: &str, value: Value| Enqueue::new("jobs", "x").field(name, value).request();
    assert_eq!(code(&Enqueue::new("no spaces", "x").request()), refused(400, "invalid_queue"));
    assert_eq!(code(&Enqueue::new("", "x").request()), refused(400, "missing_queue"));
    assert_eq!(code(&ask("namespace", json!(".txns"))), refused(400, "invalid_namespace"));
    assert_eq!(code(&ask("delay_seconds", json!(-1))), refused(400, "invalid_delay"));
    assert_eq!(code(&ask("ttl_seconds", json!(-1))), refused(400, "invalid_ttl"));
    assert_eq!(code(&ask("max_attempts", json!(-1))), refused(400, "invalid_body"));
    assert_eq!(code(&ask("txn_id", json!("x"))), refused(400, "invalid_txn"));
    assert_eq!(code(&ask("payload_content_type", json!("a\nb"))), refused(400, "invalid_body"));
    let large = json!({"a": "x".repeat(20_000)});
    assert_eq!(code(&ask("attributes", large)), refused(400, "invalid_body"));
    assert_eq!(code(&raw(b"{", b"x")), refused(400, "invalid_body"));
    assert_eq!(code(&raw(b"[]", b"x")), refused(400, "invalid_body"));
    let plain = Enqueue::new("jobs", "x").request().with("content-type", "application/json");
    assert_eq!(code(&plain), refused(400, "invalid_content_type"));
    let other = Enqueue::new("jobs", "x").request();
    let other = other.with("content-type", "multipart/related; boundary=other");
    assert_eq!(code(&other), refused(400, "multipart_error"));
    let mut cut = Enqueue::new("jobs", "x").request();
    let body = cut.body.as_mut().expect("a body");
    body.truncate(body.len() - 12);
    assert_eq!(code(&cut), refused(400, "invalid_body"));
    assert_eq!(code(&dequeue("jobs", &json!({"owner": ""}))), refused(400, "missing_owner"));
    assert_eq!(code(&dequeue("", &json!({}))), refused(400, "missing_queue"));
    assert_eq!(code(&dequeue("jobs", &json!({"what": 1}))), refused(400, "invalid_body"));
    assert_eq!(code(&stats("a/b")), refused(400, "invalid_queue"));
    let cursor = json!({"queue": "jobs", "cursor": "x"});
    assert_eq!(
        code(&Request::post(path::QUEUE_PEEK).json(&cursor)),
        refused(400, "invalid_cursor")
    );
    let none = Request::post(path::QUEUE_DLQ_REDRIVE).json(&json!({"queue": "jobs"}));
    assert_eq!(code(&none), refused(400, "missing_fields"));
    assert_eq!(counts(&server, "jobs"), [0; 4]);
    // Unknown fields of meta are for others.
    server.done(&ask("what", json!(1)));
    // Nothing but a payload, and nothing at all in it.
    let request = raw(b"{}", b"").query("queue", "jobs");
    assert_eq!(server.look(&request)["payload_bytes"], 0);
    let all = messages(&server.call(&dequeue("jobs", &json!({"page_size": 2}))));
    assert_eq!(all.iter().map(|one| one.payload.len()).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn keys_of_a_queue_are_left_to_it() {
    let server = Inside::default();
    let id = put(&server, "jobs", "x");
    for kind in ["msg", "state"] {
        let ask = Ask::new(&format!("q/jobs/{kind}/{id}"), "o").request();
        server.call(&ask).refused(400, "invalid_key");
    }
    let read = Request::post(path::GET).query("key", &format!("q/jobs/msg/{id}"));
    server.call(&read.query("public", "1")).refused(400, "invalid_key");
    let several = json!({"keys": [format!("default/q/jobs/msg/{id}")], "full_names": true});
    server.call(&Request::post(path::READ).json(&several)).refused(400, "invalid_key");
    let keys = server.look(&Request::get(path::KEYS));
    assert_eq!(keys["keys"], json!([]), "messages are no keys");
    // An operator sees who has a message, and can take it away; that is no failure.
    let message = get(&server, "jobs");
    for path in [path::RELEASE, path::KEEPALIVE] {
        let by_lease = Request::post(path).json(&json!({"lease_id": message.text("lease_id")}));
        server.call(&by_lease).refused(400, "invalid_key");
    }
    let update =
        Request::post(path::UPDATE_STATE).header(header::LEASE_ID, message.text("lease_id"));
    server.call(&update.body("1")).refused(400, "invalid_key");
    let leases = server.look(&Request::get(path::LEASES));
    assert_eq!(leases["leases"][0]["key"], format!("q/jobs/msg/{id}"));
    let revoke = json!({"key": format!("q/jobs/msg/{id}"), "reason": "stuck"});
    server.done(&Request::post(path::LEASES_REVOKE).json(&revoke));
    server.call(&message.ack()).refused(409, "queue_message_lease_mismatch");
    assert_eq!(get(&server, "jobs").number("failure_attempts"), 0);
}

#[test]
fn queues_are_listed_by_name() {
    let server = Inside::default();
    for queue in ["b", "a", "a-1", "c"] {
        put(&server, queue, "x");
        put(&server, queue, "y");
    }
    let page = server.look(&Request::get(path::QUEUES).query("limit", "3"));
    assert_eq!(page["queues"], json!(["a", "a-1", "b"]));
    let cursor = page["next_cursor"].as_str().expect("a cursor");
    let next = Request::get(path::QUEUES).query("limit", "3").query("cursor", cursor);
    let rest = server.look(&next);
    assert_eq!((&rest["queues"], rest.get("next_cursor")), (&json!(["c"]), None));
}

#[test]
fn a_large_payload_is_read_back_and_its_file_goes_with_it() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let payload: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        put_as(&server, &Enqueue::new("jobs", payload.clone()));
        let blobs = |server: &Inside| {
            server.runtime.block_on(world.store.list_blobs(None, 10)).expect("a list").len()
        };
        assert_eq!(blobs(&server), 1);
        let message = get(&server, "jobs");
        assert!(message.payload == payload, "{kind:?}");
        server.done(&message.ack());
        eventually("the file goes", || blobs(&server) == 0);
    }
}
