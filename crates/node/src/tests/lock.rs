//! A lock in memory, which can be cut off from a candidate and taken away.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::clock::{Clock, Moment};
use lockd_elect::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Clone, Debug, Default)]
pub(super) struct World {
    kept: Arc<Mutex<Kept>>,
    vacated: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Kept {
    holder: Option<(Candidate, u64, Moment)>,
    epoch: u64,
    cut_off: Vec<String>,
    tried: Vec<String>,
    /// Whether it knows who held it before.
    forgot: bool,
}

impl World {
    pub(super) fn lock(&self, id: &str, ttl: Duration) -> Arc<dyn LeaderLock> {
        let (world, candidate) = (self.clone(), Candidate::new(id));
        Arc::new(InMemory { world, candidate, ttl, floor: Mutex::default() })
    }

    /// The node that holds it, by its name, and under which epoch.
    pub(super) fn holder(&self) -> Option<(String, u64)> {
        let mut kept = self.kept.lock();
        let now = Clock::Boot.now();
        kept.holder.take_if(|(.., until)| *until <= now);
        let (candidate, epoch, _) = kept.holder.as_ref()?;
        Some((candidate.id.split('@').next().unwrap().to_owned(), *epoch))
    }

    pub(super) fn is_held_by(&self, node: &str) -> bool {
        self.holder().is_some_and(|(id, _)| id == node)
    }

    /// The node cannot reach the lock any more.
    pub(super) fn cut_off(&self, node: &str) {
        self.kept.lock().cut_off.push(format!("{node}@"));
    }

    pub(super) fn reconnect(&self) {
        self.kept.lock().cut_off.clear();
    }

    /// Nobody holds it, and whoever did hears it at the next renewal.
    pub(super) fn vanish(&self) {
        self.kept.lock().holder = None;
        self.vacated.notify_waiters();
    }

    /// It does not know any more who held it.
    pub(super) fn forget(&self) {
        self.kept.lock().forgot = true;
    }

    pub(super) fn has_tried(&self, node: &str) -> bool {
        self.kept.lock().tried.iter().any(|id| id.starts_with(&format!("{node}@")))
    }
}

#[derive(Debug)]
struct InMemory {
    world: World,
    candidate: Candidate,
    ttl: Duration,
    floor: Mutex<u64>,
}

impl InMemory {
    fn reach<T>(&self, ask: impl FnOnce(&mut Kept, Moment) -> T) -> Result<T, LockError> {
        let now = Clock::Boot.now();
        let mut kept = self.world.kept.lock();
        if kept.cut_off.iter().any(|id| self.candidate.id.starts_with(id)) {
            return Err(LockError::Unavailable("cut off".into()));
        }
        kept.holder.take_if(|(.., until)| *until <= now);
        Ok(ask(&mut kept, now))
    }

    fn holds(&self, kept: &Kept, epoch: Epoch) -> bool {
        let holder = kept.holder.as_ref();
        holder.is_some_and(|(who, now, _)| *who == self.candidate && *now == epoch.0)
    }
}

fn ready<'a, T: Send + 'a>(answer: T) -> BoxFuture<'a, T> {
    Box::pin(async move { answer })
}

fn shown(holder: &(Candidate, u64, Moment), now: Moment) -> Holder {
    let (who, epoch, until) = holder;
    Holder { id: who.id.clone(), epoch: Some(Epoch(*epoch)), remaining: Some(until.since(now)) }
}

impl LeaderLock for InMemory {
    fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn try_acquire(&self) -> BoxFuture<'_, Result<Attempt, LockError>> {
        ready(self.reach(|kept, now| {
            kept.tried.push(self.candidate.id.clone());
            if let Some(holder) = kept.holder.as_ref().filter(|it| it.0 != self.candidate) {
                return Attempt::Held(shown(holder, now));
            }
            kept.epoch = kept.epoch.max(*self.floor.lock()) + 1;
            kept.holder = Some((self.candidate.clone(), kept.epoch, now.plus(self.ttl)));
            let lost = Memory::Lost { ago: Duration::ZERO };
            let memory = if kept.forgot { lost } else { Memory::Kept };
            Attempt::Granted(Grant { epoch: Epoch(kept.epoch), memory })
        }))
    }

    fn renew(&self, epoch: Epoch) -> BoxFuture<'_, Result<Renewal, LockError>> {
        ready(self.reach(|kept, now| {
            if !self.holds(kept, epoch) {
                return Renewal::Lost(Loss::Vanished);
            }
            if let Some((.., until)) = &mut kept.holder {
                *until = now.plus(self.ttl);
            }
            Renewal::Kept
        }))
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        ready(self.reach(|kept, _| {
            if self.holds(kept, epoch) {
                kept.holder = None;
                self.world.vacated.notify_waiters();
            }
        }))
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        ready(self.reach(|kept, now| kept.holder.as_ref().map(|holder| shown(holder, now))))
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.world.vacated.notified())
    }

    fn saw(&self, epoch: Epoch) {
        let mut floor = self.floor.lock();
        *floor = floor.max(epoch.0);
    }
}
