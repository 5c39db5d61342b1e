//! Settings: one list of names, defaults and explanations, from which flags, environment names,
//! the file and the generated example all follow. Raw text becomes [`Settings`] in one step that
//! reports every problem at once.

mod files;
mod load;
mod value;

pub use lockd_serve::Family;

pub use load::{Effective, Environment, Layers, Loaded, Problems, ProcessEnvironment, load};
pub use value::BadValue;

use std::path::PathBuf;
use std::time::Duration;

use lockd_core::queue::QueueName;
use lockd_store::object::ObjectOptions;

/// One setting: its flag is `--name`, its variable `LOCKD_NAME`, its key in the file `name`.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub name: &'static str,
    /// As one would write it.
    pub default: &'static str,
    pub help: &'static str,
    /// A flag that may stand alone.
    pub switch: bool,
}

const fn value(name: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { name, default, help, switch: false }
}

const fn switch(name: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { name, default, help, switch: true }
}

/// All settings, in the order in which they are shown.
pub const SETTINGS: &[Setting] = &[
    value(
        "listen",
        ":9341",
        "Addresses to listen on, separated by commas: host:port, :port, unix:///path",
    ),
    value("listen-proto", "tcp", "How a bare address is meant: tcp, tcp4, tcp6 or unix"),
    value(
        "store",
        "",
        "Where data lives: a path, mem://, s3://bucket/prefix, s3://host:port/bucket/prefix, \
         azure://account/container/prefix or gs://bucket/prefix (default: ~/.lockd/data)",
    ),
    value("s3-region", "", "Region of the bucket (default: as AWS_REGION says, else us-east-1)"),
    value("s3-endpoint", "", "URL of a store that speaks the language of S3"),
    value("s3-sse", "", "Encryption by the store: AES256 or aws:kms"),
    value("s3-kms-key-id", "", "Key for aws:kms; the bucket's own if none is named"),
    value("s3-max-part-size", "8MiB", "Uploads above this are made in parts of this size"),
    value("s3-timeout", "10s", "How long one request to an object store may take"),
    value("s3-retry-timeout", "20s", "How long a failed request to an object store is tried again"),
    value("azure-endpoint", "", "URL of the account, instead of Azure's own"),
    value("gcs-endpoint", "", "URL of the service, instead of Google's own"),
    switch("allow-network-fs", "false", "Allow the embedded store on a network file system"),
    value("default-namespace", "default", "Namespace of requests that name none"),
    switch(
        "generate-keys",
        "false",
        "Generate a key for an acquire that names none, as Go clients expect",
    ),
    value("default-ttl", "30s", "Time to live of leases that ask for none"),
    value("max-ttl", "30m", "Longest time to live; longer wishes are cut to it"),
    value("acquire-block", "60s", "Wait of an acquire that leaves it to the server"),
    value("json-max", "100MiB", "Largest JSON document, after white space is taken out"),
    value("attachment-max", "1TiB", "Largest attachment; 0 for no bound"),
    value("queue-payload-max", "256MiB", "Largest payload of a message; 0 for no bound"),
    value("mutate-max", "8MiB", "Largest document that can be mutated on the server"),
    value(
        "store-cache",
        "auto",
        "Memory for records read before; auto: a quarter of it, at most 512MiB",
    ),
    value("sweeper-interval", "5m", "How often the lease index is looked through"),
    value("tc-decision-retention", "24h", "How long a decided transaction is remembered"),
    value("gc-temps-interval", "10m", "How often unused blobs are collected"),
    value("drain-grace", "10s", "How long a server that stops waits for requests in flight"),
    switch(
        "drain-leases",
        "false",
        "Wait for leases to be released, too, when the server stops; for at most drain-grace",
    ),
    value("shutdown-timeout", "10s", "How long stopping may take after that"),
    value(
        "max-connections",
        "12000",
        "Open connections; when all are taken, the most silent one is closed for a new one",
    ),
    value(
        "max-connections-per-address",
        "auto",
        "Open connections of one client address (IPv6: of one /64 network); auto: half of \
         max-connections, and any number from this machine",
    ),
    value("max-waiters", "100000", "Requests that wait for keys"),
    value("queue-max-consumers", "10000", "Consumers that wait for messages"),
    value(
        "metrics-queues",
        "",
        "Queues that /metrics may name: namespace/queue, separated by commas, or all",
    ),
    value("max-headers", "64KiB", "Size of the headers of a request"),
    value(
        "idle-timeout",
        "2m",
        "How long a connection may be silent between requests; before the first one 10s at most",
    ),
    value("body-timeout", "30s", "How long a request body may pause"),
    value(
        "body-min-rate",
        "1KiB",
        "Bytes a second that a body must bring, on average, if it takes over 30s; 0 for any",
    ),
    value("metrics-listen", "", "Address for /metrics, /healthz and /readyz; empty for none"),
    value(
        "log-level",
        "info",
        "off, error, warn, info, debug, trace, or a filter such as info,lockd_store=debug",
    ),
    value("log-format", "text", "text or json"),
    switch("mtls", "true", "Serve mutual TLS"),
    switch("disable-mtls", "false", "Serve plain HTTP; the same as --mtls=false"),
    value("bundle", "", "Server bundle for mutual TLS (default: server.pem in config-dir)"),
    value("config-dir", "", "Folder of bundles, made at the first start (default: ~/.lockd)"),
    value("bootstrap", "", "The same as --config-dir, for containers: makes what is missing there"),
    value("denylist-path", "", "File of revoked certificate serials, one a line"),
    value("tc-trust-dir", "", "Folder of CAs whose transaction coordinators are trusted"),
    switch("tc-allow-default-ca", "true", "Trust the server's own CA for coordinators"),
    switch("tc-disable-auth", "false", "Trust every CA for coordinators; roles are still checked"),
    switch("insecure-bind", "false", "Allow plain HTTP on addresses other than loopback"),
];

