//! The machine under the run: the facts that a reader of the table needs, and the one limit that a
//! run has to raise.

use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process and its children open as many files as they may.
pub(crate) fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("raise the limit of open files")
}

pub(crate) fn files_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// One line: processors, memory, kernel and the file system of the stores.
pub(crate) fn facts(dir: &Path) -> Result<String> {
    let cores = std::thread::available_parallelism()?;
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, name)| name.trim());
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_ascii_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0);
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let build = if cfg!(debug_assertions) { "; DEBUG BUILD, figures mean nothing" } else { "" };
    Ok(format!(
        "{cores} cores ({model}), {} GiB, Linux {release}, stores on {}{build}",
        (kibibytes + (1 << 19)) >> 20,
        file_system(dir)?,
    ))
}

fn file_system(dir: &Path) -> Result<String> {
    let kind = rustix::fs::statfs(dir).with_context(|| format!("statfs {}", dir.display()))?.f_type;
    Ok(match kind {
        0x0102_1994 => "tmpfs (nothing is durable there, figures mean nothing)".into(),
        0xef53 => "ext4".into(),
        0x5846_5342 => "xfs".into(),
        0x794c_7630 => "overlayfs".into(),
        other => format!("file system {other:#x}"),
    })
}
