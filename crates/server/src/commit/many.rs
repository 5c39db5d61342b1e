//! The end of a transaction, and keys that enter and leave it. Where the store can write several
//! records at one moment, it does. Where it cannot, the record of the transaction is written first,
//! and whoever meets a key of a decided one finishes the work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use lockd_core::fence::{FenceCondition, FenceFacts};
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::lease::{self, Proof};
use lockd_core::queue::{self, Role};
use lockd_core::record::{Decided, KeyRecord};
use lockd_core::time::{Now, UnixMillis};
use lockd_core::txn::{self, DecideRefused, Outcome, Settle, Settled, TxnRecord, TxnState, Why};
use lockd_store::{Expect, Name, Op, StoreError, Stored, Write, codec};

use super::batch::{Batch, Changed};
use super::still::{Still, Tokens, target};
use super::together::NotJoined;
use super::{ATTEMPTS_MAX, CommitError, Loaded, Records, staged_fences};

/// The record of a transaction is stored under this prefix.
pub(crate) const TXN_PREFIX: &str = "t/";

/// An empty record under this prefix, an hour and an id says when to look at a transaction again.
/// There is one for each, from its first key on.
pub(crate) const DUE_PREFIX: &str = "x/";

const HOUR_MS: u64 = 3_600_000;

pub(super) fn txn_name(txn: TxnId) -> Name {
    [TXN_PREFIX, txn.as_str()].concat().into()
}

/// The hour that begins after this moment, as a name that sorts by time.
fn due_name(at: UnixMillis, txn: TxnId) -> Name {
    format!("{DUE_PREFIX}{:012}/{}", at.0 / HOUR_MS + 1, txn.as_str()).into()
}

pub(super) fn due_op(at: UnixMillis, txn: TxnId) -> Op {
    Op { name: due_name(at, txn), expect: Expect::Any, write: Write::Put(Bytes::new()) }
}

/// Why a transaction was not settled.
#[derive(Clone, Debug)]
pub(crate) enum NotSettled {
    Refused(DecideRefused),
    /// There is no record of it.
    NotFound,
}

/// How far a settlement has come.
enum Settling {
    Done(Outcome),
    /// The tokens of other keys are to be held still first.
    NotStill(Vec<FenceCondition>),
}

impl Records {
    /// The record of a transaction, if there is one.
    pub(crate) async fn load_txn(&self, txn: TxnId) -> Result<Option<TxnRecord>, StoreError> {
        Ok(self.load_txn_stored(txn).await?.map(|(record, _)| record))
    }

    pub(super) async fn load_txn_stored(
        &self,
        txn: TxnId,
    ) -> Result<Option<(TxnRecord, Stored)>, StoreError> {
        let Some(stored) = self.store.load(&txn_name(txn)).await? else { return Ok(None) };
        Ok(Some((decode_txn(txn.as_str(), &stored)?, stored)))
    }

