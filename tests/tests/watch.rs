//! Following keys: a snapshot, then everything that happens, in order and without gaps for as long
//! as the server can tell; and a fresh start, said aloud, when it cannot.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use lockd_tests::process::{forget_peak, peak, resident};
use lockd_tests::watch::{Event, Watch};
use lockd_tests::{Ask, Client, Options, Request, Server, eventually};
use serde_json::json;

fn follow(server: &Server, key: &str) -> Watch {
    Watch::open(&server.place, &[("key", key)], None).expect("a watch")
}

fn shorts(events: &[Event]) -> Vec<String> {
    events.iter().map(Event::short).collect()
}

fn take(watch: &mut Watch, count: usize) -> Vec<Event> {
    (0..count).map(|_| watch.next()).collect()
}

/// Takes and gives back a key with a document; what a watcher hears of it.
fn cycle(client: &mut Client, key: &str) {
    let held = client.acquire(&Ask::new(key, "cycle"));
    client.call(&held.update("1").query("then", "release")).ok();
}

#[test]
fn a_watch_tells_what_is_there_and_then_what_happens_in_order() {
    let server = Server::usual();
    let mut client = server.client();
    let held = client.acquire(&Ask::new("k", "first").ttl_ms(60_000));
    client.call(&held.commit("1")).ok();
    client.call(&held.update("2")).ok();

    let mut watch = follow(&server, "k");
    let (snapshot, _) = watch.snapshot("start");
    assert_eq!(shorts(&snapshot), ["snapshot state 1", "snapshot lease granted 1"]);
    assert_eq!(snapshot[1].data["owner"], "first");
    assert_eq!(snapshot[1].data["lease_id"], json!(null), "a lease id is a secret");

    client.call(&held.keepalive(60_000)).ok();
    client.release(&held);
    let held = client.acquire(&Ask::new("k", "second"));
    client.call(&held.commit("3")).ok();
    client.call(&held.remove()).ok();
    client.call(&held.rollback()).ok();
    let held = client.acquire(&Ask::new("k", "third"));
    client.call(&held.remove().query("then", "commit")).ok();
    let revoke = json!({"key": "k", "reason": "a test"});
    client.call(&Request::post("/v1/leases/revoke").json(&revoke)).ok();
    client.acquire(&Ask::new("k", "fourth").ttl_ms(100));
    let events = take(&mut watch, 10);
    assert_eq!(
        shorts(&events),
        [
            // What was staged when the watch began is told when it is committed.
            "state 2",
            "lease released 1",
            "lease granted 2",
            "state 3",
            // The removal was rolled back: nobody hears of it.
            "lease released 2",
            "lease granted 3",
            "removed 4",
            "lease revoked 3",
            "lease granted 5",
            "lease expired 5",
        ]
    );
}

#[test]
fn a_watch_hears_of_its_keys_only() {
    let server = Server::usual();
    let mut client = server.client();
    let query = [("namespace", "default"), ("prefix", "jobs/")];
    let mut jobs = Watch::open(&server.place, &query, None).expect("a watch");
    let mut one = follow(&server, "jobs/1");
    for key in ["jobs/1", "jobs", "jobs2", "job/1", "jobs/1/a", "jobs/12"] {
        cycle(&mut client, key);
    }
    let other = Ask::new("jobs/1", "elsewhere").field("namespace", "other");
    client.acquire(&other);
    cycle(&mut client, "jobs/last");
    cycle(&mut client, "jobs/1");
    for (watch, expected) in [
        (&mut jobs, &["jobs/1", "jobs/1/a", "jobs/12", "jobs/last", "jobs/1"][..]),
        (&mut one, &["jobs/1", "jobs/1"][..]),
    ] {
        assert_eq!(watch.snapshot("start").0, []);
        for key in expected {
            for short in ["lease granted", "state", "lease released"] {
                let event = watch.next();
                assert_eq!(event.data["key"], *key);
                assert_eq!(event.data["namespace"], "default");
                assert!(event.short().starts_with(short), "{}", event.short());
            }
        }
    }
}

#[test]
fn a_watch_resumes_after_the_last_event_without_gap_or_repetition() {
    let server = Server::usual();
    let mut client = server.client();
    let mut watch = Watch::open(&server.place, &[("prefix", "")], None).expect("a watch");
    let (_, start) = watch.snapshot("start");
    let mut all = Vec::new();
    for turn in 0..8 {
        cycle(&mut client, "k");
        all.extend(take(&mut watch, 3));
        // The reader goes away, and did not take note of its last event or two.
        let id = all[all.len() - 1 - turn % 3].id.clone().expect("an id");
        let seen = all.len() - turn % 3;
        watch = Watch::open(&server.place, &[("prefix", "")], Some(&id)).expect("a watch");
        let again = take(&mut watch, all.len() - seen);
        assert_eq!(again, all[seen..], "the same events again, and none before them");
    }
    let mut from_start =
        Watch::open(&server.place, &[("prefix", "")], Some(&start)).expect("watch");
    assert_eq!(take(&mut from_start, all.len()), all);
    for id in ["nonsense", "x-1", "18446744073709551615"] {
        let mut watch = Watch::open(&server.place, &[("prefix", "")], Some(id)).expect("a watch");
        watch.snapshot("gap");
    }
}

