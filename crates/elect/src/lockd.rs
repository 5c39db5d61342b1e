//! The lock in lockd: a lease on a key. The epoch is its fencing token, so a fence condition on the
//! key ties any write of lockd to a leadership.
//!
//! A token grows by one with every grant, and by nothing else that a client could ask for: a lockd
//! that has lost its memory is led past what was seen grant by grant, if that is not too far.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::chain;
use lockd_client::{
    AcquireKind, Change, Client, Grant as Lease, KeepaliveKind, LeaseContext, RawLease,
    ReleaseKind, wire,
};
use parking_lot::Mutex;

use crate::lock::{Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Renewal};
use crate::outside::Forgetting;

/// How many grants a lock that has lost its memory is led past those that were seen.
const RAISES_MAX: u64 = 1_000;
/// How long after a watch that broke the next one begins.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// The lock of one candidate.
pub struct LockdLock {
    client: Client,
    namespace: Option<String>,
    key: String,
    candidate: Candidate,
    ttl: Duration,
    seen: AtomicU64,
    request: Mutex<Request>,
    held: Mutex<Option<Held>>,
    memory: Forgetting,
}

/// The request that is made now: it keeps its name until it is answered.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    number: u64,
    /// Whether it was made before: what it is granted may be old.
    repeated: bool,
}

/// A lease that this candidate has, or had.
#[derive(Clone, Debug)]
struct Held {
    epoch: Epoch,
    context: LeaseContext,
    /// It was asked to end, and that may happen at any time: it is never led under again.
    let_go: bool,
}

impl fmt::Debug for LockdLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockdLock({}, {})", self.key, self.candidate.id)
    }
}

impl LockdLock {
    #[must_use]
    pub fn new(client: Client, key: &str, candidate: Candidate, ttl: Duration) -> Self {
        Self {
            client,
            namespace: None,
            key: key.into(),
            candidate,
            ttl,
            seen: AtomicU64::new(0),
            request: Mutex::default(),
            held: Mutex::new(None),
            memory: Forgetting::default(),
        }
    }

    /// The key is in this namespace, instead of the client's.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The lease under this epoch, for whatever is to be written under it.
    #[must_use]
    pub fn lease(&self, epoch: Epoch) -> Option<RawLease> {
        self.context(epoch).map(|context| self.client.raw(context))
    }

    /// A lease, or whoever has it. What is granted is kept in mind before anything else is done.
    async fn ask(&self) -> Result<Result<(Held, bool), Holder>, LockError> {
        let request = {
            let mut request = self.request.lock();
            let now = *request;
            request.repeated = true;
            now
        };
        let name = format!("{}-{}", self.candidate.incarnation, request.number);
        let mut acquire = self.client.lease(self.key.as_str()).owner(self.candidate.id.as_str());
        if let Some(namespace) = &self.namespace {
            acquire = acquire.namespace(namespace);
        }
        let answered = || {
            *self.request.lock() = Request { number: request.number + 1, repeated: false };
        };
        match acquire.ttl(self.ttl).idempotency_key(name).no_wait().detached().await {
            Ok(Lease { context, .. }) => {
                let epoch = Epoch(context.token.unwrap_or_default());
                let held = Held { epoch, context, let_go: false };
                *self.held.lock() = Some(held.clone());
                answered();
                Ok(Ok((held, request.repeated)))
            }
            Err(error) if error.kind() == AcquireKind::Busy => {
                answered();
                let remaining = error.retry_after();
                Ok(Err(match self.look().await {
                    Ok(Some(holder)) => Holder { remaining, ..holder },
                    // It was let go in the meantime.
                    Ok(None) => Holder { remaining: Some(Duration::ZERO), ..Holder::default() },
                    Err(_) => Holder { remaining, ..Holder::default() },
                }))
            }
            Err(error) if [AcquireKind::Unavailable, AcquireKind::Lost].contains(&error.kind()) => {
                Err(LockError::Unavailable(chain(&error)))
            }
            Err(error) => Err(LockError::Refused(chain(&error))),
        }
    }

    async fn try_now(&self) -> Result<Attempt, LockError> {
        let known = self.held.lock().clone();
        if let Some(held) = known {
            if held.let_go || held.epoch.0 < self.seen.load(Ordering::Relaxed) {
                self.end(held.epoch).await?;
            } else if self.keep(&held.context).await? {
                return Ok(self.granted(&held));
            } else {
                self.forget(held.epoch);
            }
        }
        for _ in 0..=RAISES_MAX {
            let (held, repeated) = match self.ask().await? {
                Ok(granted) => granted,
                Err(holder) => {
                    holder.epoch.inspect(|epoch| self.saw(*epoch));
                    return Ok(Attempt::Held(holder));
                }
            };
            let seen = self.seen.load(Ordering::Relaxed);
            if held.epoch.0 > seen {
                if !repeated || self.keep(&held.context).await? {
                    return Ok(self.granted(&held));
                }
                self.forget(held.epoch);
                continue;
            }
            // The server was there before with more grants than it knows of.
            self.memory.after(false, self.ttl);
            self.end(held.epoch).await?;
            if seen - held.epoch.0 > RAISES_MAX {
                return Err(self.too_far(held.epoch, Epoch(seen)));
            }
        }
        let nobody = Holder { remaining: Some(Duration::ZERO), ..Holder::default() };
        Ok(Attempt::Held(nobody))
    }

