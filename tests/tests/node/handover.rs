//! Handing over and taking over: how long it takes, and what is left behind.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockd_tests::{Client, Reply, Request, within};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::site::{Kind, Node, Plan, SOON, Site, is_there, nothing, until_state};

/// What one client of a kind has met.
#[derive(Debug, Default)]
struct Met {
    done: usize,
    /// The longest time that one thing took, from its first try to the one that was accepted, at
    /// each hand-over.
    longest: BTreeMap<usize, Duration>,
}

impl Met {
    /// Of all hand-overs but the longest: a machine that stalls once is not what is measured.
    fn but_one(&self) -> Duration {
        let mut all: Vec<Duration> = self.longest.values().copied().collect();
        all.sort();
        all[all.len() - 2]
    }
}

const OVER: usize = usize::MAX;

/// Does one thing again and again, at whichever node takes it, until the end.
fn keep_doing(
    site: &Site,
    round: &AtomicUsize,
    mut thing: impl FnMut(&mut dyn FnMut(&Request) -> Option<Reply>) -> bool,
) -> Met {
    let mut clients: Vec<Client> =
        site.nodes.iter().map(|node| Client::new(&node.place())).collect();
    let mut at = 0;
    let mut met = Met::default();
    loop {
        let now = round.load(Ordering::Relaxed);
        if now == OVER {
            return met;
        }
        let start = Instant::now();
        loop {
            let mut ask = |request: &Request| clients[at].try_call(request).ok();
            if thing(&mut ask) {
                break;
            }
            // As a client does: to another node, soon.
            at = (at + 1) % clients.len();
            std::thread::sleep(Duration::from_millis(10));
            assert!(start.elapsed() < SOON, "nothing goes any more");
        }
        met.done += 1;
        let longest = met.longest.entry(now).or_default();
        *longest = (*longest).max(start.elapsed());
    }
}

fn submit(number: &mut usize, name: &str) -> Request {
    *number += 1;
    let job = json!({"command": ["sh", "-c", "exit 0"], "env": {"N": number.to_string()}});
    Request::post("/v1/jobs").json(&job).header("x-idempotency-key", format!("{name}-{number}"))
}

/// Submissions, reads and work go on while the leadership is handed over five times.
fn nothing_fails_for_long(lock: Kind, store: Kind) {
    let plan = Plan { lock_ttl: "10s", ..Plan::default() };
    let site = Site::start(lock, store, 2, &plan);
    site.all_known();
    let round = AtomicUsize::new(0);
    let ids = std::sync::Mutex::new(Vec::new());
    let met: BTreeMap<&str, Met> = std::thread::scope(|scope| {
        let submitting = scope.spawn(|| {
            let mut number = 0;
            let mut request = None;
            keep_doing(&site, &round, |ask| {
                let sent = request.get_or_insert_with(|| submit(&mut number, "job"));
                let reply = ask(sent).filter(|reply| [200, 201].contains(&reply.status));
                let Some(reply) = reply else { return false };
                let id = reply.json()["id"].as_str().expect("an id").to_owned();
                ids.lock().expect("ids").push(id);
                request = None;
                std::thread::sleep(Duration::from_millis(20));
                true
            })
        });
        let reading = scope.spawn(|| {
            keep_doing(&site, &round, |ask| {
                std::thread::sleep(Duration::from_millis(10));
                ask(&Request::get("/v1/jobs?limit=5")).is_some_and(|reply| reply.status == 200)
            })
        });
        for number in 0..5 {
            std::thread::sleep(Duration::from_millis(1_200));
            round.store(number, Ordering::Relaxed);
            site.all_known();
            let before = site.leader();
            let done = site.nodes[1 - before].post("/ha/switchover", &json!({"reason": "a test"}));
            assert_eq!(done.status, 200, "{}", done.text());
            assert_eq!(done.json()["to"], site.nodes[1 - before].id.as_str());
            assert_eq!(site.leader_after(before), 1 - before);
        }
        std::thread::sleep(Duration::from_secs(1));
        round.store(OVER, Ordering::Relaxed);
        let met = [("submissions", submitting), ("reads", reading)];
        met.into_iter().map(|(what, done)| (what, done.join().expect("a client"))).collect()
    });
    println!("{lock:?} {store:?}: {met:?}");
    for (what, met) in &met {
        assert!(met.done > 20, "{what}: {met:?}");
        assert!(met.but_one() < Duration::from_secs(1), "{what} failed for long: {met:?}");
    }
    // None is lost: all that were taken in are done.
    let leader = &site.nodes[site.leader()];
    for id in ids.into_inner().expect("ids") {
        until_state(leader, &id, "succeeded");
    }
}

