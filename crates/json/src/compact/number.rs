//! The grammar of a number, resumable at any byte.
//!
//! Digits are checked and kept as they are; size and precision are nobody's business here.

use super::feed::{Fault, Feed};

/// Where in a number a chunk may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Digits {
    Start,
    Minus,
    /// After a leading zero, which no digit may follow.
    Zero,
    Whole,
    Point,
    Fraction,
    /// After `e` or `E`.
    Exponent,
    Sign,
    Power,
}

impl Digits {
    /// Goes past the last digit (`None`) or to the end of the chunk (where it stopped).
    #[inline]
    pub(super) fn scan(self, feed: &mut Feed<'_>) -> Result<Option<Self>, Fault> {
        let mut digits = self;
        loop {
            if digits.repeats() {
                let run = feed.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
                feed.take_many(run);
            }
            let Some(byte) = feed.peek() else {
                return Ok(Some(digits));
            };
            match digits.step(byte) {
                Some(next) => digits = next,
                None if digits.may_end() => return Ok(None),
                None => return Err(Fault::NotJson("expected a digit")),
            }
            feed.take();
        }
    }

    /// Whether the number may be complete here.
    pub(super) fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Power)
    }

    /// Whether any number of digits may follow.
    #[inline]
    fn repeats(self) -> bool {
        matches!(self, Self::Whole | Self::Fraction | Self::Power)
    }

    #[inline]
    fn step(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Start, b'-') => Some(Self::Minus),
            (Self::Start | Self::Minus, b'0') => Some(Self::Zero),
            (Self::Start | Self::Minus, b'1'..=b'9') => Some(Self::Whole),
            (Self::Zero | Self::Whole, b'.') => Some(Self::Point),
            (Self::Point, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Whole | Self::Fraction, b'e' | b'E') => Some(Self::Exponent),
            (Self::Exponent, b'+' | b'-') => Some(Self::Sign),
            (Self::Exponent | Self::Sign, b'0'..=b'9') => Some(Self::Power),
            _ => None,
        }
    }
}
