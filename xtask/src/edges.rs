//! Which crate may use which. The table in `docs/architecture.md` is the rule; `cargo metadata`
//! says what is so. Uses inside tests have a column of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::repo;

/// The heading above the table.
pub const HEADING: &str = "Which crate may use which";

/// One crate and what it uses directly.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    /// In the program itself, or to build it.
    pub always: BTreeSet<String>,
    /// In its tests only.
    pub in_tests: BTreeSet<String>,
}

/// What one row of the table says.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    pub may: BTreeSet<String>,
    pub may_in_tests: BTreeSet<String>,
    pub never: BTreeSet<String>,
}

/// The table, by crate. `anything` in a column allows every crate of ours.
#[must_use]
pub fn rules(architecture: &str) -> BTreeMap<String, Rule> {
    let names = |cell: Option<&String>| -> BTreeSet<String> {
        let quoted = repo::quoted(cell.map_or("", String::as_str));
        quoted.into_iter().map(str::to_owned).collect()
    };
    let mut rules = BTreeMap::new();
    for row in repo::table(architecture, HEADING) {
        let rule = Rule {
            may: names(row.get(1)),
            may_in_tests: names(row.get(2)),
            never: names(row.get(3)),
        };
        for name in names(row.first()) {
            rules.insert(name, rule.clone());
        }
    }
    rules
}

/// Every use that the table does not allow.
#[must_use]
pub fn check(uses: &BTreeMap<String, Uses>, rules: &BTreeMap<String, Rule>) -> Vec<String> {
    let mut problems = Vec::new();
    for name in rules.keys().filter(|name| !uses.contains_key(*name)) {
        problems.push(format!("the table has a row for {name}, which is no crate of ours"));
    }
    for (name, uses_of) in uses {
        let Some(rule) = rules.get(name) else {
            problems.push(format!("{name} has no row in the table of docs/architecture.md"));
            continue;
        };
        let ours = |used: &&String| uses.contains_key(*used);
        for used in uses_of.always.iter().filter(ours) {
            if !rule.may.contains(used) {
                problems.push(format!("{name} uses {used}, which the table does not allow"));
            }
        }
        for used in uses_of.in_tests.iter().filter(ours) {
            if !rule.may.contains(used) && !rule.may_in_tests.contains(used) && used != name {
                problems.push(format!(
                    "the tests of {name} use {used}, which the table does not allow"
                ));
            }
        }
        for used in uses_of.always.union(&uses_of.in_tests) {
            if rule.never.contains(used) {
                problems.push(format!("{name} must never use {used}"));
            }
        }
    }
    problems
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// What every crate of the workspace uses directly, as cargo sees it.
///
/// # Errors
/// When cargo does not answer.
pub fn uses() -> Result<BTreeMap<String, Uses>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(repo::root())
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let mut all = BTreeMap::new();
    for package in metadata.packages {
        let mut uses = Uses::default();
        for dependency in package.dependencies {
            if dependency.kind.as_deref() == Some("dev") {
                uses.in_tests.insert(dependency.name);
            } else {
                uses.always.insert(dependency.name);
            }
        }
        all.insert(package.name, uses);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{HEADING, Uses, check, rules, uses};
    use crate::repo;

    fn table(rows: &str) -> String {
        format!("## {HEADING}\n\n| crate | may | tests | never |\n|---|---|---|---|\n{rows}")
    }

    fn using(name: &str, always: &[&str], in_tests: &[&str]) -> (String, Uses) {
        let set = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect();
        (name.to_owned(), Uses { always: set(always), in_tests: set(in_tests) })
    }

    #[test]
    fn an_edge_outside_the_table_is_found() {
        let rules = rules(&table("| `a` | `b` | `c` | `tokio` |\n| `b` | | | |\n| `c` | | | |\n"));
        let with = |a: (String, Uses)| -> BTreeMap<String, Uses> {
            [a, using("b", &[], &[]), using("c", &[], &[])].into()
        };
        assert!(check(&with(using("a", &["b", "serde"], &["c"])), &rules).is_empty());
        let found = check(&with(using("a", &["c"], &["tokio"])), &rules);
        assert_eq!(found, ["a uses c, which the table does not allow", "a must never use tokio"]);
    }

    #[test]
    fn crates_and_rows_must_match() {
        let rules = rules(&table("| `gone` | | | |\n"));
        let found = check(&[using("new", &[], &[])].into(), &rules);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn our_crates_use_each_other_as_the_table_says() {
        let rules = rules(&repo::read("docs/architecture.md").unwrap());
        let problems = check(&uses().unwrap(), &rules);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn the_table_keeps_the_core_pure() {
        let rules = rules(&repo::read("docs/architecture.md").unwrap());
        let never = |name: &str, used: &str| rules[name].never.contains(used);
        for used in ["serde", "tokio", "tracing", "rand", "chrono"] {
            assert!(never("lockd-core", used), "{used}");
        }
        for used in ["tokio", "axum"] {
            assert!(never("lockd-wire", used), "{used}");
        }
    }
}
