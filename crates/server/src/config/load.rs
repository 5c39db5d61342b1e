//! The one loader: defaults, then the file, then the environment, then flags; the later wins.
//! Every problem of every layer is found before anything is reported.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lockd_core::limits::{TTL_MAX, TTL_MIN};
use lockd_store::object::{Credentials, Service};

use super::value::{self, BadValue};
use super::{Address, IdentitySettings, QueueSettings, SETTINGS, Settings, StoreSetting};

/// What was given, by layer.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// Name and value of each flag.
    pub flags: Vec<(String, String)>,
    /// The settings file: its name, for messages, and its text.
    pub file: Option<(String, String)>,
    pub home: Option<String>,
}

/// Where environment variables come from; tests bring their own.
pub trait Environment {
    fn variables(&self) -> Vec<(String, String)>;
}

/// The environment of this process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn variables(&self) -> Vec<(String, String)> {
        let all = std::env::vars_os();
        all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }
}

impl Environment for Vec<(String, String)> {
    fn variables(&self) -> Vec<(String, String)> {
        self.clone()
    }
}

/// Settings, and what the user should hear about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub settings: Settings,
    /// Every setting as it counts.
    pub effective: Vec<Effective>,
    pub warnings: Vec<String>,
}

/// One setting as it counts, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    pub name: &'static str,
    pub value: String,
    /// `--name`, the variable, the file with the key in it, or `default`.
    pub source: String,
}

/// Everything that is wrong, a line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the settings are not right:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}

impl std::error::Error for Problems {}

/// Variables with our prefix that are no settings of the server.
const OTHER_VARIABLES: &[&str] = &[
    "LOCKD_CLIENT_",
    "LOCKD_QUEUE_",
    "LOCKD_COORDINATOR_",
    "LOCKD_NODE_",
    "LOCKD_CONTROLLER_",
    "LOCKD_AGENT_",
    "LOCKD_HA_",
    "LOCKD_JOB_",
    "LOCKD_LEADER_EPOCH",
    "LOCKD_GUARD_",
    "LOCKD_BUILD_COMMIT",
    "LOCKD_CONFIG",
    "LOCKD_TXN_ID",
    "LOCKD_SERVICE_",
    "LOCKD_PORT",
    "LOCKD_S3_ACCESS_KEY_ID",
    "LOCKD_S3_SECRET_ACCESS_KEY",
    "LOCKD_S3_SESSION_TOKEN",
    "LOCKD_AZURE_ACCOUNT_KEY",
    "LOCKD_AZURE_SAS_TOKEN",
    "LOCKD_GCS_SERVICE_ACCOUNT",
];

/// # Errors
/// When anything is wrong in any layer.
pub fn load(layers: &Layers, environment: &impl Environment) -> Result<Loaded, Problems> {
    let mut raw = Raw::default();
    if let Some((name, text)) = &layers.file {
        raw.add_file(name, text);
    }
    let variables = environment.variables();
    raw.add_environment(&variables);
    for (name, value) in &layers.flags {
        raw.set(name, value, format!("--{name}"));
    }
    let settings = raw.read(layers.home.as_deref(), &variables);
    let effective = raw.effective();
    let problems = raw.problems;
    match settings {
        Some(settings) if problems.is_empty() => {
            Ok(Loaded { settings, effective, warnings: raw.warnings })
        }
        Some(_) | None => Err(Problems(problems)),
    }
}

#[derive(Default)]
struct Raw {
    /// By name: the text, and where it came from.
    values: BTreeMap<&'static str, (String, String)>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Scalar {
    Switch(bool),
    Whole(i64),
    Broken(f64),
    Text(String),
    List(Vec<String>),
}

impl Raw {
    fn set(&mut self, name: &str, value: &str, source: String) {
        match SETTINGS.iter().find(|setting| setting.name == name) {
            Some(setting) => {
                self.values.insert(setting.name, (value.trim().to_owned(), source));
            }
            None => self.problems.push(format!("{source}: there is no such setting")),
        }
    }

