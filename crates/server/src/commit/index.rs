//! Small records beside the others, for those who look for many: who is held, where the messages
//! of a queue stand, which of them have lived too long. They follow the record in the same commit.

use bytes::Bytes;
use lockd_core::key::KeyName;
use lockd_core::message::Place;
use lockd_core::queue::QueueName;
use lockd_core::record::KeyRecord;
use lockd_core::time::{Deadline, Now, Tick, UnixMillis};
use lockd_store::{Expect, Name, Op, Write};

/// An empty record under this prefix says that the key has a lease.
pub(crate) const LEASE_PREFIX: &str = "l/";
/// Under this prefix, the queue and the id: where a message stands when nobody has it.
pub(crate) const STAND_PREFIX: &str = "r/";
/// An empty record under this prefix, a minute and a key says when a message has lived too long.
pub(crate) const EXPIRY_PREFIX: &str = "y/";
/// The indexes follow the record, in the same commit: who holds it, where it stands in its queue,
/// and when it has lived too long.
pub(super) fn index_ops(key: &KeyName, before: &KeyRecord, next: &KeyRecord) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut turn = |name: &dyn Fn() -> Name, before: Option<Bytes>, next: Option<Bytes>| {
        let write = match (before, next) {
            (before, next) if before == next => return,
            (_, Some(bytes)) => Write::Put(bytes),
            (_, None) => Write::Delete,
        };
        ops.push(Op { name: name(), expect: Expect::Any, write });
    };
    let held = |record: &KeyRecord| record.lease.as_ref().map(|_| Bytes::new());
    turn(&|| index_name(key), held(before), held(next));
    if next.message.is_some() {
        turn(&|| stand_name(key), stand(before), stand(next));
        let (was, will) = (expiry(before), expiry(next));
        for at in was.iter().chain(will.iter().filter(|at| Some(**at) != was)) {
            let entry =
                |known: Option<UnixMillis>| known.filter(|known| known == at).map(|_| Bytes::new());
            turn(&|| expiry_name(*at, key), entry(was), entry(will));
        }
    }
    ops
}

/// When a message is looked at because it may have lived too long. The dead are left alone.
fn expiry(record: &KeyRecord) -> Option<UnixMillis> {
    let message = record.message.as_ref().filter(|_| !record.gone)?;
    message.expires.filter(|_| message.dead.is_none()).map(|expiry| expiry.at.wall)
}

/// Where a message stands when nobody has it: since or until when, and whether it is dead. It says
/// so while somebody has it too, so that a delivery does not write it again.
fn stand(record: &KeyRecord) -> Option<Bytes> {
    let message = record.message.as_ref().filter(|_| !record.gone)?;
    let (kind, at) = match message.dead {
        Some(since) => (DEAD, since),
        None if message.draft.is_some() => (DRAFT, message.visible.wall),
        None => (QUEUED, message.visible.wall),
    };
    let [b0, b1, b2, b3, b4, b5, b6, b7] = at.0.to_be_bytes();
    Some(Bytes::copy_from_slice(&[kind, b0, b1, b2, b3, b4, b5, b6, b7]))
}

const QUEUED: u8 = 0;
const DEAD: u8 = 1;
/// Its transaction is not decided, as far as is known here.
const DRAFT: u8 = 2;

/// What [`stand`] has written.
pub(crate) fn read_stand(bytes: &[u8], now: Now) -> Option<Place> {
    let (kind, at) = bytes.split_first()?;
    let at = UnixMillis(u64::from_be_bytes(at.try_into().ok()?));
    match *kind {
        QUEUED => {
            // Its own record knows better, after a clock was set.
            let (ahead, behind) =
                (at.0.saturating_sub(now.wall.0), now.wall.0.saturating_sub(at.0));
            let tick = Tick(now.tick.0.saturating_add(ahead).saturating_sub(behind));
            Some(Place::Queued(Deadline { tick, wall: at }))
        }
        DEAD => Some(Place::Dead(at)),
        DRAFT => Some(Place::Draft),
        _ => None,
    }
}

/// The queue's part of the name, then the id.
pub(super) fn stand_name(key: &KeyName) -> Name {
    match QueueName::of(key) {
        Some((queue, id, _)) => format!("{}{id}", stand_prefix(&queue)).into(),
        None => [STAND_PREFIX, key.as_str()].concat().into(),
    }
}

/// What follows the name of a queue sorts before all that a name is made of: the entries of the
/// queues stand in the order of their names.
pub(crate) fn stand_prefix(queue: &QueueName) -> String {
    [STAND_PREFIX, queue.as_str(), "!"].concat()
}

pub(crate) const MINUTE_MS: u64 = 60_000;

/// The minute that begins after this moment, as a name that sorts by time.
fn expiry_name(at: UnixMillis, key: &KeyName) -> Name {
    format!("{EXPIRY_PREFIX}{:012}/{}", at.0 / MINUTE_MS + 1, key.as_str()).into()
}

pub(super) fn index_name(key: &KeyName) -> Name {
    [LEASE_PREFIX, key.as_str()].concat().into()
}
