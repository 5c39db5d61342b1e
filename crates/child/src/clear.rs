//! Clearing away what a guard has left that was killed itself. Whatever runs under a guard carries
//! its mark in the environment, also what has left the group; only what has taken the mark off and
//! left the group gets away.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::time::ClockId;

/// The variable with the mark.
const VARIABLE: &str = "LOCKD_GUARD";
/// How often is looked for more, and how long between.
const ROUNDS: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(20);

/// Of one guard and what is under it.
#[derive(Clone, Debug)]
pub(crate) struct Mark(String);

impl Mark {
    /// One that nobody on this machine has had since it was started.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let since_boot = rustix::time::clock_gettime(ClockId::Monotonic);
        Self(format!("{process}-{count}-{}-{}", since_boot.tv_sec, since_boot.tv_nsec))
    }

    pub(crate) fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.0)
    }

    /// Kills the group, and everybody with this mark, until nobody is left. Takes a second at most.
    pub(crate) fn clear(&self, group: Option<Pid>) {
        for _ in 0..ROUNDS {
            if let Some(group) = group {
                let _sent = rustix::process::kill_process_group(group, Signal::KILL).is_ok();
            }
            if self.kill_all() == 0 {
                return;
            }
            std::thread::sleep(BETWEEN);
        }
    }

    /// How many there were.
    fn kill_all(&self) -> usize {
        let wanted = format!("{VARIABLE}={}", self.0);
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = all.filter_map(|one| Pid::from_raw(one.file_name().to_str()?.parse().ok()?));
        ids.filter(|id| kill_if_marked(*id, wanted.as_bytes())).count()
    }
}

fn kill_if_marked(id: Pid, wanted: &[u8]) -> bool {
    // Held before it is looked at, so that the number cannot become somebody else's.
    let Ok(held) = rustix::process::pidfd_open(id, PidfdFlags::empty()) else { return false };
    let path = format!("/proc/{}/environ", id.as_raw_pid());
    let Ok(variables) = std::fs::read(path) else { return false };
    let is_marked = variables.split(|byte| *byte == 0).any(|one| one == wanted);
    is_marked && rustix::process::pidfd_send_signal(&held, Signal::KILL).is_ok()
}
