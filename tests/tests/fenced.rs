//! Writes that are good only while somebody else's token is what it was. The sharpest moment: the
//! write was decided and is on its way to the store while the token is raised. On stores that write
//! several records at once, and on one that cannot.

use std::sync::Arc;

use lockd_core::fence::Fence;
use lockd_core::limits::PINS_MAX;
use lockd_core::pin::{Pin, PinId};
use lockd_core::record::KeyRecord;
use lockd_core::time::{BootId, Now, Span, Tick, Timeline, UnixMillis};
use lockd_store::faulty::{Faulty, Hold, Stop};
use lockd_store::{Expect, Name, Op, Write, codec};
use lockd_tests::http::Reply;
use lockd_tests::inside::{Inside, ask, to_http};
use lockd_tests::lease::public_get;
use lockd_tests::queue::{Enqueue, Message, dequeue, messages, stats};
use lockd_tests::world::{KINDS, Kind, World};
use lockd_tests::{Ask, Held, Request, eventually};
use lockd_wire::{header, path};
use serde_json::json;

const TXN: &str = "abcdefghij0123456780";
const TTL_MS: u64 = 10_000;

fn fenced(request: Request, token: u64) -> Request {
    request.header(header::FENCE_KEY, "default/leader").header(header::FENCE_TOKEN, token)
}

fn lead(server: &Inside, who: &str) -> Held {
    server.acquire(&Ask::new("leader", who).ttl_ms(TTL_MS))
}

/// Somebody else leads from now on.
fn depose(server: &Inside, leader: &Held) -> Held {
    server.done(&leader.release());
    lead(server, "successor")
}

fn document(server: &Inside) -> Option<String> {
    let reply = server.call(&public_get("data"));
    (reply.status == 200).then(|| reply.text())
}

/// Messages that are there to be seen.
fn waiting(server: &Inside) -> usize {
    let peek = Request::post(path::QUEUE_PEEK).json(&json!({"queue": "jobs"}));
    server.look(&peek)["messages"].as_array().expect("messages").len()
}

fn take(server: &Inside) -> Message {
    messages(&server.call(&dequeue("jobs", &json!({})))).remove(0)
}

/// The record of the leader's key, as it is stored.
fn leader_record(world: &World, server: &Inside) -> KeyRecord {
    let name = Name::from("k/default/leader");
    let stored = server.runtime.block_on(world.store.load(&name)).expect("a store").expect("one");
    let start = Now { tick: Tick(0), wall: UnixMillis(0) };
    let timeline = Timeline { boot: BootId(0), start, slack: Some(Span::ZERO) };
    codec::decode(&stored.bytes, &timeline).expect("a record")
}

/// A way to write something under the token of a leader.
struct Way {
    name: &'static str,
    /// What is written first of it.
    target: &'static str,
    prepare: fn(&Inside, u64) -> Request,
    /// Whether it came to anything.
    is_done: fn(&Inside) -> bool,
}

fn data(server: &Inside) -> Held {
    server.acquire(&Ask::new("data", "o").ttl_ms(TTL_MS))
}

const WAYS: [Way; 8] = [
    Way {
        name: "update and release",
        target: "k/default/data",
        prepare: |server, token| fenced(data(server).update("1").query("then", "release"), token),
        is_done: |server| document(server).as_deref() == Some("1"),
    },
    Way {
        name: "update and commit",
        target: "k/default/data",
        prepare: |server, token| fenced(data(server).update("1").query("then", "commit"), token),
        is_done: |server| document(server).as_deref() == Some("1"),
    },
    Way {
        name: "release of what was staged under the condition",
        target: "k/default/data",
        prepare: |server, token| {
            let held = data(server);
            server.done(&fenced(held.update("1"), token));
            held.release()
        },
        is_done: |server| document(server).as_deref() == Some("1"),
    },
    Way {
        name: "removal",
        target: "k/default/data",
        prepare: |server, token| {
            let held = data(server);
            server.done(&held.commit("0"));
            server.done(&held.remove());
            fenced(held.release(), token)
        },
        is_done: |server| document(server).is_none(),
    },
    Way {
        name: "enqueue",
        target: "q/",
        prepare: |_, token| fenced(Enqueue::new("jobs", "x").request(), token),
        is_done: |server| waiting(server) == 1,
    },
    Way {
        name: "ack",
        target: "q/",
        prepare: |server, token| {
            server.done(&Enqueue::new("jobs", "x").request());
            fenced(take(server).ack(), token)
        },
        is_done: |server| server.look(&stats("jobs"))["in_flight"] == 0,
    },
    Way {
        name: "commit of a transaction",
        target: "t/",
        prepare: |server, token| {
            let one = server.acquire(&Ask::new("data", "o").ttl_ms(TTL_MS).field("txn_id", TXN));
            let two = server.acquire(&Ask::new("more", "o").ttl_ms(TTL_MS).field("txn_id", TXN));
            server.done(&one.update("1"));
            server.done(&two.update("2"));
            fenced(one.release(), token)
        },
        is_done: |server| document(server).as_deref() == Some("1"),
    },
    Way {
        name: "commit of a transaction that kept the condition",
        target: "t/",
        prepare: |server, token| {
            let one = server.acquire(&Ask::new("data", "o").ttl_ms(TTL_MS).field("txn_id", TXN));
            server.done(&one.update("1"));
            server.done(&fenced(Enqueue::new("jobs", "x").field("txn_id", TXN).request(), token));
            one.release()
        },
        is_done: |server| document(server).as_deref() == Some("1") && waiting(server) == 1,
    },
];

