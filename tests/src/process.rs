//! What the kernel says about a process, and signals to it.

use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

/// A line of `/proc/<pid>/status` that is measured in kilobytes, in bytes.
#[must_use]
pub fn memory(pid: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a live process");
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let number = found.and_then(|text| text.trim().strip_suffix("kB"));
    let kilobytes: u64 = number.and_then(|text| text.trim().parse().ok()).expect("a size");
    kilobytes * 1024
}

/// Resident memory now.
#[must_use]
pub fn resident(pid: u32) -> u64 {
    memory(pid, "VmRSS")
}

/// The most it ever was, since [`forget_peak`].
#[must_use]
pub fn peak(pid: u32) -> u64 {
    memory(pid, "VmHWM")
}

pub fn forget_peak(pid: u32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("the peak can be reset");
}

/// Whether the process stands still after a stop signal.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

pub fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_child(child);
    kill_process(pid, signal).expect("a signal to a process of ours");
}

/// The library that tells a process the wrong time.
#[must_use]
pub fn faketime() -> &'static str {
    let places =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let mut files = places.iter().map(|place| format!("{place}/faketime/libfaketime.so.1"));
    let found = files.find(|file| Path::new(file).exists());
    Box::leak(found.expect("libfaketime is missing; install the package faketime").into_boxed_str())
}
