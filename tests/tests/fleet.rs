//! Servers on one bucket that are killed, stopped, told the wrong time and cut off from the store,
//! while many clients go from one to the other. Never two holders, tokens that grow, nothing
//! acknowledged lost, nothing denied visible.

#[path = "fleet/reign.rs"]
mod reign;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockd_cloud::Plan;
use lockd_tests::bucket::bad_weather;
use lockd_tests::dice::rounds;
use lockd_tests::{Ask, Bucket, Client, Cloud, Dice, Held, Place, Request, Server, within};
use lockd_wire::path;
use reign::Chronicle;
use rustix::process::Signal;
use serde_json::{Value, json};

const CLIENTS: usize = 32;
const KEYS: usize = 12;
const TTL: Duration = Duration::from_millis(1_000);
/// On a real service, where each step of the work takes its time.
const REAL_TTL: Duration = Duration::from_millis(3_000);

/// A lease, as its holder could believe in it.
#[derive(Debug)]
struct Grant {
    token: u64,
    asked: Instant,
    answered: Instant,
    /// From here on the holder knew that it might no longer be the only one.
    over: Instant,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Committed,
    Denied,
    Unknown,
}

#[derive(Default)]
struct Book {
    grants: Mutex<BTreeMap<usize, Vec<Grant>>>,
    writes: Mutex<BTreeMap<u64, (usize, Fate)>>,
    done: AtomicUsize,
    committed: AtomicUsize,
}

struct Fleet {
    ttl: Duration,
    servers: Vec<Mutex<Server>>,
    places: Vec<Mutex<Place>>,
    clocks: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Fleet {
    fn start(bucket: &Bucket, size: usize, ttl: Duration) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut servers, mut places, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..size {
            let clock = folder.path().join(format!("clock-{number}"));
            std::fs::write(&clock, "+0").expect("a clock");
            let options = bucket
                .options()
                .flag("s3-timeout", "5s")
                .flag("s3-retry-timeout", "20s")
                .variable("LD_PRELOAD", lockd_tests::process::faketime())
                .variable("FAKETIME_TIMESTAMP_FILE", clock.to_str().expect("a path"))
                .variable("FAKETIME_NO_CACHE", "1")
                .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            let server = Server::start(options);
            places.push(Mutex::new(server.place.clone()));
            servers.push(Mutex::new(server));
            clocks.push(clock);
        }
        Self { ttl, servers, places, clocks, _folder: folder }
    }

    /// A client of any of them.
    fn client(&self, dice: &mut Dice) -> Client {
        Client::new(&self.place(dice.below(self.servers.len())))
    }

    fn place(&self, number: usize) -> Place {
        self.places[number].lock().expect("a place").clone()
    }

    /// One thing that goes wrong with one server.
    fn strike(&self, dice: &mut Dice) {
        let number = dice.below(self.servers.len());
        let mut server = self.servers[number].lock().expect("a server");
        match dice.below(3) {
            0 => {
                server.kill();
                server.start_again();
                *self.places[number].lock().expect("a place") = server.place.clone();
            }
            1 => {
                server.signal(Signal::STOP);
                std::thread::sleep(self.ttl + Duration::from_millis(700));
                server.signal(Signal::CONT);
            }
            _ => {
                let hours = dice.below(48);
                let sign = if dice.one_in(2) { '+' } else { '-' };
                std::fs::write(&self.clocks[number], format!("{sign}{hours}h")).expect("a clock");
            }
        }
    }
}

fn key(number: usize) -> String {
    format!("fleet/{number}")
}

/// Takes a key, adds a number to the set under it, lets go of it.
fn work(fleet: &Fleet, dice: &mut Dice, book: &Book, write: u64) {
    let number = dice.below(KEYS);
    let mut client = fleet.client(dice);
    let ask = Ask::new(&key(number), "fleet").block(2).ttl_ms(fleet.ttl.as_millis() as u64);
    let asked = Instant::now();
    let Ok(reply) = client.try_call(&ask.request()) else { return };
    if reply.status != 200 {
        assert!([409, 503].contains(&reply.status), "{}", reply.text());
        return;
    }
    let held = Held::of(&reply);
    let answered = Instant::now();
    // Some go on at another server.
    if dice.one_in(4) {
        client = fleet.client(dice);
    }
    // Whoever asks for the end of its lease no longer counts on it.
    let (fate, let_go) = change(&mut client, dice, (&held, fleet.ttl), (number, write), book);
    let over = let_go.min(asked + fleet.ttl);
    if let Some(fate) = fate {
        book.writes.lock().expect("a book").insert(write, (number, fate));
        if fate == Fate::Committed {
            book.committed.fetch_add(1, Ordering::Relaxed);
        }
    }
    let grant = Grant { token: held.token, asked, answered, over };
    book.grants.lock().expect("a book").entry(number).or_default().push(grant);
}

