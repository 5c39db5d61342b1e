//! A server's life: opened, started, drained, stopped.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockd_core::time::Span;
use lockd_serve::{
    ConnectionLimits, HttpPort, Listener, LocalAddress, MutualTls, PerAddress, Slots,
};
use lockd_store::object::{ObjectOptions, Thoroughness};
use lockd_store::{
    EmbeddedOptions, EmbeddedStore, MemStore, ObjectStore, OpenError, Store, StoreError,
    TimeUnknown,
};
use parking_lot::Mutex;

use crate::app::{App, Limits};
use crate::background;
use crate::clock::{Clock, SharedClock, SystemClock};
use crate::commit::{self, Records};
use crate::config::{Address, Family, NamedQueues, Settings, StoreSetting};
use crate::http::Api;
use crate::http::auth::TcRules;
use crate::http::router::{Entry, Handler};
use crate::identity::{self, Identity, IdentityError};
use crate::ids::Ids;
use crate::memory;
use crate::metrics::Metrics;
use crate::port::ServedApi;
use crate::tasks::Tasks;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the store could not be read: {0}")]
    Store(#[from] StoreError),
    #[error("{location} cannot be used: {why}")]
    Object { location: String, why: String },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: std::io::Error },
    #[error("a task of the runtime failed: {0}")]
    Runtime(String),
}

/// What a server is made of besides its settings. Tests bring their own clock, ids and store.
#[derive(Clone)]
pub struct Parts {
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Fn() -> Ids + Send + Sync>,
    pub store: Option<Arc<dyn Store>>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock::start()), ids: Arc::new(Ids::random), store: None }
    }
}

/// An address that a server is listening on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    Tcp(SocketAddr),
    /// With mutual TLS.
    Tls(SocketAddr),
    Unix(PathBuf),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Tls(address) => write!(f, "https://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// How stopping went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Leases that were still held at the end; they live on in the store.
    pub leases_left: usize,
    /// Whether every task ended in time.
    pub in_time: bool,
}

/// A lockd server.
pub struct Server {
    settings: Settings,
    api: Api,
    tasks: Tasks,
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    metrics_bound: Mutex<Option<Bound>>,
    identity: Option<Arc<Identity>>,
}

impl Server {
    #[cfg(test)]
    pub(crate) fn app(&self) -> &Arc<App> {
        &self.api.app
    }

    /// Opens the store and reads who holds what. Nothing is served yet.
    ///
    /// # Errors
    /// When the store cannot be opened or read.
    pub async fn new(settings: Settings) -> Result<Self, StartError> {
        Self::with_parts(settings, Parts::default()).await
    }