#[test]
fn nothing_fails_for_long_when_lockd_hands_over() {
    nothing_fails_for_long(Kind::Lockd, Kind::Postgres);
}

#[test]
fn nothing_fails_for_long_when_postgres_hands_over() {
    nothing_fails_for_long(Kind::Postgres, Kind::Lockd);
}

/// A hand-over waits for results that are on their way; work is not given out meanwhile.
#[test]
fn draining_takes_results_and_gives_no_work() {
    let plan = Plan {
        moonlight: false,
        lock_ttl: "10s",
        more: vec!["--drain-grace=10s".into()],
        ..Plan::default()
    };
    let site = Site::start(Kind::Lockd, Kind::Postgres, 2, &plan);
    let before = site.leader();
    site.all_known();
    let leader = &site.nodes[before];
    for _ in 0..2 {
        leader.submit(&nothing());
    }
    let grant = leader.post("/v1/leases", &json!({"agent": "x", "request_id": "1"})).ok().json();
    // A result that is still being sent when draining begins.
    let report = json!({"lease_id": grant["lease_id"], "job_id": grant["job_id"], "agent": "x",
        "job_epoch": grant["job_epoch"], "leader_epoch": grant["leader_epoch"], "success": true});
    let body = report.to_string();
    let mut sending = lockd_tests::http::Connection::open(&leader.place()).expect("a connection");
    let request = Request::new("POST", "/v1/results").header("content-type", "application/json");
    let head = request.head(&format!("Content-Length: {}\r\n", body.len()));
    let (first, rest) = body.split_at(10);
    sending.socket.write_all(&head).expect("sent");
    sending.socket.write_all(first.as_bytes()).expect("sent");
    // It has certainly arrived by now.
    std::thread::sleep(Duration::from_millis(500));
    std::thread::scope(|scope| {
        let handing = scope.spawn(|| leader.post("/ha/switchover", &json!({})));
        within(SOON, "it drains", || leader.role()["role"] == "DRAINING");
        let ask = json!({"agent": "y", "request_id": "2", "wait_seconds": 5});
        assert_eq!(leader.post("/v1/leases", &ask).status, 204, "work while draining");
        let kept = leader.post("/v1/jobs", &nothing());
        assert_eq!(kept.status, 201, "a submission while draining: {}", kept.text());
        sending.socket.write_all(rest.as_bytes()).expect("sent");
        let kept = sending.reply().expect("an answer");
        assert_eq!(kept.status, 200, "{}", kept.text());
        let done = handing.join().expect("a thread");
        assert_eq!(done.status, 200, "{}", done.text());
    });
    let new = &site.nodes[site.leader_after(before)];
    let id = grant["job_id"].as_str().expect("an id");
    assert_eq!(until_state(new, id, "succeeded")["result"]["agent"], "x");
}

