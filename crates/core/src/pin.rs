//! Holding a token still while another record is written, for stores that write one record at a
//! time. A pin in the record of the fenced key names the records that are about to be written; it
//! is there before they are. Whoever raises the token marks the pins as over in the same write,
//! and then touches every record they name, before anybody hears of the new token: a write that is
//! still under way finds its record changed, and one that came through came before.

use crate::fence::Fence;
use crate::limits::PINS_MAX;
use crate::record::{Decided, KeyRecord};

/// Different for every pin that was ever made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PinId(pub u128);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub id: PinId,
    /// The stored names of the records that are written under it.
    pub targets: Vec<Box<str>>,
    /// The token was raised: what is named must be touched.
    pub over: bool,
}

/// What became of the wish to hold a token still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// It stays what it is until the pin is gone or over.
    Still(Fence),
    /// It is not the one that was wished for, and was left alone.
    Other(Fence),
}

/// There are too many pins already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The token of a key; one that was never granted has none, which is zero.
#[must_use]
pub fn token(record: &KeyRecord) -> Fence {
    if record.stored { record.fence } else { Fence(0) }
}

/// Holds the token still if it is the one that is wished for.
///
/// # Errors
/// When there are too many pins: [`give_up`] makes room.
pub fn pin(
    record: &KeyRecord,
    wished: Fence,
    id: PinId,
    targets: &[Box<str>],
) -> Result<Decided<Pinned>, Full> {
    let token = token(record);
    if token != wished {
        return Ok(Decided::unchanged(Pinned::Other(token)));
    }
    if record.pins.len() >= PINS_MAX {
        return Err(Full);
    }
    let mut next = record.clone();
    next.stored = true;
    next.pins.push(Pin { id, targets: targets.into(), over: false });
    Ok(Decided { record: Some(next), answer: Pinned::Still(token), effects: Vec::new() })
}

/// Takes pins away: what they name was written, or touched, or will not be written any more.
#[must_use]
pub fn unpin(record: &KeyRecord, ids: &[PinId]) -> Decided<()> {
    if !record.pins.iter().any(|pin| ids.contains(&pin.id)) {
        return Decided::unchanged(());
    }
    let mut next = record.clone();
    next.pins.retain(|pin| !ids.contains(&pin.id));
    Decided { record: Some(next), answer: (), effects: Vec::new() }
}

/// Declares all pins over without a new token: they were left behind, or are too many. Says which.
#[must_use]
pub fn give_up(record: &KeyRecord) -> Decided<Vec<PinId>> {
    let over = record.pins.iter().map(|pin| pin.id).collect();
    if record.pins.iter().all(|pin| pin.over) {
        return Decided::unchanged(over);
    }
    let mut next = record.clone();
    next.pins.iter_mut().for_each(|pin| pin.over = true);
    Decided { record: Some(next), answer: over, effects: Vec::new() }
}

/// The next token. What was held still under the one before is over.
pub(crate) fn raise(record: &mut KeyRecord) {
    record.fence = record.fence.next();
    record.pins.iter_mut().for_each(|pin| pin.over = true);
}

/// Pins whose records must be touched before the token may be acted upon.
pub fn over(record: &KeyRecord) -> impl Iterator<Item = &Pin> {
    record.pins.iter().filter(|pin| pin.over)
}

#[cfg(test)]
mod tests {
    use super::{Full, PINS_MAX, Pin, PinId, Pinned, give_up, over, pin, raise, token, unpin};
    use crate::fence::Fence;
    use crate::record::KeyRecord;

    fn granted() -> KeyRecord {
        KeyRecord { stored: true, fence: Fence(7), ..KeyRecord::default() }
    }

    fn pinned(record: &KeyRecord, id: u128) -> KeyRecord {
        let decided = pin(record, token(record), PinId(id), &["k/a".into()]).unwrap();
        assert_eq!(decided.answer, Pinned::Still(token(record)));
        decided.record.unwrap()
    }

    #[test]
    fn a_token_that_is_not_the_one_is_told_and_left_alone() {
        let decided = pin(&granted(), Fence(6), PinId(1), &["k/a".into()]).unwrap();
        assert_eq!((decided.record, decided.answer), (None, Pinned::Other(Fence(7))));
    }

    #[test]
    fn a_key_that_was_never_granted_can_be_held_still_at_zero() {
        let absent = KeyRecord::absent(Fence(0));
        assert_eq!(token(&pinned(&absent, 1)), Fence(0));
    }

    #[test]
    fn a_raised_token_ends_every_pin_and_forgets_none() {
        let mut record = pinned(&pinned(&granted(), 1), 2);
        assert_eq!(over(&record).count(), 0);
        raise(&mut record);
        assert_eq!(record.fence, Fence(8));
        assert_eq!(over(&record).map(|pin| pin.id).collect::<Vec<_>>(), [PinId(1), PinId(2)]);
        // One that comes under the new token is none of them.
        let record = pinned(&record, 3);
        let left = unpin(&record, &[PinId(1), PinId(2)]).record.unwrap();
        let stays = Pin { id: PinId(3), targets: vec!["k/a".into()], over: false };
        assert_eq!(left.pins, [stays]);
        assert_eq!(unpin(&left, &[PinId(1)]).record, None, "gone already");
    }

    #[test]
    fn pins_are_bounded_and_giving_up_ends_them() {
        let mut record = granted();
        for id in 0..PINS_MAX {
            record = pinned(&record, id as u128);
        }
        assert_eq!(pin(&record, Fence(7), PinId(9_999), &[]), Err(Full));
        let given_up = give_up(&record);
        let record = given_up.record.unwrap();
        assert_eq!((token(&record), over(&record).count()), (Fence(7), PINS_MAX));
        let again = give_up(&record);
        assert_eq!((again.record, &again.answer), (None, &given_up.answer));
        let room = unpin(&record, &given_up.answer).record.unwrap();
        assert!(pin(&room, Fence(7), PinId(9_999), &[]).is_ok());
    }
}
