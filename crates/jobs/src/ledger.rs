//! The port: where a controller keeps what it must not lose. Whoever writes says under which
//! leadership, and the place where it is kept refuses every one but the latest, in the same step.
//!
//! What every ledger promises:
//! - A write is kept only under the epoch that was opened last, and only from the opening that was
//!   the last under it: a process that opened it before, and has a write under way, is refused.
//! - A write that was sent earlier never lands after a later one was confirmed: versions of a
//!   record only grow. The same version with the same body is done already.
//! - Every call ends in bounded time.

pub mod lockd;
pub mod postgres;

use std::fmt;
use std::time::Duration;

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
    /// Grows with every change.
    pub version: u64,
    /// JSON, kept byte for byte.
    pub body: String,
}

/// The longest id.
const ID_MAX: usize = 128;

/// Whether a record can have this id.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let is_letter = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
    };
    (1..=ID_MAX).contains(&text.len()) && text.bytes().all(is_letter)
}

/// A leadership, as the ledger remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub epoch: u64,
    pub node: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Whatever comes under a lower epoch, or from an opening before this one, is refused from now
    /// on.
    Yes,
    /// This epoch was here before, and it is not lower.
    Behind(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Done,
    /// Another leadership, or another opening, is the latest: under this epoch, where it was seen.
    /// Nothing was changed.
    Stale(Option<u64>),
    /// A later version of the record is there, or another of the same version; nothing was changed.
    Superseded,
}

/// The ledger could not be asked, or said no.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerFault {
    /// Nothing is known about what became of the request.
    #[error("{0}")]
    Unavailable(String),
    /// It will not get better by trying again; nothing was changed.
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

    /// Keeps a record, only while that epoch is the latest that was opened, and here.
    fn write<'a>(&'a self, epoch: u64, record: &'a Record) -> Answer<'a, Written>;

    /// Forgets a record, under the same condition. One that is not there is done already.
    fn remove<'a>(&'a self, epoch: u64, kind: Kind, id: &'a str) -> Answer<'a, Written>;

    fn read<'a>(&'a self, kind: Kind, id: &'a str) -> Answer<'a, Option<Record>>;

    /// Records in order of their ids, after one of them: at most so many, and fewer where they are
    /// large. None at all means that there are no more.
    fn list<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>>;

    /// As [`Ledger::list`], by whoever has opened it and reads everything: what others list at the
    /// same time neither holds it up nor shows in it.
    fn load<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>>;

    /// The latest leaderships, the newest first.
    fn terms(&self) -> Answer<'_, Vec<Term>>;
}

/// Who lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Whoever has opened the ledger: nobody else writes, so what it has seen stays true.
    Leader,
    Client,
}

/// How many leaderships are remembered.
pub(crate) const TERMS_MAX: usize = 1_000;
/// How long a ledger is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// After how many bytes a page is full.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Records that are read in one go: the fewest, the most, and how many bytes they should have.
const CHUNK_MIN: usize = 16;
const CHUNK_MAX: usize = 64;
const CHUNK_BYTES: usize = 1024 * 1024;

/// How many records to read next, after so many with so many bytes: a large one could be as large as
/// all small ones together, so what comes next is guessed from what came before.
fn chunk(records: usize, bytes: usize) -> usize {
    let wanted = records.saturating_mul(CHUNK_BYTES).checked_div(bytes);
    wanted.unwrap_or(CHUNK_MIN).clamp(CHUNK_MIN, CHUNK_MAX)
}

/// An answer in bounded time: one that does not come is unknown.
fn in_time<'a, T: 'a>(
    asking: impl Future<Output = Result<T, LedgerFault>> + Send + 'a,
) -> Answer<'a, T> {
    Box::pin(async move {
        tokio::time::timeout(PATIENCE, asking)
            .await
            .unwrap_or_else(|_| Err(LedgerFault::Unavailable("no answer in time".into())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_records_are_read_in_larger_pieces() {
        assert_eq!(chunk(0, 0), CHUNK_MIN);
        assert_eq!(chunk(16, 16 * 1_000), CHUNK_MAX);
        assert_eq!(chunk(16, 16 * 32 * 1_024), 32);
        assert_eq!(chunk(16, 16 * CHUNK_BYTES), CHUNK_MIN);
    }
}
