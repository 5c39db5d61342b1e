//! The files of the repository as the rules see them: paths relative to the root, with slashes,
//! and their text. Build output and version control are left out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A text file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub path: String,
    pub text: String,
}

impl Source {
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    #[must_use]
    pub fn is_rust(&self) -> bool {
        has_extension(&self.path, "rs")
    }

    #[must_use]
    pub fn is_markdown(&self) -> bool {
        has_extension(&self.path, "md")
    }

    /// A file of tests and nothing else.
    #[must_use]
    pub fn is_test(&self) -> bool {
        let mut folders = self.path.split('/').rev();
        folders.next() == Some("tests.rs") || folders.any(|folder| folder == "tests")
    }
}

fn has_extension(path: &str, wanted: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == wanted)
}

/// The folder with the workspace's `Cargo.toml`.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Folders that hold nothing written by hand.
const SKIPPED: &[&str] = &[".git", "target", "node_modules"];

/// Every text file, in order of its path.
///
/// # Errors
/// When a folder or file cannot be read.
pub fn files(root: &Path) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    walk(root, root, &mut found)?;
    found.sort_by(|a: &Source, b: &Source| a.path.cmp(&b.path));
    Ok(found)
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<Source>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if !SKIPPED.iter().any(|skipped| name == *skipped) {
                walk(root, &path, found)?;
            }
        } else if kind.is_file() {
            // Not UTF-8: a fixture, not a text.
            let Ok(text) = String::from_utf8(fs::read(&path)?) else { continue };
            let path = path.strip_prefix(root)?.to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
    Ok(())
}

/// One file of the repository.
///
/// # Errors
/// When it cannot be read.
pub fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| path.to_owned())
}

/// The cells of the first Markdown table under a heading, without its two head rows.
#[must_use]
pub fn table(markdown: &str, heading: &str) -> Vec<Vec<String>> {
    let under = markdown.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading);
    let rows =
        under.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2)
        .map(|row| {
            let inner = row.trim().trim_start_matches('|').trim_end_matches('|');
            inner.split('|').map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

/// What stands between backquotes in a text, in order.
#[must_use]
pub fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::{Source, quoted, table};

    #[test]
    fn tests_are_told_from_sources_by_their_path() {
        for (path, expected) in [
            ("crates/core/src/lease.rs", false),
            ("crates/core/src/lease/tests.rs", true),
            ("crates/store/src/embedded/tests/crash.rs", true),
            ("crates/client/tests/fake/mod.rs", true),
        ] {
            assert_eq!(Source::new(path, "").is_test(), expected, "{path}");
        }
    }

    #[test]
    fn a_table_is_found_by_its_heading() {
        let text = "# A\n\n| no |\n|---|\n| 0 |\n\n## B\ntext\n| x | y |\n|---|---|\n| `a` | 1 |\n| b | |\n";
        assert_eq!(table(text, "B"), [["`a`", "1"], ["b", ""]]);
        assert_eq!(quoted("`a`, `b-c` and d"), ["a", "b-c"]);
    }
}
