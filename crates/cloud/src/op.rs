//! Kinds of requests, told apart by method and query alone so that the proxy can do it for any
//! store, and how often each came.

use http::{Method, Uri};
use parking_lot::Mutex;

/// A kind of request to an object store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Put,
    Get,
    Head,
    List,
    /// One object or many.
    Delete,
    /// Any step of an upload in parts, and listing or aborting those.
    Multipart,
}

impl Op {
    /// What this asks for; nothing when no store would know it.
    #[must_use]
    pub fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let names = query_names(uri);
        let has = |name: &str| names.contains(&name);
        let comp = query_value(uri, "comp");
        if has("uploads") || has("uploadId") || matches!(comp, Some("block" | "blocklist")) {
            return Some(Self::Multipart);
        }
        match method.as_str() {
            "PUT" => Some(Self::Put),
            "GET" if comp == Some("list") || !has_key(uri) => Some(Self::List),
            "GET" => Some(Self::Get),
            "HEAD" => Some(Self::Head),
            "DELETE" => Some(Self::Delete),
            "POST" if has("delete") || comp == Some("batch") => Some(Self::Delete),
            _ => None,
        }
    }
}

/// Whether the path goes on after the bucket.
fn has_key(uri: &Uri) -> bool {
    let path = uri.path().trim_start_matches('/');
    path.split_once('/').is_some_and(|(_, key)| !key.is_empty())
}

fn pairs(uri: &Uri) -> impl Iterator<Item = (&str, &str)> {
    let query = uri.query().unwrap_or_default();
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn query_names(uri: &Uri) -> Vec<&str> {
    pairs(uri).map(|(name, _)| name).collect()
}

fn query_value<'a>(uri: &'a Uri, wanted: &str) -> Option<&'a str> {
    pairs(uri).find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

/// How many requests of each kind came in, whatever became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub puts: u64,
    pub gets: u64,
    pub heads: u64,
    pub lists: u64,
    pub deletes: u64,
    pub multipart: u64,
}

impl Counts {
    #[must_use]
    pub fn total(&self) -> u64 {
        self.puts + self.gets + self.heads + self.lists + self.deletes + self.multipart
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Counts>);

impl Tally {
    pub(crate) fn count(&self, op: Option<Op>) {
        let mut counts = self.0.lock();
        let place = match op {
            Some(Op::Put) => &mut counts.puts,
            Some(Op::Get) => &mut counts.gets,
            Some(Op::Head) => &mut counts.heads,
            Some(Op::List) => &mut counts.lists,
            Some(Op::Delete) => &mut counts.deletes,
            Some(Op::Multipart) => &mut counts.multipart,
            None => return,
        };
        *place += 1;
    }

    pub(crate) fn read(&self) -> Counts {
        *self.0.lock()
    }

    pub(crate) fn reset(&self) {
        *self.0.lock() = Counts::default();
    }
}
