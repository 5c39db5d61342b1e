//! Connections are open files: `max-connections` is brought down to what the hard limit leaves, before
//! the server takes more than it can serve.

use rustix::process::{Resource, getrlimit};

use super::Settings;

/// Files of the store, listeners and connections to others.
const FILES_APART: u64 = 1_024;

impl Settings {
    /// Lowers `max_connections` where the hard limit for open files allows fewer, and says so.
    pub fn fit_open_files(&mut self) -> Option<String> {
        let hard = getrlimit(Resource::Nofile).maximum?;
        let wanted = self.max_connections;
        self.max_connections = fitting(wanted, hard)?;
        let (lowered, files) = (self.max_connections, wanted as u64 + FILES_APART);
        Some(format!(
            "max-connections lowered from {wanted} to {lowered}: the hard limit for open files is \
             {hard}; raise it to {files} (LimitNOFILE= of systemd, ulimit -Hn)"
        ))
    }
}

/// How many connections fit, where fewer do than are wanted. Half of the files are for connections
/// at least, however few there are.
fn fitting(wanted: usize, hard: u64) -> Option<usize> {
    let room = hard.saturating_sub(FILES_APART).max(hard / 2).max(1);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    (room < wanted).then_some(room)
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn a_low_hard_limit_lowers_the_connections_and_a_high_one_does_not() {
        for (wanted, hard, expected) in [
            (12_000, 1_048_576, None),
            (12_000, 13_024, None),
            (12_000, 13_023, Some(11_999)),
            (12_000, 4_096, Some(3_072)),
            (12_000, 1_024, Some(512)),
            (12_000, 0, Some(1)),
            (100, 1_024, None),
        ] {
            assert_eq!(fitting(wanted, hard), expected, "{wanted} of {hard}");
        }
    }
}
