//! The ledger in lockd. The fencing token of one key stands for the leadership: opening acquires
//! that key once, and every write carries a fence condition on the token it got. Leases on the
//! records themselves last no longer than a write, and give writes their order: one that was given
//! up loses its lease before the next can begin.
//!
//! A record's body is kept as a text inside a document: white space, depth and numbers of any size
//! are none of the server's business.

mod walk;

use std::fmt;
use std::time::Duration;

use lockd_client::{AcquireKind, Client, Error, Lease, UpdateKind};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use walk::{Walk, Walks};

use super::{
    Answer, Kind, Ledger, LedgerFault, Opened, PAGE_BYTES, Reader, Record, TERMS_MAX, Term,
    Written, chunk, in_time,
};

/// How long a write may take, and how long one waits for another's.
const WRITE_TTL: Duration = Duration::from_secs(10);
const WRITE_WAIT: Duration = Duration::from_secs(1);
/// How long one page of a listing may take. Less than is waited for it: what it has come upon by
/// then is not lost.
const LISTING: Duration = Duration::from_secs(8);

/// The ledger of one cluster, under a prefix of its own.
pub struct LockdLedger {
    client: Client,
    prefix: String,
    /// The leadership that was opened here, and its token.
    office: Mutex<Option<Office>>,
    /// Of many writes that find the token raised, one looks why.
    looking: tokio::sync::Mutex<()>,
    /// Where listings stopped, so that the next page does not begin from the start.
    walks: Mutex<Walks>,
    /// How long one page of a listing may take.
    listing: Duration,
}

#[derive(Clone)]
struct Office {
    term: Term,
    /// New with every opening.
    word: String,
    /// The full name of the key, and its token.
    fence: (String, u64),
}

impl Office {
    /// What a write is told if this office is not the latest any more.
    fn overtaken(&self, terms: &Terms) -> Option<Written> {
        let latest = terms.latest();
        let is_latest = latest.as_ref() == Some(&self.term) && terms.opening == self.word;
        (!is_latest).then(|| Written::Stale(latest.map(|term| term.epoch)))
    }
}

impl fmt::Debug for LockdLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockdLedger({})", self.prefix)
    }
}

/// What is kept under the key of the leadership: the newest first.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Terms {
    terms: Vec<(u64, String)>,
    #[serde(default)]
    opening: String,
}

impl Terms {
    fn latest(&self) -> Option<Term> {
        self.terms.first().map(|(epoch, node)| Term { epoch: *epoch, node: node.clone() })
    }
}

/// What is kept under the key of a record.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u64,
    body: String,
}

impl LockdLedger {
    /// The prefix is part of keys: lower-case letters, digits, `-`, `.` and `/`.
    #[must_use]
    pub fn new(client: Client, prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/').into();
        let (office, walks) = (Mutex::new(None), Mutex::default());
        let (looking, listing) = (tokio::sync::Mutex::default(), LISTING);
        Self { client, prefix, office, looking, walks, listing }
    }

    fn office_key(&self) -> String {
        format!("{}/office", self.prefix)
    }

    fn key(&self, kind: Kind, id: &str) -> String {
        format!("{}/{}/{id}", self.prefix, kind.as_str())
    }

    async fn kept_terms(&self) -> Result<Terms, LedgerFault> {
        let kept = self.client.get(self.office_key()).await.map_err(|error| fault(&error))?;
        read_terms(kept.map(|kept| kept.bytes.to_vec()))
    }

    /// Only leaders write here, one after the other: whoever keeps a key for long is a leader of
    /// before that stopped in the middle, or a write that was given up, and loses it.
    async fn acquire(&self, key: &str, owner: &str) -> Result<Lease, LedgerFault> {
        let ask = || self.client.lease(key).owner(owner).ttl(WRITE_TTL).wait(WRITE_WAIT);
        match ask().await {
            Ok(lease) => Ok(lease),
            Err(error) if error.kind() == AcquireKind::Busy => {
                let reason = format!("{owner} leads");
                let revoked = self.client.revoke(None, key, &reason).await;
                revoked.map_err(|error| fault(&error))?;
                ask().await.map_err(|error| fault(&error))
            }
            Err(error) => Err(fault(&error)),
        }
    }

    /// The key of the leadership in hand, and what is kept under it.
    async fn office_lease(&self, node: &str) -> Result<(Lease, Terms), LedgerFault> {
        let lease = self.acquire(&self.office_key(), node).await?;
        let kept = lease.get().await.map_err(|error| fault(&error))?;
        let terms = read_terms(kept.map(|kept| kept.bytes.to_vec()))?;
        Ok((lease, terms))
    }

    fn fence_of(&self, lease: &Lease) -> (String, u64) {
        (format!("{}/{}", lease.namespace(), self.office_key()), lease.token())
    }

