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

/// The heading above the table of alerts.
pub const ALERTS: &str = "Alerts";

/// The metrics that the table of alerts asks for, by the names that one asks Prometheus.
#[must_use]
pub fn asked(document: &str) -> BTreeSet<String> {
    let rows = repo::table(document, ALERTS);
    let cells = rows.iter().filter_map(|cells| cells.first());
    let words = cells.flat_map(|cell| cell.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let ours = words.filter(|word| word.starts_with("lockd_") || word.starts_with("process_"));
    ours.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{asked, check, names};
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

    /// Those of the daemons are in tables of their own.
    #[test]
    fn alerts_ask_for_metrics_that_are_described() {
        let operations = repo::read("docs/operations.md").unwrap();
        let mut described = BTreeSet::new();
        for page in ["docs/operations.md", "docs/coordinator.md", "docs/node-controller.md"] {
            let text = repo::read(page).unwrap();
            let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
            described.extend(rows.map(|(name, _)| name.to_owned()));
        }
        let asked = asked(&operations);
        assert!(asked.len() > 10, "{asked:?}");
        let unknown: Vec<&String> = asked.difference(&described).collect();
        assert!(unknown.is_empty(), "alerts ask for what is not described: {unknown:?}");
        for wanted in [
            "lockd_queue_messages",
            "lockd_queue_oldest_ready_seconds",
            "process_open_fds",
            "lockd_coordinator_epoch",
            "lockd_coordinator_registry_reachable",
            "lockd_tls_certificate_end_seconds",
        ] {
            assert!(asked.contains(wanted), "no alert asks for {wanted}");
        }
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
