//! Nodes under a real load of jobs while everything happens to them that can: never are writes of
//! two leaders accepted in turn, nothing accepted is lost, and each job has one result. The stores'
//! own records are what is judged, not what the nodes say.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockd_tests::dice::rounds;
use lockd_tests::{Client, Dice, Request, within};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::judge::{Chronicle, judge};
use super::site::{Helper, Kind, Node, Plan, Site, send};

/// For things that must come about however much goes wrong.
const LONG: Duration = Duration::from_secs(120);
/// A strike holds longer than the lock's time to live.
const BEYOND: Duration = Duration::from_millis(3_200);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Strike {
    KillController,
    KillSupervisor,
    KillNode,
    KillAgent,
    KillStandby,
    /// Everything of the leader stands still, with a write on its way.
    StopNode,
    StopSupervisor,
    StopController,
    RestartLock,
    ForgetLock,
    CutLock,
    CutStore,
    SetClock,
    Switchover,
}

const STRIKES: [Strike; 14] = [
    Strike::KillController,
    Strike::KillSupervisor,
    Strike::KillNode,
    Strike::KillAgent,
    Strike::KillStandby,
    Strike::StopNode,
    Strike::StopSupervisor,
    Strike::StopController,
    Strike::RestartLock,
    Strike::ForgetLock,
    Strike::CutLock,
    Strike::CutStore,
    Strike::SetClock,
    Strike::Switchover,
];

/// What clients were promised.
#[derive(Default)]
struct Book {
    accepted: Mutex<Vec<String>>,
    /// Which node said to lead under an epoch.
    leaders: Mutex<BTreeMap<u64, String>>,
    late_refused: AtomicUsize,
    over: AtomicBool,
}

fn submit(book: &Book, places: &[lockd_tests::Place], name: usize) {
    let mut number = 0;
    while !book.over.load(Ordering::Relaxed) {
        number += 1;
        let job = json!({"command": ["sh", "-c", "sleep 0.0$N"], "env": {"N": (number % 10).to_string()},
            "priority": number % 3, "max_attempts": 50});
        let request = Request::post("/v1/jobs")
            .json(&job)
            .header("x-idempotency-key", format!("s{name}-{number}"));
        let start = Instant::now();
        // The same until it is answered: then the job is kept.
        for place in places.iter().cycle() {
            let asked = lockd_tests::http::Connection::open(place).and_then(|mut connection| {
                connection.socket.patience(Duration::from_secs(3))?;
                connection.call(&request)
            });
            if let Ok(reply) = asked
                && [200, 201].contains(&reply.status)
            {
                let id = reply.json()["id"].as_str().expect("an id").to_owned();
                book.accepted.lock().expect("the book").push(id);
                break;
            }
            assert!(start.elapsed() < LONG, "no submission is accepted any more");
            std::thread::sleep(Duration::from_millis(30));
        }
        std::thread::sleep(Duration::from_millis(40));
    }
}

