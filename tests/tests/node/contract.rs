//! What a pair of nodes promises, over every lock: one leader at a time under an epoch that grows,
//! changes on it alone, and nothing accepted of a leader or an attempt that is over.

use lockd_tests::{Client, Place, Reply, Request, eventually};
use serde_json::{Value, json};

use super::site::{Kind, Node, Plan, SOON, Site, nothing};

fn contract(lock: Kind, store: Kind) {
    // The test is the agent, so that it sees every number.
    let plan = Plan { moonlight: false, lock_ttl: "4s", lease_ttl: "8s", ..Plan::default() };
    let mut site = Site::start(lock, store, 2, &plan);
    a_standby_refuses_changes_and_names_the_leader(&site);
    work_of_an_attempt_that_is_over_is_refused(&site);
    one_leads_at_a_time_under_an_epoch_that_grows(&mut site);
    results_under_a_leader_that_is_over_are_refused(&mut site);
}

#[test]
fn the_contract_over_lockd() {
    contract(Kind::Lockd, Kind::Lockd);
}

#[test]
fn the_contract_over_postgres() {
    contract(Kind::Postgres, Kind::Postgres);
}

#[test]
fn the_contract_over_etcd() {
    contract(Kind::Etcd, Kind::Postgres);
}

#[test]
fn the_contract_over_redis() {
    contract(Kind::Redis, Kind::Lockd);
}

/// Every way to change something.
fn changes() -> Vec<Request> {
    let json = |path: &str, body: &Value| Request::post(path).json(body);
    let claim = json!({"job_id": "j", "job_epoch": 1, "leader_epoch": 1});
    let result = json!({"lease_id": "l", "job_id": "j", "job_epoch": 1, "leader_epoch": 1,
        "agent": "x", "success": true});
    vec![
        json("/v1/jobs", &nothing()),
        Request::new("DELETE", "/v1/jobs/j"),
        json("/v1/leases", &json!({"agent": "x"})),
        json("/v1/leases/l/renew", &claim),
        json("/v1/leases/l/release", &claim),
        json("/v1/results", &result),
        Request::new("DELETE", "/v1/agents/x"),
    ]
}

fn a_standby_refuses_changes_and_names_the_leader(site: &Site) {
    let (leader, standby) = site.two();
    let epoch = leader.epoch();
    eventually("the standby knows the leader", || {
        standby.role()["leader_id"] == leader.id.as_str()
    });
    let behind = Place::Tcp(standby.controller);
    eventually("its controller too", || {
        let role = Client::new(&behind).try_call(&Request::get("/role"));
        role.is_ok_and(|role| role.json()["leader_id"] == leader.id.as_str())
    });
    for request in changes() {
        // At the front, and at the controller itself: both refuse.
        for reply in [standby.call(&request), Client::new(&behind).call(&request)] {
            assert_eq!(reply.status, 409, "{} {}: {}", request.method, request.path, reply.text());
            let expected = json!({
                "error": "NOT_LEADER",
                "leader_id": leader.id,
                "leader_url": format!("http://{}", leader.front),
                "leader_epoch": epoch,
                "node_id": standby.id,
                "role": "STANDBY",
            });
            assert_eq!(reply.json(), expected);
        }
    }
    // It is hot for questions, and says what it is with each.
    let kept = leader.post("/v1/jobs", &nothing());
    assert_eq!(kept.status, 201, "{}", kept.text());
    let job = format!("/v1/jobs/{}", kept.json()["id"].as_str().expect("an id"));
    for path in [job.as_str(), "/v1/jobs", "/v1/agents", "/role"] {
        let reply = standby.get(path).ok();
        says_what_it_is(&reply, standby, "STANDBY", leader, epoch);
        says_what_it_is(&leader.get(path).ok(), leader, "LEADER", leader, epoch);
    }
    let staleness = standby.get(&job).header("x-staleness-ms").map(str::parse::<u64>);
    assert!(matches!(staleness, Some(Ok(0..5_000))), "{staleness:?}");
    leader.call(&Request::new("DELETE", &job)).ok();
    assert_eq!((leader.get("/leader").status, leader.get("/standby").status), (200, 503));
    assert_eq!((standby.get("/leader").status, standby.get("/standby").status), (503, 200));
}

fn says_what_it_is(reply: &Reply, node: &Node, role: &str, leader: &Node, epoch: u64) {
    assert_eq!(reply.header("x-node-id"), Some(node.id.as_str()));
    assert_eq!(reply.header("x-role"), Some(role));
    assert_eq!(reply.header("x-leader-id"), Some(leader.id.as_str()));
    assert_eq!(reply.header("x-leader-epoch"), Some(epoch.to_string().as_str()));
}

/// A job, given to an agent of this name.
fn work(leader: &Node, agent: &str) -> Value {
    let ask = json!({"agent": agent, "incarnation": agent, "request_id": format!("{agent}-1"),
        "wait_seconds": 20});
    let granted = leader.post("/v1/leases", &ask);
    assert_eq!(granted.status, 200, "{}", granted.text());
    granted.json()
}

