//! Bytes to fields. Every read is bounded by what is left; nothing here can panic or allocate
//! more than the bytes it was given.

use bytes::Bytes;
use lockd_core::answer::{Answer, Remembered, Stamp, Written};
use lockd_core::fence::{Fence, FenceCondition};
use lockd_core::ids::{LeaseId, TxnId};
use lockd_core::key::KeyName;
use lockd_core::limits::{
    ANSWERS_MAX, ATTACHMENTS_MAX, FENCES_MAX, PARTICIPANTS_MAX, PIN_TARGETS_MAX, PINS_MAX,
};
use lockd_core::message::{Draft, Enqueued, Expiry, Message};
use lockd_core::pin::{Pin, PinId};
use lockd_core::queue::MessageId;
use lockd_core::record::{
    Attachment, Change, Content, End, Ended, Etag, KeyRecord, Lease, Staged, State, Version,
};
use lockd_core::time::{BootId, Deadline, Span, Tick, Timeline, UnixMillis};
use lockd_core::txn::{Outcome, Participant, TxnRecord, TxnState, Why};

use super::CodecError;
use super::write::{
    HAS_ATTACHMENTS, HAS_ATTRIBUTES, HAS_ENDED, HAS_EXPIRY, HAS_LAST_ERROR, HAS_LEASE, HAS_STAGED,
    HAS_STAGED_ATTACHMENTS, HAS_STATE, IS_DEAD, IS_DRAFT, IS_HIDDEN, IS_MESSAGE, IS_STATEFUL,
};

type Read<T> = Result<T, CodecError>;

pub(super) struct Reader<'a> {
    /// All of it, for documents, which are not copied.
    whole: &'a Bytes,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads what follows the header.
    pub(super) fn new(whole: &'a Bytes, body: &'a [u8]) -> Self {
        Self { whole, rest: body }
    }

    pub(super) fn finish(&self) -> Read<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }

    fn malformed(&self) -> CodecError {
        CodecError::Malformed(self.whole.len() - self.rest.len())
    }

    fn take(&mut self, count: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.malformed())?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let at = self.malformed();
        self.take(N)?.try_into().map_err(|_| at)
    }

    fn byte(&mut self) -> Read<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn flag(&mut self) -> Read<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed()),
        }
    }

    fn number(&mut self) -> Read<u64> {
        let mut value: u64 = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed())
    }

    fn count(&mut self, max: usize) -> Read<usize> {
        let count = usize::try_from(self.number()?).map_err(|_| self.malformed())?;
        if count <= max { Ok(count) } else { Err(self.malformed()) }
    }

    fn slice(&mut self) -> Read<&'a [u8]> {
        let count = self.count(self.rest.len())?;
        self.take(count)
    }

    /// Part of the whole, which lives on with it.
    fn document(&mut self) -> Read<Bytes> {
        Ok(self.whole.slice_ref(self.slice()?))
    }

    fn text(&mut self) -> Read<&'a str> {
        let at = self.malformed();
        std::str::from_utf8(self.slice()?).map_err(|_| at)
    }
}

pub(super) fn record(reader: &mut Reader<'_>, timeline: &Timeline) -> Read<KeyRecord> {
    let flags = reader.byte()?;
    let has = |bit: u8| flags & bit != 0;
    let mut record = KeyRecord {
        stored: true,
        hidden: has(IS_HIDDEN),
        fence: Fence(reader.number()?),
        version: Version(reader.number()?),
        updated_at: UnixMillis(reader.number()?),
        ..KeyRecord::default()
    };
    if has(HAS_LEASE) {
        record.lease = Some(lease(reader, timeline)?);
    }
    if has(HAS_ENDED) {
        record.ended = Some(ended(reader)?);
    }
    for _ in 0..reader.count(ANSWERS_MAX)? {
        record.answers.push(remembered(reader)?);
    }
    if has(HAS_STATE) {
        record.state = Some(state(reader)?);
    }
    if has(HAS_STAGED) {
        record.staged = Some(staged(reader)?);
    }
    if has(HAS_ATTACHMENTS) {
        record.attachments = attachments(reader)?;
    }
    if has(HAS_STAGED_ATTACHMENTS) {
        let staged = record.staged.as_mut().ok_or_else(|| reader.malformed())?;
        staged.attachments = Some(attachments(reader)?);
    }
    if has(IS_MESSAGE) {
        record.message = Some(Box::new(message(reader, timeline)?));
    }
    if !reader.rest.is_empty() {
        record.pins = pins(reader)?;
    }
    Ok(record)
}

