//! The shape of source files: each begins by saying what it is for, none is too long, `lib.rs` is
//! a table of contents, and the core keeps no maps whose order differs between runs.

use crate::repo::Source;

/// Lines of a source file, tests not counted.
pub const LINES_MAX: usize = 700;
/// Lines of a `lib.rs`, its documentation at the top not counted.
pub const LIB_LINES_MAX: usize = 60;

/// Files over the line today, with the size they may not exceed. Names only ever leave this list.
pub const RATCHET: &[(&str, usize)] = &[];

/// Everything that is wrong with the shape of these files.
#[must_use]
pub fn check(files: &[Source], ratchet: &[(&str, usize)]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        if !file.text.starts_with("//! ") {
            problems
                .push(format!("{}: begins without a //! line that says what it is for", file.path));
        }
        if file.path.starts_with("crates/core/src") && uses_hash_collection(&file.text) {
            problems.push(format!("{}: hash maps have no order; use BTreeMap or Vec", file.path));
        }
        if !file.is_test() {
            problems.extend(too_long(file, ratchet));
        }
    }
    for (path, _) in ratchet.iter().filter(|(path, _)| !files.iter().any(|file| file.path == *path))
    {
        problems.push(format!("{path}: is in the ratchet list but does not exist"));
    }
    problems
}

fn uses_hash_collection(text: &str) -> bool {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .any(|line| line.contains("HashMap") || line.contains("HashSet"))
}

fn too_long(file: &Source, ratchet: &[(&str, usize)]) -> Option<String> {
    let is_lib = file.path.ends_with("/lib.rs");
    let header = file.text.lines().take_while(|line| line.starts_with("//!")).count();
    let lines = code_lines(&file.text) - if is_lib { header } else { 0 };
    let usual = if is_lib { LIB_LINES_MAX } else { LINES_MAX };
    let listed = ratchet.iter().find(|(path, _)| *path == file.path).map(|(_, max)| *max);
    match listed {
        Some(_) if lines <= usual => {
            Some(format!("{}: is short enough now; take it off the ratchet list", file.path))
        }
        Some(max) if lines > max => {
            Some(format!("{}: has grown to {lines} lines from {max}", file.path))
        }
        None if lines > usual => {
            Some(format!("{}: has {lines} lines, at most {usual} are allowed", file.path))
        }
        Some(_) | None => None,
    }
}

/// Lines before the tests at the end of a file.
fn code_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        matches!(pair, [attribute, module]
            if attribute.trim() == "#[cfg(test)]" && module.starts_with("mod tests {"))
    });
    tests.unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::{LINES_MAX, RATCHET, check};
    use crate::repo::{self, Source};

    fn file(path: &str, code: usize, tests: usize) -> Source {
        let mut text = "//! What it is for.\n".to_owned() + &"x\n".repeat(code - 1);
        text += "#[cfg(test)]\nmod tests {\n";
        text += &"y\n".repeat(tests);
        Source::new(path, &text)
    }

    #[test]
    fn long_files_are_found_and_tests_are_not_counted() {
        assert!(check(&[file("a.rs", LINES_MAX, 999)], &[]).is_empty());
        assert_eq!(check(&[file("a.rs", LINES_MAX + 1, 0)], &[]).len(), 1);
        assert_eq!(check(&[file("x/src/lib.rs", 62, 0)], &[]).len(), 1);
        assert!(check(&[file("x/src/lib.rs", 61, 0)], &[]).is_empty());
        assert!(check(&[file("x/tests.rs", 2000, 0)], &[]).is_empty());
    }

    #[test]
    fn a_listed_file_may_only_shrink() {
        let list = [("a.rs", 800)];
        assert!(check(&[file("a.rs", 800, 0)], &list).is_empty());
        assert_eq!(check(&[file("a.rs", 801, 0)], &list).len(), 1);
        assert_eq!(check(&[file("a.rs", 100, 0)], &list).len(), 1, "it must leave the list");
        assert_eq!(check(&[], &list).len(), 1, "it is gone");
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        let found = check(&[Source::new("a.rs", "use std::fmt;\n")], &[]);
        assert_eq!(found, ["a.rs: begins without a //! line that says what it is for"]);
    }

    #[test]
    fn hash_maps_are_found_in_the_core_only() {
        let text = "//! X.\nuse std::collections::HashMap;\n";
        assert_eq!(check(&[Source::new("crates/core/src/a.rs", text)], &[]).len(), 1);
        assert!(check(&[Source::new("crates/server/src/a.rs", text)], &[]).is_empty());
    }

    #[test]
    fn our_files_are_in_shape() {
        let problems = check(&repo::files(&repo::root()).unwrap(), RATCHET);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
