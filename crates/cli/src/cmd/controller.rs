//! `lockd controller`: takes jobs in, gives them to agents, and keeps their results.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use lockd_cli::ports;
use lockd_coordinator::sidecar::span;
use lockd_jobs::ledger::Ledger;
use lockd_jobs::{Access, Controller, Relaying, Settings, Source};
use lockd_serve::{Bound, Door, Secret};
use lockd_wire::node::Role;
use tokio_util::sync::DropGuard;

use super::daemon::{self, Ended, Signals};
use super::reach::{Certificates, Reach, check_cluster};
use crate::notify::Notify;

/// Take in jobs, give them to agents, and keep their results
///
/// Beside a node (`lockd node-controller`) it leads when the node does; alone it leads at once.
/// Whatever it writes carries the epoch of its leadership, and the store refuses any but the
/// latest.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ControllerArgs {
    /// Where to listen
    #[arg(
        long,
        env = "LOCKD_CONTROLLER_LISTEN",
        value_name = "HOST:PORT",
        default_value = ports::controller::LISTEN
    )]
    listen: String,
    /// Where jobs are kept: lockd://host:port[?insecure=1] or postgres://user@host/database
    #[arg(
        long,
        env = "LOCKD_CONTROLLER_STORE",
        value_name = "URL",
        hide_env_values = true,
        default_value = ports::LOCKD_URL
    )]
    store: String,
    /// For lockd:// with TLS: the bundle of a client [default: the one that `lockd client` finds]
    #[arg(long, env = "LOCKD_CONTROLLER_STORE_BUNDLE", value_name = "FILE")]
    store_bundle: Option<PathBuf>,
    /// For postgres:// with TLS: certificates of authorities (PEM) [default: those of the system]
    #[arg(long, env = "LOCKD_CONTROLLER_STORE_CA", value_name = "FILE")]
    store_ca: Option<PathBuf>,
    /// For postgres:// with TLS: a certificate to show (PEM)
    #[arg(long, env = "LOCKD_CONTROLLER_STORE_CERT", value_name = "FILE")]
    store_cert: Option<PathBuf>,
    /// Its key, if that is in another file
    #[arg(long, env = "LOCKD_CONTROLLER_STORE_KEY", value_name = "FILE")]
    store_key: Option<PathBuf>,
    /// Which controllers belong together
    #[arg(long, env = "LOCKD_CONTROLLER_CLUSTER", value_name = "NAME", default_value = "default")]
    cluster: String,
    /// How long a job is an agent's unless it is renewed
    #[arg(long, env = "LOCKD_CONTROLLER_LEASE_TTL", value_name = "TIME", default_value = "15s",
        value_parser = span)]
    lease_ttl: Duration,
    /// How many jobs that are over are kept
    #[arg(long, env = "LOCKD_CONTROLLER_KEEP", value_name = "NUMBER", default_value_t = 10_000)]
    keep: usize,
    /// A file with the token that everybody must show
    #[arg(long, env = "LOCKD_CONTROLLER_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Ask for client certificates: the bundle of a server
    #[arg(long, env = "LOCKD_CONTROLLER_BUNDLE", value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// The bundle of a client to show to other nodes behind https, for their events
    #[arg(long, env = "LOCKD_CONTROLLER_PEER_BUNDLE", value_name = "FILE")]
    peer_bundle: Option<PathBuf>,
    /// What is logged, as in error, info or lockd_jobs=debug
    #[arg(long, env = "LOCKD_CONTROLLER_LOG_LEVEL", value_name = "FILTER", default_value = "info")]
    log_level: String,
    /// How log lines are written
    #[arg(long, env = "LOCKD_CONTROLLER_LOG_FORMAT", value_enum, default_value_t = daemon::LogFormat::Text)]
    log_format: daemon::LogFormat,
    /// The older form of --log-format=json
    #[arg(long, env = "LOCKD_CONTROLLER_LOG_JSON", hide = true)]
    log_json: bool,
    #[command(flatten)]
    beside: Beside,
}

/// What a node tells the programs that it runs.
#[derive(Debug, Args)]
struct Beside {
    /// The name of the node [default: the name of the machine]
    #[arg(long, env = "LOCKD_HA_NODE_ID", value_name = "NAME")]
    node_id: Option<String>,
    #[arg(long, env = "LOCKD_HA_ROLE", hide = true)]
    role: Option<String>,
    #[arg(long, env = "LOCKD_HA_EPOCH", hide = true)]
    epoch: Option<u64>,
    #[arg(long, env = "LOCKD_HA_ENDPOINT", hide = true)]
    endpoint: Option<String>,
    #[arg(long, env = "LOCKD_HA_TOKEN", hide = true, hide_env_values = true)]
    token: Option<String>,
    #[arg(long, env = "LOCKD_HA_URL", hide = true)]
    url: Option<String>,
}

