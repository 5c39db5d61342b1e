//! The metrics in `docs/operations.md` are those that a server serves, no more and no fewer.

use std::collections::BTreeSet;

use crate::repo;

/// The heading above the table.
pub const HEADING: &str = "Metrics";

/// The names by which one asks Prometheus, made out of the page that it scrapes.
#[must_use]
pub fn names(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types
        .map(|(name, kind)| match kind {
            "counter" => format!("{name}_total"),
            "info" => format!("{name}_info"),
            _ => name.to_owned(),
        })
        .collect()
}

/// Names that one of the two lacks.
#[must_use]
pub fn check(document: &str, served: &BTreeSet<String>) -> Vec<String> {
    let rows = repo::table(document, HEADING);
    let told: BTreeSet<String> = rows
        .iter()
        .filter_map(|cells| repo::quoted(cells.first()?).first().map(|name| (*name).to_owned()))
        .collect();
    let missing =
        served.difference(&told).map(|name| format!("{name} is served but not described"));
    let unknown = told.difference(served).map(|name| format!("{name} is described but not served"));
    missing.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, names};
    use crate::repo;
    use crate::serve::Running;

    #[test]
    fn what_differs_is_found() {
        let served = names("# TYPE x_a counter\nx_a_total 1\n# TYPE x_b gauge\n");
        let page = "## Metrics\n\n| n | m |\n|---|---|\n| `x_a_total` | A |\n| `x_c` | C |\n";
        assert_eq!(
            check(page, &served),
            ["x_b is served but not described", "x_c is described but not served"]
        );
    }

    #[tokio::test]
    async fn the_documented_metrics_are_the_real_ones() {
        let server = Running::start().await.unwrap();
        // What never happened is not on the page: a lease that ends, and a holder that is fenced.
        let grant = server.post("/v1/acquire", "", r#"{"key":"k","owner":"o"}"#).await.unwrap();
        let lease = grant.split('"').skip_while(|part| *part != "lease_id").nth(2).unwrap();
        let body = format!(r#"{{"key":"k","lease_id":"{lease}","txn_id":"00000000000000000000"}}"#);
        server.post("/v1/release", "x-fencing-token: 99\r\n", &body).await.unwrap();
        let body = format!(r#"{{"lease_id":"{lease}"}}"#);
        server.post("/v1/release", "", &body).await.unwrap();
        let served = names(&server.metrics_page().await.unwrap());
        server.stop().await;
        assert!(served.len() > 5, "{served:?}");
        let problems = check(&repo::read("docs/operations.md").unwrap(), &served);
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
