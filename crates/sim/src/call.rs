//! What a client can ask for, with nothing left to be looked up: the one vocabulary of scenarios,
//! simulated clients and real ones. How it travels is left to `wire` and to the rings.

use std::sync::Arc;

/// What a holder shows to act under its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub lease_id: String,
    pub txn_id: String,
    pub token: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Acquire(Acquire),
    /// Without a key, the lease id alone says which.
    Keepalive {
        key: Option<String>,
        held: Held,
        ttl_ms: Option<u64>,
    },
    Write(Write),
    Release(Release),
    /// The committed document.
    Get {
        key: String,
    },
    /// What the holder sees; without a key, by its lease id alone.
    View {
        key: Option<String>,
        held: Held,
    },
    Describe {
        key: String,
    },
    /// Several keys as of one moment.
    Read {
        keys: Vec<String>,
    },
    Revoke {
        key: String,
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    pub key: String,
    pub owner: String,
    pub ttl_ms: Option<u64>,
    pub block: Block,
    pub if_not_exists: bool,
    pub txn: Option<String>,
    pub idem: Option<String>,
}

/// How long an acquire waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Block {
    #[default]
    No,
    Forever,
    Seconds(u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Without a key, the lease id alone says which, and the write is committed at once.
    pub key: Option<String>,
    pub held: Held,
    pub what: What,
    pub then: Then,
    pub if_version: Option<u64>,
    /// The etag as text; the empty text means "no document".
    pub if_etag: Option<String>,
    pub fences: Vec<Fence>,
    pub hidden: Option<bool>,
    pub idem: Option<String>,
    /// Sent without its length, as a stream would be.
    pub streamed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Document(Arc<str>),
    Remove,
    Metadata,
    Mutate(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    #[default]
    Stage,
    Commit,
    Release,
}

/// "Only if the token of that key is still this one."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Namespace and key.
    pub name: String,
    pub token: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub key: Option<String>,
    pub held: Held,
    pub rollback: bool,
    pub fences: Vec<Fence>,
    pub idem: Option<String>,
}

impl Ask {
    /// The lease under which it is asked.
    #[must_use]
    pub fn held(&self) -> Option<&Held> {
        match self {
            Self::Keepalive { held, .. } | Self::View { held, .. } => Some(held),
            Self::Write(write) => Some(&write.held),
            Self::Release(release) => Some(&release.held),
            Self::Acquire(_)
            | Self::Get { .. }
            | Self::Describe { .. }
            | Self::Read { .. }
            | Self::Revoke { .. } => None,
        }
    }

    #[must_use]
    pub fn idem(&self) -> Option<&str> {
        match self {
            Self::Acquire(acquire) => acquire.idem.as_deref(),
            Self::Write(write) => write.idem.as_deref(),
            Self::Release(release) => release.idem.as_deref(),
            Self::Keepalive { .. }
            | Self::Get { .. }
            | Self::View { .. }
            | Self::Describe { .. }
            | Self::Read { .. }
            | Self::Revoke { .. } => None,
        }
    }
}

/// The default namespace, in which all keys here live.
pub const NAMESPACE: &str = "default";

/// An xid for a name, the same each time: transactions in scenarios have names.
#[must_use]
pub fn txn_of(name: &str) -> String {
    let mut text: String =
        name.chars().filter(|c| c.is_ascii_digit() || ('a'..='v').contains(c)).take(20).collect();
    while text.len() < 20 {
        text.push('0');
    }
    text
}
