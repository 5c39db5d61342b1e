//! A leadership, from its opening to its end: what it has, and whether it may still act.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lockd_client::clock::Moment;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::desk::Desk;
use super::events::Events;
use super::settings::Settings;
use super::time::OfficeTime;
use crate::ledger::Ledger;

/// Repeated writes at one time.
pub(crate) const STORE_AT_ONCE: usize = 16;

#[derive(Debug)]
pub(crate) struct Office {
    pub(crate) epoch: u64,
    pub(crate) settings: Arc<Settings>,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) events: Arc<Events>,
    pub(crate) time: OfficeTime,
    pub(crate) desk: Mutex<Desk>,
    /// A turn has ended, or is in doubt.
    pub(crate) settled: Notify,
    /// There is something to look at.
    pub(crate) due: Notify,
    pub(crate) repeats: Semaphore,
    pub(crate) tasks: TaskTracker,
    pub(crate) over: CancellationToken,
    /// The store has refused it.
    fenced: AtomicBool,
    /// The latest epoch that the store is known to have.
    store_epoch: AtomicU64,
    draining: AtomicBool,
    /// Past this it changes nothing, unless it hears more.
    until: Mutex<Option<Moment>>,
}

/// What an office is made of.
pub(crate) struct Opening {
    pub(crate) epoch: u64,
    pub(crate) settings: Arc<Settings>,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) events: Arc<Events>,
    pub(crate) time: OfficeTime,
}

impl Office {
    pub(crate) fn new(opening: Opening, desk: Desk) -> Self {
        Self {
            epoch: opening.epoch,
            settings: opening.settings,
            ledger: opening.ledger,
            events: opening.events,
            time: opening.time,
            desk: Mutex::new(desk),
            settled: Notify::new(),
            due: Notify::new(),
            repeats: Semaphore::new(STORE_AT_ONCE),
            tasks: TaskTracker::new(),
            over: CancellationToken::new(),
            fenced: AtomicBool::new(false),
            store_epoch: AtomicU64::new(opening.epoch),
            draining: AtomicBool::new(false),
            until: Mutex::new(None),
        }
    }

    /// Whether it may act, by its own count.
    pub(crate) fn is_held(&self) -> bool {
        let until = *self.until.lock();
        !self.over.is_cancelled() && until.is_none_or(|until| self.time.moment() < until)
    }

    pub(crate) fn hold_until(&self, until: Option<Moment>) {
        *self.until.lock() = until;
    }

    /// It changes nothing any more.
    pub(crate) fn end(&self) {
        self.over.cancel();
        self.desk.lock().line.dissolve();
    }

    /// The store has refused it, for it knows another leader: of this epoch, where it told.
    pub(crate) fn fence(&self, seen: Option<u64>) {
        self.store_epoch.fetch_max(seen.unwrap_or(0), Ordering::SeqCst);
        self.fenced.store(true, Ordering::SeqCst);
        self.end();
    }

    pub(crate) fn store_epoch(&self) -> u64 {
        self.store_epoch.load(Ordering::SeqCst)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    /// Gives out no new work, or does again.
    pub(crate) fn drain(self: &Arc<Self>, draining: bool) {
        let was = self.draining.swap(draining, Ordering::SeqCst);
        if draining && !was {
            self.desk.lock().line.dissolve();
        } else if was && !draining {
            self.dispatch();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }
}
