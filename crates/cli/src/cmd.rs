//! One command per file. Each returns an exit code; errors are told on standard error. The
//! commands that need no server in this process are in the library.

pub(crate) mod agent;
pub(crate) mod config;
pub(crate) mod controller;
pub(crate) mod coordinator;
pub(crate) mod demo;
pub(crate) mod guard;
pub(crate) mod node_controller;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod verify;
pub(crate) mod version;

mod daemon;
mod reach;

use std::io::Write as _;
use std::process::ExitCode;

use clap::ArgMatches;
use lockd_cli::cmd::{auth, client, cluster, completions, explain, ha, man, txn};
use lockd_cli::exit::Problem;
use lockd_cli::ui;
use lockd_client::chain;

use crate::args::{self, Cli, Command};

pub(crate) async fn run(cli: Cli, matches: &ArgMatches) -> ExitCode {
    match cli.command {
        None => server::run(cli.config, matches).await,
        Some(Command::Client(args)) => Box::pin(client::run(*args)).await,
        Some(Command::Auth(args)) => auth::run(*args),
        Some(Command::Txn(args)) => Box::pin(txn::run(*args)).await,
        Some(Command::Coordinator(args)) => Box::pin(coordinator::run(*args)).await,
        Some(Command::Cluster(args)) => Box::pin(cluster::run(*args)).await,
        Some(Command::NodeController(args)) => Box::pin(node_controller::run(*args)).await,
        Some(Command::Controller(args)) => Box::pin(controller::run(*args)).await,
        Some(Command::Agent(args)) => Box::pin(agent::run(*args)).await,
        Some(Command::Ha(args)) => Box::pin(ha::run(*args)).await,
        Some(Command::Guard(args)) => guard::run(args).await,
        Some(Command::Demo) => demo::run().await,
        Some(Command::DemoWorker(args)) => demo::work(args).await,
        Some(Command::Config(command)) => config::run(&command, cli.config, matches),
        Some(Command::Store(command)) => store::run(command).await,
        Some(Command::Verify(command)) => verify::run(command, cli.config, matches).await,
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Completions(args)) => completions::run(&args, args::command()),
        Some(Command::Man(args)) => man::run(&args, args::command()),
        Some(Command::Version { output }) => version::run(output),
    }
}

/// A line on standard output. A reader that has gone away is no error of ours.
pub(crate) fn say(line: &str) {
    let _written = writeln!(std::io::stdout(), "{line}").is_ok();
}

/// An error with its causes, each said once.
pub(crate) fn told(error: &anyhow::Error) -> String {
    chain(&**error)
}

/// An error on standard error, and the exit code that goes with it.
pub(crate) fn failed(error: &str) -> ExitCode {
    ui::fail(&Problem::failed(error))
}

/// As [`failed`], for what was asked for and cannot be.
pub(crate) fn wrong(error: &str) -> ExitCode {
    ui::fail(&Problem::usage(error))
}
