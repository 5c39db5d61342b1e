//! The hinge: the only file that loads a record, asks core, writes if nothing changed in between,
//! and lets the consequences follow once the write is durable. It does not know what a lease is
//! for; core does.

mod batch;
mod index;
mod many;
mod mark;
mod pipe;
mod still;
mod together;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockd_core::fence::{Fence, FenceCondition, FenceFacts};
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::message::{self, Place};
use lockd_core::pin::PinId;
use lockd_core::queue::{self, QueueName, Role};
use lockd_core::record::{Decided, Effect, KeyRecord};
use lockd_core::time::Now;
use lockd_store::{Expect, Name, Op, Store, StoreError, Stored, Write, codec};
use tokio::sync::{Mutex, MutexGuard};

use crate::app::event::EventHub;
use crate::app::live::LiveTable;
use crate::app::peers::Journal;
use crate::app::queue::board::Boards;
use crate::app::wait::Lines;
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::tasks::Tasks;

pub(crate) use batch::LARGE_PREFIX;
use batch::{Batch, Changed};
pub(crate) use index::{
    EXPIRY_PREFIX, LEASE_PREFIX, MINUTE_MS, STAND_PREFIX, read_stand, stand_prefix,
};
use index::{index_name, stand_name};
pub(crate) use many::{DUE_PREFIX, NotSettled, TXN_PREFIX, decode_txn};
pub(crate) use mark::{DAY_MS, Forbidden, MARK_PREFIX};
use pipe::Pipes;
use still::{Still, Tokens};
pub(crate) use together::{NotJoined, Together, Verdict};

/// How often a race for one record may be lost before the caller is told to come back.
const ATTEMPTS_MAX: usize = 32;
/// Writers of one key take turns; different keys rarely share a turn.
const TURNS: usize = 16 * 1024;
const STAMP_TURNS: usize = 1024;

/// How often several keys are read until nothing changed in between.
const READ_ROUNDS_MAX: usize = 16;

/// How often a store that failed is asked what became of a write.
const FIND_OUT_EVERY: Duration = Duration::from_millis(100);

/// A key's record is stored under this prefix.
pub(crate) const KEY_PREFIX: &str = "k/";
/// The record of a message is stored under this prefix.
pub(crate) const MESSAGE_PREFIX: &str = "q/";
/// Below this token nothing may be granted any more: set by a restore.
pub(crate) const FLOOR_NAME: &str = "m/fence-floor";

/// Why a commit did not come about.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CommitError<R> {
    /// Core said no. Nothing changed.
    #[error("refused")]
    Refused(R),
    #[error(transparent)]
    Store(StoreError),
    /// Too many others wrote the same record. Nothing changed.
    #[error("the record is contended")]
    Contended,
}

impl<R> From<StoreError> for CommitError<R> {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// All records, and what depends on them.
pub(crate) struct Records {
    store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) live: LiveTable,
    pub(crate) events: EventHub,
    pub(crate) lines: Arc<Lines>,
    pub(crate) boards: Boards,
    pub(crate) journal: Journal,
    pub(crate) metrics: Arc<Metrics>,
    tasks: Tasks,
    floor: AtomicU64,
    /// Decisions that are on their way to their keys in several writes, and how many began.
    under_way: AtomicUsize,
    begun: AtomicU64,
    turns: Vec<Mutex<()>>,
    pipes: Pipes,
    pins_made: AtomicU64,
    /// Pins whose records were touched after they were over, until they are taken away.
    touched: parking_lot::Mutex<HashSet<PinId>>,
    /// Requests under one idempotency key take turns too, each before those of its keys.
    stamp_turns: Vec<Mutex<()>>,
    /// Keeps those who choose keys from choosing who shares a turn.
    secret: u64,
}

/// What [`Records::new`] is made of.
pub(crate) struct Parts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Tasks,
    pub(crate) waiters_max: usize,
    pub(crate) consumers_max: usize,
    pub(crate) secret: u64,
}

