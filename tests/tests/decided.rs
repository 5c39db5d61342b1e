//! Decisions that come late, again, or about a transaction that no key takes part in. A rollback
//! of one that is unknown is a decision: it can be neither joined nor committed afterwards. On
//! stores that write several records at once, and on one that cannot.

use std::sync::Arc;

use lockd_core::time::Span;
use lockd_store::faulty::{Faulty, Stop};
use lockd_tests::http::Reply;
use lockd_tests::inside::{Inside, ask, to_http};
use lockd_tests::lease::public_get;
use lockd_tests::queue::{Enqueue, dequeue};
use lockd_tests::world::{KINDS, Kind, World};
use lockd_tests::{Ask, Held, Request, eventually};
use lockd_wire::{header, path};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const TXN: &str = "abcdefghij0123456780";
const TTL_MS: u64 = 10_000;

fn decide(state: &str) -> Request {
    Request::post(path::TXN_DECIDE).json(&json!({"txn_id": TXN, "state": state}))
}

fn order(path: &str) -> Request {
    Request::post(path).json(&json!({"txn_id": TXN}))
}

/// A key that joins the transaction.
fn join(key: &str) -> Request {
    Ask::new(key, "late").ttl_ms(TTL_MS).field("txn_id", TXN).request()
}

fn record(server: &Inside) -> Value {
    server.look(&Request::get(&format!("/v1/txns/{TXN}")))
}

fn document(server: &Inside, key: &str) -> Option<String> {
    let reply = server.call(&public_get(key));
    (reply.status == 200).then(|| reply.text())
}

fn send(server: &Inside, request: &Request) -> JoinHandle<Reply> {
    let (handler, request) = (server.handler.clone(), to_http(request));
    server.runtime.spawn(async move { ask(&handler, request).await })
}

/// Neither joined nor committed, however it is tried.
#[track_caller]
fn assert_closed(server: &Inside, what: &str) {
    let enqueue = Enqueue::new("jobs", "x").field("txn_id", TXN).request();
    for request in [join("data"), enqueue, decide("commit"), decide("pending")] {
        let reply = server.call(&request);
        let body = request.body.as_deref().map(String::from_utf8_lossy);
        let said = reply.says();
        if request.path == path::TXN_DECIDE && said.0 == 200 {
            assert_eq!(reply.json()["state"], "rollback", "{what}: {body:?}");
        } else {
            assert_eq!(said, (409, "txn_conflict".to_owned()), "{what}: {body:?}");
        }
    }
    let participant = json!([{"namespace": "default", "key": "data"}]);
    let commit = json!({"txn_id": TXN, "state": "commit", "participants": participant});
    for path in [path::TXN_DECIDE, path::TXN_COMMIT] {
        let reply = server.call(&Request::post(path).json(&commit));
        assert_eq!(reply.says(), (409, "txn_conflict".to_owned()), "{what}: commit by {path}");
    }
    server.done(&Enqueue::new("work", "x").request());
    let taken = server.call(&dequeue("work", &json!({"txn_id": TXN})));
    assert_eq!(taken.says(), (409, "txn_conflict".to_owned()), "{what}: dequeue");
    assert_eq!(record(server)["state"], "rollback", "{what}");
    assert_eq!(document(server, "data"), None, "{what}");
}

#[test]
fn a_rollback_of_an_unknown_transaction_is_a_decision() {
    for kind in KINDS {
        for rollback in [decide("rollback"), order(path::TXN_ROLLBACK)] {
            let what = format!("{kind:?}, {}", rollback.path);
            let world = World::new(kind);
            let server = world.server();
            for time in ["first", "again"] {
                let reply = server.call(&rollback);
                assert_eq!(reply.status, 200, "{what}, {time}: {}", reply.text());
                let expected = json!({"txn_id": TXN, "state": "rollback", "unknown": true});
                assert_eq!(reply.json(), expected, "{what}, {time}");
            }
            assert_closed(&server, &what);
            assert_eq!(record(&server)["reason"], "asked", "{what}");
            drop(server);
            let restarted = world.server();
            assert_closed(&restarted, &format!("{what}, after a restart"));
            restarted.done(&rollback);
        }
    }
}

#[test]
fn a_commit_of_an_unknown_transaction_is_none() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        for commit in [decide("commit"), order(path::TXN_COMMIT), order(path::TXN_REPLAY)] {
            server.call(&commit).refused(404, "txn_not_found");
        }
        server.call(&decide("pending")).refused(404, "txn_not_found");
        // Nothing was recorded by asking.
        let held = Held::of(&server.call(&join("data")));
        server.done(&held.update("1"));
        server.done(&held.release());
        assert_eq!(document(&server, "data").as_deref(), Some("1"), "{kind:?}");
    }
}

#[test]
fn a_rollback_of_an_unknown_transaction_is_forgotten_after_the_retention() {
    for kind in KINDS {
        let world = World::new(kind);
        world.server().done(&decide("rollback"));
        world.clock.advance(Span::secs(23 * 3_600));
        assert_closed(&world.server(), "a day is not over");
        world.clock.advance(Span::secs(2 * 3_600));
        let later = world.server();
        eventually("the record is removed", || {
            let gone = later.call(&Request::get(&format!("/v1/txns/{TXN}")));
            gone.says() == (404, "txn_not_found".to_owned())
        });
        let listed = later.look(&Request::get(path::TXNS));
        assert_eq!(listed["txns"], json!([]), "{kind:?}: nothing is left of it");
    }
}

