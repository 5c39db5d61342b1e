//! What a node is told at its start.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use http::Uri;
use lockd_front::FrontSettings;
use lockd_serve::{Door, Secret, SecretError};
use rustix::process::Signal;

/// The longest name of a node.
const NODE_ID_MAX: usize = 100;
/// An opening that is not told otherwise may take this long, and never less than three times the
/// lock's time to live.
const OPEN_TIMEOUT_MIN: Duration = Duration::from_secs(15);

/// How a controller hears that its role is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// It is stopped, and started with other variables.
    Restart,
    /// It gets a signal, and asks at the local endpoint.
    Signal(Signal),
    /// It asks at the local endpoint all the time.
    Follow,
    /// It does not: only the port in front of it knows roles.
    None,
}

impl RoleChange {
    /// `restart`, `signal` (SIGHUP), `signal:USR1`, `follow` or `none`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "restart" => Some(Self::Restart),
            "signal" => Some(Self::Signal(Signal::HUP)),
            "follow" => Some(Self::Follow),
            "none" => Some(Self::None),
            _ => signal(text.strip_prefix("signal:")?).map(Self::Signal),
        }
    }
}

fn signal(name: &str) -> Option<Signal> {
    match name.strip_prefix("SIG").unwrap_or(name) {
        "HUP" => Some(Signal::HUP),
        "USR1" => Some(Signal::USR1),
        "USR2" => Some(Signal::USR2),
        "WINCH" => Some(Signal::WINCH),
        "CONT" => Some(Signal::CONT),
        _ => None,
    }
}

/// How it is seen that a controller works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// A GET of this path is answered with success.
    Path(String),
    /// Its port can be connected to.
    Tcp,
}

impl Default for Health {
    fn default() -> Self {
        Self::Path(lockd_wire::node::HEALTH.into())
    }
}

impl Health {
    /// `tcp`, or a path.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "tcp" => Some(Self::Tcp),
            path if path.starts_with('/') => Some(Self::Path(path.into())),
            _ => None,
        }
    }
}

/// What operators and other nodes show, and what is shown to other nodes.
#[derive(Clone)]
pub struct Token {
    pub(crate) secret: Secret,
    pub(crate) text: String,
}

impl Token {
    /// # Errors
    /// When it is too short to be a secret, or cannot be sent.
    pub fn new(text: &str) -> Result<Self, SecretError> {
        Ok(Self { secret: Secret::new(text)?, text: text.into() })
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0:?} is no name of a node: 1 to {NODE_ID_MAX} letters, digits, '-', '_' and '.'")]
    NodeId(String),
    #[error("{0:?} is no URL of a node: it begins with http:// or https:// and has no path")]
    Url(String),
    #[error("the candidate in the lock is {found:?}; others look for {wanted:?}")]
    Candidate { found: String, wanted: String },
    #[error("{0}: the command is empty")]
    NoCommand(&'static str),
    #[error("the URL of the controller begins with http:// and names a host: {0}")]
    Controller(Uri),
    #[error(
        "{0} can be reached from other machines: configure a token or a server bundle, or listen on \
         127.0.0.1"
    )]
    Open(SocketAddr),
    #[error("the client for other nodes: {0}")]
    Client(String),
    #[error("the folder of the node {path}: {source}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Serve(#[from] lockd_serve::ServeError),
}

/// A node.
#[derive(Debug)]
pub struct NodeSettings {
    pub node_id: String,
    /// Where others reach its port.
    pub url: String,
    pub listen: String,
    pub door: Door,
    /// Shown by operators and other nodes to change something, and to other nodes.
    pub token: Option<Token>,
    /// For other nodes behind `https://`.
    pub peer_tls: Option<rustls::ClientConfig>,
    pub controller: Vec<String>,
    pub health: Health,
    pub role_change: RoleChange,
    pub agent: Option<Vec<String>>,
    /// Whether the agent works while another node leads.
    pub moonlight: bool,
    /// How long requests that began before may take at a hand-over.
    pub drain_grace: Duration,
    /// How long a program may take to end, or to close, before it is killed.
    pub stop_grace: Duration,
    /// How long a controller may take to open.
    pub open_timeout: Option<Duration>,
    /// Asks for the office whenever somebody else has it.
    pub preferred: bool,
    /// For how long everything must have been well before it asks.
    pub preferred_after: Duration,
    pub never_lead: bool,
    /// The port: where the controller is, which requests change something.
    pub front: FrontSettings,
    /// Where the history is kept, and whether the cluster is paused.
    pub folder: Option<PathBuf>,
    /// A command that runs `lockd_child::guard` on the arguments after it.
    pub guard: Vec<OsString>,
    /// For the programs, besides the environment of this process.
    pub environment: Vec<(String, String)>,
    /// Taken out of the programs' environment: secrets of this process.
    pub hidden: Vec<String>,
}

