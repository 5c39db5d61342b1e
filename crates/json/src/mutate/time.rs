//! Times in expressions: RFC 3339 in, UTC with nine digits at most out.
//!
//! The form is checked here, strictly, because date libraries accept more than the standard does;
//! the calendar is left to the library. Leap seconds are refused rather than moved.

use std::str::FromStr;

use jiff::SignedDuration;
use jiff::civil::DateTime;

use super::error::Cause;

/// Length of `2025-01-31T12:00:00`.
const SECONDS_END: usize = 19;
const FRACTION_DIGITS_MAX: usize = 9;

/// Moves a time to UTC and drops the zeros at the end of its fraction.
pub(super) fn normalise(text: &str) -> Result<String, Cause> {
    read(text).ok_or(Cause::Time)
}

fn read(text: &str) -> Option<String> {
    let (seconds, rest) = text.split_at_checked(SECONDS_END)?;
    let shaped = seconds.bytes().zip(b"0000-00-00T00:00:00").all(|(byte, form)| match form {
        b'0' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't'),
        _ => byte == *form,
    });
    if !shaped || seconds.ends_with("60") {
        return None;
    }
    let fraction = fraction_length(rest)?;
    let (fraction, zone) = rest.split_at_checked(fraction)?;
    let local = DateTime::from_str(&format!("{}{fraction}", seconds.to_ascii_uppercase())).ok()?;
    let utc = local.checked_sub(SignedDuration::from_mins(offset_minutes(zone)?)).ok()?;
    if utc.year() < 0 {
        return None;
    }
    Some(format!("{utc}Z"))
}

/// How many bytes of `rest` are a point and digits; none at all is fine.
fn fraction_length(rest: &str) -> Option<usize> {
    let Some(tail) = rest.strip_prefix('.') else {
        return Some(0);
    };
    let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
    (1..=FRACTION_DIGITS_MAX).contains(&digits).then_some(digits + 1)
}

fn offset_minutes(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, clock) = match zone.split_at_checked(1)? {
        ("+", clock) => (1, clock),
        ("-", clock) => (-1, clock),
        _ => return None,
    };
    let (hours, minutes) = clock.split_once(':')?;
    Some(sign * (two_digits(hours, 23)? * 60 + two_digits(minutes, 59)?))
}

fn two_digits(text: &str, max: i64) -> Option<i64> {
    let plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = if plain { text.parse().ok()? } else { return None };
    (0..=max).contains(&number).then_some(number)
}