    /// As [`Server::new`], with parts of your own.
    ///
    /// # Errors
    /// When the store cannot be opened or read.
    pub async fn with_parts(settings: Settings, parts: Parts) -> Result<Self, StartError> {
        let tasks = Tasks::new();
        let metrics = Arc::new(Metrics::new());
        let identity = open_identity(&settings, &metrics).await?;
        let (store, embedded) = match parts.store {
            Some(store) => (store, None),
            None => open_store(&settings, &metrics, &tasks).await?,
        };
        let clock = match store.time() {
            Some(time) => Arc::new(SharedClock::start(time).map_err(no_time)?),
            None => parts.clock,
        };
        let ids = (parts.ids)();
        let records = Records::new(commit::Parts {
            store: Arc::clone(&store),
            clock,
            metrics: Arc::clone(&metrics),
            tasks: tasks.clone(),
            waiters_max: settings.max_waiters,
            consumers_max: settings.queue.max_consumers,
            secret: ids.number(),
        });
        let app = App::new(records, ids, limits(&settings), tasks.clone());
        let held = app.records.recover().await?;
        tracing::info!(held, "store open");
        let collecting = settings.gc_temps_interval;
        tasks.spawn("reap", background::reap(Arc::clone(&app)));
        if app.records.is_shared() {
            tasks.spawn("write sheet", Arc::clone(&app).write_sheet());
            tasks.spawn("read sheets", Arc::clone(&app).read_sheets());
        } else {
            tasks.spawn("sweep", background::sweep(Arc::clone(&app), settings.sweeper_interval));
        }
        let retention = span(settings.decision_retention);
        let tidying = background::tidy_txns(Arc::clone(&app), settings.sweeper_interval, retention);
        tasks.spawn("transactions", tidying);
        tasks.spawn("queues", background::tidy_queues(Arc::clone(&app)));
        if let NamedQueues::These(named) = &settings.queue.named {
            let keeping = background::keep_queues(Arc::clone(&app), named.clone());
            tasks.spawn("named queues", keeping);
        }
        tasks.spawn("collect", background::collect(Arc::clone(&app), collecting));
        if let Some(identity) = &identity {
            tasks.spawn("identity", identity::keep_up(Arc::clone(identity), tasks.stopping()));
        }
        let tc_rules = TcRules {
            own_ca: settings.identity.tc_allow_default_ca,
            any_ca: settings.identity.tc_disable_auth,
        };
        let live = identity.as_ref().map(|identity| Arc::clone(&identity.live));
        let api = Api { app, embedded, live, tc_rules };
        let metrics_bound = Mutex::new(None);
        Ok(Self { settings, api, tasks, store, metrics, metrics_bound, identity })
    }

    /// The whole API as a tower service, with or without [`Server::start`].
    #[must_use]
    pub fn handler(&self) -> Handler {
        Handler(self.entry())
    }

    fn entry(&self) -> Arc<Entry> {
        self.api.entry(self.settings.max_headers)
    }

    /// Listens and serves in the background; the addresses it got.
    ///
    /// # Errors
    /// When an address cannot be had.
    pub async fn start(&self) -> Result<Vec<Bound>, StartError> {
        raise_file_limit(self.settings.max_connections);
        let tls = self.identity.as_ref().map(|identity| identity.tls()).transpose();
        let tls = tls.map_err(IdentityError::from)?;
        let secure = tls.is_some();
        let mut bound = Vec::new();
        let mut listeners = Vec::new();
        for address in &self.settings.listen {
            let local = !secure && !self.settings.insecure_bind;
            let (listener, at) = bind(address, local).await?;
            listeners.push(listener);
            bound.push(match at {
                Bound::Tcp(address) if secure => Bound::Tls(address),
                at @ (Bound::Tcp(_) | Bound::Tls(_) | Bound::Unix(_)) => at,
            });
        }
        if let Some(address) = &self.settings.metrics_listen {
            let (listener, at) = bind(address, false).await?;
            let pages = self.api.pages(self.settings.max_headers);
            let slots = Slots::new(METRICS_CONNECTIONS, PerAddress::Auto);
            let accepting = self.accept(listener, &self.port(pages, slots, None));
            self.tasks.spawn("accept metrics", accepting);
            *self.metrics_bound.lock() = Some(at);
        }
        let per_address = match self.settings.max_connections_per_address {
            Some(most) => PerAddress::Most(most),
            None => PerAddress::Auto,
        };
        let slots = Slots::new(self.settings.max_connections, per_address);
        let port = self.port(self.entry(), slots, tls);
        for listener in listeners {
            self.tasks.spawn("accept", self.accept(listener, &port));
        }
        Ok(bound)
    }

    fn port(
        &self,
        entry: Arc<Entry>,
        slots: Arc<Slots>,
        tls: Option<MutualTls>,
    ) -> Arc<HttpPort<ServedApi>> {
        let served = ServedApi { entry, metrics: Arc::clone(&self.metrics) };
        let idle = self.settings.idle_timeout;
        let limits = ConnectionLimits {
            first_request: ConnectionLimits::FIRST_REQUEST.min(idle),
            idle,
            headers_max: self.settings.max_headers,
            streams_max: STREAMS_MAX,
            plain_h2: false,
            wind_down: None,
        };
        HttpPort::new(served, limits, slots, tls)
    }

