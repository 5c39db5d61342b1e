//! Attachments: bytes of any kind beside the document of a key. They are staged under the lease and
//! become visible with everything else that was staged, or vanish with it.

use crate::lease::{self, Proof, ProofRefused};
use crate::limits::ATTACHMENTS_MAX;
use crate::record::{Attachment, Decided, Effect, KeyRecord, Version};
use crate::state;
use crate::time::Now;

/// The wish to attach something. Id and times are those of a new one.
#[derive(Clone, Debug)]
pub struct Attach {
    pub proof: Proof,
    pub attachment: Attachment,
    /// Leaves one of the same name alone.
    pub keep_existing: bool,
}

/// What is attached now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub attachment: Attachment,
    /// It was there before, and stays.
    pub kept: bool,
    /// The version that the key will have.
    pub version: Version,
}

/// Which attachments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Name(Box<str>),
    Id(Box<str>),
    All,
}

/// How many were taken away, and the version that the key will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detached {
    pub count: usize,
    pub version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachRefused {
    #[error(transparent)]
    Proof(#[from] ProofRefused),
    #[error("the key has as many attachments as one can have")]
    Full,
}

impl Which {
    #[must_use]
    pub fn is(&self, attachment: &Attachment) -> bool {
        match self {
            Self::Name(name) => attachment.name == *name,
            Self::Id(id) => attachment.id == *id,
            Self::All => true,
        }
    }
}

/// Stages an attachment. One of the same name is replaced and keeps its id and its birth.
///
/// # Errors
/// When the caller does not hold the key, or it has too many; then nothing changes.
pub fn attach(
    record: &KeyRecord,
    ask: &Attach,
    now: Now,
) -> Result<Decided<Attached>, AttachRefused> {
    lease::check(record, &ask.proof, now)?;
    let present = record.holder_attachments();
    let place = present.binary_search_by(|known| known.name.cmp(&ask.attachment.name));
    let mut attachment = ask.attachment.clone();
    if let Some(known) = place.ok().and_then(|at| present.get(at)) {
        if ask.keep_existing {
            let (version, _) = record.holder_view();
            let answer = Attached { attachment: known.clone(), kept: true, version };
            return Ok(Decided::unchanged(answer));
        }
        attachment.id = known.id.clone();
        attachment.created_at = known.created_at;
    }
    let mut all = present.to_vec();
    match place {
        Ok(at) => {
            all.splice(at..=at, [attachment.clone()]);
        }
        Err(_) if all.len() >= ATTACHMENTS_MAX => return Err(AttachRefused::Full),
        Err(at) => all.insert(at, attachment.clone()),
    }
    let (next, effects) = staged(record, all);
    let (version, _) = next.holder_view();
    let answer = Attached { attachment, kept: false, version };
    Ok(Decided { record: Some(next), answer, effects })
}

/// Stages the removal of attachments.
///
/// # Errors
/// When the caller does not hold the key.
pub fn detach(
    record: &KeyRecord,
    proof: &Proof,
    which: &Which,
    now: Now,
) -> Result<Decided<Detached>, ProofRefused> {
    lease::check(record, proof, now)?;
    let present = record.holder_attachments();
    let left: Vec<Attachment> =
        present.iter().filter(|attachment| !which.is(attachment)).cloned().collect();
    let count = present.len() - left.len();
    if count == 0 {
        let (version, _) = record.holder_view();
        return Ok(Decided::unchanged(Detached { count, version }));
    }
    let (next, effects) = staged(record, left);
    let (version, _) = next.holder_view();
    Ok(Decided { record: Some(next), answer: Detached { count, version }, effects })
}

fn staged(record: &KeyRecord, all: Vec<Attachment>) -> (KeyRecord, Vec<Effect>) {
    let mut next = record.clone();
    let mut effects = Vec::new();
    stage_all(&mut next, all, &mut effects);
    (next, effects)
}

/// Stages these attachments in the place of all that the holder sees.
pub(crate) fn stage_all(next: &mut KeyRecord, all: Vec<Attachment>, effects: &mut Vec<Effect>) {
    let before = state::begun(next).attachments.replace(all);
    let Some(before) = before else { return };
    let staged = next.staged.as_ref().and_then(|staged| staged.attachments.as_deref());
    let named: Vec<Attachment> =
        next.attachments.iter().chain(staged.unwrap_or_default()).cloned().collect();
    drop_unless_in(&named, Some(before), effects);
}

/// Lets go of the blobs of attachments that are not among the others.
pub(crate) fn drop_unless_in(
    others: &[Attachment],
    gone: Option<Vec<Attachment>>,
    effects: &mut Vec<Effect>,
) {
    for attachment in gone.into_iter().flatten() {
        let still_named = others.iter().any(|other| other.body.content == attachment.body.content);
        if let (Some(blob), false) = (attachment.body.blob(), still_named) {
            effects.push(Effect::DropBlob(std::sync::Arc::clone(blob)));
        }
    }
}

#[cfg(test)]
mod tests;
