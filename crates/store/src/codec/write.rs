//! Fields to bytes. Numbers are LEB128, texts carry their length, choices are one byte.

use lockd_core::answer::{Answer, Remembered, Written};
use lockd_core::fence::FenceCondition;
use lockd_core::message::{Enqueued, Expiry, Message};
use lockd_core::pin::Pin;
use lockd_core::record::{
    Attachment, Change, Content, End, Ended, KeyRecord, Lease, Staged, State,
};
use lockd_core::time::BootId;
use lockd_core::txn::{Outcome, TxnRecord, TxnState, Why};

pub(super) const HAS_STATE: u8 = 1;
pub(super) const HAS_LEASE: u8 = 2;
pub(super) const HAS_STAGED: u8 = 4;
pub(super) const HAS_ENDED: u8 = 8;
pub(super) const IS_HIDDEN: u8 = 16;
pub(super) const HAS_ATTACHMENTS: u8 = 32;
pub(super) const HAS_STAGED_ATTACHMENTS: u8 = 64;
pub(super) const IS_MESSAGE: u8 = 128;

pub(super) const IS_STATEFUL: u8 = 1;
pub(super) const HAS_EXPIRY: u8 = 2;
pub(super) const HAS_ATTRIBUTES: u8 = 4;
pub(super) const HAS_LAST_ERROR: u8 = 8;
pub(super) const IS_DEAD: u8 = 16;
pub(super) const IS_DRAFT: u8 = 32;

/// A good guess at how large the record will be.
pub(super) fn inline_bytes(record: &KeyRecord) -> usize {
    let staged = record.staged.iter().filter_map(|staged| match &staged.change {
        Change::Write(state) => Some(state),
        Change::Keep | Change::Remove => None,
    });
    let sizes = record.state.iter().chain(staged).map(|state| match &state.content {
        Content::Inline(bytes) => bytes.len() + 64,
        Content::Blob(name) => name.len() + 64,
    });
    sizes.sum()
}

pub(super) fn record(out: &mut Vec<u8>, record: &KeyRecord, boot: BootId) {
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let staged_attachments =
        record.staged.as_ref().and_then(|staged| staged.attachments.as_deref());
    out.push(
        flag(record.state.is_some(), HAS_STATE)
            | flag(record.lease.is_some(), HAS_LEASE)
            | flag(record.staged.is_some(), HAS_STAGED)
            | flag(record.ended.is_some(), HAS_ENDED)
            | flag(record.hidden, IS_HIDDEN)
            | flag(!record.attachments.is_empty(), HAS_ATTACHMENTS)
            | flag(staged_attachments.is_some(), HAS_STAGED_ATTACHMENTS)
            | flag(record.message.is_some(), IS_MESSAGE),
    );
    number(out, record.fence.0);
    number(out, record.version.0);
    number(out, record.updated_at.0);
    if let Some(lease) = &record.lease {
        self::lease(out, lease, boot);
    }
    if let Some(ended) = &record.ended {
        self::ended(out, ended);
    }
    count(out, record.answers.len());
    for remembered in &record.answers {
        self::remembered(out, remembered);
    }
    if let Some(state) = &record.state {
        self::state(out, state);
    }
    if let Some(staged) = &record.staged {
        self::staged(out, staged);
    }
    if !record.attachments.is_empty() {
        attachments(out, &record.attachments);
    }
    if let Some(staged) = staged_attachments {
        attachments(out, staged);
    }
    if let Some(message) = &record.message {
        self::message(out, message, boot);
    }
    // At the end and only if there are any: records were written before there were pins.
    if !record.pins.is_empty() {
        pins(out, &record.pins);
    }
}

fn pins(out: &mut Vec<u8>, pins: &[Pin]) {
    count(out, pins.len());
    for pin in pins {
        out.extend_from_slice(&pin.id.0.to_le_bytes());
        out.push(u8::from(pin.over));
        count(out, pin.targets.len());
        for target in &pin.targets {
            text(out, target);
        }
    }
}

fn message(out: &mut Vec<u8>, message: &Message, boot: BootId) {
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    out.push(
        flag(message.stateful, IS_STATEFUL)
            | flag(message.expires.is_some(), HAS_EXPIRY)
            | flag(message.attributes.is_some(), HAS_ATTRIBUTES)
            | flag(message.last_error.is_some(), HAS_LAST_ERROR)
            | flag(message.dead.is_some(), IS_DEAD)
            | flag(message.draft.is_some(), IS_DRAFT),
    );
    number(out, message.enqueued_at.0);
    number(out, message.visible.tick.0);
    number(out, message.visible.wall.0);
    number(out, message.hidden_for.0);
    out.extend_from_slice(&boot.0.to_le_bytes());
    number(out, message.attempts.into());
    number(out, message.failures.into());
    number(out, message.max_attempts.into());
    number(out, message.visibility.0);
    number(out, message.changes);
    text(out, &message.content_type);
    text(out, &message.correlation);
    if let Some(Expiry { at, ttl }) = message.expires {
        number(out, at.tick.0);
        number(out, at.wall.0);
        number(out, ttl.0);
    }
    if let Some(since) = message.dead {
        number(out, since.0);
    }
    for json in message.attributes.iter().chain(&message.last_error) {
        text(out, json);
    }
    if let Some(draft) = &message.draft {
        out.extend_from_slice(draft.txn.as_str().as_bytes());
        fences(out, &draft.fences);
    }
}

