//! A scenario as it was read: steps whose leases are still names, not secrets.

use crate::call::{Fence, Then, What};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub steps: Vec<Step>,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Step {
    pub line: usize,
    /// When, counted from the beginning.
    pub at_ms: u64,
    pub event: Event,
}

#[derive(Clone, Debug)]
pub enum Event {
    Command {
        actor: String,
        command: Command,
        expected: Vec<String>,
    },
    /// The server process starts anew on the same machine.
    Restart,
    /// The machine starts anew.
    Reboot,
    /// Somebody sets the wall clock ahead or back.
    Wall {
        by_ms: i64,
    },
}

/// Which lease an actor acts under, and what it says about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Under {
    /// The label of the lease; the actor's latest on that key when absent.
    pub label: Option<String>,
    /// Another token than the lease's.
    pub token: Option<u64>,
    /// Another transaction than the lease's.
    pub txn: Option<String>,
    /// Shows nothing but the lease id.
    pub by_id: bool,
}

#[derive(Clone, Debug)]
pub enum Command {
    Acquire {
        key: String,
        ttl_ms: Option<u64>,
        if_not_exists: bool,
        txn: Option<String>,
        idem: Option<String>,
        label: Option<String>,
    },
    Keepalive {
        key: String,
        under: Under,
        ttl_ms: Option<u64>,
    },
    Write {
        key: String,
        under: Under,
        what: What,
        then: Then,
        conditions: Conditions,
    },
    Release {
        key: String,
        under: Under,
        rollback: bool,
        conditions: Conditions,
    },
    Get {
        key: String,
    },
    View {
        key: String,
        under: Under,
    },
    Describe {
        key: String,
    },
    Read {
        keys: Vec<String>,
    },
    Revoke {
        key: String,
        reason: String,
    },
}

/// What may go with a write or a release.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    pub if_version: Option<u64>,
    pub if_etag: Option<String>,
    pub fences: Vec<Fence>,
    pub hidden: Option<bool>,
    pub idem: Option<String>,
    pub streamed: bool,
}
