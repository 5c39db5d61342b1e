//! One life of the server: a runtime of its own, whose time stands still but for us. Dying drops
//! the runtime with everything in it; what the store has been told by then stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::Request;
use lockd_server::clock::Clock;
use lockd_server::ids::Ids;
use lockd_server::{Body, Handler, Parts, Server, Settings};
use lockd_store::Store;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use super::gate::{Gate, GatedStore};
use super::plan::Plan;
use super::sse;
use crate::answer::{Answer, Refused};
use crate::call::Ask;
use crate::history::Told;
use crate::wire::{self, Heard};

/// One request to its answer.
pub type Door = Arc<dyn Fn(Ask) -> BoxFuture<'static, Answer> + Send + Sync>;

/// Where the world can be made to lie, to show that the checker notices: around the store, around
/// the clock, and between the clients and the server. They change nothing unless told to.
#[derive(Clone)]
pub struct Edges {
    pub store: Arc<dyn Fn(Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync>,
    pub clock: Arc<dyn Fn(Arc<dyn Clock>) -> Arc<dyn Clock> + Send + Sync>,
    pub door: Arc<dyn Fn(Door) -> Door + Send + Sync>,
}

impl Default for Edges {
    fn default() -> Self {
        Self { store: Arc::new(|s| s), clock: Arc::new(|c| c), door: Arc::new(|d| d) }
    }
}

/// What a process is made of.
pub(super) struct Birth<'a> {
    pub(super) number: u64,
    pub(super) plan: &'a Plan,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) edges: &'a Edges,
}

/// What came out of the server since it was last looked at.
#[derive(Clone, Debug)]
pub(super) enum Out {
    Answer { op: usize, answer: Answer },
    Told { watch: usize, told: Told, id: Option<String> },
    WatchEnded { watch: usize },
}

pub(super) struct Process {
    pub(super) number: u64,
    pub(super) gate: Gate,
    runtime: Runtime,
    handler: Handler,
    door: Door,
    out: Arc<Mutex<Vec<Out>>>,
    asked: Vec<(usize, AbortHandle)>,
    server: Arc<Server>,
    stopped: Arc<AtomicBool>,
}

impl Process {
    pub(super) fn start(birth: Birth<'_>) -> Result<Self, String> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let gate = Gate::default();
        gate.set_open(true);
        let seed = birth.plan.seed.wrapping_mul(1_000).wrapping_add(birth.number);
        let clock = (birth.edges.clock)(birth.clock);
        let parts = Parts {
            clock,
            ids: Arc::new(move || Ids::seeded(seed)),
            store: Some(Arc::new(GatedStore::new(birth.store, gate.clone()))),
        };
        let opening = Server::with_parts(settings(birth.plan), parts);
        let server = runtime.block_on(opening).map_err(|error| error.to_string())?;
        let handler = server.handler();
        let door = (birth.edges.door)(door(handler.clone()));
        gate.set_open(false);
        Ok(Self {
            number: birth.number,
            gate,
            runtime,
            handler,
            door,
            out: Arc::default(),
            asked: Vec::new(),
            server: Arc::new(server),
            stopped: Arc::default(),
        })
    }

    /// Sends an ask.
    pub(super) fn ask(&mut self, op: usize, ask: Ask) {
        let (answering, out) = ((self.door)(ask), Arc::clone(&self.out));
        let task = self.runtime.spawn(async move {
            let answer = answering.await;
            out.lock().push(Out::Answer { op, answer });
        });
        self.asked.push((op, task.abort_handle()));
    }

    /// The client hangs up.
    pub(super) fn hang_up(&mut self, op: usize) {
        self.asked.retain(|(asked, task)| {
            if *asked == op {
                task.abort();
            }
            *asked != op
        });
    }

    /// Watches all keys, from where an earlier watch ended.
    pub(super) fn watch(&self, watch: usize, resume: Option<String>) {
        let out = Arc::clone(&self.out);
        let handler = self.handler.clone();
        self.runtime.spawn(async move {
            let ended = Arc::clone(&out);
            sse::watch(handler, resume, move |told, id| {
                out.lock().push(Out::Told { watch, told, id });
            })
            .await;
            ended.lock().push(Out::WatchEnded { watch });
        });
    }

    /// Tells it to stop. Holders have some time to finish.
    pub(super) fn drain(&self, grace: Duration) {
        let (server, stopped) = (Arc::clone(&self.server), Arc::clone(&self.stopped));
        self.runtime.spawn(async move {
            server.shutdown(grace).await;
            stopped.store(true, Ordering::Release);
        });
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Lets everything go on that can. Paused time moves only when nothing else does.
    pub(super) fn settle(&self, span: Duration) -> Vec<Out> {
        self.runtime.block_on(async { tokio::time::sleep(span).await });
        std::mem::take(&mut *self.out.lock())
    }

    /// Dies. Nobody is left to be answered.
    pub(super) fn die(self) {
        let Self { runtime, gate, .. } = self;
        gate.clear();
        drop(runtime);
    }
}

fn settings(plan: &Plan) -> Settings {
    let mut settings = Settings::embedded_defaults();
    if plan.tidies {
        settings.gc_temps_interval = Duration::from_millis(40);
        settings.sweeper_interval = Duration::from_millis(70);
    } else {
        settings.gc_temps_interval = Duration::from_secs(3_600);
        settings.sweeper_interval = Duration::from_secs(3_600);
    }
    settings
}

/// The way into the server.
fn door(handler: Handler) -> Door {
    Arc::new(move |ask| {
        let handler = handler.clone();
        Box::pin(async move {
            match asked(handler, &ask).await {
                Ok(heard) => wire::answer(&ask, &heard),
                Err(detail) => {
                    Answer::Refused(Refused { detail, unknown: true, ..Refused::code("broken") })
                }
            }
        })
    })
}

async fn asked(handler: Handler, ask: &Ask) -> Result<Heard, String> {
    let request: Request<Bytes> = wire::request(ask, "").map_err(|error| error.to_string())?;
    let (status, headers, body) = crate::ring::call(handler, request.map(Body::from)).await?;
    Ok(Heard { status, headers, body, now: None })
}
