//! A command that runs on behalf of a lease or a message, and is stopped with it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::Instant;

use crate::exit::{Done, Exit, Problem};

/// The command while it runs. It does not outlive this.
pub(super) struct Job {
    child: Child,
    pid: Option<Pid>,
    /// Whether it has a process group of its own, with everything it starts.
    grouped: bool,
}

impl Job {
    /// Starts a command, after `prepare` had a look at it.
    pub(super) fn start(
        command: &[OsString],
        grouped: bool,
        prepare: impl FnOnce(&mut Command),
    ) -> Done<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Problem::usage("no command"));
        };
        let mut command = Command::new(program);
        command.args(arguments).kill_on_drop(true);
        if grouped {
            command.process_group(0);
        }
        prepare(&mut command);
        let child = command.spawn().map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let exit = if missing { Exit::NotFound } else { Exit::CannotExecute };
            Problem::new(exit, format!("cannot run {}: {error}", program.display()))
        })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, pid, grouped })
    }

    pub(super) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    pub(super) async fn wait(&mut self) -> Done<ExitStatus> {
        let ended = self.child.wait().await;
        ended.map_err(|error| Problem::failed(format!("cannot wait for the command: {error}")))
    }

    /// TERM, and KILL when that does not help in time.
    pub(super) async fn stop(&mut self, grace: Duration) -> Done {
        self.send(Signal::TERM);
        let deadline = Instant::now() + grace;
        if tokio::time::timeout_at(deadline, self.child.wait()).await.is_err() {
            self.send(Signal::KILL);
        } else if self.grouped {
            // What the command has started does not outlive it.
            self.send(Signal::KILL);
        }
        self.wait().await?;
        Ok(())
    }

    pub(super) fn pass_on(&self, signal: SignalKind) {
        // At a terminal the whole group has got the interrupt already.
        if !self.grouped && signal == SignalKind::interrupt() {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(signal.as_raw_value()) {
            self.send(signal);
        }
    }

    fn send(&self, signal: Signal) {
        let Some(pid) = self.pid else { return };
        let sent = if self.grouped {
            rustix::process::kill_process_group(pid, signal)
        } else if self.child.id().is_some() {
            rustix::process::kill_process(pid, signal)
        } else {
            return;
        };
        if let Err(error) = sent {
            tracing::debug!(%error, ?signal, "signal not delivered");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.child.id().is_some() {
            self.send(Signal::KILL);
        }
    }
}

/// The signals that a person or a service manager sends.
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    pub(super) fn new() -> Done<Self> {
        let listen = |kind| {
            unix::signal(kind)
                .map_err(|error| Problem::failed(format!("cannot catch signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    pub(super) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        }
    }
}

/// 128 and the number of a signal, as shells have it.
pub(super) fn code_of_signal(signal: SignalKind) -> ExitCode {
    ExitCode::from(128_u8.saturating_add(u8::try_from(signal.as_raw_value()).unwrap_or(0)))
}

pub(super) fn code_of(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)),
        (None, None) => 1,
    };
    ExitCode::from(code)
}

/// How a command ended, for people.
pub(super) fn ending_of(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("the command exited with code {code}"),
        (None, Some(signal)) => format!("the command was ended by signal {signal}"),
        (None, None) => "the command ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_command() {
        assert_eq!(code_of(ExitStatus::from_raw(3 << 8)), ExitCode::from(3));
        assert_eq!(code_of(ExitStatus::from_raw(0)), ExitCode::from(0));
        assert_eq!(code_of(ExitStatus::from_raw(15)), ExitCode::from(143));
        assert_eq!(code_of_signal(SignalKind::interrupt()), ExitCode::from(130));
        assert_eq!(ending_of(ExitStatus::from_raw(9)), "the command was ended by signal 9");
    }
}
