//! One transfer between two accounts, and everything that can come between: the store stops at
//! each single write, leases run out, others join too late, records are missing. On stores that
//! write several records at once, and on one that cannot.

use std::sync::Arc;

use lockd_core::time::{BootId, Span};
use lockd_store::faulty::{Faulty, Stop};
use lockd_store::{Expect, Name, Op, Write};
use lockd_tests::http::Reply;
use lockd_tests::inside::Inside;
use lockd_tests::world::{KINDS, Kind, World};
use lockd_tests::{Ask, Held, Request, eventually};
use lockd_wire::path;
use serde_json::{Value, json};

const TXN: &str = "abcdefghij0123456780";
const TTL_MS: u64 = 10_000;

/// Two accounts with a hundred each, in two namespaces.
fn with_accounts(kind: Kind) -> World {
    let world = World::new(kind);
    let server = world.server();
    for namespace in ["bank", "vault"] {
        let held = server.acquire(&ask(namespace, None));
        server.done(&held.update(document(100)).query("then", "release"));
    }
    world
}

fn document(balance: i64) -> String {
    json!({ "balance": balance }).to_string()
}

fn ask(namespace: &str, txn: Option<&str>) -> Ask {
    let ask = Ask::new("account", "teller").ttl_ms(TTL_MS).field("namespace", namespace);
    match txn {
        Some(txn) => ask.field("txn_id", txn),
        None => ask,
    }
}

/// Both balances as of one moment.
fn balances(server: &Inside) -> (i64, i64) {
    let read = json!({"keys": ["bank/account", "vault/account"], "full_names": true});
    let reply = server.call(&Request::post(path::READ).json(&read)).ok().json();
    let balance = |index: usize| reply["entries"][index]["state"]["balance"].as_i64().expect("one");
    (balance(0), balance(1))
}

/// Acquire both, stage both, release one. How far it came.
fn transfer(server: &Inside) -> Result<(), Reply> {
    let granted =
        |reply: Reply| if reply.status == 200 { Ok(Held::of(&reply)) } else { Err(reply) };
    let done = |reply: Reply| if reply.status == 200 { Ok(()) } else { Err(reply) };
    let from = granted(server.call(&ask("bank", Some(TXN)).request()))?;
    let to = granted(server.call(&ask("vault", Some(TXN)).request()))?;
    done(server.call(&from.update(document(90))))?;
    done(server.call(&to.update(document(110))))?;
    done(server.call(&from.release()))
}

const BEFORE: (i64, i64) = (100, 100);
const AFTER: (i64, i64) = (90, 110);

#[test]
fn a_crash_at_any_write_leaves_all_of_a_transfer_or_nothing() {
    for kind in KINDS {
        let mut seen = (0, 0);
        for stop in [Stop::Before, Stop::After] {
            for at in 0.. {
                let world = with_accounts(kind);
                let faulty = Arc::new(Faulty::new(Arc::clone(&world.store), at, stop));
                let dying = world.server_on(Arc::clone(&faulty) as _);
                let answered = transfer(&dying);
                let complete = !faulty.has_stopped();
                drop(dying);
                check(&world, answered.is_ok(), at, &mut seen);
                if complete {
                    assert!(at > 3, "{kind:?}: the transfer takes several writes");
                    break;
                }
            }
        }
        assert!(seen.0 > 0 && seen.1 > 0, "{kind:?}: both outcomes were seen: {seen:?}");
    }
}

/// After a crash: nothing half, before and after the leases have run out.
fn check(world: &World, answered: bool, at: u64, seen: &mut (u32, u32)) {
    let what = format!("{:?}, write {at}, answered: {answered}", world.kind);
    world.clock.restart(BootId(1));
    let server = world.server();
    let first = balances(&server);
    assert!(first == BEFORE || first == AFTER, "{what}: {first:?}");
    assert!(!answered || first == AFTER, "{what}: a commit that was answered is missing");
    world.clock.advance(Span(TTL_MS + 1));
    for namespace in ["bank", "vault"] {
        let held = server.acquire(&ask(namespace, None));
        let own = server.call(&held.get()).ok().json()["balance"].as_i64().expect("one");
        let expected = if namespace == "bank" { first.0 } else { first.1 };
        assert_eq!(own, expected, "{what}: what was seen stays");
        server.done(&held.release());
    }
    assert_eq!(balances(&server), first, "{what}");
    if first == AFTER { seen.1 += 1 } else { seen.0 += 1 }
}

