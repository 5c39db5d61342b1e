//! What the server counts and measures, in Prometheus' terms: base units, few labels, never a key
//! as a label. One registry per server, so that several can live in one process.

mod queues;

pub(crate) use queues::QueueLevels;

use std::fmt::Write as _;
use std::time::Duration;

use lockd_core::record::End;
use lockd_core::txn::{self, Why};
use lockd_serve::ConnectionStage;
use lockd_store::Observer;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// What a request wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Acquire,
    Keepalive,
    Release,
    Get,
    Update,
    Mutate,
    Metadata,
    Remove,
    Attachment,
    Enqueue,
    Dequeue,
    Ack,
    Nack,
    Extend,
    Queue,
    Describe,
    Read,
    Watch,
    List,
    Revoke,
    Coordinate,
    Health,
    Other,
}

impl Operation {
    const ALL: [Self; 23] = [
        Self::Acquire,
        Self::Keepalive,
        Self::Release,
        Self::Get,
        Self::Update,
        Self::Mutate,
        Self::Metadata,
        Self::Remove,
        Self::Attachment,
        Self::Enqueue,
        Self::Dequeue,
        Self::Ack,
        Self::Nack,
        Self::Extend,
        Self::Queue,
        Self::Describe,
        Self::Read,
        Self::Watch,
        Self::List,
        Self::Revoke,
        Self::Coordinate,
        Self::Health,
        Self::Other,
    ];
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ok,
    Refused,
    Failed,
    /// The client went away.
    Canceled,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Ok, Self::Refused, Self::Failed, Self::Canceled];
}

/// The name of a variant in lower case.
fn label(variant: &impl std::fmt::Debug) -> String {
    format!("{variant:?}").to_ascii_lowercase()
}

