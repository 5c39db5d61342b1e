//! Flags, variables and file of a node, put together: a flag beats its variable, which beats the
//! file.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use lockd_cli::ports;
use lockd_coordinator::sidecar::{maybe_span, span};
use lockd_front::{Forward, FrontSettings, Rules};
use lockd_node::{Health, NodeSettings, RoleChange, Token};
use serde::Deserialize;

use super::super::daemon;
use super::super::reach::{Certificates, Reach, check_cluster};

/// Run a controller and an agent on one of several nodes, of which one leads
///
/// Runs for a leader lock; the node that holds it has a controller that may change things and no
/// agent, the others answer questions and may work meanwhile. Everything is reached at one port,
/// which refuses changes where the node does not lead.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct NodeControllerArgs {
    /// Settings file (YAML)
    #[arg(long, env = "LOCKD_NODE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    given: Given,
}

const AFTER_HELP: &str = "\
Examples:
  lockd &                                         a server for the lock and the jobs
  lockd node-controller --node-id a \\
    --controller 'lockd controller' --role-change follow \\
    --agent 'lockd agent' --moonlight             a node; start another with --node-id b,
                                                  --listen, --url and --controller-url of its own
  lockd node-controller --config node.yaml
  lockd node-controller --node-id a --lock postgres://lockd@db/lockd \\
    --controller 'my-scheduler --port 8080' --controller-url http://127.0.0.1:8080
  lockd ha status

The programs learn what they are from LOCKD_HA_ROLE, LOCKD_HA_EPOCH and LOCKD_HA_NODE_ID, and
from LOCKD_HA_ENDPOINT while they run. Every flag NAME is also the variable LOCKD_NODE_NAME and
the key name of the settings file, with underscores. Put a --lock with a password into
LOCKD_NODE_LOCK or the file: command lines are seen by others. Without --bundle the
controller asks other machines for a token of its own: see `lockd controller --help`.
Exit codes: 0 stopped as asked, 1 failed, 2 wrong usage.";

/// One or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Command {
    Line(String),
    Words(Vec<String>),
}

impl Command {
    /// What needs no shell is started without one.
    fn words(self) -> Vec<String> {
        match self {
            Self::Words(words) => words,
            Self::Line(line) => {
                let plain = |c: char| c.is_ascii_alphanumeric() || " \t-_./:=,@+%?&{}".contains(c);
                let first = line.split_whitespace().next().unwrap_or_default();
                // A word with = before the program sets a variable; & puts it into the background.
                let is_shell = first.contains('=') || line.contains(" &") || line.contains("& ");
                if line.chars().all(plain) && !is_shell {
                    return line.split_whitespace().map(Into::into).collect();
                }
                vec!["/bin/sh".into(), "-c".into(), line]
            }
        }
    }
}

fn line(text: &str) -> Result<Command, String> {
    if text.trim().is_empty() { Err("a command".into()) } else { Ok(Command::Line(text.into())) }
}

