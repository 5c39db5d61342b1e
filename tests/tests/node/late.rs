//! The leader that wakes up: it has decided to write, and stops before that reaches the store.
//! Another leads and writes meanwhile. The store refuses what comes late.

use lockd_tests::{Client, Request, within};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::site::{Kind, Plan, SOON, Site};

fn a_late_write_is_refused_by_the_store(lock: Kind, store: Kind) {
    let plan = Plan { moonlight: false, ..Plan::default() };
    let site = Site::start(lock, store, 2, &plan);
    let before = site.leader();
    let old = &site.nodes[before];
    let kept = old.submit(&json!({"command": ["true"], "priority": 1}));
    let id = kept["id"].as_str().expect("an id").to_owned();
    let grant = old.post("/v1/leases", &json!({"agent": "x", "request_id": "1"})).ok().json();
    assert_eq!(grant["job_id"], id.as_str());
    // Its result is on the way to the store when everything of the node stops.
    old.store.cut_at("late-late-late");
    let report = json!({"lease_id": grant["lease_id"], "job_id": id, "agent": "x",
        "job_epoch": grant["job_epoch"], "leader_epoch": grant["leader_epoch"], "success": false,
        "output": "late-late-late"});
    let place = old.place();
    let asked = std::thread::spawn(move || {
        Client::new(&place).try_call(&Request::post("/v1/results").json(&report))
    });
    within(SOON, "the write is under way", || old.store.is_cut());
    old.signal_all(Signal::STOP);
    let after = site.leader_after(before);
    let new = &site.nodes[after];
    assert!(new.epoch() > grant["leader_epoch"].as_u64().expect("an epoch"));
    // The same job, by the new leader: cancelled, and so are its numbers.
    new.call(&Request::new("DELETE", &format!("/v1/jobs/{id}"))).ok();
    let cancelled = new.get(&format!("/v1/jobs/{id}")).ok().json();
    assert_eq!(cancelled["state"], "cancelled");
    // It wakes up, and what it had decided arrives.
    old.store.mend();
    old.signal_all(Signal::CONT);
    let reply = asked.join().expect("a thread");
    let told = reply.as_ref().map(|reply| (reply.status, reply.json()["error"].clone()));
    match told {
        Ok((409, error)) => assert_eq!(error, json!("STALE_EPOCH")),
        // The front had given it up before the store's answer came.
        Ok((503, _)) | Err(_) => {}
        other => panic!("a late write was answered with {other:?}"),
    }
    within(SOON, "the old one follows", || {
        let role = old.role();
        role["role"] == "STANDBY" && role["leader_id"] == new.id.as_str()
    });
    within(SOON, "the store has answered the late write", || old.store.is_answered());
    let kept: Value = new.get(&format!("/v1/jobs/{id}")).ok().json();
    assert_eq!(kept, cancelled, "the late write has changed something");
    // Its controller may have been started again.
    within(SOON, "the old one shows the same", || {
        old.try_call(&Request::get(&format!("/v1/jobs/{id}")))
            .is_some_and(|reply| reply.status == 200 && reply.json() == cancelled)
    });
}

#[test]
fn a_late_write_is_refused_by_lockd() {
    a_late_write_is_refused_by_the_store(Kind::Postgres, Kind::Lockd);
}

#[test]
fn a_late_write_is_refused_by_postgres() {
    a_late_write_is_refused_by_the_store(Kind::Lockd, Kind::Postgres);
}
