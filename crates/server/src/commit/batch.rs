//! Records that change together, and how they are written: in one commit where the store can,
//! otherwise step by step in an order that whoever meets the middle of it can finish.

mod large;

use std::sync::Arc;

use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::record::{Decided, Effect, KeyRecord};
use lockd_core::txn::TxnRecord;
use lockd_store::{Expect, Op, Revision, Store, StoreError, Stored, Write, codec};

use super::index::{LEASE_PREFIX, index_ops};
use super::many::{due_op, txn_name};
use super::{Records, record_name};

/// An empty record under this prefix and an id says that a decision is brought to its keys in
/// several writes, and has not reached all of them.
pub(crate) const LARGE_PREFIX: &str = "w/";

/// A decision over more than this is brought to its keys in several writes.
const LARGE_BYTES: usize = 16 << 20;

impl Records {
    /// Writes what was decided, and lets the consequences follow.
    pub(super) async fn write(self: &Arc<Self>, batch: Batch) -> Result<(), StoreError> {
        let written = if self.is_atomic() {
            let ops = self.ops(&batch);
            match &batch.txn {
                Some((txn, stored, record)) if batch.is_large(&ops) => {
                    Box::pin(large::write(self, *txn, stored.as_ref(), record, &batch)).await
                }
                Some(_) | None => self.store.commit(ops).await.map(drop),
            }
        } else {
            Box::pin(self.write_in_steps(&batch)).await
        };
        match written {
            Ok(()) => {
                for Changed { key, decided, .. } in &batch.keys {
                    if let Some(next) = &decided.record {
                        self.follow(key, next, &decided.effects);
                    }
                }
                Ok(())
            }
            Err(error) => {
                if matches!(error, StoreError::Unknown(_)) {
                    for Changed { key, .. } in &batch.keys {
                        self.find_out(key.clone());
                    }
                }
                Err(error)
            }
        }
    }

    fn ops(&self, batch: &Batch) -> Vec<Op> {
        let mut ops = batch.checks.clone();
        ops.extend(batch.txn.as_ref().map(txn_op));
        ops.extend(batch.first_due());
        for changed in &batch.keys {
            ops.extend(self.key_op(changed));
            ops.extend(self.index_ops(changed));
        }
        ops.extend(batch.extra.iter().cloned());
        ops
    }

    fn key_op(&self, changed: &Changed) -> Option<Op> {
        let next = changed.decided.record.as_ref()?;
        let write = if next.gone {
            Write::Delete
        } else {
            Write::Put(codec::encode(next, self.clock.timeline().boot))
        };
        let expect = match &changed.stored {
            // The id of a message is used once: what was removed is not made again.
            None if next.message.is_some() => Expect::Never,
            stored => Expect::unchanged(stored.as_ref()),
        };
        Some(Op { name: record_name(&changed.key), expect, write })
    }

    /// The transaction first: from then on it is decided, whatever happens to us. Then each key,
    /// its entry in the index before it is held and after it is free.
    async fn write_in_steps(self: &Arc<Self>, batch: &Batch) -> Result<(), StoreError> {
        debug_assert!(batch.checks.is_empty(), "tokens are held still by pins here");
        let mut steps = Steps { store: &self.store, begun: false };
        if let Some(op) = batch.first_due() {
            steps.take(op).await?;
        }
        let mut reached = None;
        if batch.txn_last {
            reached = batch.txn.as_ref().map(txn_op);
        } else if let Some((txn, stored, record)) = &batch.txn {
            let first =
                if record.outcome().is_some() { record.unapplied() } else { record.clone() };
            let all_reached = first != *record;
            let revision = steps.take(txn_op(&(*txn, stored.clone(), first))).await?;
            if all_reached {
                let expect = Expect::Revision(revision);
                let write = Write::Put(codec::encode_txn(record));
                reached = Some(Op { name: txn_name(*txn), expect, write });
            }
        }
        for changed in &batch.keys {
            self.key_steps(&mut steps, changed).await?;
        }
        for op in &batch.extra {
            match steps.take(op.clone()).await {
                // What it belongs to is written: this is no race that can be run again.
                Err(StoreError::Conflict) => {
                    return Err(StoreError::Unknown("another write came in between".into()));
                }
                taken => taken?,
            };
        }
        if let Some(op) = reached
            && let Err(error) = steps.take(op).await
        {
            // Whoever looks next finds all keys reached, and writes it down then.
            tracing::debug!(%error, "a finished transaction is not marked as such yet");
        }
        Ok(())
    }
}

impl Records {
    /// Writes one key, with its entries in the index; what is stored under its name then.
    pub(super) async fn write_key(
        self: &Arc<Self>,
        changed: &Changed,
    ) -> Result<Option<Stored>, StoreError> {
        let mut steps = Steps { store: &self.store, begun: false };
        self.key_steps(&mut steps, changed).await
    }