/// What a node says of one that was killed while it led, for a while: nothing that it could not
/// have heard.
fn shows_no_standby(node: &Node, killed: &str) {
    for _ in 0..20 {
        let status = node.get("/ha/status").ok().json();
        let nodes = status["nodes"].as_array().cloned().expect("nodes");
        let shown = nodes.iter().find(|one| one["node_id"] == killed).expect("it is shown");
        assert_eq!(shown["role"], "UNKNOWN", "a dead leader is no standby: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// From the death of the leader to the first change that is accepted.
fn failover(lock: Kind, ttl: &'static str, at_most: Duration) {
    let plan = Plan { lock_ttl: ttl, ..Plan::default() };
    let store = if lock == Kind::Postgres { Kind::Lockd } else { Kind::Postgres };
    let mut site = Site::start(lock, store, 2, &plan);
    let mut took = Vec::new();
    for round in 0..3 {
        let leader = site.leader();
        let other = site.nodes[1 - leader].place();
        within(SOON, "the other one is there, and has heard of the leader", || {
            let other = &site.nodes[1 - leader];
            let status = other.try_call(&Request::get("/ha/status")).map(|reply| reply.json());
            let nodes = status.unwrap_or_default()["nodes"].as_array().map_or(0, Vec::len);
            nodes == 2 && other.role()["leader_id"] == site.nodes[leader].id.as_str()
        });
        let start = Instant::now();
        let all = site.nodes[leader].processes();
        site.nodes[leader].kill();
        for pid in all {
            super::site::send(pid, Signal::KILL);
        }
        let mut client = Client::new(&other);
        let key = format!("after-{round}");
        let request = Request::post("/v1/jobs").json(&nothing()).header("x-idempotency-key", key);
        loop {
            match client.try_call(&request) {
                Ok(reply) if [200, 201].contains(&reply.status) => break,
                Ok(_) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => client = Client::new(&other),
            }
            assert!(start.elapsed() < SOON, "nobody takes over");
        }
        took.push(start.elapsed());
        shows_no_standby(&site.nodes[1 - leader], &site.nodes[leader].id);
        site.nodes[leader].start();
    }
    took.sort();
    println!("{lock:?} with a time to live of {ttl}: {took:?}");
    assert!(took[1] <= at_most, "{took:?}");
}

#[test]
fn a_killed_leader_is_followed_in_time_over_lockd() {
    failover(Kind::Lockd, "2s", Duration::from_secs(3));
}

#[test]
fn a_killed_leader_is_followed_in_time_over_etcd() {
    failover(Kind::Etcd, "2s", Duration::from_secs(3));
}

#[test]
fn a_killed_leader_is_followed_in_time_over_redis() {
    failover(Kind::Redis, "2s", Duration::from_secs(3));
}

#[test]
fn a_killed_leader_is_followed_at_once_over_postgres() {
    failover(Kind::Postgres, "30s", Duration::from_secs(2));
}

/// An agent whose work does not end when it is asked to: the new leader waits for it, for the time
/// that the work of an agent has to end, and then leads.
#[test]
fn an_agent_at_work_adds_its_stop_time_to_a_failover() {
    let plan = Plan { lock_ttl: "2s", more: vec!["--stop-grace=3s".into()], ..Plan::default() };
    let mut site = Site::start(Kind::Lockd, Kind::Postgres, 2, &plan);
    let leader = site.leader();
    site.all_known();
    let deaf = json!({"command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]});
    let job = site.nodes[leader].submit(&deaf);
    until_state(&site.nodes[leader], job["id"].as_str().expect("an id"), "leased");
    let start = Instant::now();
    let all = site.nodes[leader].processes();
    site.nodes[leader].kill();
    for pid in all {
        super::site::send(pid, Signal::KILL);
    }
    let next = site.leader_after(leader);
    let took = start.elapsed();
    let history = site.nodes[next].get("/ha/history").ok().json();
    let all = history["transitions"].as_array().expect("transitions").clone();
    let led = all.iter().rev().find(|one| one["to"] == "LEADER").expect("it became leader");
    println!("a failover with an agent at work: {took:?}, of which its node took {led}");
    // The agent gives its work a second to end, and this work does not end.
    assert!(led["took_ms"].as_u64().is_some_and(|ms| ms >= 900), "{history}");
}

/// A job that would go on for long, and has children of its own.
fn long() -> Value {
    json!({"command": ["sh", "-c", "sleep 987 & setsid sleep 987 & sleep 987"]})
}

fn all_of(node: &Node) -> Vec<u32> {
    let mut all = node.processes();
    all.remove(0);
    all
}

#[test]
fn a_killed_supervisor_leaves_nobody_behind() {
    let plan = Plan { lock_ttl: "10s", ..Plan::default() };
    let mut site = Site::start(Kind::Lockd, Kind::Lockd, 2, &plan);
    let leader = site.leader();
    for _ in 0..2 {
        site.nodes[leader].submit(&long());
    }
    // The agent of the standby works on both; each has four processes.
    let standby = &site.nodes[1 - leader];
    within(SOON, "the jobs run", || {
        let sleeping = standby.processes().into_iter().filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with(b"sleep\0987")
        });
        sleeping.count() >= 6
    });
    for number in [1 - leader, leader] {
        let below = all_of(&site.nodes[number]);
        assert!(below.len() >= 2, "{below:?}");
        site.nodes[number].kill();
        within(SOON, "all of it is gone", || !below.iter().any(|pid| is_there(*pid)));
    }
}

#[test]
fn a_node_that_stops_hands_over_and_leaves_nobody_behind() {
    let plan = Plan { lock_ttl: "30s", ..Plan::default() };
    let mut site = Site::start(Kind::Redis, Kind::Lockd, 2, &plan);
    let leader = site.leader();
    site.nodes[leader].submit(&long());
    within(SOON, "the job runs", || site.nodes[1 - leader].processes().len() > 8);
    let below = all_of(&site.nodes[leader]);
    site.nodes[leader].stop();
    assert!(!below.iter().any(|pid| is_there(*pid)), "something is left of it");
    // Long before the time of the lock is over.
    let next = site.leader_after(leader);
    let below = all_of(&site.nodes[next]);
    site.nodes[next].stop();
    assert!(!below.iter().any(|pid| is_there(*pid)), "something is left of it");
}
