//! Listings for operators, always by page: live leases from memory, keys and namespaces from the
//! store.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockd_core::key::{self, KeyName};
use lockd_core::record::KeyRecord;
use lockd_pki::Namespaces;
use lockd_store::{Name, StoreError};

use super::live::Live;
use super::{App, Refused};
use crate::commit::KEY_PREFIX;

/// Which listing, and after which entry it goes on.
#[derive(Clone, Debug)]
pub(crate) struct PageAsk<T> {
    pub(crate) namespace: Option<String>,
    pub(crate) prefix: String,
    pub(crate) after: Option<T>,
    pub(crate) limit: usize,
}

/// One page of a listing. Only what the caller may see takes part, so neither its length nor
/// whether there is more says anything about the rest.
#[derive(Clone, Debug)]
pub(crate) struct Page<T> {
    pub(crate) rows: Vec<T>,
    /// Whether another page follows.
    pub(crate) more: bool,
}

impl<T> Page<T> {
    /// Out of one row more than were asked for, if there are as many.
    pub(crate) fn of(mut rows: Vec<T>, limit: usize) -> Self {
        let more = rows.len() > limit;
        rows.truncate(limit);
        Self { rows, more }
    }

    /// The row after which the next page begins.
    pub(crate) fn end(&self) -> Option<&T> {
        self.rows.last().filter(|_| self.more)
    }
}

/// A live lease with the number of those who wait for it.
pub(crate) struct LeaseRow {
    pub(crate) key: KeyName,
    pub(crate) live: Live,
    pub(crate) waiters: usize,
}

impl App {
    /// Live leases, of one namespace or of all that are readable.
    pub(crate) fn leases(
        &self,
        ask: &PageAsk<KeyName>,
        readable: &Namespaces,
    ) -> Result<Page<LeaseRow>, Refused> {
        let prefix = match &ask.namespace {
            Some(namespace) => format!("{}/{}", key::parse_namespace(namespace)?, ask.prefix),
            None => ask.prefix.clone(),
        };
        let now = self.clock().now();
        let shown = |key: &KeyName, live: &Live| {
            readable.contains(key.namespace()) && live.lease.is_live(now)
        };
        let mut found = Vec::new();
        for prefix in readable_prefixes(readable, &prefix) {
            let wanted = ask.limit + 1 - found.len();
            found.extend(self.records.live.page(&prefix, ask.after.as_ref(), wanted, shown));
            if found.len() > ask.limit {
                break;
            }
        }
        let row = |(key, live): (KeyName, Live)| {
            let waiters = self.records.lines.len(&key);
            LeaseRow { key, live, waiters }
        };
        Ok(Page::of(found.into_iter().map(row).collect(), ask.limit))
    }

    /// Keys of one namespace with their records, in key order.
    pub(crate) async fn keys(
        &self,
        ask: &PageAsk<String>,
    ) -> Result<Page<(KeyName, KeyRecord)>, Refused> {
        let namespace = key::parse_namespace(self.namespace(ask.namespace.as_deref()))?;
        let base = format!("{KEY_PREFIX}{namespace}/");
        let prefix = format!("{base}{}", ask.prefix);
        let after = ask.after.as_ref().map(|after| format!("{base}{after}"));
        let rows = self.scan_keys(&prefix, after.as_deref(), ask.limit + 1).await?;
        Ok(Page::of(rows, ask.limit))
    }

    /// One page of records whose stored names start with `prefix`.
    pub(crate) async fn scan_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(KeyName, KeyRecord)>, StoreError> {
        let page = self.records.store().scan(prefix, after, limit).await?;
        let mut keys = Vec::with_capacity(page.len());
        for (name, stored) in page {
            let Some(key) = key_of(&name) else { continue };
            let record = self.records.decode(&key, Some(&stored))?;
            keys.push((key, record));
        }
        Ok(keys)
    }

    /// Readable namespaces that have keys.
    pub(crate) async fn namespaces(
        &self,
        after: Option<&str>,
        limit: usize,
        readable: &Namespaces,
    ) -> Result<Page<String>, Refused> {
        let found = match readable {
            Namespaces::AllBut(without) => self.namespaces_but(without, after, limit + 1).await?,
            Namespaces::Only(with) => self.namespaces_among(with, after, limit + 1).await?,
        };
        Ok(Page::of(found, limit))
    }

    /// Costs as much as there are namespaces in the page and in `without`, not keys.
    async fn namespaces_but(
        &self,
        without: &BTreeSet<String>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        let mut after: Option<Arc<str>> = after.map(|after| past(after).into());
        while found.len() < limit {
            let page = self.records.store().scan(KEY_PREFIX, after.as_deref(), 1).await?;
            let Some(key) = page.first().and_then(|(name, _)| key_of(name)) else { break };
            after = Some(past(key.namespace()).into());
            if !without.contains(key.namespace()) {
                found.push(key.namespace().to_owned());
            }
        }
        Ok(found)
    }

    /// Costs as much as there are namespaces in `with`, however many there are in the store.
    async fn namespaces_among(
        &self,
        with: &BTreeSet<String>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut found = Vec::new();
        let after = after.map(folder).unwrap_or_default();
        for folder in folders(with).into_iter().filter(|folder| *folder > after) {
            if found.len() >= limit {
                break;
            }
            let prefix = format!("{KEY_PREFIX}{folder}");
            let page = self.records.store().scan(&prefix, None, 1).await?;
            if !page.is_empty() {
                found.push(folder.trim_end_matches('/').to_owned());
            }
        }
        Ok(found)
    }
}

/// What every key of a namespace begins with.
fn folder(namespace: &str) -> String {
    format!("{namespace}/")
}

/// In the order of their keys, which is not that of their names: a slash follows a hyphen.
fn folders(namespaces: &BTreeSet<String>) -> Vec<String> {
    let mut folders: Vec<String> = namespaces.iter().map(|namespace| folder(namespace)).collect();
    folders.sort_unstable();
    folders
}

/// The prefixes that together cover all readable keys with this prefix, in the order of keys.
fn readable_prefixes(readable: &Namespaces, prefix: &str) -> Vec<String> {
    let Namespaces::Only(with) = readable else { return vec![prefix.to_owned()] };
    let narrower = |folder: String| {
        if folder.starts_with(prefix) {
            return Some(folder);
        }
        prefix.starts_with(&folder).then(|| prefix.to_owned())
    };
    folders(with).into_iter().filter_map(narrower).collect()
}

/// A name behind every key of a namespace: `0` follows `/`.
fn past(namespace: &str) -> String {
    format!("{KEY_PREFIX}{namespace}0")
}

fn key_of(name: &Name) -> Option<KeyName> {
    KeyName::parse_full(name.strip_prefix(KEY_PREFIX)?).ok()
}