/// Settings with their types, after every layer had its say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches, as a user sets them")]
pub struct Settings {
    pub listen: Vec<Address>,
    pub store: StoreSetting,
    pub allow_network_fs: bool,
    pub default_namespace: String,
    /// An acquire that names no key is granted a generated one without asking for it.
    pub generate_keys: bool,
    pub default_ttl: Duration,
    pub max_ttl: Duration,
    pub acquire_block: Duration,
    pub json_max: u64,
    pub mutate_max: u64,
    /// Zero for no bound.
    pub attachment_max: u64,
    /// Nothing: as the machine's memory allows.
    pub store_cache: Option<u64>,
    pub sweeper_interval: Duration,
    pub decision_retention: Duration,
    pub gc_temps_interval: Duration,
    pub drain_grace: Duration,
    pub drain_leases: bool,
    pub shutdown_timeout: Duration,
    pub max_connections: usize,
    /// Nothing: half of them, and any number from this machine.
    pub max_connections_per_address: Option<usize>,
    pub max_waiters: usize,
    pub queue: QueueSettings,
    pub max_headers: usize,
    pub idle_timeout: Duration,
    pub body_timeout: Duration,
    /// Bytes a second; zero for any rate.
    pub body_min_rate: u64,
    pub metrics_listen: Option<Address>,
    pub log_level: String,
    pub log_json: bool,
    pub mtls: bool,
    pub identity: IdentitySettings,
    pub insecure_bind: bool,
}

/// Bounds of queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Zero for no bound.
    pub payload_max: u64,
    pub max_consumers: usize,
    pub named: NamedQueues,
}

/// The queues whose names the metrics may show; all others are summed up. Names can be secrets of
/// tenants, and the page needs no certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamedQueues {
    /// None of them is named.
    #[default]
    None,
    /// The first by name of those that are in memory.
    All,
    /// These, which are kept in memory for it.
    These(Vec<QueueName>),
}

/// How many queues the metrics may name.
pub const NAMED_QUEUES_MAX: usize = 100;

/// Who the server is with mutual TLS, and whom it trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentitySettings {
    pub bundle: Option<PathBuf>,
    /// Where bundles are, and are made if there are none.
    pub config_dir: Option<PathBuf>,
    pub denylist_path: Option<PathBuf>,
    pub tc_trust_dir: Option<PathBuf>,
    pub tc_allow_default_ca: bool,
    pub tc_disable_auth: bool,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port. An empty host means every address, or loopback without mutual TLS.
    Tcp {
        host: String,
        port: u16,
        family: Family,
    },
    Unix(PathBuf),
}

/// Which store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSetting {
    Memory,
    Embedded(PathBuf),
    Object(Box<ObjectOptions>),
}

impl Settings {
    /// The defaults for a server inside another program: memory, plain HTTP on a free loopback
    /// port. Change what you need.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test loads these very values")]
    pub fn embedded_defaults() -> Self {
        let layers = Layers {
            flags: vec![
                ("store".into(), "mem://".into()),
                ("listen".into(), "127.0.0.1:0".into()),
                ("disable-mtls".into(), "true".into()),
            ],
            ..Layers::default()
        };
        load(&layers, &Vec::<(String, String)>::new()).expect("the defaults are valid").settings
    }
}

/// An example file with every setting, its default and what it does.
#[must_use]
pub fn example() -> String {
    let mut text = String::from("# Settings of lockd. Every line shows a default.\n");
    for setting in SETTINGS {
        let default = match setting.default {
            "" => "\"\"",
            other => other,
        };
        let quoted =
            if default.starts_with(':') { format!("\"{default}\"") } else { default.into() };
        text.push_str(&format!("\n# {}.\n# {}: {quoted}\n", setting.help, setting.name));
    }
    text
}
