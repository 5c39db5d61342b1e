//! What the holder writes: staged under its lease, visible when committed. Lease, token,
//! expectations and fence conditions are tested here, in the same step that makes the next record.

use crate::answer::{self, Answer, Stamp, StampReused, Written};
use crate::attachment;
use crate::fence::{FenceCondition, FenceFacts, FenceRefused};
use crate::lease::{self, InTxn, Proof, ProofRefused};
use crate::limits::FENCES_MAX;
use crate::record::{Change, Decided, Effect, End, Etag, KeyRecord, Staged, State, Version};
use crate::time::Now;

/// A write under a lease.
#[derive(Clone, Debug)]
pub struct Stage {
    pub proof: Proof,
    pub guard: Guard,
    pub change: Change,
    pub hidden: Option<bool>,
    pub fences: Vec<FenceCondition>,
    pub then: Then,
    /// Known to be the only participant of its transaction; needed to commit under one.
    pub alone: bool,
    pub stamp: Option<Stamp>,
}

/// What the caller believes to be there now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    pub version: Option<Version>,
    /// The etag as text; the empty text means "no document".
    pub etag: Option<Box<str>>,
}

/// What happens to the staged data in the same step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    #[default]
    Stage,
    /// Visible at once; the lease stays.
    Commit,
    /// Visible at once, and the lease ends.
    Release,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageRefused {
    #[error(transparent)]
    Proof(#[from] ProofRefused),
    #[error("the version is {current}", current = current.0)]
    Version { current: Version, etag: Option<Etag> },
    #[error("the state is another one")]
    Etag { current: Version, etag: Option<Etag> },
    #[error(transparent)]
    Fence(#[from] FenceRefused),
    #[error("too many fence conditions")]
    FencesFull,
    #[error(transparent)]
    InTxn(#[from] InTxn),
    #[error(transparent)]
    Reused(#[from] StampReused),
}

/// Stages a change, and commits it if so asked.
///
/// # Errors
/// When the caller does not hold the key, or something is not as it expects; then nothing changes.
pub fn stage(
    record: &KeyRecord,
    ask: &Stage,
    facts: &FenceFacts,
    now: Now,
) -> Result<Decided<Written>, StageRefused> {
    if let Some(Answer::Written(known)) = answer::recall(record, ask.stamp)?
        && (known.committed || record.live_lease(now).is_some_and(|l| l.id == known.lease))
    {
        return Ok(Decided::unchanged(known.clone()));
    }
    let lease = lease::check(record, &ask.proof, now)?;
    if lease.recorded && ask.then != Then::Stage && !ask.alone {
        return Err(InTxn(lease.txn).into());
    }
    guard(record, &ask.guard)?;
    facts.check(&ask.fences)?;
    let (_, present) = record.holder_view();
    let removes_nothing =
        ask.change == Change::Remove && present.is_none() && record.holder_attachments().is_empty();
    let mut written = Written {
        lease: lease.id.clone(),
        version: record.version,
        etag: None,
        bytes: 0,
        hidden: record.hidden,
        removed: ask.change == Change::Remove && !removes_nothing,
        committed: ask.then != Then::Stage,
    };
    let mut next = record.clone();
    let mut effects = Vec::new();
    if !removes_nothing {
        lay_over(&mut next, ask, &mut effects)?;
    }
    let (version, state) = next.holder_view();
    written.version = version;
    written.etag = state.map(|state| state.etag);
    written.bytes = state.map_or(0, |state| state.bytes);
    written.hidden = next.staged.as_ref().and_then(|staged| staged.hidden).unwrap_or(next.hidden);
    match ask.then {
        Then::Stage => {}
        Then::Commit => install(&mut next, facts, &mut effects, now)?,
        Then::Release => {
            let how = if next.staged.is_some() { End::Committed } else { End::Released };
            install(&mut next, facts, &mut effects, now)?;
            lease::end(&mut next, how, &mut effects, now);
        }
    }
    answer::remember(&mut next, ask.stamp, Answer::Written(written.clone()), now);
    let record = (next != *record).then_some(next);
    Ok(Decided { record, answer: written, effects })
}

fn guard(record: &KeyRecord, guard: &Guard) -> Result<(), StageRefused> {
    let (current, state) = record.holder_view();
    let etag = state.map(|state| state.etag);
    if guard.version.is_some_and(|expected| expected != current) {
        return Err(StageRefused::Version { current, etag });
    }
    let Some(expected) = &guard.etag else { return Ok(()) };
    let matches = match etag {
        Some(etag) => etag.to_string() == **expected,
        None => expected.is_empty(),
    };
    if matches { Ok(()) } else { Err(StageRefused::Etag { current, etag }) }
}

/// Lays one more change over what is staged. All changes of one lease become one version, which a
/// removal of what was staged before raises by one: the same as other servers of this API count.
fn lay_over(
    next: &mut KeyRecord,
    ask: &Stage,
    effects: &mut Vec<Effect>,
) -> Result<(), StageRefused> {
    let counts = ask.change == Change::Remove && next.staged.is_some();
    if ask.change == Change::Remove {
        attachment::stage_all(next, Vec::new(), effects);
    }
    let staged = begun(next);
    if counts {
        staged.version = staged.version.next();
    }
    if ask.change != Change::Keep {
        let replaced = std::mem::replace(&mut staged.change, ask.change.clone());
        if let Change::Write(state) = replaced {
            effects.extend(state.blob().cloned().map(Effect::DropBlob));
        }
    }
    staged.hidden = ask.hidden.or(staged.hidden);
    for condition in &ask.fences {
        if !staged.fences.contains(condition) {
            staged.fences.push(condition.clone());
        }
    }
    if staged.fences.len() > FENCES_MAX {
        return Err(StageRefused::FencesFull);
    }
    Ok(())
}

/// What is staged under the lease, to be added to.
pub(crate) fn begun(next: &mut KeyRecord) -> &mut Staged {
    let first = next.version.next();
    next.staged.get_or_insert_with(|| Staged {
        version: first,
        change: Change::Keep,
        attachments: None,
        hidden: None,
        fences: Vec::new(),
    })
}

/// Makes staged data the state of the key, if its conditions hold.
pub(crate) fn install(
    next: &mut KeyRecord,
    facts: &FenceFacts,
    effects: &mut Vec<Effect>,
    now: Now,
) -> Result<(), FenceRefused> {
    if let Some(staged) = &next.staged {
        facts.check(&staged.fences)?;
    }
    promote(next, effects, now);
    Ok(())
}

/// The one place where staged data becomes the state of the key.
pub(crate) fn promote(next: &mut KeyRecord, effects: &mut Vec<Effect>, now: Now) {
    let Some(staged) = next.staged.take() else { return };
    debug_assert!(staged.version > next.version, "versions grow with every commit");
    next.version = staged.version;
    next.hidden = staged.hidden.unwrap_or(next.hidden);
    next.updated_at = now.wall;
    if let Some(attachments) = staged.attachments {
        let old = std::mem::replace(&mut next.attachments, attachments);
        attachment::drop_unless_in(&next.attachments, Some(old), effects);
    }
    match staged.change {
        Change::Keep => effects.push(Effect::Committed),
        Change::Write(state) => {
            drop_old(next.state.replace(state), effects);
            effects.push(Effect::Committed);
        }
        Change::Remove => {
            drop_old(next.state.take(), effects);
            effects.push(Effect::Removed);
        }
    }
}

fn drop_old(old: Option<State>, effects: &mut Vec<Effect>) {
    effects.extend(old.and_then(|state| state.blob().cloned()).map(Effect::DropBlob));
}

impl std::fmt::Display for Etag {
    // Written with every answer: by table, not by the formatting machinery.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digit = |value: u8| if value < 10 { b'0' + value } else { b'a' + value - 10 };
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
