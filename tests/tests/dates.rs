//! Servers whose bucket, or a gateway before it, tells the wrong time or none. Each server has a
//! gateway of its own to the bucket that all of them share.

use std::time::{Duration, Instant};

use lockd_cloud::{Dates, Proxy};
use lockd_tests::server::{self, Server};
use lockd_tests::{Ask, Bucket, Client, Cloud, Held, eventually};

/// What a test's gateway does to dates, and how much ahead that is.
const AHEAD_MS: i64 = 45_000;

/// A bucket, and a gateway to it beside the usual one.
struct World {
    bucket: Bucket,
    gateway: Proxy,
}

impl World {
    fn new() -> Self {
        let bucket = Bucket::new(Cloud::Double);
        let gateway = Proxy::start_now(&bucket.double().endpoint());
        Self { bucket, gateway }
    }

    /// How a server behind the gateway is started.
    fn behind(&self) -> server::Options {
        self.bucket.options_at(&self.gateway.endpoint())
    }

    /// `lockd verify store` through the gateway: its exit code and what it said.
    fn verify(&self) -> (Option<i32>, String) {
        let home = tempfile::tempdir().expect("a folder");
        let address = self.gateway.endpoint().replace("http://", "");
        let url = format!("s3://{address}/lockd/verify?insecure=1");
        let keys = [("LOCKD_S3_ACCESS_KEY_ID", "x"), ("LOCKD_S3_SECRET_ACCESS_KEY", "y")];
        let ended = server::run(home.path(), &["verify", "store", "--store", &url], &keys);
        let said = [ended.stdout, ended.stderr].concat();
        (ended.status.code(), String::from_utf8_lossy(&said).into_owned())
    }
}

fn acquire(client: &mut Client, ask: &Ask) -> Held {
    Held::of(&client.call(&ask.request()))
}

#[test]
fn a_store_without_a_date_is_refused_at_the_start_and_by_verify() {
    for dates in [Dates::Dropped, Dates::Garbled] {
        let world = World::new();
        let holder = Server::start(world.bucket.options());
        let held = acquire(&mut holder.client(), &Ask::new("k", "holder").ttl_ms(30_000));
        world.gateway.set_dates(dates);
        // Its own wall clock is a minute ahead, and must not be what it goes by.
        let options = world
            .behind()
            .variable("LD_PRELOAD", lockd_tests::process::faketime())
            .variable("FAKETIME", "+60s")
            .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        match Server::try_start(options) {
            Err((status, said)) => {
                assert!(!status.success() && said.contains("Date"), "{dates:?}: {said}");
            }
            Ok(other) => {
                let reply = other.client().call(&Ask::new("k", "thief").request());
                panic!("{dates:?}: it started, and answered {}: {}", reply.status, reply.text());
            }
        }
        let (code, said) = world.verify();
        assert!(code == Some(3) && said.contains("Date"), "{dates:?}: {code:?} {said}");
        holder.client().call(&held.release()).ok();
    }
}

#[test]
fn a_server_that_loses_the_time_of_its_store_goes_unready_and_takes_no_key_from_another() {
    let world = World::new();
    let mut holder = Server::start(world.bucket.options());
    let server = Server::start(world.behind());
    let mut client = server.client();
    assert!(server.is_ready());
    world.gateway.set_dates(Dates::Dropped);
    eventually("it is unready", || !server.is_ready());
    let ready = server.metrics_client().call(&lockd_tests::Request::get("/readyz"));
    assert!(ready.text().contains("Date"), "it says why: {}", ready.text());
    acquire(&mut holder.client(), &Ask::new("k", "holder").ttl_ms(500));
    let granted = Instant::now();
    holder.kill();
    eventually("the lease is over by far", || granted.elapsed() > Duration::from_secs(5));
    client.call(&Ask::new("k", "other").request()).refused(409, "waiting");
    // A free key is granted all the same.
    acquire(&mut client, &Ask::new("free", "other"));
    world.gateway.set_dates(Dates::Kept);
    eventually("it is ready again", || server.is_ready());
    eventually("the key is granted", || {
        client.call(&Ask::new("k", "other").request()).status == 200
    });
}

