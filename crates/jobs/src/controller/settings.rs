//! What can be chosen about a controller.

use std::fmt;
use std::time::Duration;

use lockd_client::clock::Moment;
use lockd_wire::node::{Assignment, Role};
use tokio::sync::watch;

/// Who says what the controller is to be.
#[derive(Clone)]
pub enum Source {
    /// The node beside it, asked at a local endpoint with a token.
    Follow { endpoint: String, token: String },
    /// It stays as it was told at the start.
    Fixed { role: Role, epoch: Option<u64> },
    /// Nobody: it leads, under an epoch above all that its store has seen.
    Alone,
    /// Whoever has it in the same process.
    Told(watch::Receiver<Orders>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Follow { endpoint, .. } => write!(f, "Follow({endpoint})"),
            Self::Fixed { role, epoch } => write!(f, "Fixed({role:?}, {epoch:?})"),
            Self::Alone => f.write_str("Alone"),
            Self::Told(_) => f.write_str("Told"),
        }
    }
}

/// What the controller is to be, and how long that holds.
#[derive(Clone, Debug, Default)]
pub struct Orders {
    pub assignment: Assignment,
    /// Past this it changes nothing, unless it hears more. `None`: it holds until the next.
    pub until: Option<Moment>,
}

/// How the events of another leader are had.
#[derive(Clone, Default)]
pub struct Relaying {
    /// Shown to the leader.
    pub token: Option<String>,
    /// For leaders at `https` addresses.
    pub tls: Option<rustls::ClientConfig>,
}

impl fmt::Debug for Relaying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relaying")
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub node_id: String,
    /// Where clients reach this node.
    pub url: Option<String>,
    pub source: Source,
    pub relaying: Relaying,
    /// How long work is an agent's unless it renews it.
    pub lease_ttl: Duration,
    /// Jobs that are not over, and about how many bytes of them.
    pub unfinished_max: usize,
    pub unfinished_bytes_max: usize,
    /// How many jobs that are over are kept; more while they are younger than the age.
    pub finished_max: usize,
    pub finished_age_min: Duration,
    /// Bytes of jobs that are over, however young: whoever takes office reads them all, and is
    /// waited for.
    pub finished_bytes_max: usize,
    /// Requests that wait for work.
    pub waiters_max: usize,
    pub agents_max: usize,
    /// Events that can be resumed from, and streams of them at one time.
    pub events_max: usize,
    pub events_bytes_max: usize,
    pub streams_max: usize,
}

impl Settings {
    #[must_use]
    pub fn new(node_id: &str, source: Source) -> Self {
        Self {
            node_id: node_id.into(),
            url: None,
            source,
            relaying: Relaying::default(),
            lease_ttl: Duration::from_secs(15),
            unfinished_max: 100_000,
            unfinished_bytes_max: 1024 * 1024 * 1024,
            finished_max: 10_000,
            finished_age_min: Duration::from_secs(600),
            finished_bytes_max: 256 * 1024 * 1024,
            waiters_max: 10_000,
            agents_max: 10_000,
            events_max: 10_000,
            events_bytes_max: 8 * 1024 * 1024,
            streams_max: 256,
        }
    }

    pub(crate) fn lease_ttl_ms(&self) -> u64 {
        u64::try_from(self.lease_ttl.as_millis()).unwrap_or(u64::MAX)
    }
}
