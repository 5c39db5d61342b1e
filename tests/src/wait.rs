//! Waiting for events. A test says what must come true and how long that may take; it never
//! sleeps and hopes.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until `holds`; panics after `deadline`, saying what did not come about.
#[track_caller]
pub fn within(deadline: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let found = try_within(deadline, || holds().then_some(()));
    assert!(found.is_some(), "not within {deadline:?}: {what}");
}

/// For things that must happen but not by a certain time. A machine with much else to do may
/// stand still for seconds.
const GENEROUS: Duration = Duration::from_secs(60);

/// Waits for a generous while.
#[track_caller]
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    within(GENEROUS, what, holds);
}

/// Waits until there is something to return.
#[track_caller]
pub fn eventually_some<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    match try_within(GENEROUS, look) {
        Some(found) => found,
        None => panic!("not within {GENEROUS:?}: {what}"),
    }
}

/// What `look` found before the deadline.
pub fn try_within<T>(deadline: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if start.elapsed() > deadline {
            return None;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}
