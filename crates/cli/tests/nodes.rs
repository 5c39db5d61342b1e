//! Nodes from a shell: what is refused before anything starts, and what is said when a node cannot
//! be asked.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use server::{LOCKD, Server, text};

const INSECURE: &str = "lockd://127.0.0.1:1?insecure=1";
const NODE: [&str; 3] = ["node-controller", "--controller=true", "--state=/proc/nothing"];

fn lockd(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(LOCKD);
    command.args(arguments).env_clear().env("HOME", "/nonexistent").stdin(Stdio::null());
    // A server without TLS is asked for outright; nothing else is needed for that.
    command.env("LOCKD_NODE_LOCK", INSECURE).env("LOCKD_CONTROLLER_STORE", INSECURE);
    command.env("LOCKD_NODE_NODE_ID", "a").envs(variables.iter().copied()).output().unwrap()
}

/// Its exit code, and what it says.
fn told(arguments: &[&str]) -> (i32, String) {
    let output = lockd(arguments, &[]);
    (output.status.code().unwrap(), text(&output.stderr))
}

#[test]
fn what_cannot_work_is_wrong_usage() {
    let node = |flags: &[&str]| told(&[&NODE, flags].concat());
    let agent = |flag: &str| told(&["agent", flag]);
    let controller = |flag: &str| told(&["controller", "--listen=127.0.0.1:0", flag]);
    for (refused, part) in [
        (node(&["--role-change=bogus"]), "role-change \"bogus\""),
        (node(&["--node-id", "a b"]), "no name of a node"),
        (node(&["--lock=lockd://127.0.0.1:9341"]), "no client bundle"),
        (node(&["--lock=lockd://127.0.0.1:9341"]), "--lock-bundle"),
        (node(&["--lock=lockd://127.0.0.1:9341"]), "?insecure=1"),
        (node(&["--lock=bogus://"]), "--lock cannot be used"),
        (node(&["--lock=postgres://a:b:c/d"]), "--lock cannot be used"),
        (node(&["--mutates=foo"]), "\"foo\""),
        (node(&["--preferred", "--never-lead"]), "preferred"),
        (node(&["--listen=0.0.0.0:9344"]), "pass --url http://NAME:9344"),
        (node(&["--listen=nonsense"]), "cannot listen on nonsense"),
        (node(&["--url=http://a:0"]), "http://host:port"),
        (node(&["--controller-url=http://h:1/app"]), "without a path"),
        (node(&["--token-file=/nowhere"]), "cannot read /nowhere"),
        (agent("--slots=0"), "jobs at once"),
        (agent("--controller=nonsense"), "no URL of a controller"),
        (agent("--log-level=]["), "log-level"),
        (controller("--store=lockd://127.0.0.1:9341"), "--store-bundle"),
        (controller("--cluster=X"), "no name of a cluster"),
        (controller("--lease-ttl=1ms"), "lease-ttl"),
        (controller("--store=postgres://a:b:c/d"), "--store cannot be used"),
    ] {
        assert_eq!(refused.0, 2, "{}", refused.1);
        assert!(refused.1.contains(part), "{part}: {}", refused.1);
    }
    let listed = [("LOCKD_NODE_READS", "POST /search,nonsense")];
    let refused = lockd(&NODE, &listed);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("\"nonsense\""), "{refused:?}");
}

#[test]
fn a_port_that_is_taken_is_told_once_with_the_next_step() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("--listen={}", taken.local_addr().unwrap());
    let state = tempfile::tempdir().unwrap();
    let state = format!("--state={}", state.path().display());
    let node = ["node-controller", "--controller=true", &state, &listen];
    for arguments in [&node[..], &["controller", &listen]] {
        let (code, said) = told(arguments);
        assert_eq!(code, 1, "{said}");
        assert_eq!(said.matches("Address already in use").count(), 1, "{said}");
        assert!(said.contains("pass another port with --listen"), "{said}");
    }
}

#[test]
fn who_is_no_node_is_told_from_who_is_not_there() {
    let (plain, secure) = (Server::start(), Server::start_with(&["--store", "mem://"]));
    let other = |url: &str, from: &str, to: &str| url.replacen(from, to, 1);
    for (url, code, part) in [
        (plain.address.clone(), 1, "is no node of lockd"),
        (plain.address.clone(), 1, "--url"),
        (other(&plain.address, "http:", "https:"), 69, "pass an http:// URL"),
        (other(&secure.address, "https:", "http:"), 69, "pass an https:// URL"),
        (secure.address.clone(), 69, "pass --bundle"),
        ("http://127.0.0.1:1".into(), 69, "start one with `lockd node-controller`"),
    ] {
        let (exit, said) = told(&["ha", "--url", &url, "status"]);
        assert_eq!(exit, code, "{url}: {said}");
        assert!(said.contains(part), "{url}: {said}");
    }
}

#[test]
fn a_switchover_that_takes_too_long_says_where_to_look() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let (code, said) = told(&["ha", "--url", &url, "switchover", "--timeout", "0.2"]);
    assert_eq!(code, 70, "{said}");
    assert!(said.contains("lockd ha status") && said.contains("lockd ha history"), "{said}");
}

#[test]
fn programs_hear_how_a_cluster_is_after_a_pause() {
    let node = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", node.local_addr().unwrap());
    let answering = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = node.accept().unwrap();
            let mut head = [0; 4_096];
            let _length = stream.read(&mut head).unwrap();
            let body = r#"{"node_id":"a","role":"LEADER","paused":true,"nodes":[]}"#;
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}");
            stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        }
    });
    for command in ["pause", "resume"] {
        let output = lockd(&["ha", "--url", &url, command, "--output", "json"], &[]);
        assert!(output.status.success(), "{output:?}");
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["paused"], true);
    }
    answering.join().unwrap();
}
