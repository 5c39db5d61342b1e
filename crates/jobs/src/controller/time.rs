//! The time of an office: the wall's at its beginning, and from there on the boot clock's. Somebody
//! who sets the clock during an office changes nothing in it.

use std::time::Duration;

use lockd_client::clock::{Clock, Moment};

/// Where a controller has its time from.
#[derive(Clone, Debug)]
pub(crate) struct Time {
    pub(crate) clock: Clock,
    /// How far the wall is ahead of the clock's; for tests.
    pub(crate) ahead_ms: u64,
}

impl Time {
    pub(crate) fn unix_ms(&self) -> u64 {
        self.clock.unix_ms().saturating_add(self.ahead_ms)
    }

    pub(crate) fn begin(&self) -> OfficeTime {
        OfficeTime { clock: self.clock.clone(), began: self.clock.now(), began_ms: self.unix_ms() }
    }
}

/// Counts from when an office was taken.
#[derive(Clone, Debug)]
pub(crate) struct OfficeTime {
    clock: Clock,
    began: Moment,
    began_ms: u64,
}

impl OfficeTime {
    pub(crate) fn now(&self) -> u64 {
        let since = self.clock.now().since(self.began).as_millis();
        self.began_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    pub(crate) fn moment(&self) -> Moment {
        self.clock.now()
    }

    /// That long, also while the machine sleeps.
    pub(crate) async fn sleep(&self, span: Duration) {
        self.clock.sleep_until(self.clock.now().plus(span)).await;
    }
}
