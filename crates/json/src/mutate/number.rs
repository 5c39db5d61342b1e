//! Numbers in expressions and the adding of them.
//!
//! The rule: 64-bit integers are added exactly or not at all. Only numbers with a point or an
//! exponent go through floating point, and nothing infinite ever reaches a document.

use super::error::Cause;
use crate::compact::{Limits, compact};

/// What to add; never zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Delta {
    Integer(i64),
    Float(f64),
}

/// How close to an integer a sum must be to be written as one.
const INTEGRAL_WITHIN: f64 = 1e-9;
/// From here on a float is not an integer of 64 bits.
const INTEGER_LIMIT: f64 = 9_223_372_036_854_775_808.0;

impl Delta {
    /// Reads a signed number; `None` when the text is none.
    pub(super) fn read(text: &str) -> Result<Option<Self>, Cause> {
        let delta = match parse(text)? {
            None => return Ok(None),
            Some(Number::Integer(integer)) => Self::Integer(integer),
            Some(Number::Large) => return Err(Cause::IntegerRange),
            // Written as 2.0 or 1e3: adding the integer is exact where the float might not be.
            Some(Number::Float(float)) => match render(float).parse() {
                Ok(integer) if float.fract() == 0.0 => Self::Integer(integer),
                Ok(_) | Err(_) => Self::Float(float),
            },
        };
        match delta {
            Self::Integer(0) => Err(Cause::ZeroDelta),
            Self::Integer(_) | Self::Float(_) => Ok(Some(delta)),
        }
    }

    /// The number that stands where there was none.
    pub(super) fn alone(self) -> String {
        match self {
            Self::Integer(integer) => integer.to_string(),
            Self::Float(float) => render(float),
        }
    }

    /// Adds to the JSON value written as `present`.
    pub(super) fn add_to(self, present: &[u8]) -> Result<String, Cause> {
        let not_numeric = Cause::NotNumeric { found: kind(present) };
        let text = std::str::from_utf8(present).map_err(|_| not_numeric.clone())?;
        if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
            return Err(not_numeric);
        }
        let sum = match (parse(text)?.ok_or(not_numeric)?, self) {
            (Number::Integer(a), Self::Integer(b)) => {
                return Ok(a.checked_add(b).ok_or(Cause::Overflow)?.to_string());
            }
            (Number::Large, _) => return Err(Cause::IntegerRange),
            (Number::Integer(a), Self::Float(b)) => a as f64 + b,
            (Number::Float(a), Self::Integer(b)) => a + b as f64,
            (Number::Float(a), Self::Float(b)) => a + b,
        };
        if sum.is_finite() { Ok(render(sum)) } else { Err(Cause::NotFinite) }
    }
}

/// Reads a number to be set and returns its JSON text; `None` when the text is no number.
pub(super) fn read_number(text: &str) -> Result<Option<String>, Cause> {
    Ok(match parse(text)? {
        None => None,
        Some(Number::Integer(integer)) => Some(integer.to_string()),
        Some(_) if is_json_number(text) => Some(text.to_owned()),
        Some(Number::Float(float)) => Some(render(float)),
        // Only leading zeros are in the way.
        Some(Number::Large) => Some(text.trim_start_matches('0').to_owned()),
    })
}

/// Whether the text is a number exactly as JSON writes them.
pub(super) fn is_json_number(text: &str) -> bool {
    text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        && compact(text.as_bytes(), Limits::default()).is_ok()
}

enum Number {
    Integer(i64),
    /// An integer that 64 bits cannot hold.
    Large,
    Float(f64),
}

fn parse(text: &str) -> Result<Option<Number>, Cause> {
    if let Ok(integer) = text.parse() {
        return Ok(Some(Number::Integer(integer)));
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Some(Number::Large));
    }
    match text.parse::<f64>() {
        Err(_) => Ok(None),
        Ok(float) if float.is_finite() => Ok(Some(Number::Float(float))),
        Ok(_) => Err(Cause::NotFinite),
    }
}

/// The shortest text of a finite float, as an integer where it nearly is one.
fn render(float: f64) -> String {
    let rounded = float.round();
    if (float - rounded).abs() >= INTEGRAL_WITHIN || rounded.abs() >= INTEGER_LIMIT {
        return format!("{float:?}");
    }
    // Adding zero turns a negative zero into a plain one.
    format!("{:.0}", rounded + 0.0)
}

fn kind(value: &[u8]) -> &'static str {
    match value.first() {
        Some(b'"') => "text",
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        Some(_) | None => "a value that is not a number",
    }
}
