//! What an object holds besides the bytes of its record: a revision, whether the record is there at
//! all, and the nonces of the latest writes. By its nonce a writer finds out that a write whose
//! answer it never saw has happened, also when others have written on top of it. A nonce also keeps
//! two writes of the same bytes apart where a store derives its ETags from the content.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::port::{Revision, Stored};

/// So many writes may come on top of one before its writer no longer recognises it.
const NONCES_MAX: usize = 16;
const MAGIC: &[u8; 4] = b"LKR1";
const DELETED: u8 = 1;
/// Magic, flags, number of nonces, revision, checksum.
const FIXED_BYTES: usize = 4 + 1 + 1 + 8 + 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    /// The record was deleted: a tombstone holds its place.
    pub(super) deleted: bool,
    pub(super) revision: Revision,
    /// The newest first.
    nonces: Vec<u128>,
    bytes: Bytes,
}

impl Envelope {
    /// An object that is larger is no tombstone.
    pub(super) const TOMBSTONE_BYTES_MAX: u64 = (FIXED_BYTES + NONCES_MAX * 16) as u64;

    /// What a write puts in the place of `before`. `None` for the bytes is a tombstone.
    pub(super) fn after(before: Option<&Self>, nonce: u128, bytes: Option<Bytes>) -> Self {
        let revision = match before {
            Some(before) => Revision(before.revision.0.wrapping_add(1).max(1)),
            // Begins anywhere, so that a name that was used before does not repeat itself.
            None => Revision(u64::try_from(nonce >> 66).unwrap_or(0).max(1)),
        };
        let older = before.map(|before| before.nonces.as_slice()).unwrap_or_default();
        let nonces = [nonce].iter().chain(older).take(NONCES_MAX).copied().collect();
        Self { deleted: bytes.is_none(), revision, nonces, bytes: bytes.unwrap_or_default() }
    }

    /// Whether that write is one of the latest.
    pub(super) fn has(&self, nonce: u128) -> bool {
        self.nonces.contains(&nonce)
    }

    /// Whether a write that made this revision must still be among the latest, if it happened.
    pub(super) fn remembers(&self, revision: Revision) -> bool {
        let since = self.revision.0.checked_sub(revision.0);
        since.is_some_and(|since| since < NONCES_MAX as u64)
    }

    /// The record, unless it was deleted.
    pub(super) fn stored(&self) -> Option<Stored> {
        (!self.deleted).then(|| Stored { bytes: self.bytes.clone(), revision: self.revision })
    }

    pub(super) fn weight(&self) -> usize {
        self.bytes.len() + self.nonces.len() * 16
    }

    pub(super) fn encode(&self) -> Bytes {
        let size = FIXED_BYTES + self.nonces.len() * 16 + self.bytes.len();
        let mut out = BytesMut::with_capacity(size);
        out.put_slice(MAGIC);
        out.put_u8(if self.deleted { DELETED } else { 0 });
        out.put_u8(u8::try_from(self.nonces.len()).unwrap_or(0));
        out.put_u64_le(self.revision.0);
        for nonce in &self.nonces {
            out.put_u128_le(*nonce);
        }
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&out), &self.bytes);
        out.put_u32_le(checksum);
        out.put_slice(&self.bytes);
        out.freeze()
    }

    /// `None`: these bytes were not written by [`Envelope::encode`].
    pub(super) fn decode(object: &Bytes) -> Option<Self> {
        let mut rest = object.clone();
        let magic = rest.get(..MAGIC.len())?;
        if magic != MAGIC || rest.len() < FIXED_BYTES {
            return None;
        }
        rest.advance(MAGIC.len());
        let (flags, count) = (rest.get_u8(), usize::from(rest.get_u8()));
        let revision = Revision(rest.get_u64_le());
        if count > NONCES_MAX || rest.len() < count * 16 + 4 {
            return None;
        }
        let nonces = (0..count).map(|_| rest.get_u128_le()).collect();
        let head = object.get(..object.len() - rest.len())?;
        let checksum = rest.get_u32_le();
        if checksum != crc32c::crc32c_append(crc32c::crc32c(head), &rest) {
            return None;
        }
        Some(Self { deleted: flags & DELETED != 0, revision, nonces, bytes: rest })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::{Envelope, NONCES_MAX};

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes: Vec<u8>, nonce: u128, deleted: bool) {
            let bytes = (!deleted).then(|| Bytes::from(bytes));
            let envelope = Envelope::after(None, nonce, bytes);
            prop_assert_eq!(Envelope::decode(&envelope.encode()), Some(envelope));
        }

        #[test]
        fn damage_is_found(bytes: Vec<u8>, at: usize, bit in 0..8_u8) {
            let encoded = Envelope::after(None, 7, Some(Bytes::from(bytes))).encode();
            let mut broken = encoded.to_vec();
            let at = at % broken.len();
            broken[at] ^= 1 << bit;
            prop_assert_eq!(Envelope::decode(&Bytes::from(broken)), None);
            prop_assert_eq!(Envelope::decode(&encoded.slice(..at)), None);
        }
    }

    #[test]
    fn the_latest_writes_are_remembered_and_revisions_go_on() {
        let mut envelope = Envelope::after(None, 0, Some(Bytes::new()));
        let first = envelope.revision;
        for nonce in 1..=16_u128 {
            envelope = Envelope::after(Some(&envelope), nonce, Some(Bytes::new()));
        }
        assert!(!envelope.has(0) && (1..=16).all(|nonce| envelope.has(nonce)));
        assert_eq!(envelope.revision.0, first.0 + 16);
        assert!(!envelope.remembers(first) && envelope.remembers(crate::Revision(first.0 + 1)));
        assert_eq!(NONCES_MAX, 16);
    }
}