    /// Decides a transaction and brings the decision to all its keys. The rollback of one that is
    /// unknown leaves a record of it, which every key that would join meets.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        ask: &Settle,
    ) -> Result<Outcome, CommitError<NotSettled>> {
        let mut still = Still::nothing(self);
        for _ in 0..ATTEMPTS_MAX {
            let (seen, _) = self.load_for(ask).await?;
            let keys: Vec<KeyName> = seen.participants.into_iter().map(|one| one.key).collect();
            let turns = self.turns(Some(ask.txn), keys.iter()).await;
            let (record, stored) = self.load_for(ask).await?;
            if !record.participants.iter().map(|one| &one.key).eq(&keys) {
                continue;
            }
            let target = (txn_name(ask.txn), stored.as_ref().map(|stored| stored.revision));
            match self.settle_in_turn(ask, record, stored, keys, &mut still).await {
                Err(CommitError::Store(StoreError::Conflict)) => {
                    self.metrics.store_conflicts.inc();
                }
                Ok(Settling::NotStill(conditions)) => {
                    drop(turns);
                    still = self.hold_still(vec![target], &conditions).await?;
                }
                Ok(Settling::Done(outcome)) => return Ok(outcome),
                Err(error) => return Err(error),
            }
        }
        Err(CommitError::Contended)
    }

    /// Takes the place of a rollback that is being written for a transaction that has not begun,
    /// because its conditions do not hold any more. The transaction can still begin.
    pub(super) async fn begin_empty(&self, txn: TxnId) -> Result<(), StoreError> {
        let record = TxnRecord::not_begun(self.clock.now());
        let write = Write::Put(codec::encode_txn(&record));
        let begun = Op { name: txn_name(txn), expect: Expect::unchanged(None), write };
        match self.commit_plain(vec![due_op(record.expires_at, txn), begun]).await {
            // The rollback was there first, and its conditions held then.
            Ok(()) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The transaction that is to be settled, and what is stored of it.
    async fn load_for(
        &self,
        ask: &Settle,
    ) -> Result<(TxnRecord, Option<Stored>), CommitError<NotSettled>> {
        match self.load_txn_stored(ask.txn).await? {
            Some((record, stored)) => Ok((record, Some(stored))),
            None if ask.closes_unknown() => Ok((TxnRecord::not_begun(self.clock.now()), None)),
            None => Err(CommitError::Refused(NotSettled::NotFound)),
        }
    }

    async fn settle_in_turn(
        self: &Arc<Self>,
        ask: &Settle,
        record: TxnRecord,
        stored: Option<Stored>,
        names: Vec<KeyName>,
        still: &mut Still,
    ) -> Result<Settling, CommitError<NotSettled>> {
        let mut revisions = Vec::with_capacity(names.len());
        let mut keys = Vec::with_capacity(names.len());
        for key in names {
            let loaded = self.load_stored(&key).await?;
            revisions.push(loaded.stored);
            keys.push((key, loaded.record));
        }
        let is_pending = record.state == TxnState::Pending;
        let kept = keys.iter().filter(|_| ask.outcome == Outcome::Commit);
        let kept = kept.flat_map(|(_, record)| txn::kept_fences(record, ask.txn));
        let conditions = kept.chain(&ask.fences).filter(|_| is_pending);
        let own = keys.iter().map(|(key, record)| (key, record));
        let revision = stored.as_ref().map(|stored| stored.revision);
        let target = [(txn_name(ask.txn), revision)];
        let (facts, checks) = match self.tokens(still, own, conditions, Some(&target)).await? {
            Tokens::Known(facts, checks) => (facts, checks),
            Tokens::NotStill(conditions) => return Ok(Settling::NotStill(conditions)),
        };
        let settled = txn::settle(&record, &keys, ask, &facts, self.clock.now())
            .map_err(|refused| CommitError::Refused(NotSettled::Refused(refused)))?;
        let Settled { outcome, record, keys: changed } = settled;
        let mut batch = Batch { checks, ..Batch::default() };
        batch.txn = record.map(|next| (ask.txn, stored, next));
        // In the order of the keys, without those that the decision had reached before.
        let mut changed = changed.into_iter().peekable();
        for ((key, before), stored) in keys.into_iter().zip(revisions) {
            if let Some((_, decided)) = changed.next_if(|(changed, _)| *changed == key) {
                batch.keys.push(Changed { key, stored, before, decided });
            }
        }
        let decided_now = batch.txn.is_some();
        still.during(self.write(batch)).await?;
        if decided_now {
            self.metrics.txn_decided(&outcome);
        }
        Ok(Settling::Done(outcome))
    }

    /// Ends what a transaction that nobody remembers has left on a key: it was rolled back.
    pub(crate) async fn forget(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
    ) -> Result<(), CommitError<()>> {
        for _ in 0..ATTEMPTS_MAX {
            let _turns = self.turns(Some(txn), [key]).await;
            if self.load_txn(txn).await?.is_some() {
                return Ok(());
            }
            match self.bring(key, txn, &Outcome::Rollback(Why::Lapsed)).await {
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                }
                brought => return Ok(brought?),
            }
        }
        Err(CommitError::Contended)
    }

    /// Transactions that are to be looked at by now, with the names under which they are due.
    pub(crate) async fn due_txns(&self, limit: usize) -> Result<Vec<(Name, TxnId)>, StoreError> {
        let now = self.clock.now().wall.0 / HOUR_MS;
        let page = self.store.scan_names(DUE_PREFIX, None, limit).await?;
        let due = page.into_iter().map_while(|name| {
            let (hour, txn) = name.strip_prefix(DUE_PREFIX)?.split_once('/')?;
            let due = hour.parse::<u64>().is_ok_and(|hour| hour <= now);
            let txn = TxnId::parse(txn).ok()?;
            due.then_some((name, txn))
        });
        Ok(due.collect())
    }

    /// A transaction was looked at: it is due again at another time, or never.
    pub(crate) async fn due_again(
        &self,
        due: Name,
        txn: TxnId,
        at: Option<UnixMillis>,
    ) -> Result<(), StoreError> {
        if let Some(at) = at {
            self.store.commit(vec![due_op(at, txn)]).await?;
            if due_name(at, txn) == due {
                return Ok(());
            }
        }
        let done = Op { name: due, expect: Expect::Any, write: Write::Delete };
        self.store.commit(vec![done]).await.map(drop)
    }

    /// Removes the record of a transaction that has reached all its keys; `false` when it was not
    /// to be removed.
    pub(crate) async fn forget_txn(&self, txn: TxnId) -> Result<bool, StoreError> {
        let _turns = self.turns(Some(txn), []).await;
        let Some((record, stored)) = self.load_txn_stored(txn).await? else { return Ok(false) };
        if record.outcome().is_none() || !record.is_applied() {
            return Ok(false);
        }
        let expect = Expect::Revision(stored.revision);
        let op = Op { name: txn_name(txn), expect, write: Write::Delete };
        match self.store.commit(vec![op]).await {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds keys to a transaction by order of a coordinator. A key that is held under it without
    /// a record takes part from now on; one that is not held under it is only named.
    pub(crate) async fn enlist(
        self: &Arc<Self>,
        txn: TxnId,
        keys: &[KeyName],
        expires_at: UnixMillis,
    ) -> Result<(), CommitError<NotJoined<()>>> {
        for _ in 0..ATTEMPTS_MAX {
            let _turns = self.turns(Some(txn), keys).await;
            let known = self.load_txn_stored(txn).await?;
            let now = self.clock.now();
            let mut batch = Batch::default();
            for key in keys {
                let Loaded { stored, record } = self.load_stored(key).await?;
                if known.is_none() && txn::holds(&record, txn) {
                    // What it has staged belongs to a transaction that was rolled back.
                    return Err(CommitError::Refused(NotJoined::Over));
                }
                let own = queue::role(key) != Some(Role::State);
                if let Some(enrolled) = txn::enrol(&record, txn, now).filter(|_| own) {
                    let decided =
                        Decided { record: Some(enrolled), answer: (), effects: Vec::new() };
                    batch.keys.push(Changed { key: key.clone(), stored, before: record, decided });
                }
            }
            let record_now = known.as_ref().map(|(record, _)| record);
            let joined = txn::join(record_now, keys, expires_at, now)
                .map_err(|refused| CommitError::Refused(NotJoined::Txn(refused)))?;
            batch.txn = joined.map(|record| (txn, known.map(|(_, stored)| stored), record));
            match self.write(batch).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommitError::Contended)
    }

    /// Takes a key out of its transaction, as if it had never been granted; `false` when it is too
    /// late for that.
    pub(crate) async fn withdraw(
        self: &Arc<Self>,
        key: &KeyName,
        proof: &Proof,
        txn: TxnId,
    ) -> Result<bool, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let _turns = self.turns(Some(txn), [key]).await;
            let Some((known, stored_txn)) = self.load_txn_stored(txn).await? else {
                return Ok(false);
            };
            let Loaded { stored, record } = self.load_stored(key).await?;
            let now = self.clock.now();
            let held = lease::check(&record, proof, now).is_ok();
            let withdrawn = txn::withdraw(&known, key, &record, txn, now).filter(|_| held);
            let Some((next, decided)) = withdrawn else { return Ok(false) };
            let changed = Changed { key: key.clone(), stored, before: record, decided };
            let mut batch = Batch::of(Vec::new(), changed);
            batch.txn = Some((txn, Some(stored_txn), next));
            batch.txn_last = true;
            match self.write(batch).await {
                Ok(()) => return Ok(true),
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// A write that ends the lease of the only key of a transaction: the transaction is committed
    /// with it. `None`: it has other keys.
    pub(crate) async fn commit_last<A, R>(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
        fences: &[FenceCondition],
        mut decide: impl FnMut(&KeyRecord, &FenceFacts, Now) -> Result<Decided<A>, R>,
    ) -> Result<Option<A>, CommitError<R>> {
        let mut still = Still::nothing(self);
        for _ in 0..ATTEMPTS_MAX {
            let turns = self.turns(Some(txn), [key]).await;
            let Some((known, stored_txn)) = self.load_txn_stored(txn).await? else {
                return Ok(None);
            };
            if known.participants.iter().any(|one| one.key != *key) {
                return Ok(None);
            }
            let Loaded { stored, record } = self.load_settled(key).await?;
            let own = std::iter::once((key, &record));
            let conditions = fences.iter().chain(staged_fences(&record));
            let target = [target(key, stored.as_ref())];
            let (facts, checks) = match self.tokens(&still, own, conditions, Some(&target)).await? {
                Tokens::Known(facts, checks) => (facts, checks),
                Tokens::NotStill(conditions) => {
                    drop(turns);
                    still = self.hold_still(target.into(), &conditions).await?;
                    continue;
                }
            };
            let now = self.clock.now();
            let Decided { record: next, answer, effects } =
                decide(&record, &facts, now).map_err(CommitError::Refused)?;
            if next.is_none() {
                return Ok(Some(answer));
            }
            let decided = Decided { record: next, answer: (), effects };
            let changed = Changed { key: key.clone(), stored, before: record, decided };
            let mut batch = Batch::of(checks, changed);
            // A transaction that was decided otherwise has ended this lease before.
            if let Ok((outcome, Some(next))) =
                txn::decide(&known, &Outcome::Commit, known.term, now)
            {
                batch.txn = Some((txn, Some(stored_txn), txn::applied(&next, key)));
                batch.txn_last = true;
                self.metrics.txn_decided(&outcome);
            }
            match still.during(self.write(batch)).await {
                Ok(()) => return Ok(Some(answer)),
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommitError::Contended)
    }

    /// Brings a decision to one key, whose turn the caller has.
    async fn bring(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
        outcome: &Outcome,
    ) -> Result<(), StoreError> {
        let Loaded { stored, record } = self.load_stored(key).await?;
        let Some(decided) = txn::apply(key, &record, txn, outcome, self.clock.now()) else {
            return Ok(());
        };
        let changed = Changed { key: key.clone(), stored, before: record, decided };
        self.write(Batch::of(Vec::new(), changed)).await
    }

    /// The record of a key after every decision that was made about it. Only a store that cannot
    /// write several records at once ever holds a key that its decision has not reached. The
    /// caller has the key's turn.
    pub(super) async fn load_settled(
        self: &Arc<Self>,
        key: &KeyName,
    ) -> Result<Loaded, StoreError> {
        let loaded = self.load_stored(key).await?;
        if self.is_settled() || txn::undecided(&loaded.record).is_none() {
            return Ok(loaded);
        }
        Box::pin(self.settle_then_load(key)).await
    }

    async fn settle_then_load(self: &Arc<Self>, key: &KeyName) -> Result<Loaded, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load_stored(key).await?;
            let Some(txn) = txn::undecided(&loaded.record) else { return Ok(loaded) };
            let outcome = match self.load_txn(txn).await? {
                Some(TxnRecord { state: TxnState::Pending, .. }) => return Ok(loaded),
                Some(TxnRecord { state: TxnState::Decided(outcome), .. }) => outcome,
                None => Outcome::Rollback(Why::Lapsed),
            };
            match self.bring(key, txn, &outcome).await {
                Ok(()) | Err(StoreError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::Conflict)
    }

    /// Whether no key can be waiting for a decision that was made.
    pub(super) fn is_settled(&self) -> bool {
        self.is_atomic() && self.under_way.load(Ordering::Acquire) == 0
    }

    /// Other servers write to the same store.
    pub(crate) fn is_shared(&self) -> bool {
        self.store.abilities().shared
    }

    pub(crate) fn is_atomic(&self) -> bool {
        self.store.abilities().atomic_batch
    }
}

/// # Errors
/// When the bytes are not the record of a transaction.
pub(crate) fn decode_txn(name: &str, stored: &Stored) -> Result<TxnRecord, StoreError> {
    codec::decode_txn(&stored.bytes).map_err(|error| {
        tracing::error!(txn = name, %error, "a stored record is damaged");
        StoreError::Damaged(format!("record of transaction {name}: {error}"))
    })
}
