//! `mem://`: the port over maps behind one lock, for tests and demos. It promises everything but
//! surviving the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;

use crate::port::{
    Abilities, BlobReader, BlobWriter, Gauges, Name, Op, Page, Revision, Store, StoreError, Stored,
    Write, is_blob_name,
};

/// A store that lives and dies with its process.
#[derive(Debug, Default)]
pub struct MemStore {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<Name, Stored>,
    blobs: BTreeMap<String, Blob>,
    last_revision: u64,
    commits: u64,
    closed: bool,
}

#[derive(Debug, Default)]
struct Blob {
    chunks: Arc<Vec<Bytes>>,
    finished: bool,
}

impl MemStore {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(
        &self,
        act: impl FnOnce(&mut Inner) -> Result<T, StoreError>,
    ) -> BoxFuture<'static, Result<T, StoreError>>
    where
        T: Send + 'static,
    {
        let mut inner = self.inner.lock();
        let outcome = if inner.closed {
            Err(StoreError::Unavailable("the store is closed".into()))
        } else {
            act(&mut inner)
        };
        Box::pin(ready(outcome))
    }
}

impl Inner {
    fn commit(&mut self, ops: Vec<Op>) -> Result<Vec<Revision>, StoreError> {
        for op in &ops {
            if !op.expect.is_met_by(self.records.get(&op.name).map(|stored| stored.revision)) {
                return Err(StoreError::Conflict);
            }
        }
        self.last_revision += 1;
        self.commits += 1;
        let revision = Revision(self.last_revision);
        let revisions = vec![revision; ops.len()];
        for op in ops {
            match op.write {
                Write::Put(bytes) => {
                    self.records.insert(op.name, Stored { bytes, revision });
                }
                Write::Delete => {
                    self.records.remove(&op.name);
                }
                Write::Check => {}
            }
        }
        Ok(revisions)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Page {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        self.records
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(prefix))
            .take(limit)
            .map(|(name, stored)| (Arc::clone(name), stored.clone()))
            .collect()
    }
}

impl Store for MemStore {
    fn abilities(&self) -> Abilities {
        Abilities { atomic_batch: true, snapshot: true, shared: false, watch: false }
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        self.with(|inner| Ok(inner.records.get(name).cloned()))
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        self.with(|inner| Ok(names.iter().map(|name| inner.records.get(name).cloned()).collect()))
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.with(|inner| Ok(inner.scan(prefix, after, limit)))
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        self.with(|inner| inner.commit(ops))
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        let name = name.to_owned();
        let shared = Arc::clone(&self.inner);
        self.with(|inner| {
            if !is_blob_name(&name) {
                return Err(StoreError::Unavailable(format!("{name:?} is no name for a blob")));
            }
            if inner.blobs.contains_key(&name) {
                return Err(StoreError::Conflict);
            }
            inner.blobs.insert(name.clone(), Blob::default());
            let writer = MemBlobWriter { inner: shared, name, chunks: Vec::new(), finished: false };
            Ok(Box::new(writer) as Box<dyn BlobWriter>)
        })
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        self.with(|inner| {
            let blob = inner.blobs.get(name).filter(|blob| blob.finished);
            let chunks = Arc::clone(&blob.ok_or(StoreError::NoBlob)?.chunks);
            Ok(Box::new(MemBlobReader { chunks, at: 0 }) as Box<dyn BlobReader>)
        })
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        self.with(|inner| {
            inner.blobs.remove(name);
            Ok(())
        })
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.with(|inner| {
            let start = after.map_or(Bound::Unbounded, Bound::Excluded);
            let names = inner.blobs.range::<str, _>((start, Bound::Unbounded));
            Ok(names.take(limit).map(|(name, _)| name.clone()).collect())
        })
    }

    fn health(&self) -> Result<(), StoreError> {
        if self.inner.lock().closed {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        Ok(())
    }

    fn gauges(&self) -> Gauges {
        let inner = self.inner.lock();
        let records: usize = inner.records.values().map(|stored| stored.bytes.len()).sum();
        let blobs: usize =
            inner.blobs.values().flat_map(|blob| blob.chunks.iter()).map(Bytes::len).sum();
        Gauges {
            size_bytes: (records + blobs) as u64,
            batches: inner.commits,
            commits: inner.commits,
            ..Gauges::default()
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.lock().closed = true;
        Box::pin(ready(()))
    }
}

struct MemBlobWriter {
    inner: Arc<Mutex<Inner>>,
    name: String,
    chunks: Vec<Bytes>,
    finished: bool,
}

impl BlobWriter for MemBlobWriter {
    fn write(&mut self, chunk: Bytes) -> BoxFuture<'_, Result<(), StoreError>> {
        self.chunks.push(chunk);
        Box::pin(ready(Ok(())))
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<(), StoreError>> {
        let chunks = Arc::new(std::mem::take(&mut self.chunks));
        let known = match self.inner.lock().blobs.get_mut(&self.name) {
            Some(blob) => {
                *blob = Blob { chunks, finished: true };
                true
            }
            None => false,
        };
        self.finished = true;
        // The collector may take an unfinished blob whose lease has ended.
        Box::pin(ready(if known { Ok(()) } else { Err(StoreError::NoBlob) }))
    }
}

impl Drop for MemBlobWriter {
    fn drop(&mut self) {
        if !self.finished {
            self.inner.lock().blobs.remove(&self.name);
        }
    }
}

struct MemBlobReader {
    chunks: Arc<Vec<Bytes>>,
    at: usize,
}

impl BlobReader for MemBlobReader {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let chunk = self.chunks.get(self.at).cloned();
        self.at += 1;
        Box::pin(ready(Ok(chunk)))
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, MemStore};
    use crate::conformance::{Fixture, run_all};

    #[tokio::test(flavor = "multi_thread")]
    async fn mem_keeps_the_promises_of_the_port() {
        run_all(&|| Box::pin(async { Fixture::new(Arc::new(MemStore::new()), ()) })).await;
    }
}