    fn add_file(&mut self, file: &str, text: &str) {
        if text.lines().all(|line| line.trim().is_empty() || line.trim().starts_with('#')) {
            return;
        }
        let parsed: Result<BTreeMap<String, Option<Scalar>>, _> = serde_saphyr::from_str(text);
        let values = match parsed {
            Ok(values) => values,
            Err(error) => {
                // With its snippet it says everything twice.
                self.problems.push(format!("{file}: {}", error.without_snippet()));
                return;
            }
        };
        for (name, value) in values {
            let value = match value {
                Some(Scalar::Switch(value)) => value.to_string(),
                Some(Scalar::Whole(value)) => value.to_string(),
                Some(Scalar::Broken(value)) => value.to_string(),
                Some(Scalar::Text(value)) => value,
                Some(Scalar::List(values)) => values.join(","),
                None => continue,
            };
            self.set(&name, &value, format!("{file}: {name}"));
        }
    }

    fn add_environment(&mut self, variables: &[(String, String)]) {
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix("LOCKD_") else { continue };
            let name = rest.to_ascii_lowercase().replace('_', "-");
            if SETTINGS.iter().any(|setting| setting.name == name) {
                self.set(&name, value, variable.clone());
            } else if !OTHER_VARIABLES.iter().any(|other| variable.starts_with(other)) {
                self.warnings.push(format!("{variable} is set but is no setting of lockd"));
            }
        }
    }

    fn effective(&self) -> Vec<Effective> {
        let effective = |setting: &super::Setting| match self.values.get(setting.name) {
            Some((value, source)) => {
                Effective { name: setting.name, value: value.clone(), source: source.clone() }
            }
            None => Effective {
                name: setting.name,
                value: setting.default.to_owned(),
                source: "default".to_owned(),
            },
        };
        SETTINGS.iter().map(effective).collect()
    }

    fn text(&self, name: &str) -> &str {
        let given = self.values.get(name).map(|(value, _)| value.as_str());
        let default = SETTINGS.iter().find(|setting| setting.name == name);
        given.or_else(|| default.map(|setting| setting.default)).unwrap_or_default()
    }

    /// The value of a setting, or a problem that says where it came from.
    fn parse<T>(&mut self, name: &str, read: impl Fn(&str) -> Result<T, BadValue>) -> Option<T> {
        let text = self.text(name).to_owned();
        match read(&text) {
            Ok(value) => Some(value),
            Err(wrong) => {
                let source = self.values.get(name).map_or(name, |(_, source)| source.as_str());
                self.problems.push(format!("{source} is {text:?}: {wrong}"));
                None
            }
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    fn read(&mut self, home: Option<&str>, variables: &[(String, String)]) -> Option<Settings> {
        let proto = self.text("listen-proto").to_owned();
        let listen = self.parse("listen", |text| value::addresses(text, &proto));
        let metrics_listen = self.parse("metrics-listen", |text| match text {
            "" => Ok(None),
            text => value::address(text, "tcp").map(Some),
        });
        let store = self.store(home, variables);
        let mtls = self.parse("mtls", value::switch);
        let disable_mtls = self.parse("disable-mtls", value::switch);
        let log_json = self.parse("log-format", |text| match text {
            "json" => Ok(true),
            "text" => Ok(false),
            _ => Err(BadValue("expected text or json".into())),
        });
        let default_namespace = self.parse("default-namespace", |text| {
            lockd_core::key::parse_namespace(text).map_err(|refused| BadValue(refused.to_string()))
        });
        let generate_keys = self.parse("generate-keys", value::switch);
        let identity = self.identity(home);
        let queue = self.queue();
        let [json_max, mutate_max, attachment_max, max_headers, body_min_rate] = self.sizes();
        let store_cache = self.parse("store-cache", value::bytes_or_auto);
        let [default_ttl, max_ttl, acquire_block, idle_timeout, body_timeout] = self.times();
        let allow_network_fs = self.parse("allow-network-fs", value::switch);
        let sweeper_interval = self.parse("sweeper-interval", value::duration);
        let decision_retention = self.parse("tc-decision-retention", value::duration);
        let gc_temps_interval = self.parse("gc-temps-interval", value::duration);
        let (drain_grace, drain_leases, shutdown_timeout) = self.stopping();
        let max_connections = self.parse("max-connections", value::count);
        let per_address = self.parse("max-connections-per-address", value::count_or_auto);
        let max_waiters = self.parse("max-waiters", value::count);
        let insecure_bind = self.parse("insecure-bind", value::switch);
        let settings = Settings {
            listen: listen?,
            store: store?,
            allow_network_fs: allow_network_fs?,
            default_namespace: default_namespace?,
            generate_keys: generate_keys?,
            default_ttl: default_ttl?,
            max_ttl: max_ttl?,
            acquire_block: acquire_block?,
            json_max: json_max?,
            mutate_max: mutate_max?,
            attachment_max: attachment_max?,
            store_cache: store_cache?,
            sweeper_interval: sweeper_interval?,
            decision_retention: decision_retention?,
            gc_temps_interval: gc_temps_interval?,
            drain_grace: drain_grace?,
            drain_leases: drain_leases?,
            shutdown_timeout: shutdown_timeout?,
            max_connections: max_connections?,
            max_connections_per_address: per_address?,
            max_waiters: max_waiters?,
            queue: queue?,
            max_headers: usize::try_from(max_headers?).unwrap_or(usize::MAX),
            idle_timeout: idle_timeout?,
            body_timeout: body_timeout?,
            body_min_rate: body_min_rate?,
            metrics_listen: metrics_listen?,
            log_level: self.text("log-level").to_owned(),
            log_json: log_json?,
            mtls: mtls? && !disable_mtls?,
            identity: identity?,
            insecure_bind: insecure_bind?,
        };
        self.check(&settings);
        Some(settings)
    }

    fn sizes(&mut self) -> [Option<u64>; 5] {
        ["json-max", "mutate-max", "attachment-max", "max-headers", "body-min-rate"]
            .map(|name| self.parse(name, value::bytes))
    }

    fn times(&mut self) -> [Option<Duration>; 5] {
        ["default-ttl", "max-ttl", "acquire-block", "idle-timeout", "body-timeout"]
            .map(|name| self.parse(name, value::duration))
    }

    fn stopping(&mut self) -> (Option<Duration>, Option<bool>, Option<Duration>) {
        let drain_grace = self.parse("drain-grace", value::duration);
        let drain_leases = self.parse("drain-leases", value::switch);
        (drain_grace, drain_leases, self.parse("shutdown-timeout", value::duration))
    }

    fn store(
        &mut self,
        home: Option<&str>,
        variables: &[(String, String)],
    ) -> Option<StoreSetting> {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let s3_endpoint = given(self.text("s3-endpoint"));
        let store = self.parse("store", |text| value::store(text, home, s3_endpoint.as_deref()));
        let part_bytes = self.parse("s3-max-part-size", value::part_size);
        let timeout = self.parse("s3-timeout", value::duration);
        let patience = self.parse("s3-retry-timeout", value::duration);
        let key = given(self.text("s3-kms-key-id"));
        let encryption = self.parse("s3-sse", |text| value::encryption(text, key.clone()));
        let mut options = match store? {
            StoreSetting::Object(options) => options,
            other @ (StoreSetting::Memory | StoreSetting::Embedded(_)) => return Some(other),
        };
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| variable == name);
            found.and_then(|(_, value)| given(value))
        };
        options.region = given(self.text("s3-region"))
            .or_else(|| variable("AWS_REGION"))
            .or_else(|| variable("AWS_DEFAULT_REGION"));
        options.endpoint = match options.location.service {
            Service::S3 { .. } => None,
            Service::Azure { .. } => given(self.text("azure-endpoint")),
            Service::Gcs => given(self.text("gcs-endpoint")),
        };
        options.encryption = encryption?;
        options.part_bytes = part_bytes?;
        options.timeout = timeout?;
        options.patience = patience?;
        options.credentials = Credentials {
            access_key_id: variable("LOCKD_S3_ACCESS_KEY_ID"),
            secret_access_key: variable("LOCKD_S3_SECRET_ACCESS_KEY"),
            session_token: variable("LOCKD_S3_SESSION_TOKEN"),
            azure_account_key: variable("LOCKD_AZURE_ACCOUNT_KEY"),
            azure_sas_token: variable("LOCKD_AZURE_SAS_TOKEN"),
            gcs_service_account: variable("LOCKD_GCS_SERVICE_ACCOUNT"),
        };
        Some(StoreSetting::Object(options))
    }

    fn queue(&mut self) -> Option<QueueSettings> {
        let payload_max = self.parse("queue-payload-max", value::bytes);
        let max_consumers = self.parse("queue-max-consumers", value::count);
        let named = self.parse("metrics-queues", value::named_queues);
        Some(QueueSettings {
            payload_max: payload_max?,
            max_consumers: max_consumers?,
            named: named?,
        })
    }

    fn identity(&mut self, home: Option<&str>) -> Option<IdentitySettings> {
        let home = home.map(|home| PathBuf::from(home).join(".lockd"));
        let tc_allow_default_ca = self.parse("tc-allow-default-ca", value::switch);
        let tc_disable_auth = self.parse("tc-disable-auth", value::switch);
        Some(IdentitySettings {
            bundle: self.path("bundle"),
            config_dir: self.path("bootstrap").or_else(|| self.path("config-dir")).or(home),
            denylist_path: self.path("denylist-path"),
            tc_trust_dir: self.path("tc-trust-dir"),
            tc_allow_default_ca: tc_allow_default_ca?,
            tc_disable_auth: tc_disable_auth?,
        })
    }

    /// What must hold between settings.
    fn check(&mut self, settings: &Settings) {
        let mut wrong = |holds: bool, problem: &str| {
            if !holds {
                self.problems.push(problem.to_owned());
            }
        };
        wrong(settings.max_ttl >= settings.default_ttl, "max-ttl is below default-ttl");
        let (shortest, longest) = (u128::from(TTL_MIN.0), u128::from(TTL_MAX.0));
        wrong(settings.default_ttl.as_millis() >= shortest, "default-ttl is below 10ms");
        wrong(settings.max_ttl.as_millis() <= longest, "max-ttl is above 30 days");
        wrong(settings.json_max > 0, "json-max is zero");
        wrong(
            settings.mutate_max <= 256 << 20,
            "mutate-max is above 256MiB, which memory must hold",
        );
        wrong(settings.max_headers <= 256 << 10, "max-headers is above 256KiB");
        for (name, span) in [
            ("sweeper-interval", settings.sweeper_interval),
            ("gc-temps-interval", settings.gc_temps_interval),
            ("idle-timeout", settings.idle_timeout),
            ("body-timeout", settings.body_timeout),
        ] {
            wrong(!span.is_zero(), &format!("{name} is zero"));
        }
        if !settings.mtls && !settings.insecure_bind {
            for address in &settings.listen {
                wrong(
                    is_local(address),
                    "without mutual TLS lockd listens on loopback only; listen on 127.0.0.1, or \
                     pass --insecure-bind if the network is trusted",
                );
            }
        }
        let path = match &settings.store {
            StoreSetting::Embedded(path) => Some(path),
            StoreSetting::Memory | StoreSetting::Object(_) => None,
        };
        wrong(path.is_none_or(|path| !path.as_os_str().is_empty()), "store names no path");
    }
}

/// An empty host becomes loopback when there is no mutual TLS.
fn is_local(address: &Address) -> bool {
    match address {
        Address::Unix(_) => true,
        Address::Tcp { host, .. } => {
            let ip = host.parse::<std::net::IpAddr>();
            host.is_empty() || host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests;
