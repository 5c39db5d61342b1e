//! What a program measures about itself, under the names that Prometheus users know from all
//! programs. Read from `/proc` when it is asked for; what the system does not tell is left out.

use std::fmt::Write as _;
use std::fs;
use std::sync::{Arc, OnceLock};

use lockd_pki::LiveCredentials;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::Door;

/// The measurements of this process, as a part of a page of `OpenMetrics` text.
#[must_use]
pub fn process_text() -> String {
    let mut text = String::new();
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or("+Inf".to_owned(), |files| files.to_string());
    let files = open_files().map(|files| files.to_string());
    let stat = fs::read_to_string("/proc/self/stat").ok().and_then(|stat| Stat::parse(&stat));
    if let Some(stat) = stat {
        let help = "User and system CPU time spent";
        let cpu = format!("{:.2}", stat.cpu_seconds);
        family(&mut text, "process_cpu_seconds", "counter", help, "_total", &cpu);
        let (help, memory) = ("Resident memory", stat.resident_bytes.to_string());
        family(&mut text, "process_resident_memory_bytes", "gauge", help, "", &memory);
        if let Some(boot) = boot_time() {
            let help = "When the process started, as a unix time";
            let start = format!("{:.2}", boot as f64 + stat.started_after_boot);
            family(&mut text, "process_start_time_seconds", "gauge", help, "", &start);
        }
    }
    if let Some(files) = files {
        family(&mut text, "process_open_fds", "gauge", "Open files and sockets", "", &files);
    }
    family(&mut text, "process_max_fds", "gauge", "Bound on open files and sockets", "", &limit);
    text
}

/// The certificate that a program shows at a port, as it is now.
#[derive(Clone)]
pub struct Certificate(Option<Arc<LiveCredentials>>);

impl Certificate {
    #[must_use]
    pub fn of(door: &Door) -> Self {
        match door {
            Door::Plain => Self(None),
            Door::Tls { live, .. } => Self(Some(Arc::clone(live))),
        }
    }

    /// When it ends, as a part of a page; zero without TLS.
    #[must_use]
    pub fn text(&self) -> String {
        let ends = self.0.as_ref().map_or(0, |live| live.current().own().not_after.as_second());
        let help = "When the certificate ends, as a unix time; zero without TLS";
        let (name, ends) = ("lockd_tls_certificate_end_seconds", ends.to_string());
        let mut text = String::new();
        family(&mut text, name, "gauge", help, "", &ends);
        text
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str, suffix: &str, value: &str) {
    let written =
        write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name}{suffix} {value}\n");
    debug_assert!(written.is_ok(), "writing to a string cannot fail");
}

/// The entries of the folder, but for the one that reads it.
fn open_files() -> Option<usize> {
    fs::read_dir("/proc/self/fd").ok().map(|folder| folder.count().saturating_sub(1))
}

/// Seconds since 1970. It is the same for as long as this process lives.
fn boot_time() -> Option<u64> {
    static BOOT: OnceLock<Option<u64>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
        line.trim().parse().ok()
    })
}

#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    started_after_boot: f64,
    resident_bytes: u64,
}

impl Stat {
    /// The fields are counted from behind the name of the program, which may have spaces.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        // As in proc(5), where the state is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let ticks = clock_ticks_per_second().max(1) as f64;
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
            started_after_boot: field(22)? as f64 / ticks,
            resident_bytes: field(24)? * page_size() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_what_it_uses() {
        let text = process_text();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<f64>().ok())
                .unwrap_or_else(|| panic!("{name}: {text}"))
        };
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        let up = fs::read_to_string("/proc/uptime").unwrap();
        let up: f64 = up.split_whitespace().next().unwrap().parse().unwrap();
        let after_boot = value("process_start_time_seconds") - boot_time().unwrap() as f64;
        assert!(
            (0.0..=up + 1.0).contains(&after_boot),
            "{after_boot} s after the boot, {up} s ago"
        );
        let plain = Certificate::of(&Door::Plain).text();
        assert!(plain.ends_with("lockd_tls_certificate_end_seconds 0\n"), "{plain}");
    }

    #[test]
    fn the_name_of_the_program_may_have_anything_in_it() {
        let fields = "S 1 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 9 0 1200 1 3 4";
        let stat = Stat::parse(&format!("7 (a) b (c)) {fields}")).unwrap();
        let ticks = clock_ticks_per_second() as f64;
        assert_eq!(stat.cpu_seconds, 300.0 / ticks);
        assert_eq!(stat.started_after_boot, 1_200.0 / ticks);
        assert_eq!(stat.resident_bytes, 3 * page_size() as u64);
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }
}
