//! Time as a holder must count it: on a clock that goes on while the machine sleeps.
//!
//! Timers stand still during a suspend, so waits are cut into slices and the clock is asked again
//! after each. Nothing else in this crate reads a clock.

use std::time::Duration;

#[cfg(any(target_os = "linux", target_os = "android"))]
const RUNS_THROUGH_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const RUNS_THROUGH_SUSPEND: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// Longest uninterrupted sleep: how late a wait may end after the machine wakes up.
const SLICE: Duration = Duration::from_millis(500);

/// A point in time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// That much later.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// Time from `earlier` to this; zero if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where time comes from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine, through suspend.
    Boot,
    /// Follows the runtime's clock from a moment on; tests can stop that one.
    Runtime(tokio::time::Instant),
}

impl Clock {
    #[must_use]
    pub fn now(&self) -> Moment {
        match self {
            Self::Boot => Moment(read(RUNS_THROUGH_SUSPEND)),
            Self::Runtime(start) => Moment(start.elapsed()),
        }
    }

    /// Wall time, only ever shown.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        let since_epoch = match self {
            Self::Boot => wall(),
            Self::Runtime(start) => start.elapsed(),
        };
        u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
    }

    /// Waits until then; a little longer after the machine has slept.
    pub async fn sleep_until(&self, moment: Moment) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(SLICE)).await;
        }
    }
}

/// Asked of the system's library, so that a test can put another clock in between.
#[expect(clippy::disallowed_methods, reason = "this is where the time comes from")]
fn wall() -> Duration {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default()
}

fn read(clock: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_goes_forward() {
        let first = Clock::Boot.now();
        let second = Clock::Boot.now();
        assert!(first <= second);
        assert!(first.0 > Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_at_its_moment_not_before() {
        let clock = Clock::Runtime(tokio::time::Instant::now());
        let start = clock.now();
        let target = start.plus(Duration::from_millis(1_130));
        clock.sleep_until(target).await;
        let late = clock.now().since(target);
        assert!(clock.now() >= target);
        assert!(late < Duration::from_millis(5), "late by {late:?}");
    }
}
