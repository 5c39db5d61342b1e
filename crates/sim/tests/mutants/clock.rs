//! Clocks that break the promise of a timeline: to go on, and as fast as everybody else's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;
use lockd_core::time::{Now, Span, Tick, Timeline};
use lockd_server::clock::Clock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Leaps twenty seconds now and then.
    JumpsAhead,
    /// Goes at a quarter of the pace.
    RunsSlow,
}

pub(crate) fn lying(inner: Arc<dyn Clock>, lie: Lie) -> Arc<dyn Clock> {
    let start = inner.now().tick;
    Arc::new(Lying { inner, lie, start, reads: AtomicU64::new(0) })
}

struct Lying {
    inner: Arc<dyn Clock>,
    lie: Lie,
    start: Tick,
    reads: AtomicU64,
}

const LEAP_EVERY: u64 = 60;
const LEAP: u64 = 20_000;

impl Lying {
    fn leaps(&self) -> Span {
        Span(self.reads.load(Ordering::Relaxed) / LEAP_EVERY * LEAP)
    }
}

impl Clock for Lying {
    fn now(&self) -> Now {
        let now = self.inner.now();
        self.reads.fetch_add(1, Ordering::Relaxed);
        let tick = match self.lie {
            Lie::JumpsAhead => now.tick.plus(self.leaps()),
            Lie::RunsSlow => self.start.plus(Span(self.start.until(now.tick).0 / 4)),
        };
        Now { tick, ..now }
    }

    fn timeline(&self) -> Timeline {
        self.inner.timeline()
    }

    fn sleep_until(&self, tick: Tick) -> BoxFuture<'static, ()> {
        let tick = match self.lie {
            Lie::JumpsAhead => Tick(tick.0.saturating_sub(self.leaps().0)),
            Lie::RunsSlow => self.start.plus(Span(self.start.until(tick).0 * 4)),
        };
        self.inner.sleep_until(tick)
    }
}