    async fn key_steps(
        self: &Arc<Self>,
        steps: &mut Steps<'_>,
        changed: &Changed,
    ) -> Result<Option<Stored>, StoreError> {
        let is_delete = |op: &Op| matches!(op.write, Write::Delete);
        let (after, before): (Vec<Op>, Vec<Op>) =
            self.index_ops(changed).into_iter().partition(is_delete);
        for op in before {
            steps.take(op).await?;
        }
        let mut left = changed.stored.clone();
        if let Some(op) = self.key_op(changed) {
            let bytes = match &op.write {
                Write::Put(bytes) => Some(bytes.clone()),
                Write::Delete | Write::Check => None,
            };
            let revision = steps.take(op).await?;
            left = bytes.map(|bytes| Stored { bytes, revision });
        }
        if let Some(next) = &changed.decided.record {
            // Its new token is there, and nobody may hear of it before this is done.
            let closed = self.close(&changed.key, next).await;
            closed.map_err(|error| StoreError::Unknown(error.to_string()))?;
        }
        for op in after {
            steps.take(op).await?;
        }
        Ok(left)
    }

    pub(super) fn index_ops(&self, changed: &Changed) -> Vec<Op> {
        let Some(next) = changed.decided.record.as_ref() else { return Vec::new() };
        let mut ops = index_ops(&changed.key, &changed.before, next);
        if self.is_shared() {
            // Who holds what is told by the servers to each other: no write is spent on it.
            ops.retain(|op| !op.name.starts_with(LEASE_PREFIX));
        }
        ops
    }
}

/// One write after the other.
struct Steps<'a> {
    store: &'a Arc<dyn Store>,
    begun: bool,
}

impl Steps<'_> {
    async fn take(&mut self, op: Op) -> Result<Revision, StoreError> {
        match self.store.commit(vec![op]).await {
            Ok(revisions) => {
                self.begun = true;
                Ok(revisions.first().copied().unwrap_or(Revision(0)))
            }
            // Part of it is there: nobody may take this for nothing.
            Err(StoreError::Unavailable(why)) if self.begun => Err(StoreError::Unknown(why)),
            Err(error) => Err(error),
        }
    }
}

/// Records that change together.
#[derive(Default)]
pub(super) struct Batch {
    /// What must hold, without being changed.
    pub(super) checks: Vec<Op>,
    pub(super) txn: Option<(TxnId, Option<Stored>, TxnRecord)>,
    /// Where one write follows the other: the keys do not depend on the transaction.
    pub(super) txn_last: bool,
    pub(super) keys: Vec<Changed>,
    /// Besides; nothing depends on it.
    pub(super) extra: Vec<Op>,
}

impl Batch {
    /// For a transaction that begins here.
    fn first_due(&self) -> Option<Op> {
        match &self.txn {
            Some((txn, None, record)) => Some(due_op(record.expires_at, *txn)),
            Some((_, Some(_), _)) | None => None,
        }
    }

    /// A decision that is too much for one write.
    fn is_large(&self, ops: &[Op]) -> bool {
        let decided = self.txn.as_ref().is_some_and(|(_, _, record)| record.outcome().is_some());
        decided && !self.txn_last && ops.iter().map(op_bytes).sum::<usize>() > LARGE_BYTES
    }

    /// One key alone.
    pub(super) fn of(checks: Vec<Op>, changed: Changed) -> Self {
        Self { checks, keys: vec![changed], ..Self::default() }
    }
}

fn op_bytes(op: &Op) -> usize {
    match &op.write {
        Write::Put(bytes) => bytes.len() + op.name.len(),
        Write::Delete | Write::Check => op.name.len(),
    }
}

/// A key, as it was and as it will be.
pub(super) struct Changed {
    pub(super) key: KeyName,
    pub(super) stored: Option<Stored>,
    pub(super) before: KeyRecord,
    pub(super) decided: Decided<()>,
}

impl Changed {
    /// Somebody had it, and now nobody does.
    pub(super) fn frees(&self) -> bool {
        let ended = |effect: &Effect| matches!(effect, Effect::Ended { .. });
        let held = |record: &KeyRecord| record.lease.is_some();
        self.decided.effects.iter().any(ended) && !self.decided.record.as_ref().is_some_and(held)
    }
}

fn txn_op((txn, stored, record): &(TxnId, Option<Stored>, TxnRecord)) -> Op {
    let expect = Expect::unchanged(stored.as_ref());
    Op { name: txn_name(*txn), expect, write: Write::Put(codec::encode_txn(record)) }
}