/// What may be given in any layer.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Given {
    /// The name of this node [default: the name of the machine]
    #[arg(long, env = "LOCKD_NODE_NODE_ID", value_name = "NAME")]
    node_id: Option<String>,
    /// Which nodes belong together [default: default]
    #[arg(long, env = "LOCKD_NODE_CLUSTER", value_name = "NAME")]
    cluster: Option<String>,
    /// Where to listen [default: 127.0.0.1:9344]
    #[arg(long, env = "LOCKD_NODE_LISTEN", value_name = "HOST:PORT")]
    listen: Option<String>,
    /// How others reach this port; must be given where --listen names no address that they reach
    /// [default: http://LISTEN]
    #[arg(long, env = "LOCKD_NODE_URL", value_name = "URL")]
    url: Option<String>,
    /// The leader lock: lockd://host:port[?insecure=1], postgres://user@host/database,
    /// etcd://host:port,host:port or redis://host:port/0
    /// [default: lockd://127.0.0.1:9341]
    #[arg(long, env = "LOCKD_NODE_LOCK", value_name = "URL", hide_env_values = true)]
    lock: Option<String>,
    /// How long the lock is held unless it is renewed [default: 10s]
    #[arg(long, env = "LOCKD_NODE_LOCK_TTL", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    lock_ttl: Option<Duration>,
    /// For lockd:// with TLS: the bundle of a client [default: the one that `lockd client` finds]
    #[arg(long, env = "LOCKD_NODE_LOCK_BUNDLE", value_name = "FILE")]
    lock_bundle: Option<PathBuf>,
    /// For the others with TLS: certificates of authorities (PEM) [default: those of the system]
    #[arg(long, env = "LOCKD_NODE_LOCK_CA", value_name = "FILE")]
    lock_ca: Option<PathBuf>,
    /// For the others with TLS: a certificate to show (PEM)
    #[arg(long, env = "LOCKD_NODE_LOCK_CERT", value_name = "FILE")]
    lock_cert: Option<PathBuf>,
    /// Its key, if that is in another file
    #[arg(long, env = "LOCKD_NODE_LOCK_KEY", value_name = "FILE")]
    lock_key: Option<PathBuf>,
    /// The controller, as a command; in the file also as a list of words
    #[arg(long, env = "LOCKD_NODE_CONTROLLER", value_name = "COMMAND", value_parser = line)]
    controller: Option<Command>,
    /// Where the controller listens [default: http://127.0.0.1:9343]
    #[arg(long, env = "LOCKD_NODE_CONTROLLER_URL", value_name = "URL")]
    controller_url: Option<String>,
    /// How it is seen that the controller works: a path, or tcp [default: /healthz]
    #[arg(long, env = "LOCKD_NODE_CONTROLLER_HEALTH", value_name = "PATH")]
    controller_health: Option<String>,
    /// How the controller hears of its role: restart, signal, signal:USR1, follow or none
    /// [default: restart]
    #[arg(long, env = "LOCKD_NODE_ROLE_CHANGE", value_name = "HOW")]
    role_change: Option<String>,
    /// The agent, as a command; in the file also as a list of words
    #[arg(long, env = "LOCKD_NODE_AGENT", value_name = "COMMAND", value_parser = line)]
    agent: Option<Command>,
    /// Run the agent while another node leads
    #[arg(long, env = "LOCKD_NODE_MOONLIGHT", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    moonlight: Option<bool>,
    /// How long requests under way may take at a hand-over [default: 5s]
    #[arg(long, env = "LOCKD_NODE_DRAIN_GRACE", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    drain_grace: Option<Duration>,
    /// How long a program may take to end before it is killed [default: 5s]
    #[arg(long, env = "LOCKD_NODE_STOP_GRACE", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    stop_grace: Option<Duration>,
    /// How long the controller may take until it leads, and, but at least 10s, until it answers
    /// for the first time after its start [default: 15s, and at least three lock TTLs]
    #[arg(long, env = "LOCKD_NODE_OPEN_TIMEOUT", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    open_timeout: Option<Duration>,
    /// Ask for the leadership whenever another node has it
    #[arg(long, env = "LOCKD_NODE_PREFERRED", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    preferred: Option<bool>,
    /// With --preferred: for how long all must have been well before [default: 10s]
    #[arg(long, env = "LOCKD_NODE_PREFERRED_AFTER", value_name = "TIME", value_parser = span)]
    #[serde(deserialize_with = "maybe_span")]
    preferred_after: Option<Duration>,
    /// Never lead
    #[arg(long, env = "LOCKD_NODE_NEVER_LEAD", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    never_lead: Option<bool>,
    /// Send changes on to the leader instead of refusing them
    #[arg(long, env = "LOCKD_NODE_FORWARD", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true")]
    forward: Option<bool>,
    /// Also a change, as in 'GET /admin/flush' or '/hooks/**'; may be given several times, or
    /// several with commas [default: every method but GET, HEAD and OPTIONS]
    #[arg(long, env = "LOCKD_NODE_MUTATES", value_name = "RULE", value_delimiter = ',')]
    mutates: Vec<String>,
    /// No change, as in 'POST /v1/search'; may be given several times, or several with commas
    #[arg(long, env = "LOCKD_NODE_READS", value_name = "RULE", value_delimiter = ',')]
    reads: Vec<String>,
    /// The folder of this node's history [default: ha/CLUSTER/NODE in the configuration folder]
    #[arg(long, env = "LOCKD_NODE_STATE", value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// A file with the token that operators and other nodes show
    #[arg(long, env = "LOCKD_NODE_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Ask for client certificates: the bundle of a server
    #[arg(long, env = "LOCKD_NODE_BUNDLE", value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// The bundle of a client to show to other nodes behind https
    #[arg(long, env = "LOCKD_NODE_PEER_BUNDLE", value_name = "FILE")]
    peer_bundle: Option<PathBuf>,
    /// What is logged, as in error, info or lockd_node=debug [default: info]
    #[arg(long, env = "LOCKD_NODE_LOG_LEVEL", value_name = "FILTER")]
    log_level: Option<String>,
    /// How log lines are written [default: text]
    #[arg(long, env = "LOCKD_NODE_LOG_FORMAT", value_enum)]
    log_format: Option<daemon::LogFormat>,
    /// The older form of --log-format=json
    #[arg(long, env = "LOCKD_NODE_LOG_JSON", value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true", hide = true)]
    log_json: Option<bool>,
}

