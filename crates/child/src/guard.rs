//! The guard: a process between a program and whoever started it. It holds one end of a pipe; when
//! the other end is closed it kills the program and everything that the program has started, also
//! what has left its process group, and reaps all of it.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;
use tokio::signal::unix::{SignalKind, signal};

/// Sent through the pipe to have the program asked to end.
const TERMINATE: u8 = b'T';

pub(crate) fn no_command() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the command is empty")
}

pub(crate) async fn ask_to_terminate(guard: &mut ChildStdin) -> io::Result<()> {
    guard.write_all(&[TERMINATE]).await?;
    guard.flush().await
}

/// Runs a command until it ends, or standard input is closed. Returns its exit code; 128 and the
/// signal for one that was killed.
///
/// # Errors
/// When the command cannot be started.
pub async fn guard(command: &[OsString]) -> io::Result<i32> {
    let (program, arguments) = command.split_first().ok_or_else(no_command)?;
    let mut unheard = Vec::new();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        unheard.push(signal(kind)?);
    }
    // What the program leaves behind becomes a child of this process, not of the system's first.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let child =
        Command::new(program).args(arguments).stdin(Stdio::null()).process_group(0).spawn()?;
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(no_command)?;
    // Reading a pipe cannot be given up, so it has a thread of its own.
    std::thread::spawn(move || obey(id));
    let ended = tokio::task::spawn_blocking(move || reap(id)).await;
    drop(unheard);
    ended.map_err(io::Error::other)?
}

/// Does what is asked through the pipe; when it is closed, ends everything.
fn obey(group: Pid) {
    let mut byte = [0];
    while matches!(io::stdin().read(&mut byte), Ok(1)) {
        if byte == [TERMINATE] {
            let _sent = rustix::process::kill_process_group(group, Signal::TERM).is_ok();
        }
    }
    let _sent = rustix::process::kill_process_group(group, Signal::KILL).is_ok();
}

/// Waits for the program, then ends and reaps whatever it has left behind.
fn reap(program: Pid) -> io::Result<i32> {
    let mut code = None;
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => code = Some(code_of(status)),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Nobody is left.
            Err(Errno::CHILD) => return Ok(code.unwrap_or(0)),
            Err(error) => return Err(error.into()),
        }
        if code.is_some() {
            let _sent = rustix::process::kill_process_group(program, Signal::KILL).is_ok();
            for child in children() {
                let _sent = rustix::process::kill_process(child, Signal::KILL).is_ok();
            }
        }
    }
}

fn code_of(status: WaitStatus) -> i32 {
    let killed = || 128 + status.terminating_signal().unwrap_or(0);
    status.exit_status().unwrap_or_else(killed)
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
