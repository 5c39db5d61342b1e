//! The inside of a string: plain runs, escapes and UTF-8, resumable at any byte.
//!
//! Plain ASCII is scanned eight bytes at a time. Escapes are checked for form only, so `\ud800`
//! passes: a string is kept as it was written, whatever it may mean to a reader.

use super::feed::{Fault, Feed};

/// Where in a string a chunk may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    Plain,
    /// After a backslash.
    Escape,
    /// After `\u`, with this many digits missing.
    Hex(u8),
    /// Inside a character, with this many bytes missing and the next one in a range.
    Character {
        missing: u8,
        low: u8,
        high: u8,
    },
}

impl Text {
    /// Goes to the closing quote (`None`) or to the end of the chunk (where it stopped).
    #[inline]
    pub(super) fn scan(self, feed: &mut Feed<'_>) -> Result<Option<Self>, Fault> {
        let mut text = self;
        loop {
            if text == Self::Plain {
                feed.take_many(plain_run(feed.rest()));
            }
            let Some(byte) = feed.peek() else {
                return Ok(Some(text));
            };
            if text == Self::Plain && byte == b'"' {
                feed.take();
                return Ok(None);
            }
            text = text.step(byte)?;
            feed.take();
        }
    }

    /// Takes one byte that is not the closing quote.
    fn step(self, byte: u8) -> Result<Self, Fault> {
        match (self, byte) {
            (Self::Plain, b'\\') => Ok(Self::Escape),
            (Self::Plain, 0x80..) => first_of_character(byte),
            (Self::Plain, ..0x20) => Err(Fault::NotJson("a control character must be escaped")),
            (Self::Plain, _) => Ok(Self::Plain),
            (Self::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                Ok(Self::Plain)
            }
            (Self::Escape, b'u') => Ok(Self::Hex(4)),
            (Self::Escape, _) => Err(Fault::NotJson("unknown escape in a string")),
            (Self::Hex(1), _) if byte.is_ascii_hexdigit() => Ok(Self::Plain),
            (Self::Hex(missing), _) if byte.is_ascii_hexdigit() => Ok(Self::Hex(missing - 1)),
            (Self::Hex(_), _) => Err(Fault::NotJson("expected four hex digits after \\u")),
            (Self::Character { missing, low, high }, _) if (low..=high).contains(&byte) => {
                Ok(match missing {
                    ..=1 => Self::Plain,
                    2.. => Self::Character { missing: missing - 1, low: 0x80, high: 0xbf },
                })
            }
            (Self::Character { .. }, _) => Err(Fault::NotUtf8),
        }
    }
}

/// The ranges that keep overlong forms, surrogates and numbers above U+10FFFF out.
fn first_of_character(byte: u8) -> Result<Text, Fault> {
    let (missing, low, high) = match byte {
        0xc2..=0xdf => (1, 0x80, 0xbf),
        0xe0 => (2, 0xa0, 0xbf),
        0xed => (2, 0x80, 0x9f),
        0xe1..=0xef => (2, 0x80, 0xbf),
        0xf0 => (3, 0x90, 0xbf),
        0xf1..=0xf3 => (3, 0x80, 0xbf),
        0xf4 => (3, 0x80, 0x8f),
        _ => return Err(Fault::NotUtf8),
    };
    Ok(Text::Character { missing, low, high })
}

/// How many bytes from the front need no second look.
#[inline]
pub(crate) fn plain_run(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some((word, tail)) = rest.split_first_chunk::<8>() {
        let marks = special(u64::from_le_bytes(*word));
        if marks != 0 {
            return bytes.len() - rest.len() + (marks.trailing_zeros() / 8) as usize;
        }
        rest = tail;
    }
    let plain = rest.iter().take_while(|byte| is_plain(**byte)).count();
    bytes.len() - rest.len() + plain
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, 0x20..=0x7f) && byte != b'"' && byte != b'\\'
}

/// Marks the high bit of each byte that is a quote, a backslash, a control or not ASCII.
///
/// A subtraction borrows only from a byte that is itself marked, so the lowest mark is exact while
/// those above it may be false; callers look at the lowest only.
#[inline]
fn special(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let quote = (word ^ (EACH * 0x22)).wrapping_sub(EACH);
    let backslash = (word ^ (EACH * 0x5c)).wrapping_sub(EACH);
    let control = word.wrapping_sub(EACH * 0x20);
    (quote | backslash | control | word) & (EACH * 0x80)
}
