//! The commands around the others: explanations, completions, manual pages, and how things look.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::process::{Command, Output, Stdio};

use server::{LOCKC, LOCKD, Server, text};

fn lockd(arguments: &[&str]) -> Output {
    let mut command = Command::new(LOCKD);
    command.args(arguments).env_clear().env("HOME", "/nonexistent").stdin(Stdio::null());
    command.output().unwrap()
}

fn ok(arguments: &[&str]) -> String {
    let output = lockd(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command at a terminal; what it shows there.
fn at_a_terminal(server: &Server, line: &str) -> String {
    let line = line.replace("lockd", LOCKD);
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env_clear()
        .env("HOME", server.home.path())
        .env("PATH", "/usr/bin:/bin")
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .env("LOCKD_CLIENT_SERVER", &server.address)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", text(&output.stdout));
    text(&output.stdout).replace('\r', "")
}

#[test]
fn a_code_is_explained() {
    let page = ok(&["explain", "fencing_mismatch"]);
    assert!(page.starts_with("# `fencing_mismatch`\n"), "{page}");
    assert!(page.contains("## Is it safe to retry?"), "{page}");
    let json: serde_json::Value =
        serde_json::from_str(&ok(&["explain", "waiting", "--output", "json"])).unwrap();
    assert_eq!(json["code"], "waiting");
    assert!(json["status"].as_str().unwrap().starts_with("409"), "{json}");
    let list = ok(&["explain", "--list"]);
    assert!(list.lines().any(|line| line.starts_with("waiting ")), "{list}");
}

#[test]
fn a_code_that_is_none_brings_near_ones() {
    let output = lockd(&["explain", "fencing_mismach"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("did you mean fencing_mismatch"), "{said}");
    assert_eq!(lockd(&["explain"]).status.code(), Some(2));
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = ok(&["completions", shell]);
        for word in ["acquire", "keepalive", "explain", "--fencing-token"] {
            let found = script.contains(word) || script.contains(word.trim_start_matches('-'));
            assert!(found, "{shell}: {word}");
        }
    }
}

#[test]
fn completing_in_bash_finds_commands() {
    let line = format!(
        "source <({LOCKD} completions bash) && COMP_WORDS=(lockd client ke) COMP_CWORD=2 && \
         _lockd lockd ke client && echo \"${{COMPREPLY[@]}}\" && \
         source <({LOCKC} completions bash) && COMP_WORDS=(lockc re) COMP_CWORD=1 && \
         _lockc lockc re lockc && echo \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert_eq!(text(&output.stdout), "keepalive\nrelease\n", "{}", text(&output.stderr));
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("man1");
    ok(&["man", "--dir", target.to_str().unwrap()]);
    for page in ["lockd", "lockd-client", "lockd-client-acquire", "lockd-auth-new-server"] {
        let page = std::fs::read_to_string(target.join(format!("{page}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!target.join("lockd-demo-worker.1").exists(), "hidden commands stay hidden");
    assert!(ok(&["man"]).contains(".TH lockd 1"));
}

#[test]
fn people_see_tables_and_programs_see_lines() {
    let server = Server::start();
    server.acquire("orders", &["--owner", "me"]);
    let shown = at_a_terminal(&server, "lockd client leases");
    let first = shown.lines().next().unwrap();
    assert!(first.starts_with("KEY") && first.contains("OWNER") && first.contains("WAITING"));
    assert!(shown.lines().nth(1).unwrap().starts_with("default/orders  me"), "{shown}");
    let shown = at_a_terminal(&server, "lockd client ls --long");
    assert!(shown.starts_with("KEY") && shown.contains("\norders  held"), "{shown}");
    assert!(server.ok(&["leases"]).starts_with("default/orders\towner=me\t"));
}

#[test]
fn no_color_means_no_color() {
    let server = Server::start();
    let plain = |line: &str| !at_a_terminal(&server, line).contains('\u{1b}');
    let away = "lockd client --verbose --server http://127.0.0.1:1 get k || true";
    for line in ["lockd --help", away] {
        assert!(!plain(line), "there is colour to be switched off: {line}");
        assert!(plain(&format!("export NO_COLOR=1; {line}")), "{line}");
    }
    assert!(plain("lockd client leases"));
}

#[test]
fn yaml_is_a_format_everywhere() {
    let server = Server::start();
    let lease = server.acquire("orders", &[]);
    server.under(&lease, &["update", "--commit"], "1");
    for arguments in [
        &["describe", "orders", "--output", "yaml"][..],
        &["ls", "--output", "yaml"],
        &["leases", "--output", "yaml"],
        &["acquire", "other", "--output", "yaml"],
    ] {
        let yaml = server.ok(arguments);
        assert!(yaml.contains("key: "), "{arguments:?}: {yaml}");
    }
    for arguments in [&["keepalive", "--output", "yaml"][..], &["update", "--output", "yaml"]] {
        let output = server.under(&lease, arguments, "2");
        assert!(text(&output.stdout).contains(": "), "{arguments:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("data");
    let store = store.to_str().unwrap();
    Server::start_with(&["--disable-mtls", "--store", store]).stop();
    let yaml = ok(&["store", "check", "--store", store, "--output", "yaml"]);
    assert!(yaml.contains("records: 1"), "{yaml}");
}

#[test]
fn a_slow_upload_shows_how_far_it_is() {
    let server = Server::start();
    let send = |pause: &str| {
        let line = format!(
            "eval \"$(lockd client acquire orders)\" && \
             (printf '[\"'; head -c 3000000 /dev/zero | tr '\\0' x; {pause}; printf '\"]') | \
             lockd client update --then release"
        );
        at_a_terminal(&server, &line)
    };
    assert!(!send("true").contains("MiB"), "what is quick needs none");
    let shown = send("sleep 1.2");
    assert!(shown.contains("2.86 MiB"), "{shown:?}");
}
