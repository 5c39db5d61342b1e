//! Flags, variables and file of the coordinator, put together: a flag beats its variable, which
//! beats the file.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockd_cli::ports;
use lockd_coordinator::Settings;
use lockd_coordinator::sidecar::{TaskSpec, maybe_span, span};
use serde::Deserialize;

use super::super::daemon;

/// Take part in a cluster of instances: heartbeats, leadership, tasks on the leader only
///
/// Runs beside a program, which asks it over HTTP who leads. The instances meet in Redis, or in
/// lockd itself where there is no Redis.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct CoordinatorArgs {
    /// Settings file with tasks and tokens (YAML)
    #[arg(long, env = "LOCKD_COORDINATOR_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: Given,
    /// The host of Redis, where --redis is not given
    #[arg(long, env = "REDIS_HOST", value_name = "HOST")]
    redis_host: Option<String>,
    /// The port of Redis, where --redis is not given
    #[arg(long, env = "REDIS_PORT", value_name = "PORT")]
    redis_port: Option<String>,
    /// The password of Redis, if its address has none
    #[arg(long, env = "REDIS_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    redis_password: Option<String>,
}

const AFTER_HELP: &str = "\
Examples:
  lockd coordinator --backend lockd                     no Redis at all, on this machine
  lockd coordinator --redis redis://redis:6379/0        an instance named as the machine
  lockd coordinator --redis redis-sentinel://a:26379,b:26379/main --key-prefix shop:cluster
  lockd coordinator --config coordinator.yaml           with tasks and tokens
  curl -s http://127.0.0.1:9342/api/cluster/status

Times are in seconds, or have a unit: 15, 15s, 1m 30s. Every flag NAME is also the variable
LOCKD_COORDINATOR_NAME and the key name of the settings file, with underscores. The port is
open to this machine only, unless tokens or a server's bundle are configured.
Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage.";

/// Where a cluster is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Keeper {
    Redis,
    Lockd,
}

/// What may be given in any layer.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Given {
    /// Where the cluster is kept [default: redis]
    #[arg(long, env = "LOCKD_COORDINATOR_BACKEND", value_enum)]
    backend: Option<Keeper>,
    /// redis://[user:password@]host:port/db, rediss:// for TLS; also redis-sentinel:// and
    /// redis-cluster:// with several hosts [default: redis://127.0.0.1:6379/0]
    #[arg(long, env = "LOCKD_COORDINATOR_REDIS", value_name = "URL", hide_env_values = true)]
    redis: Option<String>,
    /// Certificates of the authorities that Redis' certificate may come from (PEM)
    #[arg(long, env = "LOCKD_COORDINATOR_REDIS_CA", value_name = "FILE")]
    redis_ca: Option<PathBuf>,
    /// With --backend lockd: the server; without it one runs in the first coordinator of this
    /// machine, which the others find
    #[arg(long, env = "LOCKD_COORDINATOR_SERVER", value_name = "URL")]
    server: Option<String>,
    /// With --server over https: the bundle to show there [default: the one that `lockd client`
    /// finds]
    #[arg(long, env = "LOCKD_COORDINATOR_SERVER_BUNDLE", value_name = "FILE")]
    server_bundle: Option<PathBuf>,
    /// With --backend lockd and no --server: the folder of the store
    /// [default: coordinator in the configuration folder]
    #[arg(long, env = "LOCKD_COORDINATOR_STORE", value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:9342]
    #[arg(long, env = "LOCKD_COORDINATOR_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Ask for client certificates: the bundle of a server
    #[arg(long, env = "LOCKD_COORDINATOR_BUNDLE", value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// The name of this instance [default: the name of the machine]
    #[arg(long, env = "LOCKD_COORDINATOR_INSTANCE_ID", value_name = "NAME")]
    instance_id: Option<String>,
    /// What every key of the cluster begins with [default: waf:cluster]
    #[arg(long, env = "LOCKD_COORDINATOR_KEY_PREFIX", value_name = "PREFIX")]
    key_prefix: Option<String>,
    /// How often a heartbeat is sent [default: 15s]
    #[arg(long, env = "LOCKD_COORDINATOR_HEARTBEAT_INTERVAL", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    heartbeat_interval: Option<Duration>,
    /// How long a heartbeat counts [default: 90s]
    #[arg(long, env = "LOCKD_COORDINATOR_HEARTBEAT_TTL", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    heartbeat_ttl: Option<Duration>,
    /// How long a leadership lasts unless it is renewed [default: 30s]
    #[arg(long, env = "LOCKD_COORDINATOR_LEADER_TTL", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    leader_ttl: Option<Duration>,
    /// How often the leader renews it [default: 10s]
    #[arg(long, env = "LOCKD_COORDINATOR_LEADER_RENEW_INTERVAL", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    leader_renew_interval: Option<Duration>,
    /// Silent for so long, an instance is drifted [default: 60s]
    #[arg(long, env = "LOCKD_COORDINATOR_DRIFT_THRESHOLD", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    drift_threshold: Option<Duration>,
    /// Silent for so long, an instance is removed [default: 300s]
    #[arg(long, env = "LOCKD_COORDINATOR_STALE_THRESHOLD", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    stale_threshold: Option<Duration>,
    /// How often the numbers of this instance are pushed [default: 30s]
    #[arg(long, env = "LOCKD_COORDINATOR_METRICS_PUSH_INTERVAL", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    metrics_push_interval: Option<Duration>,
    /// How many workers this instance has, for others to see [default: 1]
    #[arg(long, env = "LOCKD_COORDINATOR_WORKER_COUNT", value_name = "NUMBER")]
    worker_count: Option<u64>,
    /// How many runs of each task are kept [default: 100]
    #[arg(long, env = "LOCKD_COORDINATOR_TASK_HISTORY", value_name = "NUMBER")]
    task_history: Option<usize>,
    /// How long a task may take to end at the stop [default: 10s]
    #[arg(long, env = "LOCKD_COORDINATOR_GRACE", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    grace: Option<Duration>,
    /// What is logged, as in error, info or lockd_coordinator=debug [default: info]
    #[arg(long, env = "LOCKD_COORDINATOR_LOG_LEVEL", value_name = "FILTER")]
    log_level: Option<String>,
    /// How log lines are written [default: text]
    #[arg(long, env = "LOCKD_COORDINATOR_LOG_FORMAT", value_enum)]
    log_format: Option<daemon::LogFormat>,
    /// The older form of --log-format=json
    #[arg(long, env = "LOCKD_COORDINATOR_LOG_JSON", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true", hide = true)]
    log_json: Option<bool>,
    /// Only in the file.
    #[arg(skip)]
    tasks: Vec<TaskSpec>,
    /// Only in the file.
    #[arg(skip)]
    tokens: Vec<TokenFile>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenFile {
    pub(super) token: Option<String>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) roles: Vec<String>,
}