/// What the programs have no use for.
const SECRETS: [&str; 2] = ["LOCKD_NODE_LOCK", "LOCKD_NODE_TOKEN_FILE"];
const NO_CONTROLLER: &str = "there is no controller to run: pass --controller COMMAND, as in \
                             --controller 'lockd controller'";
const TTL_MIN: Duration = Duration::from_millis(500);

/// All of it, decided.
pub(super) struct Settled {
    given: Given,
    pub(super) node_id: String,
    pub(super) cluster: String,
    pub(super) lock: Reach,
    pub(super) lock_ttl: Duration,
    pub(super) bundle: Option<PathBuf>,
    pub(super) log_level: String,
    pub(super) log_json: bool,
}

impl Given {
    /// These, and where one is missing, the other's.
    fn or(self, other: Self) -> Self {
        macro_rules! either {
            ($($name:ident),*) => {
                Self {
                    $($name: self.$name.or(other.$name),)*
                    mutates: if self.mutates.is_empty() { other.mutates } else { self.mutates },
                    reads: if self.reads.is_empty() { other.reads } else { self.reads },
                }
            };
        }
        either!(
            node_id,
            cluster,
            listen,
            url,
            lock,
            lock_ttl,
            lock_bundle,
            lock_ca,
            lock_cert,
            lock_key,
            controller,
            controller_url,
            controller_health,
            role_change,
            agent,
            moonlight,
            drain_grace,
            stop_grace,
            open_timeout,
            preferred,
            preferred_after,
            never_lead,
            forward,
            state,
            token_file,
            bundle,
            peer_bundle,
            log_level,
            log_format,
            log_json
        )
    }
}

impl NodeControllerArgs {
    pub(super) fn settle(self) -> anyhow::Result<Settled> {
        let filed: Given = daemon::settings_file(self.config.as_deref())?;
        let given = self.given.or(filed);
        let node_id = daemon::name(given.node_id.clone(), "--node-id")?;
        let cluster = given.cluster.clone().unwrap_or_else(|| "default".into());
        check_cluster(&cluster)?;
        anyhow::ensure!(given.controller.is_some(), NO_CONTROLLER);
        let lock_ttl = given.lock_ttl.unwrap_or(Duration::from_secs(10));
        anyhow::ensure!(
            lock_ttl >= TTL_MIN,
            "lock-ttl {lock_ttl:?} is too short: at least {TTL_MIN:?}"
        );
        let url = given.lock.clone().unwrap_or_else(|| ports::LOCKD_URL.into());
        let lock = Reach {
            flag: "--lock",
            url,
            bundle: given.lock_bundle.clone(),
            certificates: Certificates {
                authorities: given.lock_ca.clone(),
                own: given.lock_cert.clone(),
                key: given.lock_key.clone(),
            },
        };
        Ok(Settled {
            node_id,
            cluster,
            lock,
            lock_ttl,
            bundle: given.bundle.clone(),
            log_level: given.log_level.clone().unwrap_or_else(|| "info".into()),
            log_json: daemon::log_is_json(given.log_format, given.log_json),
            given,
        })
    }
}

