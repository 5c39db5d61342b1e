//! Words that may not be in the repository: notes to oneself, tests that are switched off, and
//! paths of the machine somebody works on.

use crate::repo::Source;

/// Never anywhere. Written in two parts, so that this file does not find itself.
const NEVER: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "do it, or write down why not"),
    (concat!("FIX", "ME"), "fix it"),
    (concat!("XX", "X:"), "fix it"),
    (concat!("todo", "!("), "write the code"),
    (concat!("unimple", "mented!("), "write the code"),
    (concat!("#[ig", "nore"), "a test that does not run proves nothing"),
    (concat!("db", "g!("), "left over from debugging"),
];

/// Beginnings of absolute paths that exist on one machine only.
const PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/tar", "get-")];

/// Every place where such a word stands.
#[must_use]
pub fn check(files: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files {
        for (number, line) in file.text.lines().enumerate() {
            let mut found = |what: &str, why: &str| {
                problems.push(format!("{}:{}: {what}: {why}", file.path, number + 1));
            };
            for (word, why) in NEVER.iter().filter(|(word, _)| line.contains(word)) {
                found(word, why);
            }
            for path in PATHS.iter().filter(|path| names_path(line, path)) {
                found(path, "a path of one machine");
            }
        }
    }
    problems
}

/// Whether a path that begins so stands in the line, and not merely in the middle of another.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        before.is_none_or(|before| !before.is_alphanumeric() && !"._-~*}".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::{NEVER, PATHS, check};
    use crate::repo::{self, Source};

    #[test]
    fn each_word_is_found() {
        for (word, _) in NEVER {
            let found = check(&[Source::new("a.md", &format!("one\nx {word} y\n"))]);
            assert_eq!(found.len(), 1, "{word}");
            assert!(found[0].starts_with("a.md:2: "), "{found:?}");
        }
    }

    #[test]
    fn paths_of_a_machine_are_found_and_others_are_not() {
        for path in PATHS {
            assert_eq!(check(&[Source::new("a", &format!("see {path}x"))]).len(), 1, "{path}");
            assert!(check(&[Source::new("a", &format!("see src{path}x"))]).is_empty(), "{path}");
        }
    }

    #[test]
    fn our_files_are_free_of_them() {
        let problems = check(&repo::files(&repo::root()).unwrap());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
