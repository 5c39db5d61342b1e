//! A signal to a program, and not to what it has started: those who do not know it would die of it.

use std::path::PathBuf;

use lockd_child::Child;
use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};

/// To the program itself, also if a guard stands between.
pub(super) fn send(child: &Child, guarded: bool, signal: Signal) {
    let started = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let program = if guarded { started.and_then(program_of) } else { started };
    let Some(program) = program else {
        tracing::warn!("the controller is not there to be told of its role");
        return;
    };
    if let Err(error) = rustix::process::kill_process(program, signal) {
        tracing::warn!(%error, "the controller could not be told of its role");
    }
}

/// What this process was told to ignore, as `nohup` does, its programs would ignore too, and many
/// could not even ask for it. Heard here, where nothing is done about it, it is as usual for them.
pub(crate) fn let_through(which: Signal) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status, which)
        && let Err(error) = signal(SignalKind::from_raw(which.as_raw()))
    {
        tracing::warn!(%error, "the controller may ignore the signal that tells it of its role");
    }
}

/// Whether a process with this status ignores a signal.
fn is_ignored(status: &str, which: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(which.as_raw() - 1).ok().and_then(|place| 1_u64.checked_shl(place));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

/// The first child of a guard that leads a group of its own: what comes later was left behind by it.
fn program_of(guard: Pid) -> Option<Pid> {
    let threads = PathBuf::from(format!("/proc/{}/task", guard.as_raw_pid()));
    let lists = std::fs::read_dir(threads).ok()?.flatten();
    let lists = lists.filter_map(|one| std::fs::read_to_string(one.path().join("children")).ok());
    let text: String = lists.collect();
    let mut ids = text.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
    ids.find(|id| rustix::process::getpgid(Some(*id)).is_ok_and(|group| group == *id))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_status() {
        let status = "Name:\tlockd\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, Signal::HUP) && is_ignored(status, Signal::PIPE));
        assert!(!is_ignored(status, Signal::USR1) && !is_ignored("", Signal::HUP));
    }

    #[test]
    fn the_program_of_a_guard_is_found() {
        let script = "sleep 60 & setsid sleep 60 & echo $!; read end; kill -9 $! %1";
        let mut guard = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(guard.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let id = Pid::from_raw(i32::try_from(guard.id()).unwrap()).unwrap();
        // It takes a moment to have a group of its own.
        let found = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            program_of(id)
        });
        drop(guard.stdin.take());
        guard.wait().unwrap();
        assert_eq!(found.map(|it| it.as_raw_pid()), line.trim().parse().ok());
    }
}