/// Asks all nodes again and again what they are.
fn watch(book: &Book, places: &[lockd_tests::Place]) {
    while !book.over.load(Ordering::Relaxed) {
        for place in places {
            let asked = lockd_tests::http::Connection::open(place).and_then(|mut connection| {
                connection.socket.patience(Duration::from_millis(300))?;
                connection.call(&Request::get("/role"))
            });
            let Ok(reply) = asked else { continue };
            let role: Value = reply.json();
            if role["role"] == "LEADER" || role["role"] == "DRAINING" {
                let epoch = role["leader_epoch"].as_u64().expect("an epoch");
                let node = role["node_id"].as_str().expect("a node").to_owned();
                let known = book.leaders.lock().expect("the book").insert(epoch, node.clone());
                assert!(known.is_none_or(|known| known == node), "two lead under epoch {epoch}");
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Battle {
    site: Site,
    dice: Dice,
    hits: usize,
}

impl Battle {
    fn strike(&mut self, strike: Strike, book: &Book) {
        let leader = self.site.leader();
        match strike {
            Strike::KillController => {
                for pid in self.site.nodes[leader].programs("controller") {
                    send(pid, Signal::KILL);
                }
            }
            Strike::KillSupervisor => self.kill_and_start(leader, false),
            Strike::KillNode => self.kill_and_start(leader, true),
            Strike::KillStandby => {
                let other = (leader + 1) % self.site.nodes.len();
                self.kill_and_start(other, false);
            }
            Strike::KillAgent => {
                for node in &self.site.nodes {
                    node.programs("agent").into_iter().for_each(|pid| send(pid, Signal::KILL));
                }
            }
            Strike::StopNode => self.stop_with_a_write_under_way(leader, book),
            Strike::StopSupervisor => {
                self.site.nodes[leader].signal(Signal::STOP);
                std::thread::sleep(BEYOND);
                self.site.nodes[leader].signal(Signal::CONT);
            }
            Strike::StopController => {
                let pids = self.site.nodes[leader].programs("controller");
                pids.iter().for_each(|pid| send(*pid, Signal::STOP));
                std::thread::sleep(BEYOND);
                pids.iter().for_each(|pid| send(*pid, Signal::CONT));
            }
            Strike::RestartLock => self.site.lock.restart(),
            Strike::ForgetLock => self.site.lock.forget(),
            Strike::CutLock => {
                self.site.nodes[leader].lock.cut();
                std::thread::sleep(BEYOND);
                self.site.nodes[leader].lock.mend();
            }
            Strike::CutStore => {
                self.site.nodes[leader].store.cut();
                std::thread::sleep(BEYOND);
                self.site.nodes[leader].store.mend();
            }
            Strike::SetClock => {
                let by = *self.dice.pick(&["-3600", "+3600", "-1d", "+1d", "+0"]);
                let which = self.dice.below(self.site.nodes.len());
                self.site.nodes[which].set_clock(by);
            }
            Strike::Switchover => {
                let node = &self.site.nodes[self.dice.below(self.site.nodes.len())];
                // It may be refused: somebody was not heard of lately.
                let ask = Request::post("/ha/switchover").json(&json!({}));
                node.try_call(&ask);
            }
        }
    }

    fn kill_and_start(&mut self, which: usize, all: bool) {
        let processes = self.site.nodes[which].processes();
        self.site.nodes[which].kill();
        if all {
            processes.into_iter().for_each(|pid| send(pid, Signal::KILL));
        }
        if self.dice.one_in(2) && self.site.nodes.len() > 1 {
            self.site.leader_after(which);
        }
        self.site.nodes[which].start();
    }

    /// Its write arrives after another leads.
    fn stop_with_a_write_under_way(&mut self, leader: usize, book: &Book) {
        self.hits += 1;
        let mark = format!("late-{}-{}", std::process::id(), self.hits);
        let node = &self.site.nodes[leader];
        node.store.cut_at(&mark);
        let job = json!({"command": ["true", mark]});
        let (place, request) = (node.place(), Request::post("/v1/jobs").json(&job));
        let asked = std::thread::spawn(move || Client::new(&place).try_call(&request));
        let start = Instant::now();
        while !node.store.is_cut() && !asked.is_finished() && start.elapsed() < BEYOND {
            std::thread::sleep(Duration::from_millis(1));
        }
        let under_way = node.store.is_cut();
        node.signal_all(Signal::STOP);
        self.site.leader_after(leader);
        let node = &self.site.nodes[leader];
        node.store.mend();
        node.signal_all(Signal::CONT);
        let reply = asked.join().expect("a thread");
        if let Ok(reply) = reply {
            let accepted = [200, 201].contains(&reply.status);
            assert!(!(under_way && accepted), "a late write was accepted: {}", reply.text());
            if accepted {
                let id = reply.json()["id"].as_str().expect("an id").to_owned();
                book.accepted.lock().expect("the book").push(id);
            } else if under_way {
                book.late_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Nothing accepted is lost.
fn all_are_done(leader: &Node, accepted: &[String]) {
    let start = Instant::now();
    for id in accepted {
        loop {
            let job = leader.try_call(&Request::get(&format!("/v1/jobs/{id}")));
            let job = job.map(|job| (job.status, job.json())).unwrap_or_default();
            assert_ne!(job.0, 404, "{id} was accepted and is lost");
            match job.1["state"].as_str() {
                Some("succeeded") => break,
                Some("failed" | "cancelled") => panic!("{}", job.1),
                _ => {}
            }
            assert!(start.elapsed() < LONG * 2, "{id} is never done: {}", job.1);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn nemesis(name: &str, lock: Kind, store: Kind, nodes: usize) {
    let mut dice = Dice::announced(name);
    let plan = Plan { clocks: true, record: true, ..Plan::default() };
    let mut site = Site::prepare(lock, store, nodes, &plan);
    // From the beginning, no two clocks are right.
    for (node, by) in site.nodes.iter_mut().zip(["-3600", "+7200", "+1d"]) {
        node.set_clock(by);
        node.start();
    }
    site.leader();
    let chronicle = Chronicle::begin(&site);
    let book = Book::default();
    let places: Vec<_> = site.nodes.iter().map(Node::place).collect();
    let _helper = Helper::start(&site);
    let mut battle = Battle { site, dice: dice.fork(), hits: 0 };
    let mut struck: BTreeMap<Strike, usize> = BTreeMap::new();
    std::thread::scope(|scope| {
        let (book, places) = (&book, &places);
        for name in 0..2 {
            scope.spawn(move || submit(book, places, name));
        }
        scope.spawn(move || watch(book, places));
        // Whatever fails, the others must hear of it.
        let fought = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..rounds(2) {
                let mut strikes = STRIKES.to_vec();
                while !strikes.is_empty() {
                    let strike = strikes.swap_remove(dice.below(strikes.len()));
                    battle.strike(strike, book);
                    *struck.entry(strike).or_default() += 1;
                    let before = book.accepted.lock().expect("the book").len();
                    within(LONG, "it goes on after a strike", || {
                        book.accepted.lock().expect("the book").len() > before
                    });
                }
            }
        }));
        book.over.store(true, Ordering::Relaxed);
        if let Err(panic) = fought {
            std::panic::resume_unwind(panic);
        }
    });
    let leader = &battle.site.nodes[battle.site.leader()];
    let accepted = book.accepted.into_inner().expect("the book");
    all_are_done(leader, &accepted);
    let leaders = book.leaders.into_inner().expect("the book");
    let written = chronicle.end(&battle.site);
    let writes = judge(&written, &accepted);
    let told = |write: &super::judge::Write| write.created_at_ms;
    let (first, last) = (written.iter().map(told).min(), written.iter().map(told).max());
    let apart = last.zip(first).map_or(0, |(last, first)| last - first);
    assert!(apart > 1_800_000, "no leader was told the wrong time: {apart} ms");
    println!(
        "{name}: {} strikes, {} leaderships, {} jobs, {writes} writes, {} late writes refused",
        struck.values().sum::<usize>(),
        leaders.len(),
        accepted.len(),
        book.late_refused.into_inner(),
    );
    assert!(leaders.len() >= 5, "{leaders:?}");
}

#[test]
fn nemesis_of_two_over_lockd_and_postgres() {
    nemesis("nemesis_of_two_over_lockd_and_postgres", Kind::Lockd, Kind::Postgres, 2);
}

#[test]
fn nemesis_of_two_over_etcd_and_lockd() {
    nemesis("nemesis_of_two_over_etcd_and_lockd", Kind::Etcd, Kind::Lockd, 2);
}

#[test]
fn nemesis_of_three_over_redis_and_postgres() {
    nemesis("nemesis_of_three_over_redis_and_postgres", Kind::Redis, Kind::Postgres, 3);
}

#[test]
fn nemesis_of_three_over_postgres_and_lockd() {
    nemesis("nemesis_of_three_over_postgres_and_lockd", Kind::Postgres, Kind::Lockd, 3);
}
