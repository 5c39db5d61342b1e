//! Every scenario, in every ring.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test fails loudly"
)]

use std::path::{Path, PathBuf};

use lockd_sim::case::{Case, Ring, parse, run};
use lockd_sim::ring::{CoreRing, Reaping, SdkRing, ServerRing};
use lockd_sim::security::Security;

fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "case"));
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        match parse(&name, &std::fs::read_to_string(path).unwrap()) {
            Ok(case) => case,
            Err(bad) => panic!("{bad}"),
        }
    };
    paths.iter().map(read).collect()
}

/// Runs all of them, so that one failure does not hide the others.
fn all_in(ring: impl Fn() -> Box<dyn Ring>) {
    let cases = cases();
    assert!(cases.len() >= 25, "only {} scenarios were found", cases.len());
    let failed: Vec<String> =
        cases.iter().filter_map(|case| run(case, &mut *ring()).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn scenarios_hold_for_the_bare_rules() {
    all_in(|| Box::new(CoreRing::new(Reaping::Eager)));
}

#[test]
fn scenarios_do_not_depend_on_when_leases_are_cleared_away() {
    all_in(|| Box::new(CoreRing::new(Reaping::Never)));
}

#[test]
fn scenarios_hold_for_the_server() {
    all_in(|| Box::new(ServerRing::new().unwrap()));
}

#[test]
fn scenarios_hold_for_the_sdk() {
    all_in(|| Box::new(SdkRing::new(Security::Plain).unwrap()));
}

#[test]
fn scenarios_hold_for_the_sdk_over_mutual_tls() {
    let folder = tempfile::tempdir().unwrap();
    let bundles = folder.path().join("bundles");
    all_in(|| Box::new(SdkRing::new(Security::Mtls(bundles.clone())).unwrap()));
}

#[test]
fn a_scenario_that_expects_something_else_fails() {
    let text = "at 0s a acquire k -> granted token=1\nat 1s b acquire k -> granted token=2";
    let case = parse("wrong", text).unwrap();
    for mut ring in [
        Box::new(CoreRing::new(Reaping::Eager)) as Box<dyn Ring>,
        Box::new(ServerRing::new().unwrap()),
        Box::new(SdkRing::new(Security::Plain).unwrap()),
    ] {
        let told = run(&case, &mut *ring).unwrap_err();
        assert!(told.contains("wrong:2") && told.contains("got `waiting`"), "{told}");
    }
}
