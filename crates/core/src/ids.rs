//! Identifiers that the rules compare but never make. A lease id is a secret between server and
//! holder; a transaction id has the xid form: 20 characters of `0-9a-v`.

use std::fmt;

/// The secret by which a holder proves its lease. Compared, never interpreted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(Box<str>);

impl LeaseId {
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LeaseId {
    // Never in a log, whoever prints the record.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseId(..)")
    }
}

/// A transaction's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId([u8; 20]);

/// The text is not 20 characters of the xid alphabet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a transaction id has 20 characters out of 0-9 and a-v")]
pub struct BadTxnId;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

impl TxnId {
    /// # Errors
    /// When the text is not an xid.
    pub fn parse(text: &str) -> Result<Self, BadTxnId> {
        let bytes: [u8; 20] = text.as_bytes().try_into().map_err(|_| BadTxnId)?;
        if bytes.iter().all(|byte| ALPHABET.contains(byte)) {
            Ok(Self(bytes))
        } else {
            Err(BadTxnId)
        }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked in `parse`: every byte is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TxnId(..)")
    }
}

/// Writes 12 bytes in the xid alphabet.
#[must_use]
pub fn xid_text(bytes: [u8; 12]) -> String {
    let mut text = String::with_capacity(20);
    let mut bits: u32 = 0;
    let mut count = 0;
    for byte in bytes {
        bits = (bits << 8) | u32::from(byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(letter(bits >> count));
        }
    }
    text.push(letter(bits << (5 - count)));
    text
}

/// Reads what [`xid_text`] wrote.
#[must_use]
pub fn xid_bytes(text: &str) -> Option<[u8; 12]> {
    let mut bytes = [0; 12];
    let mut places = bytes.iter_mut();
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == letter)?;
        bits = (bits << 5) | u32::try_from(value).ok()?;
        count += 5;
        if count >= 8 {
            count -= 8;
            *places.next()? = u8::try_from((bits >> count) & 0xff).ok()?;
        }
    }
    places.next().is_none().then_some(bytes)
}

fn letter(bits: u32) -> char {
    let index = (bits & 31) as usize;
    ALPHABET.get(index).map_or('0', |byte| char::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::{TxnId, xid_bytes, xid_text};

    #[test]
    fn xids_are_read_as_they_were_written() {
        for bytes in [[0; 12], [255; 12], *b"lockd of lo!"] {
            assert_eq!(xid_bytes(&xid_text(bytes)), Some(bytes));
        }
        assert_eq!(xid_bytes("too-short"), None);
        assert_eq!(xid_bytes(&"0".repeat(19)), None);
    }

    #[test]
    fn xid_text_parses_back_and_is_ordered_like_its_bytes() {
        let low = xid_text([0; 12]);
        let high = xid_text([255; 12]);
        assert_eq!(low, "00000000000000000000");
        assert_eq!(high, "vvvvvvvvvvvvvvvvvvvg");
        assert!(low < high);
        assert_eq!(TxnId::parse(&high).unwrap().as_str(), high);
    }

    #[test]
    fn a_known_xid_encodes_as_the_public_libraries_do() {
        // From the xid project's own documentation of its test vector.
        let bytes = [0x4d, 0x88, 0xe1, 0x5b, 0x60, 0xf4, 0x86, 0xe4, 0x28, 0x41, 0x2d, 0xc9];
        assert_eq!(xid_text(bytes), "9m4e2mr0ui3e8a215n4g");
    }

    #[test]
    fn other_lengths_and_letters_are_refused() {
        for bad in
            ["", "abc", "wwwwwwwwwwwwwwwwwwww", "AAAAAAAAAAAAAAAAAAAA", "000000000000000000000"]
        {
            assert!(TxnId::parse(bad).is_err(), "{bad}");
        }
    }
}
