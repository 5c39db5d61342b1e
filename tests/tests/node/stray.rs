//! A controller on the same store that nobody has elected: started by mistake, it has the store
//! refuse the one that leads.

use std::process::{Command, Stdio};

use lockd_cloud::free_port;
use lockd_tests::{Client, Place, Request, within};
use serde_json::json;

use super::site::{Helper, Kind, Plan, SOON, Site, nothing, until_state};

/// Until it has opened the store; then it is killed.
fn intrude(site: &Site) {
    let listen = free_port();
    let mut command = Command::new(lockd_tests::binary::lockd());
    command.env_clear().env("HOME", site.home.path()).env("PATH", "/usr/bin:/bin");
    command.args(["controller", "--lease-ttl", "8s", "--listen", &listen.to_string(), "--store"]);
    command.arg(site.store.url(site.store.address()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut stray = command.spawn().expect("a controller");
    within(SOON, "the other one leads too", || {
        let role = Client::new(&Place::Tcp(listen)).try_call(&Request::get("/role"));
        role.is_ok_and(|role| role.json()["role"] == "LEADER")
    });
    stray.kill().expect("killed");
    stray.wait().expect("gone");
}

fn the_node_notices_and_work_goes_on(lock: Kind, store: Kind) {
    let plan = Plan { moonlight: false, lock_ttl: "4s", lease_ttl: "8s", ..Plan::default() };
    let site = Site::start(lock, store, 2, &plan);
    let _agent = Helper::start(&site);
    let leader = &site.nodes[site.leader()];
    let epoch = leader.epoch();
    // It has one attempt: whoever ends it has lost it.
    let job = json!({"command": ["sh", "-c", "sleep 4; echo done"], "max_attempts": 1});
    let id = leader.submit(&job)["id"].as_str().expect("an id").to_owned();
    until_state(leader, &id, "leased");
    intrude(&site);
    within(SOON, "changes are accepted under a later epoch", || {
        site.nodes.iter().any(|node| {
            let reply = node.try_call(&Request::post("/v1/jobs").json(&nothing()));
            let kept = reply.filter(|reply| reply.status == 201);
            kept.is_some_and(|kept| kept.json()["leader_epoch"].as_u64() > Some(epoch + 1))
        })
    });
    let done = until_state(&site.nodes[site.leader()], &id, "succeeded");
    assert_eq!((&done["job_epoch"], &done["result"]["output"]), (&json!(1), &json!("done\n")));
}

#[test]
fn a_store_that_refuses_its_leader_is_opened_anew_on_lockd() {
    the_node_notices_and_work_goes_on(Kind::Redis, Kind::Lockd);
}

#[test]
fn a_store_that_refuses_its_leader_is_opened_anew_on_postgres() {
    the_node_notices_and_work_goes_on(Kind::Etcd, Kind::Postgres);
}
