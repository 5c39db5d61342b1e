//! What programs read: exit codes, errors as JSON, names as they are stored, owners that still exist,
//! and the settings of a server with where they come from.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use server::{LOCKC, LOCKD, Server, text};

fn run(program: &str, home: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("HOME", home).env("PATH", "/usr/bin:/bin");
    command.envs(variables.iter().copied()).current_dir(home).stdin(Stdio::null());
    command.output().unwrap()
}

fn at(home: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = run(LOCKD, home, arguments, &[]);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn nothing_to_dequeue_has_an_exit_code_of_its_own() {
    let server = Server::start();
    let (code, said) = server.fails(&["queue", "dequeue", "jobs", "--block", "nowait"]);
    assert_eq!(code, 74, "{said}");
    assert!(said.contains("no message came from jobs"), "{said}");
}

#[test]
fn an_error_is_json_where_answers_are() {
    let server = Server::start();
    server.acquire("orders", &["--owner", "worker-1"]);
    let busy = ["acquire", "orders", "--block", "nowait", "--output", "json"];
    let empty = ["queue", "dequeue", "jobs", "--block", "nowait", "--output", "json"];
    for (arguments, exit, error, code) in
        [(&busy[..], 75, "busy", Some("waiting")), (&empty[..], 74, "nothing", None)]
    {
        let (exited, said) = server.fails(arguments);
        assert_eq!(exited, exit, "{said}");
        let told: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&told["error"], &told["exit_code"]), (&error.into(), &exit.into()), "{said}");
        assert_eq!(told["code"].as_str(), code, "{said}");
        assert!(told["message"].as_str().is_some_and(|message| !message.is_empty()), "{said}");
    }
    let home = tempfile::tempdir().unwrap();
    for program in [LOCKD, LOCKC] {
        let wrong = run(program, home.path(), &["--output", "json", "no-such-thing"], &[]);
        assert_eq!(wrong.status.code(), Some(2));
        let told: Value = serde_json::from_slice(&wrong.stderr).unwrap();
        assert_eq!(told["error"], "usage", "{told}");
    }
    let (code, _, said) =
        at(home.path(), &["--config", "nowhere", "config", "show", "--output=json"]);
    let told: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &told["exit_code"]), (2, &2.into()), "{said}");
}

#[test]
fn a_key_is_shown_as_it_is_stored() {
    let server = Server::start();
    let lease: Value =
        serde_json::from_str(&server.ok(&["acquire", "Orders/A", "--output", "json"])).unwrap();
    assert_eq!(lease["key"], "orders/a");
    assert_eq!(server.ok(&["ls"]), "orders/a\n");
    let exports = server.ok(&["acquire", "Second"]);
    assert!(exports.contains("export LOCKD_CLIENT_KEY=\"second\""), "{exports}");
    let home = tempfile::tempdir().unwrap();
    let acquired = run(LOCKC, home.path(), &["acquire", "-s", &server.address, "Third"], &[]);
    assert!(text(&acquired.stdout).starts_with("acquired third "), "{acquired:?}");
}

#[test]
fn a_key_without_a_state_has_no_time_of_its_last_change() {
    let server = Server::start();
    server.acquire("orders", &[]);
    let listed = server.ok(&["ls", "--long"]);
    assert!(!listed.contains("1970") && listed.contains("\t-\torders"), "{listed}");
}

#[test]
fn what_a_command_leaves_behind_is_owned_by_someone_who_is_still_there() {
    let server = Server::start();
    let owner = |variables: &[(&str, &str)], key: &str| {
        let mut command = server.client(["acquire", key, "--output", "json"]);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let lease: Value = serde_json::from_slice(&output.stdout).unwrap();
        lease["owner"].as_str().unwrap().to_owned()
    };
    let named = owner(&[("USER", "kim")], "a");
    let machine = rustix::system::uname();
    assert_eq!(named, format!("kim@{}", machine.nodename().to_str().unwrap()));
    let same = owner(&[("USER", "kim")], "b");
    assert_eq!(named, same, "it names no process, which would be gone");
    assert!(owner(&[], "c").starts_with("uid-"));
    assert_eq!(owner(&[("USER", "kim"), ("LOCKD_CLIENT_OWNER", "w-1")], "d"), "w-1");
}

