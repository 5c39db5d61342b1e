//! One job: a message is taken, two keys are changed, another message is sent on, all in one
//! transaction. The store stops at each single write; what is left is all of it or nothing.

use std::sync::Arc;

use lockd_core::time::{BootId, Span};
use lockd_store::faulty::{Faulty, Stop};
use lockd_tests::http::Reply;
use lockd_tests::inside::Inside;
use lockd_tests::queue::{Enqueue, dequeue, messages, stats};
use lockd_tests::world::{KINDS, Kind, World};
use lockd_tests::{Ask, Held, Request, eventually_some};
use lockd_wire::path;
use serde_json::json;

const TXN: &str = "abcdefghij0123456780";
const TTL_MS: u64 = 10_000;

/// How the job ends: by the word of the consumer, or by the release of one of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Ack,
    Release,
}

fn prepared(kind: Kind) -> World {
    let world = World::new(kind);
    let server = world.server();
    server.done(&Enqueue::new("inbox", "order 7").request());
    for key in ["stock", "ledger"] {
        let held = server.acquire(&Ask::new(key, "setup"));
        server.done(&held.update("0").query("then", "release"));
    }
    world
}

fn ok(reply: Reply) -> Result<Reply, Reply> {
    if reply.status == 200 { Ok(reply) } else { Err(reply) }
}

fn job(server: &Inside, by: By) -> Result<(), Reply> {
    let ask = json!({"txn_id": TXN, "visibility_timeout_seconds": TTL_MS / 1_000});
    let taken = ok(server.call(&dequeue("inbox", &ask)))?;
    let message = messages(&taken).remove(0);
    let mut held = Vec::new();
    for key in ["stock", "ledger"] {
        let ask = Ask::new(key, "worker").ttl_ms(TTL_MS).field("txn_id", TXN);
        let lease = Held::of(&ok(server.call(&ask.request()))?);
        ok(server.call(&lease.update("1")))?;
        held.push(lease);
    }
    let sent = Enqueue::new("outbox", "order 7 done").field("txn_id", TXN);
    ok(server.call(&sent.request()))?;
    let end = match by {
        By::Ack => message.ack(),
        By::Release => held[1].release(),
    };
    ok(server.call(&end)).map(drop)
}

/// What everybody sees: both keys, and the messages of both queues wherever they stand.
fn seen(server: &Inside) -> (Vec<String>, u64, u64) {
    let read = Request::post(path::READ).json(&json!({"keys": ["stock", "ledger"]}));
    let entries = server.look(&read)["entries"].clone();
    let values = entries.as_array().expect("a list").iter().map(|one| one["state"].to_string());
    let count = |queue: &str| {
        let waiting = server.look(&Request::post(path::QUEUE_PEEK).json(&json!({"queue": queue})));
        let taken = server.look(&stats(queue))["in_flight"].as_u64().expect("a number");
        waiting["messages"].as_array().expect("a list").len() as u64 + taken
    };
    (values.collect(), count("inbox"), count("outbox"))
}

#[test]
fn a_crash_at_any_write_leaves_all_of_a_job_or_nothing() {
    for kind in KINDS {
        for by in [By::Ack, By::Release] {
            let mut outcomes = (0, 0);
            for stop in [Stop::Before, Stop::After] {
                for at in 0.. {
                    let world = prepared(kind);
                    let faulty = Arc::new(Faulty::new(Arc::clone(&world.store), at, stop));
                    let dying = world.server_on(Arc::clone(&faulty) as _);
                    let answered = job(&dying, by);
                    let complete = !faulty.has_stopped();
                    drop(dying);
                    let what = format!("{kind:?}, {by:?}, {stop:?} write {at}");
                    check(&world, answered.is_ok(), &what, &mut outcomes);
                    if complete {
                        assert!(at > 5, "{what}: a job takes several writes");
                        break;
                    }
                }
            }
            assert!(outcomes.0 > 0 && outcomes.1 > 0, "{kind:?}: both were seen: {outcomes:?}");
        }
    }
}

/// Messages of a transaction that together are more than one write may hold.
const MANY: usize = 260;

/// A key held and many large messages enqueued, all in one transaction.
fn large_job(world: &World) -> Held {
    let server = world.server();
    let held = server.acquire(&Ask::new("stock", "worker").ttl_ms(TTL_MS).field("txn_id", TXN));
    server.done(&held.update("1"));
    let padding = json!({"padding": "x".repeat(15 * 1024)});
    for _ in 0..MANY {
        let ask = Enqueue::new("outbox", vec![7; 64 * 1024]).field("txn_id", TXN);
        server.done(&ask.field("attributes", padding.clone()).request());
    }
    held
}

#[test]
fn a_decision_over_more_than_one_write_can_hold_is_still_one() {
    let mut outcomes = (0, 0);
    for stop in [Stop::Before, Stop::After] {
        for at in 0.. {
            let world = prepared(Kind::Memory);
            let held = large_job(&world);
            let faulty = Arc::new(Faulty::new(Arc::clone(&world.store), at, stop));
            let dying = world.server_on(Arc::clone(&faulty) as _);
            let answered = dying.call(&held.release()).status == 200;
            let complete = !faulty.has_stopped();
            drop(dying);
            world.clock.restart(BootId(1));
            let server = world.server();
            let (values, _, sent) = seen(&server);
            let everything = (values[0].as_str(), server.look(&stats("outbox"))["ready"].as_u64());
            let what = format!("{stop:?} write {at}: {everything:?}");
            assert_eq!(everything.0 == "1", sent > 0, "{what}");
            assert_eq!(everything.1, Some(if sent > 0 { MANY as u64 } else { 0 }), "{what}");
            assert!(!answered || sent > 0, "{what}: what was answered is missing");
            if sent > 0 {
                outcomes.1 += 1;
            } else {
                outcomes.0 += 1;
            }
            if complete {
                assert!(at > 4, "{what}: several writes");
                break;
            }
        }
    }
    assert!(outcomes.0 > 0 && outcomes.1 > 2, "{outcomes:?}");
}

fn check(world: &World, answered: bool, what: &str, outcomes: &mut (u32, u32)) {
    world.clock.restart(BootId(1));
    let server = world.server();
    let first = seen(&server);
    let (nothing, everything) = (
        (vec!["0".to_owned(), "0".to_owned()], 1, 0),
        (vec!["1".to_owned(), "1".to_owned()], 0, 1),
    );
    assert!(first == nothing || first == everything, "{what}: {first:?}");
    assert!(!answered || first == everything, "{what}: what was answered is missing");
    world.clock.advance(Span(TTL_MS + 1));
    // Whoever comes next can do the job, if it was not done; and only then.
    for key in ["stock", "ledger"] {
        server.done(&server.acquire(&Ask::new(key, "next")).release());
    }
    let sent = server.call(&dequeue("outbox", &json!({})));
    if first == nothing {
        outcomes.0 += 1;
        let message = eventually_some(what, || {
            let again = server.call(&dequeue("inbox", &json!({})));
            (again.status == 200).then(|| messages(&again).remove(0))
        });
        assert_eq!(message.payload, b"order 7", "{what}");
        sent.refused(409, "waiting");
        server.done(&message.ack());
    } else {
        outcomes.1 += 1;
        server.call(&dequeue("inbox", &json!({}))).refused(409, "waiting");
        let message = messages(&sent).remove(0);
        assert_eq!(message.payload, b"order 7 done", "{what}");
        server.done(&message.ack());
    }
}
