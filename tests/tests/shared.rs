//! Several servers on one bucket, as their clients meet them.

use std::time::{Duration, Instant};

use lockd_cloud::Flaw;
use lockd_tests::queue::{self, messages};
use lockd_tests::server::{self, Server};
use lockd_tests::watch::Watch;
use lockd_tests::{Ask, Bucket, Client, Cloud, Held, Request, eventually};
use lockd_wire::path;
use serde_json::{Value, json};

fn acquire(client: &mut Client, ask: &Ask) -> Held {
    Held::of(&client.call(&ask.request()))
}

fn update(client: &mut Client, held: &Held, document: &str) {
    client.call(&held.state(path::UPDATE).body(document)).ok();
}

fn read(client: &mut Client, key: &str) -> Option<String> {
    let request = Request::post(path::GET).query("key", key).query("public", "1");
    let reply = client.call(&request);
    (reply.status == 200).then(|| reply.text())
}

#[test]
fn an_uncontended_cycle_costs_three_writes_and_one_read() {
    let bucket = Bucket::new(Cloud::Double);
    let server = Server::start(bucket.options());
    let mut client = server.client();
    let document = format!("{{\"text\":\"{}\"}}", "x".repeat(1_000));
    let mut cycle = |key: &str| {
        let held = acquire(&mut client, &Ask::new(key, "me"));
        update(&mut client, &held, &document);
        client.call(&held.release()).ok();
    };
    // What the server does beside requests is counted too, and can only add to it.
    let least = |cycle: &mut dyn FnMut()| {
        let costs = (0..10).map(|_| {
            let before = bucket.proxy.requests();
            cycle();
            let after = bucket.proxy.requests();
            (after.puts - before.puts, after.gets - before.gets)
        });
        costs.min().expect("ten rounds")
    };
    let mut number = 0;
    let fresh = least(&mut || {
        number += 1;
        cycle(&format!("fresh-{number}"));
    });
    assert_eq!(fresh, (3, 1), "of a key that was never seen");
    let known = least(&mut || cycle("fresh-1"));
    assert_eq!(known, (3, 0), "of a key that was");
    assert_eq!(read(&mut server.client(), "fresh-1"), Some(document));
}

#[test]
fn what_one_server_commits_the_other_reads() {
    let bucket = Bucket::new(Cloud::Double);
    let (one, other) = (Server::start(bucket.options()), Server::start(bucket.options()));
    let (mut a, mut b) = (one.client(), other.client());
    for round in 0..3 {
        let held = acquire(&mut a, &Ask::new("k", "a"));
        b.call(&Ask::new("k", "b").request()).refused(409, "waiting");
        update(&mut a, &held, &round.to_string());
        a.call(&held.release()).ok();
        assert_eq!(read(&mut b, "k"), Some(round.to_string()), "no cache hides it");
        let next = acquire(&mut b, &Ask::new("k", "b"));
        assert!(next.token > held.token);
        // A lease is good at every server.
        update(&mut a, &next, "\"from b\"");
        a.call(&next.keepalive(20_000)).ok();
        b.call(&next.release()).ok();
        assert_eq!(read(&mut a, "k"), Some("\"from b\"".into()));
    }
}

#[test]
fn a_release_at_one_server_wakes_who_waits_at_the_other() {
    let bucket = Bucket::new(Cloud::Double);
    let (one, other) = (Server::start(bucket.options()), Server::start(bucket.options()));
    let (mut a, place) = (one.client(), other.place.clone());
    // Until they have found each other, only the slower way works.
    eventually("they know each other", || sees(&mut other.client(), &mut a));
    // Slower than that on a machine that has much else to do: then it is tried again.
    eventually("it is woken soon", || {
        let held = acquire(&mut a, &Ask::new("k", "a").ttl_ms(60_000));
        let place = place.clone();
        let waiter = std::thread::spawn(move || {
            let mut b = Client::new(&place);
            let granted = acquire(&mut b, &Ask::new("k", "b").block(30));
            let at = Instant::now();
            b.call(&granted.release()).ok();
            (granted, at)
        });
        eventually("it waits", || {
            let leases = other.client().call(&Request::get("/v1/leases")).ok().json();
            let waits = |lease: &Value| lease["key"] == "k" && lease["waiters"] == 1;
            leases["leases"].as_array().is_some_and(|all| all.iter().any(waits))
        });
        let released = Instant::now();
        a.call(&held.release()).ok();
        let (granted, at) = waiter.join().expect("the waiter");
        assert!(granted.token > held.token);
        println!("granted after {:?}", at - released);
        at - released < Duration::from_secs(2)
    });
}

