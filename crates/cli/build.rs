//! Makes the table of error pages that `lockd explain` prints, out of the manual's own files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
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
    fs::write(out.join("error_pages.rs"), table)
}

/// The code that a page is about.
fn code_of(path: &Path) -> Option<String> {
    let is_page = path.extension().is_some_and(|extension| extension == "md");
    is_page.then(|| path.file_stem()?.to_str().map(str::to_owned)).flatten()
}
