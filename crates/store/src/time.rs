//! The store's own time, learned from the dates of its answers. Servers that share a store have no
//! other clock in common: each places the leases of the others by it. An answer dated to the second
//! tells the difference between the store's clock and ours to about a second; many answers that
//! fall into different parts of their seconds tell it to about the length of a round trip.

use parking_lot::Mutex;

/// Dates of answers are cut to whole seconds.
const DATE_MS: i64 = 1_000;
/// Our clock may run away from the store's by so much: one in so many.
const DRIFT: i64 = 5_000;
/// Two frontends of one store may differ by this without being called contradictory.
const SLOP_MS: i64 = 2;

/// How far the store's clock is ahead of ours, as an interval that widens while nothing is heard.
#[derive(Clone, Copy, Debug)]
struct Window {
    low: i64,
    high: i64,
    /// When it was last made narrower, on our clock.
    at: i64,
}

impl Window {
    fn at(self, now: i64) -> Self {
        let drift = (now - self.at).max(0) / DRIFT;
        Self { low: self.low - drift, high: self.high + drift, at: now }
    }
}

/// The present by the store's clock, and by how much that may be wrong in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreNow {
    pub unix_ms: u64,
    pub bound_ms: u64,
}

/// Learns the store's time.
#[derive(Debug, Default)]
pub struct StoreTime {
    window: Mutex<Option<Window>>,
}

impl StoreTime {
    /// An answer dated `date_ms` (Unix time, whole seconds) to a request that was sent and answered
    /// at these moments of our clock, which never goes back.
    pub fn learn(&self, date_ms: i64, sent: i64, answered: i64) {
        // Between the two the store's clock showed a moment of that second.
        let seen = Window {
            low: date_ms - answered - SLOP_MS,
            high: date_ms + DATE_MS - sent + SLOP_MS,
            at: answered,
        };
        let mut window = self.window.lock();
        let next = match window.map(|known| known.at(answered)) {
            None => seen,
            Some(known) => {
                let (low, high) = (known.low.max(seen.low), known.high.min(seen.high));
                if low <= high {
                    Window { low, high, at: answered }
                } else {
                    // They contradict each other: a frontend is off, or a clock was set. Whoever
                    // is right lies in between.
                    Window {
                        low: known.low.min(seen.low),
                        high: known.high.max(seen.high),
                        at: answered,
                    }
                }
            }
        };
        *window = Some(next);
    }

    /// `None` until the first answer.
    #[must_use]
    pub fn now(&self, ours: i64) -> Option<StoreNow> {
        let window = (*self.window.lock())?.at(ours);
        let middle = window.low + (window.high - window.low) / 2;
        let bound = (window.high - middle).max(middle - window.low);
        Some(StoreNow {
            unix_ms: u64::try_from(ours + middle).unwrap_or(0),
            bound_ms: u64::try_from(bound).unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::StoreTime;

    /// What a store says whose clock is ahead by `ahead`.
    fn date(ours: i64, ahead: i64) -> i64 {
        (ours + ahead).div_euclid(1_000) * 1_000
    }

    proptest! {
        #[test]
        fn the_truth_is_always_within_the_bound(
            ahead in -4_000_000_i64..4_000_000,
            answers in prop::collection::vec((1_i64..3_000, 0_i64..400, 0_i64..400), 1..40),
        ) {
            let time = StoreTime::default();
            let mut ours = 10_000_000_i64;
            for (pause, there, back) in answers {
                ours += pause;
                let (sent, met, answered) = (ours, ours + there, ours + there + back);
                time.learn(date(met, ahead), sent, answered);
                ours = answered;
                let now = time.now(ours).unwrap();
                let truth = u64::try_from(ours + ahead).unwrap();
                prop_assert!(now.unix_ms.abs_diff(truth) <= now.bound_ms, "{now:?} {truth}");
            }
        }
    }

    #[test]
    fn answers_in_different_parts_of_their_seconds_narrow_it_down() {
        let time = StoreTime::default();
        let ahead = 123_456;
        for number in 0..40 {
            let sent = 1_000_000 + number * 137;
            time.learn(date(sent + 10, ahead), sent, sent + 20);
        }
        let now = time.now(1_010_000).unwrap();
        assert!(now.bound_ms < 60, "{now:?}");
        assert!(time.now(1_010_000 + 3_600_000).unwrap().bound_ms > 700, "forgets slowly");
    }

    #[test]
    fn answers_that_contradict_widen_it() {
        let time = StoreTime::default();
        time.learn(50_000, 10_000, 10_000);
        time.learn(90_000, 10_000, 10_000);
        assert!(time.now(10_000).unwrap().bound_ms >= 20_000);
        assert_eq!(StoreTime::default().now(1), None);
    }
}
