//! The guard: a process between a program and whoever started it. When the other end of its
//! standard input is closed it kills the program and everything that the program has started, also
//! what has left its process group, and reaps all of it.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use tokio::signal::unix::{SignalKind, signal};

use crate::tether::{Starter, TERMINATE, Word};

pub(crate) fn no_command() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the command is empty")
}

/// Runs a command until it ends, or the other end of standard input is closed. Returns its exit
/// code; 128 and the signal for one that was killed.
///
/// # Errors
/// When the command cannot be started.
pub async fn guard(command: &[OsString]) -> io::Result<i32> {
    let mut unheard = Vec::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        unheard.push(signal(kind)?);
    }
    let command = command.to_vec();
    let ended = tokio::task::spawn_blocking(move || keep(&command)).await;
    drop(unheard);
    ended.map_err(io::Error::other)?
}

fn keep(command: &[OsString]) -> io::Result<i32> {
    // What the program leaves behind becomes a child of this process, not of the system's first.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let files = std::env::var_os(crate::files::VARIABLE);
    crate::files::lower(files.as_deref().and_then(|files| files.to_str()));
    let starter = Starter::find();
    let program = start(command, starter.input()?).inspect_err(|error| {
        let number = error.raw_os_error().unwrap_or_else(|| Errno::INVAL.raw_os_error());
        starter.tell(Word::Failed(number));
    })?;
    starter.tell(Word::Group(program.as_raw_pid()));
    // Its number may become somebody else's when it has ended; this does not.
    let held = rustix::process::pidfd_open(program, PidfdFlags::empty()).ok();
    // Reading cannot be given up, so it has a thread of its own.
    std::thread::spawn(move || obey(program, held));
    let status = reap(program)?;
    let killed_by = status.and_then(WaitStatus::terminating_signal);
    let code = status.and_then(WaitStatus::exit_status).unwrap_or(0);
    starter.tell(killed_by.map_or(Word::Code(code), Word::Signal));
    Ok(killed_by.map_or(code, |signal| 128 + signal))
}

fn start(command: &[OsString], input: Option<OwnedFd>) -> io::Result<Pid> {
    let (program, arguments) = command.split_first().ok_or_else(no_command)?;
    let child = Command::new(program)
        .args(arguments)
        .env_remove(crate::files::VARIABLE)
        .stdin(input.map_or_else(Stdio::null, Stdio::from))
        .process_group(0)
        .spawn()?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(no_command)
}

/// Does what is asked; when nobody is there to ask any more, ends everything.
fn obey(group: Pid, program: Option<OwnedFd>) {
    let mut byte = [0];
    while matches!(io::stdin().read(&mut byte), Ok(1)) {
        if byte == [TERMINATE] {
            let _sent = rustix::process::kill_process_group(group, Signal::TERM).is_ok();
        }
    }
    let _sent = rustix::process::kill_process_group(group, Signal::KILL).is_ok();
    // It may have left its group. What it leaves behind is ended when it has.
    if let Some(program) = program {
        let _sent = rustix::process::pidfd_send_signal(program, Signal::KILL).is_ok();
    }
}

/// Waits for the program, then ends and reaps whatever it has left behind.
fn reap(program: Pid) -> io::Result<Option<WaitStatus>> {
    let mut ended = None;
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => ended = Some(status),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Nobody is left.
            Err(Errno::CHILD) => return Ok(ended),
            Err(error) => return Err(error.into()),
        }
        if ended.is_some() {
            let _sent = rustix::process::kill_process_group(program, Signal::KILL).is_ok();
            for child in children() {
                let _sent = rustix::process::kill_process(child, Signal::KILL).is_ok();
            }
        }
    }
}

/// All children of this process, whichever thread has started or inherited them.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|one| std::fs::read_to_string(one.path().join("children")).ok());
    let of = |list: String| -> Vec<Pid> {
        list.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
    };
    lists.flat_map(of).collect()
}
