//! Transactions over several keys. The record of a transaction is where it is decided, once; what
//! the decision does to each key is `apply`, which may be repeated and never fails. Whether leases
//! still live is asked when a key joins and when somebody asks for a decision, never afterwards.

use crate::answer::{self, Answer, Stamp};
use crate::fence::{FenceCondition, FenceFacts, FenceRefused};
use crate::ids::TxnId;
use crate::key::KeyName;
use crate::lease::{self, Proof, ProofRefused};
use crate::limits::PARTICIPANTS_MAX;
use crate::message::{self, Back};
use crate::pin;
use crate::record::{Decided, Effect, End, KeyRecord, Lease, Staged};
use crate::state;
use crate::time::{Now, UnixMillis};

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnRecord {
    pub state: TxnState,
    /// In the order of their names, each once.
    pub participants: Vec<Participant>,
    /// The highest term of a coordinator that has spoken; zero while none has.
    pub term: u64,
    pub created_at: UnixMillis,
    pub updated_at: UnixMillis,
    /// While pending: given up after this if nobody holds a key under it.
    pub expires_at: UnixMillis,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    pub key: KeyName,
    /// The decision has reached it.
    pub applied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnState {
    Pending,
    Decided(Outcome),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Commit,
    Rollback(Why),
}

/// Why a transaction was rolled back: what its holders will hear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Somebody entitled asked for it.
    Asked,
    /// The lease of a participant ran out.
    Lapsed,
    /// An operator took this key from its holder.
    Revoked { key: KeyName, reason: Box<str> },
}

