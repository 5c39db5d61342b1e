//! Decisions over several records: a key that joins a transaction, and the end of one. Where the
//! store can write several records at one moment, it does. Where it cannot, the record of the
//! transaction is written first, and whoever meets a key of a decided one finishes the work.

mod large;

use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use lockd_core::fence::FenceFacts;
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::lease::{self, Proof};
use lockd_core::message;
use lockd_core::queue::{self, QueueName, Role};
use lockd_core::record::{Decided, KeyRecord};
use lockd_core::time::{Now, Span, UnixMillis};
use lockd_core::txn::{
    self, DecideRefused, JoinRefused, Outcome, Settle, Settled, TxnRecord, TxnState, Why,
};
use lockd_store::{Expect, Name, Op, Revision, Store, StoreError, Stored, Write, codec};

use super::{ATTEMPTS_MAX, CommitError, Loaded, Records, index_ops, record_name};

/// The record of a transaction is stored under this prefix.
pub(crate) const TXN_PREFIX: &str = "t/";

/// An empty record under this prefix, an hour and an id says when to look at a transaction again.
/// There is one for each, from its first key on.
pub(crate) const DUE_PREFIX: &str = "x/";

/// An empty record under this prefix and an id says that a decision is brought to its keys in
/// several writes, and has not reached all of them.
pub(crate) const LARGE_PREFIX: &str = "w/";

/// A decision over more than this is brought to its keys in several writes.
const LARGE_BYTES: usize = 16 << 20;

const HOUR_MS: u64 = 3_600_000;

fn txn_name(txn: TxnId) -> Name {
    [TXN_PREFIX, txn.as_str()].concat().into()
}

/// The hour that begins after this moment, as a name that sorts by time.
fn due_name(at: UnixMillis, txn: TxnId) -> Name {
    format!("{DUE_PREFIX}{:012}/{}", at.0 / HOUR_MS + 1, txn.as_str()).into()
}

fn due_op(at: UnixMillis, txn: TxnId) -> Op {
    Op { name: due_name(at, txn), expect: Expect::Any, write: Write::Put(Bytes::new()) }
}

/// Why a key did not join.
#[derive(Clone, Debug)]
pub(crate) enum NotJoined<R> {
    /// Its own record says no.
    Refused(R),
    Txn(JoinRefused),
    /// The lease that the transaction began with is over.
    Over,
}

/// Keys that are decided upon at once.
#[derive(Clone, Default)]
pub(crate) struct Together<'a> {
    pub(crate) keys: &'a [KeyName],
    /// The transaction that they join, and for how long it is to wait for them.
    pub(crate) join: Option<(TxnId, Span)>,
    /// Keys whose tokens the command speaks about.
    pub(crate) fences: &'a [KeyName],
    /// Written in the same commit; after all else where one write follows the other.
    pub(crate) extra: Vec<Op>,
    /// The keys were made up for this and cannot be there: they are not looked for.
    pub(crate) fresh: bool,
}

/// An answer, and for each key what it will be.
pub(crate) type Verdict<A, R> = Result<(A, Vec<Option<Decided<()>>>), R>;

/// Why a transaction was not settled.
#[derive(Clone, Debug)]
pub(crate) enum NotSettled {
    Refused(DecideRefused),
    /// There is no record of it.
    NotFound,
}

impl Records {
    /// The record of a transaction, if there is one.
    pub(crate) async fn load_txn(&self, txn: TxnId) -> Result<Option<TxnRecord>, StoreError> {
        Ok(self.load_txn_stored(txn).await?.map(|(record, _)| record))
    }

    async fn load_txn_stored(&self, txn: TxnId) -> Result<Option<(TxnRecord, Stored)>, StoreError> {
        let Some(stored) = self.store.load(&txn_name(txn)).await? else { return Ok(None) };
        Ok(Some((decode_txn(txn.as_str(), &stored)?, stored)))
    }