fn fences(out: &mut Vec<u8>, fences: &[FenceCondition]) {
    count(out, fences.len());
    for condition in fences {
        text(out, condition.key.as_str());
        number(out, condition.token.0);
    }
}

fn attachments(out: &mut Vec<u8>, attachments: &[Attachment]) {
    count(out, attachments.len());
    for attachment in attachments {
        text(out, &attachment.id);
        text(out, &attachment.name);
        text(out, &attachment.content_type);
        number(out, attachment.created_at.0);
        number(out, attachment.updated_at.0);
        state(out, &attachment.body);
    }
}

fn lease(out: &mut Vec<u8>, lease: &Lease, boot: BootId) {
    text(out, lease.id.as_str());
    text(out, &lease.owner);
    out.extend_from_slice(lease.txn.as_str().as_bytes());
    out.push(u8::from(lease.recorded));
    number(out, lease.ttl.0);
    number(out, lease.granted_at.0);
    number(out, lease.expires.tick.0);
    number(out, lease.expires.wall.0);
    out.extend_from_slice(&boot.0.to_le_bytes());
}

fn ended(out: &mut Vec<u8>, ended: &Ended) {
    text(out, ended.lease.as_str());
    number(out, ended.fence.0);
    match &ended.how {
        End::Released => out.push(0),
        End::Committed => out.push(1),
        End::RolledBack => out.push(2),
        End::Lapsed { lost: false } => out.push(3),
        End::Lapsed { lost: true } => out.push(4),
        End::Revoked { reason } => {
            out.push(5);
            text(out, reason);
        }
    }
}

fn state(out: &mut Vec<u8>, state: &State) {
    out.extend_from_slice(&state.etag.0);
    number(out, state.bytes);
    match &state.content {
        Content::Inline(bytes) => {
            out.push(0);
            count(out, bytes.len());
            out.extend_from_slice(bytes);
        }
        Content::Blob(name) => {
            out.push(1);
            text(out, name);
        }
    }
}

fn staged(out: &mut Vec<u8>, staged: &Staged) {
    number(out, staged.version.0);
    out.push(match staged.hidden {
        None => 0,
        Some(false) => 1,
        Some(true) => 2,
    });
    fences(out, &staged.fences);
    match &staged.change {
        Change::Keep => out.push(0),
        Change::Remove => out.push(1),
        Change::Write(state) => {
            out.push(2);
            self::state(out, state);
        }
    }
}

fn remembered(out: &mut Vec<u8>, remembered: &Remembered) {
    out.extend_from_slice(&remembered.stamp.id.to_le_bytes());
    out.extend_from_slice(&remembered.stamp.request.to_le_bytes());
    number(out, remembered.at.0);
    match &remembered.answer {
        Answer::Released => out.push(0),
        Answer::Granted(lease) => {
            out.push(1);
            text(out, lease.as_str());
        }
        Answer::Written(answer) => {
            out.push(2);
            written(out, answer);
        }
    }
}

pub(super) fn txn(out: &mut Vec<u8>, record: &TxnRecord) {
    match &record.state {
        TxnState::Pending => out.push(0),
        TxnState::Decided(Outcome::Commit) => out.push(1),
        TxnState::Decided(Outcome::Rollback(Why::Asked)) => out.push(2),
        TxnState::Decided(Outcome::Rollback(Why::Lapsed)) => out.push(3),
        TxnState::Decided(Outcome::Rollback(Why::Revoked { key, reason })) => {
            out.push(4);
            text(out, key.as_str());
            text(out, reason);
        }
    }
    number(out, record.term);
    number(out, record.created_at.0);
    number(out, record.updated_at.0);
    number(out, record.expires_at.0);
    count(out, record.participants.len());
    for participant in &record.participants {
        text(out, participant.key.as_str());
        out.push(u8::from(participant.applied));
    }
}

pub(super) fn enqueued(out: &mut Vec<u8>, answer: &Enqueued) {
    out.extend_from_slice(&answer.request.to_le_bytes());
    out.extend_from_slice(&answer.id.0.to_le_bytes());
    number(out, answer.visible_at.0);
    number(out, answer.visibility.0);
    number(out, answer.max_attempts.into());
    number(out, answer.bytes);
}

fn written(out: &mut Vec<u8>, written: &Written) {
    text(out, written.lease.as_str());
    number(out, written.version.0);
    number(out, written.bytes);
    out.push(u8::from(written.hidden));
    out.push(u8::from(written.removed));
    out.push(u8::from(written.committed));
    out.push(u8::from(written.etag.is_some()));
    if let Some(etag) = &written.etag {
        out.extend_from_slice(&etag.0);
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    count(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn count(out: &mut Vec<u8>, count: usize) {
    number(out, count as u64);
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}