    async fn open_now(&self, term: &Term) -> Result<Opened, LedgerFault> {
        // Whoever is behind must not touch the key: that would raise its token.
        if let Some(behind) = is_behind(&self.kept_terms().await?, term) {
            return Ok(behind);
        }
        let (lease, mut terms) = self.office_lease(&term.node).await?;
        if let Some(behind) = is_behind(&terms, term) {
            return Ok(behind);
        }
        if terms.latest().as_ref() != Some(term) {
            terms.terms.insert(0, (term.epoch, term.node.clone()));
            terms.terms.truncate(TERMS_MAX);
        }
        let word = format!("{:032x}", rand::random::<u128>());
        terms.opening.clone_from(&word);
        let fence = self.fence_of(&lease);
        lease.finish(&terms).await.map_err(|error| update_fault(&error))?;
        *self.office.lock() = Some(Office { term: term.clone(), word, fence });
        Ok(Opened::Yes)
    }

    /// What a write is told if the office that was opened here is not the latest any more.
    async fn overtaken(&self, office: &Office) -> Result<Option<Written>, LedgerFault> {
        Ok(office.overtaken(&self.kept_terms().await?))
    }

    /// Somebody who was behind may have raised the token in a race with the opening: while the word
    /// is there, it is the same office. If it is not, tells what a write is told.
    async fn look_again(&self, office: &Office) -> Result<Option<Written>, LedgerFault> {
        let _alone = self.looking.lock().await;
        if self.opened(office.term.epoch).is_some_and(|now| now.fence != office.fence) {
            return Ok(None);
        }
        // Whoever is out must not touch the key.
        if let Some(stale) = self.overtaken(office).await? {
            return Ok(Some(stale));
        }
        let (lease, terms) = self.office_lease(&office.term.node).await?;
        if let Some(stale) = office.overtaken(&terms) {
            return Ok(Some(stale));
        }
        let fence = self.fence_of(&lease);
        lease.finish(&terms).await.map_err(|error| update_fault(&error))?;
        let mut now = self.office.lock();
        if let Some(now) = now.as_mut().filter(|now| now.word == office.word) {
            now.fence = fence;
        }
        Ok(None)
    }

    fn opened(&self, epoch: u64) -> Option<Office> {
        self.office.lock().clone().filter(|office| office.term.epoch == epoch)
    }

    async fn write_now(&self, epoch: u64, record: &Record) -> Result<Written, LedgerFault> {
        // The second time after a look at the office.
        for _ in 0..2 {
            let Some(office) = self.opened(epoch) else { return Ok(Written::Stale(None)) };
            let key = self.key(record.kind, &record.id);
            let lease = self.acquire(&key, &office.term.node).await?;
            let there = lease.get().await.map_err(|error| fault(&error))?;
            let there = there.and_then(|kept| serde_json::from_slice::<Kept>(&kept.bytes).ok());
            if let Some(there) = there.filter(|there| there.version >= record.version) {
                let is_same = there.version == record.version && there.body == record.body;
                // What is told of a record counts only in office.
                if let Some(stale) = self.overtaken(&office).await? {
                    return Ok(stale);
                }
                return Ok(if is_same { Written::Done } else { Written::Superseded });
            }
            let kept = Kept { version: record.version, body: record.body.clone() };
            match lease.finish(&kept).fence(&office.fence.0, office.fence.1).await {
                Ok(_) => return Ok(Written::Done),
                Err(error) if error.kind() == UpdateKind::FenceFailed => {
                    if let Some(stale) = self.look_again(&office).await? {
                        return Ok(stale);
                    }
                }
                Err(error) => return Err(update_fault(&error)),
            }
        }
        Err(LedgerFault::Unavailable("the office changes hands".into()))
    }

    async fn remove_now(&self, epoch: u64, kind: Kind, id: &str) -> Result<Written, LedgerFault> {
        for _ in 0..2 {
            let Some(office) = self.opened(epoch) else { return Ok(Written::Stale(None)) };
            let lease = self.acquire(&self.key(kind, id), &office.term.node).await?;
            let removal = lease.remove().fence(&office.fence.0, office.fence.1).then_commit();
            match removal.await {
                Ok(_) => {
                    // Nothing is staged: if this does not arrive, the lease runs out by itself.
                    if let Err(error) = lease.release().await {
                        tracing::debug!(%error, "a lease is left to run out");
                    }
                    return Ok(Written::Done);
                }
                Err(error) if error.kind() == UpdateKind::FenceFailed => {
                    if let Some(stale) = self.look_again(&office).await? {
                        return Ok(stale);
                    }
                }
                Err(error) => return Err(update_fault(&error)),
            }
        }
        Err(LedgerFault::Unavailable("the office changes hands".into()))
    }

