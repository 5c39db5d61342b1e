//! The store's own time, learned from the dates of its answers. Servers that share a store have no
//! other clock in common: each places the leases of the others by it.
//!
//! [`TimeEstimate`] is the rule, a pure state machine over answers. It assumes that
//!
//! - an honest date is that of the store's clock when the answer was made, cut to the second, and at
//!   most [`AGE_MAX_MS`] old, as behind a gateway that renews its date once a second;
//! - both clocks keep pace to one part in [`DRIFT`];
//! - some dates may be wrong by any amount, but not all of them for as long as the longest lease.
//!
//! It keeps: the store's time is within the bound, or [`TimeEstimate::check`] says that it is not
//! known. A date that is wrong by less than an honest one is inexact cannot be told from an honest
//! one; it moves the window by no more than that.

use std::time::Duration;

use parking_lot::Mutex;

/// Dates of answers are cut to whole seconds.
const DATE_MS: i64 = 1_000;
/// How old a date may be besides: a second, and a timer that is late.
const AGE_MAX_MS: i64 = 1_200;
/// Our clock may run away from the store's by so much: one in so many.
const DRIFT: i64 = 5_000;
/// Readings of our own clock are cut to the millisecond.
const SLOP_MS: i64 = 2;
/// Who has read no date for so long does not know the time.
const HEARD_WITHIN_MS: i64 = 20_000;
/// A server that knows the store's time no better than this does not serve.
const BOUND_MAX_MS: u64 = 5_000;
/// The longest lease, unless [`StoreTime::new`] is given another one.
const LONGEST_LEASE: Duration = Duration::from_secs(30 * 60);

/// One bound of how far the store's clock is ahead of ours.
#[derive(Clone, Copy, Debug)]
struct Edge {
    ms: i64,
    /// When it was found, on our clock.
    at: i64,
}

impl Edge {
    /// By how much the clocks may have run apart since.
    fn drift(self, now: i64) -> i64 {
        (now - self.at).max(0).saturating_add(DRIFT - 1) / DRIFT
    }
}

/// How far the store's clock is ahead of ours, as an interval that widens while nothing is heard.
#[derive(Clone, Copy, Debug)]
struct Window {
    low: Edge,
    high: Edge,
}

impl Window {
    /// What an answer says that was dated `date_ms` (Unix time, whole seconds), to a request that
    /// was sent and answered at these moments of our clock.
    fn of(date_ms: i64, sent: i64, answered: i64) -> Self {
        let low = date_ms - answered - SLOP_MS;
        let high = date_ms + DATE_MS + AGE_MAX_MS - sent + SLOP_MS;
        Self { low: Edge { ms: low, at: sent }, high: Edge { ms: high, at: sent } }
    }

    fn low(&self, now: i64) -> i64 {
        self.low.ms - self.low.drift(now)
    }

    fn high(&self, now: i64) -> i64 {
        self.high.ms + self.high.drift(now)
    }

    /// What both allow, if anything.
    fn and(self, other: Self, now: i64) -> Option<Self> {
        let low = if self.low(now) >= other.low(now) { self.low } else { other.low };
        let high = if self.high(now) <= other.high(now) { self.high } else { other.high };
        let both = Self { low, high };
        (both.low(now) <= both.high(now)).then_some(both)
    }

    /// What either allows, and all between them.
    fn or(self, other: Self, now: i64) -> Self {
        let low = if self.low(now) <= other.low(now) { self.low } else { other.low };
        let high = if self.high(now) >= other.high(now) { self.high } else { other.high };
        Self { low, high }
    }
}

/// Everything that answers said which contradicted each other.
#[derive(Clone, Copy, Debug)]
struct Contested {
    window: Window,
    /// Until then, on our clock, nothing makes it narrower.
    until: i64,
}

/// The present by the store's clock, and by how much that may be wrong in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreNow {
    pub unix_ms: u64,
    pub bound_ms: u64,
}

/// Why the store's time is not known well enough to end the leases of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeUnknown {
    #[error("the store's answers have no Date header that can be read")]
    NoDate,
    #[error("the store's answers have had no Date header that can be read for {} s", silent_ms / 1_000)]
    Lost { silent_ms: u64 },
    #[error(
        "the dates of the store's answers contradict each other: they tell its time to {bound_ms} ms \
         only, and {BOUND_MAX_MS} ms is the most"
    )]
    Contradiction { bound_ms: u64 },
    #[error(
        "the dates of the store's answers tell its time to {bound_ms} ms only, and {BOUND_MAX_MS} ms \
         is the most"
    )]
    TooWide { bound_ms: u64 },
}

/// What is known of the store's time: a pure state machine. Moments are of a clock of ours that
/// never goes back.
#[derive(Clone, Debug)]
pub struct TimeEstimate {
    hold_ms: i64,
    /// What all answers allow since the last contradiction.
    agreed: Option<Window>,
    contested: Option<Contested>,
    /// When the last date of an answer was read.
    heard: Option<i64>,
}