/// Whether what `a` holds shows up at `b`.
fn sees(b: &mut Client, a: &mut Client) -> bool {
    let held = acquire(a, &Ask::new("hello", "a"));
    let seen = lockd_tests::wait::try_within(Duration::from_secs(1), || {
        let leases = b.call(&Request::get("/v1/leases")).ok().json();
        (leases["leases"].as_array().is_some_and(|all| all.iter().any(|l| l["key"] == "hello")))
            .then_some(())
    });
    a.call(&held.release()).ok();
    seen.is_some()
}

#[test]
fn listings_and_watches_show_what_happened_at_the_other() {
    let bucket = Bucket::new(Cloud::Double);
    let (one, other) = (Server::start(bucket.options()), Server::start(bucket.options()));
    let (mut a, mut b) = (one.client(), other.client());
    let before = acquire(&mut a, &Ask::new("before", "a").ttl_ms(60_000));
    eventually("a lease from before they met is listed", || {
        let leases = b.call(&Request::get("/v1/leases")).ok().json();
        leases["leases"][0]["owner"] == "a"
    });
    let mut watch = Watch::open(&other.place, &[("prefix", "w")], None).expect("a watch");
    watch.snapshot("start");
    let held = acquire(&mut a, &Ask::new("w1", "a"));
    update(&mut a, &held, "7");
    a.call(&held.release()).ok();
    let seen: Vec<String> = (0..3).map(|_| watch.next().short()).collect();
    assert!(seen.iter().any(|event| event.contains("granted")), "{seen:?}");
    assert!(seen.iter().any(|event| event.contains("state")), "{seen:?}");
    a.call(&before.release()).ok();
    eventually("it is no longer listed", || {
        let leases = b.call(&Request::get("/v1/leases")).ok().json();
        leases["leases"].as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn a_transaction_may_join_keys_at_different_servers() {
    let bucket = Bucket::new(Cloud::Double);
    let (one, other) = (Server::start(bucket.options()), Server::start(bucket.options()));
    let (mut a, mut b) = (one.client(), other.client());
    eventually("they know each other", || sees(&mut b, &mut a));
    let first = acquire(&mut a, &Ask::new("x", "me"));
    let second = acquire(&mut b, &Ask::new("y", "me").field("txn_id", first.txn.as_str()));
    update(&mut a, &first, "1");
    update(&mut b, &second, "2");
    assert_eq!((read(&mut a, "x"), read(&mut a, "y")), (None, None));
    b.call(&second.release()).ok();
    for client in [&mut a, &mut b] {
        assert_eq!((read(client, "x"), read(client, "y")), (Some("1".into()), Some("2".into())));
    }
    // One that nobody here has heard of is refused, not taken for a new one.
    let alone = acquire(&mut a, &Ask::new("z", "me"));
    drop(one);
    let joined = Ask::new("y", "me").field("txn_id", alone.txn.as_str());
    let reply = b.call(&joined.request());
    assert!(reply.status == 409 || reply.status == 200, "{}", reply.text());
}

#[test]
fn messages_reach_consumers_at_the_other_server() {
    let bucket = Bucket::new(Cloud::Double);
    let (one, other) = (Server::start(bucket.options()), Server::start(bucket.options()));
    let (mut a, mut b) = (one.client(), other.client());
    eventually("they know each other", || sees(&mut b, &mut a));
    let place = other.place.clone();
    let consumer = std::thread::spawn(move || {
        let mut b = Client::new(&place);
        let mut seen = Vec::new();
        while seen.len() < 20 {
            let wish = json!({"wait_seconds": 10, "owner": "b"});
            for message in messages(&b.call(&queue::dequeue("jobs", &wish)).ok()) {
                b.call(&message.ack()).ok();
                seen.push(String::from_utf8_lossy(&message.payload).into_owned());
            }
        }
        seen
    });
    for number in 0..20 {
        a.call(&queue::Enqueue::new("jobs", format!("{number}")).request()).ok();
    }
    let mut seen = consumer.join().expect("the consumer");
    seen.sort_by_key(|text| text.parse::<u32>().expect("a number"));
    assert_eq!(seen, (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_store_that_breaks_its_word_is_refused_at_the_start() {
    for flaw in [Flaw::IgnoresIfMatch, Flaw::IgnoresIfNoneMatch, Flaw::ChecksThenWrites] {
        let bucket = Bucket::new(Cloud::Double);
        bucket.double().set_flaw(flaw);
        let home = tempfile::tempdir().expect("a folder");
        let address = bucket.double().endpoint().replace("http://", "");
        let url = format!("s3://{address}/lockd?insecure=1");
        let keys = [("LOCKD_S3_ACCESS_KEY_ID", "x"), ("LOCKD_S3_SECRET_ACCESS_KEY", "y")];
        let args = ["--store", &url, "--disable-mtls", "--listen", "127.0.0.1:0"];
        let ended = server::run(home.path(), &args, &keys);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("cannot be used"), "{flaw:?}: {said}");
        assert!(said.contains("lockd verify store"), "it names the next step: {said}");
    }
}

/// Clients that do something again and again, each on a thread of its own; how many times in all.
fn times(
    server: &Server,
    clients: usize,
    window: Duration,
    act: impl Fn(usize, &mut Client) + Sync,
) -> usize {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let end = Instant::now() + window;
    std::thread::scope(|scope| {
        for number in 0..clients {
            let (count, act) = (&count, &act);
            scope.spawn(move || {
                let mut client = server.client();
                while Instant::now() < end {
                    act(number, &mut client);
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner()
}

/// Long, so that it is the store that takes the time and not this machine.
const ROUND_TRIP: Duration = Duration::from_millis(150);

/// What is measured is measured alone.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn keys_do_not_wait_for_each_other_on_a_slow_store() {
    let _alone = ALONE.lock();
    let bucket = Bucket::new(Cloud::Double);
    let server = Server::start(bucket.options());
    bucket.slow_down(ROUND_TRIP);
    let window = Duration::from_secs(4);
    // Three writes, each a round trip; the read before the first is made once.
    let possible = 64.0 * window.as_secs_f64() / (3.0 * ROUND_TRIP.as_secs_f64());
    // A machine that does something else meanwhile is given another chance.
    eventually("most of what round trips allow", || {
        let cycles = times(&server, 64, window, |number, client| {
            let held = acquire(client, &Ask::new(&format!("k{number}"), "me"));
            update(client, &held, "{\"n\":1}");
            client.call(&held.release()).ok();
        });
        println!("{cycles} cycles of {possible:.0} that round trips allow");
        cycles as f64 >= 0.6 * possible
    });
}

#[test]
fn a_key_is_passed_on_in_one_round_trip_on_a_slow_store() {
    let _alone = ALONE.lock();
    let bucket = Bucket::new(Cloud::Double);
    let server = Server::start(bucket.options());
    bucket.slow_down(ROUND_TRIP);
    eventually("one write and one round trip each", || {
        let before = bucket.proxy.requests();
        let granted = std::sync::Mutex::new(Vec::new());
        let passed = times(&server, 24, Duration::from_secs(4), |_, client| {
            let held = acquire(client, &Ask::new("one", "me").block(60).ttl_ms(60_000));
            granted.lock().unwrap().push(Instant::now());
            client.call(&held.release()).ok();
        });
        let after = bucket.proxy.requests();
        let granted = granted.into_inner().unwrap();
        let mut took: Vec<Duration> = granted.windows(2).map(|two| two[1] - two[0]).collect();
        took.sort();
        let trips = took[took.len() / 2].as_secs_f64() / ROUND_TRIP.as_secs_f64();
        // The server also writes and reads what servers tell each other, a few times a second.
        let puts = (after.puts - before.puts) as f64 / passed as f64;
        println!("{passed} times, {puts:.2} writes and {trips:.2} round trips each");
        puts <= 1.3 && trips <= 1.5
    });
}

#[test]
fn keys_that_change_at_several_servers_are_read_together_or_said_to_change() {
    const KEYS: [&str; 4] = ["r0", "r1", "r2", "r3"];
    let bucket = Bucket::new(Cloud::Double);
    let (one, other) = (Server::start(bucket.options()), Server::start(bucket.options()));
    bucket.slow_down(Duration::from_millis(2));
    let over = std::sync::atomic::AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        for (number, key) in KEYS.into_iter().enumerate() {
            let (over, server) = (&over, if number % 2 == 0 { &one } else { &other });
            scope.spawn(move || {
                let mut client = server.client();
                let held = acquire(&mut client, &Ask::new(key, "writer").ttl_ms(600_000));
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    client.call(&held.commit("1")).ok();
                }
            });
        }
        let mut client = one.client();
        let together = Request::post(path::READ).json(&json!({ "keys": KEYS }));
        let answers: Vec<_> = (0..16).map(|_| client.call(&together)).collect();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        answers
    });
    for answer in answers {
        assert!(answer.status == 200 || answer.code() == "read_conflict", "{}", answer.text());
    }
}
