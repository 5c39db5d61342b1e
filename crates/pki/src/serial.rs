//! Serial numbers of certificates and the list of those that are revoked.
//!
//! A serial is compared as the number it is: leading zeros and upper case do not matter, however
//! somebody wrote it down. Who consults the list, and when, is for `credentials`.

use std::collections::BTreeSet;
use std::fmt;

/// Octets of the longest serial that X.509 allows.
const OCTETS_MAX: usize = 20;

/// The serial number of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial([u8; OCTETS_MAX]);

/// Why something is not a serial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SerialRefused {
    #[error("a serial has only hexadecimal digits, and \"{0}\" has others")]
    NotHex(String),
    #[error("a serial has at most 40 hexadecimal digits")]
    TooLong,
    #[error("a serial is missing")]
    Empty,
}

impl Serial {
    /// Reads hexadecimal digits in either case; zeros in front are dropped.
    ///
    /// # Errors
    /// When there are other characters, or more digits than a serial can have.
    pub fn parse(text: &str) -> Result<Self, SerialRefused> {
        let text = text.trim();
        if text.is_empty() {
            return Err(SerialRefused::Empty);
        }
        let digits = text.trim_start_matches('0');
        if digits.len() > OCTETS_MAX * 2 {
            return Err(SerialRefused::TooLong);
        }
        let mut octets = [0; OCTETS_MAX];
        // From the last digit to the first, so that an odd number of them needs no special case.
        for (position, digit) in digits.chars().rev().enumerate() {
            let value = digit.to_digit(16).and_then(|value| u8::try_from(value).ok());
            let value = value.ok_or_else(|| SerialRefused::NotHex(text.to_owned()))?;
            if let Some(octet) = octets.iter_mut().rev().nth(position / 2) {
                *octet |= if position % 2 == 0 { value } else { value << 4 };
            }
        }
        Ok(Self(octets))
    }

    /// From the octets of a certificate, most significant first.
    pub(crate) fn from_octets(octets: &[u8]) -> Result<Self, SerialRefused> {
        let zeros = octets.iter().take_while(|octet| **octet == 0).count();
        let mut serial = [0; OCTETS_MAX];
        let mut places = serial.iter_mut().rev();
        for octet in octets.iter().skip(zeros).rev() {
            *places.next().ok_or(SerialRefused::TooLong)? = *octet;
        }
        Ok(Self(serial))
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let mut serial = [0; OCTETS_MAX];
        for (place, octet) in serial.iter_mut().rev().zip(number.to_le_bytes()) {
            *place = octet;
        }
        Self(serial)
    }

    /// Octets as a certificate wants them: at least one, without zeros in front.
    pub(crate) fn octets(&self) -> Vec<u8> {
        let octets: Vec<u8> = self.0.iter().copied().skip_while(|octet| *octet == 0).collect();
        if octets.is_empty() { vec![0] } else { octets }
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut octets = self.0.iter().skip_while(|octet| **octet == 0);
        match octets.next() {
            None => return f.write_str("0"),
            Some(first) => write!(f, "{first:x}")?,
        }
        octets.try_for_each(|octet| write!(f, "{octet:02x}"))
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Serial({self})")
    }
}

/// Serials of certificates that are no longer let in, in order and each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denylist(BTreeSet<Serial>);

/// A line of a denylist that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the denylist: {refused}; write one hexadecimal serial a line")]
pub struct DenylistFault {
    pub line: usize,
    pub refused: SerialRefused,
}

impl Denylist {
    /// One serial a line; empty lines and what follows a `#` do not count.
    ///
    /// # Errors
    /// At the first line that is no serial: a list that is only half read would let people in.
    pub fn parse(text: &str) -> Result<Self, DenylistFault> {
        let mut serials = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let parsed = Serial::parse(content);
            serials.insert(parsed.map_err(|refused| DenylistFault { line: index + 1, refused })?);
        }
        Ok(Self(serials))
    }

    /// Lower-case hexadecimal, sorted, one a line, without a line end after the last.
    #[must_use]
    pub fn to_text(&self) -> String {
        let lines: Vec<String> = self.0.iter().map(Serial::to_string).collect();
        lines.join("\n")
    }

    /// Whether it was not there before.
    pub fn insert(&mut self, serial: Serial) -> bool {
        self.0.insert(serial)
    }

    #[must_use]
    pub fn contains(&self, serial: &Serial) -> bool {
        self.0.contains(serial)
    }

    pub fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Serial> {
        self.0.iter()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{Denylist, Serial, SerialRefused};

    #[test]
    fn serials_are_numbers_however_they_are_written() {
        for (written, shown) in [
            ("abc", "abc"),
            ("0ABC", "abc"),
            ("000000", "0"),
            ("10", "10"),
            (" 0f ", "f"),
            (
                "00ffffffffffffffffffffffffffffffffffffffff",
                "ffffffffffffffffffffffffffffffffffffffff",
            ),
        ] {
            assert_eq!(Serial::parse(written).unwrap().to_string(), shown, "{written}");
        }
        assert_eq!(Serial::parse("0ab").unwrap(), Serial::from_octets(&[0, 0, 0xab]).unwrap());
        assert_eq!(Serial::parse("1ff").unwrap(), Serial::from_number(0x1ff));
        assert_eq!(Serial::from_number(0x1ff).octets(), [1, 0xff]);
    }

    #[test]
    fn what_is_no_serial_is_refused() {
        assert_eq!(Serial::parse("  "), Err(SerialRefused::Empty));
        assert_eq!(Serial::parse("12x"), Err(SerialRefused::NotHex("12x".to_owned())));
        assert_eq!(Serial::parse("-12"), Err(SerialRefused::NotHex("-12".to_owned())));
        assert_eq!(Serial::parse(&"1".repeat(41)), Err(SerialRefused::TooLong));
        assert_eq!(Serial::from_octets(&[1; 21]), Err(SerialRefused::TooLong));
    }

    #[test]
    fn a_list_is_sorted_unique_and_read_with_comments() {
        let list = Denylist::parse("# lost laptops\n0B\n\n a # of March\nb\n").unwrap();
        assert_eq!(list.to_text(), "a\nb");
        assert!(list.contains(&Serial::from_number(0xb)));
        assert!(!list.contains(&Serial::from_number(0xc)));
    }

    #[test]
    fn a_bad_line_is_named() {
        assert_eq!(Denylist::parse("a\n\nzz\n").unwrap_err().line, 3);
    }
}
