//! A store that can only write one record at a time, for tests of everything that must not depend
//! on more. Passes everything on to the store inside.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::port::{
    Abilities, BlobReader, BlobWriter, Gauges, Name, Op, Page, Revision, Store, StoreError, Stored,
};

pub struct Stepwise(Arc<dyn Store>);

impl Stepwise {
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self(inner)
    }
}

impl Store for Stepwise {
    fn abilities(&self) -> Abilities {
        Abilities { atomic_batch: false, snapshot: false, ..self.0.abilities() }
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        self.0.load(name)
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        self.0.load_many(names)
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.0.scan(prefix, after, limit)
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        if ops.len() > 1 {
            let why = format!("{} writes at once", ops.len());
            return Box::pin(async { Err(StoreError::Unavailable(why)) });
        }
        self.0.commit(ops)
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        self.0.put_blob(name)
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        self.0.get_blob(name)
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        self.0.delete_blob(name)
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        self.0.list_blobs(after, limit)
    }

    fn health(&self) -> Result<(), StoreError> {
        self.0.health()
    }

    fn gauges(&self) -> Gauges {
        self.0.gauges()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }
}