/// What became of the write (`None` if it was never sent), and when the end was asked for.
fn change(
    client: &mut Client,
    dice: &mut Dice,
    (held, ttl): (&Held, Duration),
    (number, write): (usize, u64),
    book: &Book,
) -> (Option<Fate>, Instant) {
    let mut set: Value = match client.try_call(&held.state(path::GET)) {
        Ok(reply) if reply.status == 200 => reply.json(),
        Ok(reply) if reply.status == 204 => json!([]),
        Ok(_) | Err(_) => return (None, Instant::now()),
    };
    set.as_array_mut().expect("a set").push(write.into());
    // From here on it may be seen, whatever we hear.
    book.writes.lock().expect("a book").insert(write, (number, Fate::Unknown));
    let staged = client.try_call(&held.state(path::UPDATE).body(set.to_string()));
    match staged {
        Ok(reply) if reply.status == 200 => {}
        Ok(reply) if reply.status == 503 => return (Some(Fate::Unknown), Instant::now()),
        Ok(_) => return (Some(Fate::Denied), Instant::now()),
        Err(_) => return (Some(Fate::Unknown), Instant::now()),
    }
    if dice.one_in(40) {
        // Longer than the lease lives: whoever comes next finds the set as it was.
        std::thread::sleep(ttl + Duration::from_millis(100));
    }
    let rolls_back = dice.one_in(8);
    let request = if rolls_back { held.rollback() } else { held.release() };
    let let_go = Instant::now();
    let fate = match client.try_call(&request) {
        Ok(reply) if reply.status == 200 && rolls_back => Fate::Denied,
        Ok(reply) if reply.status == 200 => Fate::Committed,
        Ok(reply) if reply.status == 503 => Fate::Unknown,
        // It is over, and it was not committed.
        Ok(_) => Fate::Denied,
        Err(_) => Fate::Unknown,
    };
    (Some(fate), let_go)
}

fn judge(book: &Book, sets: &BTreeMap<usize, Vec<u64>>) {
    for (key, grants) in &mut *book.grants.lock().expect("a book") {
        grants.sort_by_key(|grant| grant.token);
        for pair in grants.windows(2) {
            let [before, after] = pair else { continue };
            assert!(before.token < after.token, "key {key}: a token twice: {pair:?}");
            assert!(after.answered > before.asked, "key {key}: tokens against time: {pair:?}");
            assert!(
                after.answered >= before.over,
                "key {key}: two holders at a time, for {:?}: {pair:?}",
                before.over - after.answered
            );
        }
    }
    for (write, (key, fate)) in &*book.writes.lock().expect("a book") {
        let is_there = sets[key].contains(write);
        match fate {
            Fate::Committed => assert!(is_there, "write {write} to key {key} is lost"),
            Fate::Denied => assert!(!is_there, "write {write} to key {key} was denied"),
            Fate::Unknown => {}
        }
    }
    for (key, set) in sets {
        let unique: BTreeSet<u64> = set.iter().copied().collect();
        assert_eq!(unique.len(), set.len(), "key {key}: a write twice");
    }
}

fn run(cloud: Cloud, size: usize, operations: usize, plan: Plan) {
    let mut dice = Dice::announced("fleet");
    let bucket = Bucket::new(cloud);
    let ttl = if cloud == Cloud::Double { TTL } else { REAL_TTL };
    let fleet = Fleet::start(&bucket, size, ttl);
    bucket.proxy.set_seed(dice.next());
    bucket.proxy.set_plan(plan);
    let (book, chronicle, over) = (Book::default(), Chronicle::default(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for client in 0..cloud.bears(CLIENTS) as u64 {
            let (mut dice, fleet, book, chronicle, over) =
                (dice.fork(), &fleet, &book, &chronicle, &over);
            scope.spawn(move || {
                for turn in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    if dice.one_in(6) {
                        reign::lead(fleet, &mut dice, chronicle);
                    } else {
                        work(fleet, &mut dice, book, client * 1_000_000 + turn);
                    }
                    book.done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _home = Over(&over);
        let (mut strikes, mut wind) = (0, dice.fork());
        within(Duration::from_secs(600), "enough operations", || {
            std::thread::sleep(Duration::from_millis(300 + wind.below(900) as u64));
            fleet.strike(&mut wind);
            strikes += 1;
            // On a slow machine much of it comes to nothing, which shows nothing either.
            book.done.load(Ordering::Relaxed) >= operations
                && book.committed.load(Ordering::Relaxed) > operations / 20
                && chronicle.has_written()
        });
        println!("{strikes} strikes, {} faults", bucket.proxy.faults());
    });
    bucket.proxy.heal();
    let mut client = Client::new(&fleet.place(0));
    let sets = (0..KEYS).map(|number| (number, settled(&mut client, number))).collect();
    let committed = book.committed.load(Ordering::Relaxed);
    println!("{} operations, {committed} committed", book.done.load(Ordering::Relaxed));
    judge(&book, &sets);
    reign::judge(&chronicle);
}

/// Everybody stops when it goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The set of a key after every lease on it is over.
fn settled(client: &mut Client, number: usize) -> Vec<u64> {
    let reply = client.call(&Ask::new(&key(number), "judge").block(30).request());
    let held = Held::of(&reply);
    let reply = client.call(&held.state(path::GET));
    let set = if reply.status == 204 { json!([]) } else { reply.json() };
    client.call(&held.release()).ok();
    let public = Request::post(path::GET).query("key", &key(number)).query("public", "1");
    let shown = client.call(&public);
    assert!(shown.status != 200 || shown.json() == set, "readers see what holders see");
    set.as_array().expect("a set").iter().map(|one| one.as_u64().expect("a number")).collect()
}

#[test]
fn two_servers_in_bad_weather() {
    run(Cloud::Double, 2, rounds(2) * 1_000, bad_weather());
}

#[test]
fn four_servers_in_bad_weather() {
    run(Cloud::Double, 4, rounds(2) * 1_000, bad_weather());
}

#[test]
fn two_servers_on_a_real_s3() {
    run(Cloud::Moto, 2, rounds(1) * 500, bad_weather());
}

#[test]
fn two_servers_on_a_real_azure() {
    run(Cloud::Azurite, 2, rounds(1) * 500, bad_weather());
}