struct Loaded {
    stored: Option<Stored>,
    record: KeyRecord,
}

impl Records {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            store: parts.store,
            clock: parts.clock,
            live: LiveTable::default(),
            events: EventHub::new(),
            lines: Lines::new(parts.waiters_max),
            boards: Boards::new(parts.consumers_max),
            journal: Journal::new(),
            metrics: parts.metrics,
            tasks: parts.tasks,
            floor: AtomicU64::new(0),
            under_way: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            turns: (0..TURNS).map(|_| Mutex::new(())).collect(),
            pipes: Pipes::default(),
            pins_made: AtomicU64::new(0),
            touched: parking_lot::Mutex::default(),
            stamp_turns: (0..STAMP_TURNS).map(|_| Mutex::new(())).collect(),
            secret: parts.secret,
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The record of a key as it is durable now.
    pub(crate) async fn load(self: &Arc<Self>, key: &KeyName) -> Result<KeyRecord, StoreError> {
        Ok(self.load_present(key).await?.record)
    }

    /// Several records as of one moment; `Conflict` when they change too fast for that.
    pub(crate) async fn load_many(
        self: &Arc<Self>,
        keys: &[KeyName],
    ) -> Result<Vec<KeyRecord>, StoreError> {
        let begun = self.begun.load(Ordering::Acquire);
        if self.is_settled() && self.store.abilities().snapshot {
            let names: Vec<Name> = keys.iter().map(record_name).collect();
            let stored = self.store.load_many(&names).await?;
            // Unless a decision began to be brought to its keys meanwhile.
            if self.begun.load(Ordering::Acquire) == begun {
                let records = keys.iter().zip(stored);
                return records.map(|(key, stored)| self.decode(key, stored.as_ref())).collect();
            }
        }
        let mut before = self.load_each(keys).await?;
        for _ in 0..READ_ROUNDS_MAX {
            let now = self.load_each(keys).await?;
            let revision = |loaded: &Loaded| loaded.stored.as_ref().map(|stored| stored.revision);
            if before.iter().map(revision).eq(now.iter().map(revision)) {
                return Ok(now.into_iter().map(|loaded| loaded.record).collect());
            }
            before = now;
        }
        Err(StoreError::Conflict)
    }

    async fn load_each(self: &Arc<Self>, keys: &[KeyName]) -> Result<Vec<Loaded>, StoreError> {
        let mut records = Vec::with_capacity(keys.len());
        for key in keys {
            records.push(self.load_present(key).await?);
        }
        Ok(records)
    }

    /// Reads a record that a scan has found.
    pub(crate) fn decode(
        &self,
        key: &KeyName,
        stored: Option<&Stored>,
    ) -> Result<KeyRecord, StoreError> {
        let Some(stored) = stored else {
            return Ok(KeyRecord::absent(Fence(self.floor.load(Ordering::Relaxed))));
        };
        codec::decode(&stored.bytes, &self.clock.timeline()).map_err(|error| {
            tracing::error!(%key, %error, "a stored record is damaged");
            StoreError::Damaged(format!("record of key {key}: {error}"))
        })
    }

    async fn load_stored(self: &Arc<Self>, key: &KeyName) -> Result<Loaded, StoreError> {
        let stored = self.store.load(&record_name(key)).await?;
        let record = self.decode(key, stored.as_ref())?;
        if !record.pins.is_empty() {
            // Rare, and kept out of the way of those who read.
            Box::pin(self.close(key, &record)).await?;
        }
        Ok(Loaded { stored, record })
    }

