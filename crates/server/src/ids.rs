//! The only place of the server that draws randomness. Lease ids carry 96 random bits; a
//! transaction id says when it was minted, like every xid, and carries 64.

use lockd_core::ids::{LeaseId, TxnId, xid_bytes, xid_text};
use lockd_core::queue::MessageId;
use lockd_core::time::UnixMillis;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sha2::{Digest as _, Sha256};

/// Makes identifiers.
#[derive(Debug)]
pub struct Ids {
    rng: Mutex<StdRng>,
    /// The time and count in the latest message id.
    latest: Mutex<u64>,
}

impl Ids {
    /// Seeded by the operating system.
    #[must_use]
    pub fn random() -> Self {
        Self::from_rng(rand::make_rng())
    }

    /// The same seed gives the same ids: for simulations only.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::from_rng(StdRng::seed_from_u64(seed))
    }

    fn from_rng(rng: StdRng) -> Self {
        Self { rng: Mutex::new(rng), latest: Mutex::new(0) }
    }

    #[must_use]
    pub fn lease_id(&self) -> LeaseId {
        LeaseId::new(&xid_text(self.bytes()))
    }

    /// Seconds, then 64 random bits: who knows the id may join the transaction.
    #[must_use]
    #[expect(clippy::expect_used, reason = "xid_text writes nothing but the alphabet it reads")]
    pub fn txn_id(&self, wall: UnixMillis) -> TxnId {
        let [_, _, _, _, seconds @ ..] = (wall.0 / 1_000).to_be_bytes();
        let mut bytes: [u8; 12] = self.bytes();
        if let Some(first) = bytes.first_chunk_mut() {
            *first = seconds;
        }
        let text = xid_text(bytes);
        TxnId::parse(&text).expect("an xid")
    }

    /// As [`Ids::txn_id`], for a server that is not alone: 48 random bits, and 16 by which other
    /// servers know that a server made it, and not a client.
    #[must_use]
    #[expect(clippy::expect_used, reason = "xid_text writes nothing but the alphabet it reads")]
    pub fn marked_txn_id(&self, wall: UnixMillis) -> TxnId {
        let [_, _, _, _, seconds @ ..] = (wall.0 / 1_000).to_be_bytes();
        let mut bytes: [u8; 12] = self.bytes();
        if let Some(first) = bytes.first_chunk_mut() {
            *first = seconds;
        }
        let mark = mark(&bytes);
        if let Some(last) = bytes.last_chunk_mut() {
            *last = mark;
        }
        TxnId::parse(&xid_text(bytes)).expect("an xid")
    }

    /// A time-ordered UUID, for correlation ids and generated keys.
    #[must_use]
    pub fn uuid(&self, wall: UnixMillis) -> uuid::Uuid {
        let mut random = [0; 10];
        self.rng.lock().fill_bytes(&mut random);
        uuid::Builder::from_unix_timestamp_millis(wall.0, &random).into_uuid()
    }

    /// A time-ordered UUID that sorts behind all that were given before: messages that become
    /// visible in the same millisecond keep their order.
    #[must_use]
    pub fn message_id(&self, wall: UnixMillis) -> MessageId {
        // 48 bits of time and 12 bits to count within it; where they do not suffice, time runs
        // ahead a little.
        let count = {
            let mut latest = self.latest.lock();
            *latest = (wall.0 << 12).max(*latest + 1);
            *latest
        };
        let time = u128::from((count >> 12) & 0xffff_ffff_ffff) << 80;
        let within = u128::from(count & 0xfff) << 64;
        let random = u128::from(self.number() >> 2);
        MessageId(time | (7 << 76) | within | (0b10 << 62) | random)
    }

    /// A name that was never given before.
    #[must_use]
    pub fn unique(&self) -> String {
        xid_text(self.bytes())
    }

    #[must_use]
    pub fn number(&self) -> u64 {
        self.rng.lock().next_u64()
    }

    fn bytes(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        self.rng.lock().fill_bytes(&mut bytes);
        bytes
    }
}

/// Whether [`Ids::marked_txn_id`] may have made it; one in 65536 of those that it did not has the
/// mark too.
pub(crate) fn is_marked(txn: TxnId) -> bool {
    xid_bytes(txn.as_str()).is_some_and(|bytes| bytes.last_chunk() == Some(&mark(&bytes)))
}

/// Follows from the first ten bytes.
fn mark(bytes: &[u8; 12]) -> [u8; 2] {
    let first = bytes.first_chunk::<10>().copied().unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(first).into();
    digest.first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lockd_core::time::UnixMillis;

    use super::{Ids, is_marked};

    #[test]
    fn servers_know_the_transactions_of_servers() {
        let ids = Ids::seeded(2);
        let now = UnixMillis(1_800_000_000_000);
        assert!((0..1_000).all(|_| is_marked(ids.marked_txn_id(now))));
        assert!((0..1_000).filter(|_| is_marked(ids.txn_id(now))).count() < 5);
    }

    #[test]
    fn message_ids_are_uuids_of_version_7_and_only_grow() {
        let ids = Ids::seeded(1);
        let now = UnixMillis(1_800_000_000_000);
        let made: Vec<_> = (0..10_000).map(|_| ids.message_id(now)).collect();
        assert!(made.is_sorted_by(|one, next| one < next));
        let back = ids.message_id(UnixMillis(now.0 - 5_000));
        assert!(made.last().is_some_and(|last| *last < back), "a clock set back changes nothing");
        for id in [made[0], back] {
            let uuid = uuid::Uuid::parse_str(&id.to_string()).unwrap();
            assert_eq!(uuid.get_version_num(), 7);
            assert_eq!(uuid.get_variant(), uuid::Variant::RFC4122);
            let (seconds, _) = uuid.get_timestamp().unwrap().to_unix();
            assert_eq!(seconds, 1_800_000_000);
        }
    }
}
