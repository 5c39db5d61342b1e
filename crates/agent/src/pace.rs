//! Pauses between questions that were not answered.

use std::time::Duration;

/// The first pause, and the longest: whoever takes over is found within a second.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often in a row is asked without a pause because somebody else was named.
const AT_ONCE_MAX: u32 = 2;

#[derive(Debug)]
pub(crate) struct Pace {
    pause: Duration,
    at_once: u32,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { pause: PAUSE_MIN, at_once: 0 }
    }

    /// How long to wait now.
    pub(crate) fn next(&mut self, at_once: bool) -> Duration {
        if at_once && self.at_once < AT_ONCE_MAX {
            self.at_once += 1;
            return Duration::ZERO;
        }
        let pause = self.pause.mul_f64(rand::random_range(0.5..=1.0));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        pause
    }

    pub(crate) async fn wait(&mut self, at_once: bool) {
        tokio::time::sleep(self.next(at_once)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_two_that_name_each_other_are_not_asked_for_ever() {
        let mut pace = Pace::new();
        let pauses: Vec<Duration> = (0..20).map(|_| pace.next(true)).collect();
        assert_eq!(pauses[..2], [Duration::ZERO; 2]);
        assert!(pauses[2] >= PAUSE_MIN / 2 && pauses[2] <= PAUSE_MIN);
        assert!(pauses[10..].iter().all(|pause| *pause >= PAUSE_MAX / 2 && *pause <= PAUSE_MAX));
    }
}
