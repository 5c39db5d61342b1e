//! The table of settings in `docs/operations.md` is the list in the program, line by line.
//! `cargo run -p xtask -- settings` prints it.

use lockd_server::config::SETTINGS;

use crate::repo;

/// The heading above the table.
pub const HEADING: &str = "Settings";

/// The rows as they must be in the document.
#[must_use]
pub fn rows() -> Vec<String> {
    let row = |setting: &lockd_server::config::Setting| {
        let default = match setting.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        format!("| `{}` | {default} | {} |", setting.name, setting.help)
    };
    SETTINGS.iter().map(row).collect()
}

/// Rows that the document lacks or has too many.
#[must_use]
pub fn check(page: &str, rows: &[String]) -> Vec<String> {
    let squeeze = |cells: &[String]| cells.join("|");
    let told: Vec<String> = repo::table(page, HEADING).iter().map(|cells| squeeze(cells)).collect();
    let wanted: Vec<String> = rows
        .iter()
        .flat_map(|row| repo::table(&format!("# {HEADING}\n|\n|\n{row}"), HEADING))
        .map(|cells| squeeze(&cells))
        .collect();
    let missing =
        wanted.iter().filter(|row| !told.contains(row)).map(|row| format!("missing: {row}"));
    let extra = told.iter().filter(|row| !wanted.contains(row)).map(|row| format!("wrong: {row}"));
    missing.chain(extra).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, rows};
    use crate::repo;

    #[test]
    fn a_row_that_differs_is_found() {
        let rows = ["| `a` | `1` | What it is |".to_owned()];
        let page = |row: &str| {
            format!("## Settings\n\n| name | default | meaning |\n|---|---|---|\n{row}\n")
        };
        assert!(check(&page(&rows[0]), &rows).is_empty());
        assert_eq!(check(&page("| `a` | `2` | What it is |"), &rows).len(), 2);
        assert_eq!(check(&page(""), &rows).len(), 1);
    }

    #[test]
    fn the_documented_settings_are_the_real_ones() {
        let problems = check(&repo::read("docs/operations.md").unwrap(), &rows());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