/// All of it, decided.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) coordinator: Settings,
    pub(super) keeper: Keeper,
    pub(super) redis: String,
    pub(super) redis_password: Option<String>,
    pub(super) redis_ca: Option<PathBuf>,
    pub(super) server: Option<String>,
    pub(super) server_bundle: Option<PathBuf>,
    pub(super) store: Option<PathBuf>,
    pub(super) listen: String,
    pub(super) bundle: Option<PathBuf>,
    pub(super) tokens: Vec<TokenFile>,
    pub(super) tasks: Vec<TaskSpec>,
    pub(super) log_level: String,
    pub(super) log_json: bool,
}

impl CoordinatorArgs {
    pub(super) fn settle(self) -> anyhow::Result<Settled> {
        let filed: Given = daemon::settings_file(self.config.as_deref())?;
        let given = self.given;
        let named = given.instance_id.or(filed.instance_id);
        let mut settings = Settings::new(daemon::name(named, "--instance-id")?);
        macro_rules! take {
            ($($name:ident => $to:ident),*) => {
                $(if let Some(value) = given.$name.or(filed.$name) { settings.$to = value; })*
            };
        }
        take!(key_prefix => prefix, heartbeat_interval => heartbeat_interval,
            heartbeat_ttl => heartbeat_ttl, leader_ttl => leader_ttl,
            leader_renew_interval => leader_renew_interval, drift_threshold => drift_threshold,
            stale_threshold => stale_threshold, metrics_push_interval => metrics_push_interval,
            worker_count => worker_count, task_history => task_history, grace => grace);
        settings.check()?;
        let host = self.redis_host.unwrap_or_else(|| "127.0.0.1".into());
        // Kubernetes sets REDIS_PORT=tcp://address:port for a service called redis.
        let port = self.redis_port.filter(|port| !port.starts_with("tcp://"));
        let port = port.unwrap_or_else(|| "6379".into());
        let elsewhere = || format!("redis://{host}:{port}/0");
        Ok(Settled {
            coordinator: settings,
            keeper: given.backend.or(filed.backend).unwrap_or(Keeper::Redis),
            redis: given.redis.or(filed.redis).unwrap_or_else(elsewhere),
            redis_password: self.redis_password.filter(|password| !password.is_empty()),
            redis_ca: given.redis_ca.or(filed.redis_ca),
            server: given.server.or(filed.server),
            server_bundle: given.server_bundle.or(filed.server_bundle),
            store: given.store.or(filed.store),
            listen: given
                .listen
                .or(filed.listen)
                .unwrap_or_else(|| ports::coordinator::LISTEN.into()),
            bundle: given.bundle.or(filed.bundle),
            tokens: filed.tokens,
            tasks: filed.tasks,
            log_level: given.log_level.or(filed.log_level).unwrap_or_else(|| "info".into()),
            log_json: daemon::log_is_json(
                given.log_format.or(filed.log_format),
                given.log_json.or(filed.log_json),
            ),
        })
    }
}