/// Clients of the server behind the gateway ask for keys that clients of the other hold; how often
/// they were refused.
fn ask_for_held_keys(world: &World, dates: Dates, ttl_ms: u64, clients: usize) -> usize {
    let holder = Server::start(world.bucket.options());
    let server = Server::start(world.behind());
    // It knows the time before anything goes wrong.
    acquire(&mut server.client(), &Ask::new("warm", "other"));
    let start = Instant::now();
    let mut refused = 0;
    while refused < 20 * clients || start.elapsed() < Duration::from_secs(3) {
        world.gateway.set_dates(Dates::Kept);
        let mut client = holder.client();
        let asked = Instant::now();
        let key = format!("k{refused}");
        let held = acquire(&mut client, &Ask::new(&key, "holder").ttl_ms(ttl_ms));
        let over = asked + Duration::from_millis(ttl_ms);
        world.gateway.set_dates(dates);
        let answers: Vec<u16> = std::thread::scope(|scope| {
            let asks: Vec<_> = (0..clients)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = server.client();
                        (0..5)
                            .map(|_| client.call(&Ask::new(&key, "thief").request()).status)
                            .collect()
                    })
                })
                .collect();
            asks.into_iter().flat_map(|ask| -> Vec<u16> { ask.join().expect("answers") }).collect()
        });
        if Instant::now() < over {
            let stolen = answers.iter().filter(|status| **status == 200).count();
            assert_eq!(stolen, 0, "{dates:?}: a key that another holds was granted: {answers:?}");
            refused += answers.len();
            client.call(&held.release()).ok();
        }
        assert!(start.elapsed() < Duration::from_secs(120), "too slow to show anything: {refused}");
    }
    refused
}

#[test]
fn dates_that_jump_ahead_take_no_lease_from_another_server() {
    for (by_ms, ttl_ms) in [(AHEAD_MS, 30_000), (5_000, 4_000)] {
        let world = World::new();
        let refused = ask_for_held_keys(&world, Dates::Ahead(by_ms), ttl_ms, 1);
        println!("{by_ms} ms ahead: {refused} asked in vain");
    }
}

#[test]
fn dates_that_are_wrong_on_every_second_connection_take_no_lease_from_another_server() {
    let world = World::new();
    let dates = Dates::AheadOnEverySecondConnection(AHEAD_MS);
    let refused = ask_for_held_keys(&world, dates, 30_000, 8);
    println!("{refused} asked in vain");
}

#[test]
fn dates_that_contradict_each_other_are_refused_by_verify_and_at_the_start() {
    let jumping = Dates::Jumping {
        by_ms: 10_000,
        every: Duration::from_millis(100),
        lasting: Duration::from_millis(50),
    };
    for dates in [Dates::AheadOnEverySecondConnection(10_000), jumping] {
        let world = World::new();
        world.gateway.set_dates(dates);
        let (code, said) = world.verify();
        assert!(code == Some(3) && said.contains("contradict"), "{dates:?}: {code:?} {said}");
        let started = Server::try_start(world.behind());
        let (_, said) = started.err().unwrap_or_else(|| panic!("{dates:?}: it started"));
        assert!(said.contains("contradict"), "{dates:?}: {said}");
    }
}

#[test]
fn a_server_whose_bound_is_too_wide_goes_unready_and_says_so() {
    let world = World::new();
    let server = Server::start(world.behind());
    assert!(server.is_ready());
    world.gateway.set_dates(Dates::Ahead(AHEAD_MS));
    eventually("it is unready", || !server.is_ready());
    // One answer is enough to lose it, and many are not enough to win it back.
    world.gateway.set_dates(Dates::Kept);
    for number in 0..50 {
        let mut client = server.client();
        acquire(&mut client, &Ask::new(&format!("free-{number}"), "me"));
        let ready = server.metrics_client().call(&lockd_tests::Request::get("/readyz"));
        assert!(ready.status == 503 && ready.text().contains("contradict"), "{}", ready.text());
    }
}

#[test]
fn a_gateway_that_renews_its_date_once_a_second_is_taken() {
    let world = World::new();
    world.gateway.set_dates(Dates::RenewedOnceASecond);
    let (code, said) = world.verify();
    assert_eq!(code, Some(0), "{said}");
    let server = Server::start(world.behind());
    acquire(&mut server.client(), &Ask::new("k", "me"));
    assert!(server.is_ready());
}
