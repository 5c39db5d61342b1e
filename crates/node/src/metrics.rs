//! What a node counts, in Prometheus' terms.

use std::time::Duration;

use lockd_serve::{Certificate, Door};
use lockd_wire::node::{Role, Transition};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::cause::Cause;

/// The last line of a page.
const END: &str = "# EOF\n";

/// In seconds: a hand-over takes some tens of milliseconds, a failed opening a minute.
const BUCKETS: [f64; 12] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabel {
    role: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransitionLabels {
    from: &'static str,
    to: &'static str,
    cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProgramLabel {
    program: &'static str,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    role: Family<RoleLabel, Gauge>,
    epoch: Gauge,
    transitions: Family<TransitionLabels, Counter>,
    seconds: Histogram,
    restarts: Family<ProgramLabel, Counter>,
    healthy: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("lockd_ha");
        let (role, transitions) = (Family::default(), Family::default());
        let (epoch, healthy, restarts) = (Gauge::default(), Gauge::default(), Family::default());
        let seconds = Histogram::new(BUCKETS);
        registry.register("role", "1 for what this node is", role.clone());
        registry.register("leader_epoch", "The highest epoch that is known", epoch.clone());
        registry.register("transitions", "What this node became, and why", transitions.clone());
        let help = "From what caused a transition to its end";
        registry.register_with_unit("transition", help, Unit::Seconds, seconds.clone());
        registry.register("restarts", "Programs that were started again", restarts.clone());
        registry.register("controller_healthy", "Whether the controller answers", healthy.clone());
        let metrics = Self { registry, role, epoch, transitions, seconds, restarts, healthy };
        metrics.is(Role::Standby);
        metrics
    }

    pub(crate) fn is(&self, role: Role) {
        for other in [Role::Standby, Role::Leader, Role::Draining] {
            let labels = RoleLabel { role: other.as_str() };
            self.role.get_or_create(&labels).set(i64::from(other == role));
        }
    }

    pub(crate) fn saw_epoch(&self, epoch: u64) {
        let epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
        if epoch > self.epoch.get() {
            self.epoch.set(epoch);
        }
    }

    pub(crate) fn became(&self, transition: &Transition, cause: Cause) {
        let (from, to) = (transition.from.as_str(), transition.to.as_str());
        self.transitions.get_or_create(&TransitionLabels { from, to, cause }).inc();
        self.seconds.observe(Duration::from_millis(transition.took_ms).as_secs_f64());
    }

    pub(crate) fn restarted(&self, program: &'static str) {
        self.restarts.get_or_create(&ProgramLabel { program }).inc();
    }

    pub(crate) fn is_healthy(&self, healthy: bool) {
        self.healthy.set(i64::from(healthy));
    }

    pub(crate) fn text(&self, door: &Door) -> String {
        let mut text = String::new();
        let _written = prometheus_client::encoding::text::encode(&mut text, &self.registry).is_ok();
        text.truncate(text.strip_suffix(END).unwrap_or(&text).len());
        text.push_str(&Certificate::of(door).text());
        text.push_str(&lockd_serve::process_text());
        text.push_str(END);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let metrics = Metrics::new();
        metrics.is(Role::Leader);
        metrics.saw_epoch(7);
        metrics.saw_epoch(3);
        metrics.restarted("agent");
        let became = Transition { to: Role::Leader, took_ms: 30, ..Transition::default() };
        metrics.became(&became, Cause::Elected);
        let text = metrics.text(&Door::Plain);
        for line in [
            "lockd_ha_role{role=\"LEADER\"} 1",
            "lockd_ha_role{role=\"STANDBY\"} 0",
            "lockd_ha_leader_epoch 7",
            "lockd_ha_transitions_total{from=\"STANDBY\",to=\"LEADER\",cause=\"elected\"} 1",
            "lockd_ha_transition_seconds_count 1",
            "lockd_ha_restarts_total{program=\"agent\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in {text}");
        }
    }
}