    /// Decides upon a key that joins a transaction by it: `decide` grants it. The transaction and
    /// the key that began it, if that is still on its own, change in the same commit.
    pub(crate) async fn commit_joined<A, R>(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
        ttl: Span,
        mut decide: impl FnMut(&KeyRecord, Now) -> Result<Decided<A>, R>,
    ) -> Result<A, CommitError<NotJoined<R>>> {
        let together =
            Together { keys: slice::from_ref(key), join: Some((txn, ttl)), ..Together::default() };
        self.commit_together(together, |records, _, now| {
            let record = records.first().cloned().unwrap_or_default();
            let Decided { record, answer, effects } = decide(&record, now)?;
            Ok((
                answer,
                vec![record.map(|next| Decided { record: Some(next), answer: (), effects })],
            ))
        })
        .await
    }

    /// Decides upon several keys at once, in one commit. With `join` they take part in that
    /// transaction from then on, if anything changes. `decide` says for each key, in their order,
    /// what it will be.
    pub(crate) async fn commit_together<A, R>(
        self: &Arc<Self>,
        ask: Together<'_>,
        mut decide: impl FnMut(&[KeyRecord], &FenceFacts, Now) -> Verdict<A, R>,
    ) -> Result<A, CommitError<NotJoined<R>>> {
        for _ in 0..ATTEMPTS_MAX {
            let first = self.first_of(&ask);
            let txn = ask.join.map(|(txn, _)| txn);
            let _turns = self.turns(txn, first.iter().chain(ask.keys)).await;
            if self.first_of(&ask) != first {
                continue;
            }
            let mut revisions = Vec::with_capacity(ask.keys.len());
            let mut records = Vec::with_capacity(ask.keys.len());
            for key in ask.keys {
                let Loaded { stored, record } = if ask.fresh {
                    Loaded { stored: None, record: self.decode(key, None)? }
                } else {
                    self.load_settled(key).await?
                };
                revisions.push(stored);
                records.push(record);
            }
            let own = ask.keys.iter().zip(&records);
            let staged = records.iter().filter_map(|record| record.staged.as_ref());
            let fences = staged.flat_map(super::staged_fences).chain(ask.fences);
            let (facts, checks) = self.fence_facts(own, fences).await?;
            let now = self.clock.now();
            let (answer, decided) = decide(&records, &facts, now).map_err(refused)?;
            if decided.iter().all(Option::is_none) {
                return Ok(answer);
            }
            let mut batch = Batch { checks, extra: ask.extra.clone(), ..Batch::default() };
            if let Some((txn, ttl)) = ask.join {
                self.join(&mut batch, txn, ttl, ask.keys, first).await?;
            }
            let loaded = ask.keys.iter().zip(revisions).zip(records);
            for (((key, stored), before), decided) in loaded.zip(decided) {
                if let Some(decided) = decided {
                    batch.keys.push(Changed { key: key.clone(), stored, before, decided });
                }
            }
            match self.write(batch).await {
                Ok(()) => return Ok(answer),
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommitError::Contended)
    }

    /// The key that began the transaction, if it is still on its own and none of these.
    fn first_of(&self, ask: &Together<'_>) -> Option<KeyName> {
        let (txn, _) = ask.join?;
        self.live.alone_under(txn).filter(|first| !ask.keys.contains(first))
    }

    /// Adds the keys to their transaction, and the one that began it.
    async fn join<R>(
        &self,
        batch: &mut Batch,
        txn: TxnId,
        ttl: Span,
        keys: &[KeyName],
        first: Option<KeyName>,
    ) -> Result<(), CommitError<NotJoined<R>>> {
        let now = self.clock.now();
        let known = self.load_txn_stored(txn).await?;
        let mut joining = keys.to_vec();
        if let Some(first) = first {
            let Loaded { stored, record } = self.load_stored(&first).await?;
            // The state of a message shares the fate of its delivery, and of nothing else.
            let own = queue::role(&first) != Some(Role::State);
            let Some(enrolled) = txn::enrol(&record, txn, now).filter(|_| own) else {
                return Err(CommitError::Refused(NotJoined::Over));
            };
            joining.push(first.clone());
            let decided = Decided { record: Some(enrolled), answer: (), effects: Vec::new() };
            batch.keys.push(Changed { key: first, stored, before: record, decided });
        }
        let record_now = known.as_ref().map(|(record, _)| record);
        let joined = txn::join(record_now, &joining, now.wall.plus(ttl), now)
            .map_err(|refused| CommitError::Refused(NotJoined::Txn(refused)))?;
        batch.txn = joined.map(|record| (txn, known.map(|(_, stored)| stored), record));
        Ok(())
    }

    /// Decides a transaction and brings the decision to all its keys.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        ask: &Settle,
    ) -> Result<Outcome, CommitError<NotSettled>> {
        for _ in 0..ATTEMPTS_MAX {
            let not_found = || CommitError::Refused(NotSettled::NotFound);
            let seen = self.load_txn(ask.txn).await?.ok_or_else(not_found)?;
            let keys: Vec<KeyName> = seen.participants.into_iter().map(|one| one.key).collect();
            let _turns = self.turns(Some(ask.txn), keys.iter()).await;
            let (record, stored) = self.load_txn_stored(ask.txn).await?.ok_or_else(not_found)?;
            if !record.participants.iter().map(|one| &one.key).eq(&keys) {
                continue;
            }
            match self.settle_in_turn(ask, record, stored, keys).await {
                Err(CommitError::Store(StoreError::Conflict)) => {
                    self.metrics.store_conflicts.inc();
                }
                settled => return settled,
            }
        }
        Err(CommitError::Contended)
    }

