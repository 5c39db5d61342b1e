//! What a load leaves behind: how many requests were answered within the counted window, how long
//! each kind took, and the figures that the table is made of.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Acquire,
    Update,
    Release,
    Read,
    Enqueue,
    Dequeue,
    Ack,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Acquire,
        Self::Update,
        Self::Release,
        Self::Read,
        Self::Enqueue,
        Self::Dequeue,
        Self::Ack,
    ];
}

/// The part of a load that counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

impl Window {
    pub(crate) fn after(warm_up: Duration, length: Duration) -> Self {
        let from = Instant::now() + warm_up;
        Self { from, until: from + length }
    }

    pub(crate) fn seconds(&self) -> f64 {
        (self.until - self.from).as_secs_f64()
    }
}

/// Latencies of one connection, and later of all of them together.
#[derive(Debug)]
pub(crate) struct Log {
    window: Window,
    /// One for each of [`Kind::ALL`].
    kinds: Vec<Histogram<u64>>,
    /// Requests of the whole load, the uncounted ones too.
    pub(crate) total: u64,
}

impl Log {
    pub(crate) fn new(window: Window) -> Result<Self> {
        Ok(Self { window, kinds: vec![histogram()?; Kind::ALL.len()], total: 0 })
    }

    /// Notes a request that began at `start` and was answered just now; returns that moment.
    pub(crate) fn note(&mut self, kind: Kind, start: Instant) -> Instant {
        self.note_several(kind, start, 1)
    }

    /// The same for a request that did so many things at once.
    pub(crate) fn note_several(&mut self, kind: Kind, start: Instant, count: u64) -> Instant {
        let end = Instant::now();
        self.total += 1;
        if start >= self.window.from
            && end < self.window.until
            && let Some(into) = self.kinds.get_mut(kind as usize)
        {
            into.saturating_record_n(nanos(end - start), count);
        }
        end
    }

    pub(crate) fn add(&mut self, other: &Self) -> Result<()> {
        self.total += other.total;
        for (into, from) in self.kinds.iter_mut().zip(&other.kinds) {
            into.add(from)?;
        }
        Ok(())
    }

    pub(crate) fn of(&self, kind: Kind) -> Figures {
        match self.kinds.get(kind as usize) {
            Some(times) => Figures::new(times, self.window.seconds()),
            None => Figures { per_second: 0.0, median: 0.0, p99: 0.0 },
        }
    }

    pub(crate) fn all(&self) -> Result<Figures> {
        let mut sum = histogram()?;
        for kind in &self.kinds {
            sum.add(kind)?;
        }
        Ok(Figures::new(&sum, self.window.seconds()))
    }
}

/// The figures of a distribution; times in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

impl Figures {
    pub(crate) fn new(times: &Histogram<u64>, seconds: f64) -> Self {
        let at = |quantile| Duration::from_nanos(times.value_at_quantile(quantile)).as_secs_f64();
        let count = times.len() as f64;
        Self { per_second: count / seconds, median: at(0.5), p99: at(0.99) }
    }
}

/// The longest time that is told apart from longer ones.
const TIME_MAX: Duration = Duration::from_secs(100);

/// Nanoseconds to two digits: some KiB for each connection, and an error of at most 1 %. The bounds
/// are fixed, because a histogram that grows does not do so for values that saturate it.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, nanos(TIME_MAX), 2)?)
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The middle of some values; of an even number of them the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_and_not_the_mean() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[100.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[100.0, 1.0, 4.0, 2.0]), Some(3.0));
    }

    #[test]
    fn only_requests_within_the_window_count() {
        let now = Instant::now();
        let past = now.checked_sub(Duration::from_secs(1)).unwrap();
        let cases = [
            (Window { from: past, until: now + Duration::from_secs(60) }, 1.0),
            (
                Window {
                    from: now + Duration::from_secs(60),
                    until: now + Duration::from_secs(61),
                },
                0.0,
            ),
            (Window { from: past, until: now }, 0.0),
        ];
        for (window, counted) in cases {
            let mut log = Log::new(window).unwrap();
            log.note(Kind::Update, now);
            let all = log.all().unwrap();
            assert_eq!(log.total, 1);
            assert!((all.per_second * window.seconds() - counted).abs() < 1e-9, "{window:?}");
        }
    }

    #[test]
    fn quantiles_are_right_to_one_percent() {
        let mut times = histogram().unwrap();
        for micros in 1..=1000 {
            times.record(micros * 1000).unwrap();
        }
        let figures = Figures::new(&times, 2.0);
        assert!((figures.per_second - 500.0).abs() < 1e-9);
        assert!((figures.median - 500e-6).abs() < 5e-6, "{figures:?}");
        assert!((figures.p99 - 990e-6).abs() < 10e-6, "{figures:?}");
    }

    #[test]
    fn a_noted_time_is_kept_and_a_longer_one_than_the_longest_is_cut() {
        let now = Instant::now();
        for (ago, least, most) in [(0.005, 0.0049, 1.0), (500.0, 99.0, 101.0)] {
            let start = now.checked_sub(Duration::from_secs_f64(ago)).unwrap();
            let window = Window { from: start, until: now + Duration::from_secs(60) };
            let mut log = Log::new(window).unwrap();
            log.note(Kind::Read, start);
            let figures = log.of(Kind::Read);
            assert!((least..most).contains(&figures.median), "{figures:?}");
            assert!((least..most).contains(&figures.p99), "{figures:?}");
        }
    }

    #[test]
    fn logs_add_up() {
        let now = Instant::now();
        let window = Window { from: now, until: now + Duration::from_secs(60) };
        let mut sum = Log::new(window).unwrap();
        for kind in Kind::ALL {
            let mut log = Log::new(window).unwrap();
            log.note(kind, Instant::now());
            sum.add(&log).unwrap();
        }
        assert_eq!(sum.total, 7);
        assert!((sum.all().unwrap().per_second * 60.0 - 7.0).abs() < 1e-9);
    }
}
