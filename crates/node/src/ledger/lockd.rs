//! The ledger in lockd. The fencing token of one key stands for the leadership: opening acquires
//! that key once, and every write carries a fence condition on the token it got. Leases on the
//! records themselves last no longer than a write.

use std::fmt;
use std::time::Duration;

use lockd_client::{AcquireKind, Client, Error, Lease, UpdateKind};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Answer, Kind, Ledger, LedgerFault, Opened, Record, TERMS_MAX, Term, Written};

/// How long a write may take, and how long one waits for another's.
const WRITE_TTL: Duration = Duration::from_secs(10);
const WRITE_WAIT: Duration = Duration::from_secs(1);

/// The ledger of one cluster, under a prefix of its own.
pub struct LockdLedger {
    client: Client,
    prefix: String,
    /// The leadership that was opened here, and its token.
    office: Mutex<Option<(Term, Fence)>>,
}

#[derive(Clone)]
struct Fence {
    key: String,
    token: u64,
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
}

impl Terms {
    fn latest(&self) -> Option<Term> {
        self.terms.first().map(|(epoch, node)| Term { epoch: *epoch, node: node.clone() })
    }
}

impl LockdLedger {
    /// The prefix is part of keys: lower-case letters, digits, `-`, `.` and `/`.
    #[must_use]
    pub fn new(client: Client, prefix: &str) -> Self {
        Self { client, prefix: prefix.into(), office: Mutex::new(None) }
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
    /// before that stopped in the middle, and loses it.
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

    async fn open_now(&self, term: &Term) -> Result<Opened, LedgerFault> {
        // Whoever is behind must not touch the key: that would raise its token.
        if let Some(behind) = is_behind(&self.kept_terms().await?, term) {
            return Ok(behind);
        }
        let lease = self.acquire(&self.office_key(), &term.node).await?;
        let kept = lease.get().await.map_err(|error| fault(&error))?;
        let mut terms = read_terms(kept.map(|kept| kept.bytes.to_vec()))?;
        if let Some(behind) = is_behind(&terms, term) {
            return Ok(behind);
        }
        if terms.latest().as_ref() != Some(term) {
            terms.terms.insert(0, (term.epoch, term.node.clone()));
            terms.terms.truncate(TERMS_MAX);
        }
        let fence = Fence {
            key: format!("{}/{}", lease.namespace(), self.office_key()),
            token: lease.token(),
        };
        lease.finish(&terms).await.map_err(|error| fault(&error))?;
        *self.office.lock() = Some((term.clone(), fence));
        Ok(Opened::Yes)
    }

    /// The term and the fence of this epoch, if it was opened here.
    fn fence(&self, epoch: u64) -> Option<(Term, Fence)> {
        self.office.lock().clone().filter(|(term, _)| term.epoch == epoch)
    }

    async fn write_now(&self, epoch: u64, record: &Record) -> Result<Written, LedgerFault> {
        // Somebody who was behind may have raised the token in a race: the second time tells.
        for _ in 0..2 {
            let Some((term, fence)) = self.fence(epoch) else { return Ok(Written::Stale) };
            let lease = self.acquire(&self.key(record.kind, &record.id), &term.node).await?;
            let body = RawValue::from_string(record.body.clone());
            let body = body.map_err(|error| LedgerFault::Refused(error.to_string()))?;
            match lease.finish(&body).fence(&fence.key, fence.token).await {
                Ok(_) => return Ok(Written::Done),
                Err(error) if error.kind() == UpdateKind::FenceFailed => {
                    if self.open_now(&term).await? != Opened::Yes {
                        return Ok(Written::Stale);
                    }
                }
                Err(error) => return Err(fault(&error)),
            }
        }
        Err(LedgerFault::Unavailable("the office changes hands".into()))
    }

    async fn list_now(
        &self,
        kind: Kind,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Record>, LedgerFault> {
        let prefix = self.key(kind, "");
        let mut pages = self.client.keys(prefix.as_str());
        let mut records = Vec::new();
        while let Some(page) = pages.next_page().await.map_err(|error| fault(&error))? {
            let keys: Vec<String> = page
                .into_iter()
                .map(|view| view.key)
                .filter(|key| after.is_none_or(|after| *key > format!("{prefix}{after}")))
                .take(limit - records.len())
                .collect();
            if !keys.is_empty() {
                let read = self.client.read_many(keys).await.map_err(|error| fault(&error))?;
                records.extend(read.into_iter().filter_map(|entry| {
                    let id = entry.key.strip_prefix(&prefix)?.to_owned();
                    let body = String::from_utf8(entry.document?.bytes.to_vec()).ok()?;
                    Some(Record { kind, id, body })
                }));
            }
            if records.len() >= limit {
                break;
            }
        }
        Ok(records)
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
        Some(400..=403) => LedgerFault::Refused(error.to_string()),
        _ => LedgerFault::Unavailable(error.to_string()),
    }
}

impl Ledger for LockdLedger {
    fn open<'a>(&'a self, term: &'a Term) -> Answer<'a, Opened> {
        Box::pin(self.open_now(term))
    }

    fn write<'a>(&'a self, epoch: u64, record: &'a Record) -> Answer<'a, Written> {
        Box::pin(self.write_now(epoch, record))
    }

    fn read<'a>(&'a self, kind: Kind, id: &'a str) -> Answer<'a, Option<Record>> {
        Box::pin(async move {
            let kept = self.client.get(self.key(kind, id)).await.map_err(|error| fault(&error))?;
            let body = kept.and_then(|kept| String::from_utf8(kept.bytes.to_vec()).ok());
            Ok(body.map(|body| Record { kind, id: id.into(), body }))
        })
    }

    fn list<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        Box::pin(self.list_now(kind, after, limit))
    }

    fn terms(&self) -> Answer<'_, Vec<Term>> {
        Box::pin(async move {
            let terms = self.kept_terms().await?;
            Ok(terms.terms.into_iter().map(|(epoch, node)| Term { epoch, node }).collect())
        })
    }
}
