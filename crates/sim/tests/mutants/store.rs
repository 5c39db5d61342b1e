//! Stores that break the promises of the port.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use lockd_store::{
    Abilities, BlobReader, BlobWriter, Expect, Gauges, Name, Op, Page, Revision, Store, StoreError,
    Stored, Write,
};
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Some commits are answered and not done.
    LosesWrites,
    /// The latest commits are gone after a crash.
    AcksEarly,
    /// Some loads are stale and no expectation is tested.
    LetsTwoWin,
    /// Some loads are stale.
    ReadsStale,
    /// Only records are written, not the index beside them.
    LosesIndex,
    /// Blobs end one byte early.
    CutsBlobs,
}

pub(crate) fn lying(inner: Arc<dyn Store>, lie: Lie) -> Arc<dyn Store> {
    Arc::new(Lying {
        inner,
        lie,
        calls: AtomicU64::new(0),
        before: Mutex::default(),
        undo: Mutex::default(),
    })
}

struct Lying {
    inner: Arc<dyn Store>,
    lie: Lie,
    calls: AtomicU64,
    /// What was there before the latest write of each record.
    before: Mutex<HashMap<Name, Option<Stored>>>,
    /// How to take back the latest commits, newest last.
    undo: Mutex<Vec<Vec<(Name, Option<Stored>)>>>,
}

/// Every process reads this first: the sign that the one before it is dead.
const FIRST_READ: &str = "m/fence-floor";
/// How many commits a store keeps to itself.
const UNSYNCED: usize = 3;

impl Lying {
    fn every(&self, number: u64) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % number == number - 1
    }

    fn present(&self, name: &Name) -> Option<Stored> {
        self.inner.load(name).now_or_never().and_then(Result::ok).flatten()
    }

    fn lose_unsynced(&self) {
        for commit in self.undo.lock().drain(..).rev() {
            let back = commit.into_iter().map(|(name, stored)| Op {
                name,
                expect: Expect::Any,
                write: stored.map_or(Write::Delete, |stored| Write::Put(stored.bytes)),
            });
            let done = self.inner.commit(back.collect()).now_or_never();
            assert!(matches!(done, Some(Ok(_))), "{done:?}");
        }
    }

    fn is_stale(&self) -> bool {
        matches!(self.lie, Lie::ReadsStale | Lie::LetsTwoWin) && self.every(6)
    }

    fn stale(&self, name: &Name) -> Option<Option<Stored>> {
        self.before.lock().get(name).cloned()
    }
}

impl Store for Lying {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        if self.lie == Lie::AcksEarly && **name == *FIRST_READ {
            self.lose_unsynced();
        }
        if self.is_stale()
            && let Some(stale) = self.stale(name)
        {
            return Box::pin(ready(Ok(stale)));
        }
        self.inner.load(name)
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        if self.is_stale() {
            let stale = |name| self.stale(name).unwrap_or_else(|| self.present(name));
            return Box::pin(ready(Ok(names.iter().map(stale).collect())));
        }
        self.inner.load_many(names)
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.inner.scan(prefix, after, limit)
    }

    fn commit(&self, mut ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        let before: Vec<_> =
            ops.iter().map(|op| (Arc::clone(&op.name), self.present(&op.name))).collect();
        match self.lie {
            Lie::LosesWrites if self.every(9) => {
                return Box::pin(ready(Ok(vec![Revision(u64::MAX); ops.len()])));
            }
            Lie::LetsTwoWin => ops.iter_mut().for_each(|op| op.expect = Expect::Any),
            Lie::LosesIndex => ops.retain(|op| !op.name.starts_with("l/")),
            Lie::LosesWrites | Lie::AcksEarly | Lie::ReadsStale | Lie::CutsBlobs => {}
        }
        let done = self.inner.commit(ops).now_or_never();
        let done = done.unwrap_or_else(|| Err(StoreError::Unavailable("not at once".into())));
        if done.is_ok() {
            self.before.lock().extend(before.iter().cloned());
            let mut undo = self.undo.lock();
            undo.push(before);
            if undo.len() > UNSYNCED {
                undo.remove(0);
            }
        }
        Box::pin(ready(done))
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        if self.lie != Lie::CutsBlobs {
            return self.inner.put_blob(name);
        }
        let opened = self.inner.put_blob(name);
        Box::pin(async { Ok(Box::new(Cutting(opened.await?)) as Box<dyn BlobWriter>) })
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        self.inner.get_blob(name)
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.delete_blob(name)
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.inner.list_blobs(after, limit)
    }

    fn health(&self) -> Result<(), StoreError> {
        self.inner.health()
    }

    fn gauges(&self) -> Gauges {
        self.inner.gauges()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

struct Cutting(Box<dyn BlobWriter>);

impl BlobWriter for Cutting {
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.write(chunk.slice(..chunk.len().saturating_sub(1)))
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.0.finish()
    }
}
