//! What the sidecar measures, in Prometheus' terms.

use std::fmt::Write as _;

use lockd_serve::Certificate;

use crate::coordinator::Coordinator;
use crate::member::State;

/// Everything as text. What the registry does not tell is left out.
pub(super) async fn text(coordinator: &Coordinator, certificate: &Certificate) -> String {
    let health = coordinator.health();
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, String)>| {
        let base = name.strip_suffix("_total").unwrap_or(name);
        let _written = write!(text, "# HELP {base} {help}\n# TYPE {base} {kind}\n").is_ok();
        for (labels, value) in samples {
            let _written = writeln!(text, "{name}{labels} {value}").is_ok();
        }
    };
    let one = |value: u64| vec![(String::new(), value.to_string())];
    let leads = u64::from(coordinator.is_leader());
    family("lockd_coordinator_is_leader", "gauge", "Whether this instance leads.", one(leads));
    if let Ok(view) = coordinator.cluster().await {
        let healthy = u64::from(view.is_healthy());
        let help = "A live leader, somebody active and nobody drifted.";
        family("lockd_coordinator_cluster_healthy", "gauge", help, one(healthy));
        let by_state = State::ALL
            .map(|state| (labels(&[("state", state.as_str())]), view.count(state).to_string()));
        let help = "Instances of the cluster by state.";
        family("lockd_coordinator_instances", "gauge", help, by_state.to_vec());
    }
    // After the survey above: whether that was answered.
    let reachable = u64::from(coordinator.health().fault.is_none());
    let help = "Whether the registry answered the latest request.";
    family("lockd_coordinator_registry_reachable", "gauge", help, one(reachable));
    let epoch = coordinator.known_epoch().map(|epoch| (String::new(), epoch.to_string()));
    let help = "The epoch of the leader, as far as this instance knows it.";
    family("lockd_coordinator_epoch", "gauge", help, epoch.into_iter().collect());
    let help = "Changes of leader that this instance has seen.";
    family("lockd_coordinator_leader_changes_total", "counter", help, one(health.leader_changes));
    let age = health.heartbeat_age.map(|age| (String::new(), age.as_secs_f64().to_string()));
    let help = "Since the latest heartbeat that counted.";
    let name = "lockd_coordinator_heartbeat_age_seconds";
    family(name, "gauge", help, age.into_iter().collect());
    let help = "Heartbeats that counted.";
    family("lockd_coordinator_heartbeats_total", "counter", help, one(health.heartbeats));
    let help = "Heartbeats that failed.";
    let name = "lockd_coordinator_heartbeat_failures_total";
    family(name, "counter", help, one(health.heartbeats_failed));
    let runs = health.runs.iter().map(|((task, outcome), count)| {
        (labels(&[("task", task), ("outcome", outcome)]), count.to_string())
    });
    let help = "Runs that this instance has recorded, by outcome.";
    family("lockd_coordinator_task_runs_total", "counter", help, runs.collect());
    text.push_str(&certificate.text());
    text.push_str(&lockd_serve::process_text());
    text.push_str("# EOF\n");
    text
}

/// The values are names that need no escapes: of tasks, states and outcomes.
fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    format!("{{{}}}", pairs.join(","))
}