    fn granted(&self, held: &Held) -> Attempt {
        self.saw(held.epoch);
        let memory = self.memory.after(true, self.ttl);
        Attempt::Granted(Grant { epoch: held.epoch, memory })
    }

    fn too_far(&self, epoch: Epoch, seen: Epoch) -> LockError {
        let key = &self.key;
        LockError::Refused(format!(
            "lockd grants {key} under epoch {epoch}, and {seen} was seen: lockd has lost its \
             memory, or the election was held by another kind of lock before; restore a backup of \
             lockd, which raises its tokens, or begin with a store that has seen no epoch"
        ))
    }

    /// Whether the lease is there, for its whole time from now on.
    async fn keep(&self, context: &LeaseContext) -> Result<bool, LockError> {
        match self.client.raw(context.clone()).keepalive(Some(self.ttl)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == KeepaliveKind::LeaseLost => Ok(false),
            Err(error) if error.kind() == KeepaliveKind::Unavailable => {
                Err(LockError::Unavailable(chain(&error)))
            }
            Err(error) => Err(LockError::Refused(chain(&error))),
        }
    }

    /// Ends the lease of this epoch, if there is one. Until that is answered it is kept in mind as
    /// one that may end at any time.
    async fn end(&self, epoch: Epoch) -> Result<(), LockError> {
        let context = {
            let mut held = self.held.lock();
            let Some(held) = held.as_mut().filter(|held| held.epoch == epoch) else {
                return Ok(());
            };
            held.let_go = true;
            held.context.clone()
        };
        match self.client.raw(context).release().await {
            Ok(()) => {}
            Err(error) if error.kind() == ReleaseKind::LeaseLost => {}
            Err(error) => return Err(LockError::Unavailable(chain(&error))),
        }
        self.forget(epoch);
        Ok(())
    }

    fn forget(&self, epoch: Epoch) {
        self.held.lock().take_if(|held| held.epoch == epoch);
    }

    async fn look(&self) -> Result<Option<Holder>, LockError> {
        match self.client.describe(self.namespace.as_deref(), &self.key).await {
            Ok(seen) => {
                let epoch = seen.fencing_token.map(Epoch);
                if let Some(epoch) = epoch {
                    self.saw(epoch);
                }
                Ok(seen.owner.map(|id| Holder { id, epoch, remaining: None }))
            }
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(LockError::Unavailable(chain(&error))),
        }
    }

    /// Not ours any more: whose it is, if that can be seen.
    async fn lost(&self) -> Renewal {
        let holder = self.look().await.unwrap_or_default();
        Renewal::Lost(holder.map_or(Loss::Vanished, |by| Loss::TakenBy(by.id)))
    }

    fn context(&self, epoch: Epoch) -> Option<LeaseContext> {
        let held = self.held.lock();
        held.as_ref().filter(|held| held.epoch == epoch).map(|held| held.context.clone())
    }

    /// Until nobody has it. What happens between the last look and the beginning of the watch is
    /// in what the watch begins with.
    async fn vacated_now(&self) {
        let mut watch = self.client.watch(self.key.as_str());
        if let Some(namespace) = &self.namespace {
            watch = watch.namespace(namespace);
        }
        let mut held = false;
        loop {
            match watch.next().await.map(|event| event.change) {
                Ok(Change::Lease(lease)) => {
                    held = lease.change == wire::watch::LeaseChange::Granted;
                    if !held {
                        return;
                    }
                }
                Ok(Change::Reset(reset)) if reset.complete && !held => return,
                Ok(Change::Reset(reset)) => held &= reset.complete,
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, key = self.key, "does not hear of the leader's key");
                    tokio::time::sleep(WATCH_AGAIN).await;
                }
            }
        }
    }
}

impl LeaderLock for LockdLock {
    fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn try_acquire(&self) -> BoxFuture<'_, Result<Attempt, LockError>> {
        Box::pin(self.try_now())
    }

    fn renew(&self, epoch: Epoch) -> BoxFuture<'_, Result<Renewal, LockError>> {
        Box::pin(async move {
            match self.context(epoch) {
                Some(context) if self.keep(&context).await? => Ok(Renewal::Kept),
                Some(_) | None => Ok(self.lost().await),
            }
        })
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(self.end(epoch))
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        Box::pin(self.look())
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.vacated_now())
    }

    fn saw(&self, epoch: Epoch) {
        self.seen.fetch_max(epoch.0, Ordering::Relaxed);
    }
}