#[test]
fn a_condition_that_holds_lets_the_write_through_and_one_that_does_not_leaves_everything() {
    for kind in KINDS {
        for way in &WAYS {
            let what = format!("{kind:?}, {}", way.name);
            let world = World::new(kind);
            let server = world.server();
            let leader = lead(&server, "first");
            let late = (way.prepare)(&server, leader.token);
            depose(&server, &leader);
            server.call(&late).refused(409, "fence_failed");
            assert!(!(way.is_done)(&server), "{what}");
            assert_eq!(leader_record(&world, &server).fence, Fence(2), "{what}");

            let world = World::new(kind);
            let server = world.server();
            let leader = lead(&server, "first");
            let good = (way.prepare)(&server, leader.token);
            server.done(&good);
            assert!((way.is_done)(&server), "{what}");
            eventually("nothing is left in the leader's record", || {
                leader_record(&world, &server).pins.is_empty()
            });
        }
    }
}

/// Sends a request that is held back in the middle of its write.
fn send_and_hold(
    server: &Inside,
    faulty: &Faulty,
    way: &Way,
    request: &Request,
) -> (Hold, tokio::task::JoinHandle<Reply>) {
    let hold = faulty.hold_next(way.target);
    let (handler, request) = (server.handler.clone(), to_http(request));
    let sent = server.runtime.spawn(async move { ask(&handler, request).await });
    server.runtime.block_on(hold.reached());
    (hold, sent)
}

#[test]
fn a_write_that_is_under_way_when_the_token_is_raised_is_refused_by_the_store() {
    for kind in KINDS {
        for way in &WAYS {
            let what = format!("{kind:?}, {}", way.name);
            let world = World::new(kind);
            let faulty = Arc::new(Faulty::steady(Arc::clone(&world.store)));
            let server = world.server_on(Arc::clone(&faulty) as _);
            let leader = lead(&server, "first");
            let request = (way.prepare)(&server, leader.token);
            let (hold, sent) = send_and_hold(&server, &faulty, way, &request);
            let successor = depose(&server, &leader);
            assert_eq!(successor.token, leader.token + 1, "{what}");
            if way.target != "t/" {
                // Readers of keys wait for the decision that is being written.
                assert!(!(way.is_done)(&server), "{what}: not yet");
            }
            hold.let_go();
            let reply = server.runtime.block_on(sent).expect("an answer");
            assert_eq!(reply.says(), (409, "fence_failed".to_owned()), "{what}");
            assert!(!(way.is_done)(&server), "{what}: the successor was there");
            eventually("nothing is left in the leader's record", || {
                leader_record(&world, &server).pins.is_empty()
            });
        }
    }
}

#[test]
fn a_second_server_that_meets_a_raised_token_closes_what_was_under_way_before_it_acts() {
    let way = &WAYS[0];
    let world = World::new(Kind::Stepwise);
    let faulty = Arc::new(Faulty::steady(Arc::clone(&world.store)));
    let old = world.server_on(Arc::clone(&faulty) as _);
    let leader = lead(&old, "first");
    let request = (way.prepare)(&old, leader.token);
    let (hold, sent) = send_and_hold(&old, &faulty, way, &request);
    // Raised by a server that stopped right after that write, before it closed anything.
    let stopping = Arc::new(Faulty::new(Arc::clone(&world.store), 1, Stop::After));
    let dying = world.server_on(Arc::clone(&stopping) as _);
    old.done(&leader.release());
    let reply = dying.call(&Ask::new("leader", "second").request());
    assert_ne!(reply.status, 200, "nobody heard of the new token");
    let raised = leader_record(&world, &dying);
    assert_eq!((raised.fence, raised.pins.len()), (Fence(2), 1), "{raised:?}");
    let third = world.server();
    let told = third.call(&fenced(Enqueue::new("jobs", "x").request(), leader.token));
    told.refused(409, "fence_failed");
    hold.let_go();
    let reply = old.runtime.block_on(sent).expect("an answer");
    assert_ne!(reply.status, 200, "{}", reply.text());
    assert!(!(way.is_done)(&third));
}