impl Settled {
    pub(super) fn node(&self) -> anyhow::Result<NodeSettings> {
        let given = &self.given;
        let controller = given.controller.clone().context(NO_CONTROLLER)?;
        let listen = given.listen.clone().unwrap_or_else(|| ports::node::LISTEN.into());
        let url = self.url(&listen)?;
        let peer_tls = daemon::client_tls(given.peer_bundle.as_deref())?;
        let front = self.front(peer_tls.clone())?;
        let mut node = NodeSettings::new(&self.node_id, url, listen, controller.words(), front);
        node.peer_tls = peer_tls;
        if let Some(path) = &given.token_file {
            let shown = path.display();
            let token = Token::new(&daemon::secret(path)?);
            node.token = Some(token.with_context(|| format!("the token in {shown}"))?);
        }
        if let Some(text) = &given.controller_health {
            let wrong = || format!("controller-health {text:?} is neither a path nor tcp");
            node.health = Health::parse(text).with_context(wrong)?;
        }
        if let Some(text) = &given.role_change {
            let wrong = || {
                format!(
                    "role-change {text:?} is none of restart, signal, signal:USR1, follow, none"
                )
            };
            node.role_change = RoleChange::parse(text).with_context(wrong)?;
        }
        node.agent = given.agent.clone().map(Command::words);
        node.moonlight = given.moonlight.unwrap_or(false);
        node.drain_grace = given.drain_grace.unwrap_or(Duration::from_secs(5));
        node.stop_grace = given.stop_grace.unwrap_or(Duration::from_secs(5));
        node.open_timeout = given.open_timeout;
        node.preferred = given.preferred.unwrap_or(false);
        node.preferred_after = given.preferred_after.unwrap_or(node.preferred_after);
        node.never_lead = given.never_lead.unwrap_or(false);
        anyhow::ensure!(
            !(node.preferred && node.never_lead),
            "a node cannot be preferred and never lead"
        );
        node.folder = Some(self.folder()?);
        node.hidden = SECRETS.map(str::to_owned).to_vec();
        Ok(node)
    }

    /// Where others reach this port.
    fn url(&self, listen: &str) -> anyhow::Result<String> {
        let given = &self.given;
        let scheme = if given.bundle.is_some() { "https" } else { "http" };
        if let Some(url) = &given.url {
            let wrong = || format!("url {url:?} is not written as {scheme}://host:port");
            let uri = address(url).with_context(wrong)?;
            anyhow::ensure!(matches!(uri.scheme_str(), Some("http" | "https")), wrong());
            let host = uri.host().unwrap_or_default();
            anyhow::ensure!(!is_any(host), "others cannot reach {host}: pass --url with a name");
            return Ok(url.trim_end_matches('/').to_owned());
        }
        let (host, port) = listen.rsplit_once(':').unwrap_or((listen, ""));
        if host.is_empty() || is_any(host) {
            let open = given.token_file.is_none() && given.bundle.is_none();
            let more = if open { ", and --token-file or --bundle with it" } else { "" };
            let port = if port == "0" { "PORT" } else { port };
            anyhow::bail!("others cannot reach {listen}: pass --url {scheme}://NAME:{port}{more}");
        }
        anyhow::ensure!(
            port.parse() != Ok(0_u16),
            "{listen} leaves the port open, so others cannot be told: pass a port, or --url"
        );
        Ok(format!("{scheme}://{listen}"))
    }

    fn front(&self, tls: Option<rustls::ClientConfig>) -> anyhow::Result<FrontSettings> {
        let given = &self.given;
        let url = given.controller_url.as_deref().unwrap_or(ports::controller::URL);
        let wrong =
            || format!("controller-url {url:?} is not written as http://host:port, without a path");
        let controller = address(url).with_context(wrong)?;
        anyhow::ensure!(controller.scheme_str() == Some("http"), wrong());
        let rules = Rules::new(&given.mutates, &given.reads)?;
        let mut front = FrontSettings::new(controller, rules);
        if given.forward.unwrap_or(false) {
            front.forward = Some(Forward { tls: tls.map(Arc::new), ..Forward::default() });
        }
        Ok(front)
    }

    fn folder(&self) -> anyhow::Result<PathBuf> {
        if let Some(folder) = &self.given.state {
            return Ok(folder.clone());
        }
        let found = lockd_cli::folder::config_dir();
        let found = found.map_err(|problem| anyhow::anyhow!("{problem}"))?;
        Ok(found.join("ha").join(&self.cluster).join(&self.node_id))
    }
}

/// `scheme://host:port` and nothing behind it; the port may be left out.
fn address(url: &str) -> Option<http::Uri> {
    let uri: http::Uri = url.parse().ok()?;
    let (host, authority) = (uri.host()?, uri.authority()?.as_str());
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
    let port = place.strip_prefix(host)?;
    let fits = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let has_port = port.is_empty() || port.strip_prefix(':').is_some_and(fits);
    let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none() && !url.contains('#');
    (!host.is_empty() && has_port && is_bare).then_some(uri)
}

