//! Starting, asking to end, and ending.

use std::ffi::OsString;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::{ChildStdin, Command};
use tokio::task::JoinHandle;

use crate::{guard, lines};

/// How long the last lines are waited for.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What is to be run.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Set in its environment, besides that of this process.
    pub environment: Vec<(String, String)>,
    /// Taken out of its environment first: secrets of this process.
    pub hidden: Vec<String>,
    /// A command that runs [`guard`](crate::guard) on the arguments after it.
    pub guard: Vec<OsString>,
}

/// Where a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

/// A program that runs. Dropped, it is killed with everything it has started.
#[derive(Debug)]
pub struct Child {
    child: tokio::process::Child,
    reach: Reach,
    readers: Vec<JoinHandle<()>>,
}

/// How signals get to it.
#[derive(Debug)]
enum Reach {
    /// To its group.
    Group(Option<Pid>),
    /// Through its guard, which ends everything when this is closed: also when this process ends,
    /// however it ends.
    Guard(Option<ChildStdin>),
}

impl Child {
    /// Starts it. Every line that it writes is handed over, cut to [`LINE_MAX`](crate::LINE_MAX).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        program: &Program,
        on_line: impl Fn(Stream, &str) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let guarded = !program.guard.is_empty();
        let mut words =
            program.guard.iter().cloned().chain(program.command.iter().map(OsString::from));
        let mut command = Command::new(words.next().ok_or_else(guard::no_command)?);
        for name in &program.hidden {
            command.env_remove(name);
        }
        command
            .args(words)
            .envs(program.environment.iter().map(|(name, value)| (name, value)))
            .stdin(if guarded { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            // A guard has something to do before it ends.
            .kill_on_drop(!guarded);
        let mut child = command.spawn()?;
        let mut readers = Vec::new();
        if let Some(output) = child.stdout.take() {
            readers.push(lines::read(output, Stream::Output, on_line.clone()));
        }
        if let Some(error) = child.stderr.take() {
            readers.push(lines::read(error, Stream::Error, on_line));
        }
        let group = || child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let reach = if guarded { Reach::Guard(child.stdin.take()) } else { Reach::Group(group()) };
        Ok(Self { child, reach, readers })
    }

    /// Until it has ended, all of it, and its lines were handed over.
    ///
    /// # Errors
    /// When the system does not tell.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let ended = self.child.wait().await;
        self.kill();
        for reader in self.readers.drain(..) {
            // Somebody who got away may hold the pipe.
            let _read = tokio::time::timeout(LAST_LINES, reader).await.is_ok();
        }
        ended
    }

    /// Asks all of its group to end.
    pub async fn terminate(&mut self) {
        match &mut self.reach {
            Reach::Group(group) => signal(*group, Signal::TERM),
            Reach::Guard(guard) => {
                if let Some(guard) = guard {
                    // One that is gone has ended everything.
                    let _asked = guard::ask_to_terminate(guard).await.is_ok();
                }
            }
        }
    }

    /// Ends all of it at once.
    pub fn kill(&mut self) {
        match &mut self.reach {
            Reach::Group(group) => signal(group.take(), Signal::KILL),
            Reach::Guard(guard) => drop(guard.take()),
        }
    }

    /// Its process id, while it runs; that of its guard where it has one.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // Nobody may be left.
        let _sent = rustix::process::kill_process_group(group, signal).is_ok();
    }
}
