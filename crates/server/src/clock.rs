//! The only place of the server that reads clocks. Leases are measured on the boot clock, which
//! runs through suspend and is never set; the wall clock is only shown and stored.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_core::time::{BootId, Now, Span, Tick, Timeline, UnixMillis};
use lockd_store::{StoreNow, StoreTime, TimeUnknown};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Gives the present and waits for moments to come.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Now;

    /// The timeline on which this process places stored leases.
    fn timeline(&self) -> Timeline;

    /// Returns at the given tick or a little later.
    fn sleep_until(&self, tick: Tick) -> BoxFuture<'static, ()>;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    timeline: Timeline,
}

impl SystemClock {
    /// Reads the boot id and the present; the timeline begins here.
    #[must_use]
    pub fn start() -> Self {
        Self { timeline: Timeline { boot: boot_id(), start: read(), slack: Some(Span::ZERO) } }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        read()
    }

    fn timeline(&self) -> Timeline {
        self.timeline
    }

    fn sleep_until(&self, tick: Tick) -> BoxFuture<'static, ()> {
        sleep_until(tick)
    }
}

/// The clock of a server that shares its store with others: ticks are its own, wall time is the
/// store's. Its own leases end on its own clock; those of other servers when the store's clock is
/// sure to have passed their end. The wall clock of the machine is never asked: while the store's
/// time is not known, no lease of another server is over.
#[derive(Clone, Debug)]
pub struct SharedClock {
    boot: BootId,
    time: Arc<StoreTime>,
}

impl SharedClock {
    /// Of a process that has asked the store something before.
    ///
    /// # Errors
    /// When the store has not told its time.
    pub fn start(time: Arc<StoreTime>) -> Result<Self, TimeUnknown> {
        time.check(own_tick(read().tick))?;
        Ok(Self { boot: BootId(rand::random()), time })
    }

    fn read(&self) -> (Now, Option<Span>) {
        let tick = read().tick;
        // It was known at the start, and is never forgotten: from then on it only widens.
        let latest = |now: StoreNow| UnixMillis(now.unix_ms.saturating_add(now.bound_ms));
        let wall = self.time.now(own_tick(tick)).map_or(UnixMillis(0), latest);
        let known = self.time.check(own_tick(tick)).ok();
        (Now { tick, wall }, known.map(|now| Span(now.bound_ms.saturating_mul(2))))
    }
}

fn own_tick(tick: Tick) -> i64 {
    i64::try_from(tick.0).unwrap_or(i64::MAX)
}

impl Clock for SharedClock {
    fn now(&self) -> Now {
        self.read().0
    }

    fn timeline(&self) -> Timeline {
        let (start, slack) = self.read();
        Timeline { boot: self.boot, start, slack }
    }

    fn sleep_until(&self, tick: Tick) -> BoxFuture<'static, ()> {
        sleep_until(tick)
    }
}

fn sleep_until(tick: Tick) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        loop {
            let left = read().tick.until(tick);
            if left == Span::ZERO {
                return;
            }
            // The runtime's timer stands still during a suspend: never sleep long in one go.
            tokio::time::sleep(Duration::from_millis(left.0.min(60_000))).await;
        }
    })
}

#[expect(clippy::disallowed_methods, reason = "this is the clock everybody else asks")]
fn read() -> Now {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let millis = |secs: i64, nanos: i64| {
        u64::try_from(secs.saturating_mul(1_000).saturating_add(nanos / 1_000_000)).unwrap_or(0)
    };
    let wall = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    Now { tick: Tick(millis(boot.tv_sec, boot.tv_nsec)), wall: UnixMillis(wall) }
}

/// Differs after each boot. Where the kernel does not tell, every process start counts as a boot:
/// then stored leases are placed by the wall clock, which errs on the side of their ttl.
fn boot_id() -> BootId {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16).map_or_else(|_| BootId(rand::random()), BootId)
}

/// A clock that stands still until it is told otherwise, for tests and simulations.
#[derive(Clone, Debug)]
pub struct ManualClock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    now: Mutex<(Now, Timeline)>,
    /// Wakes in the order in which they came, so that simulations repeat themselves.
    moved: Notify,
}

impl ManualClock {
    #[must_use]
    pub fn at(now: Now) -> Self {
        let timeline = Timeline { boot: BootId(1), start: now, slack: Some(Span::ZERO) };
        let shared = Shared { now: Mutex::new((now, timeline)), moved: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Both clocks go on.
    pub fn advance(&self, span: Span) {
        {
            let mut now = self.shared.now.lock();
            now.0.tick = now.0.tick.plus(span);
            now.0.wall = now.0.wall.plus(span);
        }
        self.shared.moved.notify_waiters();
    }

    /// Somebody sets the wall clock.
    pub fn set_wall(&self, wall: UnixMillis) {
        self.shared.now.lock().0.wall = wall;
    }

    /// The process starts anew; with another boot id the machine did too, and ticks begin again.
    pub fn restart(&self, boot: BootId) {
        {
            let mut now = self.shared.now.lock();
            if boot != now.1.boot {
                now.0.tick = Tick(1);
            }
            now.1 = Timeline { boot, start: now.0, slack: Some(Span::ZERO) };
        }
        self.shared.moved.notify_waiters();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        self.shared.now.lock().0
    }

    fn timeline(&self) -> Timeline {
        self.shared.now.lock().1
    }

    fn sleep_until(&self, tick: Tick) -> BoxFuture<'static, ()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            loop {
                // Made before looking: a move in between is not missed.
                let moved = shared.moved.notified();
                if shared.now.lock().0.tick >= tick {
                    return;
                }
                moved.await;
            }
        })
    }
}

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "a measurement decides nothing")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
