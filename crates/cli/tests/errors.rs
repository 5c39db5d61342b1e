//! Errors name the peer and the likely cause, for clients and in the logs of daemons.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod server;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use server::{LOCKD, Server, text};

fn lockd(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(LOCKD);
    command.args(arguments).env_clear().env("HOME", home).current_dir(home).stdin(Stdio::null());
    command
}

fn client(home: &Path, server: &str, more: &[&str]) -> Output {
    let arguments = [&["client", "--server", server], more, &["get", "orders"]].concat();
    lockd(home, &arguments).output().unwrap()
}

/// What a daemon logs until a line holds all the words; then it is killed.
fn logged(home: &Path, arguments: &[&str], words: &[&str]) -> String {
    let mut daemon = lockd(home, arguments).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(daemon.stderr.take().unwrap()).lines();
    let mut log = String::new();
    // A daemon that never says it goes on for ever: it tries again and logs each time.
    for line in lines.map(Result::unwrap).take(40) {
        let found = words.iter().all(|word| line.contains(word));
        log.push_str(&line);
        log.push('\n');
        if found {
            drop(daemon.kill());
            drop(daemon.wait());
            return log;
        }
    }
    drop(daemon.kill());
    drop(daemon.wait());
    panic!("no line has {words:?}:\n{log}");
}

fn swapped(address: &str) -> String {
    match address.strip_prefix("https") {
        Some(rest) => format!("http{rest}"),
        None => address.replacen("http", "https", 1),
    }
}

#[test]
fn a_wrong_scheme_and_a_foreign_bundle_are_named_with_the_next_step() {
    let (plain, secure) = (Server::start(), Server::start_with(&["--store", "mem://"]));
    let home = secure.home.path();
    for (server, cause) in [
        (swapped(&secure.address), "it speaks TLS: write https://"),
        (swapped(&plain.address), "it does not speak TLS: write http://"),
    ] {
        let output = client(home, &server, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains(&server) && said.contains(cause), "{said}");
        assert!(!said.contains("is the server running"), "it is: {said}");
    }
    let away = tempfile::tempdir().unwrap();
    for line in ["new ca", "new server", "new client"] {
        let words: Vec<&str> = ["auth"].into_iter().chain(line.split(' ')).collect();
        assert!(lockd(away.path(), &words).output().unwrap().status.success(), "{line}");
    }
    let output = client(away.path(), &secure.address, &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(77), "{said}");
    assert!(said.contains(&secure.address) && said.contains("--bundle"), "{said}");
}

#[test]
fn the_logs_of_daemons_name_who_is_away_and_why() {
    let secure = Server::start_with(&["--store", "mem://"]);
    let home = secure.home.path();
    let (_, port) = secure.address.rsplit_once(':').unwrap();
    let listen = "--listen=127.0.0.1:0";
    let redis = |address: &str| format!("--redis=redis://{address}");
    let away = redis("127.0.0.1:1");
    logged(
        home,
        &["coordinator", listen, &away],
        &["heartbeat failed", "redis 127.0.0.1:1: Connection refused"],
    );
    logged(
        home,
        &["coordinator", listen, &away],
        &["lock", "redis 127.0.0.1:1: Connection refused"],
    );
    let tls = redis(&format!("127.0.0.1:{port}"));
    logged(home, &["coordinator", listen, &tls], &["only over TLS (rediss://)"]);
    let insecure = format!("--store=lockd://127.0.0.1:{port}?insecure=1");
    let named = format!("http://127.0.0.1:{port}");
    logged(
        home,
        &["controller", listen, &insecure],
        &["the store cannot be asked", &named, "it speaks TLS: write https://"],
    );
    let server = format!("--server={named}");
    let backend = ["coordinator", listen, "--backend=lockd", &server];
    logged(home, &backend, &["heartbeat failed", &named, "it speaks TLS: write https://"]);
}