    /// Decides upon the present record and makes the decision durable, then lets its effects
    /// follow. `fences` are the conditions of the command.
    ///
    /// A caller that may be dropped must run this through [`Tasks::complete`].
    pub(crate) async fn commit<A, R>(
        self: &Arc<Self>,
        key: &KeyName,
        fences: &[FenceCondition],
        mut decide: impl FnMut(&KeyRecord, &FenceFacts, Now) -> Result<Decided<A>, R>,
    ) -> Result<A, CommitError<R>> {
        if !self.is_atomic() && fences.is_empty() {
            let mut plainly = |record: &KeyRecord, now| {
                // What was staged may have conditions of its own.
                if staged_fences(record).next().is_some() {
                    return Err(None);
                }
                decide(record, &FenceFacts::default(), now).map_err(Some)
            };
            match Box::pin(self.commit_piped(key, &mut plainly)).await {
                Ok(answer) => return Ok(answer),
                Err(CommitError::Refused(None)) => {}
                Err(CommitError::Refused(Some(refused))) => {
                    return Err(CommitError::Refused(refused));
                }
                Err(CommitError::Store(error)) => return Err(error.into()),
                Err(CommitError::Contended) => return Err(CommitError::Contended),
            }
        }
        let mut still = Still::nothing(self);
        for _ in 0..ATTEMPTS_MAX {
            let turn = self.alone(key).await;
            let Loaded { stored, record } = self.load_settled(key).await?;
            let target = [still::target(key, stored.as_ref())];
            let conditions = fences.iter().chain(staged_fences(&record));
            let own = std::iter::once((key, &record));
            let (facts, checks) = match self.tokens(&still, own, conditions, Some(&target)).await? {
                Tokens::Known(facts, checks) => (facts, checks),
                Tokens::NotStill(conditions) => {
                    drop(turn);
                    still = self.hold_still(target.into(), &conditions).await?;
                    continue;
                }
            };
            let Decided { record: next, answer, effects } =
                decide(&record, &facts, self.clock.now()).map_err(CommitError::Refused)?;
            if next.is_none() {
                return Ok(answer);
            }
            let decided = Decided { record: next, answer: (), effects };
            let changed = Changed { key: key.clone(), stored, before: record, decided };
            match still.during(self.write(Batch::of(checks, changed))).await {
                Ok(()) => return Ok(answer),
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                }
                Err(error) => return Err(error.into()),
            };
        }
        Err(CommitError::Contended)
    }

    /// What is durable now may be told and acted upon.
    fn follow(self: &Arc<Self>, key: &KeyName, record: &KeyRecord, effects: &[Effect]) {
        self.tell(key, record, effects);
        if effects.iter().any(|effect| matches!(effect, Effect::Ended { .. })) {
            self.lines.wake(key);
        }
    }

    /// Everybody but the next in line.
    fn tell(self: &Arc<Self>, key: &KeyName, record: &KeyRecord, effects: &[Effect]) {
        if self.is_shared() {
            self.journal.note(self, key, record, effects);
        }
        self.live.follow(key, record);
        match message::place(record) {
            Some(place) => {
                if matches!(place, Place::Dead(_)) {
                    self.metrics.messages.dead.inc();
                }
                self.follow_message(key, place);
                let stateful = record.message.as_ref().is_some_and(|message| message.stateful);
                if place == Place::Gone && stateful {
                    self.drop_state_of(key);
                }
            }
            None => self.events.publish(key, record, effects),
        }
        for effect in effects {
            match effect {
                Effect::Ended { how, .. } => self.metrics.lease_ended(how),
                Effect::DropBlob(name) => self.drop_blob(Arc::clone(name)),
                Effect::Granted => {
                    self.metrics.leases_granted.inc();
                }
                Effect::Committed | Effect::Removed => {}
            }
        }
    }

    pub(crate) fn follow_message(&self, key: &KeyName, place: Place) {
        if let Some((queue, id, Role::Message)) = QueueName::of(key) {
            self.boards.follow(&queue, id, place, self.clock.now());
        }
    }

    /// Whoever removed a message may not have known of the state beside it.
    fn drop_state_of(self: &Arc<Self>, message: &KeyName) {
        let Some((queue, id, _)) = QueueName::of(message) else { return };
        let records = Arc::clone(self);
        self.tasks.spawn("drop state", async move {
            let key = queue.state_key(id);
            if let Err(error) = records.drop_if_left_alone(&key).await {
                tracing::warn!(%key, ?error, "the state of a message that is gone stays");
            }
        });
    }

    /// After a write whose outcome is unknown: looks what became of it as soon as the store works
    /// again, so that timers, waiters and watchers go on from what is there.
    fn find_out(self: &Arc<Self>, key: KeyName) {
        // Before anything later is told: what may have happened was not.
        self.events.forget();
        let records = Arc::clone(self);
        self.tasks.spawn("find out", async move {
            let stopping = records.tasks.stopping();
            tokio::pin!(stopping);
            while records.adopt(&key).await.is_err() {
                tokio::select! {
                    biased;
                    () = &mut stopping => return,
                    () = tokio::time::sleep(FIND_OUT_EVERY) => {}
                }
            }
            records.events.forget();
            records.lines.wake(&key);
        });
    }

    /// Takes over what the store says about who holds a key.
    pub(crate) async fn adopt(self: &Arc<Self>, key: &KeyName) -> Result<(), StoreError> {
        let _turn = self.alone(key).await;
        let Loaded { stored, record } = self.load_settled(key).await?;
        self.live.follow(key, &record);
        if queue::role(key) == Some(Role::Message) {
            self.follow_message(key, message::place(&record).unwrap_or(Place::Gone));
        }
        if record.lease.is_none() {
            // A restored store has index entries of leases that the restore has ended.
            let expect = Expect::unchanged(stored.as_ref());
            let check = Op { name: record_name(key), expect, write: Write::Check };
            let entry = |name| Op { name, expect: Expect::Any, write: Write::Delete };
            let mut ops = vec![check, entry(index_name(key))];
            if !record.stored && queue::role(key) == Some(Role::Message) {
                // And one that writes step by step may have been stopped before the last one.
                ops.push(entry(stand_name(key)));
            }
            if self.is_shared() {
                if queue::role(key) != Some(Role::Message) || record.message.is_some() {
                    return Ok(());
                }
                // Whoever is about to put the message there must not find its entry gone.
                if !record.stored && self.forbid(key).await? == Forbidden::Exists {
                    let now = self.load_stored(key).await?.record;
                    if now.stored {
                        return Ok(());
                    }
                }
                ops = vec![entry(stand_name(key))];
            } else if !self.is_atomic() {
                // Without all at one moment, the key's turn keeps others from it meanwhile.
                ops.remove(0);
            }
            self.commit_plain(ops).await?;
        } else if let Some(stored) = stored {
            self.anchor(key, &record, &stored).await?;
        }
        Ok(())
    }

    /// Puts a lease of an earlier boot on this boot's timeline for good: its end was found by the
    /// wall clock, which may be set before the process starts the next time.
    async fn anchor(
        &self,
        key: &KeyName,
        record: &KeyRecord,
        stored: &Stored,
    ) -> Result<(), StoreError> {
        let bytes = codec::encode(record, self.clock.timeline().boot);
        if bytes == stored.bytes {
            return Ok(());
        }
        let expect = Expect::Revision(stored.revision);
        let op = Op { name: record_name(key), expect, write: Write::Put(bytes) };
        self.store.commit(vec![op]).await?;
        Ok(())
    }

    fn drop_blob(&self, name: Arc<str>) {
        let store = Arc::clone(&self.store);
        self.tasks.spawn("drop blob", async move {
            if let Err(error) = store.delete_blob(&name).await {
                tracing::warn!(blob = %name, %error, "a blob stays until it is collected");
            }
        });
    }

    fn turn(&self, key: &KeyName) -> &Mutex<()> {
        self.turn_at(self.turn_of(key))
    }

    /// The turns of several keys and of a transaction, always in the same order.
    async fn turns<'a>(
        &self,
        txn: Option<TxnId>,
        keys: impl IntoIterator<Item = &'a KeyName>,
    ) -> Vec<MutexGuard<'_, ()>> {
        let keys: Vec<&KeyName> = keys.into_iter().collect();
        let mut turns: Vec<usize> = keys.iter().map(|key| self.turn_of(key)).collect();
        turns.extend(txn.map(|txn| self.turn_of(&txn)));
        turns.sort_unstable();
        turns.dedup();
        let mut taken = Vec::with_capacity(turns.len());
        for turn in turns {
            taken.push(self.turn_at(turn).lock().await);
        }
        for key in keys {
            self.settled_down(key).await;
        }
        taken
    }

    fn turn_of(&self, name: &impl Hash) -> usize {
        usize::try_from(self.hash(name)).unwrap_or(usize::MAX) % TURNS
    }

    fn hash(&self, what: &impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.secret, what).hash(&mut hasher);
        hasher.finish()
    }

    fn turn_at(&self, index: usize) -> &Mutex<()> {
        #[expect(clippy::indexing_slicing, reason = "the index was taken modulo the length")]
        &self.turns[index]
    }

    /// The turn of a request that may be repeated, for one that has no record of its own yet.
    pub(crate) async fn stamp_turn(&self, stamp: u128) -> MutexGuard<'_, ()> {
        let index = self.turn_of(&stamp) % STAMP_TURNS;
        #[expect(clippy::indexing_slicing, reason = "the index was taken modulo the length")]
        self.stamp_turns[index].lock().await
    }

    /// Writes records that nothing follows from. Where one write follows the other, in their
    /// order.
    pub(crate) async fn commit_plain(&self, ops: Vec<Op>) -> Result<(), StoreError> {
        if self.is_atomic() {
            return self.store.commit(ops).await.map(drop);
        }
        for op in ops {
            self.store.commit(vec![op]).await?;
        }
        Ok(())
    }

    /// Reads what must be known before the first request: the floor of the tokens, and who holds
    /// what. Costs as much as there are leases, not keys.
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<usize, StoreError> {
        self.read_or_make_floor().await?;
        self.finish_large().await?;
        if self.is_shared() {
            // Nobody keeps an index of leases there: the other servers tell.
            return Ok(0);
        }
        let mut after: Option<Name> = None;
        loop {
            let page = self.store.scan(LEASE_PREFIX, after.as_deref(), 1_000).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(Arc::clone(last));
            for (name, _) in &page {
                let key = name.strip_prefix(LEASE_PREFIX).unwrap_or_default();
                let Ok(key) = KeyName::parse_full(key) else { continue };
                match self.adopt(&key).await {
                    // Damage is told in the log; the others are served.
                    Ok(()) | Err(StoreError::Damaged(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(self.live.len())
    }
}

impl Records {
    /// The floor is there from the first start on, so that every backup has it.
    async fn read_or_make_floor(&self) -> Result<(), StoreError> {
        let name = Name::from(FLOOR_NAME);
        if let Some(stored) = self.store.load(&name).await? {
            self.floor.store(read_floor(&stored.bytes)?, Ordering::Relaxed);
            return Ok(());
        }
        let write = Write::Put(Bytes::from_static(b"0"));
        match self.store.commit(vec![Op { name, expect: Expect::Absent, write }]).await {
            // Another server has made it.
            Ok(_) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn staged_fences(record: &KeyRecord) -> impl Iterator<Item = &FenceCondition> {
    record.staged.iter().flat_map(|staged| &staged.fences)
}

pub(crate) fn record_name(key: &KeyName) -> Name {
    let prefix = match queue::role(key) {
        Some(Role::Message) => MESSAGE_PREFIX,
        Some(Role::State) | None => KEY_PREFIX,
    };
    [prefix, key.as_str()].concat().into()
}

/// # Errors
/// When the bytes are not a floor.
pub(crate) fn read_floor(bytes: &[u8]) -> Result<u64, StoreError> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| StoreError::Damaged("the floor of the fencing tokens".into()))
}
