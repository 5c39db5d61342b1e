//! What time a double says it is. A test may shift it, because a service should not believe it.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

#[derive(Debug, Default)]
pub(crate) struct Clock {
    offset_ms: AtomicI64,
}

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        let real = Timestamp::now().as_millisecond();
        let shifted = real.saturating_add(self.offset_ms.load(Ordering::Relaxed));
        Timestamp::from_millisecond(shifted).expect("an offset that leaves a date")
    }

    pub(crate) fn set_offset(&self, ms: i64) {
        self.offset_ms.store(ms, Ordering::Relaxed);
    }
}

/// As in the headers of HTTP: whole seconds.
pub(crate) fn http_date(at: Timestamp) -> String {
    DateTimePrinter::new().timestamp_to_rfc9110_string(&at).expect("a year with four digits")
}

/// As in listings: milliseconds.
pub(crate) fn iso_date(at: Timestamp) -> String {
    format!("{at:.3}")
}
