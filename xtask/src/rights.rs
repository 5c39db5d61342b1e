//! The table of rights in `docs/security.md` is the table of routes in the program, line by line.
//! `cargo run -p xtask -- rights` prints it.

use crate::repo;

/// The heading above the table.
pub const HEADING: &str = "Rights";

/// Rows that the document lacks or has too many.
#[must_use]
pub fn check(page: &str, rows: &[String]) -> Vec<String> {
    let cells = |page: &str| -> Vec<String> {
        repo::table(page, HEADING).iter().map(|row| row.join("|")).collect()
    };
    let documented = cells(page);
    let real = cells(&format!("# {HEADING}\n|\n|\n{}", rows.join("\n")));
    let missing =
        real.iter().filter(|row| !documented.contains(row)).map(|row| format!("missing: {row}"));
    let wrong =
        documented.iter().filter(|row| !real.contains(row)).map(|row| format!("wrong: {row}"));
    missing.chain(wrong).collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::repo;

    #[test]
    fn a_row_that_differs_is_found() {
        let rows = ["| `r` | `GET /v1/a` |".to_owned()];
        let page = |row: &str| format!("## Rights\n\n| claim | routes |\n|---|---|\n{row}\n");
        assert!(check(&page(&rows[0]), &rows).is_empty());
        assert_eq!(check(&page("| `w` | `GET /v1/a` |"), &rows).len(), 2);
        assert_eq!(check(&page(""), &rows).len(), 1);
    }

    #[test]
    fn the_documented_rights_are_those_of_the_routes() {
        let problems = check(&repo::read("docs/security.md").unwrap(), &lockd_server::rights());
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
