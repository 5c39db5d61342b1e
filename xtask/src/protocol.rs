//! `docs/protocol.md` names every path and every header of the API.

/// Names that the page lacks. Headers are compared without regard to case.
#[must_use]
pub fn check(page: &str, paths: &[&str], headers: &[String]) -> Vec<String> {
    let lower = page.to_lowercase();
    let missing_paths =
        paths.iter().filter(|path| !page.contains(*path)).map(|path| (*path).to_owned());
    let missing_headers = headers.iter().filter(|header| !lower.contains(*header)).cloned();
    missing_paths.chain(missing_headers).map(|name| format!("{name} is not described")).collect()
}

/// The names of headers in the source of the wire crate.
#[must_use]
pub fn headers(source: &str) -> Vec<String> {
    let values =
        source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split('"').nth(1));
    values.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use lockd_wire::path;

    use super::{check, headers};
    use crate::repo;

    #[test]
    fn what_is_not_described_is_found() {
        let headers = headers("//! X.\npub const A: &str = \"x-a\";\n");
        assert_eq!(headers, ["x-a"]);
        assert!(check("/v1/a takes X-A", &["/v1/a"], &headers).is_empty());
        assert_eq!(check("", &["/v1/a"], &headers).len(), 2);
    }

    #[test]
    fn the_whole_api_is_described() {
        let headers = headers(&repo::read("crates/wire/src/header.rs").unwrap());
        assert!(headers.len() > 10, "{headers:?}");
        let problems = check(&repo::read("docs/protocol.md").unwrap(), path::ALL, &headers);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
