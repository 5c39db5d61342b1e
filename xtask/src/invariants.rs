//! The invariants that the checker of the simulator judges by are explained in
//! `docs/architecture.md`, all of them and no others.

use std::collections::BTreeSet;

use crate::repo;

/// The heading above the table.
pub const HEADING: &str = "Invariants";

/// The names in the checker's list.
#[must_use]
pub fn names(checker: &str) -> BTreeSet<&str> {
    let list = checker.split_once("const INVARIANTS").map_or("", |(_, rest)| rest);
    let list = list.split_once("];").map_or("", |(list, _)| list);
    list.split('"').skip(1).step_by(2).collect()
}

/// Names that one of the two lacks.
#[must_use]
pub fn check(document: &str, judged: &BTreeSet<&str>) -> Vec<String> {
    let rows = repo::table(document, HEADING);
    let told: BTreeSet<&str> =
        rows.iter().filter_map(|cells| repo::quoted(cells.first()?).first().copied()).collect();
    let missing = judged.difference(&told).map(|name| format!("{name} is not explained"));
    let unknown = told.difference(judged).map(|name| format!("{name} is not judged"));
    missing.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, names};
    use crate::repo;

    #[test]
    fn what_differs_is_found() {
        let judged = names("const INVARIANTS: X = &[(\"a\", f), (\n\"b\", g)];\nlet \"c\";");
        let page = "## Invariants\n\n| n | m |\n|---|---|\n| `a` | A |\n| `d` | D |\n";
        assert_eq!(check(page, &judged), ["b is not explained", "d is not judged"]);
    }

    #[test]
    fn the_invariants_are_explained() {
        let checker = repo::read("crates/sim/src/check.rs").unwrap();
        let judged = names(&checker);
        assert!(judged.len() > 5, "{judged:?}");
        let problems = check(&repo::read("docs/architecture.md").unwrap(), &judged);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
