//! Whether the store can be reached. A store that has answered nothing but errors for a while, or
//! nothing at all, is away: requests then fail at once instead of being tried again, until the
//! [pulse](super::ObjectStore::pulse) meets an answer. It is logged once when the store goes away
//! and once when it is back. What is said about it names the store and the operation, no object:
//! names of objects are secrets.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Fault;
use super::wire::tick_ms;

/// A store that only fails for so long is away.
const AWAY_AFTER_MS: i64 = 2_000;
/// When requests wait and none was answered for so long, the store is asked whether it is there.
const QUIET_MS: i64 = 1_000;

/// What the store is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
    List,
    Delete,
    Upload,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Upload => "upload in parts",
        })
    }
}

/// Why the store cannot be used.
#[derive(Clone, Copy, Debug)]
struct Failing {
    operation: Operation,
    /// It answers, and will not do it.
    is_refused: bool,
    since: i64,
}

#[derive(Debug)]
struct State {
    failing: Option<Failing>,
    /// When an answer came last that was no error.
    heard: i64,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Reach {
    /// The store, as its users name it.
    store: String,
    state: Mutex<State>,
    away: watch::Sender<bool>,
    waiting: AtomicUsize,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Request<'a>(&'a Reach);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reach {
    pub(super) fn new(store: String) -> Self {
        let state = Mutex::new(State { failing: None, heard: tick_ms() });
        Self { store, state, away: watch::Sender::new(false), waiting: AtomicUsize::new(0) }
    }

    pub(super) fn begin(&self) -> Request<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Request(self)
    }

    pub(super) fn is_away(&self) -> bool {
        *self.away.borrow()
    }

    /// Ready while the store is away.
    pub(super) async fn gone(&self) {
        let mut away = self.away.subscribe();
        // Its sender lives in `self`.
        let _closed = away.wait_for(|away| *away).await.is_err();
    }

    /// Remembers what became of a request that was begun at `begun`.
    pub(super) fn note(&self, operation: Operation, fault: Option<Fault>, begun: i64) {
        let mut state = self.state.lock();
        let is_refused = match fault {
            Some(Fault::Unclear) => {
                let since = state.failing.filter(|failing| !failing.is_refused);
                // Others were answered meanwhile, or this would have failed since it began.
                let since = since.map_or(begun.max(state.heard), |failing| failing.since);
                state.failing = Some(Failing { operation, is_refused: false, since });
                return;
            }
            Some(Fault::Refused | Fault::Rejected) => true,
            Some(Fault::NotFound | Fault::NotModified | Fault::Lost) | None => false,
        };
        let now = tick_ms();
        let was = state.failing.take();
        state.heard = now;
        state.failing = is_refused.then_some(Failing { operation, is_refused, since: now });
        drop(state);
        if self.away.send_replace(false) {
            let away_ms = was.map_or(0, |failing| now - failing.since);
            tracing::info!(store = %self.store, away_ms, "object store reachable again");
        }
    }

    /// Takes the store for away when it has failed for long enough.
    pub(super) fn judge(&self) {
        let failing = self.state.lock().failing;
        let Some(Failing { operation, is_refused: false, since }) = failing else { return };
        let failing_ms = tick_ms() - since;
        if failing_ms >= AWAY_AFTER_MS && !self.away.send_replace(true) {
            tracing::warn!(
                store = %self.store, %operation, failing_ms,
                "object store unreachable: requests are refused until it answers"
            );
        }
    }

    /// Whether the store is to be asked if it is there. Without requests of others it is asked when
    /// nothing was heard for `pulse_ms`.
    pub(super) fn is_in_doubt(&self, pulse_ms: i64) -> bool {
        let state = self.state.lock();
        let quiet = tick_ms() - state.heard;
        let waits = self.waiting.load(Ordering::Relaxed) > 0;
        state.failing.is_some() || quiet >= pulse_ms || (waits && quiet >= QUIET_MS)
    }

    /// Why the store cannot be used, if it cannot.
    pub(super) fn why(&self) -> Option<String> {
        let Failing { operation, is_refused, since } = self.state.lock().failing?;
        let store = &self.store;
        let secs = (tick_ms() - since) / 1_000;
        Some(if is_refused {
            format!("{store} refuses to {operation}")
        } else {
            format!("{store} does not answer: it failed to {operation} for {secs} s")
        })
    }
}
