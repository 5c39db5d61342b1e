//! Listings for operators, always by page: live leases from memory, keys and namespaces from the
//! store.

use std::sync::Arc;

use lockd_core::key::{self, KeyName};
use lockd_core::record::KeyRecord;
use lockd_store::{Name, StoreError};
use lockd_wire::ErrorCode;

use super::live::Live;
use super::{App, Refused};
use crate::commit::KEY_PREFIX;

/// Whose listing, and where it goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageAsk {
    pub(crate) namespace: Option<String>,
    pub(crate) prefix: String,
    pub(crate) after: Option<String>,
    pub(crate) limit: usize,
}

/// A live lease with the number of those who wait for it.
pub(crate) struct LeaseRow {
    pub(crate) key: KeyName,
    pub(crate) live: Live,
    pub(crate) waiters: usize,
}

impl App {
    /// Live leases, of one namespace or of all, and after which key there may be more.
    pub(crate) fn leases(
        &self,
        ask: &PageAsk,
    ) -> Result<(Vec<LeaseRow>, Option<KeyName>), Refused> {
        let prefix = match &ask.namespace {
            Some(namespace) => format!("{}/{}", key::parse_namespace(namespace)?, ask.prefix),
            None => ask.prefix.clone(),
        };
        let after = ask.after.as_deref().map(KeyName::parse_full).transpose();
        let after = after.map_err(|_| {
            let detail = "pass the next_cursor of the page before".to_owned();
            Refused::Request(ErrorCode::InvalidCursor, detail)
        })?;
        let now = self.clock().now();
        let page = self.records.live.page(&prefix, after.as_ref(), ask.limit);
        // By the whole page: one that just ran out must not look like the end of the list.
        let more = page.last().filter(|_| page.len() == ask.limit).map(|(key, _)| key.clone());
        let live = page.into_iter().filter(|(_, live)| live.lease.is_live(now));
        let row = |(key, live): (KeyName, Live)| {
            let waiters = self.records.lines.len(&key);
            LeaseRow { key, live, waiters }
        };
        Ok((live.map(row).collect(), more))
    }

    /// Keys of one namespace with their records, in key order.
    pub(crate) async fn keys(&self, ask: &PageAsk) -> Result<Vec<(KeyName, KeyRecord)>, Refused> {
        let namespace = key::parse_namespace(self.namespace(ask.namespace.as_deref()))?;
        let base = format!("{KEY_PREFIX}{namespace}/");
        let prefix = format!("{base}{}", ask.prefix);
        let after = ask.after.as_ref().map(|after| format!("{base}{after}"));
        Ok(self.scan_keys(&prefix, after.as_deref(), ask.limit).await?)
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

    /// Namespaces that have keys. Costs as much as there are namespaces, not keys.
    pub(crate) async fn namespaces(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, Refused> {
        let mut found = Vec::new();
        let mut after: Option<Arc<str>> = after.map(|after| past(after).into());
        while found.len() < limit {
            let page = self.records.store().scan(KEY_PREFIX, after.as_deref(), 1).await?;
            let Some(key) = page.first().and_then(|(name, _)| key_of(name)) else { break };
            after = Some(past(key.namespace()).into());
            found.push(key.namespace().to_owned());
        }
        Ok(found)
    }
}

/// A name behind every key of a namespace: `0` follows `/`.
fn past(namespace: &str) -> String {
    format!("{KEY_PREFIX}{namespace}0")
}

fn key_of(name: &Name) -> Option<KeyName> {
    KeyName::parse_full(name.strip_prefix(KEY_PREFIX)?).ok()
}
