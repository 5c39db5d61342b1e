//! `lockd cluster`: how a cluster of instances fares, asked of a coordinator.

mod cause;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use lockd_coordinator::api::{InstanceList, LeaderAnswer, RunsAnswer, Status, TasksAnswer};

use crate::ask::{self, Asker, Target};
use crate::cmd::look::LookArgs;
use crate::exit::{Done, EXIT_CODES, Exit, Problem};
use crate::ports;
use crate::ui::{self, Format};

const PATIENCE: Duration = Duration::from_secs(10);

/// Look at a cluster of instances through its coordinator
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct ClusterArgs {
    #[command(flatten)]
    reach: Reach,
    #[command(subcommand)]
    command: ClusterCommand,
}

/// How the coordinator is reached.
#[derive(Debug, Args)]
struct Reach {
    /// The coordinator
    #[arg(
        long,
        env = "LOCKD_COORDINATOR_URL",
        value_name = "URL",
        default_value = ports::coordinator::URL,
        global = true
    )]
    url: String,
    /// A file with the token to show
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// The token to show
    #[arg(
        long,
        env = "LOCKD_COORDINATOR_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true,
        conflicts_with = "token_file",
        global = true
    )]
    token: Option<String>,
    /// The bundle of a client to show, for https
    #[arg(long, value_name = "FILE", global = true)]
    bundle: Option<PathBuf>,
}

impl Reach {
    fn target(self) -> Target {
        Target {
            url: self.url,
            token: self.token,
            token_file: self.token_file,
            bundle: self.bundle,
            base: "/api/cluster/",
            what: "coordinator",
            missing: "start one with `lockd coordinator`, or name another with --url",
            look: "`lockd cluster tasks`",
            patience: PATIENCE,
        }
    }
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Whether the cluster is healthy, and what is likely wrong if it is not
    Status(LookArgs),
    /// Who is there
    Instances(LookArgs),
    /// Who leads
    Leader(LookArgs),
    /// What the leader does, and when
    Tasks(TasksArgs),
}

#[derive(Debug, Args)]
struct TasksArgs {
    #[command(subcommand)]
    command: Option<TasksCommand>,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Debug, Subcommand)]
enum TasksCommand {
    /// Have a task run as soon as possible, on the leader
    Run {
        /// The name of the task
        task: String,
    },
    /// The latest runs of a task, the newest first
    Runs {
        /// The name of the task
        task: String,
        /// How many
        #[arg(long, default_value_t = 20)]
        limit: usize,
        /// How to print them
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
}

fn after_help() -> String {
    format!(
        "\
Examples:
  lockd cluster status
  lockd cluster status --watch
  lockd cluster instances --output json | jq '.instances[] | select(.status != \"active\")'
  lockd cluster tasks
  lockd cluster tasks run daily-report
  lockd cluster --url https://pod-0:9342 --token-file token status

{EXIT_CODES}"
    )
}

pub async fn run(args: ClusterArgs) -> ExitCode {
    match dispatch(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => ui::fail(&problem),
    }
}

async fn dispatch(args: ClusterArgs) -> Done {
    let asker = Asker::new(args.reach.target())?;
    match args.command {
        ClusterCommand::Status(look) => {
            look.again_and_again(async || status(&asker, look.output).await).await
        }
        ClusterCommand::Instances(look) => {
            let once = async || {
                let list: InstanceList = asker.get("instances").await?;
                ui::print(look.output, &list, || show::instances(&list))
            };
            look.again_and_again(once).await
        }
        ClusterCommand::Leader(look) => {
            let once = async || {
                let answer: LeaderAnswer = asker.get("leader").await?;
                ui::print(look.output, &answer, || show::leader(&answer))?;
                match answer.leader {
                    Some(_) => Ok(()),
                    None => Err(Problem::new(Exit::Wrong, "nobody leads")),
                }
            };
            look.again_and_again(once).await
        }
        ClusterCommand::Tasks(TasksArgs { command: None, look }) => {
            let once = async || {
                let answer: TasksAnswer = asker.get("tasks").await?;
                ui::print(look.output, &answer, || show::tasks(&answer))
            };
            look.again_and_again(once).await
        }
        ClusterCommand::Tasks(TasksArgs { command: Some(TasksCommand::Run { task }), .. }) => {
            asker.post(&format!("tasks/{}/run", ask::encoded(&task))).await?;
            ui::note(&format!(
                "{task} was asked for; the leader takes it up within its renew interval"
            ));
            Ok(())
        }
        ClusterCommand::Tasks(TasksArgs {
            command: Some(TasksCommand::Runs { task, limit, output }),
            ..
        }) => {
            let path = format!("tasks/{}/runs?limit={limit}", ask::encoded(&task));
            let answer: RunsAnswer = asker.get(&path).await?;
            ui::print(output, &answer, || show::runs(&answer))
        }
    }
}

async fn status(asker: &Asker, output: Format) -> Done {
    let status: Status = asker.get("status").await?;
    let list: InstanceList = asker.get("instances").await?;
    ui::print(output, &status, || show::status(&status, &list))?;
    match cause::of(&status, &list) {
        None => Ok(()),
        Some(cause) => Err(Problem::new(Exit::Wrong, cause.what).hint(cause.next)),
    }
}