fn pins(reader: &mut Reader<'_>) -> Read<Vec<Pin>> {
    let mut pins = Vec::new();
    for _ in 0..reader.count(PINS_MAX)? {
        let id = PinId(u128::from_le_bytes(reader.array()?));
        let over = reader.flag()?;
        let mut targets = Vec::new();
        for _ in 0..reader.count(PIN_TARGETS_MAX)? {
            targets.push(reader.text()?.into());
        }
        pins.push(Pin { id, targets, over });
    }
    Ok(pins)
}

fn message(reader: &mut Reader<'_>, timeline: &Timeline) -> Read<Message> {
    let flags = reader.byte()?;
    let has = |bit: u8| flags & bit != 0;
    let mut message = Message {
        stateful: has(IS_STATEFUL),
        enqueued_at: UnixMillis(reader.number()?),
        ..Message::default()
    };
    let (tick, wall) = (Tick(reader.number()?), UnixMillis(reader.number()?));
    message.hidden_for = Span(reader.number()?);
    let boot = BootId(u128::from_le_bytes(reader.array()?));
    let placed = timeline.place(Deadline { tick, wall }, boot, message.hidden_for);
    // What was promised stays what is shown, and what the index says.
    message.visible = Deadline { tick: placed.tick, wall };
    message.attempts = small(reader)?;
    message.failures = small(reader)?;
    message.max_attempts = small(reader)?;
    message.visibility = Span(reader.number()?);
    message.changes = reader.number()?;
    message.content_type = reader.text()?.into();
    message.correlation = reader.text()?.into();
    if has(HAS_EXPIRY) {
        let (tick, wall) = (Tick(reader.number()?), UnixMillis(reader.number()?));
        let ttl = Span(reader.number()?);
        let placed = timeline.place(Deadline { tick, wall }, boot, ttl);
        message.expires = Some(Expiry { at: Deadline { tick: placed.tick, wall }, ttl });
    }
    if has(IS_DEAD) {
        message.dead = Some(UnixMillis(reader.number()?));
    }
    if has(HAS_ATTRIBUTES) {
        message.attributes = Some(reader.text()?.into());
    }
    if has(HAS_LAST_ERROR) {
        message.last_error = Some(reader.text()?.into());
    }
    if has(IS_DRAFT) {
        message.draft = Some(Draft { txn: txn_id(reader)?, fences: fences(reader)? });
    }
    Ok(message)
}

fn small(reader: &mut Reader<'_>) -> Read<u32> {
    u32::try_from(reader.number()?).map_err(|_| reader.malformed())
}

fn txn_id(reader: &mut Reader<'_>) -> Read<TxnId> {
    let txn = std::str::from_utf8(reader.take(20)?).ok().and_then(|text| TxnId::parse(text).ok());
    txn.ok_or_else(|| reader.malformed())
}

fn fences(reader: &mut Reader<'_>) -> Read<Vec<FenceCondition>> {
    let mut fences = Vec::new();
    for _ in 0..reader.count(FENCES_MAX)? {
        let key = key_name(reader)?;
        fences.push(FenceCondition { key, token: Fence(reader.number()?) });
    }
    Ok(fences)
}

fn attachments(reader: &mut Reader<'_>) -> Read<Vec<Attachment>> {
    let mut attachments = Vec::new();
    for _ in 0..reader.count(ATTACHMENTS_MAX)? {
        attachments.push(Attachment {
            id: reader.text()?.into(),
            name: reader.text()?.into(),
            content_type: reader.text()?.into(),
            created_at: UnixMillis(reader.number()?),
            updated_at: UnixMillis(reader.number()?),
            body: state(reader)?,
        });
    }
    Ok(attachments)
}

fn lease(reader: &mut Reader<'_>, timeline: &Timeline) -> Read<Lease> {
    let id = LeaseId::new(reader.text()?);
    let owner = reader.text()?.into();
    let txn = txn_id(reader)?;
    let recorded = reader.flag()?;
    let ttl = Span(reader.number()?);
    let granted_at = UnixMillis(reader.number()?);
    let tick = Tick(reader.number()?);
    let wall = UnixMillis(reader.number()?);
    let boot = BootId(u128::from_le_bytes(reader.array()?));
    let expires = timeline.place(Deadline { tick, wall }, boot, ttl);
    Ok(Lease { id, owner, txn, recorded, ttl, granted_at, expires })
}

