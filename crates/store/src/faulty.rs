//! A store that stops at a chosen write, for tests of everything above the port. The write at
//! which it stops is lost or done, the caller is told nothing for certain in the second case,
//! and from then on nothing works: a process that lost its store. What is left can be looked at
//! through the store inside. Or it holds one write back until the test lets it go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::port::{
    Abilities, BlobReader, BlobWriter, Gauges, Name, Op, Page, Revision, Store, StoreError, Stored,
    Write,
};

/// Which side of the write the store stops on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is not done, and the caller knows: `Unavailable`.
    Before,
    /// It is done, but the caller does not learn it: `Unknown`.
    After,
}

/// Passes everything on to the store inside until its turn has come. Writes are commits, chunks
/// of blobs, finishes of blobs and deletions of blobs, counted from zero.
pub struct Faulty {
    inner: Arc<dyn Store>,
    fuse: Arc<Fuse>,
    held: Mutex<Option<(Box<str>, Hold)>>,
}

/// A write that is held back.
#[derive(Clone, Debug, Default)]
pub struct Hold {
    reached: Arc<Notify>,
    go: Arc<Notify>,
}

impl Hold {
    /// Waits until the write has come so far.
    pub async fn reached(&self) {
        self.reached.notified().await;
    }

    /// It goes on to the store.
    pub fn let_go(&self) {
        self.go.notify_one();
    }
}

struct Fuse {
    stop_at: u64,
    stop: Stop,
    writes: AtomicU64,
    /// Writers that were open when everything stopped: a dead process cleans nothing up.
    wrecks: Mutex<Vec<Box<dyn BlobWriter>>>,
}

/// What is to be done with one write.
enum Turn {
    Pass,
    DoAndStop,
}

impl Fuse {
    fn is_blown(&self) -> bool {
        self.writes.load(Ordering::SeqCst) > self.stop_at
    }

    fn alive(&self) -> Result<(), StoreError> {
        if self.is_blown() { Err(stopped()) } else { Ok(()) }
    }

    fn turn(&self) -> Result<Turn, StoreError> {
        match self.writes.fetch_add(1, Ordering::SeqCst) {
            number if number < self.stop_at => Ok(Turn::Pass),
            number if number == self.stop_at && self.stop == Stop::After => Ok(Turn::DoAndStop),
            _ => Err(stopped()),
        }
    }
}

impl Turn {
    fn tell<T>(self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        match self {
            Self::Pass => outcome,
            Self::DoAndStop => Err(StoreError::Unknown("the store stopped here on purpose".into())),
        }
    }
}

fn stopped() -> StoreError {
    StoreError::Unavailable("the store stopped on purpose".into())
}

impl Faulty {
    /// Stops at the write with this number.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, stop_at: u64, stop: Stop) -> Self {
        let fuse = Fuse { stop_at, stop, writes: AtomicU64::new(0), wrecks: Mutex::default() };
        Self { inner, fuse: Arc::new(fuse), held: Mutex::default() }
    }

    /// Never stops by itself.
    #[must_use]
    pub fn steady(inner: Arc<dyn Store>) -> Self {
        Self::new(inner, u64::MAX, Stop::Before)
    }

    /// Holds the next commit back that writes a record whose name begins like this.
    pub fn hold_next(&self, prefix: &str) -> Hold {
        let hold = Hold::default();
        *self.held.lock() = Some((prefix.into(), hold.clone()));
        hold
    }

    fn hold_for(&self, ops: &[Op]) -> Option<Hold> {
        let writes = |op: &Op, prefix: &str| {
            !matches!(op.write, Write::Check) && op.name.starts_with(prefix)
        };
        let mut held = self.held.lock();
        held.take_if(|(prefix, _)| ops.iter().any(|op| writes(op, prefix))).map(|(_, hold)| hold)
    }

    /// Whether it has stopped. A workload that ends before that has been through untouched.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.fuse.is_blown()
    }
}