/// Whether it stands for every address of a machine, and so for none that others could ask.
fn is_any(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn a_shell_is_started_only_where_one_is_needed() {
        let words = |text: &str| line(text).unwrap().words();
        assert_eq!(
            words("lockd controller --listen :1"),
            ["lockd", "controller", "--listen", ":1"]
        );
        let url = words("lockd controller --store lockd://a:1?insecure=1&namespace=b");
        assert_eq!(url.len(), 4, "{url:?}");
        for shell in ["a | b", "A=1 b", "a $HOME", "a 'b c'", "a; b", "a &", "a && b"] {
            assert_eq!(words(shell), ["/bin/sh", "-c", shell]);
        }
        assert!(line("  ").is_err());
    }

    #[test]
    fn a_flag_beats_the_file() {
        let file =
            "node_id: a\nlock_ttl: 3s\nmoonlight: true\ncontroller: [x, 'y z']\nreads: [/a]\n";
        let filed: Given = serde_saphyr::from_str(file).unwrap();
        let flags = Given { node_id: Some("b".into()), ..Given::default() };
        let both = flags.or(filed);
        assert_eq!(both.node_id.as_deref(), Some("b"));
        assert_eq!(both.lock_ttl, Some(Duration::from_secs(3)));
        assert_eq!(both.controller.unwrap().words(), ["x", "y z"]);
        assert_eq!((both.moonlight, both.reads), (Some(true), vec!["/a".to_owned()]));
        assert!(serde_saphyr::from_str::<Given>("nod_id: a\n").is_err());
    }

    fn told(words: &[&str]) -> Result<NodeSettings, String> {
        let command = NodeControllerArgs::augment_args(clap::Command::new("node-controller"));
        let usual = ["node-controller", "--node-id=a", "--controller=true", "--state=/tmp"];
        let matches = command.try_get_matches_from(usual.iter().chain(words)).unwrap();
        let settled = NodeControllerArgs::from_arg_matches(&matches).unwrap().settle();
        let node = settled.and_then(|settled| settled.node());
        node.map_err(|error| super::super::super::told(&error))
    }

    #[test]
    fn an_address_that_nobody_reaches_is_refused() {
        let refused = |words: &[&str], part: &str| {
            let why = told(words).expect_err("it cannot be reached");
            assert!(why.contains(part), "{words:?}: {why}");
        };
        refused(&["--listen=0.0.0.0:9344"], "pass --url http://NAME:9344, and --token-file");
        refused(&["--listen=[::]:9344", "--token-file=x"], "pass --url http://NAME:9344");
        refused(&["--listen=:9344", "--bundle=x"], "pass --url https://NAME:9344");
        refused(&["--listen=127.0.0.1:0"], "leaves the port open");
        for url in ["http://:9344", "http://a:0", "http://a:", "http://a:99999", "ftp://a", "a:1"] {
            refused(&["--url", url], "is not written as http://host:port");
        }
        refused(&["--url=http://a/b"], "is not written as");
        refused(&["--url=http://[::]:1"], "others cannot reach [::]");
        let url = |words: &[&str]| told(words).unwrap().url;
        assert_eq!(url(&[]), "http://127.0.0.1:9344");
        assert_eq!(url(&["--listen=[::1]:1"]), "http://[::1]:1");
        assert_eq!(url(&["--listen=0.0.0.0:1", "--url=https://node-a:2/"]), "https://node-a:2");
        assert_eq!(url(&["--listen=127.0.0.1:0", "--url=http://[::1]:2"]), "http://[::1]:2");
    }

    #[test]
    fn a_path_behind_the_controllers_address_is_refused() {
        for url in ["http://h:1/app", "http://h:1/?a", "http://h:0", "http://:1", "https://h:1"] {
            let why = told(&["--controller-url", url]).expect_err("the path would be dropped");
            assert!(why.contains("controller-url"), "{url}: {why}");
        }
        for url in ["http://h:1", "http://h:1/", "http://h"] {
            assert!(told(&["--controller-url", url]).is_ok(), "{url}");
        }
    }

    #[test]
    fn every_flag_has_a_variable() {
        let command = NodeControllerArgs::augment_args(clap::Command::new("node-controller"));
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
            let name = format!("LOCKD_NODE_{}", flag.get_id().as_str().to_uppercase());
            assert_eq!(flag.get_env().and_then(|env| env.to_str()), Some(name.as_str()));
        }
    }
}
