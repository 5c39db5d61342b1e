//! Who may write now. Only `acquire`, `renew`, `release`, `revoke` and `lapse` change a lease, and
//! only grants and revocations change a fence. Waiting in line is left to the shell.

use crate::answer::{self, Answer, Stamp, StampReused};
use crate::attachment;
use crate::fence::{Fence, FenceCondition, FenceFacts, FenceRefused};
use crate::ids::{LeaseId, TxnId};
use crate::message;
use crate::pin;
use crate::record::{Change, Decided, Effect, End, Ended, KeyRecord, Lease};
use crate::state;
use crate::time::{Deadline, Now, Span};

/// The wish to hold a key. Ids are drawn by the caller, once per request.
#[derive(Clone, Debug)]
pub struct Acquire {
    pub new_id: LeaseId,
    pub owner: Box<str>,
    pub txn: TxnId,
    /// The transaction has a record of its own, in which this key takes part.
    pub recorded: bool,
    pub ttl: Span,
    pub if_not_exists: bool,
    pub stamp: Option<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireRefused {
    #[error("the key is held")]
    Held { until: Deadline },
    #[error("the key exists")]
    Exists,
    #[error(transparent)]
    InTxn(#[from] InTxn),
    #[error(transparent)]
    Reused(#[from] StampReused),
}

/// The key takes part in a transaction: its record decides about this, not the key's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key takes part in a transaction")]
pub struct InTxn(pub TxnId);

/// What a caller shows to act under a lease. Fence and transaction may be left out where knowing
/// the secret lease id is proof enough.
#[derive(Clone, Debug)]
pub struct Proof {
    pub lease: LeaseId,
    pub fence: Option<Fence>,
    pub txn: Option<TxnId>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofRefused {
    #[error("no such lease holds the key")]
    NotHeld,
    #[error("the lease has expired")]
    Expired,
    #[error("the lease was revoked: {reason}")]
    Revoked { reason: Box<str> },
    #[error("the fencing token is {current}", current = current.0)]
    Fenced { current: Fence },
    #[error("the lease belongs to another transaction")]
    OtherTxn,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseRefused {
    #[error(transparent)]
    Proof(#[from] ProofRefused),
    #[error(transparent)]
    Fence(#[from] FenceRefused),
    /// The lease ended before with the opposite wish.
    #[error("the lease was already released with the opposite outcome")]
    Decided,
    #[error(transparent)]
    InTxn(#[from] InTxn),
    #[error(transparent)]
    Reused(#[from] StampReused),
}

/// Grants the key if it is free. A lease that has run out is ended on the way.
///
/// # Errors
/// When a live lease holds the key, or the key exists and must not.
pub fn acquire(
    record: &KeyRecord,
    ask: &Acquire,
    now: Now,
) -> Result<Decided<Lease>, AcquireRefused> {
    if let Some(lease) = granted_before(record, ask.stamp, now)? {
        return Ok(Decided::unchanged(lease.clone()));
    }
    if ask.if_not_exists && record.stored {
        return Err(AcquireRefused::Exists);
    }
    if let Some(lease) = record.live_lease(now) {
        return Err(AcquireRefused::Held { until: lease.expires });
    }
    decided_here(record)?;
    let mut next = record.clone();
    let mut effects = Vec::new();
    end_lapsed(&mut next, &mut effects, now);
    let lease = Lease {
        id: ask.new_id.clone(),
        owner: ask.owner.clone(),
        txn: ask.txn,
        recorded: ask.recorded,
        ttl: ask.ttl,
        granted_at: now.wall,
        expires: now.plus(ask.ttl),
    };
    pin::raise(&mut next);
    next.lease = Some(lease.clone());
    answer::remember(&mut next, ask.stamp, Answer::Granted(lease.id.clone()), now);
    effects.push(Effect::Granted);
    debug_assert!(record.fence < next.fence, "fences only grow");
    debug_assert!(next.staged.is_none(), "a new holder starts with nothing staged");
    Ok(Decided { record: Some(next), answer: lease, effects })
}

/// The lease that the same request was granted before, while it lives.
///
/// # Errors
/// When the idempotency key was used for another request.
pub fn granted_before(
    record: &KeyRecord,
    stamp: Option<Stamp>,
    now: Now,
) -> Result<Option<&Lease>, StampReused> {
    Ok(match answer::recall(record, stamp)? {
        Some(Answer::Granted(id)) => record.live_lease(now).filter(|lease| lease.id == *id),
        Some(Answer::Written(_) | Answer::Released) | None => None,
    })
}

/// Whether the caller holds the key now.
///
/// # Errors
/// Says what became of the lease.
pub fn check<'a>(
    record: &'a KeyRecord,
    proof: &Proof,
    now: Now,
) -> Result<&'a Lease, ProofRefused> {
    let Some(lease) = record.lease.as_ref().filter(|lease| lease.id == proof.lease) else {
        return Err(absent(record, proof));
    };
    if !lease.is_live(now) {
        return Err(ProofRefused::Expired);
    }
    if proof.fence.is_some_and(|fence| fence != record.fence) {
        return Err(ProofRefused::Fenced { current: record.fence });
    }
    if proof.txn.is_some_and(|txn| txn != lease.txn) {
        return Err(ProofRefused::OtherTxn);
    }
    Ok(lease)
}

/// Why a lease that does not hold the key does not.
fn absent(record: &KeyRecord, proof: &Proof) -> ProofRefused {
    match record.ended.as_ref().filter(|ended| ended.lease == proof.lease) {
        Some(Ended { how: End::Revoked { reason }, .. }) => {
            ProofRefused::Revoked { reason: reason.clone() }
        }
        Some(Ended { how: End::Lapsed { .. }, .. }) => ProofRefused::Expired,
        Some(Ended { how: End::Released | End::Committed | End::RolledBack, .. }) => {
            ProofRefused::NotHeld
        }
        None if proof.fence.is_some_and(|fence| fence < record.fence) => {
            ProofRefused::Fenced { current: record.fence }
        }
        None => ProofRefused::NotHeld,
    }
}

/// Gives the lease a new full time to live, counted from now; it may become shorter.
///
/// # Errors
/// When the caller does not hold the key.
pub fn renew(
    record: &KeyRecord,
    proof: &Proof,
    ttl: Span,
    now: Now,
) -> Result<Decided<Lease>, ProofRefused> {
    let mut lease = check(record, proof, now)?.clone();
    lease.ttl = ttl;
    lease.expires = now.plus(ttl);
    let mut next = record.clone();
    next.lease = Some(lease.clone());
    Ok(Decided { record: Some(next), answer: lease, effects: Vec::new() })
}

/// The wish to let go of a key, keeping what was staged or not.
#[derive(Clone, Debug)]
pub struct Release {
    pub proof: Proof,
    pub rollback: bool,
    pub fences: Vec<FenceCondition>,
    pub stamp: Option<Stamp>,
}

/// Ends the caller's lease and commits what it staged. The same release again gets the same
/// answer.
///
/// # Errors
/// When the lease is another's, when staged data was lost, or when a fence condition fails; then
/// nothing changes.
pub fn release(
    record: &KeyRecord,
    ask: &Release,
    facts: &FenceFacts,
    now: Now,
) -> Result<Decided<()>, ReleaseRefused> {
    if answer::recall(record, ask.stamp)?.is_some() {
        return Ok(Decided::unchanged(()));
    }
    match check(record, &ask.proof, now) {
        Ok(_) => decided_here(record)?,
        Err(refused) => return release_again(record, ask, refused, now),
    }
    facts.check(&ask.fences)?;
    let mut next = record.clone();
    let mut effects = Vec::new();
    // A message has nothing staged: letting go of it is to acknowledge it, or to give it back.
    let undecided = next.staged.is_some() || next.message.is_some();
    let how = match (undecided, ask.rollback) {
        (false, _) => End::Released,
        (true, true) => End::RolledBack,
        (true, false) => {
            state::install(&mut next, facts, &mut effects, now)?;
            End::Committed
        }
    };
    end(&mut next, how, &mut effects, now);
    answer::remember(&mut next, ask.stamp, Answer::Released, now);
    Ok(Decided { record: Some(next), answer: (), effects })
}

/// The answer to a release whose lease is over: what it was, or would have been, the first time.
fn release_again(
    record: &KeyRecord,
    ask: &Release,
    refused: ProofRefused,
    now: Now,
) -> Result<Decided<()>, ReleaseRefused> {
    if let Some(lease) = record.lease.as_ref().filter(|lease| lease.id == ask.proof.lease) {
        // Held to the end of its time, and nobody has cleared it away yet.
        let fence_is_right = ask.proof.fence.is_none_or(|fence| fence == record.fence);
        let txn_is_right = ask.proof.txn.is_none_or(|txn| txn == lease.txn);
        let harmless = record.staged.is_none() || ask.rollback;
        if refused == ProofRefused::Expired {
            decided_here(record)?;
        }
        if refused == ProofRefused::Expired && harmless && fence_is_right && txn_is_right {
            // What is told must last: a clock set back before a reboot would bring it back.
            let mut next = record.clone();
            let mut effects = Vec::new();
            end_lapsed(&mut next, &mut effects, now);
            return Ok(Decided { record: Some(next), answer: (), effects });
        }
        return Err(refused.into());
    }
    let Some(ended) = record.ended.as_ref().filter(|ended| ended.lease == ask.proof.lease) else {
        // "Not held" would be taken for success by clients that only want to be rid of it.
        return Err(ProofRefused::Fenced { current: record.fence }.into());
    };
    if ask.proof.fence.is_some_and(|fence| fence != ended.fence) {
        return Err(ProofRefused::Fenced { current: record.fence }.into());
    }
    match (&ended.how, ask.rollback) {
        (End::Released | End::Lapsed { lost: false }, _)
        | (End::Committed, false)
        | (End::RolledBack | End::Lapsed { lost: true }, true) => Ok(Decided::unchanged(())),
        (End::Committed, true) => Err(ReleaseRefused::Decided),
        (End::RolledBack | End::Lapsed { lost: true }, false) => Err(ProofRefused::Expired.into()),
        (End::Revoked { reason }, _) => {
            Err(ProofRefused::Revoked { reason: reason.clone() }.into())
        }
    }
}

/// Takes the key from its holder by order of an operator. The token grows, so whatever the holder
/// has under way elsewhere is fenced off too. `None` when nobody holds it.
///
/// # Errors
/// When the key takes part in a transaction.
pub fn revoke(record: &KeyRecord, reason: &str, now: Now) -> Result<Option<Decided<Lease>>, InTxn> {
    let Some(lease) = record.live_lease(now).cloned() else { return Ok(None) };
    decided_here(record)?;
    let mut next = record.clone();
    let mut effects = Vec::new();
    end(&mut next, End::Revoked { reason: reason.into() }, &mut effects, now);
    pin::raise(&mut next);
    Ok(Some(Decided { record: Some(next), answer: lease, effects }))
}

/// Ends a lease whose time is over. `None` when there is none.
///
/// # Errors
/// When the key takes part in a transaction.
pub fn lapse(record: &KeyRecord, now: Now) -> Result<Option<Decided<()>>, InTxn> {
    if record.lease.as_ref().is_none_or(|lease| lease.is_live(now)) {
        return Ok(None);
    }
    decided_here(record)?;
    let mut next = record.clone();
    let mut effects = Vec::new();
    end_lapsed(&mut next, &mut effects, now);
    Ok(Some(Decided { record: Some(next), answer: (), effects }))
}

/// Whether the key's own record is where its lease and what it staged are decided upon.
fn decided_here(record: &KeyRecord) -> Result<(), InTxn> {
    match record.lease.as_ref().filter(|lease| lease.recorded) {
        Some(lease) => Err(InTxn(lease.txn)),
        None => Ok(()),
    }
}

/// Ends a lease that the caller knows to be over, if there is one.
fn end_lapsed(next: &mut KeyRecord, effects: &mut Vec<Effect>, now: Now) {
    let lost = next.staged.is_some();
    end(next, End::Lapsed { lost }, effects, now);
}

/// The one place where a lease leaves a record. What is still staged goes with it.
pub(crate) fn end(next: &mut KeyRecord, how: End, effects: &mut Vec<Effect>, now: Now) {
    let Some(lease) = next.lease.take() else { return };
    if next.message.is_some() {
        message::ended(next, &how, effects, now);
    }
    if let Some(staged) = next.staged.take() {
        if let Change::Write(state) = &staged.change {
            effects.extend(state.blob().cloned().map(Effect::DropBlob));
        }
        attachment::drop_unless_in(&next.attachments, staged.attachments, effects);
    }
    effects.push(Effect::Ended { owner: lease.owner, fence: next.fence, how: how.clone() });
    next.ended = Some(Ended { lease: lease.id, fence: next.fence, how });
}

#[cfg(test)]
mod tests;
