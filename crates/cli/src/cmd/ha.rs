//! `lockd ha`: nodes of which one leads, looked at and led by hand.

mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use lockd_coordinator::sidecar::span;
use lockd_wire::node::{HaStatus, History, PauseAsk, SwitchoverAsk, SwitchoverDone};

use super::look::LookArgs;
use crate::ask::{Asker, Target};
use crate::exit::{Done, EXIT_CODES, Exit, Problem};
use crate::ports;
use crate::ui::{self, Format};

/// For all but a hand-over: a node asks the others before it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Look at nodes of which one leads, and hand over by hand
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct HaArgs {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: HaCommand,
}

/// How a node is reached.
#[derive(Debug, Args)]
struct Reach {
    /// Any of the nodes
    #[arg(
        long,
        env = "LOCKD_HA_URL",
        value_name = "URL",
        default_value = ports::node::URL,
        global = true
    )]
    url: String,
    /// A file with the token to show
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// The bundle of a client to show, for https
    #[arg(long, value_name = "FILE", global = true)]
    bundle: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum HaCommand {
    /// Who leads, who could, and how each of them fares
    Status(LookArgs),
    /// Hand the leadership over, without losing a request
    Switchover {
        /// To this node, instead of any that can
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
        /// Kept in the history
        #[arg(long)]
        reason: Option<String>,
        /// How long to wait for the end: what is under way is drained, programs are stopped, and
        /// the next controller is opened
        #[arg(long, value_name = "TIME", default_value = "2m", value_parser = span)]
        timeout: Duration,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Let nobody take over by itself, as for maintenance; whoever leads goes on
    Pause {
        /// Kept in the log of the nodes
        #[arg(long)]
        reason: Option<String>,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// End a pause
    Resume {
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// What the nodes became, when and why
    History {
        /// How many of the latest
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// How to print it
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
}

impl HaCommand {
    /// How long an answer may take.
    fn patience(&self) -> Duration {
        match self {
            Self::Switchover { timeout, .. } => *timeout,
            Self::Status(_) | Self::Pause { .. } | Self::Resume { .. } | Self::History { .. } => {
                PATIENCE
            }
        }
    }
}

fn after_help() -> String {
    format!(
        "\
Examples:
  lockd ha status
  lockd ha status --watch
  lockd ha switchover --to b --reason 'new kernel' --timeout 5m
  lockd ha pause --reason 'database maintenance'
  lockd ha resume
  lockd ha history --limit 50 --output json
  lockd ha --url https://node-b:9344 --bundle client.pem status

Any node can be asked: what only the leader can do is passed on to it.
`status` exits with 3 when nobody leads or a node is not heard of.

{EXIT_CODES}"
    )
}

pub async fn run(args: HaArgs) -> ExitCode {
    match dispatch(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}

async fn dispatch(args: HaArgs) -> Done {
    let asker = Asker::new(Target {
        url: args.reach.url,
        token: None,
        token_file: args.reach.token_file,
        bundle: args.reach.bundle,
        base: lockd_wire::node::HA,
        what: "node of lockd",
        missing: "start one with `lockd node-controller`, or name another with --url",
        look: "`lockd ha status`, and then `lockd ha history`,",
        patience: args.command.patience(),
    })?;
    match args.command {
        HaCommand::Status(look) => {
            look.again_and_again(async || status(&asker, look.output).await).await
        }
        HaCommand::Switchover { to, reason, timeout: _, output } => {
            let done: SwitchoverDone =
                asker.tell("switchover", &SwitchoverAsk { to, reason }).await?;
            ui::print(output, &done, || show::switchover(&done))
        }
        HaCommand::Pause { reason, output } => {
            let status: HaStatus = asker.tell("pause", &PauseAsk { reason }).await?;
            let what = "paused: nobody takes over by itself until `lockd ha resume`";
            noted(output, &status, what)
        }
        HaCommand::Resume { output } => {
            let status: HaStatus = asker.tell("resume", &PauseAsk::default()).await?;
            noted(output, &status, "resumed")
        }
        HaCommand::History { limit, output } => {
            let mut history: History = asker.get("history?all=1").await?;
            let old = history.transitions.len().saturating_sub(limit);
            history.transitions.drain(..old);
            ui::print(output, &history, || show::history(&history))
        }
    }
}

/// For people a line of talk, for programs how the cluster is after it.
fn noted(output: Format, status: &HaStatus, what: &str) -> Done {
    match output {
        Format::Text => {
            ui::note(what);
            Ok(())
        }
        Format::Json | Format::Yaml => ui::print(output, status, String::new),
    }
}

async fn status(asker: &Asker, output: Format) -> Done {
    let status: HaStatus = asker.get("status").await?;
    ui::print(output, &status, || show::status(&status))?;
    if status.leader_id.is_none() {
        let problem = Problem::new(Exit::Wrong, "nobody leads");
        return Err(match status.paused {
            true => problem.hint("the cluster is paused: `lockd ha resume` lets others take over"),
            false => problem.hint("look at the log of the nodes: can they reach the lock?"),
        });
    }
    match status.nodes.iter().find(|node| node.silent_ms > show::SILENT_MS) {
        None => Ok(()),
        Some(node) => {
            let seconds = node.silent_ms / 1_000;
            let what = format!("{} has not been heard of for {seconds} s", node.node_id);
            Err(Problem::new(Exit::Wrong, what).hint(format!("is it running at {}?", node.url)))
        }
    }
}