impl Outcome {
    /// Whether both mean the same to the data.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::Commit, Self::Commit) | (Self::Rollback(_), Self::Rollback(_))
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinRefused {
    #[error("the transaction is decided")]
    Decided,
    #[error("the transaction has too many participants")]
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecideRefused {
    #[error(transparent)]
    Proof(#[from] ProofRefused),
    #[error("the lease is still held")]
    StillHeld,
    #[error(transparent)]
    Fence(#[from] FenceRefused),
    /// It was decided otherwise.
    #[error("the transaction was decided otherwise")]
    Conflict(Outcome),
    #[error("the term {stored} of another coordinator is newer")]
    TermStale { stored: u64 },
    #[error("a coordinator decides this transaction; its term is missing")]
    TermRequired,
}

/// Adds keys to a transaction, which begins with its first one. `None` when all take part already.
///
/// # Errors
/// When it is decided, or full.
pub fn join(
    record: Option<&TxnRecord>,
    keys: &[KeyName],
    expires_at: UnixMillis,
    now: Now,
) -> Result<Option<TxnRecord>, JoinRefused> {
    let mut next = match record {
        Some(TxnRecord { state: TxnState::Decided(_), .. }) => return Err(JoinRefused::Decided),
        Some(record) => record.clone(),
        None => TxnRecord { expires_at, ..TxnRecord::not_begun(now) },
    };
    let mut joined = record.is_none();
    for key in keys {
        if let Err(place) = next.participants.binary_search_by(|known| known.key.cmp(key)) {
            next.participants.insert(place, Participant { key: key.clone(), applied: false });
            joined = true;
        }
    }
    if !joined {
        return Ok(None);
    }
    if next.participants.len() > PARTICIPANTS_MAX {
        return Err(JoinRefused::Full);
    }
    next.updated_at = now.wall;
    next.expires_at = next.expires_at.max(expires_at);
    Ok(Some(next))
}

/// Decides a transaction, once; says what it is now. The same decision again changes nothing but,
/// at most, the term.
///
/// # Errors
/// When it was decided otherwise, or a newer coordinator has spoken.
pub fn decide(
    record: &TxnRecord,
    outcome: &Outcome,
    term: u64,
    now: Now,
) -> Result<(Outcome, Option<TxnRecord>), DecideRefused> {
    if record.term > 0 && term == 0 {
        return Err(DecideRefused::TermRequired);
    }
    if term < record.term {
        return Err(DecideRefused::TermStale { stored: record.term });
    }
    let outcome = match &record.state {
        TxnState::Decided(known) if !known.agrees(outcome) => {
            return Err(DecideRefused::Conflict(known.clone()));
        }
        TxnState::Decided(known) if term == record.term => return Ok((known.clone(), None)),
        TxnState::Decided(known) => known.clone(),
        TxnState::Pending => outcome.clone(),
    };
    let state = TxnState::Decided(outcome.clone());
    let next = TxnRecord { state, term, updated_at: now.wall, ..record.clone() };
    Ok((outcome, Some(next)))
}

/// By what right a decision is asked for.
#[derive(Clone, Debug)]
pub enum By {
    /// The holder of a participant, by what it shows.
    Holder {
        key: KeyName,
        proof: Proof,
        /// Under which the answer is remembered.
        stamp: Option<Stamp>,
    },
    /// The consumer of a message that takes part.
    Consumer {
        key: KeyName,
        proof: Proof,
        /// How it wants to give the message back, if it does.
        back: Option<Back>,
    },
    /// The lease of this participant has run out.
    Lapse(KeyName),
    /// Nobody holds a key under it any more.
    Abandoned,
    /// What was decided before is carried out, or an operator takes a key.
    Order,
    /// A client or a coordinator, whose right was tested before. Its rollback of a transaction
    /// that has not begun is a decision, too.
    Client,
}

/// The wish to end a transaction.
#[derive(Clone, Debug)]
pub struct Settle {
    pub txn: TxnId,
    pub outcome: Outcome,
    pub by: By,
    pub fences: Vec<FenceCondition>,
    pub term: u64,
}

impl Settle {
    /// Whether this is decided even where there is no record of the transaction. A commit is not:
    /// no key takes part, so there is nothing that it could make visible.
    #[must_use]
    pub fn closes_unknown(&self) -> bool {
        matches!((&self.by, &self.outcome), (By::Client, Outcome::Rollback(_)))
    }
}

/// A decision and all that follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub outcome: Outcome,
    /// `None` when the record says all this already.
    pub record: Option<TxnRecord>,
    pub keys: Vec<(KeyName, Decided<()>)>,
}

/// Decides and applies in one step. `keys` are the records of all participants.
///
/// # Errors
/// When the asker holds no participant, a fence condition does not hold, or the transaction was
/// decided otherwise; then nothing changes.
pub fn settle(
    record: &TxnRecord,
    keys: &[(KeyName, KeyRecord)],
    ask: &Settle,
    facts: &FenceFacts,
    now: Now,
) -> Result<Settled, DecideRefused> {
    if record.state == TxnState::Pending {
        check(keys, ask, facts, now)?;
    }
    let (outcome, decided) = decide(record, &ask.outcome, ask.term, now)?;
    let mut next = decided.unwrap_or_else(|| record.clone());
    let mut changed = Vec::new();
    for (key, record) in keys {
        if let Some(mut decided) = apply(key, record, ask.txn, &outcome, now) {
            if let Some(wished) = given_back(key, record, ask, &outcome, now) {
                decided = wished;
            }
            remember(&mut decided, key, ask, now);
            changed.push((key.clone(), decided));
        }
    }
    next.participants.iter_mut().for_each(|participant| participant.applied = true);
    let record = (next != *record).then_some(next);
    Ok(Settled { outcome, record, keys: changed })
}

/// Whether the decision may be asked for now.
fn check(
    keys: &[(KeyName, KeyRecord)],
    ask: &Settle,
    facts: &FenceFacts,
    now: Now,
) -> Result<(), DecideRefused> {
    let record_of =
        |key: &KeyName| keys.iter().find(|(known, _)| known == key).map(|(_, record)| record);
    match &ask.by {
        By::Holder { key, proof, .. } | By::Consumer { key, proof, .. } => {
            let own = record_of(key).ok_or(ProofRefused::NotHeld)?;
            if !is_under(lease::check(own, proof, now)?, ask.txn) {
                return Err(ProofRefused::OtherTxn.into());
            }
        }
        By::Lapse(key) => {
            let lease = record_of(key).and_then(|record| record.lease.as_ref());
            if lease.is_none_or(|lease| !is_under(lease, ask.txn) || lease.is_live(now)) {
                return Err(DecideRefused::StillHeld);
            }
        }
        By::Abandoned => {
            if keys.iter().any(|(_, record)| holds(record, ask.txn)) {
                return Err(DecideRefused::StillHeld);
            }
        }
        By::Order | By::Client => {}
    }
    facts.check(&ask.fences)?;
    if ask.outcome == Outcome::Commit {
        for (_, record) in keys {
            facts.check(kept_fences(record, ask.txn))?;
        }
    }
    Ok(())
}

fn is_under(lease: &Lease, txn: TxnId) -> bool {
    lease.recorded && lease.txn == txn
}

/// Whether the key is held under a transaction that has a record.
#[must_use]
pub fn holds(record: &KeyRecord, txn: TxnId) -> bool {
    record.lease.as_ref().is_some_and(|lease| is_under(lease, txn))
}

/// What a key has staged under a transaction that has a record.
fn staged_by(record: &KeyRecord, txn: TxnId) -> Option<&Staged> {
    record.staged.as_ref().filter(|_| holds(record, txn))
}

/// The transaction whose decision the key waits for.
#[must_use]
pub fn undecided(record: &KeyRecord) -> Option<TxnId> {
    let leased = record.lease.as_ref().filter(|lease| lease.recorded).map(|lease| lease.txn);
    let drafted = || Some(record.message.as_ref()?.draft.as_ref()?.txn);
    leased.or_else(drafted)
}

/// The fence conditions that a key keeps until its transaction is committed.
#[must_use]
pub fn kept_fences(record: &KeyRecord, txn: TxnId) -> &[FenceCondition] {
    let staged = staged_by(record, txn).map(|staged| staged.fences.as_slice());
    let drafted = || message::draft_of(record, txn).map(|draft| draft.fences.as_slice());
    staged.or_else(drafted).unwrap_or_default()
}

/// What a decision does to one key; `None` when it has reached it, or never concerned it. A key is
/// written even with nothing staged, so that a write that comes late finds its lease gone.
#[must_use]
pub fn apply(
    key: &KeyName,
    record: &KeyRecord,
    txn: TxnId,
    outcome: &Outcome,
    now: Now,
) -> Option<Decided<()>> {
    if message::draft_of(record, txn).is_some() {
        return Some(message::decide_draft(record, *outcome == Outcome::Commit, now));
    }
    if !holds(record, txn) {
        return None;
    }
    if *outcome == Outcome::Commit && message::dies_with_message(key) {
        return message::drop_state(record);
    }
    let mut next = record.clone();
    let mut effects: Vec<Effect> = Vec::new();
    let how = match outcome {
        Outcome::Commit => {
            state::promote(&mut next, &mut effects, now);
            End::Committed
        }
        Outcome::Rollback(Why::Asked) => End::RolledBack,
        Outcome::Rollback(Why::Lapsed) => End::Lapsed { lost: true },
        Outcome::Rollback(Why::Revoked { reason, .. }) => End::Revoked { reason: reason.clone() },
    };
    lease::end(&mut next, how, &mut effects, now);
    if let Outcome::Rollback(Why::Revoked { key: revoked, .. }) = outcome
        && revoked == key
    {
        pin::raise(&mut next);
    }
    Some(Decided { record: Some(next), answer: (), effects })
}

/// A consumer that rolls its transaction back says how it gives its message back.
fn given_back(
    key: &KeyName,
    record: &KeyRecord,
    ask: &Settle,
    outcome: &Outcome,
    now: Now,
) -> Option<Decided<()>> {
    let By::Consumer { key: asker, back: Some(back), .. } = &ask.by else { return None };
    if asker != key || *outcome == Outcome::Commit {
        return None;
    }
    let mut next = record.clone();
    let mut effects = Vec::new();
    message::let_go(&mut next, back, End::RolledBack, &mut effects, now);
    Some(Decided { record: Some(next), answer: (), effects })
}

fn remember(decided: &mut Decided<()>, key: &KeyName, ask: &Settle, now: Now) {
    if let (By::Holder { key: asker, stamp, .. }, Some(record)) = (&ask.by, &mut decided.record)
        && asker == key
    {
        answer::remember(record, *stamp, Answer::Released, now);
    }
}

/// The record after the decision has reached a key.
#[must_use]
pub fn applied(record: &TxnRecord, key: &KeyName) -> TxnRecord {
    let mut next = record.clone();
    for participant in next.participants.iter_mut().filter(|known| known.key == *key) {
        participant.applied = true;
    }
    next
}

/// Takes a key that nothing was staged under out of a transaction, as if it had never joined: its
/// holder never heard of the grant. `None` when it is too late for that.
#[must_use]
pub fn withdraw(
    record: &TxnRecord,
    key: &KeyName,
    key_record: &KeyRecord,
    txn: TxnId,
    now: Now,
) -> Option<(TxnRecord, Decided<()>)> {
    if record.state != TxnState::Pending || key_record.staged.is_some() || !holds(key_record, txn) {
        return None;
    }
    let mut next = record.clone();
    next.participants.retain(|participant| participant.key != *key);
    next.updated_at = now.wall;
    let freed = match &key_record.lease {
        Some(lease) if key_record.message.is_some() => {
            let proof = Proof { lease: lease.id.clone(), fence: None, txn: None };
            message::undeliver(key_record, &proof, now)?
        }
        Some(_) | None => {
            let mut freed = key_record.clone();
            let mut effects = Vec::new();
            lease::end(&mut freed, End::RolledBack, &mut effects, now);
            Decided { record: Some(freed), answer: (), effects }
        }
    };
    Some((next, freed))
}

impl TxnRecord {
    /// A transaction that has not begun. Decided and kept, it cannot begin any more.
    #[must_use]
    pub fn not_begun(now: Now) -> Self {
        Self {
            state: TxnState::Pending,
            participants: Vec::new(),
            term: 0,
            created_at: now.wall,
            updated_at: now.wall,
            expires_at: now.wall,
        }
    }

    /// The same, before it has reached anybody.
    #[must_use]
    pub fn unapplied(&self) -> Self {
        let mut next = self.clone();
        next.participants.iter_mut().for_each(|participant| participant.applied = false);
        next
    }

    #[must_use]
    pub fn is_applied(&self) -> bool {
        self.participants.iter().all(|participant| participant.applied)
    }

    /// The decision, if there is one.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.state {
            TxnState::Pending => None,
            TxnState::Decided(outcome) => Some(outcome),
        }
    }
}

/// Makes the lease of the first key one of a recorded transaction, before a second key joins.
/// `None` when the lease is over or belongs to another: then there is nothing to join.
#[must_use]
pub fn enrol(record: &KeyRecord, txn: TxnId, now: Now) -> Option<KeyRecord> {
    record.live_lease(now).filter(|lease| lease.txn == txn && !lease.recorded)?;
    let mut next = record.clone();
    if let Some(lease) = &mut next.lease {
        lease.recorded = true;
    }
    Some(next)
}

#[cfg(test)]
mod tests;