impl Store for Faulty {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        let name = Arc::clone(name);
        Box::pin(async move {
            self.fuse.alive()?;
            self.inner.load(&name).await
        })
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        let names = names.to_vec();
        Box::pin(async move {
            self.fuse.alive()?;
            self.inner.load_many(&names).await
        })
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        Box::pin(async move {
            self.fuse.alive()?;
            self.inner.scan(&prefix, after.as_deref(), limit).await
        })
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        Box::pin(async move {
            if let Some(hold) = self.hold_for(&ops) {
                hold.reached.notify_one();
                hold.go.notified().await;
            }
            let turn = self.fuse.turn()?;
            turn.tell(self.inner.commit(ops).await)
        })
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.fuse.alive()?;
            let inner = Some(self.inner.put_blob(&name).await?);
            let fuse = Arc::clone(&self.fuse);
            Ok(Box::new(FaultyWriter { inner, fuse }) as Box<dyn BlobWriter>)
        })
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.fuse.alive()?;
            let inner = self.inner.get_blob(&name).await?;
            let fuse = Arc::clone(&self.fuse);
            Ok(Box::new(FaultyReader { inner, fuse }) as Box<dyn BlobReader>)
        })
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            let turn = self.fuse.turn()?;
            turn.tell(self.inner.delete_blob(&name).await)
        })
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let after = after.map(str::to_owned);
        Box::pin(async move {
            self.fuse.alive()?;
            self.inner.list_blobs(after.as_deref(), limit).await
        })
    }

    fn health(&self) -> Result<(), StoreError> {
        self.fuse.alive()?;
        self.inner.health()
    }

    fn gauges(&self) -> Gauges {
        self.inner.gauges()
    }

    /// A store that has stopped is not closed: a dead process closes nothing.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if !self.fuse.is_blown() {
                self.inner.close().await;
            }
        })
    }
}

struct FaultyWriter {
    inner: Option<Box<dyn BlobWriter>>,
    fuse: Arc<Fuse>,
}

impl BlobWriter for FaultyWriter {
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let turn = self.fuse.turn()?;
            let Some(inner) = &mut self.inner else { return Err(stopped()) };
            turn.tell(inner.write(chunk).await)
        })
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(async move {
            let turn = self.fuse.turn()?;
            let Some(inner) = self.inner.take() else { return Err(stopped()) };
            turn.tell(inner.finish().await)
        })
    }
}

impl Drop for FaultyWriter {
    fn drop(&mut self) {
        if self.fuse.is_blown() {
            self.fuse.wrecks.lock().extend(self.inner.take());
        }
    }
}

struct FaultyReader {
    inner: Box<dyn BlobReader>,
    fuse: Arc<Fuse>,
}

impl BlobReader for FaultyReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            self.fuse.alive()?;
            self.inner.next().await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, Bytes, Faulty, Stop, Store, StoreError};
    use crate::conformance::{Fixture, commit_one, load, put, run_all};
    use crate::mem::MemStore;
    use crate::port::Expect;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_wrapper_that_never_stops_keeps_all_promises() {
        run_all(&|| {
            let inner = Arc::new(MemStore::new());
            Box::pin(async {
                Fixture::new(Arc::new(Faulty::new(inner, 1 << 40, Stop::Before)), ())
            })
        })
        .await;
    }

    /// Two commits, a blob in one chunk, a deletion: five writes.
    async fn workload(store: &dyn Store) -> Result<(), StoreError> {
        commit_one(store, put("a", Expect::Absent, "1")).await?;
        let mut writer = store.put_blob("x").await?;
        writer.write(Bytes::from_static(b"blob")).await?;
        writer.finish().await?;
        commit_one(store, put("b", Expect::Absent, "2")).await?;
        store.delete_blob("x").await
    }

    #[tokio::test]
    async fn it_stops_at_every_write_on_either_side() {
        for stop in [Stop::Before, Stop::After] {
            for number in 0..5 {
                let inner: Arc<dyn Store> = Arc::new(MemStore::new());
                let faulty = Faulty::new(Arc::clone(&inner), number, stop);
                let error = workload(&faulty).await.unwrap_err();
                let unknown = matches!(error, StoreError::Unknown(_));
                assert_eq!(unknown, stop == Stop::After, "{error}");
                assert!(faulty.has_stopped() && faulty.health().is_err());
                // Done up to here, and with `After` including this one.
                let done = number + u64::from(stop == Stop::After);
                assert_eq!(load(&*inner, "a").await.is_some(), done > 0);
                assert_eq!(load(&*inner, "b").await.is_some(), done > 3);
                let blob = inner.get_blob("x").await.is_ok();
                assert_eq!(blob, done == 3 || done == 4, "write {number} {stop:?}");
                let left = inner.list_blobs(None, 9).await.unwrap();
                assert_eq!(
                    left.is_empty(),
                    number < 1 || done > 4,
                    "a dead process cleans nothing"
                );
            }
            let inner: Arc<dyn Store> = Arc::new(MemStore::new());
            let faulty = Faulty::new(inner, 5, stop);
            workload(&faulty).await.unwrap();
            assert!(!faulty.has_stopped(), "a workload of five writes ends before the sixth");
        }
    }
}