impl NodeSettings {
    /// With what is usual for everything else: a controller that is started again at role changes,
    /// no agent, and a port for this machine only.
    #[must_use]
    pub fn new(
        node_id: impl Into<String>,
        url: impl Into<String>,
        listen: impl Into<String>,
        controller: Vec<String>,
        front: FrontSettings,
    ) -> Self {
        Self {
            node_id: node_id.into(),
            url: url.into(),
            listen: listen.into(),
            door: Door::Plain,
            token: None,
            peer_tls: None,
            controller,
            health: Health::default(),
            role_change: RoleChange::Restart,
            agent: None,
            moonlight: true,
            drain_grace: Duration::from_secs(5),
            stop_grace: Duration::from_secs(5),
            open_timeout: None,
            preferred: false,
            preferred_after: Duration::from_secs(10),
            never_lead: false,
            front,
            folder: None,
            guard: Vec::new(),
            environment: Vec::new(),
            hidden: Vec::new(),
        }
    }

    /// The name of this node in the lock, from which the others know its URL.
    #[must_use]
    pub fn candidate_id(&self) -> String {
        format!("{}@{}", self.node_id, self.url)
    }

    pub(crate) fn open_timeout(&self, ttl: Duration) -> Duration {
        self.open_timeout.unwrap_or_else(|| OPEN_TIMEOUT_MIN.max(ttl * 3))
    }

    pub(crate) fn check(&self, candidate: &str) -> Result<(), StartError> {
        if !is_node_id(&self.node_id) {
            return Err(StartError::NodeId(self.node_id.clone()));
        }
        if !is_url(&self.url) {
            return Err(StartError::Url(self.url.clone()));
        }
        if self.candidate_id() != candidate {
            let (found, wanted) = (candidate.into(), self.candidate_id());
            return Err(StartError::Candidate { found, wanted });
        }
        if self.controller.is_empty() {
            return Err(StartError::NoCommand("controller"));
        }
        if self.agent.as_ref().is_some_and(Vec::is_empty) {
            return Err(StartError::NoCommand("agent"));
        }
        let controller = &self.front.controller;
        if controller.scheme_str() != Some("http") || controller.host().is_none() {
            return Err(StartError::Controller(controller.clone()));
        }
        Ok(())
    }
}

/// Names that go into headers, URLs and the lock as they are.
pub(crate) fn is_node_id(id: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NODE_ID_MAX).contains(&id.len()) && id.chars().all(fits)
}

pub(crate) fn is_url(url: &str) -> bool {
    let Ok(uri) = url.parse::<Uri>() else { return false };
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    known && uri.host().is_some() && matches!(uri.path(), "" | "/") && uri.query().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_urls_are_parsed() {
        assert!(is_node_id("a-1.b_c") && !is_node_id("a@b") && !is_node_id(""));
        assert!(is_url("http://a:1") && is_url("https://a") && !is_url("ftp://a"));
        assert!(!is_url("http://a/b") && !is_url("a:1"));
        assert_eq!(RoleChange::parse("signal:SIGUSR1"), Some(RoleChange::Signal(Signal::USR1)));
        assert_eq!(RoleChange::parse("signal"), Some(RoleChange::Signal(Signal::HUP)));
        assert_eq!(RoleChange::parse("signal:KILL"), None, "nobody could hear it");
        assert_eq!(Health::parse("tcp"), Some(Health::Tcp));
        assert_eq!(Health::parse("healthz"), None);
    }
}
