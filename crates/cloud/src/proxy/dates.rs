//! What the proxy makes of the `Date` of answers: gateways drop it, renew it once a second, or have
//! a clock of their own that is wrong.

use std::time::{Duration, Instant};

use http::header::DATE;
use http::{HeaderMap, HeaderValue};
use jiff::fmt::rfc2822;
use jiff::{SignedDuration, Timestamp};

use crate::clock::http_date;

/// What clients see as the date of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dates {
    /// As the store wrote it.
    #[default]
    Kept,
    /// No date at all.
    Dropped,
    /// A text that is no date.
    Garbled,
    /// Ahead of the store's by so many milliseconds; behind if negative.
    Ahead(i64),
    /// As [`Dates::Ahead`], on every second connection only.
    AheadOnEverySecondConnection(i64),
    /// Ahead by `by_ms` for the first `lasting` of each `every`, counted from when this was set.
    Jumping { by_ms: i64, every: Duration, lasting: Duration },
    /// The present of this machine when the gateway last renewed it: once a second, counted from
    /// when this was set, so that a date is up to a second old besides being cut to the second.
    RenewedOnceASecond,
}

/// The rule and when it was set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    dates: Dates,
    since: Instant,
}

impl Rule {
    pub(super) fn new(dates: Dates) -> Self {
        Self { dates, since: Instant::now() }
    }

    /// Applies the rule to the answer to a request that came on the connection of this number.
    pub(super) fn apply(self, headers: &mut HeaderMap, connection: u64) {
        let elapsed = self.since.elapsed();
        match self.dates {
            Dates::Kept => {}
            Dates::Dropped => {
                headers.remove(DATE);
            }
            Dates::Garbled => {
                headers.insert(DATE, HeaderValue::from_static("the day before yesterday"));
            }
            Dates::Ahead(by_ms) => shift(headers, by_ms),
            Dates::AheadOnEverySecondConnection(by_ms) if connection % 2 == 1 => {
                shift(headers, by_ms);
            }
            Dates::AheadOnEverySecondConnection(_) => {}
            Dates::Jumping { by_ms, every, lasting } => {
                let into = elapsed.as_nanos() % every.as_nanos().max(1);
                if into < lasting.as_nanos() {
                    shift(headers, by_ms);
                }
            }
            Dates::RenewedOnceASecond => {
                let age = SignedDuration::from_nanos(i64::from(elapsed.subsec_nanos()));
                set(headers, Timestamp::now() - age);
            }
        }
    }
}

fn shift(headers: &mut HeaderMap, by_ms: i64) {
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let Some(date) = date.and_then(|date| rfc2822::parse(date).ok()) else { return };
    set(headers, date.timestamp() + SignedDuration::from_millis(by_ms));
}

fn set(headers: &mut HeaderMap, at: Timestamp) {
    headers.insert(DATE, HeaderValue::from_str(&http_date(at)).expect("a date"));
}
