//! `run`: a command that runs only while a key is held.
//!
//! The command is stopped before the lease can belong to another: when it cannot be renewed, TERM
//! is sent while some time is left and KILL when it is over; when it was taken away, TERM at once
//! and KILL after a grace. Killing this very program cannot stop the command; only the fencing
//! token protects then.

use std::ffi::OsString;
use std::io::{IsTerminal as _, stdin};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use lockd_client::{Lease, ReleaseKind};

use super::arguments::{Wish, duration};
use super::job::{Job, Signals, code_of, code_of_signal};
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
    #[arg(value_name = "KEY", value_parser = crate::context::name)]
    argument: Option<String>,
    /// The key
    #[arg(long, short, value_name = "KEY", conflicts_with = "argument",
          value_parser = crate::context::name)]
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
    let job = match start(&args.command, &lease, session) {
        Ok(job) => job,
        Err(problem) => {
            end(lease, false).await?;
            return Err(problem);
        }
    };
    let ended = watch(job, &lease, &mut signals, args.grace).await;
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

/// Starts the command under the lease.
fn start(command: &[OsString], lease: &Lease, session: &Session) -> Done<Job> {
    // At a terminal the command must stay in our group, or it could not read from it.
    let grouped = !stdin().is_terminal();
    let exports = exports(lease.grant(), &session.server, session.bundle.as_deref());
    Job::start(command, grouped, |command| {
        command.envs(exports);
    })
}

/// Waits for the command to end, and ends it when the lease does.
async fn watch(
    mut job: Job,
    lease: &Lease,
    signals: &mut Signals,
    grace: Duration,
) -> Done<ExitStatus> {
    // Well below the time left after an ordinary renewal, which is two thirds.
    let margin = grace.min(lease.grant().ttl / 3);
    loop {
        let lost = tokio::select! {
            ended = job.wait() => return ended,
            signal = signals.next() => {
                job.pass_on(signal);
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
        job.stop(time).await?;
        return Err(problem);
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
