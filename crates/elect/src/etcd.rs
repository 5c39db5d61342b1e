//! The lock in etcd: a key that belongs to a lease, and a key with the epoch. Taking it and raising
//! the epoch are one transaction. It is spoken to over its JSON gateway.
//!
//! | key | value |
//! |---|---|
//! | `{name}/leader` | id and incarnation, for as long as its lease |
//! | `{name}/epoch` | the latest epoch |
//!
//! etcd counts whole seconds, from its own least on (2 s unless it is set up otherwise), and looks
//! twice a second what has run out: so long after a leader has gone without a word the next one
//! may have to wait, beyond a time to live that is no such number.
//!
//! A candidate chooses the number of its lease by itself: whatever becomes of a request, there is
//! one lease at most that it does not know the fate of, and that one runs out.

mod gateway;

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::lock::{Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Renewal};
use crate::outside::Forgetting;
pub use gateway::EtcdSettings;
use gateway::{Compare, Gateway, Kept, Operation};

/// How often a transaction that others came before is tried again at once.
const TRIES: usize = 5;
const NO_MORE_EPOCHS: &str = "the epoch that etcd has is the last that there can be";
/// How often whoever waits for the key to go looks whether it has missed that, at least and at most.
const LOOK_MIN: Duration = Duration::from_millis(500);
const LOOK_MAX: Duration = Duration::from_secs(5);

/// The lock of one candidate.
pub struct EtcdLock {
    gateway: Gateway,
    leader: String,
    epoch: String,
    candidate: Candidate,
    ttl: Duration,
    seen: AtomicU64,
    /// As of when the keys were last looked at.
    revision: AtomicI64,
    /// The lease of etcd for the next attempt, or of the present grant. One that is given up is
    /// forgotten first: what ends it may arrive late.
    lease: Mutex<Option<i64>>,
    memory: Forgetting,
}

/// What the leader's key says.
#[derive(Serialize, Deserialize)]
struct Seat {
    id: String,
    incarnation: String,
    epoch: u64,
}

