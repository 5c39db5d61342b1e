//! What the server can do, free of HTTP: each operation loads through the hinge, asks core, and
//! arranges waiting, streaming and listing around it.

pub(crate) mod attachment;
pub(crate) mod collect;
pub(crate) mod document;
pub(crate) mod event;
pub(crate) mod lease;
pub(crate) mod list;
pub(crate) mod live;
pub(crate) mod mutate;
pub(crate) mod peers;
pub(crate) mod queue;
pub(crate) mod read;
pub(crate) mod refused;
pub(crate) mod state;
pub(crate) mod txn;
pub(crate) mod wait;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lockd_core::ids::TxnId;
use lockd_core::key::{KeyName, NameRefused};
use lockd_core::time::Span;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::clock::Clock;
use crate::commit::Records;
use crate::config::NamedQueues;
use crate::ids::Ids;
use crate::metrics::Metrics;
use crate::tasks::Tasks;

pub(crate) use queue::QueueRefused;
use queue::enqueue::Arriving;
pub(crate) use refused::{Refused, TxnRefused};

/// Bounds and defaults of the operations.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) default_namespace: String,
    /// An acquire that names no key means a generated one.
    pub(crate) generate_keys: bool,
    pub(crate) default_ttl: Span,
    pub(crate) max_ttl: Span,
    /// The longest wait of an acquire that asks for the server's own.
    pub(crate) acquire_block: Span,
    pub(crate) json_max: u64,
    pub(crate) mutate_max: u64,
    /// `None`: no bound.
    pub(crate) attachment_max: Option<u64>,
    /// Of a message; `None`: no bound.
    pub(crate) payload_max: Option<u64>,
    /// Which queues the metrics may name.
    pub(crate) named_queues: NamedQueues,
    /// The longest pause between two pieces of a request body.
    pub(crate) body_timeout: std::time::Duration,
    /// Bytes a second that a body must bring on average; zero for any rate.
    pub(crate) body_min_rate: u64,
}

/// The operations. Shared by all connections.
pub(crate) struct App {
    pub(crate) records: Arc<Records>,
    pub(crate) ids: Ids,
    pub(crate) limits: Limits,
    pub(crate) tasks: Tasks,
    /// Tells this process from earlier ones to those who resume a watch.
    pub(crate) incarnation: String,
    pub(crate) arriving: Arriving,
    draining: AtomicBool,
    drain: CancellationToken,
    /// Requests that began before the server drained; see [`App::begin_request`].
    in_flight: TaskTracker,
}

/// Held by a request, with the body of its answer, for as long as a drain waits for it.
pub(crate) type InFlight = TaskTrackerToken;

impl App {
    pub(crate) fn new(records: Records, ids: Ids, limits: Limits, tasks: Tasks) -> Arc<Self> {
        let incarnation = ids.unique();
        Arc::new(Self {
            records: Arc::new(records),
            ids,
            limits,
            tasks,
            incarnation,
            arriving: Arriving::default(),
            draining: AtomicBool::new(false),
            drain: CancellationToken::new(),
            in_flight: TaskTracker::new(),
        })
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.records.clock
    }

    /// An id for a transaction that begins here.
    pub(crate) fn new_txn(&self) -> TxnId {
        let now = self.clock().now().wall;
        if self.records.is_shared() { self.ids.marked_txn_id(now) } else { self.ids.txn_id(now) }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.records.metrics
    }

    /// From now on nothing new is granted, and nobody waits any longer.
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
        self.drain.cancel();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// A request that begins while the server drains is served, but the drain does not wait for
    /// it: requests that keep coming would put off the end.
    pub(crate) fn begin_request(&self) -> Option<InFlight> {
        (!self.is_draining()).then(|| self.in_flight.token())
    }

    /// Ready when the requests that were in flight when draining began have ended.
    pub(crate) async fn requests_ended(&self) {
        self.in_flight.close();
        self.in_flight.wait().await;
    }

    /// Ready when draining begins.
    pub(crate) async fn drained(&self) {
        self.drain.cancelled().await;
    }

    /// A key as a caller names it; without a namespace, the default one is meant.
    pub(crate) fn key(&self, namespace: Option<&str>, key: &str) -> Result<KeyName, NameRefused> {
        KeyName::parse(self.namespace(namespace), key)
    }

    /// The default stands in for a namespace that is absent, never for one that is empty: that is
    /// what an unset variable leaves, and it is refused like any other wrong name.
    pub(crate) fn namespace<'a>(&'a self, namespace: Option<&'a str>) -> &'a str {
        namespace.map_or(&self.limits.default_namespace, str::trim)
    }
}
