//! The same clients over real connections to a real server with the embedded store, in real time.
//! What they saw goes to the same checker; only who stood in line cannot be seen from outside.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockd_server::config::StoreSetting;
use lockd_server::{Server, Settings};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::answer::{Answer, Entry};
use crate::call::{Acquire, Ask, Block, Release};
use crate::dice::Dice;
use crate::history::{Happening, History, Told};
use crate::link::Link;
use crate::security::Security;
use crate::world::Plan;
use crate::world::client::Client;

/// The server counts in milliseconds.
const GRAIN_US: u64 = 1_000;
/// By then every client is done, however slow the machine: they only wait for short leases.
const TIME_MAX: Duration = Duration::from_secs(30);
/// Within this time a watcher has heard what was committed.
const TOLD_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The plan of a real history: short leases, and only what real clients can do.
#[must_use]
pub fn plan(seed: u64) -> Plan {
    let mut plan = Plan::of(seed);
    plan.ttl_ms = (50, 300);
    plan.asks = plan.asks.min(48);
    plan.gives_up = 40;
    plan
}

/// Plays a history against a server of its own with its store in an empty folder.
///
/// # Errors
/// When the server does not start.
pub async fn play(plan: &Plan, folder: &Path, security: &Security) -> Result<History, String> {
    let mut dice = Dice::new(plan.seed, 5);
    let stage = Arc::new(Stage::new());
    let mut server = open(&stage, folder, security).await?;
    let watching = plan.watches.then(|| stage.watch());
    let mut clients = JoinSet::new();
    let asks = plan.asks / plan.clients.max(1);
    for number in 0..plan.clients {
        clients.spawn(act(Arc::clone(&stage), plan.clone(), number, asks));
    }
    if dice.chance(400) {
        tokio::time::sleep(Duration::from_millis(dice.between(5, 120))).await;
        stage.close(&server).await;
        server = open(&stage, folder, security).await?;
    }
    let all = async { while clients.join_next().await.is_some() {} };
    let in_time = tokio::time::timeout(TIME_MAX, all).await.is_ok();
    if !in_time {
        clients.abort_all();
    }
    stage.happened(Happening::AtRest);
    audit(&stage, plan).await;
    if let Some(watching) = watching {
        stage.wait_for_watchers().await;
        watching.abort();
    }
    stage.close(&server).await;
    Ok(stage.take())
}

/// What all clients of a history share.
struct Stage {
    history: Mutex<History>,
    began: Instant,
    /// The process that serves now, and how to reach it.
    now: watch::Sender<(u64, Option<Link>)>,
}