impl EncodeLabelValue for Operation {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(&label(self))
    }
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.write_str(&label(self))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: Operation,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: Operation,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabel {
    how: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabel {
    decision: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabel {
    resource: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabel {
    stage: &'static str,
}

/// All measurements of one server.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// By operation and outcome, looked up without hashing on the hot path.
    requests: Vec<Counter>,
    durations: Vec<Histogram>,
    pub(crate) leases_granted: Counter,
    ended: Family<EndLabel, Counter>,
    txns: TxnMetrics,
    pub(crate) messages: MessageMetrics,
    fence_rejections: Family<ResourceLabel, Counter>,
    pub(crate) handoff: Histogram,
    pub(crate) store_conflicts: Counter,
    sync_seconds: Histogram,
    batch_commits: Histogram,
    leases: Gauge,
    waiters: Gauge,
    pub(crate) connections: Gauge,
    store_bytes: Gauge,
    store_reopened: Gauge,
    pub(crate) crowd: CrowdMetrics,
    pub(crate) tls: TlsMetrics,
}

/// What connections measure that are too many.
#[derive(Debug, Default)]
pub(crate) struct CrowdMetrics {
    evicted: Family<StageLabel, Counter>,
    pub(crate) refused: Counter,
}

impl CrowdMetrics {
    const STAGES: [ConnectionStage; 3] =
        [ConnectionStage::Handshake, ConnectionStage::FirstRequest, ConnectionStage::Idle];

    fn registered(r: &mut Registry) -> Self {
        let all = Self::default();
        // There from the start, so that the first one is seen as a change.
        Self::STAGES.into_iter().for_each(|stage| drop(all.of(stage)));
        let help = "Silent connections closed to make room for others, by how far they had come";
        r.register("connections_evicted", help, all.evicted.clone());
        let help = "Connections refused because no other could be closed for them";
        r.register("connections_refused", help, all.refused.clone());
        all
    }

    fn of(&self, stage: ConnectionStage) -> Counter {
        let stage = match stage {
            ConnectionStage::Handshake => "handshake",
            ConnectionStage::FirstRequest => "first_request",
            ConnectionStage::Idle => "idle",
        };
        self.evicted.get_or_create(&StageLabel { stage }).clone()
    }

    pub(crate) fn evicted(&self, stage: ConnectionStage) {
        self.of(stage).inc();
    }
}

/// What transactions measure.
#[derive(Debug, Default)]
struct TxnMetrics {
    decided: Family<DecisionLabel, Counter>,
}

impl TxnMetrics {
    fn registered(r: &mut Registry) -> Self {
        let all = Self::default();
        all.register(r);
        all
    }

    fn register(&self, r: &mut Registry) {
        let help = "Transactions over several keys that were decided, by how";
        r.register("transactions_decided", help, self.decided.clone());
    }
}

/// What queues measure.
#[derive(Debug, Default)]
pub(crate) struct MessageMetrics {
    pub(crate) enqueued: Counter,
    pub(crate) delivered: Counter,
    pub(crate) acked: Counter,
    pub(crate) nacked: Counter,
    pub(crate) dead: Counter,
    pub(crate) expired: Counter,
    pub(crate) waiting: Gauge,
}

impl MessageMetrics {
    fn registered(r: &mut Registry) -> Self {
        let all = Self::default();
        all.register(r);
        all
    }

    fn register(&self, r: &mut Registry) {
        r.register("queue_enqueued", "Messages taken in", self.enqueued.clone());
        r.register("queue_delivered", "Deliveries made", self.delivered.clone());
        r.register("queue_acked", "Messages acknowledged", self.acked.clone());
        r.register("queue_nacked", "Messages given back by their consumers", self.nacked.clone());
        let help = "Messages that failed too often";
        r.register("queue_dead_lettered", help, self.dead.clone());
        let help = "Messages removed because nobody took them in time";
        r.register("queue_expired", help, self.expired.clone());
        r.register("queue_consumers_waiting", "Consumers waiting now", self.waiting.clone());
    }
}

/// What mutual TLS measures.
#[derive(Debug, Default)]
pub(crate) struct TlsMetrics {
    peers_refused: Family<ReasonLabel, Counter>,
    pub(crate) handshakes_failed: Counter,
    pub(crate) handshakes_dropped: Counter,
    pub(crate) reload_failures: Counter,
    /// Unix seconds.
    pub(crate) certificate_ends: Gauge,
}

impl TlsMetrics {
    fn registered(r: &mut Registry) -> Self {
        let all = Self::default();
        all.register(r);
        all
    }

    fn register(&self, r: &mut Registry) {
        // There from the start, so that the first refusal is seen as a change.
        for reason in ["other_ca", "expired", "revoked"] {
            drop(self.peers_refused.get_or_create(&ReasonLabel { reason }));
        }
        let help = "Clients that were not let in, by reason";
        r.register("tls_clients_refused", help, self.peers_refused.clone());
        let help = "TLS handshakes that failed or took too long";
        r.register("tls_handshakes_failed", help, self.handshakes_failed.clone());
        let help = "Unfinished TLS handshakes that made room for others";
        r.register("tls_handshakes_dropped", help, self.handshakes_dropped.clone());
        let help = "Times the bundle or the denylist had changed and could not be read";
        r.register("tls_reload_failures", help, self.reload_failures.clone());
        let help = "When the server's certificate ends, as a unix time; zero without TLS";
        r.register("tls_certificate_end_seconds", help, self.certificate_ends.clone());
    }

    pub(crate) fn refused(&self, reason: &'static str) {
        self.peers_refused.get_or_create(&ReasonLabel { reason }).inc();
    }
}

/// What is read when the page is asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Levels {
    pub(crate) leases: usize,
    pub(crate) waiters: usize,
    pub(crate) consumers: usize,
    pub(crate) store_bytes: u64,
    pub(crate) store_reopened: u64,
    pub(crate) queues: QueueLevels,
}

/// The last line of a page.
const END: &str = "# EOF\n";

const LATENCY_BUCKETS: [f64; 16] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0, 60.0,
];

fn latency() -> Histogram {
    Histogram::new(LATENCY_BUCKETS)
}

