//! A server that stops: it grants nothing new, finishes the requests in flight, waits for held
//! leases where the settings ask for that, and ends. Leases that are still held live on in the store.

use std::time::{Duration, Instant};

use lockd_tests::http::Connection;
use lockd_tests::watch::Watch;
use lockd_tests::{Ask, Client, Options, Reply, Request, Server, eventually};
use lockd_wire::header;
use rustix::process::Signal;

const LONG_MS: u64 = 600_000;
/// Long before a grace of a minute is over, with room for a busy machine.
const BEFORE_GRACE: Duration = Duration::from_secs(40);

/// What a server says when it has begun with a request and wants its body.
const CONTINUE: [u8; 25] = *b"HTTP/1.1 100 Continue\r\n\r\n";

/// A server that waits for held leases.
fn patient(grace: &str) -> Options {
    Options::new().flag("drain-grace", grace).variable("LOCKD_DRAIN_LEASES", "true")
}

fn draining(server: &Server) -> Client {
    let mut client = server.client();
    eventually("it drains", || client.call(&Request::get("/readyz")).status == 503);
    client
}

#[track_caller]
fn is_marked(reply: &Reply) {
    assert_eq!(reply.header(header::SHUTDOWN_IMMINENT), Some("true"), "{reply:?}");
}