impl Stage {
    fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "real time is what this is about")]
        let began = Instant::now();
        let mut history = History::default();
        history.grain = GRAIN_US;
        Self { history: Mutex::new(history), began, now: watch::Sender::new((0, None)) }
    }

    /// Writes something down with the time at which it was written: both under one lock, so that
    /// the order of moments is the order of time.
    fn note<T>(&self, note: impl FnOnce(&mut History, u64) -> T) -> T {
        let mut history = self.history.lock();
        let at = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        note(&mut history, at)
    }

    fn happened(&self, what: Happening) {
        self.note(|history, at| history.happened(at, what));
    }

    fn take(&self) -> History {
        std::mem::take(&mut *self.history.lock())
    }

    async fn close(&self, server: &Server) {
        let process = self.now.borrow().0;
        self.happened(Happening::Draining { process });
        server.shutdown(Duration::ZERO).await;
        self.happened(Happening::Crashed { process });
        self.now.send_modify(|(_, link)| *link = None);
    }

    /// The server, as soon as there is one.
    async fn reach(&self) -> Option<(u64, Link)> {
        let mut now = self.now.subscribe();
        let (process, link) = now.wait_for(|(_, link)| link.is_some()).await.ok()?.clone();
        Some((process, link?))
    }

    /// Asks, and waits for the answer as long as the client likes.
    async fn ask(&self, client: usize, ask: Ask, patience: Option<Duration>) -> Option<usize> {
        let (process, link) = self.reach().await?;
        let op = self.note(|history, at| history.sent(at, client, process, ask.clone()));
        let asking = link.ask(&ask, None);
        let heard = match patience {
            Some(patience) => tokio::time::timeout(patience, asking).await,
            None => Ok(asking.await),
        };
        match heard {
            Ok(Ok(answer)) => self.note(|history, at| history.heard(at, op, answer)),
            // The connection broke: no answer, and none will come.
            Ok(Err(_)) | Err(_) => self.note(|history, at| history.gave_up(at, op)),
        }
        Some(op)
    }

    fn watch(self: &Arc<Self>) -> tokio::task::AbortHandle {
        let stage = Arc::clone(self);
        let watching = async move {
            while let Some((process, link)) = stage.reach().await {
                let watch = stage.history.lock().watching(process, false);
                let tell = |told, _id| stage.note(|history, at| history.told(at, watch, told));
                // A watch that ends or does not begin is begun again.
                let _ended = link.watch(tell).await.is_ok();
                stage.note(|history, at| history.watch_ended(at, watch));
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::runtime::Handle::current().spawn(watching).abort_handle()
    }

    /// Until the watchers know what the auditor has read, or it has been far too long.
    async fn wait_for_watchers(&self) {
        let looks = TOLD_MAX.as_millis() / LOOK_EVERY.as_millis();
        for _ in 0..looks {
            if self.is_told() {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn is_told(&self) -> bool {
        let history = self.history.lock();
        let Some(watch) = history.watches.last() else { return true };
        let read = history.ops.iter().rev().find_map(|op| match op.answer() {
            Some(Answer::Entries(entries)) => Some(entries),
            _ => None,
        });
        let told = |entry: &Entry| {
            entry.version == 0
                || watch.told.iter().any(|(_, told)| match told {
                    Told::State { key, version, .. } | Told::Removed { key, version, .. } => {
                        *key == entry.key && *version == entry.version
                    }
                    Told::Reset { .. } | Told::Lease { .. } => false,
                })
        };
        read.is_none_or(|entries| entries.iter().all(told))
    }
}

async fn open(stage: &Stage, folder: &Path, security: &Security) -> Result<Server, String> {
    let mut settings = Settings::embedded_defaults();
    security.set(&mut settings);
    settings.store = StoreSetting::Embedded(folder.to_owned());
    let server = Server::new(settings).await.map_err(|error| error.to_string())?;
    let bound = server.start().await.map_err(|error| error.to_string())?;
    let address = bound.first().ok_or("no address")?.to_string();
    let link = Link::new(address, security.bundle()?.as_ref())?;
    let process = stage.now.borrow().0 + 1;
    stage.happened(Happening::Started { process });
    stage.now.send_replace((process, Some(link)));
    Ok(server)
}

/// One client: asks, and learns from what it hears.
async fn act(stage: Arc<Stage>, plan: Plan, number: usize, asks: usize) {
    let mut dice = Dice::new(plan.seed, 100 + number as u64);
    let mut client = Client::new(number);
    for _ in 0..asks {
        let ask = client.next(&plan, &mut dice);
        let patience = dice.chance(plan.gives_up).then(|| dice.below(4_000));
        let op = stage.ask(number, ask, patience.map(Duration::from_micros)).await;
        let Some(op) = op else { return };
        if let Some(op) = stage.history.lock().ops.get(op) {
            client.learn(op);
        }
        if dice.chance(250) {
            tokio::time::sleep(Duration::from_millis(dice.below(60))).await;
        }
    }
}

/// What is there in the end, and is it served?
async fn audit(stage: &Stage, plan: &Plan) {
    let auditor = plan.clients;
    stage.ask(auditor, Ask::Read { keys: plan.keys.clone() }, None).await;
    for key in &plan.keys {
        stage.ask(auditor, Ask::Describe { key: key.clone() }, None).await;
        let acquire = Acquire {
            key: key.clone(),
            owner: "auditor".into(),
            ttl_ms: Some(10_000),
            block: Block::Seconds(20),
            if_not_exists: false,
            txn: None,
            idem: None,
        };
        let op = stage.ask(auditor, Ask::Acquire(acquire), None).await;
        let answer = op.and_then(|op| stage.history.lock().ops.get(op)?.answer().cloned());
        if let Some(Answer::Granted { held, .. }) = answer {
            let view = Ask::View { key: Some(key.clone()), held: held.clone() };
            stage.ask(auditor, view, None).await;
            let (rollback, fences, idem) = (false, Vec::new(), None);
            let release = Release { key: Some(key.clone()), held, rollback, fences, idem };
            stage.ask(auditor, Ask::Release(release), None).await;
        }
    }
}