    async fn settle_in_turn(
        self: &Arc<Self>,
        ask: &Settle,
        record: TxnRecord,
        stored: Stored,
        names: Vec<KeyName>,
    ) -> Result<Outcome, CommitError<NotSettled>> {
        let mut revisions = Vec::with_capacity(names.len());
        let mut keys = Vec::with_capacity(names.len());
        for key in names {
            let loaded = self.load_stored(&key).await?;
            revisions.push(loaded.stored);
            keys.push((key, loaded.record));
        }
        let (facts, checks) = self.facts_of(ask, &keys).await?;
        let settled = txn::settle(&record, &keys, ask, &facts, self.clock.now())
            .map_err(|refused| CommitError::Refused(NotSettled::Refused(refused)))?;
        let Settled { outcome, record, keys: changed } = settled;
        let mut batch = Batch { checks, ..Batch::default() };
        batch.txn = record.map(|next| (ask.txn, Some(stored), next));
        // In the order of the keys, without those that the decision had reached before.
        let mut changed = changed.into_iter().peekable();
        for ((key, before), stored) in keys.into_iter().zip(revisions) {
            if let Some((_, decided)) = changed.next_if(|(changed, _)| *changed == key) {
                batch.keys.push(Changed { key, stored, before, decided });
            }
        }
        let decided_now = batch.txn.is_some();
        self.write(batch).await?;
        if decided_now {
            self.metrics.txn_decided(&outcome);
        }
        Ok(outcome)
    }