fn ended(reader: &mut Reader<'_>) -> Read<Ended> {
    let lease = LeaseId::new(reader.text()?);
    let fence = Fence(reader.number()?);
    let how = match reader.byte()? {
        0 => End::Released,
        1 => End::Committed,
        2 => End::RolledBack,
        3 => End::Lapsed { lost: false },
        4 => End::Lapsed { lost: true },
        5 => End::Revoked { reason: reader.text()?.into() },
        _ => return Err(reader.malformed()),
    };
    Ok(Ended { lease, fence, how })
}

fn state(reader: &mut Reader<'_>) -> Read<State> {
    let etag = Etag(reader.array()?);
    let bytes = reader.number()?;
    let content = match reader.byte()? {
        0 => Content::Inline(reader.document()?),
        1 => Content::Blob(reader.text()?.into()),
        _ => return Err(reader.malformed()),
    };
    Ok(State { etag, bytes, content })
}

fn staged(reader: &mut Reader<'_>) -> Read<Staged> {
    let version = Version(reader.number()?);
    let hidden = match reader.byte()? {
        0 => None,
        1 => Some(false),
        2 => Some(true),
        _ => return Err(reader.malformed()),
    };
    let fences = fences(reader)?;
    let change = match reader.byte()? {
        0 => Change::Keep,
        1 => Change::Remove,
        2 => Change::Write(state(reader)?),
        _ => return Err(reader.malformed()),
    };
    Ok(Staged { version, change, attachments: None, hidden, fences })
}

fn remembered(reader: &mut Reader<'_>) -> Read<Remembered> {
    let id = u128::from_le_bytes(reader.array()?);
    let request = u128::from_le_bytes(reader.array()?);
    let at = UnixMillis(reader.number()?);
    let answer = match reader.byte()? {
        0 => Answer::Released,
        1 => Answer::Granted(LeaseId::new(reader.text()?)),
        2 => Answer::Written(written(reader)?),
        _ => return Err(reader.malformed()),
    };
    Ok(Remembered { stamp: Stamp { id, request }, at, answer })
}

pub(super) fn txn(reader: &mut Reader<'_>) -> Read<TxnRecord> {
    let state = match reader.byte()? {
        0 => TxnState::Pending,
        1 => TxnState::Decided(Outcome::Commit),
        2 => TxnState::Decided(Outcome::Rollback(Why::Asked)),
        3 => TxnState::Decided(Outcome::Rollback(Why::Lapsed)),
        4 => {
            let (key, reason) = (key_name(reader)?, reader.text()?.into());
            TxnState::Decided(Outcome::Rollback(Why::Revoked { key, reason }))
        }
        _ => return Err(reader.malformed()),
    };
    let term = reader.number()?;
    let created_at = UnixMillis(reader.number()?);
    let updated_at = UnixMillis(reader.number()?);
    let expires_at = UnixMillis(reader.number()?);
    let mut participants = Vec::new();
    for _ in 0..reader.count(PARTICIPANTS_MAX)? {
        participants.push(Participant { key: key_name(reader)?, applied: reader.flag()? });
    }
    Ok(TxnRecord { state, participants, term, created_at, updated_at, expires_at })
}

pub(super) fn enqueued(reader: &mut Reader<'_>) -> Read<Enqueued> {
    Ok(Enqueued {
        request: u128::from_le_bytes(reader.array()?),
        id: MessageId(u128::from_le_bytes(reader.array()?)),
        visible_at: UnixMillis(reader.number()?),
        visibility: Span(reader.number()?),
        max_attempts: small(reader)?,
        bytes: reader.number()?,
    })
}

fn key_name(reader: &mut Reader<'_>) -> Read<KeyName> {
    KeyName::parse_full(reader.text()?).map_err(|_| reader.malformed())
}

fn written(reader: &mut Reader<'_>) -> Read<Written> {
    Ok(Written {
        lease: LeaseId::new(reader.text()?),
        version: Version(reader.number()?),
        bytes: reader.number()?,
        hidden: reader.flag()?,
        removed: reader.flag()?,
        committed: reader.flag()?,
        etag: if reader.flag()? { Some(Etag(reader.array()?)) } else { None },
    })
}
