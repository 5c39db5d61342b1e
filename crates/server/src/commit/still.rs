//! Fence conditions: a write that is good only while the token of another key is what it was.
//! Where the store writes several records at one moment, the other record is checked in the same
//! commit. Where it cannot, the token is held still by a pin (see `lockd_core::pin`): the record to
//! be written is read, then the pin is made durable, then the record is written if it is still the
//! one that was read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{BoxFuture, try_join_all};
use lockd_core::fence::{Fence, FenceCondition, FenceFacts};
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::pin::{self, Full, Pin, PinId, Pinned};
use lockd_core::record::{Decided, KeyRecord};
use lockd_store::{Expect, Name, Op, Revision, StoreError, Stored, Write};

use super::many::TXN_PREFIX;
use super::{ATTEMPTS_MAX, CommitError, Loaded, MESSAGE_PREFIX, Records, record_name};

/// A record that is about to be written, as it was when it was read.
pub(super) type Target = (Name, Option<Revision>);

pub(super) fn target(key: &KeyName, stored: Option<&Stored>) -> Target {
    (record_name(key), stored.map(|stored| stored.revision))
}

/// What is known about the tokens of other keys.
pub(super) enum Tokens {
    Known(FenceFacts, Vec<Op>),
    /// They are to be held still first, without anybody's turn.
    NotStill(Vec<FenceCondition>),
}

/// Tokens that are held still for one write.
pub(super) struct Still {
    records: Arc<Records>,
    targets: Vec<Target>,
    tokens: Vec<(KeyName, Fence)>,
    pins: Vec<(KeyName, PinId)>,
    /// A write may be under way: nobody may take the pins away but who touches its record.
    unsure: bool,
}

impl Still {
    pub(super) fn nothing(records: &Arc<Records>) -> Self {
        Self {
            records: Arc::clone(records),
            targets: Vec::new(),
            tokens: Vec::new(),
            pins: Vec::new(),
            unsure: false,
        }
    }

    /// Runs the write for which the tokens are held still.
    pub(super) async fn during<T>(
        &mut self,
        write: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.unsure = true;
        let written = write.await;
        self.unsure = matches!(written, Err(StoreError::Unknown(_)));
        if matches!(written, Err(StoreError::Conflict)) {
            // Perhaps for the sake of a raised token: it is held for no other attempt.
            self.targets.clear();
        }
        written
    }

    fn token(&self, key: &KeyName) -> Option<Fence> {
        self.tokens.iter().find(|(known, _)| known == key).map(|(_, token)| *token)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        if self.unsure {
            return;
        }
        for (key, id) in self.pins.drain(..) {
            self.records.tasks.spawn("unpin", self.records.unpin(key, vec![id]));
        }
    }
}

