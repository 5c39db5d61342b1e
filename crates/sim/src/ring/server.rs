//! The server in this process: requests go through its handler, records into memory. Restarting
//! drops the runtime with everything in it; only the store and the clock go on.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use lockd_core::time::{BootId, Span, UnixMillis};
use lockd_server::clock::{Clock, ManualClock};
use lockd_server::ids::Ids;
use lockd_server::{Body, Handler, Parts, Server, Settings, StartError};
use lockd_store::{MemStore, Store};
use tokio::runtime::Runtime;
use tower::ServiceExt;

use super::START;
use crate::answer::{Answer, Refused};
use crate::call::Ask;
use crate::case::Ring;
use crate::wire::{self, Heard};

/// A server under manual time.
pub struct ServerRing {
    store: Arc<dyn Store>,
    clock: ManualClock,
    boot: u128,
    starts: u64,
    process: Option<Process>,
}

struct Process {
    runtime: Runtime,
    handler: Handler,
    _server: Server,
}

impl ServerRing {
    /// # Errors
    /// When the server does not start.
    pub fn new() -> Result<Self, String> {
        let store: Arc<dyn Store> = Arc::new(MemStore::new());
        let clock = ManualClock::at(START);
        let mut ring = Self { store, clock, boot: 1, starts: 0, process: None };
        ring.start()?;
        Ok(ring)
    }

    fn start(&mut self) -> Result<(), String> {
        self.process = None;
        self.starts += 1;
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let seed = self.starts;
        let parts = Parts {
            clock: Arc::new(self.clock.clone()),
            ids: Arc::new(move || Ids::seeded(seed)),
            store: Some(Arc::clone(&self.store)),
        };
        let opening = Server::with_parts(Settings::embedded_defaults(), parts);
        let server = runtime.block_on(opening).map_err(|error: StartError| error.to_string())?;
        let handler = server.handler();
        self.process = Some(Process { runtime, handler, _server: server });
        Ok(())
    }

    fn try_ask(&self, ask: &Ask) -> Result<Answer, String> {
        let process = self.process.as_ref().ok_or("the server did not start")?;
        let request = wire::request(ask, "").map_err(|error| error.to_string())?;
        let handler = process.handler.clone();
        let now = Some(self.clock.now().wall.0);
        process.runtime.block_on(async move {
            let (status, headers, body) = call(handler, request.map(Body::from)).await?;
            // What follows from the answer, such as waking others, has happened before the next.
            settle().await;
            Ok(wire::answer(ask, &Heard { status, headers, body, now }))
        })
    }
}

/// Returns when nothing else can go on: paused time moves only then.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// One request to its end.
pub(crate) async fn call(
    handler: Handler,
    request: Request<Body>,
) -> Result<(StatusCode, http::HeaderMap, bytes::Bytes), String> {
    let response = match handler.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string())?;
    Ok((parts.status, parts.headers, body.to_bytes()))
}

impl Ring for ServerRing {
    fn name(&self) -> &'static str {
        "server"
    }

    fn ask(&mut self, ask: &Ask) -> Answer {
        self.try_ask(ask).unwrap_or_else(|detail| {
            Answer::Refused(Refused { detail, unknown: true, ..Refused::code("broken") })
        })
    }

    fn advance(&mut self, ms: u64) {
        self.clock.advance(Span(ms));
        if let Some(process) = &self.process {
            process.runtime.block_on(settle().boxed());
        }
    }

    fn step_wall(&mut self, by_ms: i64) {
        let wall = self.clock.now().wall.0.saturating_add_signed(by_ms);
        self.clock.set_wall(UnixMillis(wall));
    }

    fn restart(&mut self, reboot: bool) {
        self.process = None;
        self.boot += u128::from(reboot);
        self.clock.restart(BootId(self.boot));
        if let Err(error) = self.start() {
            // Every further answer tells so.
            drop(error);
        }
    }
}
