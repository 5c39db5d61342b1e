//! Messages: delivered at least once, to one consumer at a time. A delivery is a lease on the
//! message; how it ends says what becomes of the message. Acknowledged, it is gone. Given back, or
//! not answered in time, it is delivered again, until it has failed too often: then it is dead and
//! waits for an operator. The order of a queue is left to the shell.

use crate::fence::{FenceCondition, FenceFacts, FenceRefused};
use crate::ids::{LeaseId, TxnId};
use crate::lease::{self, Acquire, AcquireRefused, InTxn, Proof};
use crate::pin;
use crate::queue::{self, MessageId, Role};
use crate::record::{Decided, Effect, End, Ended, KeyRecord, Lease, State};
use crate::state;
use crate::time::{Deadline, Now, Span, UnixMillis};

/// What a message is besides its payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub enqueued_at: UnixMillis,
    /// Not delivered before this.
    pub visible: Deadline,
    /// How long it was to be hidden when `visible` was set.
    pub hidden_for: Span,
    /// Deliveries so far.
    pub attempts: u32,
    /// Deliveries that failed.
    pub failures: u32,
    /// Dead after so many failures; zero: never.
    pub max_attempts: u32,
    /// How long a consumer has it unless it says otherwise.
    pub visibility: Span,
    /// Removed by then if nobody has it.
    pub expires: Option<Expiry>,
    pub content_type: Box<str>,
    pub correlation: Box<str>,
    /// JSON text.
    pub attributes: Option<Box<str>>,
    /// JSON text.
    pub last_error: Option<Box<str>>,
    /// Grows with every change; what a consumer shows as the etag.
    pub changes: u64,
    /// State was kept beside it.
    pub stateful: bool,
    /// Failed too often, since then.
    pub dead: Option<UnixMillis>,
    /// Enqueued by a transaction that is not decided.
    pub draft: Option<Draft>,
}

/// The end of a message that nobody takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub at: Deadline,
    /// How long it was to live when `at` was set.
    pub ttl: Span,
}