impl Seat {
    fn holder(self, remaining: Option<Duration>) -> Holder {
        let epoch = (!self.incarnation.is_empty()).then_some(Epoch(self.epoch));
        Holder { id: self.id, epoch, remaining }
    }
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
            gateway: Gateway::new(settings, ttl),
            leader: format!("{name}/leader"),
            epoch: format!("{name}/epoch"),
            candidate,
            ttl,
            seen: AtomicU64::new(0),
            revision: AtomicI64::new(0),
            lease: Mutex::new(None),
            memory: Forgetting::default(),
        }
    }

    /// Both keys as of one moment.
    async fn look(&self) -> Result<(Option<(Seat, Kept)>, Option<Kept>), LockError> {
        let read = [Operation::Get(&self.leader), Operation::Get(&self.epoch)];
        let mut answer = self.gateway.transact(&[], &read).await?;
        self.revision.store(answer.revision, Ordering::Relaxed);
        let epoch = answer.kept.pop().flatten();
        let leader = answer.kept.pop().flatten();
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
            let mut replaces = 0;
            if let Some((seat, kept)) = seat {
                if seat.incarnation != self.candidate.incarnation {
                    let left = self.gateway.remaining(kept.lease).await?;
                    return Ok(Attempt::Held(seat.holder(left)));
                }
                let same = seat.epoch >= before && *self.lease.lock() == Some(kept.lease);
                if same && self.gateway.keep_alive(kept.lease).await? {
                    let memory = self.memory.after(true, self.ttl);
                    return Ok(Attempt::Granted(Grant { epoch: Epoch(seat.epoch), memory }));
                }
                // Ours, and given up or over: what ends it must not end what comes now.
                self.lease.lock().take_if(|lease| *lease == kept.lease);
                replaces = kept.revision;
            }
            if let Some(grant) = self.take(before, stored, replaces).await? {
                return Ok(Attempt::Granted(grant));
            }
        }
        Ok(Attempt::Held(Holder { remaining: Some(Duration::ZERO), ..Holder::default() }))
    }

    /// A lease that has all of its time before it.
    async fn fresh_lease(&self) -> Result<i64, LockError> {
        let known = *self.lease.lock();
        if let Some(lease) = known
            && self.gateway.keep_alive(lease).await?
        {
            return Ok(lease);
        }
        let lease = i64::from_be_bytes((rand::random::<u64>() >> 1 | 1).to_be_bytes());
        *self.lease.lock() = Some(lease);
        self.gateway.grant(lease, self.ttl).await?;
        Ok(lease)
    }

    /// Nobody else has it: the key and the next epoch, if that is still so.
    async fn take(
        &self,
        seen: u64,
        stored: Option<Kept>,
        replaces: i64,
    ) -> Result<Option<Grant>, LockError> {
        let known: Option<u64> = stored.as_ref().and_then(|kept| kept.value.parse().ok());
        let epoch = epoch_after(known, seen)?;
        let seat = Seat {
            id: self.candidate.id.clone(),
            incarnation: self.candidate.incarnation.clone(),
            epoch,
        };
        let seat =
            serde_json::to_string(&seat).map_err(|error| LockError::Refused(error.to_string()))?;
        let memory = self.memory.after(known.is_some_and(|known| known >= seen), self.ttl);
        let lease = self.fresh_lease().await?;
        let number = epoch.to_string();
        let unchanged = stored.map_or(0, |kept| kept.revision);
        let compares = [
            Compare { key: &self.leader, revision: replaces },
            Compare { key: &self.epoch, revision: unchanged },
        ];
        let puts = [
            Operation::Put { key: &self.leader, value: &seat, lease },
            Operation::Put { key: &self.epoch, value: &number, lease: 0 },
        ];
        match self.gateway.transact(&compares, &puts).await {
            Ok(answer) if answer.succeeded => {}
            // If it was done and the answer was lost, the next look finds it.
            Ok(_) => return Ok(None),
            Err(LockError::Refused(why)) if why.contains("lease not found") => {
                self.lease.lock().take_if(|known| *known == lease);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        self.saw(Epoch(epoch));
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
        self.lease.lock().take_if(|lease| *lease == kept.lease);
        let unchanged = Compare { key: &self.leader, revision: kept.revision };
        let delete = Operation::Delete(&self.leader);
        if self.gateway.transact(&[unchanged], &[delete]).await?.succeeded {
            self.gateway.revoke(kept.lease).await?;
        }
        Ok(())
    }

    async fn observe_now(&self) -> Result<Option<Holder>, LockError> {
        let (seat, _) = self.look().await?;
        Ok(seat.map(|(seat, _)| seat.holder(None)))
    }

    /// Until the key is gone. It is told of that from the latest look on; in case that it is not,
    /// it looks from time to time.
    async fn vacated_now(&self) {
        let every = (self.ttl / 3).clamp(LOOK_MIN, LOOK_MAX);
        loop {
            let since = self.revision.load(Ordering::Relaxed);
            tokio::select! {
                () = self.gateway.deleted(&self.leader, since) => return,
                () = tokio::time::sleep(every) => {}
            }
            if let Ok((None, _)) = self.look().await {
                return;
            }
        }
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
        Box::pin(self.vacated_now())
    }

    fn saw(&self, epoch: Epoch) {
        self.seen.fetch_max(epoch.0, Ordering::Relaxed);
    }
}

/// Greater than all before it, or none: under the same epoch two leaders could write.
fn epoch_after(known: Option<u64>, seen: u64) -> Result<u64, LockError> {
    let epoch = known.unwrap_or(0).max(seen).checked_add(1);
    epoch.ok_or_else(|| LockError::Refused(NO_MORE_EPOCHS.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_epoch_comes_twice() {
        assert_eq!(epoch_after(Some(4), 7).ok(), Some(8));
        assert_eq!(epoch_after(None, 0).ok(), Some(1));
        assert!(matches!(epoch_after(Some(u64::MAX), 1), Err(LockError::Refused(_))));
    }
}
