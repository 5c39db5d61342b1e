//! Makes the table of error pages that `lockd explain` prints, out of the manual's own files, and
//! notes for `lockd version` what is built.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let pages = manifest.join("../../docs/errors");
    println!("cargo::rerun-if-changed={}", pages.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&pages)? {
        let path = entry?.path();
        if let Some(name) = code_of(&path) {
            names.push((name, fs::canonicalize(&path)?));
        }
    }
    names.sort();
    let mut table = String::from("&[\n");
    for (name, path) in names {
        writeln!(table, "({name:?}, include_str!({:?})),", path.display().to_string())
            .map_err(io::Error::other)?;
    }
    table.push_str("]\n");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join("error_pages.rs"), table)?;
    note_build(&manifest);
    Ok(())
}

/// The commit is `LOCKD_BUILD_COMMIT`, for sources without their history, else what git says.
fn note_build(manifest: &Path) {
    println!("cargo::rerun-if-env-changed=LOCKD_BUILD_COMMIT");
    let named = env::var_os("LOCKD_BUILD_COMMIT").and_then(|named| named.into_string().ok());
    let named = named.filter(|named| !named.is_empty());
    let git = |words: &[&str]| said(Command::new("git").arg("-C").arg(manifest).args(words));
    // The log of HEAD grows with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = named.or_else(|| git(&["rev-parse", "HEAD"]));
    let of_cargo = |name: &str| env::var_os(name).and_then(|value| value.into_string().ok());
    let rustc = of_cargo("RUSTC").and_then(|rustc| said(Command::new(rustc).arg("--version")));
    for (name, value) in [
        ("LOCKD_COMMIT", commit),
        ("LOCKD_PROFILE", of_cargo("PROFILE")),
        ("LOCKD_TARGET", of_cargo("TARGET")),
        ("LOCKD_RUSTC", rustc),
    ] {
        println!("cargo::rustc-env={name}={}", value.unwrap_or_else(|| "unknown".to_owned()));
    }
}

/// The first line that a program says when it succeeds.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}

/// The code that a page is about.
fn code_of(path: &Path) -> Option<String> {
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    is_page.then(|| path.file_stem()?.to_str().map(str::to_owned)).flatten()
}