    fn accept(
        &self,
        listener: Listener,
        port: &Arc<HttpPort<ServedApi>>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (stop, tracker) = self.tasks.parts();
        lockd_serve::accept(listener, Arc::clone(port), stop, tracker)
    }

    /// Reads bundle and denylist again, as after a change of the files or a SIGHUP.
    pub async fn reload(&self) {
        let Some(identity) = self.identity.clone() else { return };
        if tokio::task::spawn_blocking(move || identity.reload()).await.is_err() {
            tracing::error!("reading the bundle again failed");
        }
    }

    /// Where the metrics are served, once started.
    #[must_use]
    pub fn metrics_bound(&self) -> Option<Bound> {
        self.metrics_bound.lock().clone()
    }

    /// Stops: grants no new leases, waits for at most `deadline` until the requests in flight have
    /// ended (and, with `drain_leases`, until no lease is held), then ends everything. Leases that
    /// are still held live on in the store.
    pub async fn shutdown(&self, deadline: Duration) -> Shutdown {
        let app = &self.api.app;
        app.start_draining();
        let drained = async {
            app.requests_ended().await;
            if self.settings.drain_leases {
                self.leases_ended().await;
            }
        };
        if tokio::time::timeout(deadline, drained).await.is_err() {
            tracing::info!("drain grace over");
        }
        let leases_left = app.records.live.len();
        let in_time = self.tasks.stop(self.settings.shutdown_timeout).await;
        if !in_time {
            tracing::warn!("some tasks did not end in time");
        }
        self.store.close().await;
        Shutdown { leases_left, in_time }
    }

    /// Ready when no lease is held, or another server is there to go on with them.
    async fn leases_ended(&self) {
        let records = &self.api.app.records;
        while records.live.len() > 0 && !records.journal.is_read() {
            tokio::time::sleep(DRAIN_LOOK_EVERY).await;
        }
    }
}

const METRICS_CONNECTIONS: usize = 64;
/// Requests that one HTTP/2 connection may have in progress.
const STREAMS_MAX: u32 = 256;
const DRAIN_LOOK_EVERY: Duration = Duration::from_millis(20);

async fn bind(address: &Address, local: bool) -> Result<(Listener, Bound), StartError> {
    let shown = match address {
        Address::Tcp { host, port, .. } => format!("{host}:{port}"),
        Address::Unix(path) => path.display().to_string(),
    };
    let failed = |source| StartError::Listen { address: shown.clone(), source };
    let listener = listen(address, local).await.map_err(failed)?;
    let bound = match listener.local().map_err(failed)? {
        LocalAddress::Tcp(address) => Bound::Tcp(address),
        LocalAddress::Unix(path) => Bound::Unix(path),
    };
    Ok((listener, bound))
}

/// An empty host means every address, or loopback when `local`.
async fn listen(address: &Address, local: bool) -> std::io::Result<Listener> {
    match address {
        Address::Unix(path) => Listener::unix(path).await,
        Address::Tcp { host, port, family } => {
            let host = match (host.as_str(), family) {
                ("", Family::V6) if local => "::1",
                ("", _) if local => "127.0.0.1",
                ("", Family::V4) => "0.0.0.0",
                ("", Family::Any | Family::V6) => "::",
                (host, _) => host,
            };
            Listener::tcp(host, *port, *family).await
        }
    }
}

async fn open_identity(
    settings: &Settings,
    metrics: &Arc<Metrics>,
) -> Result<Option<Arc<Identity>>, StartError> {
    if !settings.mtls {
        return Ok(None);
    }
    let (settings, metrics) = (settings.identity.clone(), Arc::clone(metrics));
    let opened = tokio::task::spawn_blocking(move || Identity::open(&settings, &metrics)).await;
    Ok(Some(opened.map_err(|error| StartError::Runtime(error.to_string()))??))
}