#[test]
fn a_crash_at_any_write_leaves_all_or_nothing_and_the_successor_is_not_hindered() {
    for kind in KINDS {
        for way in &WAYS {
            let mut seen = [false; 2];
            for stop in [Stop::Before, Stop::After] {
                for at in 0.. {
                    let world = World::new(kind);
                    let healthy = world.server();
                    let leader = lead(&healthy, "first");
                    let request = (way.prepare)(&healthy, leader.token);
                    drop(healthy);
                    let faulty = Arc::new(Faulty::new(Arc::clone(&world.store), at, stop));
                    let dying = world.server_on(Arc::clone(&faulty) as _);
                    let answered = dying.call(&request).status == 200;
                    let complete = !faulty.has_stopped();
                    drop(dying);
                    let what = format!("{kind:?}, {}, {stop:?} write {at}", way.name);
                    let server = world.server();
                    let successor = depose(&server, &leader);
                    assert_eq!(successor.token, leader.token + 1, "{what}");
                    let done = (way.is_done)(&server);
                    assert!(done || !answered, "{what}: what was answered is missing");
                    seen[usize::from(done)] = true;
                    server
                        .call(&fenced(data_of(&server), leader.token))
                        .refused(409, "fence_failed");
                    eventually("pins are gone", || leader_record(&world, &server).pins.is_empty());
                    if complete {
                        break;
                    }
                }
            }
            assert_eq!(seen, [true; 2], "{kind:?}, {}: both outcomes were seen", way.name);
        }
    }
}

/// A write that nothing but the condition stands in the way of.
fn data_of(server: &Inside) -> Request {
    server.acquire(&Ask::new("elsewhere", "o")).update("1").query("then", "release")
}

#[test]
fn pins_that_were_left_behind_make_room() {
    let world = World::new(Kind::Stepwise);
    let server = world.server();
    let leader = lead(&server, "first");
    drop(server);
    let restarted = world.server();
    let mut record = leader_record(&world, &restarted);
    let left = |id| Pin { id: PinId(id), targets: vec!["k/default/x".into()], over: false };
    record.pins = (0..PINS_MAX as u128).map(left).collect();
    let write = Write::Put(codec::encode(&record, BootId(0)));
    let op = Op { name: "k/default/leader".into(), expect: Expect::Any, write };
    restarted.runtime.block_on(world.store.commit(vec![op])).expect("written");
    let request = (WAYS[0].prepare)(&restarted, leader.token);
    restarted.done(&request);
    assert!((WAYS[0].is_done)(&restarted));
}

#[test]
fn a_condition_on_a_key_that_was_never_granted_holds_at_zero() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let held = data(&server);
        server.call(&fenced(held.commit("1"), 1)).refused(409, "fence_failed");
        server.done(&fenced(held.commit("1"), 0));
        assert_eq!(lead(&server, "first").token, 1, "{kind:?}");
        server.call(&fenced(held.commit("2"), 0)).refused(409, "fence_failed");
        assert_eq!(server.look(&Request::get(path::KEYS))["keys"][0]["key"], "data", "{kind:?}");
    }
}

#[test]
fn conditions_that_point_at_each_other_do_not_wait_for_each_other() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let (a, b) = (server.acquire(&Ask::new("a", "o")), server.acquire(&Ask::new("b", "o")));
        let on = |request: Request, other: &str| {
            request
                .header(header::FENCE_KEY, format!("default/{other}"))
                .header(header::FENCE_TOKEN, 1)
        };
        // Each keeps a condition on the other while it is written.
        server.done(&on(a.update("1"), "b"));
        server.done(&on(b.update("1"), "a"));
        let send = |request: &Request| {
            let (handler, request) = (server.handler.clone(), to_http(request));
            server.runtime.spawn(async move { ask(&handler, request).await })
        };
        let sent = [send(&on(a.release(), "b")), send(&on(b.release(), "a"))];
        for reply in sent {
            assert_eq!(server.runtime.block_on(reply).expect("an answer").status, 200, "{kind:?}");
        }
    }
}