impl Records {
    /// The tokens of the keys that conditions speak about. `own` are the records that are decided
    /// upon; `targets` those whose writing makes the decision, or none when the conditions will be
    /// tested again before anything comes of it.
    pub(super) async fn tokens<'a>(
        self: &Arc<Self>,
        still: &Still,
        own: impl Iterator<Item = (&'a KeyName, &'a KeyRecord)>,
        conditions: impl Iterator<Item = &'a FenceCondition>,
        targets: Option<&[Target]>,
    ) -> Result<Tokens, StoreError> {
        let mut others: Vec<&FenceCondition> = conditions.collect();
        if others.is_empty() {
            return Ok(Tokens::Known(FenceFacts::default(), Vec::new()));
        }
        let mut facts = Vec::new();
        for (key, record) in own {
            if others.iter().any(|condition| condition.key == *key) {
                facts.push((key.clone(), record.fence));
                others.retain(|condition| condition.key != *key);
            }
        }
        let Some(targets) = targets.filter(|_| !self.is_atomic()) else {
            let checks = self.read_tokens(&others, &mut facts).await?;
            let checks = if self.is_atomic() { checks } else { Vec::new() };
            return Ok(Tokens::Known(FenceFacts::new(facts), checks));
        };
        let is_still = others.is_empty() || still.targets == targets;
        let tokens: Option<Vec<_>> =
            others.iter().map(|one| Some((one.key.clone(), still.token(&one.key)?))).collect();
        match tokens.filter(|_| is_still) {
            Some(tokens) => {
                facts.extend(tokens);
                Ok(Tokens::Known(FenceFacts::new(facts), Vec::new()))
            }
            None => Ok(Tokens::NotStill(others.into_iter().cloned().collect())),
        }
    }

    /// Reads tokens, and says what must be checked when the decision is written.
    pub(super) async fn read_tokens(
        self: &Arc<Self>,
        conditions: &[&FenceCondition],
        facts: &mut Vec<(KeyName, Fence)>,
    ) -> Result<Vec<Op>, StoreError> {
        let mut checks = Vec::with_capacity(conditions.len());
        for FenceCondition { key, .. } in conditions {
            if facts.iter().any(|(known, _)| known == key) {
                continue;
            }
            let Loaded { stored, record } = self.load_stored(key).await?;
            facts.push((key.clone(), pin::token(&record)));
            let expect = Expect::unchanged(stored.as_ref());
            checks.push(Op { name: record_name(key), expect, write: Write::Check });
        }
        Ok(checks)
    }

    /// Holds tokens still while records are written that were read before. A token that is not
    /// the one of the condition is only read. The caller has no turn.
    pub(super) fn hold_still<'a>(
        self: &'a Arc<Self>,
        targets: Vec<Target>,
        conditions: &'a [FenceCondition],
    ) -> BoxFuture<'a, Result<Still, StoreError>> {
        Box::pin(self.hold_still_now(targets, conditions))
    }

    async fn hold_still_now(
        self: &Arc<Self>,
        targets: Vec<Target>,
        conditions: &[FenceCondition],
    ) -> Result<Still, StoreError> {
        let mut still = Still::nothing(self);
        still.targets = targets;
        let names: Vec<Box<str>> = still.targets.iter().map(|(name, _)| (&**name).into()).collect();
        let wished: BTreeMap<&KeyName, Fence> =
            conditions.iter().map(|condition| (&condition.key, condition.token)).collect();
        for (key, token) in wished {
            let id = self.new_pin();
            let token = match self.pin(key, token, id, &names).await? {
                Pinned::Still(token) => {
                    still.pins.push((key.clone(), id));
                    token
                }
                Pinned::Other(token) => token,
            };
            still.tokens.push((key.clone(), token));
        }
        Ok(still)
    }

    async fn pin(
        self: &Arc<Self>,
        key: &KeyName,
        wished: Fence,
        id: PinId,
        targets: &[Box<str>],
    ) -> Result<Pinned, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let pin = |record: &KeyRecord| pin::pin(record, wished, id, targets);
            match self.commit_pins(key, pin).await {
                Ok(pinned) => return Ok(pinned),
                Err(CommitError::Store(error)) => return Err(error),
                Err(CommitError::Contended) => return Err(StoreError::Conflict),
                Err(CommitError::Refused(Full)) => self.make_room(key).await?,
            }
        }
        Err(StoreError::Conflict)
    }

    /// Ends all pins of a key and takes them away.
    async fn make_room(self: &Arc<Self>, key: &KeyName) -> Result<(), StoreError> {
        let give_up = |record: &KeyRecord| Ok::<_, Full>(pin::give_up(record));
        match self.commit_pins(key, give_up).await {
            // Answered for: what they name was touched before.
            Ok(over) => self.unpin(key.clone(), over).await,
            Err(CommitError::Store(error)) => return Err(error),
            Err(CommitError::Contended | CommitError::Refused(Full)) => {}
        }
        Ok(())
    }

    /// Decides about nothing but pins.
    async fn commit_pins<A, R>(
        self: &Arc<Self>,
        key: &KeyName,
        mut decide: impl FnMut(&KeyRecord) -> Result<Decided<A>, R>,
    ) -> Result<A, CommitError<R>> {
        self.commit_piped(key, &mut |record: &KeyRecord, _| decide(record)).await
    }

    fn new_pin(&self) -> PinId {
        let number = self.pins_made.fetch_add(1, Ordering::Relaxed);
        let drawn = self.hash(&("pin", number));
        PinId((u128::from(drawn) << 64) | u128::from(number))
    }

    /// Takes pins away. One that stays costs a touch at the next grant, and nothing else.
    fn unpin(self: &Arc<Self>, key: KeyName, ids: Vec<PinId>) -> BoxFuture<'static, ()> {
        let records = Arc::clone(self);
        Box::pin(async move {
            let unpin = |record: &KeyRecord| Ok::<_, Full>(pin::unpin(record, &ids));
            if let Err(error) = records.commit_pins(&key, unpin).await {
                tracing::debug!(%key, ?error, "a pin stays until the key is granted again");
            }
        })
    }

    /// Before the token of this record may be acted upon: makes sure that no write comes through
    /// any more that was made under an earlier one.
    pub(super) async fn close(
        self: &Arc<Self>,
        key: &KeyName,
        record: &KeyRecord,
    ) -> Result<(), StoreError> {
        let over: Vec<&Pin> = {
            let touched = self.touched.lock();
            pin::over(record).filter(|pin| !touched.contains(&pin.id)).collect()
        };
        if over.is_empty() {
            return Ok(());
        }
        let targets = over.iter().flat_map(|pin| &pin.targets);
        try_join_all(targets.map(|target| self.touch(target))).await?;
        let ids: Vec<PinId> = over.iter().map(|pin| pin.id).collect();
        self.touched.lock().extend(&ids);
        let (records, key) = (Arc::clone(self), key.clone());
        self.tasks.spawn("unpin", async move {
            records.unpin(key, ids.clone()).await;
            records.touched.lock().retain(|id| !ids.contains(id));
        });
        Ok(())
    }

    /// Changes a record in nothing but its revision.
    async fn touch(&self, target: &str) -> Result<(), StoreError> {
        let name = Name::from(target);
        let Some(Stored { bytes, revision }) = self.store.load(&name).await? else {
            let txn = target.strip_prefix(TXN_PREFIX);
            if let Some(txn) = txn.and_then(|txn| TxnId::parse(txn).ok()) {
                return self.begin_empty(txn).await;
            }
            let message = target.strip_prefix(MESSAGE_PREFIX);
            let Some(key) = message.and_then(|key| KeyName::parse_full(key).ok()) else {
                // Keys are never made by a write with conditions.
                return Ok(());
            };
            return self.forbid(&key).await.map(drop);
        };
        let op = Op { name, expect: Expect::Revision(revision), write: Write::Put(bytes) };
        match self.store.commit(vec![op]).await {
            // Changed by somebody else since we looked: as good.
            Ok(_) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