    async fn facts_of(
        &self,
        ask: &Settle,
        keys: &[(KeyName, KeyRecord)],
    ) -> Result<(FenceFacts, Vec<Op>), StoreError> {
        let kept = keys.iter().flat_map(|(_, record)| txn::kept_fences(record, ask.txn));
        let conditions = kept.chain(&ask.fences);
        let fenced: Vec<KeyName> = conditions.map(|condition| condition.key.clone()).collect();
        self.fence_facts(keys.iter().map(|(key, record)| (key, record)), fenced.iter()).await
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

    /// Removes the state of a message that is gone: a transaction that did not know of it has
    /// acknowledged the message, or a store that writes step by step was stopped between the two.
    pub(crate) async fn drop_if_left_alone(
        self: &Arc<Self>,
        key: &KeyName,
    ) -> Result<(), CommitError<NotJoined<()>>> {
        let Some((queue, id, Role::State)) = QueueName::of(key) else { return Ok(()) };
        let keys = [queue.message_key(id), key.clone()];
        let together = Together { keys: &keys, ..Together::default() };
        self.commit_together(together, |records, _, _| {
            let [message, state] = records else { return Ok(((), Vec::new())) };
            let left = !message.stored && state.lease.is_none();
            let dropped = if left { message::drop_state(state) } else { None };
            Ok(((), vec![None, dropped]))
        })
        .await
    }

    /// Transactions that are to be looked at by now, with the names under which they are due.
    pub(crate) async fn due_txns(&self, limit: usize) -> Result<Vec<(Name, TxnId)>, StoreError> {
        let now = self.clock.now().wall.0 / HOUR_MS;
        let page = self.store.scan(DUE_PREFIX, None, limit).await?;
        let due = page.into_iter().map_while(|(name, _)| {
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
        fences: &[KeyName],
        mut decide: impl FnMut(&KeyRecord, &FenceFacts, Now) -> Result<Decided<A>, R>,
    ) -> Result<Option<A>, CommitError<R>> {
        for _ in 0..ATTEMPTS_MAX {
            let _turns = self.turns(Some(txn), [key]).await;
            let Some((known, stored_txn)) = self.load_txn_stored(txn).await? else {
                return Ok(None);
            };
            if known.participants.iter().any(|one| one.key != *key) {
                return Ok(None);
            }
            let Loaded { stored, record } = self.load_settled(key).await?;
            let staged = record.staged.iter().flat_map(super::staged_fences);
            let (facts, checks) =
                self.fence_facts([(key, &record)].into_iter(), fences.iter().chain(staged)).await?;
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
            match self.write(batch).await {
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
        for _ in 0..ATTEMPTS_MAX {
            let loaded = self.load_stored(key).await?;
            let txn = txn::undecided(&loaded.record).filter(|_| !self.is_settled());
            let Some(txn) = txn else { return Ok(loaded) };
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

    pub(super) fn is_atomic(&self) -> bool {
        self.store.abilities().atomic_batch
    }

    /// Writes what was decided, and lets the consequences follow.
    pub(super) async fn write(self: &Arc<Self>, batch: Batch) -> Result<(), StoreError> {
        let written = if self.is_atomic() {
            let ops = self.ops(&batch);
            match &batch.txn {
                Some((txn, stored, record)) if batch.is_large(&ops) => {
                    large::write(self, *txn, stored.as_ref(), record, &batch).await
                }
                Some(_) | None => self.store.commit(ops).await.map(drop),
            }
        } else {
            self.write_in_steps(&batch).await
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
            ops.extend(changed.index_ops());
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
        let expect = Expect::unchanged(changed.stored.as_ref());
        Some(Op { name: record_name(&changed.key), expect, write })
    }

    /// The transaction first: from then on it is decided, whatever happens to us. Then each key,
    /// its entry in the index before it is held and after it is free.
    async fn write_in_steps(&self, batch: &Batch) -> Result<(), StoreError> {
        if !batch.checks.is_empty() {
            let why = "this store cannot test a fence condition and write at the same moment";
            return Err(StoreError::Unavailable(why.into()));
        }
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
            let is_delete = |op: &Op| matches!(op.write, Write::Delete);
            let (after, before): (Vec<Op>, Vec<Op>) =
                changed.index_ops().into_iter().partition(is_delete);
            for op in before.into_iter().chain(self.key_op(changed)).chain(after) {
                steps.take(op).await?;
            }
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
    checks: Vec<Op>,
    txn: Option<(TxnId, Option<Stored>, TxnRecord)>,
    /// Where one write follows the other: the keys do not depend on the transaction.
    txn_last: bool,
    keys: Vec<Changed>,
    /// Besides; nothing depends on it.
    extra: Vec<Op>,
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
    fn index_ops(&self) -> Vec<Op> {
        let next = self.decided.record.as_ref();
        next.map(|next| index_ops(&self.key, &self.before, next)).unwrap_or_default()
    }
}

fn txn_op((txn, stored, record): &(TxnId, Option<Stored>, TxnRecord)) -> Op {
    let expect = Expect::unchanged(stored.as_ref());
    Op { name: txn_name(*txn), expect, write: Write::Put(codec::encode_txn(record)) }
}

fn refused<R>(refused: R) -> CommitError<NotJoined<R>> {
    CommitError::Refused(NotJoined::Refused(refused))
}

/// # Errors
/// When the bytes are not the record of a transaction.
pub(crate) fn decode_txn(name: &str, stored: &Stored) -> Result<TxnRecord, StoreError> {
    codec::decode_txn(&stored.bytes).map_err(|error| {
        tracing::error!(txn = name, %error, "a stored record is damaged");
        StoreError::Damaged(format!("record of transaction {name}: {error}"))
    })
}
