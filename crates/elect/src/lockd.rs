//! The lock in lockd: a lease on a key. The epoch is its fencing token, so a fence condition on the
//! key ties any write of lockd to a leadership.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::{
    AcquireKind, Change, Client, Grant as Lease, KeepaliveKind, LeaseContext, RawLease,
    ReleaseKind, wire,
};
use parking_lot::Mutex;

use crate::lock::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};

/// How many grants a lock that has lost its memory is led past those that were seen.
const RAISES_MAX: u64 = 10_000;

/// The lock of one candidate.
pub struct LockdLock {
    client: Client,
    namespace: Option<String>,
    key: String,
    candidate: Candidate,
    ttl: Duration,
    seen: AtomicU64,
    /// The number of the request that is made now: it keeps its name until it is answered.
    request: AtomicU64,
    held: Mutex<Option<(Epoch, LeaseContext)>>,
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
            request: AtomicU64::new(0),
            held: Mutex::new(None),
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
        let held = self.held.lock();
        let held = held.as_ref().filter(|(known, _)| *known == epoch);
        held.map(|(_, context)| self.client.raw(context.clone()))
    }

    async fn ask(&self) -> Result<Result<Lease, Holder>, LockError> {
        let number = self.request.load(Ordering::Relaxed);
        let name = format!("{}-{number}", self.candidate.incarnation);
        let mut acquire = self.client.lease(self.key.as_str()).owner(self.candidate.id.as_str());
        if let Some(namespace) = &self.namespace {
            acquire = acquire.namespace(namespace);
        }
        match acquire.ttl(self.ttl).idempotency_key(name).no_wait().detached().await {
            Ok(lease) => {
                self.request.fetch_add(1, Ordering::Relaxed);
                Ok(Ok(lease))
            }
            Err(error) if error.kind() == AcquireKind::Busy => {
                self.request.fetch_add(1, Ordering::Relaxed);
                let mut holder = self.look().await?.unwrap_or_default();
                holder.remaining = error.retry_after();
                Ok(Err(holder))
            }
            Err(error) if [AcquireKind::Unavailable, AcquireKind::Lost].contains(&error.kind()) => {
                Err(LockError::Unavailable(error.to_string()))
            }
            Err(error) => Err(LockError::Refused(error.to_string())),
        }
    }

    async fn try_now(&self) -> Result<Attempt, LockError> {
        let mut memory = Memory::Kept;
        for _ in 0..RAISES_MAX {
            let lease = match self.ask().await? {
                Ok(lease) => lease,
                Err(holder) => {
                    holder.epoch.inspect(|epoch| self.saw(*epoch));
                    return Ok(Attempt::Held(holder));
                }
            };
            let epoch = Epoch(lease.context.token.unwrap_or_default());
            if epoch.0 > self.seen.load(Ordering::Relaxed) {
                self.saw(epoch);
                *self.held.lock() = Some((epoch, lease.context));
                return Ok(Attempt::Granted(Grant { epoch, memory }));
            }
            // The server was there before with more grants than it knows of.
            memory = Memory::Lost;
            let released = self.client.raw(lease.context).release().await;
            released.map_err(|error| LockError::Unavailable(error.to_string()))?;
        }
        let key = &self.key;
        Err(LockError::Refused(format!(
            "lockd has forgotten more than {RAISES_MAX} grants of {key}; elect under another key"
        )))
    }

    async fn look(&self) -> Result<Option<Holder>, LockError> {
        match self.client.describe(self.namespace.as_deref(), &self.key).await {
            Ok(seen) => {
                self.saw(Epoch(seen.fencing_token));
                let epoch = Some(Epoch(seen.fencing_token));
                Ok(seen.owner.map(|id| Holder { id, epoch, remaining: None }))
            }
            Err(error) if error.status() == Some(404) => Ok(None),
            Err(error) => Err(LockError::Unavailable(error.to_string())),
        }
    }

    /// Not ours any more: whose it is.
    async fn lost(&self) -> Result<Renewal, LockError> {
        let holder = self.look().await?;
        Ok(Renewal::Lost(holder.map_or(Loss::Vanished, |by| Loss::TakenBy(by.id))))
    }

    fn context(&self, epoch: Epoch) -> Option<LeaseContext> {
        let held = self.held.lock();
        held.as_ref().filter(|(known, _)| *known == epoch).map(|(_, context)| context.clone())
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
            let Some(context) = self.context(epoch) else { return self.lost().await };
            match self.client.raw(context).keepalive(Some(self.ttl)).await {
                Ok(_) => Ok(Renewal::Kept),
                Err(error) if error.kind() == KeepaliveKind::LeaseLost => self.lost().await,
                Err(error) if error.kind() == KeepaliveKind::Unavailable => {
                    Err(LockError::Unavailable(error.to_string()))
                }
                Err(error) => Err(LockError::Refused(error.to_string())),
            }
        })
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(async move {
            let Some(context) = self.context(epoch) else { return Ok(()) };
            match self.client.raw(context).release().await {
                Ok(()) => {}
                Err(error) if error.kind() == ReleaseKind::LeaseLost => {}
                Err(error) => return Err(LockError::Unavailable(error.to_string())),
            }
            self.held.lock().take_if(|(known, _)| *known == epoch);
            Ok(())
        })
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        Box::pin(self.look())
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut watch = self.client.watch(self.key.as_str());
            if let Some(namespace) = &self.namespace {
                watch = watch.namespace(namespace);
            }
            loop {
                match watch.next().await {
                    Ok(event) => {
                        if let Change::Lease(lease) = event.change
                            && lease.change != wire::watch::LeaseChange::Granted
                        {
                            return;
                        }
                    }
                    // The next look finds out.
                    Err(_) => return std::future::pending().await,
                }
            }
        })
    }

    fn saw(&self, epoch: Epoch) {
        self.seen.fetch_max(epoch.0, Ordering::Relaxed);
    }
}