#[test]
fn nothing_is_said_twice() {
    let server = Server::start();
    server.acquire("orders", &["--owner", "worker-1"]);
    let (_, said) = server.fails(&["acquire", "orders", "--block", "nowait"]);
    assert_eq!(said.matches("the key is held by another").count(), 1, "{said}");
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("unknown.yaml"), "nope: 1\n").unwrap();
    std::fs::write(home.path().join("broken.yaml"), "listen: [a\n").unwrap();
    for (arguments, sentence) in [
        (&["coordinator", "--config", "unknown.yaml"][..], "unknown field `nope`"),
        (&["node-controller", "--config", "unknown.yaml"], "unknown field `nope`"),
        (&["--config", "broken.yaml"], "unclosed bracket"),
    ] {
        let (code, _, said) = at(home.path(), arguments);
        assert_eq!(code, 2, "{said}");
        assert_eq!(said.matches(sentence).count(), 1, "{said}");
        assert!(said.contains("line 1"), "{said}");
    }
}

#[test]
fn a_client_command_without_client_is_shown_the_way() {
    let home = tempfile::tempdir().unwrap();
    for name in ["acquire", "run", "queue"] {
        let (code, _, said) = at(home.path(), &[name, "x"]);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(&format!("`lockd client {name}`")), "{said}");
    }
    let (code, _, said) = at(home.path(), &["nonsense"]);
    assert!(code == 2 && !said.contains("lockd client"), "{said}");
}

#[test]
fn every_daemon_has_the_same_options_and_says_wrong_settings_with_2() {
    let home = tempfile::tempdir().unwrap();
    for daemon in [&[][..], &["coordinator"], &["node-controller"], &["controller"], &["agent"]] {
        let (_, help, _) = at(home.path(), &[daemon, &["--help"]].concat());
        for option in ["--log-format", "--log-level"] {
            assert!(help.contains(option), "{daemon:?}: {option}");
        }
        assert!(!help.contains("--log-json "), "{daemon:?}");
        for wrong in ["--log-format=xml", "--log-level=]["] {
            let controller = ["--controller=true", "--lock=lockd://a:1?insecure=1"];
            let more = if daemon == ["node-controller"] { &controller[..] } else { &[] };
            let (code, _, said) = at(home.path(), &[daemon, &[wrong], more].concat());
            assert_eq!(code, 2, "{daemon:?} {wrong}: {said}");
        }
    }
}

#[test]
fn the_settings_are_shown_with_where_each_comes_from() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("c.yaml");
    std::fs::write(&file, "max-ttl: 20m\njson-max: 1MiB\n").unwrap();
    let arguments =
        ["--config", "c.yaml", "--json-max", "2MiB", "config", "show", "--output", "json"];
    let variables = [("LOCKD_MAX_TTL", "10m"), ("LOCKD_NODE_LOCK", "x")];
    let shown = run(LOCKD, home.path(), &arguments, &variables);
    assert_eq!(text(&shown.stderr), "");
    let settings: Vec<Value> = serde_json::from_slice(&shown.stdout).unwrap();
    let of = |name: &str| {
        let found = settings.iter().find(|setting| setting["name"] == name).unwrap();
        (found["value"].as_str().unwrap().to_owned(), found["source"].as_str().unwrap().to_owned())
    };
    assert_eq!(of("json-max"), ("2MiB".into(), "--json-max".into()));
    assert_eq!(of("max-ttl"), ("10m".into(), "LOCKD_MAX_TTL".into()));
    assert_eq!(of("default-ttl"), ("30s".into(), "default".into()));
    let (code, lines, _) = at(home.path(), &["--config", "c.yaml", "config", "show"]);
    assert_eq!(code, 0);
    assert!(lines.contains("max-ttl\t20m\tc.yaml: max-ttl\n"), "{lines}");
    let (code, _, said) = at(home.path(), &["--max-ttl", "soon", "config", "show"]);
    assert!(code == 2 && said.contains("--max-ttl"), "{said}");
}

#[test]
fn the_version_names_the_commit_and_the_build() {
    let home = tempfile::tempdir().unwrap();
    let (_, json, _) = at(home.path(), &["version", "--output", "json"]);
    let told: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    let commit = told["commit"].as_str().unwrap();
    assert!(commit == "unknown" || commit.len() >= 7, "{told}");
    for name in ["profile", "target", "rustc"] {
        assert!(told["build"][name].as_str().is_some_and(|value| !value.is_empty()), "{told}");
    }
}

#[test]
fn a_low_hard_limit_for_files_lowers_the_connections_with_a_warning() {
    let home = tempfile::tempdir().unwrap();
    let script =
        format!("ulimit -n 2048; exec {LOCKD} --disable-mtls --store mem:// --listen 127.0.0.1:0");
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    let mut server = shell.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = String::new();
    for line in BufReader::new(server.stderr.take().unwrap()).lines() {
        log.push_str(&line.unwrap());
        if log.contains("listening on") {
            break;
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(log.contains("max-connections lowered from 12000 to 1024"), "{log}");
    assert!(log.contains("LimitNOFILE="), "{log}");
}
