//! Client commands over mutual TLS: a server that made its own certificates, and bundles that are
//! found, named, copied and refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::path::Path;
use std::process::{Command, Output};

use server::{LOCKC, LOCKD, Server, text};

/// A command in a folder, with that folder as its home.
fn run(program: &str, folder: &Path, server: &str, line: &str) -> Output {
    Command::new(program)
        .env_clear()
        .env("HOME", folder)
        .env("LOCKD_CLIENT_SERVER", server)
        .current_dir(folder)
        .args(line.split_whitespace())
        .output()
        .unwrap()
}

fn ok(program: &str, folder: &Path, server: &str, line: &str) -> String {
    let output = run(program, folder, server, line);
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn secure() -> Server {
    let server = Server::start_with(&["--store", "mem://"]);
    assert!(server.address.starts_with("https://"), "{}", server.address);
    server
}

#[test]
fn a_fresh_server_and_a_client_on_the_same_machine_just_work() {
    let server = secure();
    // Without a scheme it is TLS, and the bundle is found where the server has put it.
    let bare = server.address.trim_start_matches("https://");
    let home = server.home.path();
    let exports = ok(LOCKD, home, bare, "client acquire orders");
    assert!(exports.contains("/.lockd/client.pem\""), "later commands find it: {exports}");
    let holder = ok(LOCKD, home, bare, "client describe orders");
    assert!(!holder.contains("nobody"), "{holder}");
    let output = run(LOCKD, home, bare, "client --disable-mtls describe orders");
    assert_eq!(output.status.code(), Some(69), "plain HTTP: {}", text(&output.stderr));
}

#[test]
fn a_bundle_that_was_copied_elsewhere_works_under_any_name_of_the_server() {
    let server = secure();
    let away = tempfile::tempdir().unwrap();
    let output = run(LOCKD, away.path(), &server.address, "client ls");
    assert_eq!(output.status.code(), Some(2), "there is no bundle here");
    let bundle = server.home.path().join(".lockd/client.pem");
    std::fs::copy(&bundle, away.path().join("client-copied.pem")).unwrap();
    ok(LOCKD, away.path(), &server.address, "client ls");
    let port = server.address.rsplit(':').next().unwrap();
    ok(LOCKD, away.path(), &format!("localhost:{port}"), "client ls");

    std::fs::copy(&bundle, away.path().join("client-2.pem")).unwrap();
    let output = run(LOCKD, away.path(), &server.address, "client ls");
    let said = text(&output.stderr);
    assert!(said.contains("client-copied.pem") && said.contains("client-2.pem"), "{said}");
    ok(LOCKD, away.path(), &server.address, "client ls --bundle client-2.pem");
    ok(LOCKD, away.path(), &server.address, "client -b client-2.pem ls");
}

#[test]
fn a_bundle_of_another_ca_is_not_let_in() {
    let server = secure();
    let away = tempfile::tempdir().unwrap();
    ok(LOCKD, away.path(), "", "auth new server --out server.pem");
    ok(LOCKD, away.path(), "", "auth new client --out client.pem --ca-in ca.pem");
    let output = run(LOCKD, away.path(), &server.address, "client ls");
    assert!(!output.status.success(), "{}", text(&output.stdout));
}

#[test]
fn lockc_remembers_the_bundle() {
    let server = secure();
    let away = tempfile::tempdir().unwrap();
    let bundle = server.home.path().join(".lockd/client.pem");
    std::fs::copy(bundle, away.path().join("mine.pem")).unwrap();
    let address = &server.address;
    ok(LOCKC, away.path(), "", &format!("acquire -s {address} -i mine.pem orders"));
    std::fs::write(away.path().join("s.yaml"), "a: 1\n").unwrap();
    ok(LOCKC, away.path(), "", "state update -i s.yaml");
    assert_eq!(ok(LOCKC, away.path(), "", "state get"), "{\"a\":1}\n");
    assert_eq!(ok(LOCKC, away.path(), "", "release"), "released orders\n");
}

#[test]
fn the_walk_of_a_shell_works_over_mutual_tls() {
    let server = secure();
    let port = server.address.rsplit(':').next().unwrap();
    let script = r#"
        unset LOCKD_CLIENT_SERVER
        eval "$(lockd client acquire --server localhost:9341 --owner worker-1 --ttl 30s orders)"
        lockd client keepalive --ttl 45s orders >/dev/null
        lockd client set orders status.counter=1 >/dev/null
        lockd client get orders -o - \
          | lockd client edit status.counter++ \
          | lockd client update orders >/dev/null
        lockd client set orders progress.step=fetch progress.count++ time:progress.updated=NOW >/dev/null
        echo '{"progress":{"count":1}}' > checkpoint.json
        lockd client edit --file checkpoint.json progress.step="done" progress.count=+5
        lockd client mutate orders rm:progress.updated >/dev/null
        lockd client release orders
        cat checkpoint.json
        unset LOCKD_CLIENT_LEASE
        lockd client get orders
    "#;
    let output = server.shell(&script.replace("localhost:9341", &format!("localhost:{port}")));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = "{\"progress\":{\"count\":6,\"step\":\"done\"}}\n\
        {\"status\":{\"counter\":2},\"progress\":{\"step\":\"fetch\",\"count\":1}}\n";
    assert_eq!(text(&output.stdout), expected);
}
