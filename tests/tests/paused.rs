//! The holder that slept: a process is stopped between deciding to write and writing. Its lease
//! runs out, another takes over and writes, then the first one wakes and goes on. Nothing that it
//! sends may have an effect any more, neither on the key it held nor, with a fence condition, on
//! any other.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use lockd_tests::process::{is_stopped, signal};
use lockd_tests::{Ask, Server, eventually};
use rustix::process::Signal;

/// Stops a holder, lets `meanwhile` happen, wakes it, and returns what it was told.
fn wake_late(server: &Server, meanwhile: impl FnOnce()) -> Vec<String> {
    let lockd_tests::Place::Tcp(address) = &server.place else { panic!("a TCP server") };
    let mut holder = Command::new(env!("CARGO_BIN_EXE_paused_holder"))
        .arg(address.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the holder can be started");
    let mut lines = BufReader::new(holder.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "holding 1");
    let pid = holder.id();
    eventually("the holder has stopped", || is_stopped(pid));
    meanwhile();
    signal(&holder, Signal::CONT);
    let told = lines.map(|line| line.expect("text")).collect();
    assert!(holder.wait().expect("it ends").success(), "the holder failed");
    told
}

#[test]
fn a_holder_that_wakes_late_changes_nothing() {
    let server = Server::usual();
    let mut client = server.client();
    let told = wake_late(&server, || {
        let next = client.acquire(&Ask::new("leader", "successor").ttl_ms(60_000).block(0));
        assert_eq!(next.token, 2);
        client.call(&next.commit(r#"{"by":"successor"}"#)).ok();
    });
    assert_eq!(
        told,
        [
            "half sent: 403 lease_expired",
            "own key: 403 lease_expired",
            "staged: 403 lease_expired",
            // Nothing was staged, so having let go of it is no lie.
            "release: 200 ",
            "keepalive: 403 lease_expired",
            "other key: 409 fence_failed",
            // The lease on the other key is its own: the fence alone has kept it from writing.
            "unfenced: 200 ",
        ]
    );
    let leader = client.public("leader").expect("the successor's document");
    assert_eq!((leader.version, leader.body.as_slice()), (1, &br#"{"by":"successor"}"#[..]));
    assert_eq!(client.public("other"), None);
    assert_eq!(client.describe("other")["version"], 0);
    assert_eq!(client.owner("leader").as_deref(), Some("successor"));
    eventually("the half-sent document is gone", || server.blobs().is_empty());
}

#[test]
fn a_holder_that_wakes_late_is_refused_even_if_nobody_came() {
    let server = Server::usual();
    let mut client = server.client();
    let told = wake_late(&server, || {
        eventually("the lease ran out", || client.owner("leader").is_none());
    });
    assert_eq!(
        told,
        [
            "half sent: 403 lease_expired",
            "own key: 403 lease_expired",
            "staged: 403 lease_expired",
            // Nothing was staged, so letting go of it is no lie.
            "release: 200 ",
            "keepalive: 403 lease_expired",
            // Nobody holds the key under a newer token: the condition still holds.
            "other key: 200 ",
            "unfenced: 200 ",
        ]
    );
    assert_eq!(client.public("leader"), None);
}

#[test]
fn a_holder_that_wakes_after_its_successor_has_finished_is_fenced_by_its_token() {
    let server = Server::usual();
    let mut client = server.client();
    let told = wake_late(&server, || {
        let next = client.acquire(&Ask::new("leader", "successor").ttl_ms(60_000).block(0));
        client.call(&next.update(r#"{"by":"successor"}"#)).ok();
        client.release(&next);
    });
    // Nobody holds the key now, and still the token of the sleeper is out of date.
    assert_eq!(
        told,
        [
            "half sent: 403 fencing_mismatch",
            "own key: 403 fencing_mismatch",
            "staged: 403 fencing_mismatch",
            "release: 403 fencing_mismatch",
            "keepalive: 403 fencing_mismatch",
            "other key: 409 fence_failed",
            "unfenced: 200 ",
        ]
    );
    let leader = client.public("leader").expect("the successor's document");
    assert_eq!((leader.version, leader.body.as_slice()), (1, &br#"{"by":"successor"}"#[..]));
}
