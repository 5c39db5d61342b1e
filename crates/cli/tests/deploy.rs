//! What is in `deploy/` and `scripts/`, and what the documents say of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::path::{Path, PathBuf};
use std::process::Command;

use server::{LOCKC, text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn there_is_one_unit_and_it_serves_mutual_tls() {
    let units: Vec<_> =
        names("deploy").into_iter().filter(|name| name.ends_with(".service")).collect();
    assert_eq!(units, ["lockd.service"]);
    let unit = read("deploy/lockd.service").to_lowercase().replace('_', "-");
    assert!(!unit.contains("disable-mtls") && !unit.contains("insecure"), "{unit}");
    for page in names("docs").into_iter().filter(|name| name.ends_with(".md")) {
        let text = read(&format!("docs/{page}"));
        assert!(!text.contains("[Service]"), "docs/{page} has a unit of its own");
    }
    for page in ["docs/deploy.md", "docs/operations.md"] {
        assert!(read(page).contains("](../deploy/lockd.service)"), "{page}");
    }
}

#[test]
fn the_image_is_built_for_the_processor_of_its_platform() {
    let recipe = read("deploy/Containerfile");
    for fixed in ["x86_64", "aarch64", "--platform=$BUILDPLATFORM"] {
        let line = recipe.lines().find(|line| !line.starts_with('#') && line.contains(fixed));
        assert_eq!(line, None);
    }
    assert!(recipe.contains("$(uname -m)-unknown-linux-musl"), "{recipe}");
    assert!(recipe.contains("cargo build --profile dist"), "{recipe}");
}

#[test]
fn a_release_has_no_symbols_and_those_of_dist_get_a_file_of_their_own() {
    let manifest = read("Cargo.toml");
    let profile =
        |name: &str| manifest.split_once(name).unwrap().1.split("\n\n").next().unwrap().to_owned();
    assert!(profile("[profile.release]").contains("strip = \"symbols\""));
    assert!(profile("[profile.dist]").contains("inherits = \"release\""));

    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("lockc");
    std::fs::copy(LOCKC, &program).unwrap();
    let before = std::fs::metadata(&program).unwrap().len();
    let split = Command::new(root().join("scripts/split-debug")).arg(&program).output().unwrap();
    assert!(split.status.success(), "{}", text(&split.stderr));
    assert!(std::fs::metadata(&program).unwrap().len() < before);
    assert!(folder.path().join("lockc.debug").is_file());
    let bytes = std::fs::read(&program).unwrap();
    let has = |name: &[u8]| bytes.windows(name.len()).any(|window| window == name);
    assert!(has(b".gnu_debuglink") && has(b"lockc.debug"), "the debugger finds it by this");
    assert!(!has(b".symtab"), "symbols are left");
    let runs = Command::new(&program).arg("--version").env_clear().output().unwrap();
    assert!(runs.status.success(), "{}", text(&runs.stderr));
}
