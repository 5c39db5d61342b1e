//! What the kernel tells about a process: its memory and the processor time that it has used.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// A server counts as resting when it has been quiet for this many looks in a row.
const QUIET_LOOKS: u32 = 4;
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Resident memory in bytes.
pub(crate) fn memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("read status")?;
    resident(&status).context("no VmRSS")
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Processor time of all threads, in user and kernel mode.
pub(crate) fn processor_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).context("read stat")?;
    let ticks = ticks(&stat).context("no processor time")?;
    Ok(Duration::from_micros(ticks * 1_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

fn ticks(stat: &str) -> Option<u64> {
    // The name is in parentheses and may contain anything; the fields behind it are numbers.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some(user + kernel)
}

/// Waits until the process neither works nor grows; false if that takes longer than `limit`.
pub(crate) async fn settle(pid: u32, limit: Duration) -> Result<bool> {
    let start = Instant::now();
    let mut last = (memory(pid)?, processor_time(pid)?);
    let mut quiet = 0;
    while quiet < QUIET_LOOKS {
        if start.elapsed() >= limit {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let now = (memory(pid)?, processor_time(pid)?);
        let worked = now.1.saturating_sub(last.1) > LOOK_EVERY / 12;
        let grew = now.0.abs_diff(last.0) > last.0 / 100;
        quiet = if worked || grew { 0 } else { quiet + 1 };
        last = now;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmHWM:\t  99 kB\nVmRSS:\t    1234 kB\n"), Some(1234 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
        assert!(memory(std::process::id()).unwrap() > 100_000);
    }

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c d) S 1 2 3 4 5 6 7 8 9 10 300 45 0 0 20 0";
        assert_eq!(ticks(stat), Some(345));
        assert_eq!(ticks("7 (x) S 1"), None);
        processor_time(std::process::id()).unwrap();
    }
}
