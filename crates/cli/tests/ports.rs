//! The usual ports: one table in the code, and everything that repeats it reads the same.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use lockd_cli::ports;
use server::{LOCKD, text};

/// The README's server over plain HTTP, beside the usual one.
const EXAMPLE: u16 = 9340;
/// A second program of a kind on the same machine.
const SECOND: u16 = 10;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn port_of(name: &str) -> u16 {
    ports::ALL.iter().find(|(known, _)| *known == name).unwrap().1
}

/// What may hold a port: settings, units, manifests, documents and help texts.
fn files() -> Vec<PathBuf> {
    let mut folders = ["deploy", "docs", "crates/cli/src"].map(|name| root().join(name)).to_vec();
    let mut files = vec![root().join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().unwrap() != "benchmarks.md" {
                files.push(path);
            }
        }
    }
    files
}

/// The ports of ours that a line names.
fn ports_in(line: &str) -> Vec<u16> {
    let numbers = line.split(|c: char| !c.is_ascii_alphanumeric());
    let ours = numbers.filter(|number| number.len() == 4 && number.starts_with("93"));
    ours.filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn no_two_programs_share_a_default_port() {
    for (place, (name, port)) in ports::ALL.iter().enumerate() {
        let others = ports::ALL.iter().skip(place + 1);
        let same: Vec<_> = others.filter(|(_, other)| other == port).collect();
        assert!(same.is_empty(), "{name} has the port of {same:?}");
    }
    assert_eq!(lockd_client::PORT, ports::server::PORT);
    let listen = lockd_server::config::SETTINGS.iter().find(|setting| setting.name == "listen");
    assert_eq!(listen.unwrap().default, format!(":{}", ports::server::PORT));
    assert!(ports::LOCKD_URL.ends_with(ports::server::LISTEN), "{}", ports::LOCKD_URL);
}

#[test]
fn the_help_of_each_program_names_its_port() {
    for (command, default) in [
        ("coordinator", ports::coordinator::LISTEN),
        ("controller", ports::controller::LISTEN),
        ("controller", ports::LOCKD_URL),
        ("node-controller", ports::node::LISTEN),
        ("node-controller", ports::controller::URL),
        ("node-controller", ports::LOCKD_URL),
        ("agent", ports::node::URL),
        ("ha", ports::node::URL),
        ("cluster", ports::coordinator::URL),
        ("client", ports::server::LISTEN),
    ] {
        let output = Command::new(LOCKD).args([command, "--help"]).env_clear().output().unwrap();
        let help = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = [format!("[default: {default}]"), format!("else {default}]")];
        assert!(shown.iter().any(|shown| help.contains(shown)), "{command} {default}: {help}");
    }
}

#[test]
fn the_documented_ports_are_those_of_the_code() {
    let page = std::fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let rows: Vec<u16> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | `lockd")?.0.parse().ok())
        .collect();
    assert_eq!(rows, ports::ALL.iter().map(|(_, port)| *port).collect::<Vec<_>>());
}

#[test]
fn units_images_manifests_and_documents_use_each_port_for_its_program_only() {
    let (server, coordinator) = (port_of("server_metrics"), port_of("coordinator"));
    let mut seen = 0;
    for path in files() {
        let whole = std::fs::read_to_string(&path).unwrap();
        for (number, line) in whole.lines().enumerate() {
            let place = format!("{}:{}: {line}", path.display(), number + 1);
            for port in ports_in(line) {
                seen += 1;
                let known = |port: u16| ports::ALL.iter().any(|(_, known)| *known == port);
                assert!(known(port) || known(port - SECOND) || port == EXAMPLE, "{place}");
                let of_coordinator = path.starts_with(root().join("deploy/coordinator"));
                assert!(!of_coordinator || port == coordinator, "{place}");
                let lower = line.to_lowercase().replace('_', "-");
                let metrics = lower.split_once("metrics-listen").map(|(_, value)| value.to_owned());
                if metrics.is_some_and(|value| value.contains(&port.to_string())) {
                    assert_eq!(port, server, "{place}");
                }
            }
        }
    }
    assert!(seen > 40, "{seen} ports were found");
}
