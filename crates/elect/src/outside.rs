//! What the locks in other people's servers share.

use std::time::Duration;

use lockd_client::clock::{Clock, Moment};
use parking_lot::Mutex;

use crate::lock::Memory;

/// When a lock was last found to have forgotten something. Whoever is granted it within a time to
/// live after that is told, also if the answer to the first attempt was lost.
#[derive(Debug, Default)]
pub(crate) struct Forgetting(Mutex<Option<Moment>>);

impl Forgetting {
    /// What to tell about a grant that finds things as they were left, or not.
    pub(crate) fn after(&self, kept: bool, ttl: Duration) -> Memory {
        let now = Clock::Boot.now();
        let mut found = self.0.lock();
        if !kept {
            *found = Some(now);
        }
        match *found {
            Some(found) if now.since(found) < ttl => Memory::Lost { ago: now.since(found) },
            Some(_) | None => Memory::Kept,
        }
    }
}
