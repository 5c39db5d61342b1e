//! The lock in etcd: a key that belongs to a lease, and a key with the epoch. Taking it and raising
//! the epoch are one transaction. It is spoken to over its JSON gateway.
//!
//! | key | value |
//! |---|---|
//! | `{name}/leader` | id and incarnation, for as long as its lease |
//! | `{name}/epoch` | the latest epoch |

mod gateway;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::lock::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};
pub use gateway::EtcdSettings;
use gateway::{Compare, Gateway, Kept, Operation};

/// How often a transaction that others came before is tried again at once.
const TRIES: usize = 5;

/// The lock of one candidate.
pub struct EtcdLock {
    gateway: Gateway,
    leader: String,
    epoch: String,
    candidate: Candidate,
    ttl: Duration,
    seen: AtomicU64,
    /// A lease of etcd for the next attempt, or of the present grant.
    lease: Mutex<Option<i64>>,
}

/// What the leader's key says.
#[derive(Serialize, Deserialize)]
struct Seat {
    id: String,
    incarnation: String,
    epoch: u64,
}

impl fmt::Debug for EtcdLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdLock({}, {})", self.leader, self.candidate.id)
    }
}

impl EtcdLock {
    #[must_use]
    pub fn new(settings: EtcdSettings, name: &str, candidate: Candidate, ttl: Duration) -> Self {
        Self {
            gateway: Gateway::new(settings),
            leader: format!("{name}/leader"),
            epoch: format!("{name}/epoch"),
            candidate,
            ttl,
            seen: AtomicU64::new(0),
            lease: Mutex::new(None),
        }
    }

    /// Both keys as of one moment.
    async fn look(&self) -> Result<(Option<(Seat, Kept)>, Option<Kept>), LockError> {
        let read = [Operation::Get(&self.leader), Operation::Get(&self.epoch)];
        let (_, mut answers) = self.gateway.transact(&[], &read, &[]).await?;
        let epoch = answers.pop().flatten();
        let leader = answers.pop().flatten();
        if let Some(epoch) = epoch.as_ref().and_then(|kept| kept.value.parse().ok()) {
            self.saw(Epoch(epoch));
        }
        let seat = leader.map(|kept| {
            let seat = serde_json::from_str(&kept.value);
            // Somebody else's writing: held, by whoever it names.
            let seat = seat.unwrap_or_else(|_| Seat {
                id: kept.value.clone(),
                incarnation: String::new(),
                epoch: 0,
            });
            (seat, kept)
        });
        Ok((seat, epoch))
    }

    async fn try_now(&self) -> Result<Attempt, LockError> {
        for _ in 0..TRIES {
            let before = self.seen.load(Ordering::Relaxed);
            let (seat, stored) = self.look().await?;
            if let Some((seat, kept)) = seat {
                let epoch = Epoch(seat.epoch);
                let ours = seat.incarnation == self.candidate.incarnation;
                if ours && epoch.0 >= before && *self.lease.lock() == Some(kept.lease) {
                    return Ok(Attempt::Granted(Grant { epoch, memory: Memory::Kept }));
                }
                let left = self.gateway.remaining(kept.lease).await?;
                let epoch = (!seat.incarnation.is_empty()).then_some(epoch);
                return Ok(Attempt::Held(Holder { id: seat.id, epoch, remaining: left }));
            }
            if let Some(grant) = self.take(before, stored).await? {
                return Ok(Attempt::Granted(grant));
            }
        }
        Ok(Attempt::Held(Holder::default()))
    }

    /// Nobody has it: the key and the next epoch, if that is still so.
    async fn take(&self, seen: u64, stored: Option<Kept>) -> Result<Option<Grant>, LockError> {
        let known: Option<u64> = stored.as_ref().and_then(|kept| kept.value.parse().ok());
        let epoch = known.unwrap_or(0).max(seen) + 1;
        let seat = Seat {
            id: self.candidate.id.clone(),
            incarnation: self.candidate.incarnation.clone(),
            epoch,
        };
        let seat =
            serde_json::to_string(&seat).map_err(|error| LockError::Refused(error.to_string()))?;
        let lease = self.gateway.grant(self.ttl).await?;
        *self.lease.lock() = Some(lease);
        let number = epoch.to_string();
        let unchanged = stored.map_or(0, |kept| kept.revision);
        let (taken, _) = self
            .gateway
            .transact(
                &[
                    Compare { key: &self.leader, revision: 0 },
                    Compare { key: &self.epoch, revision: unchanged },
                ],
                &[
                    Operation::Put { key: &self.leader, value: &seat, lease },
                    Operation::Put { key: &self.epoch, value: &number, lease: 0 },
                ],
                &[],
            )
            .await?;
        if !taken {
            self.gateway.revoke(lease).await?;
            return Ok(None);
        }
        self.saw(Epoch(epoch));
        let kept = known.is_some_and(|known| known >= seen);
        let memory = if kept { Memory::Kept } else { Memory::Lost };
        Ok(Some(Grant { epoch: Epoch(epoch), memory }))
    }

    /// The key, if it is ours under this epoch.
    async fn ours(&self, epoch: Epoch) -> Result<Result<Kept, Loss>, LockError> {
        let (seat, _) = self.look().await?;
        Ok(match seat {
            Some((seat, kept))
                if seat.incarnation == self.candidate.incarnation && seat.epoch == epoch.0 =>
            {
                Ok(kept)
            }
            Some((seat, _)) if seat.incarnation != self.candidate.incarnation => {
                Err(Loss::TakenBy(seat.id))
            }
            Some(_) | None => Err(Loss::Vanished),
        })
    }

    async fn renew_now(&self, epoch: Epoch) -> Result<Renewal, LockError> {
        let kept = match self.ours(epoch).await? {
            Ok(kept) => kept,
            Err(loss) => return Ok(Renewal::Lost(loss)),
        };
        // A lease that is over takes the key with it, so a renewal that counts is of the key.
        if self.gateway.keep_alive(kept.lease).await? {
            return Ok(Renewal::Kept);
        }
        Ok(Renewal::Lost(Loss::Vanished))
    }

    async fn release_now(&self, epoch: Epoch) -> Result<(), LockError> {
        let Ok(kept) = self.ours(epoch).await? else { return Ok(()) };
        let unchanged = Compare { key: &self.leader, revision: kept.revision };
        let delete = Operation::Delete(&self.leader);
        let (released, _) = self.gateway.transact(&[unchanged], &[delete], &[]).await?;
        if released {
            self.lease.lock().take_if(|lease| *lease == kept.lease);
            self.gateway.revoke(kept.lease).await?;
        }
        Ok(())
    }

    async fn observe_now(&self) -> Result<Option<Holder>, LockError> {
        let (seat, _) = self.look().await?;
        Ok(seat.map(|(seat, _)| {
            let epoch = (!seat.incarnation.is_empty()).then_some(Epoch(seat.epoch));
            Holder { id: seat.id, epoch, remaining: None }
        }))
    }
}

impl LeaderLock for EtcdLock {
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
        Box::pin(self.renew_now(epoch))
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(self.release_now(epoch))
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        Box::pin(self.observe_now())
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.gateway.deleted(&self.leader))
    }

    fn saw(&self, epoch: Epoch) {
        self.seen.fetch_max(epoch.0, Ordering::Relaxed);
    }
}
