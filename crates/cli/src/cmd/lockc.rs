//! `lockc`: a client for people at a shell, without a server in it. It remembers what it holds in
//! a file of the working folder, so that later commands need no arguments and no environment.
//! What goes over the wire is done by the client commands of `lockd`.

mod acquire;
mod keepalive;
mod release;
mod remembered;
mod state;
mod status;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use lockd_client::LeaseContext;

use super::client::{Global, Manner, Session};
use super::{completions, man};
use crate::bundle::BundleArgs;
use crate::context::Environment;
use crate::exit::{Done, EXIT_CODES, Exit, Problem};
use crate::{ui, usage};
use remembered::{Held, Memory};

/// Hold a key and edit its state from a shell
///
/// Remembers what it holds in .lockc/context.json of this folder, or of the nearest folder above
/// that has one. LOCKC_CONTEXT names another file, for instance one for each shell.
#[derive(Debug, Parser)]
#[command(name = "lockc", version, after_help = after_help())]
struct Cli {
    #[command(flatten)]
    manner: Manner,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Acquire(Box<acquire::AcquireArgs>),
    /// Read and write the state of the key that is held
    #[command(subcommand)]
    State(state::StateCommand),
    Keepalive(keepalive::KeepaliveArgs),
    Release(release::ReleaseArgs),
    Status(status::StatusArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

fn after_help() -> String {
    format!(
        "\
Examples:
  lockc acquire -s lock.example.com -i client.pem orders
  lockc state get -o dump.yaml
  $EDITOR dump.yaml
  lockc state update -i dump.yaml
  lockc keepalive --ttl 30s
  lockc release

{EXIT_CODES}

Environment:
  LOCKC_CONTEXT         the file that remembers what is held
  LOCKD_CLIENT_SERVER   as --server of acquire
  LOCKD_CLIENT_BUNDLE   as --bundle of acquire"
    )
}

#[must_use]
pub fn main() -> ExitCode {
    ui::speak_as("lockc");
    let mut command = Cli::command();
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = command.try_get_matches_from_mut(&words).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((matches, cli))
    });
    let (matches, cli) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage::refused(&error, &command, &words),
    };
    ui::answer_in(usage::format(&matches).unwrap_or(ui::Format::Text));
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return ui::fail(&Problem::failed(format!("cannot start: {error}"))),
    };
    let code = runtime.block_on(run(cli));
    // A blocked read of standard input must not hold up the end.
    runtime.shutdown_background();
    code
}

async fn run(cli: Cli) -> ExitCode {
    let manner = match cli.manner.prepare() {
        Ok(manner) => manner,
        Err(problem) => return ui::fail(&problem),
    };
    let done = match cli.command {
        Command::Acquire(args) => acquire::run(*args, manner).await,
        Command::State(command) => state::run(command, manner).await,
        Command::Keepalive(args) => keepalive::run(args, manner).await,
        Command::Release(args) => release::run(args, manner).await,
        Command::Status(args) => status::run(args, manner).await,
        Command::Completions(args) => return completions::run(&args, Cli::command()),
        Command::Man(args) => return man::run(&args, Cli::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}

/// A connection to where a key is held, and the proof of holding it.
fn reopen(held: &Held, manner: Manner) -> Done<(Session, LeaseContext)> {
    let tls = BundleArgs { bundle: held.bundle.clone(), ..BundleArgs::default() };
    let (server, namespace) = (held.server.clone(), held.namespace.clone());
    let global = Global { server, namespace, tls, manner };
    let session = Session::open(global, Environment::default(), None)?;
    Ok((session, held.context()))
}

/// What is held: the named key, or the one that was acquired last.
fn held(key: Option<&str>) -> Done<(Memory, Held)> {
    let memory = Memory::find()?;
    let held = memory.load()?.choose(key).cloned();
    match (held, key) {
        (Some(held), _) => Ok((memory, held)),
        (None, Some(key)) => Err(Problem::usage(format!(
            "nothing is remembered of {key:?} in {}",
            memory.path().display()
        ))
        .hint("see what is held with `lockc status`")),
        (None, None) => {
            let message = format!("nothing is held, as far as {} knows", memory.path().display());
            Err(Problem::usage(message).hint("acquire a key with `lockc acquire -s SERVER KEY`"))
        }
    }
}

/// Whether a problem means that the lease is over.
fn is_over(problem: &Problem) -> bool {
    problem.exit() == Some(Exit::Lost)
}

/// A time as it is told: whole seconds unless there are none.
fn told(time: Duration) -> String {
    let whole = Duration::from_secs(time.as_secs());
    let shown = if whole.is_zero() { time } else { whole };
    humantime::format_duration(shown).to_string()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
