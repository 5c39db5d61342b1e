//! The client commands: one per file. Here is what they share: the command line, the connection,
//! and the arguments that mean the same everywhere.

pub(crate) mod acquire;
pub(crate) mod arguments;
mod attachments;
pub(crate) mod describe;
pub(crate) mod document;
mod download;
mod edit;
pub(crate) mod get;
mod job;
mod keepalive;
mod leases;
mod ls;
mod mutate;
mod queue;
mod release;
mod remove;
mod run;
mod set;
mod tree;
pub(crate) mod update;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use lockd_client::{Capped, Client};

use crate::bundle::BundleArgs;
use crate::context::{ENVIRONMENT, Environment};
use crate::exit::{Done, EXIT_CODES, Problem};
use crate::{bundle, log, ports, ui};

/// Without a scheme: TLS, unless that is off.
pub(crate) const SERVER: &str = ports::server::LISTEN;

/// Hold keys, read and write their state, and work off queues, from a shell
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub struct ClientArgs {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: ClientCommand,
}

/// How servers are reached.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Global {
    /// Servers of one store, separated by commas: https://host:port, http://host:port, host[:port]
    /// or unix:///path
    #[arg(long, short, global = true, value_name = "ADDRESS", env = "LOCKD_CLIENT_SERVER",
          default_value = SERVER)]
    pub(crate) server: String,
    /// Namespace of the key; otherwise the server's default [env: LOCKD_CLIENT_NAMESPACE]
    #[arg(long, short, global = true, value_name = "NAME", value_parser = crate::context::name)]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) tls: BundleArgs,
    #[command(flatten)]
    pub(crate) manner: Manner,
}

/// How patient and how talkative the client is.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Manner {
    /// Longest silence of the server within a request
    #[arg(long, global = true, value_name = "DURATION", env = "LOCKD_CLIENT_TIMEOUT",
          default_value = "15s", value_parser = arguments::duration)]
    pub(crate) timeout: Duration,
    /// Tell on standard error what the client does
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

impl Manner {
    /// Starts to talk, if that is wanted; once, however many connections follow.
    pub(crate) fn prepare(self) -> Done<Self> {
        if self.verbose {
            log::init("warn,lockd_client=debug,lockd_cli=debug", false).map_err(Problem::failed)?;
        }
        Ok(Self { verbose: false, ..self })
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    #[command(flatten)]
    Remote(RemoteCommand),
    Edit(edit::EditArgs),
}

/// The commands that talk to a server.
#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    Acquire(acquire::AcquireArgs),
    Keepalive(keepalive::KeepaliveArgs),
    Release(release::ReleaseArgs),
    Run(run::RunArgs),
    Get(get::GetArgs),
    Update(update::UpdateArgs),
    Remove(remove::RemoveArgs),
    Set(set::SetArgs),
    Mutate(mutate::MutateArgs),
    Attachments(attachments::AttachmentsArgs),
    Queue(Box<queue::QueueArgs>),
    Describe(describe::DescribeArgs),
    Ls(ls::LsArgs),
    Leases(leases::LeasesArgs),
    Watch(watch::WatchArgs),
}

fn after_help() -> String {
    format!(
        "\
Examples:
  eval \"$(lockd client acquire orders --ttl 30s)\"
  lockd client get orders | lockd client edit progress.count++ | lockd client update orders
  lockd client release orders
  lockd client run --key nightly -- ./backup.sh
  lockd client queue work jobs -- ./do-one.sh

{EXIT_CODES}

{ENVIRONMENT}"
    )
}

/// What every command is given.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The servers, as other commands can be told about them.
    pub(crate) server: String,
    /// The bundle that is shown to them.
    pub(crate) bundle: Option<PathBuf>,
    pub(crate) environment: Environment,
    namespace: Option<String>,
}

impl Session {
    /// The namespace of the message in the environment, unless a flag names another.
    fn queue_namespace(&self) -> Done<Option<&str>> {
        if self.namespace() != self.environment.get("NAMESPACE") {
            // By flag.
            return Ok(self.namespace());
        }
        Ok(self.environment.named_of_queue("NAMESPACE")?.or(self.namespace()))
    }