#[test]
fn a_rollback_under_a_fence_that_fails_closes_nothing() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let leader = server.acquire(&Ask::new("leader", "one").ttl_ms(TTL_MS));
        let fenced = |token: u64| {
            let request = decide("rollback").header(header::FENCE_KEY, "default/leader");
            request.header(header::FENCE_TOKEN, token)
        };
        server.call(&fenced(leader.token + 1)).refused(409, "fence_failed");
        server.call(&Request::get(&format!("/v1/txns/{TXN}"))).refused(404, "txn_not_found");
        server.done(&fenced(leader.token));
        assert_closed(&server, &format!("{kind:?}"));
    }
}

#[test]
fn of_a_join_and_a_rollback_at_the_same_moment_one_wins() {
    for kind in KINDS {
        // The rollback is on its way to the store when the key joins.
        let what = format!("{kind:?}, the rollback first");
        let world = World::new(kind);
        let faulty = Arc::new(Faulty::steady(Arc::clone(&world.store)));
        let (one, two) = (world.server_on(Arc::clone(&faulty) as _), world.server());
        let hold = faulty.hold_next("t/");
        let rollback = send(&one, &decide("rollback"));
        one.runtime.block_on(hold.reached());
        let joined = two.call(&join("data"));
        hold.let_go();
        let rolled_back = one.runtime.block_on(rollback).expect("an answer");
        assert_eq!(rolled_back.status, 200, "{what}: {}", rolled_back.text());
        assert_one_won(&two, &what, &joined);

        // The join is on its way to the store when the rollback comes.
        let what = format!("{kind:?}, the join first");
        let world = World::new(kind);
        let faulty = Arc::new(Faulty::steady(Arc::clone(&world.store)));
        let (one, two) = (world.server_on(Arc::clone(&faulty) as _), world.server());
        let hold = faulty.hold_next("t/");
        let joining = send(&one, &join("data"));
        one.runtime.block_on(hold.reached());
        two.done(&decide("rollback"));
        hold.let_go();
        let joined = one.runtime.block_on(joining).expect("an answer");
        assert_one_won(&one, &what, &joined);
    }
}

/// A key that joined was rolled back with its transaction; one that did not has no lease.
#[track_caller]
fn assert_one_won(server: &Inside, what: &str, joined: &Reply) {
    if joined.status == 200 {
        let held = Held::of(joined);
        let staged = server.call(&held.update("1"));
        let released = server.call(&held.release());
        assert_ne!(released.status, 200, "{what}: {} {}", staged.text(), released.text());
    } else {
        assert_eq!(joined.says(), (409, "txn_conflict".to_owned()), "{what}");
    }
    assert_closed(server, what);
    let free = server.acquire(&Ask::new("data", "next").ttl_ms(TTL_MS));
    server.done(&free.release());
}

#[test]
fn a_crash_at_any_write_of_a_rollback_leaves_all_or_nothing() {
    for kind in KINDS {
        for stop in [Stop::Before, Stop::After] {
            for at in 0.. {
                let what = format!("{kind:?}, {stop:?} write {at}");
                let world = World::new(kind);
                // What a server writes when it first starts is not of interest.
                drop(world.server());
                let faulty = Arc::new(Faulty::new(Arc::clone(&world.store), at, stop));
                let dying = world.server_on(Arc::clone(&faulty) as _);
                let answered = dying.call(&decide("rollback")).status == 200;
                let complete = !faulty.has_stopped();
                drop(dying);
                let server = world.server();
                let known = server.call(&Request::get(&format!("/v1/txns/{TXN}"))).status == 200;
                assert!(known || !answered, "{what}: what was answered is missing");
                server.done(&decide("rollback"));
                assert_closed(&server, &what);
                if complete {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_rollback_reaches_the_only_key_of_a_transaction_that_has_no_record() {
    for kind in KINDS {
        let world = World::new(kind);
        let server = world.server();
        let held = server.acquire(&Ask::new("data", "alone").ttl_ms(TTL_MS));
        server.done(&held.update("1"));
        let rollback = json!({"txn_id": held.txn, "state": "rollback"});
        let reply = server.call(&Request::post(path::TXN_DECIDE).json(&rollback)).ok().json();
        assert_eq!(reply, json!({"txn_id": held.txn, "state": "rollback"}), "{kind:?}");
        assert_ne!(server.call(&held.release()).status, 200, "{kind:?}");
        assert_eq!(document(&server, "data"), None, "{kind:?}");
    }
}

#[test]
fn a_decision_that_comes_again_changes_nothing() {
    let world = World::new(Kind::Memory);
    let server = world.server();
    let held = Held::of(&server.call(&join("data")));
    server.done(&held.update("1"));
    server.done(&decide("commit"));
    server.done(&decide("commit"));
    server.call(&decide("rollback")).refused(409, "txn_conflict");
    server.call(&order(path::TXN_ROLLBACK)).refused(409, "txn_conflict");
    assert_eq!(document(&server, "data").as_deref(), Some("1"));
}