#[test]
fn holders_finish_while_nothing_new_is_granted_and_then_the_server_ends() {
    let mut server = Server::start(patient("60s"));
    let mut holder = server.client();
    let first = holder.acquire(&Ask::new("first", "holder").ttl_ms(LONG_MS));
    let second = holder.acquire(&Ask::new("second", "holder").ttl_ms(LONG_MS));
    let mut waiter = Connection::open(&server.place).expect("a connection");
    waiter.send(&Ask::new("first", "waiter").block(0).request()).expect("sent");
    eventually("it waits", || holder.waiters("first") == 1);
    let mut watch = Watch::open(&server.place, &[("key", "first")], None).expect("a watch");
    watch.snapshot("start");
    assert_eq!(holder.call(&Request::get("/readyz")).header(header::SHUTDOWN_IMMINENT), None);

    server.terminate();
    let mut client = draining(&server);

    let ready = client.call(&Request::get("/readyz"));
    ready.refused(503, "shutdown_draining");
    is_marked(&ready);
    let mut metrics = server.metrics_client();
    metrics.call(&Request::get("/readyz")).refused(503, "shutdown_draining");
    assert_eq!(metrics.call(&Request::get("/healthz")).status, 200);
    assert_eq!(client.call(&Request::get("/healthz")).status, 200);

    let sent_away = waiter.reply().expect("an answer");
    sent_away.refused(503, "shutdown_draining");
    is_marked(&sent_away);
    assert!(sent_away.header("retry-after").is_some());
    let refused = client.call(&Ask::new("free", "newcomer").request());
    refused.refused(503, "shutdown_draining");
    is_marked(&refused);
    assert!(watch.try_next().is_err(), "a watch ends, so that it is begun elsewhere");
    client.call(&Request::get("/v1/watch")).refused(503, "shutdown_draining");

    // Everything that a holder needs still works.
    for request in [
        first.keepalive(LONG_MS),
        first.update(r#"{"done":1}"#),
        first.mutate(&["/done++"]),
        first.get(),
        first.release(),
    ] {
        let reply = holder.call(&request).ok();
        is_marked(&reply);
    }
    assert_eq!(client.public("first").expect("a document").body, br#"{"done":2}"#);
    assert!(!server.log().contains("stopped"), "one lease is still held");
    holder.release(&second);
    assert_eq!(server.ended(BEFORE_GRACE).code(), Some(0));
    assert!(server.log().contains("leases_left=0"), "{}", server.log());
}

#[test]
fn a_server_with_held_leases_stops_without_waiting_for_them() {
    let mut server =
        Server::start(Options::new().flag("drain-grace", "60s").flag("shutdown-timeout", "60s"));
    let mut holder = server.client();
    let held = holder.acquire(&Ask::new("k", "holder").ttl_ms(LONG_MS));
    holder.call(&held.update(r#"{"staged":true}"#)).ok();
    let start = Instant::now();
    server.terminate();
    assert_eq!(server.ended(BEFORE_GRACE).code(), Some(0));
    println!("stopped after {:?}", start.elapsed());
    assert!(server.log().contains("leases_left=1"), "{}", server.log());

    server.start_again();
    let mut client = server.client();
    client.call(&Ask::new("k", "thief").request()).refused(409, "waiting");
    client.call(&held.keepalive(LONG_MS)).ok();
    assert_eq!(client.call(&held.get()).ok().body, br#"{"staged":true}"#);
}

#[test]
fn connections_without_a_request_do_not_hold_up_the_end() {
    let mut server =
        Server::start(Options::new().flag("drain-grace", "60s").flag("shutdown-timeout", "60s"));
    let _silent = Connection::open(&server.place).expect("a connection");
    let mut idle = Connection::open(&server.place).expect("a connection");
    idle.send(&Request::get("/healthz")).expect("sent");
    idle.reply().expect("an answer").ok();
    let mut half = Connection::open(&server.place).expect("a connection");
    std::io::Write::write_all(&mut half.socket, b"GET /healthz HTTP/1.1\r\nhost:").expect("sent");
    let mut again = Connection::open(&server.place).expect("a connection");
    again.send(&Request::get("/healthz")).expect("sent");
    again.reply().expect("an answer").ok();
    std::io::Write::write_all(&mut again.socket, b"GET /healthz HTTP/1.1\r\n").expect("sent");
    let start = Instant::now();
    server.terminate();
    assert_eq!(server.ended(BEFORE_GRACE).code(), Some(0));
    println!("stopped after {:?}", start.elapsed());
}

#[test]
fn a_server_without_holders_ends_at_once() {
    let mut server = Server::start(Options::new().flag("drain-grace", "60s"));
    let mut client = server.client();
    let held = client.acquire(&Ask::new("k", "holder"));
    client.call(&held.update("1").query("then", "release")).ok();
    server.terminate();
    assert_eq!(server.ended(BEFORE_GRACE).code(), Some(0));
    server.start_again();
    assert_eq!(server.client().public("k").expect("a document").body, b"1");
}

#[test]
fn leases_that_are_left_when_the_grace_is_over_live_on() {
    let mut server = Server::start(patient("1s"));
    let mut client = server.client();
    let held = client.acquire(&Ask::new("k", "holder").ttl_ms(LONG_MS));
    client.call(&held.update(r#"{"staged":true}"#)).ok();
    let start = Instant::now();
    server.terminate();
    assert_eq!(server.ended(Duration::from_secs(40)).code(), Some(0));
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    assert!(server.log().contains("leases_left=1"), "{}", server.log());

    server.start_again();
    let mut client = server.client();
    client.call(&Ask::new("k", "thief").request()).refused(409, "waiting");
    assert_eq!(client.public("k"), None, "what was staged is not committed by stopping");
    client.call(&held.keepalive(LONG_MS)).ok();
    assert_eq!(client.call(&held.get()).ok().body, br#"{"staged":true}"#);
    client.release(&held);
    assert_eq!(client.public("k").expect("a document").body, br#"{"staged":true}"#);
    assert_eq!(client.acquire(&Ask::new("k", "next")).token, held.token + 1);
}

#[test]
fn a_lease_that_runs_out_does_not_hold_up_the_end() {
    let mut server = Server::start(patient("60s"));
    server.client().acquire(&Ask::new("k", "gone").ttl_ms(500));
    server.terminate();
    assert_eq!(server.ended(BEFORE_GRACE).code(), Some(0));
    assert!(server.log().contains("leases_left=0"), "{}", server.log());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for again in [Signal::TERM, Signal::INT] {
        let mut server = Server::start(patient("60s"));
        let held = server.client().acquire(&Ask::new("k", "holder").ttl_ms(LONG_MS));
        server.terminate();
        draining(&server);
        server.signal(again);
        assert_eq!(server.ended(BEFORE_GRACE).code(), Some(0));
        server.start_again();
        server.client().call(&held.keepalive(LONG_MS)).ok();
    }
}

#[test]
fn a_request_in_flight_is_finished_and_meanwhile_holders_are_served() {
    let mut server = Server::start(Options::new().flag("drain-grace", "60s"));
    let mut client = server.client();
    let held = client.acquire(&Ask::new("k", "holder").ttl_ms(LONG_MS));
    let other = client.acquire(&Ask::new("other", "holder").ttl_ms(LONG_MS));
    // A body that is half there when the signal comes.
    let mut connection = Connection::open(&server.place).expect("a connection");
    let update = held.update("[1,2]").query("then", "release").header("expect", "100-continue");
    let bytes = update.bytes();
    let (most, rest) = bytes.split_at(bytes.len() - 2);
    std::io::Write::write_all(&mut connection.socket, most).expect("sent");
    let mut begun = [0; CONTINUE.len()];
    std::io::Read::read_exact(&mut connection.socket, &mut begun).expect("the server reads on");
    assert_eq!(begun, CONTINUE);
    server.terminate();
    draining(&server);
    is_marked(&client.call(&other.keepalive(LONG_MS)).ok());
    is_marked(&client.call(&other.update("3")).ok());
    assert!(!server.log().contains("stopped"), "a request is in flight");
    std::io::Write::write_all(&mut connection.socket, rest).expect("sent");
    let reply = connection.reply().expect("an answer").ok();
    is_marked(&reply);
    assert_eq!(server.ended(BEFORE_GRACE).code(), Some(0));
    assert!(server.log().contains("leases_left=1"), "{}", server.log());
    server.start_again();
    let mut client = server.client();
    assert_eq!(client.public("k").expect("a document").body, b"[1,2]");
    assert_eq!(client.call(&other.get()).ok().body, b"3");
}
