//! `lockd agent`: asks a controller for jobs and runs them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use lockd_agent::{Agent, AgentSettings, SettingsError};
use lockd_cli::ports;
use lockd_coordinator::sidecar::span;

use super::daemon::{self, Ended, Signals};

/// Run the jobs that a controller gives out
///
/// Follows whichever node leads. A job that cannot be finished when the agent stops is given back.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct AgentArgs {
    /// A node, or a controller; may be given several times, and the leader is found from any
    /// [default: LOCKD_HA_URL, else http://127.0.0.1:9344]
    #[arg(long, env = "LOCKD_AGENT_CONTROLLER", value_name = "URL", value_delimiter = ',')]
    controller: Vec<String>,
    /// The name of this agent [default: NODE-worker beside a node, else the name of the machine]
    #[arg(long, env = "LOCKD_AGENT_NAME", value_name = "NAME")]
    name: Option<String>,
    /// How many jobs run at once
    #[arg(long, env = "LOCKD_AGENT_SLOTS", value_name = "NUMBER", default_value_t = 1)]
    slots: usize,
    /// How many bytes are kept of what a job writes
    #[arg(long, env = "LOCKD_AGENT_OUTPUT_MAX", value_name = "BYTES", default_value_t = 65_536)]
    output_max: usize,
    /// How long jobs may go on when the agent is stopped; what is not done by then is given back
    #[arg(long, env = "LOCKD_AGENT_GRACE", value_name = "TIME", default_value = "3s",
        value_parser = span)]
    grace: Duration,
    /// A file with the token to show
    #[arg(long, env = "LOCKD_AGENT_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The bundle of a client to show, for https
    #[arg(long, env = "LOCKD_AGENT_BUNDLE", value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// What is logged, as in error, info or lockd_agent=debug
    #[arg(long, env = "LOCKD_AGENT_LOG_LEVEL", value_name = "FILTER", default_value = "info")]
    log_level: String,
    /// How log lines are written
    #[arg(long, env = "LOCKD_AGENT_LOG_FORMAT", value_enum, default_value_t = daemon::LogFormat::Text)]
    log_format: daemon::LogFormat,
    /// The older form of --log-format=json
    #[arg(long, env = "LOCKD_AGENT_LOG_JSON", hide = true)]
    log_json: bool,
    #[arg(long, env = "LOCKD_HA_NODE_ID", hide = true)]
    node_id: Option<String>,
    #[arg(long, env = "LOCKD_HA_URL", hide = true)]
    node_url: Option<String>,
}

/// What jobs have no use for. Beside a node they would find what the controller was told.
const SECRETS: [&str; 4] = [
    "LOCKD_AGENT_TOKEN_FILE",
    "LOCKD_CONTROLLER_STORE",
    "LOCKD_CONTROLLER_TOKEN_FILE",
    "LOCKD_NODE_LOCK",
];

const AFTER_HELP: &str = "\
Examples:
  lockd agent                                       jobs of the node on this machine
  lockd agent --controller http://a:9344 --controller http://b:9344 --slots 4
  lockd agent --controller https://a:9344 --bundle client.pem --name builder-1
  lockd agent --token-file token                    where the controller asks for one

A job gets its input as JSON on standard input, and LOCKD_JOB_ID, LOCKD_JOB_EPOCH,
LOCKD_LEADER_EPOCH and LOCKD_JOB_ATTEMPT in its environment.
Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage.";

pub(crate) async fn run(args: AgentArgs) -> ExitCode {
    Ended::code(work(args).await)
}

async fn work(args: AgentArgs) -> Result<(), Ended> {
    daemon::log(&args.log_level, args.log_json || args.log_format == daemon::LogFormat::Json)?;
    daemon::prepare();
    let mut signals = Signals::new().map_err(Ended::failed)?;
    let mut settings = settings(args).map_err(Ended::wrong)?;
    settings.guard = daemon::guard().map_err(Ended::failed)?.to_vec();
    let agent = Agent::start(settings).map_err(|error| match error {
        SettingsError::Http(_) => Ended::failed(error),
        SettingsError::Name
        | SettingsError::Slots
        | SettingsError::Output
        | SettingsError::PollWait
        | SettingsError::NoController
        | SettingsError::Controller(_)
        | SettingsError::Token => Ended::wrong(error),
    })?;
    let name = tokio::select! {
        name = signals.next() => name,
        () = agent.dismissed() => {
            tracing::warn!("this agent was deleted: it gets no more work until it is started anew");
            signals.next().await
        }
    };
    tracing::info!("{name}: asks for no more work; once more to stop at once");
    tokio::select! {
        () = agent.stop() => tracing::info!("stopped"),
        name = signals.next() => tracing::warn!("{name} again: stopped at once"),
    }
    Ok(())
}

fn settings(args: AgentArgs) -> anyhow::Result<AgentSettings> {
    let beside = args.node_id.map(|node| format!("{node}-worker"));
    let name = daemon::name(args.name.or(beside), "--name")?;
    let mut controllers = args.controller;
    if controllers.is_empty() {
        controllers.push(args.node_url.unwrap_or_else(|| ports::node::URL.into()));
    }
    let mut settings = AgentSettings::new(name, controllers);
    settings.slots = args.slots;
    settings.output_max = args.output_max;
    settings.grace = args.grace;
    settings.token = args.token_file.as_deref().map(daemon::secret).transpose()?;
    settings.tls = daemon::client_tls(args.bundle.as_deref())?;
    settings.hidden.extend(SECRETS.map(str::to_owned));
    Ok(settings)
}