impl Metrics {
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("lockd");
        let requests = Family::<RequestLabels, Counter>::default();
        let durations = Family::<OperationLabel, Histogram>::new_with_constructor(latency);
        let ended = Family::<EndLabel, Counter>::default();
        let fence_rejections = Family::<ResourceLabel, Counter>::default();
        let (granted, conflicts) = (Counter::default(), Counter::default());
        let (handoff, sync_seconds) = (latency(), latency());
        let batch_commits =
            Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1024.0]);
        let gauges: [Gauge; 5] = Default::default();
        let [leases, waiters, connections, store_bytes, store_reopened] = gauges;

        let r = &mut registry;
        r.register("requests", "Requests by operation and outcome", requests.clone());
        r.register_with_unit(
            "request_duration",
            "Time from the head of a request to its answer",
            Unit::Seconds,
            durations.clone(),
        );
        r.register("leases_granted", "Leases granted", granted.clone());
        r.register("leases_ended", "Leases ended, by how", ended.clone());
        r.register("fence_rejections", "Writes fenced off, by what", fence_rejections.clone());
        let help = "Time from the end of a lease to the grant for the next in line";
        r.register_with_unit("lease_handoff", help, Unit::Seconds, handoff.clone());
        let help = "Races for a record that were lost and decided again";
        r.register("store_conflicts", help, conflicts.clone());
        let help = "Time one sync of a group commit took";
        r.register_with_unit("store_sync", help, Unit::Seconds, sync_seconds.clone());
        r.register("store_batch_commits", "Commits in one sync", batch_commits.clone());
        r.register("leases", "Leases held now", leases.clone());
        r.register("waiters", "Requests waiting for a key now", waiters.clone());
        r.register("connections", "Open connections", connections.clone());
        let help = "Size of the store";
        r.register_with_unit("store_size", help, Unit::Bytes, store_bytes.clone());
        let help = "Times the store failed and came back";
        r.register("store_reopened", help, store_reopened.clone());
        let crowd = CrowdMetrics::registered(r);
        let tls = TlsMetrics::registered(r);
        let (txns, messages) = (TxnMetrics::registered(r), MessageMetrics::registered(r));
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        r.register("build", "This program", Info::new(version));

        let pairs = Operation::ALL.into_iter().flat_map(|operation| {
            Outcome::ALL.into_iter().map(move |outcome| RequestLabels { operation, outcome })
        });
        Self {
            requests: pairs.map(|labels| requests.get_or_create(&labels).clone()).collect(),
            durations: Operation::ALL
                .into_iter()
                .map(|operation| durations.get_or_create(&OperationLabel { operation }).clone())
                .collect(),
            registry,
            leases_granted: granted,
            ended,
            txns,
            messages,
            fence_rejections,
            handoff,
            store_conflicts: conflicts,
            sync_seconds,
            batch_commits,
            leases,
            waiters,
            connections,
            store_bytes,
            store_reopened,
            crowd,
            tls,
        }
    }

    pub(crate) fn request(&self, operation: Operation, outcome: Outcome, took: Duration) {
        let index = operation as usize * Outcome::ALL.len() + outcome as usize;
        if let Some(counter) = self.requests.get(index) {
            counter.inc();
        }
        if let Some(duration) = self.durations.get(operation as usize) {
            duration.observe(took.as_secs_f64());
        }
    }

    pub(crate) fn lease_ended(&self, how: &End) {
        let how = match how {
            End::Released | End::Committed => "released",
            End::RolledBack => "rolled_back",
            End::Lapsed { .. } => "expired",
            End::Revoked { .. } => "revoked",
        };
        self.ended.get_or_create(&EndLabel { how }).inc();
    }

    pub(crate) fn txn_decided(&self, outcome: &txn::Outcome) {
        let decision = match outcome {
            txn::Outcome::Commit => "commit",
            txn::Outcome::Rollback(Why::Asked) => "rollback",
            txn::Outcome::Rollback(Why::Lapsed) => "expired",
            txn::Outcome::Rollback(Why::Revoked { .. }) => "revoked",
        };
        self.txns.decided.get_or_create(&DecisionLabel { decision }).inc();
    }

    /// A write came too late: on its own key, or on another by a fence condition.
    pub(crate) fn fenced(&self, resource: &'static str) {
        self.fence_rejections.get_or_create(&ResourceLabel { resource }).inc();
    }

    /// The page a scraper reads.
    pub(crate) fn page(&self, levels: &Levels) -> String {
        let level = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.leases.set(level(levels.leases as u64));
        self.waiters.set(level(levels.waiters as u64));
        self.messages.waiting.set(level(levels.consumers as u64));
        self.store_bytes.set(level(levels.store_bytes));
        self.store_reopened.set(level(levels.store_reopened));
        let mut page = String::new();
        if prometheus_client::encoding::text::encode(&mut page, &self.registry).is_err() {
            // Writing to a string cannot fail; the page is then empty rather than half.
            page.clear();
        }
        page.truncate(page.strip_suffix(END).unwrap_or(&page).len());
        page.push_str(&levels.queues.text());
        page.push_str(&lockd_serve::process_text());
        page.push_str(END);
        page
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Metrics {
    fn batch_synced(&self, commits: usize, nanos: u64) {
        self.sync_seconds.observe(Duration::from_nanos(nanos).as_secs_f64());
        self.batch_commits.observe(u32::try_from(commits).unwrap_or(u32::MAX).into());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Levels, Metrics, Operation, Outcome};

    #[test]
    fn a_request_is_counted_under_its_operation_and_outcome() {
        let metrics = Metrics::new();
        metrics.request(Operation::Update, Outcome::Refused, Duration::from_millis(3));
        let page = metrics.page(&Levels { leases: 2, ..Levels::default() });
        let counted = r#"lockd_requests_total{operation="update",outcome="refused"} 1"#;
        assert!(page.contains(counted), "{page}");
        assert!(page.contains("lockd_leases 2"), "{page}");
        let timed = r#"lockd_request_duration_seconds_count{operation="update"} 1"#;
        assert!(page.contains(timed), "{page}");
    }
}
