//! `run`: a command that runs only while a key is held.
//!
//! The command is stopped before the lease can belong to another: when it cannot be renewed, TERM
//! is sent while some time is left and KILL when it is over; when it was taken away, TERM at once
//! and KILL after a grace. Killing this very program cannot stop the command; only the fencing
//! token protects then.

use std::ffi::OsString;
use std::io::{IsTerminal as _, stdin};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use lockd_client::{Lease, ReleaseKind};
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::Instant;

use super::arguments::{Wish, duration};
use super::{Session, acquire};
use crate::context::exports;
use crate::exit::{Done, Exit, Problem};
use crate::ui;

/// Hold a key while a command runs
///
/// Renews the lease for as long as the command runs and releases it afterwards: what the command
/// staged under it is committed if the command succeeds and forgotten if it fails. The command
/// finds the lease in its environment, as after `eval "$(lockd client acquire ...)"`. It is
/// stopped when the lease is lost. SIGINT, SIGTERM and SIGHUP are passed on to it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// The key [env: LOCKD_CLIENT_KEY]
    #[arg(value_name = "KEY")]
    argument: Option<String>,
    /// The key
    #[arg(long, short, value_name = "KEY", conflicts_with = "argument")]
    key: Option<String>,
    #[command(flatten)]
    pub(super) wish: Wish,
    /// How long the command may take to end when it is told to
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    grace: Duration,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  lockd client run --key nightly -- ./backup.sh --full
  lockd client run --key leader --block forever --ttl 10s -- my-server
  lockd client run deploy --block nowait -- sh -c 'echo \"$LOCKD_CLIENT_FENCING_TOKEN\"'

Exits with the code of the command, 128+n if signal n ended it, 75 when the key is held by
another, 76 when the lease was lost and the command was stopped.";

/// How often the time left is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) async fn run(session: &Session, args: RunArgs) -> Done<ExitCode> {
    let key = session.environment.need_key(args.key.or(args.argument))?;
    let mut signals = Signals::new()?;
    let asking = args.wish.acquire(&session.client, Some(key.clone())).into_future();
    let lease = tokio::select! {
        granted = asking => match granted {
            Ok(lease) => lease,
            Err(error) => return Err(acquire::refused(session, Some(&key), error).await),
        },
        signal = signals.next() => {
            session.client.close().await;
            return Ok(code_of_signal(signal));
        }
    };
    let job = match Job::start(&args.command, &lease, session) {
        Ok(job) => job,
        Err(problem) => {
            end(lease, false).await?;
            return Err(problem);
        }
    };
    let ended = job.watch(&lease, &mut signals, args.grace).await;
    let code = match ended {
        Ok(status) => {
            end(lease, status.success()).await?;
            Ok(code_of(status))
        }
        Err(problem) => Err(problem),
    };
    session.client.close().await;
    code
}

/// Lets the key go after the command has ended.
async fn end(lease: Lease, commit: bool) -> Done {
    let key = lease.key().to_owned();
    let done = if commit { lease.release().await } else { lease.rollback().await };
    match done {
        Ok(()) => Ok(()),
        // There was nothing to commit, so the command's own exit code says more.
        Err(error) if !commit && error.kind() != ReleaseKind::Other => {
            ui::note(&format!("{key} was not released, it runs out by itself: {error}"));
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// The command while it runs.
struct Job {
    child: Child,
    pid: Option<Pid>,
    /// Whether it has a process group of its own, with everything it starts.
    grouped: bool,
}

impl Job {
    fn start(command: &[OsString], lease: &Lease, session: &Session) -> Done<Self> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Problem::usage("no command"));
        };
        // At a terminal the command must stay in our group, or it could not read from it.
        let grouped = !stdin().is_terminal();
        let mut command = Command::new(program);
        let exports = exports(lease.grant(), &session.server, session.bundle.as_deref());
        command.args(arguments).envs(exports).kill_on_drop(true);
        if grouped {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let exit = if missing { Exit::NotFound } else { Exit::CannotExecute };
            Problem::new(exit, format!("cannot run {}: {error}", program.display()))
        })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Self { child, pid, grouped })
    }

    /// Waits for the command to end, and ends it when the lease does.
    async fn watch(
        mut self,
        lease: &Lease,
        signals: &mut Signals,
        grace: Duration,
    ) -> Done<ExitStatus> {
        // Well below the time left after an ordinary renewal, which is two thirds.
        let margin = grace.min(lease.grant().ttl / 3);
        loop {
            let lost = tokio::select! {
                ended = self.child.wait() => return ended.map_err(|error| cannot_wait(&error)),
                signal = signals.next() => {
                    self.pass_on(signal);
                    continue;
                }
                lost = lease.lost() => Some(lost),
                () = running_out(lease, margin) => None,
            };
            let (problem, time) = match lost {
                Some(lost) => (Problem::lost(&lost), grace),
                None => {
                    let left = lease.expires_in();
                    (Problem::new(Exit::Lost, "the lease could not be renewed"), left)
                }
            };
            ui::note(&format!("{problem}; stopping the command"));
            self.stop(time).await?;
            return Err(problem);
        }
    }

    /// TERM, and KILL when that does not help in time.
    async fn stop(&mut self, grace: Duration) -> Done {
        self.send(Signal::TERM);
        let deadline = Instant::now() + grace;
        if tokio::time::timeout_at(deadline, self.child.wait()).await.is_err() {
            self.send(Signal::KILL);
        } else if self.grouped {
            // What the command has started does not outlive it.
            self.send(Signal::KILL);
        }
        self.child.wait().await.map_err(|error| cannot_wait(&error))?;
        Ok(())
    }

    fn pass_on(&self, signal: SignalKind) {
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

/// Waits until little time is left because renewing does not work.
async fn running_out(lease: &Lease, margin: Duration) {
    while lease.expires_in() > margin {
        tokio::time::sleep(LOOK_EVERY.min(margin)).await;
    }
    // Lost for a reason of its own, which is told by the other branch.
    if !lease.is_held() {
        std::future::pending::<()>().await;
    }
}

fn cannot_wait(error: &std::io::Error) -> Problem {
    Problem::failed(format!("cannot wait for the command: {error}"))
}

/// The signals that are passed on.
struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
}

impl Signals {
    fn new() -> Done<Self> {
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

    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        }
    }
}

/// 128 and the number of a signal, as shells have it.
fn code_of_signal(signal: SignalKind) -> ExitCode {
    ExitCode::from(128_u8.saturating_add(u8::try_from(signal.as_raw_value()).unwrap_or(0)))
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(1),
        (None, Some(signal)) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(0)),
        (None, None) => 1,
    };
    ExitCode::from(code)
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
    }
}
