//! Two kinds of time. A [`Tick`] is a place on the server's own timeline, which never goes back:
//! every lease is measured on it. [`UnixMillis`] is wall time, only shown and stored. Reading a
//! clock is left to the shell.

/// Milliseconds on the server's own timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

/// Milliseconds since 1970 by the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

/// The present, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub tick: Tick,
    pub wall: UnixMillis,
}

/// A moment in the future: decided on the timeline, shown by the wall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    pub tick: Tick,
    pub wall: UnixMillis,
}

impl Tick {
    #[must_use]
    pub fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long until `later`; zero when it has passed.
    #[must_use]
    pub fn until(self, later: Self) -> Span {
        Span(later.0.saturating_sub(self.0))
    }
}

impl UnixMillis {
    #[must_use]
    pub fn plus(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Whole seconds, rounded up, as the wire shows them.
    #[must_use]
    pub fn as_secs_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

impl Span {
    pub const ZERO: Self = Self(0);

    #[must_use]
    pub const fn secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000))
    }

    /// Whole seconds, rounded up.
    #[must_use]
    pub fn as_secs_up(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

impl Now {
    #[must_use]
    pub fn plus(self, span: Span) -> Deadline {
        Deadline { tick: self.tick.plus(span), wall: self.wall.plus(span) }
    }
}

impl Deadline {
    #[must_use]
    pub fn is_past(self, now: Now) -> bool {
        self.tick <= now.tick
    }

    #[must_use]
    pub fn remaining(self, now: Now) -> Span {
        now.tick.until(self.tick)
    }
}

/// Which boot of the machine a tick belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootId(pub u128);

/// The timeline of one server process: ticks count from the boot of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    pub boot: BootId,
    /// The present when this process started. Where others write too: the present, whose wall time
    /// is the latest that it can be by the clock that all have in common.
    pub start: Now,
    /// By how much less than that it may be: what others wrote is over only after this as well.
    /// `None` while the clock in common is not known: then nothing that others wrote is over.
    pub slack: Option<Span>,
}

impl Timeline {
    /// Puts a stored deadline on this timeline. Within one boot the tick stands as it is. After a
    /// reboot the wall clock tells what is left, cut to between nothing and the whole `ttl`; it is
    /// read once, at the start of the process, so that later clock steps change no lease.
    #[must_use]
    pub fn place(&self, stored: Deadline, boot: BootId, ttl: Span) -> Deadline {
        if boot == self.boot {
            return stored;
        }
        let Some(slack) = self.slack else {
            // It may just have begun, and is placed anew each time that it is read.
            return Deadline { tick: self.start.tick.plus(ttl), wall: stored.wall };
        };
        let until = stored.wall.plus(slack);
        let most = ttl.0.saturating_add(slack.0);
        let left = Span(until.0.saturating_sub(self.start.wall.0).min(most));
        let Deadline { tick, wall } = self.start.plus(left);
        Deadline { tick, wall: UnixMillis(wall.0.saturating_sub(slack.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::{BootId, Deadline, Now, Span, Tick, Timeline, UnixMillis};

    const TIMELINE: Timeline = Timeline {
        boot: BootId(7),
        start: Now { tick: Tick(500), wall: UnixMillis(1_000_000) },
        slack: Some(Span::ZERO),
    };

    fn stored(tick: u64, wall: u64) -> Deadline {
        Deadline { tick: Tick(tick), wall: UnixMillis(wall) }
    }

    #[test]
    fn same_boot_keeps_the_tick_whatever_the_wall_says() {
        let deadline = stored(90_000, 1);
        assert_eq!(TIMELINE.place(deadline, BootId(7), Span(30_000)), deadline);
    }

    #[test]
    fn after_a_reboot_the_wall_tells_what_is_left() {
        let placed = TIMELINE.place(stored(90_000, 1_010_000), BootId(6), Span(30_000));
        assert_eq!(placed.tick, Tick(10_500));
    }

    #[test]
    fn after_a_reboot_a_stepped_clock_gives_at_most_the_ttl_and_at_least_nothing() {
        let ahead = TIMELINE.place(stored(1, 99_000_000), BootId(6), Span(30_000));
        assert_eq!(ahead.tick, Tick(30_500));
        let behind = TIMELINE.place(stored(1, 5), BootId(6), Span(30_000));
        assert_eq!(behind.tick, Tick(500));
    }

    #[test]
    fn what_others_wrote_is_over_when_the_clock_in_common_is_sure_of_it() {
        let timeline = Timeline { slack: Some(Span(300)), ..TIMELINE };
        let placed = timeline.place(stored(1, 1_010_000), BootId(6), Span(30_000));
        assert_eq!(placed, stored(10_800, 1_010_000), "later, but shown as it was");
        let over = timeline.place(stored(1, 999_700), BootId(6), Span(30_000));
        assert!(over.is_past(TIMELINE.start));
        let almost = timeline.place(stored(1, 999_701), BootId(6), Span(30_000));
        assert!(!almost.is_past(TIMELINE.start));
        let own = stored(600, 5);
        assert_eq!(timeline.place(own, BootId(7), Span(1)), own, "one's own stands as it is");
    }

    #[test]
    fn what_others_wrote_is_never_over_while_the_clock_in_common_is_not_known() {
        let timeline = Timeline { slack: None, ..TIMELINE };
        let placed = timeline.place(stored(1, 5), BootId(6), Span(30_000));
        assert_eq!(placed, stored(30_500, 5));
        assert!(!placed.is_past(TIMELINE.start));
        let own = stored(400, 5);
        assert_eq!(timeline.place(own, BootId(7), Span(1)), own, "its own is not affected");
    }

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(Span(1).as_secs_up(), 1);
        assert_eq!(Span(1_000).as_secs_up(), 1);
        assert_eq!(UnixMillis(1_001).as_secs_up(), 2);
    }
}