    async fn list_now(
        &self,
        reader: Reader,
        (kind, after): (Kind, Option<&str>),
        limit: usize,
    ) -> Result<Vec<Record>, LedgerFault> {
        let (prefix, place) = (self.key(kind, ""), (kind, after.unwrap_or("")));
        let opening = self.office.lock().as_ref().map(|office| office.word.clone());
        let opening = opening.as_deref();
        let stopped = self.walks.lock().take(reader, opening, place);
        let mut walk =
            stopped.unwrap_or_else(|| Walks::begin(&self.client, &prefix, opening, place));
        let mut records = Vec::new();
        let walking = self.go(&mut walk, (kind, &prefix), limit, &mut records);
        let walked = tokio::time::timeout(self.listing, walking).await;
        let walked = walked.unwrap_or_else(|_| {
            Err(LedgerFault::Unavailable("the listing did not come to a record in time".into()))
        });
        // A reader goes on after the last record that it was given.
        if let Some(last) = records.last() {
            walk.after.clone_from(&last.id);
        }
        self.walks.lock().put(reader, walk);
        match walked {
            // What was read counts; the next page says what is wrong, if it still is.
            Err(_) if !records.is_empty() => Ok(records),
            walked => walked.map(|()| records),
        }
    }

    /// May be given up at any time: names are passed when their records were read.
    async fn go(
        &self,
        walk: &mut Walk,
        (kind, prefix): (Kind, &str),
        limit: usize,
        records: &mut Vec<Record>,
    ) -> Result<(), LedgerFault> {
        let mut bytes = 0;
        while records.len() < limit && bytes < PAGE_BYTES && !walk.is_over() {
            let names = walk.names((limit - records.len()).min(chunk(records.len(), bytes)));
            if names.is_empty() {
                walk.turn_page(prefix).await?;
                continue;
            }
            let count = names.len();
            let read = self.client.read_many(names).await.map_err(|error| fault(&error))?;
            walk.pass(count);
            for entry in read {
                let Some(id) = entry.key.strip_prefix(prefix) else { continue };
                let Some(document) = entry.document else { continue };
                match serde_json::from_slice::<Kept>(&document.bytes) {
                    Ok(Kept { version, body }) => {
                        bytes += body.len();
                        records.push(Record { kind, id: id.into(), version, body });
                    }
                    Err(error) => tracing::error!(%error, id, "a record cannot be read"),
                }
            }
        }
        Ok(())
    }
}

fn is_behind(terms: &Terms, term: &Term) -> Option<Opened> {
    let latest = terms.latest()?;
    (latest.epoch >= term.epoch && latest != *term).then_some(Opened::Behind(latest.epoch))
}

fn read_terms(kept: Option<Vec<u8>>) -> Result<Terms, LedgerFault> {
    let Some(kept) = kept else { return Ok(Terms::default()) };
    serde_json::from_slice(&kept).map_err(|error| {
        LedgerFault::Refused(format!("the key of the leadership holds something else: {error}"))
    })
}

fn fault<K: lockd_client::Kind>(error: &Error<K>) -> LedgerFault {
    match error.status() {
        Some(400..=403) if !error.outcome_unknown() => {
            LedgerFault::Refused(lockd_client::chain(error))
        }
        _ => LedgerFault::Unavailable(lockd_client::chain(error)),
    }
}

/// Whoever has lost the lease of a record to another write of its own may try again.
fn update_fault(error: &Error<UpdateKind>) -> LedgerFault {
    if error.kind() == UpdateKind::LeaseLost {
        return LedgerFault::Unavailable(lockd_client::chain(error));
    }
    fault(error)
}

impl Ledger for LockdLedger {
    fn open<'a>(&'a self, term: &'a Term) -> Answer<'a, Opened> {
        in_time(self.open_now(term))
    }

    fn write<'a>(&'a self, epoch: u64, record: &'a Record) -> Answer<'a, Written> {
        in_time(self.write_now(epoch, record))
    }

    fn remove<'a>(&'a self, epoch: u64, kind: Kind, id: &'a str) -> Answer<'a, Written> {
        in_time(self.remove_now(epoch, kind, id))
    }

    fn read<'a>(&'a self, kind: Kind, id: &'a str) -> Answer<'a, Option<Record>> {
        in_time(async move {
            let kept = self.client.get(self.key(kind, id)).await.map_err(|error| fault(&error))?;
            let Some(kept) = kept else { return Ok(None) };
            let Kept { version, body } = serde_json::from_slice(&kept.bytes).map_err(|error| {
                LedgerFault::Refused(format!("the record {id} cannot be read: {error}"))
            })?;
            Ok(Some(Record { kind, id: id.into(), version, body }))
        })
    }

    fn list<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        in_time(self.list_now(Reader::Client, (kind, after), limit))
    }

    fn load<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        in_time(self.list_now(Reader::Leader, (kind, after), limit))
    }

    fn terms(&self) -> Answer<'_, Vec<Term>> {
        in_time(async move {
            let terms = self.kept_terms().await?;
            Ok(terms.terms.into_iter().map(|(epoch, node)| Term { epoch, node }).collect())
        })
    }
}

#[cfg(test)]
mod tests;
