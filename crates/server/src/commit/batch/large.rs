//! Decisions over so much data that one write cannot hold it. The decision comes first, then the
//! keys in several writes, as on a store that writes step by step; until the last of them, everybody
//! who meets one of the keys asks the decision. A mark in the store makes a restart go on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use lockd_core::ids::TxnId;
use lockd_core::txn::{By, Settle, TxnRecord};
use lockd_store::{Expect, Name, Op, StoreError, Stored, Write, codec};

use super::{Batch, LARGE_PREFIX, op_bytes, txn_op};
use crate::commit::many::{NotSettled, txn_name};
use crate::commit::{CommitError, FIND_OUT_EVERY, Records};

/// What goes into one write.
const PIECE_BYTES: usize = 4 << 20;

fn mark_name(txn: TxnId) -> Name {
    [LARGE_PREFIX, txn.as_str()].concat().into()
}

fn mark(txn: TxnId, write: Write) -> Op {
    Op { name: mark_name(txn), expect: Expect::Any, write }
}

/// Writes a decision and what follows from it. The caller has the turns of all keys.
pub(super) async fn write(
    records: &Arc<Records>,
    txn: TxnId,
    stored: Option<&Stored>,
    record: &TxnRecord,
    batch: &Batch,
) -> Result<(), StoreError> {
    records.begun.fetch_add(1, Ordering::AcqRel);
    records.under_way.fetch_add(1, Ordering::AcqRel);
    let mut ops = batch.checks.clone();
    ops.push(txn_op(&(txn, stored.cloned(), record.unapplied())));
    ops.push(mark(txn, Write::Put(Bytes::new())));
    let place = batch.checks.len();
    let decided = match records.store.commit(ops).await {
        Ok(revisions) => revisions.get(place).copied(),
        Err(error @ StoreError::Unknown(_)) => {
            records.finish_later(txn);
            return Err(error);
        }
        Err(error) => {
            records.under_way.fetch_sub(1, Ordering::AcqRel);
            return Err(error);
        }
    };
    let finished = async {
        bring_all(records, batch).await?;
        let expect = decided.map_or(Expect::Any, Expect::Revision);
        let reached =
            Op { name: txn_name(txn), expect, write: Write::Put(codec::encode_txn(record)) };
        records.store.commit(vec![reached, mark(txn, Write::Delete)]).await.map(drop)
    };
    match finished.await {
        Ok(()) => {
            records.under_way.fetch_sub(1, Ordering::AcqRel);
            Ok(())
        }
        // It is decided, and will be finished: whoever asked must look.
        Err(error) => {
            records.finish_later(txn);
            Err(StoreError::Unknown(error.to_string()))
        }
    }
}

async fn bring_all(records: &Arc<Records>, batch: &Batch) -> Result<(), StoreError> {
    let mut ops: Vec<Op> = Vec::new();
    let mut bytes = 0;
    for changed in &batch.keys {
        let next = records.key_op(changed).into_iter().chain(records.index_ops(changed));
        for op in next {
            bytes += op_bytes(&op);
            ops.push(op);
        }
        if bytes > PIECE_BYTES {
            records.store.commit(std::mem::take(&mut ops)).await?;
            bytes = 0;
        }
    }
    if !ops.is_empty() {
        records.store.commit(ops).await?;
    }
    Ok(())
}

impl Records {
    /// Goes on with decisions that had not reached all their keys when the process ended.
    pub(in crate::commit) async fn finish_large(self: &Arc<Self>) -> Result<(), StoreError> {
        for (name, _) in self.store.scan(LARGE_PREFIX, None, 1_000).await? {
            let id = name.strip_prefix(LARGE_PREFIX).unwrap_or_default();
            let Ok(txn) = TxnId::parse(id) else { continue };
            self.under_way.fetch_add(1, Ordering::AcqRel);
            let finished = self.finish_one(txn).await;
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            finished?;
        }
        Ok(())
    }

    /// Until then, whoever meets a key of it finishes that one.
    fn finish_later(self: &Arc<Self>, txn: TxnId) {
        let records = Arc::clone(self);
        self.tasks.spawn("finish decision", async move {
            let stopping = records.tasks.stopping();
            tokio::pin!(stopping);
            while records.finish_one(txn).await.is_err() {
                tokio::select! {
                    biased;
                    () = &mut stopping => return,
                    () = tokio::time::sleep(FIND_OUT_EVERY) => {}
                }
            }
            records.under_way.fetch_sub(1, Ordering::AcqRel);
        });
    }

    async fn finish_one(self: &Arc<Self>, txn: TxnId) -> Result<(), StoreError> {
        if let Some(record) = self.load_txn(txn).await?
            && let Some(outcome) = record.outcome().cloned()
        {
            let (by, term) = (By::Order, record.term);
            let ask = Settle { txn, outcome, by, fences: Vec::new(), term };
            // Boxed: settling may come back here with what is left.
            match Box::pin(self.settle(&ask)).await {
                Ok(_) | Err(CommitError::Refused(NotSettled::NotFound)) => {}
                Err(CommitError::Store(error)) => return Err(error),
                Err(CommitError::Refused(_) | CommitError::Contended) => {
                    return Err(StoreError::Conflict);
                }
            }
        }
        self.store.commit(vec![mark(txn, Write::Delete)]).await.map(drop)
    }
}