#[test]
fn after_a_restart_a_watch_begins_again_and_says_so() {
    let mut server = Server::usual();
    let mut client = server.client();
    let held = client.acquire(&Ask::new("k", "holder").ttl_ms(60_000));
    client.call(&held.commit("1")).ok();
    let mut watch = follow(&server, "k");
    let (_, place) = watch.snapshot("start");
    server.kill();
    assert!(watch.try_next().is_err(), "the connection is gone");
    server.start_again();
    let mut watch = Watch::open(&server.place, &[("key", "k")], Some(&place)).expect("a watch");
    let (snapshot, _) = watch.snapshot("gap");
    assert_eq!(shorts(&snapshot), ["snapshot state 1", "snapshot lease granted 1"]);
    server.client().call(&held.commit("2")).ok();
    assert_eq!(watch.next().short(), "state 2");
}

#[test]
fn the_end_of_a_lease_is_told_when_its_time_is_over_and_nobody_touched_it() {
    let server = Server::usual();
    // On a machine that stands still for a moment everything is late: then it is tried again.
    let mut rounds = 0;
    eventually("most are told in time, and none is forgotten", || {
        rounds += 1;
        let late = told_after(&server, &format!("round-{rounds}"));
        println!("told after the deadline, in ms: {late:?}");
        assert!(late[0] >= -2, "told before its time: {late:?}");
        late[late.len() / 2] <= 100 && late[late.len() - 1] <= 2_000
    });
}

/// How long after their deadlines the ends of some leases were told, in ms.
fn told_after(server: &Server, round: &str) -> Vec<i64> {
    let mut client = server.client();
    let mut watch = Watch::open(&server.place, &[("prefix", round)], None).expect("a watch");
    watch.snapshot("start");
    let deadlines: Vec<u64> = (0..16)
        .map(|number| {
            let ask = Ask::new(&format!("{round}/{number}"), "sleeper").ttl_ms(300 + number * 37);
            client.acquire(&ask).expires_at_unix_ms
        })
        .collect();
    let mut late: Vec<i64> = Vec::new();
    while late.len() < deadlines.len() {
        let event = watch.next();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis();
        if event.short() == "lease expired 1" {
            let key = event.data["key"].as_str().expect("a key");
            let number = key.rsplit('/').next().and_then(|number| number.parse::<usize>().ok());
            late.push(now as i64 - deadlines[number.expect("a number")] as i64);
        }
    }
    late.sort_unstable();
    late
}

#[test]
fn a_reader_that_falls_behind_begins_again_and_costs_no_memory() {
    const WRITERS: usize = 4;
    // More than the server remembers, and more than the socket takes on top of that.
    const EVENTS: usize = 28_000;
    let home = tempfile::tempdir().expect("a folder");
    let listen = format!("unix://{}", home.path().join("lockd.sock").display());
    let server = Server::start(Options::in_memory().listen(&listen));
    let mut watch = Watch::open(&server.place, &[("prefix", "")], None).expect("a watch");
    watch.snapshot("start");
    let before = resident(server.pid());
    forget_peak(server.pid());
    let left = AtomicUsize::new(EVENTS);
    std::thread::scope(|scope| {
        for number in 0..WRITERS {
            let (server, left) = (&server, &left);
            scope.spawn(move || {
                let mut client = server.client();
                let ask = Ask::new(&format!("k{number}"), "writer").ttl_ms(600_000);
                let held = client.acquire(&ask);
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_ok()
                {
                    client.call(&held.commit("1")).ok();
                }
            });
        }
    });
    let grown = peak(server.pid()).saturating_sub(before);
    // First what was under way already, in order; then the server says that it lost this reader.
    let mut versions = [0_u64; WRITERS];
    let mut told = 0;
    let reset = loop {
        let event = watch.next();
        match event.kind.as_str() {
            "state" => {
                let key = event.data["key"].as_str().expect("a key");
                let number: usize = key[1..].parse().expect("a number");
                let version = event.data["version"].as_u64().expect("a version");
                assert_eq!(version, versions[number] + 1, "{key}: an event is missing");
                versions[number] = version;
                told += 1;
            }
            "lease" => {}
            _ => break event,
        }
    };
    assert_eq!(reset.short(), "reset slow");
    let mut snapshot = Vec::new();
    loop {
        let event = watch.next();
        if event.short() == "complete" {
            break;
        }
        snapshot.push(event);
    }
    let total: u64 = snapshot
        .iter()
        .filter(|event| event.kind == "state")
        .map(|event| event.data["version"].as_u64().expect("a version"))
        .sum();
    assert_eq!(total as usize, EVENTS, "the snapshot has everything");
    println!("{told} events were under way; the server grew by {} KB", grown / 1024);
    assert!(grown < 48 << 20, "the server grew by {} MB", grown >> 20);
    // And then it goes on as before.
    server.client().acquire(&Ask::new("fresh", "test"));
    assert_eq!(watch.next().short(), "lease granted 1");
}

#[test]
fn watchers_that_leave_are_forgotten() {
    let server = Server::usual();
    let mut metrics = server.metrics_client();
    let mut connections = || {
        let page = metrics.call(&Request::get("/metrics")).ok().text();
        let line = page.lines().find_map(|line| line.strip_prefix("lockd_connections "));
        line.expect("a gauge").parse::<i64>().expect("a number")
    };
    let mut client = server.client();
    client.acquire(&Ask::new("k", "test"));
    let watchers: Vec<Watch> = (0..50).map(|_| follow(&server, "k")).collect();
    eventually("all are connected", || connections() >= 51);
    drop(watchers);
    eventually("none is connected any more", || connections() <= 2);
}