type Opened = (Arc<dyn Store>, Option<Arc<EmbeddedStore>>);

async fn open_store(
    settings: &Settings,
    metrics: &Arc<Metrics>,
    tasks: &Tasks,
) -> Result<Opened, StartError> {
    let path: PathBuf = match &settings.store {
        StoreSetting::Memory => return Ok((Arc::new(MemStore::new()), None)),
        StoreSetting::Object(options) => {
            let cache_bytes = settings.store_cache.unwrap_or_else(memory::usual_cache);
            let longest_lease = settings.max_ttl;
            let options = ObjectOptions { cache_bytes, longest_lease, ..(**options).clone() };
            return Ok((open_bucket(&options, tasks).await?, None));
        }
        StoreSetting::Embedded(path) => path.clone(),
    };
    let mut options = EmbeddedOptions::new(path);
    options.allow_network_fs = settings.allow_network_fs;
    options.cache_bytes = settings.store_cache.unwrap_or_else(memory::usual_cache);
    options.observer = Some(Arc::clone(metrics) as _);
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(options)).await;
    let store = opened.map_err(|error| StartError::Runtime(error.to_string()))??;
    Ok((Arc::clone(&store) as _, Some(store)))
}

/// Connects to an object store that keeps its promises, and stays in touch with it.
async fn open_bucket(options: &ObjectOptions, tasks: &Tasks) -> Result<Arc<dyn Store>, StartError> {
    let refused = |why: String| StartError::Object { location: options.location.to_string(), why };
    let store = ObjectStore::open(options).map_err(|error| refused(error.to_string()))?;
    let store = Arc::new(store);
    let report = store.probe(Thoroughness::START).await;
    if !report.left.is_empty() {
        let (objects, first) = (report.left.len(), report.left.first());
        tracing::warn!(objects, ?first, "objects of the store check could not be removed");
    }
    if let Some(why) = report.why() {
        let next = "`lockd verify store` tries everything and says which rights are needed";
        return Err(refused(format!("{why}; {next}")));
    }
    let (pulse, stopping) = (Arc::clone(&store), tasks.stopping());
    tasks.spawn("pulse", async move {
        tokio::select! {
            biased;
            // The store is closed only when all tasks have ended.
            () = stopping => {}
            () = pulse.pulse() => {}
        }
    });
    Ok(store)
}

fn no_time(unknown: TimeUnknown) -> StartError {
    StartError::Store(StoreError::Unavailable(unknown.to_string()))
}

fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn limits(settings: &Settings) -> Limits {
    Limits {
        default_namespace: settings.default_namespace.clone(),
        generate_keys: settings.generate_keys,
        default_ttl: span(settings.default_ttl),
        max_ttl: span(settings.max_ttl),
        acquire_block: span(settings.acquire_block),
        json_max: settings.json_max,
        mutate_max: settings.mutate_max,
        attachment_max: Some(settings.attachment_max).filter(|max| *max > 0),
        payload_max: Some(settings.queue.payload_max).filter(|max| *max > 0),
        named_queues: settings.queue.named.clone(),
        body_timeout: settings.body_timeout,
        body_min_rate: settings.body_min_rate,
    }
}

/// Every connection is a file; the soft limit of most systems is far too low for many waiters.
fn raise_file_limit(connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = connections as u64 + 1_024;
    let raised = limit.maximum.map_or(wanted, |hard| hard.min(wanted));
    if limit.current.is_none_or(|soft| soft >= raised) {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }) {
        Ok(()) if raised < wanted => {
            tracing::warn!(
                raised,
                wanted,
                "the file limit allows fewer connections than configured"
            );
        }
        Ok(()) => tracing::debug!(raised, "file limit raised"),
        Err(error) => tracing::warn!(%error, "the file limit could not be raised"),
    }
}
