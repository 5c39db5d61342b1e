//! Finds the `lockd` program that belongs to this build: beside the test, in the folder of the
//! same profile. It is built first when it is missing or older than its sources. `LOCKD_TEST_BIN`
//! names another one instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The program under test.
#[must_use]
pub fn lockd() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("LOCKD_TEST_BIN") {
        Some(given) => given.into(),
        None => beside_this_test(),
    })
}

fn beside_this_test() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.parent().and_then(Path::parent).expect("a test lies in <profile>/deps");
    let program = folder.join("lockd");
    if is_stale(&program) {
        build(folder);
    }
    assert!(program.is_file(), "there is no {}", program.display());
    program
}

/// Cargo lists the sources of a program in a file beside it.
fn is_stale(program: &Path) -> bool {
    let Some(built) = modified(program) else { return true };
    let Ok(listed) = std::fs::read_to_string(program.with_extension("d")) else { return true };
    let sources = listed.split_once(':').map_or("", |(_, sources)| sources);
    let mut sources = sources.split_whitespace();
    sources.any(|source| modified(Path::new(source)).is_none_or(|changed| changed > built))
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn build(folder: &Path) {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // The profile of tests and that of development share the folder `debug`.
    let profile = if name == "debug" { "test" } else { name };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "-p", "lockd", "--bin", "lockd", "--profile", profile]);
    cargo.arg("--target-dir").arg(folder.parent().expect("a profile lies in the target folder"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    let status = cargo.status().expect("cargo can be run");
    assert!(status.success(), "lockd could not be built: {status}");
}
