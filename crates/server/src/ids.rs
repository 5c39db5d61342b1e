//! The only place of the server that draws randomness. Lease ids carry 96 random bits; a
//! transaction id says when it was minted, like every xid, and carries 64.

use lockd_core::ids::{LeaseId, TxnId, xid_text};
use lockd_core::time::UnixMillis;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Makes identifiers.
#[derive(Debug)]
pub struct Ids {
    rng: Mutex<StdRng>,
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
        Self { rng: Mutex::new(rng) }
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

    /// A time-ordered UUID, for correlation ids and generated keys.
    #[must_use]
    pub fn uuid(&self, wall: UnixMillis) -> uuid::Uuid {
        let mut random = [0; 10];
        self.rng.lock().fill_bytes(&mut random);
        uuid::Builder::from_unix_timestamp_millis(wall.0, &random).into_uuid()
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