impl TimeEstimate {
    /// After a contradiction the window stays wide for `longest_lease`: so long there may be leases
    /// whose end was found by a date that was wrong.
    #[must_use]
    pub fn new(longest_lease: Duration) -> Self {
        let hold_ms = i64::try_from(longest_lease.as_millis()).unwrap_or(i64::MAX);
        Self { hold_ms, agreed: None, contested: None, heard: None }
    }

    /// An answer dated `date_ms` (Unix time, whole seconds) to a request that was sent and answered
    /// at these moments.
    pub fn learn(&mut self, date_ms: i64, sent: i64, answered: i64) {
        self.heard = self.heard.max(Some(answered));
        self.weigh(date_ms, sent, answered);
    }

    /// As [`TimeEstimate::learn`], of what the store has dated otherwise than by its answer: it may
    /// contradict the dates of answers, and does not take their place.
    pub fn weigh(&mut self, date_ms: i64, sent: i64, answered: i64) {
        let seen = Window::of(date_ms, sent, answered);
        let now = self.heard.map_or(answered, |heard| heard.max(answered));
        let contested = self.contested(now);
        let Some(agreed) = self.agreed else {
            self.agreed = Some(seen);
            return;
        };
        self.agreed = agreed.and(seen, now);
        self.contested = contested;
        if self.agreed.is_none() {
            // A frontend is off, or a clock was set. The truth is where one of them is.
            let all = contested.map_or(agreed, |all| all.window.or(agreed, now)).or(seen, now);
            let until = now.saturating_add(self.hold_ms);
            self.contested = Some(Contested { window: all, until });
            self.agreed = Some(seen);
        }
    }

    fn contested(&self, now: i64) -> Option<Contested> {
        self.contested.filter(|contested| now < contested.until)
    }

    /// `None` until the first answer.
    #[must_use]
    pub fn now(&self, ours: i64) -> Option<StoreNow> {
        let window = self.contested(ours).map(|contested| contested.window).or(self.agreed)?;
        let (low, high) = (window.low(ours), window.high(ours));
        let middle = low + (high - low) / 2;
        let bound = (high - middle).max(middle - low);
        Some(StoreNow {
            unix_ms: u64::try_from(ours.saturating_add(middle)).unwrap_or(0),
            bound_ms: u64::try_from(bound).unwrap_or(u64::MAX),
        })
    }

    /// The present, when it is known well enough.
    ///
    /// # Errors
    /// When it is not: then nothing that others wrote may be taken for over.
    pub fn check(&self, ours: i64) -> Result<StoreNow, TimeUnknown> {
        let now = self.now(ours).ok_or(TimeUnknown::NoDate)?;
        let silent = ours.saturating_sub(self.heard.ok_or(TimeUnknown::NoDate)?);
        if silent > HEARD_WITHIN_MS {
            let silent_ms = u64::try_from(silent).unwrap_or(u64::MAX);
            return Err(TimeUnknown::Lost { silent_ms });
        }
        let StoreNow { bound_ms, .. } = now;
        match self.contested(ours) {
            _ if bound_ms <= BOUND_MAX_MS => Ok(now),
            Some(_) => Err(TimeUnknown::Contradiction { bound_ms }),
            None => Err(TimeUnknown::TooWide { bound_ms }),
        }
    }
}

/// A [`TimeEstimate`] that is shared.
#[derive(Debug)]
pub struct StoreTime(Mutex<TimeEstimate>);

impl StoreTime {
    /// See [`TimeEstimate::new`].
    #[must_use]
    pub fn new(longest_lease: Duration) -> Self {
        Self(Mutex::new(TimeEstimate::new(longest_lease)))
    }

    /// See [`TimeEstimate::learn`].
    pub fn learn(&self, date_ms: i64, sent: i64, answered: i64) {
        self.0.lock().learn(date_ms, sent, answered);
    }

    /// See [`TimeEstimate::weigh`].
    pub fn weigh(&self, date_ms: i64, sent: i64, answered: i64) {
        self.0.lock().weigh(date_ms, sent, answered);
    }

    /// See [`TimeEstimate::now`].
    #[must_use]
    pub fn now(&self, ours: i64) -> Option<StoreNow> {
        self.0.lock().now(ours)
    }

    /// See [`TimeEstimate::check`].
    ///
    /// # Errors
    /// When the time is not known well enough.
    pub fn check(&self, ours: i64) -> Result<StoreNow, TimeUnknown> {
        self.0.lock().check(ours)
    }
}

impl Default for StoreTime {
    fn default() -> Self {
        Self::new(LONGEST_LEASE)
    }
}

#[cfg(test)]
mod tests;