fn record(server: &Inside) -> Value {
    server.look(&Request::get(&format!("/v1/txns/{TXN}")))
}

#[test]
fn a_key_takes_part_from_its_grant_on() {
    for kind in KINDS {
        let world = with_accounts(kind);
        let server = world.server();
        server.acquire(&ask("bank", Some(TXN)));
        let first = record(&server);
        assert_eq!(first["state"], "pending");
        assert_eq!(first["participants"], json!([{"namespace": "bank", "key": "account"}]));
        let other = server.acquire(&ask("vault", Some(TXN)));
        server.done(&other.release());
        let last = record(&server);
        assert_eq!(
            (&last["state"], &last["participants"][0]["applied"]),
            (&json!("commit"), &json!(true))
        );
    }
}

#[test]
fn a_lease_alone_has_no_record_until_a_second_key_joins() {
    for kind in KINDS {
        let world = with_accounts(kind);
        let server = world.server();
        let first = server.acquire(&ask("bank", None));
        server.done(&first.update(document(90)));
        assert_eq!(server.look(&Request::get(path::TXNS))["txns"], json!([]), "{kind:?}");
        let second = server.acquire(&ask("vault", Some(&first.txn)));
        let txns = server.look(&Request::get(path::TXNS));
        assert_eq!(txns["txns"][0]["txn_id"], first.txn, "{kind:?}");
        // The second has nothing staged, and decides for both.
        server.done(&second.release());
        assert_eq!(balances(&server), (90, 100), "{kind:?}");
    }
}

#[test]
fn the_first_of_two_leases_of_different_length_rolls_all_back() {
    for kind in KINDS {
        let world = with_accounts(kind);
        let server = world.server();
        server.acquire(&ask("bank", Some(TXN)));
        let long = server.acquire(&ask("vault", Some(TXN)).ttl_ms(10 * TTL_MS));
        server.done(&long.update(document(110)));
        world.clock.advance(Span(TTL_MS));
        eventually("the transaction is rolled back", || record(&server)["state"] == "rollback");
        assert_eq!(record(&server)["reason"], "lapsed");
        server.call(&long.release()).refused(403, "lease_expired");
        server.call(&long.update(document(1))).refused(403, "lease_expired");
        assert_eq!(balances(&server), BEFORE);
    }
}

#[test]
fn a_joiner_after_the_decision_is_refused() {
    for kind in KINDS {
        let world = with_accounts(kind);
        let server = world.server();
        let held = server.acquire(&ask("bank", Some(TXN)));
        server.done(&held.release());
        server.call(&ask("vault", Some(TXN)).request()).refused(409, "txn_conflict");
        // And so is a write that comes late.
        server.call(&held.update(document(1))).refused(403, "lease_required");
    }
}

#[test]
fn staged_data_of_a_transaction_without_a_record_was_rolled_back() {
    for kind in KINDS {
        let world = with_accounts(kind);
        let server = world.server();
        let held = server.acquire(&ask("bank", Some(TXN)));
        server.done(&held.update(document(1)));
        let name: Name = format!("t/{TXN}").into();
        let op = Op { name, expect: Expect::Any, write: Write::Delete };
        server.runtime.block_on(world.store.commit(vec![op])).expect("a write");
        server.call(&held.release()).refused(403, "lease_expired");
        assert_eq!(balances(&server), BEFORE);
        assert_eq!(server.acquire(&ask("bank", None)).token, held.token + 1);
    }
}

