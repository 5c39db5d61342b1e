//! Answers remembered for repeated requests. A request that carries an idempotency key leaves its
//! answer in the record that it changes, in the same commit as its effect; the same request again
//! finds it there. Which text became which stamp is left to the shell.

use crate::ids::LeaseId;
use crate::limits::ANSWERS_MAX;
use crate::record::{Etag, KeyRecord, Version};
use crate::time::{Now, UnixMillis};

/// Who asked, for what operation, under which idempotency key, and for exactly what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Hash over caller, operation and idempotency key.
    pub id: u128,
    /// Hash over everything else in the request.
    pub request: u128,
}

/// An answer, as it will be given again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    pub stamp: Stamp,
    pub at: UnixMillis,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Granted(LeaseId),
    Written(Written),
    Released,
}

/// The answer to update, mutate, metadata and remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The lease under which it was written.
    pub lease: LeaseId,
    pub version: Version,
    pub etag: Option<Etag>,
    pub bytes: u64,
    pub hidden: bool,
    /// For a remove: whether there was anything to remove.
    pub removed: bool,
    /// Not staged any more: committed in the same step.
    pub committed: bool,
}

/// The idempotency key was used before, for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this idempotency key was used for another request")]
pub struct StampReused;

/// The answer to the same request, if it was made before.
pub(crate) fn recall(
    record: &KeyRecord,
    stamp: Option<Stamp>,
) -> Result<Option<&Answer>, StampReused> {
    let Some(stamp) = stamp else { return Ok(None) };
    match record.answers.iter().rev().find(|known| known.stamp.id == stamp.id) {
        Some(known) if known.stamp.request == stamp.request => Ok(Some(&known.answer)),
        Some(_) => Err(StampReused),
        None => Ok(None),
    }
}

/// Keeps an answer; the oldest gives way.
pub(crate) fn remember(record: &mut KeyRecord, stamp: Option<Stamp>, answer: Answer, now: Now) {
    let Some(stamp) = stamp else { return };
    record.answers.retain(|known| known.stamp.id != stamp.id);
    if record.answers.len() >= ANSWERS_MAX {
        record.answers.remove(0);
    }
    record.answers.push(Remembered { stamp, at: now.wall, answer });
}