impl Expiry {
    fn after(ttl: Span, now: Now) -> Self {
        Self { at: now.plus(ttl), ttl }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub txn: TxnId,
    /// Tested when the transaction is committed.
    pub fences: Vec<FenceCondition>,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere yet.
    Draft,
    /// In the queue, to be delivered from then on.
    Queued(Deadline),
    /// With a consumer.
    InFlight,
    Dead(UnixMillis),
    Gone,
}

/// Where a message stands; `None`: the record is none of a message.
#[must_use]
pub fn place(record: &KeyRecord) -> Option<Place> {
    let message = record.message.as_ref()?;
    Some(match message.as_ref() {
        _ if record.gone => Place::Gone,
        Message { draft: Some(_), .. } => Place::Draft,
        Message { dead: Some(since), .. } => Place::Dead(*since),
        _ if record.lease.is_some() => Place::InFlight,
        Message { visible, .. } => Place::Queued(*visible),
    })
}

/// A message on its way in.
#[derive(Clone, Debug)]
pub struct Enqueue {
    pub payload: State,
    pub content_type: Box<str>,
    pub correlation: Box<str>,
    pub attributes: Option<Box<str>>,
    pub delay: Span,
    pub visibility: Span,
    pub ttl: Option<Span>,
    pub max_attempts: u32,
    /// Delivered only after this transaction is committed.
    pub txn: Option<TxnId>,
    pub fences: Vec<FenceCondition>,
}

/// The answer to an enqueue, remembered for the same request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// What was asked for, as a hash.
    pub request: u128,
    pub id: MessageId,
    pub visible_at: UnixMillis,
    pub visibility: Span,
    pub max_attempts: u32,
    /// Of the payload.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueRefused {
    /// Its key is taken, be it by the mark of a collector that found its payload alone.
    #[error("the key of the message is taken")]
    Taken,
    #[error(transparent)]
    Fence(#[from] FenceRefused),
}

/// # Errors
/// When the key is taken or a fence condition does not hold.
pub fn enqueue(
    record: &KeyRecord,
    ask: &Enqueue,
    facts: &FenceFacts,
    now: Now,
) -> Result<Decided<()>, EnqueueRefused> {
    if record.stored {
        return Err(EnqueueRefused::Taken);
    }
    facts.check(&ask.fences)?;
    let message = Message {
        enqueued_at: now.wall,
        visible: now.plus(ask.delay),
        hidden_for: ask.delay,
        max_attempts: ask.max_attempts,
        visibility: ask.visibility,
        expires: ask.ttl.map(|ttl| Expiry::after(ttl, now)),
        content_type: ask.content_type.clone(),
        correlation: ask.correlation.clone(),
        attributes: ask.attributes.clone(),
        draft: ask.txn.map(|txn| Draft { txn, fences: ask.fences.clone() }),
        ..Message::default()
    };
    let next = KeyRecord {
        state: Some(ask.payload.clone()),
        updated_at: now.wall,
        message: Some(Box::new(message)),
        ..record.clone()
    };
    Ok(Decided { record: Some(next), answer: (), effects: Vec::new() })
}

/// The wish to have a message.
#[derive(Clone, Debug)]
pub struct Deliver {
    pub new_id: LeaseId,
    pub owner: Box<str>,
    pub txn: TxnId,
    /// The transaction has a record of its own, in which the message takes part.
    pub recorded: bool,
    /// `None`: as its sender wished.
    pub visibility: Option<Span>,
    pub visibility_max: Span,
    pub stateful: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDelivered {
    #[error("there is no such message in the queue")]
    Gone,
    #[error("the message is not to be delivered yet")]
    NotYet(Deadline),
    #[error("the message is with another consumer")]
    Held,
}

/// What a consumer gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    Lease(Lease),
    /// Nothing: the message has outlived its time.
    Expired,
}

/// # Errors
/// When the message is not to be delivered now.
pub fn deliver(
    record: &KeyRecord,
    ask: &Deliver,
    now: Now,
) -> Result<Decided<Delivered>, NotDelivered> {
    let message = record.message.as_ref().ok_or(NotDelivered::Gone)?;
    match place(record) {
        Some(Place::Queued(visible)) if !visible.is_past(now) => {
            return Err(NotDelivered::NotYet(visible));
        }
        Some(Place::Queued(_)) => {}
        Some(Place::InFlight) => return Err(NotDelivered::Held),
        Some(Place::Draft | Place::Dead(_) | Place::Gone) | None => return Err(NotDelivered::Gone),
    }
    if is_expired(message, now) {
        return Ok(removed(record, End::Lapsed { lost: true }).map(|()| Delivered::Expired));
    }
    let ttl = ask.visibility.unwrap_or(message.visibility).min(ask.visibility_max);
    let lease = Lease {
        id: ask.new_id.clone(),
        owner: ask.owner.clone(),
        txn: ask.txn,
        recorded: ask.recorded,
        ttl,
        granted_at: now.wall,
        expires: now.plus(ttl),
    };
    let mut next = record.clone();
    pin::raise(&mut next);
    next.lease = Some(lease.clone());
    next.message = Some(Box::new(Message {
        attempts: message.attempts.saturating_add(1),
        changes: message.changes + 1,
        stateful: message.stateful || ask.stateful,
        ..message.as_ref().clone()
    }));
    let (answer, effects) = (Delivered::Lease(lease), vec![Effect::Granted]);
    Ok(Decided { record: Some(next), answer, effects })
}

/// Whether a message that nobody has is to be removed.
#[must_use]
pub fn is_expired(message: &Message, now: Now) -> bool {
    message.expires.is_some_and(|expiry| expiry.at.is_past(now))
}

/// What a consumer shows.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub proof: Proof,
    /// As the last answer about the message gave it.
    pub etag: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageRefused {
    #[error("there is no such message; it was acknowledged, or removed")]
    NotFound,
    #[error("the message is not delivered under this lease any more")]
    LeaseMismatch,
    #[error("the message changed since; its etag is {current}")]
    Etag { current: Box<str> },
    #[error(transparent)]
    InTxn(#[from] InTxn),
    #[error(transparent)]
    Fence(#[from] FenceRefused),
}

/// The etag of a message.
#[must_use]
pub fn etag(record: &KeyRecord) -> Box<str> {
    let changes = record.message.as_ref().map_or(0, |message| message.changes);
    format!("{}-{changes}", record.fence.0).into()
}

/// Whether the message is with the consumer that shows this.
///
/// # Errors
/// When it is not.
pub fn check<'a>(
    record: &'a KeyRecord,
    proof: &Proof,
    now: Now,
) -> Result<(&'a Message, &'a Lease), MessageRefused> {
    let message = record.message.as_ref().ok_or(MessageRefused::NotFound)?;
    match lease::check(record, proof, now) {
        Ok(lease) => Ok((message, lease)),
        Err(_) => Err(MessageRefused::LeaseMismatch),
    }
}

fn check_etag(record: &KeyRecord, receipt: &Receipt) -> Result<(), MessageRefused> {
    let current = etag(record);
    match &receipt.etag {
        Some(shown) if **shown != *current => Err(MessageRefused::Etag { current }),
        Some(_) | None => Ok(()),
    }
}

fn decided_here(lease: &Lease) -> Result<(), InTxn> {
    if lease.recorded { Err(InTxn(lease.txn)) } else { Ok(()) }
}

/// The work is done: the message is gone for good. An etag that is out of date does not matter to
/// one who still has the message.
///
/// # Errors
/// When the message is not the caller's, or a fence condition does not hold.
pub fn ack(
    record: &KeyRecord,
    proof: &Proof,
    fences: &[FenceCondition],
    facts: &FenceFacts,
    now: Now,
) -> Result<Decided<()>, MessageRefused> {
    let (_, lease) = check(record, proof, now)?;
    decided_here(lease)?;
    facts.check(fences)?;
    Ok(removed(record, End::Committed))
}

/// How a consumer gives a message back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Back {
    /// Counts against the attempts that it is allowed.
    pub failed: bool,
    pub delay: Span,
    pub error: Option<Box<str>>,
}

/// The work was not done.
///
/// # Errors
/// When the message is not the caller's.
pub fn nack(
    record: &KeyRecord,
    receipt: &Receipt,
    back: &Back,
    now: Now,
) -> Result<Decided<()>, MessageRefused> {
    let (_, lease) = check(record, &receipt.proof, now)?;
    check_etag(record, receipt)?;
    decided_here(lease)?;
    let mut next = record.clone();
    let mut effects = Vec::new();
    let_go(&mut next, back, End::RolledBack, &mut effects, now);
    Ok(Decided { record: Some(next), answer: (), effects })
}

/// More time for the work, counted from now. `None`: as much as the delivery had.
///
/// # Errors
/// When the message is not the caller's.
pub fn extend(
    record: &KeyRecord,
    receipt: &Receipt,
    by: Option<Span>,
    now: Now,
) -> Result<Decided<Lease>, MessageRefused> {
    let (_, lease) = check(record, &receipt.proof, now)?;
    check_etag(record, receipt)?;
    let ttl = by.unwrap_or(lease.ttl);
    let lease = Lease { ttl, expires: now.plus(ttl), ..lease.clone() };
    let mut next = record.clone();
    next.lease = Some(lease.clone());
    if let Some(message) = &mut next.message {
        message.changes += 1;
    }
    Ok(Decided { record: Some(next), answer: lease, effects: Vec::new() })
}

/// Takes a delivery back that never reached its consumer, as if it had not been made.
/// `None`: the consumer does not have it any more.
#[must_use]
pub fn undeliver(record: &KeyRecord, proof: &Proof, now: Now) -> Option<Decided<()>> {
    check(record, proof, now).ok()?;
    let mut next = record.clone();
    let mut effects = Vec::new();
    let_go(&mut next, &Back::default(), End::RolledBack, &mut effects, now);
    if let Some(message) = &mut next.message {
        message.attempts = message.attempts.saturating_sub(1);
        // Where it was before: whoever came later does not overtake it.
        message.visible = record.message.as_ref().map_or(message.visible, |old| old.visible);
    }
    Some(Decided { record: Some(next), answer: (), effects })
}

/// Ends a delivery that nobody will ever speak about again, as after a restore. It counts neither
/// as failed nor as done.
#[must_use]
pub fn forgotten(record: &KeyRecord) -> KeyRecord {
    let mut next = KeyRecord { lease: None, ..record.clone() };
    if let Some(message) = &mut next.message {
        message.changes += 1;
    }
    next
}

/// What the end of a delivery does to the message, when no consumer says so itself.
pub(crate) fn ended(next: &mut KeyRecord, how: &End, effects: &mut Vec<Effect>, now: Now) {
    let back = match how {
        End::Released | End::Committed => return remove(next, effects),
        End::RolledBack => Back { failed: true, ..Back::default() },
        End::Lapsed { .. } => {
            let error = Some(r#"{"reason":"visibility_timeout"}"#.into());
            Back { failed: true, error, ..Back::default() }
        }
        End::Revoked { .. } => Back::default(),
    };
    put_back(next, &back, now);
}

/// Ends a delivery in the way its consumer wishes.
pub(crate) fn let_go(
    next: &mut KeyRecord,
    back: &Back,
    how: End,
    effects: &mut Vec<Effect>,
    now: Now,
) {
    let Some(lease) = next.lease.take() else { return };
    effects.push(Effect::Ended { owner: lease.owner, fence: next.fence, how: how.clone() });
    next.ended = Some(Ended { lease: lease.id, fence: next.fence, how });
    put_back(next, back, now);
}

fn put_back(next: &mut KeyRecord, back: &Back, now: Now) {
    let Some(message) = &mut next.message else { return };
    message.changes += 1;
    message.visible = now.plus(back.delay);
    message.hidden_for = back.delay;
    if back.failed {
        message.failures = message.failures.saturating_add(1);
        if back.error.is_some() {
            message.last_error.clone_from(&back.error);
        }
        if message.max_attempts > 0 && message.failures >= message.max_attempts {
            message.dead = Some(now.wall);
        }
    }
}

/// The one place where a message leaves the store.
fn remove(next: &mut KeyRecord, effects: &mut Vec<Effect>) {
    next.gone = true;
    effects.extend(next.blobs().cloned().map(Effect::DropBlob));
}

fn removed(record: &KeyRecord, how: End) -> Decided<()> {
    let mut next = record.clone();
    let mut effects = Vec::new();
    if let Some(lease) = next.lease.take() {
        effects.push(Effect::Ended { owner: lease.owner, fence: next.fence, how });
    }
    remove(&mut next, &mut effects);
    Decided { record: Some(next), answer: (), effects }
}

/// Which messages an operator removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Waiting to be delivered.
    Waiting,
    Dead,
    /// Waiting for longer than they were to live.
    Expired,
}

/// Removes a message by order. `None`: it is none of those.
#[must_use]
pub fn discard(record: &KeyRecord, which: Which, now: Now) -> Option<Decided<()>> {
    let message = record.message.as_ref()?;
    let meant = match (which, place(record)?) {
        (Which::Waiting, Place::Queued(_)) | (Which::Dead, Place::Dead(_)) => true,
        (Which::Expired, Place::Queued(_)) => is_expired(message, now),
        (Which::Waiting | Which::Dead | Which::Expired, _) => false,
    };
    meant.then(|| removed(record, End::RolledBack))
}

/// Gives a dead message all its attempts again. `None`: it is not dead.
#[must_use]
pub fn redrive(record: &KeyRecord, now: Now) -> Option<Decided<()>> {
    let Some(Place::Dead(_)) = place(record) else { return None };
    let mut next = record.clone();
    if let Some(message) = &mut next.message {
        message.dead = None;
        message.failures = 0;
        // Whoever brings it back wants it to be delivered.
        message.expires = None;
        message.visible = now.plus(Span::ZERO);
        message.hidden_for = Span::ZERO;
        message.changes += 1;
    }
    Some(Decided { record: Some(next), answer: (), effects: Vec::new() })
}

/// What a decision does to a message that the transaction has enqueued.
pub(crate) fn decide_draft(record: &KeyRecord, commit: bool, now: Now) -> Decided<()> {
    if !commit {
        return removed(record, End::RolledBack);
    }
    let mut next = record.clone();
    if let Some(message) = &mut next.message {
        message.draft = None;
        message.visible = now.plus(message.hidden_for);
        message.expires = message.expires.map(|expiry| Expiry::after(expiry.ttl, now));
    }
    next.updated_at = now.wall;
    Decided { record: Some(next), answer: (), effects: Vec::new() }
}

/// The draft of a transaction, if the record is one.
#[must_use]
pub fn draft_of(record: &KeyRecord, txn: TxnId) -> Option<&Draft> {
    let draft = record.message.as_ref()?.draft.as_ref()?;
    (draft.txn == txn).then_some(draft)
}

/// Leases the state beside a message to its consumer. Whoever had it before had the message too,
/// and has it no more.
///
/// # Errors
/// When a transaction has still to decide about it.
pub fn lend_state(
    record: &KeyRecord,
    ask: &Acquire,
    now: Now,
) -> Result<Decided<Lease>, AcquireRefused> {
    let mut free = record.clone();
    let mut effects = Vec::new();
    if let Some(lease) = &free.lease {
        decided_here(lease)?;
        let lost = free.staged.is_some();
        lease::end(&mut free, End::Lapsed { lost }, &mut effects, now);
    }
    if !record.stored {
        free.hidden = true;
    }
    let mut decided = lease::acquire(&free, ask, now)?;
    effects.append(&mut decided.effects);
    Ok(Decided { effects, ..decided })
}

/// The state dies with its message.
#[must_use]
pub fn drop_state(record: &KeyRecord) -> Option<Decided<()>> {
    record.stored.then(|| removed(record, End::Committed))
}

/// What a consumer kept beside a message that it gives back, the next one finds. What another one
/// left there, whose delivery ended otherwise, it does not.
///
/// # Errors
/// When a fence condition of what was staged does not hold.
pub fn keep_state(
    delivery: &Lease,
    record: &KeyRecord,
    facts: &FenceFacts,
    now: Now,
) -> Result<Option<Decided<()>>, FenceRefused> {
    let Some(lease) = record.lease.as_ref().filter(|lease| !lease.recorded) else {
        return Ok(None);
    };
    let same = lease.granted_at == delivery.granted_at && lease.owner == delivery.owner;
    if !same || !lease.is_live(now) {
        return Ok(return_state(record, now));
    }
    let mut next = record.clone();
    let mut effects = Vec::new();
    let how = if next.staged.is_some() { End::Committed } else { End::Released };
    state::install(&mut next, facts, &mut effects, now)?;
    lease::end(&mut next, how, &mut effects, now);
    Ok(Some(Decided { record: Some(next), answer: (), effects }))
}

/// Ends the lease on the state with nothing kept.
#[must_use]
pub fn return_state(record: &KeyRecord, now: Now) -> Option<Decided<()>> {
    record.lease.as_ref()?;
    let mut next = record.clone();
    let mut effects = Vec::new();
    lease::end(&mut next, End::RolledBack, &mut effects, now);
    Some(Decided { record: Some(next), answer: (), effects })
}

/// Whether a committed transaction takes the key away: the state of a message dies with it.
pub(crate) fn dies_with_message(key: &crate::key::KeyName) -> bool {
    queue::role(key) == Some(Role::State)
}

#[cfg(test)]
mod tests;
