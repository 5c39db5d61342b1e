//! Times to live on the wire. Whole seconds are what every server takes; milliseconds are ours, and
//! servers of the other implementation refuse a request that has them. Its answers say only when a
//! lease ends, by the server's wall clock; how long that is from now follows from their `Date`.

use std::time::Duration;

use http::header::DATE;

use crate::error::{Failed, Failure};
use crate::reply::Head;

/// A span as a request has it: one of the two fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireSpan {
    pub(crate) seconds: Option<i64>,
    pub(crate) ms: Option<u64>,
}

impl WireSpan {
    /// Whole seconds where they do.
    pub(crate) fn of(span: Duration) -> Result<Self, Failed> {
        let too_long = || Failure::invalid("the time is too long");
        if span.subsec_nanos() == 0 {
            let seconds = i64::try_from(span.as_secs()).map_err(|_| too_long())?;
            return Ok(Self { seconds: Some(seconds), ms: None });
        }
        match u64::try_from(span.as_millis()) {
            Ok(0) => Err(Failure::invalid("a time is at least a millisecond")),
            Ok(ms) => Ok(Self { seconds: None, ms: Some(ms) }),
            Err(_) => Err(too_long()),
        }
    }

    /// A time to live, or nothing for the server's default.
    pub(crate) fn ttl(ttl: Option<Duration>) -> Result<Self, Failed> {
        match ttl {
            None => Ok(Self::default()),
            Some(Duration::ZERO) => {
                Err(Failure::invalid("a time to live is at least a millisecond"))
            }
            Some(ttl) => Self::of(ttl),
        }
    }
}

/// How long a lease lives, and its end in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) ttl: Duration,
    pub(crate) expires_at_unix_ms: u64,
}

/// What an answer says of the time of a lease: in milliseconds, where it says so, else at least so
/// long as its end is behind the second after its `Date`.
pub(crate) fn granted(
    head: &Head,
    (ttl_ms, expires_at_unix_ms): (u64, u64),
    expires_at_unix: u64,
    asked: Option<Duration>,
) -> Result<Granted, Failed> {
    if ttl_ms > 0 {
        return Ok(Granted { ttl: Duration::from_millis(ttl_ms), expires_at_unix_ms });
    }
    let date = head.text(DATE.as_str()).and_then(|text| unix_of(&text));
    let Some(date) = date else {
        return Err(Failure::garbled(
            "it says neither how long the lease lives nor what time it is",
        ));
    };
    // The date leaves its fraction of a second out.
    let left = Duration::from_secs(expires_at_unix.saturating_sub(date.saturating_add(1)));
    let ttl = asked.map_or(left, |asked| left.min(asked));
    Ok(Granted { ttl, expires_at_unix_ms: expires_at_unix.saturating_mul(1_000) })
}

/// Seconds since 1970 of a date as HTTP has it: `Wed, 21 Oct 2026 07:28:00 GMT`.
fn unix_of(date: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let (_, rest) = date.trim().split_once(", ")?;
    let mut words = rest.strip_suffix(" GMT")?.split([' ', ':']);
    let day: u64 = words.next()?.parse().ok()?;
    let name = words.next().filter(|name| name.len() == 3)?;
    let month = MONTHS.find(name).filter(|at| at % 3 == 0)? as u64 / 3;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut time = [0_u64; 3];
    for part in &mut time {
        *part = words.next()?.parse().ok().filter(|part| *part <= 60)?;
    }
    if words.next().is_some() || !(1..=31).contains(&day) {
        return None;
    }
    let [hours, minutes, seconds] = time;
    // Years that begin in March have their leap day at the end.
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some(days * 86_400 + hours * 3_600 + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_sent_as_seconds() {
        for (span, seconds, ms) in [
            (Duration::from_secs(30), Some(30), None),
            (Duration::from_millis(1_500), None, Some(1_500)),
            (Duration::from_millis(999), None, Some(999)),
        ] {
            assert_eq!(WireSpan::of(span).unwrap(), WireSpan { seconds, ms }, "{span:?}");
        }
        assert!(WireSpan::ttl(Some(Duration::ZERO)).is_err());
        assert!(WireSpan::of(Duration::from_nanos(1)).is_err());
        assert_eq!(WireSpan::ttl(None).unwrap(), WireSpan::default());
    }

    #[test]
    fn dates_of_http_are_read() {
        for (text, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2028 23:59:59 GMT", Some(1_835_481_599)),
            ("Wed, 01 Mar 2028 00:00:00 GMT", Some(1_835_481_600)),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 anF 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Nov 1969 08:49:37 GMT", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(unix_of(text), expected, "{text}");
        }
    }
}