    /// Who holds what this command leaves behind, where nothing says otherwise. This process is gone
    /// by then, and the shell may be: the user and the machine are still there to be asked.
    pub(crate) fn lasting_owner(&self) -> Option<String> {
        let given = self.environment.get("OWNER").is_some();
        (!given).then(crate::context::user_at_host)
    }

    /// The namespace that was asked for.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    pub(crate) fn open(
        global: Global,
        environment: Environment,
        attempts: Option<u32>,
    ) -> Done<Self> {
        let manner = global.manner.prepare()?;
        let resolved = bundle::resolve(&global.tls, &global.server)?;
        let mut builder = Client::builder().endpoint(&resolved.servers).timeout(manner.timeout);
        builder = builder.on_capped(note_cap);
        let mut shown = None;
        if let Some((path, bundle)) = resolved.bundle {
            builder = builder.bundle(bundle);
            shown = Some(path);
        }
        let namespace = match global.namespace {
            Some(namespace) => Some(namespace),
            None => environment.named("NAMESPACE")?.map(str::to_owned),
        };
        if let Some(namespace) = &namespace {
            builder = builder.namespace(namespace);
        }
        if let Some(owner) = environment.named("OWNER")? {
            builder = builder.owner(owner);
        }
        if let Some(attempts) = attempts {
            builder = builder.attempts(attempts);
        }
        let client = builder.build().map_err(|error| Problem::usage(error.to_string()))?;
        let server = client.endpoints().join(",");
        Ok(Self { client, server, bundle: shown, environment, namespace })
    }
}

fn note_cap(capped: &Capped) {
    let (asked, granted) = (capped.asked, capped.granted);
    let [asked, granted] = [asked, granted].map(humantime::format_duration);
    let limit = capped.limit;
    ui::note(&format!(
        "warning: the server capped the {limit} at {granted}; {asked} was asked for"
    ));
}

pub async fn run(args: ClientArgs) -> ExitCode {
    match dispatch(args).await {
        Ok(code) => code,
        Err(problem) => ui::fail(&problem),
    }
}

async fn dispatch(args: ClientArgs) -> Done<ExitCode> {
    let command = match args.command {
        ClientCommand::Edit(args) => return edit::run(args).map(|()| ExitCode::SUCCESS),
        ClientCommand::Remote(command) => command,
    };
    let session = Session::open(args.global, Environment::read(), command.attempts())?;
    let done = match command {
        RemoteCommand::Run(args) => return Box::pin(run::run(&session, args)).await,
        RemoteCommand::Queue(args) => return Box::pin(queue::run(&session, *args)).await,
        RemoteCommand::Acquire(args) => acquire::run(&session, args).await,
        RemoteCommand::Keepalive(args) => keepalive::run(&session, args).await,
        RemoteCommand::Release(args) => release::run(&session, args).await,
        RemoteCommand::Get(args) => get::run(&session, args).await,
        RemoteCommand::Update(args) => update::run(&session, args).await,
        RemoteCommand::Remove(args) => remove::run(&session, args).await,
        RemoteCommand::Set(args) => set::run(&session, args).await,
        RemoteCommand::Mutate(args) => mutate::run(&session, args).await,
        RemoteCommand::Attachments(args) => attachments::run(&session, args).await,
        RemoteCommand::Describe(args) => describe::run(&session, args).await,
        RemoteCommand::Ls(args) => ls::run(&session, args).await,
        RemoteCommand::Leases(args) => leases::run(&session, args).await,
        RemoteCommand::Watch(args) => watch::run(&session, args).await,
    };
    done.map(|()| ExitCode::SUCCESS)
}

impl RemoteCommand {
    /// How often servers are tried, where the command says so.
    fn attempts(&self) -> Option<u32> {
        match self {
            Self::Acquire(args) => Some(args.wish.attempts()),
            Self::Run(args) => Some(args.wish.attempts()),
            Self::Keepalive(_)
            | Self::Release(_)
            | Self::Get(_)
            | Self::Update(_)
            | Self::Remove(_)
            | Self::Set(_)
            | Self::Mutate(_)
            | Self::Attachments(_)
            | Self::Queue(_)
            | Self::Describe(_)
            | Self::Ls(_)
            | Self::Leases(_)
            | Self::Watch(_) => None,
        }
    }
}