#[test]
fn a_second_key_joins_a_lease_at_the_moment_of_its_release_or_too_late() {
    let mut outcomes = (0, 0);
    for kind in [Kind::Memory, Kind::Stepwise] {
        let world = with_accounts(kind);
        let server = Arc::new(world.server());
        for round in 0..200_i64 {
            let first = server.acquire(&ask("bank", None));
            server.done(&first.update(document(round)));
            let release = std::thread::spawn({
                let (server, first) = (Arc::clone(&server), first.clone());
                move || server.call(&first.release()).ok().status
            });
            let second = server.call(&ask("vault", Some(&first.txn)).request());
            release.join().expect("released");
            assert_eq!(balances(&server).0, round, "its own release commits it in any case");
            match second.status {
                // Refused: the lease it wanted to join was over.
                409 => assert_eq!(second.code(), "txn_conflict"),
                _ => {
                    let second = Held::of(&second);
                    let joined = server.call(&second.keepalive(TTL_MS)).status != 200;
                    if joined {
                        outcomes.0 += 1;
                        server.done(&second.release());
                    } else {
                        outcomes.1 += 1;
                        server.done(&second.rollback());
                    }
                }
            }
            // Whatever happened, both are free again.
            server.done(&server.acquire(&ask("vault", None)).release());
        }
    }
    println!("joined {} times, too late {} times", outcomes.0, outcomes.1);
}

#[test]
fn what_is_decided_is_forgotten_after_a_while_and_not_before() {
    let world = with_accounts(Kind::Memory);
    let server = world.server();
    let held = server.acquire(&ask("bank", Some(TXN)));
    server.done(&held.release());
    drop(server);
    let restarted = world.server();
    assert_eq!(record(&restarted)["state"], "commit");
    drop(restarted);
    world.clock.advance(Span::secs(25 * 3_600));
    let later = world.server();
    eventually("the record is removed", || {
        let gone = later.call(&Request::get(&format!("/v1/txns/{TXN}")));
        gone.says() == (404, "txn_not_found".to_owned())
    });
}

#[test]
fn a_coordinator_decides_in_the_place_of_the_holders() {
    for kind in KINDS {
        let world = with_accounts(kind);
        let server = world.server();
        let decide = |state: &str, more: Value| {
            let mut body = json!({"txn_id": TXN, "state": state});
            body.as_object_mut()
                .expect("an object")
                .extend(more.as_object().cloned().expect("one"));
            server.call(&Request::post(path::TXN_DECIDE).json(&body))
        };
        let apply = |path: &str| server.call(&Request::post(path).json(&json!({"txn_id": TXN})));
        decide("commit", json!({})).refused(404, "txn_not_found");
        decide("maybe", json!({})).refused(400, "invalid_state");
        decide("commit", json!({"txn_id": ""})).refused(400, "missing_txn_id");
        decide("commit", json!({"txn_id": "t-1"})).refused(400, "invalid_txn_id");
        // A lease of its own takes part when the coordinator names its key.
        let held = server.acquire(&ask("bank", None));
        server.done(&held.update(document(5)));
        let txn = held.txn.clone();
        let named =
            json!({"txn_id": txn, "participants": [{"namespace": "bank", "key": "account"}]});
        let elsewhere = json!({"participants": [{"key": "account", "backend_hash": "0a"}]});
        decide("pending", elsewhere).refused(409, "txn_backend_mismatch");
        assert_eq!(decide("pending", named).ok().json()["state"], "pending");
        let commit = Request::post(path::TXN_COMMIT).json(&json!({"txn_id": txn}));
        server.call(&commit).refused(409, "txn_pending");
        let decided = Request::post(path::TXN_DECIDE)
            .json(&json!({"txn_id": txn, "state": "COMMIT", "tc_term": 7}));
        assert_eq!(server.call(&decided).ok().json()["state"], "commit");
        assert_eq!(balances(&server), (5, 100));
        assert_eq!(server.call(&commit).says().1, "tc_term_required");
        let stale = json!({"txn_id": txn, "state": "commit", "tc_term": 6});
        server.call(&Request::post(path::TXN_DECIDE).json(&stale)).refused(409, "tc_term_stale");
        let other = json!({"txn_id": txn, "state": "rollback", "tc_term": 8});
        server.call(&Request::post(path::TXN_DECIDE).json(&other)).refused(409, "txn_conflict");
        server.done(&held.release());
        apply(path::TXN_REPLAY).refused(404, "txn_not_found");
        let replay = Request::post(path::TXN_REPLAY).json(&json!({"txn_id": txn}));
        assert_eq!(server.call(&replay).ok().json()["state"], "commit");
    }
}