fn claim(grant: &Value) -> Value {
    json!({"job_id": grant["job_id"], "job_epoch": grant["job_epoch"],
        "leader_epoch": grant["leader_epoch"]})
}

fn renew(node: &Node, grant: &Value) -> Reply {
    let lease = grant["lease_id"].as_str().expect("a lease");
    node.post(&format!("/v1/leases/{lease}/renew"), &claim(grant))
}

fn report(node: &Node, grant: &Value) -> Reply {
    let mut report = claim(grant);
    report["lease_id"] = grant["lease_id"].clone();
    report["agent"] = json!("x");
    report["success"] = json!(true);
    node.post("/v1/results", &report)
}

fn work_of_an_attempt_that_is_over_is_refused(site: &Site) {
    let (leader, _) = site.two();
    leader.submit(&json!({"command": ["true"], "max_attempts": 9}));
    let first = work(leader, "first");
    assert_eq!(first["job_epoch"], 1);
    assert_eq!(renew(leader, &first).status, 200);
    let mut wrong = first.clone();
    wrong["job_epoch"] = json!(7);
    renew(leader, &wrong).refused(409, "STALE_EPOCH");
    report(leader, &wrong).refused(409, "STALE_EPOCH");
    // Nobody renews it any more: another has it.
    let second = work(leader, "second");
    assert_eq!((&second["job_id"], second["job_epoch"].as_u64()), (&first["job_id"], Some(2)));
    renew(leader, &first).refused(409, "STALE_EPOCH");
    report(leader, &first).refused(409, "STALE_EPOCH");
    let kept = report(leader, &second).ok().json();
    assert_eq!(kept["state"], "succeeded");
    // Its answer was lost: the same again.
    assert_eq!(report(leader, &second).ok().json(), kept);
    report(leader, &first).refused(409, "STALE_EPOCH");
}

fn one_leads_at_a_time_under_an_epoch_that_grows(site: &mut Site) {
    let mut latest = 0;
    for round in 0..3 {
        let leader = site.leader();
        let epoch = site.nodes[leader].epoch();
        assert!(epoch > latest, "{epoch} after {latest}");
        latest = epoch;
        let other = &site.nodes[1 - leader];
        assert!(!other.leads(), "two lead");
        eventually("the other one knows", || other.role()["leader_epoch"] == epoch);
        if round < 2 {
            let node = &mut site.nodes[leader];
            node.kill();
            let next = site.leader_after(leader);
            assert_ne!(next, leader);
            site.nodes[leader].start();
            // Back again, it follows.
            let back = &site.nodes[leader];
            eventually("it is back", || back.role()["leader_id"] == site.nodes[next].id.as_str());
            assert!(!back.leads());
        }
    }
}

fn results_under_a_leader_that_is_over_are_refused(site: &mut Site) {
    let before = site.leader();
    let leader = &site.nodes[before];
    leader.submit(&json!({"command": ["true"], "timeout_seconds": 600}));
    let grant = work(leader, "x");
    // Cut off from its lock, it ends its leadership by its own clock.
    leader.lock.cut();
    let after = site.leader_after(before);
    let (old, new) = (&site.nodes[before], &site.nodes[after]);
    eventually("the old one knows that it is over", || old.role()["role"] == "STANDBY");
    assert_eq!(report(old, &grant).says(), (409, "NOT_LEADER".into()));
    let behind = Place::Tcp(old.controller);
    let mut late = claim(&grant);
    late["lease_id"] = grant["lease_id"].clone();
    (late["agent"], late["success"]) = (json!("x"), json!(true));
    let late = Request::post("/v1/results").json(&late);
    eventually("its controller too", || {
        let role = Client::new(&behind).try_call(&Request::get("/role"));
        role.is_ok_and(|role| role.json()["role"] == "STANDBY")
    });
    assert_eq!(Client::new(&behind).call(&late).says(), (409, "NOT_LEADER".into()));
    // The new leader has confirmed the attempt under its own epoch, and only that counts.
    let refused = report(new, &grant);
    refused.refused(409, "STALE_EPOCH");
    let told = refused.json();
    assert_eq!(told["job_epoch"], grant["job_epoch"]);
    assert_eq!(told["leader_epoch"], new.epoch());
    renew(new, &grant).refused(409, "STALE_EPOCH");
    let mut confirmed = grant.clone();
    confirmed["leader_epoch"] = told["leader_epoch"].clone();
    assert_eq!(renew(new, &confirmed).status, 200);
    assert_eq!(report(new, &confirmed).ok().json()["state"], "succeeded");
    let wrong = json!({"command": ["true"], "leader_epoch": grant["leader_epoch"]});
    new.post("/v1/jobs", &wrong).refused(409, "STALE_EPOCH");
    old.lock.mend();
    lockd_tests::within(SOON, "the old one follows", || old.role()["leader_id"] == new.id.as_str());
}
