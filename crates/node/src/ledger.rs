//! The port: where a controller keeps what it must not lose. Whoever writes says under which
//! leadership, and the place where it is kept refuses every one but the latest, in the same step.

pub mod lockd;
pub mod postgres;

use std::fmt;

use futures_util::future::BoxFuture;

/// What kind of thing a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Job,
    Agent,
}

impl Kind {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Agent => "agent",
        }
    }
}

/// Something that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub kind: Kind,
    /// Lower-case letters, digits, `-` and `.`.
    pub id: String,
    /// JSON.
    pub body: String,
}

/// A leadership, as the ledger remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub epoch: u64,
    pub node: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Whatever comes under a lower epoch is refused from now on.
    Yes,
    /// This epoch was here before, and it is not lower.
    Behind(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Done,
    /// Another leadership is the latest; nothing was changed.
    Stale,
}

/// The ledger could not be asked, or said no.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerFault {
    /// Nothing is known about what became of the request.
    #[error("{0}")]
    Unavailable(String),
    /// It will not get better by trying again.
    #[error("{0}")]
    Refused(String),
}

/// The answer of a ledger, some time.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, LedgerFault>>;

/// A ledger, as one node reaches it.
pub trait Ledger: fmt::Debug + Send + Sync {
    /// Takes office under an epoch that must be greater than all before it; the same node may do
    /// so again under the same one.
    fn open<'a>(&'a self, term: &'a Term) -> Answer<'a, Opened>;

    /// Keeps a record, only while that epoch is the latest that was opened.
    fn write<'a>(&'a self, epoch: u64, record: &'a Record) -> Answer<'a, Written>;

    fn read<'a>(&'a self, kind: Kind, id: &'a str) -> Answer<'a, Option<Record>>;

    /// Records in order of their ids, after one of them.
    fn list<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>>;

    /// The latest leaderships, the newest first.
    fn terms(&self) -> Answer<'_, Vec<Term>>;
}

/// How many leaderships are remembered.
pub(crate) const TERMS_MAX: usize = 1_000;
