//! Every direct dependency has a line in `docs/dependencies.md` that says why it is there, and
//! every line a dependency.

use std::collections::{BTreeMap, BTreeSet};

use crate::edges::Uses;

/// What has no line, and what has a line but is not used.
#[must_use]
pub fn check(uses: &BTreeMap<String, Uses>, page: &str) -> Vec<String> {
    let told: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect();
    let all = uses.values().flat_map(|uses| uses.always.iter().chain(&uses.in_tests));
    let used: BTreeSet<&str> =
        all.map(String::as_str).filter(|name| !uses.contains_key(*name)).collect();
    let missing = used.difference(&told).map(|name| format!("{name} has no line"));
    let unused = told.difference(&used).map(|name| format!("{name} has a line but is not used"));
    missing.chain(unused).collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::edges::{self, Uses};
    use crate::repo;

    #[test]
    fn missing_and_left_over_lines_are_found() {
        let ours = Uses { always: ["b".to_owned()].into(), in_tests: ["a".to_owned()].into() };
        let uses = [("a".to_owned(), ours)].into();
        assert!(check(&uses, "| `b` | why |").is_empty());
        assert_eq!(
            check(&uses, "| `c` | why |"),
            ["b has no line", "c has a line but is not used"]
        );
    }

    #[test]
    fn our_dependencies_are_explained() {
        let page = repo::read("docs/dependencies.md").unwrap();
        let problems = check(&edges::uses().unwrap(), &page);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