const LEASE_TTL_MIN: Duration = Duration::from_secs(1);
const LEASE_TTL_MAX: Duration = Duration::from_secs(3_600);

const AFTER_HELP: &str = "\
Examples:
  lockd & lockd controller                          alone, with its jobs in a local server
  lockd controller --store postgres://lockd@db/lockd
  curl -s http://127.0.0.1:9343/v1/jobs -d '{\"command\": [\"echo\", \"hello\"]}'
  lockd agent --controller http://127.0.0.1:9343    somebody to run them

Without a token and without a server's bundle only this machine is answered, also behind a node:
what its port passes on from elsewhere is refused, unless a certificate was shown there. Nodes on
several machines need the same --token-file here and at `lockd agent`, or --bundle at every node;
whoever submits a job shows the token as well.
Put a --store with a password into LOCKD_CONTROLLER_STORE: command lines are seen by others.
Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage.";

pub(crate) async fn run(args: ControllerArgs) -> ExitCode {
    Ended::code(serve(args).await)
}

async fn serve(args: ControllerArgs) -> Result<(), Ended> {
    daemon::log(&args.log_level, args.log_json || args.log_format == daemon::LogFormat::Json)?;
    daemon::prepare();
    let mut signals = Signals::new().map_err(Ended::failed)?;
    let Settled { settings, ledger, access, door, looking: _looking } =
        settle(&args).map_err(Ended::wrong)?;
    let bound = Bound::bind(&args.listen).await.map_err(Ended::unserved)?;
    access.check(bound.address).map_err(Ended::wrong)?;
    let controller = Controller::start(settings, ledger);
    let serving = bound.serve(&door, controller.router(access)).map_err(Ended::unserved)?;
    tracing::info!("listening on {}", serving.address);
    let notify = Notify::of_environment();
    notify.ready();
    let name = signals.next().await;
    notify.stopping();
    tracing::info!("{name}: stopping; once more to stop at once");
    let leaving = async {
        controller.stop().await;
        serving.stop().await;
    };
    tokio::select! {
        () = leaving => tracing::info!("stopped"),
        name = signals.next() => tracing::warn!("{name} again: stopped at once"),
    }
    Ok(())
}

/// All of it, decided.
struct Settled {
    settings: Settings,
    ledger: Arc<dyn Ledger>,
    access: Access,
    door: Door,
    /// The door is looked after while this is kept.
    looking: Option<DropGuard>,
}

fn settle(args: &ControllerArgs) -> anyhow::Result<Settled> {
    check_cluster(&args.cluster)?;
    let (door, looking) = daemon::door(args.bundle.as_deref())?;
    let token = args.token_file.as_deref().map(daemon::secret).transpose()?;
    let secret = token.as_deref().map(Secret::new).transpose()?;
    let access = Access::new(secret, matches!(door, Door::Tls { .. }));
    let store = Reach {
        flag: "--store",
        url: args.store.clone(),
        bundle: args.store_bundle.clone(),
        certificates: Certificates {
            authorities: args.store_ca.clone(),
            own: args.store_cert.clone(),
            key: args.store_key.clone(),
        },
    };
    let ledger = store.ledger(&args.cluster)?;
    Ok(Settled { settings: settings(args, token)?, ledger, access, door, looking })
}

fn settings(args: &ControllerArgs, token: Option<String>) -> anyhow::Result<Settings> {
    anyhow::ensure!(
        (LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&args.lease_ttl),
        "lease-ttl {:?} is not between {LEASE_TTL_MIN:?} and {LEASE_TTL_MAX:?}",
        args.lease_ttl
    );
    let beside = &args.beside;
    let node_id = daemon::name(beside.node_id.clone(), "--node-id")?;
    let mut settings = Settings::new(&node_id, beside.source()?);
    settings.url.clone_from(&beside.url);
    settings.lease_ttl = args.lease_ttl;
    settings.finished_max = args.keep;
    settings.relaying = Relaying { token, tls: daemon::client_tls(args.peer_bundle.as_deref())? };
    Ok(settings)
}

impl Beside {
    /// Who says what this controller is to be.
    fn source(&self) -> anyhow::Result<Source> {
        if let Some(endpoint) = &self.endpoint {
            let token =
                self.token.clone().context("LOCKD_HA_ENDPOINT is there without LOCKD_HA_TOKEN")?;
            return Ok(Source::Follow { endpoint: endpoint.clone(), token });
        }
        let role = match self.role.as_deref() {
            None => return Ok(Source::Alone),
            Some("LEADER") => Role::Leader,
            Some("STANDBY") => Role::Standby,
            Some(other) => anyhow::bail!("LOCKD_HA_ROLE is {other:?}, neither LEADER nor STANDBY"),
        };
        anyhow::ensure!(
            role == Role::Standby || self.epoch.is_some(),
            "LOCKD_HA_ROLE is LEADER without LOCKD_HA_EPOCH"
        );
        Ok(Source::Fixed { role, epoch: self.epoch })
    }
}
