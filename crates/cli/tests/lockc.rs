//! `lockc` against a real server, as a person would use it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use serde_json::{Value, json};
use server::{LOCKC, LOCKD, Server, text};

/// Runs a script that must succeed; its standard output.
fn ok(server: &Server, script: &str) -> String {
    let output = server.shell(script);
    assert!(output.status.success(), "{script}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn fails(server: &Server, script: &str) -> (i32, String) {
    let output: Output = server.shell(script);
    assert!(!output.status.success(), "{script}: {}", text(&output.stdout));
    (output.status.code().unwrap(), text(&output.stderr))
}

#[test]
fn the_walk_with_yaml_and_json() {
    let server = Server::start();
    let out = ok(
        &server,
        r#"
        lockc acquire -s "$LOCKD_CLIENT_SERVER" orders --owner me
        echo 'step: fetch
items: [1, two]' > dump.yaml
        lockc state update -i dump.yaml > /dev/null
        lockc state get -o dump.json
        cat dump.json
        sed -i 's/fetch/done/' dump.json
        lockc state update -i dump.json > /dev/null
        lockc state get -o -
        lockc state get --type yaml | head -n 1
        lockc state get --public
        lockc keepalive --ttl 30s
        lockc release
        lockd client get orders
        "#,
    );
    let expected = "acquired orders token=1 ttl=30s\n\
        {\n  \"step\": \"fetch\",\n  \"items\": [\n    1,\n    \"two\"\n  ]\n}\n\
        {\"step\":\"done\",\"items\":[1,\"two\"]}\n\
        step: done\n\
        orders ttl=30s\n\
        released orders\n\
        {\"step\":\"done\",\"items\":[1,\"two\"]}\n";
    assert_eq!(out, expected);
}

#[test]
fn what_is_held_is_remembered_for_the_folder_and_those_below() {
    let server = Server::start();
    ok(&server, "mkdir -p deep/down && lockc acquire orders >/dev/null");
    let file = server.home.path().join(".lockc/context.json");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600, "it has a secret in it");
    ok(&server, "cd deep/down && echo 1 | lockc state update >/dev/null");
    let status = ok(&server, "cd deep/down && lockc status --output json");
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["key"], &status["state"]), (&json!("orders"), &json!("held")));
    let remembered: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let secret = remembered["held"][0]["lease_id"].as_str().unwrap();
    for output in ["text", "json", "yaml"] {
        assert!(!ok(&server, &format!("lockc status --output {output}")).contains(secret));
    }
    ok(&server, "lockc release");
    assert_eq!(server.ok(&["get", "orders"]), "1\n");
    let (code, said) = fails(&server, "lockc keepalive");
    assert_eq!((code, said.contains("lockc acquire")), (2, true), "{said}");
}

#[test]
fn a_shell_may_have_a_memory_of_its_own() {
    let server = Server::start();
    ok(&server, "LOCKC_CONTEXT=$PWD/one.json lockc acquire a >/dev/null");
    ok(&server, "LOCKC_CONTEXT=$PWD/two.json lockc acquire b >/dev/null");
    for (file, key) in [("one", "a"), ("two", "b")] {
        let said = ok(&server, &format!("LOCKC_CONTEXT=$PWD/{file}.json lockc release"));
        assert_eq!(said, format!("released {key}\n"));
    }
    let (code, _) = fails(&server, "lockc release");
    assert_eq!(code, 2, "the folder knows nothing");
}

#[test]
fn several_keys_are_held_and_the_last_is_meant() {
    let server = Server::start();
    let out = ok(
        &server,
        "lockc acquire a >/dev/null; lockc acquire b >/dev/null
         echo 1 | lockc state update -k a >/dev/null; echo 2 | lockc state update >/dev/null
         lockc state get; lockc state get --key a
         lockc release a; lockc status; lockc release; lockc status 2>&1",
    );
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..3], ["2", "1", "released a"]);
    assert!(lines[3].starts_with("KEY  STATE  TOKEN"), "{out}");
    assert!(lines[4].starts_with("b    held   1"), "{out}");
    assert_eq!(lines[5], "released b");
    assert!(lines[6].starts_with("lockc: nothing is held"), "{out}");
}

#[test]
fn a_lost_lease_is_told_and_forgotten() {
    let server = Server::start();
    for command in ["keepalive", "release", "state update -i state.json"] {
        ok(&server, "echo 1 > state.json; lockc acquire orders >/dev/null");
        server.ok(&["leases", "revoke", "orders", "--reason", "host is gone"]);
        let (code, _) = fails(&server, "lockc status");
        assert_eq!(code, 76);
        let (code, said) = fails(&server, &format!("lockc {command}"));
        assert_eq!(code, 76, "{command}: {said}");
        assert!(said.contains("host is gone"), "{said}");
        let (code, said) = fails(&server, &format!("lockc {command}"));
        assert_eq!((code, said.contains("nothing is held")), (2, true), "{command}: {said}");
    }
}

#[test]
fn a_server_that_is_away_is_no_reason_to_forget() {
    let mut server = Server::start();
    ok(&server, "lockc acquire orders >/dev/null");
    server.stop();
    let (code, said) = fails(&server, "lockc release");
    assert_eq!(code, 69, "{said}");
    assert!(ok(&server, "lockc status").contains("unknown"));
}

#[test]
fn a_busy_key_exits_with_75_and_leaves_no_trace() {
    let server = Server::start();
    server.acquire("orders", &["--owner", "worker-1"]);
    let (code, said) = fails(&server, "lockc acquire orders --block nowait");
    assert_eq!((code, said.contains("worker-1")), (75, true), "{said}");
    assert!(!server.home.path().join(".lockc").exists());
}

#[test]
fn finishing_in_one_step_releases_and_forgets() {
    let server = Server::start();
    ok(&server, "lockc acquire orders >/dev/null; echo '{\"a\":1}' > s.json");
    ok(&server, "lockc state update -i s.json --then release");
    assert_eq!(server.ok(&["get", "orders"]), "{\"a\":1}\n");
    let (_, said) = fails(&server, "lockc release");
    assert!(said.contains("nothing is held"), "{said}");
}

#[test]
fn a_context_that_cannot_be_written_gives_the_key_back() {
    let server = Server::start();
    // Nobody can make a folder there.
    let (code, said) = fails(&server, "LOCKC_CONTEXT=/proc/no/context.json lockc acquire orders");
    assert_eq!((code, said.contains("the key was released")), (1, true), "{said}");
    assert!(server.ok(&["describe", "orders"]).contains("holder:   nobody"));
    assert!(server.ok(&["describe", "orders"]).contains("token:    1"), "it had been taken");
}

#[test]
fn the_server_is_not_in_the_client() {
    let has = |file: &str, word: &str| {
        let bytes = std::fs::read(file).unwrap();
        bytes.windows(word.len()).any(|window| window == word.as_bytes())
    };
    let word = "lockd_server";
    assert!(has(LOCKD, word), "the word to look for is in the other program");
    assert!(!has(LOCKC, word));
}
