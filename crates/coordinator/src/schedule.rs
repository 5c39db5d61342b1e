//! When a task is due: every so often, or by a cron expression in UTC. Times are milliseconds since
//! 1970 of the store's clock.

use std::fmt;
use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// When a task is due.
#[derive(Clone, Debug)]
pub enum Schedule {
    Every(Duration),
    Cron(Box<Cron>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("a task cannot be due every {0:?}: at least every 10 ms, at most every 10 years")]
    Interval(Duration),
    #[error("{expression:?} is no cron expression: {why}")]
    Cron { expression: String, why: String },
    #[error("{0:?} never comes")]
    Never(String),
}

const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

impl Schedule {
    /// # Errors
    /// When it is too often or too rare.
    pub fn every(interval: Duration) -> Result<Self, ScheduleError> {
        if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
            Ok(Self::Every(interval))
        } else {
            Err(ScheduleError::Interval(interval))
        }
    }

    /// Five fields, or six with seconds first, in UTC.
    ///
    /// # Errors
    /// When it is not a cron expression, or never comes.
    pub fn cron(expression: &str) -> Result<Self, ScheduleError> {
        let parser = CronParser::builder().seconds(Seconds::Optional).build();
        let cron = parser.parse(expression).map_err(|error| ScheduleError::Cron {
            expression: expression.into(),
            why: error.to_string(),
        })?;
        let schedule = Self::Cron(Box::new(cron));
        match schedule.after(0, 0) {
            Some(_) => Ok(schedule),
            None => Err(ScheduleError::Never(expression.into())),
        }
    }

    /// The first time after `time`; none is before `base`.
    #[must_use]
    pub fn after(&self, time: u64, base: u64) -> Option<u64> {
        match self {
            Self::Every(_) if time < base => Some(base),
            Self::Every(interval) => {
                let interval = millis(*interval);
                let rounds = (time - base) / interval + 1;
                base.checked_add(rounds.checked_mul(interval)?)
            }
            Self::Cron(cron) => {
                let found =
                    cron.find_next_occurrence(&zoned(time.max(base.saturating_sub(1)))?, false);
                found.ok().and_then(|time| unzoned(&time))
            }
        }
    }

    /// The last time that is not after `time`, if there is one since `base`.
    #[must_use]
    pub fn latest(&self, time: u64, base: u64) -> Option<u64> {
        let since = time.checked_sub(base)?;
        match self {
            Self::Every(interval) => Some(time - since % millis(*interval)),
            Self::Cron(cron) => {
                let found = cron.find_previous_occurrence(&zoned(time)?, true);
                found.ok().and_then(|time| unzoned(&time)).filter(|time| *time >= base)
            }
        }
    }
}

/// What makes two schedules the same.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Every(interval) => write!(f, "every {} ms", interval.as_millis()),
            Self::Cron(cron) => write!(f, "cron {}", cron.as_str()),
        }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Cron knows whole seconds.
fn zoned(time: u64) -> Option<Zoned> {
    let time = Timestamp::from_second(i64::try_from(time / 1_000).ok()?).ok()?;
    Some(time.to_zoned(TimeZone::UTC))
}

fn unzoned(time: &Zoned) -> Option<u64> {
    u64::try_from(time.timestamp().as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(ms: u64) -> Schedule {
        Schedule::every(Duration::from_millis(ms)).unwrap()
    }

    #[test]
    fn an_interval_counts_from_its_base() {
        let schedule = every(1_000);
        assert_eq!(schedule.after(0, 5_500), Some(5_500));
        assert_eq!(schedule.after(5_500, 5_500), Some(6_500));
        assert_eq!(schedule.after(6_499, 5_500), Some(6_500));
        assert_eq!(schedule.latest(5_499, 5_500), None);
        assert_eq!(schedule.latest(5_500, 5_500), Some(5_500));
        assert_eq!(schedule.latest(7_000, 5_500), Some(6_500));
        assert_eq!(schedule.after(u64::MAX, 0), None);
    }

    /// 2023-11-14T22:13:20Z
    const THEN: u64 = 1_700_000_000_000;

    #[test]
    fn cron_is_in_utc_and_knows_seconds() {
        let hourly = Schedule::cron("0 * * * *").unwrap();
        assert_eq!(hourly.after(THEN, 0), Some(1_700_002_800_000));
        assert_eq!(hourly.latest(THEN, 0), Some(1_699_999_200_000));
        assert_eq!(hourly.latest(THEN, THEN), None);
        assert_eq!(hourly.after(0, THEN), Some(1_700_002_800_000));
        let at = 1_700_002_800_000;
        assert_eq!(hourly.latest(at, at), Some(at));
        assert_eq!(hourly.after(at, 0), Some(at + 3_600_000));
        assert_eq!(hourly.after(at - 1, 0), Some(at));
        assert_eq!(hourly.after(0, at), Some(at));
        let tens = Schedule::cron("*/10 * * * * *").unwrap();
        assert_eq!(tens.after(THEN, 0), Some(THEN + 10_000));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(matches!(Schedule::cron("x"), Err(ScheduleError::Cron { .. })));
        assert!(matches!(Schedule::cron("61 * * * *"), Err(ScheduleError::Cron { .. })));
        assert!(matches!(Schedule::cron("0 0 30 2 *"), Err(ScheduleError::Never(_))));
        assert!(Schedule::every(Duration::ZERO).is_err());
        assert!(Schedule::every(Duration::MAX).is_err());
    }

    proptest::proptest! {
        #[test]
        fn after_and_latest_agree(interval in 10_u64..100_000, base in 0_u64..1_000_000, time in 0_u64..2_000_000) {
            let schedule = every(interval);
            let next = schedule.after(time, base).unwrap();
            proptest::prop_assert!(next > time || next == base);
            proptest::prop_assert_eq!(schedule.latest(next, base), Some(next));
            if let Some(latest) = schedule.latest(time, base) {
                proptest::prop_assert!(latest <= time && schedule.after(latest, base) == Some(next));
            }
        }
    }
}
