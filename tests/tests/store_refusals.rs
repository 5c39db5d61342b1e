//! A store that fails, seen from outside: which refusal each failure becomes, what it says about
//! the outcome, and that the server goes on when the store does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lockd_core::record::Content;
use lockd_core::time::Timeline;
use lockd_server::{Parts, Settings};
use lockd_store::{
    Abilities, BlobReader, BlobWriter, Gauges, MemStore, Name, Op, Page, Revision, Store,
    StoreError, Stored, codec,
};
use lockd_tests::inside::Inside;
use lockd_tests::{Ask, Request};
use lockd_wire::{header, path};
use serde_json::json;

const WORKS: u8 = 0;
const UNAVAILABLE: u8 = 1;
const UNKNOWN: u8 = 2;
const DAMAGED: u8 = 3;
const CONTENDED: u8 = 4;
const NO_BLOBS: u8 = 5;
const SLIPPERY: u8 = 6;

/// Passes everything on, or fails in the way it was told to.
struct Moody {
    inner: MemStore,
    mood: AtomicU8,
    timeline: Timeline,
    slips: AtomicU64,
}

impl Moody {
    fn new(timeline: Timeline) -> Arc<Self> {
        let (mood, slips) = (AtomicU8::new(WORKS), AtomicU64::new(0));
        Arc::new(Self { inner: MemStore::new(), mood, timeline, slips })
    }

    /// The record as if its document had just been replaced, which happens at every look.
    fn slip(&self, stored: Option<Stored>) -> Option<Stored> {
        let mut stored = stored?;
        if self.mood.load(Ordering::SeqCst) == SLIPPERY {
            let mut record = codec::decode(&stored.bytes, &self.timeline).expect("a record");
            let name = format!("gone/{}", self.slips.fetch_add(1, Ordering::SeqCst));
            record.state.as_mut().expect("a document").content = Content::Blob(name.into());
            stored.bytes = codec::encode(&record, self.timeline.boot);
        }
        Some(stored)
    }

    fn feel(&self, mood: u8) {
        self.mood.store(mood, Ordering::SeqCst);
    }

    fn reading(&self) -> Result<(), StoreError> {
        match self.mood.load(Ordering::SeqCst) {
            UNAVAILABLE => Err(StoreError::Unavailable("on purpose".into())),
            DAMAGED => Err(StoreError::Damaged("on purpose".into())),
            _ => Ok(()),
        }
    }

    fn writing(&self) -> Result<(), StoreError> {
        match self.mood.load(Ordering::SeqCst) {
            CONTENDED => Err(StoreError::Conflict),
            UNKNOWN => Err(StoreError::Unknown("on purpose".into())),
            _ => self.reading(),
        }
    }
}

impl Store for Moody {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        let name = Arc::clone(name);
        async move {
            self.reading()?;
            Ok(self.slip(self.inner.load(&name).await?))
        }
        .boxed()
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        let names = names.to_vec();
        async move {
            self.reading()?;
            let found = self.inner.load_many(&names).await?;
            Ok(found.into_iter().map(|stored| self.slip(stored)).collect())
        }
        .boxed()
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        async move {
            self.reading()?;
            self.inner.scan(&prefix, after.as_deref(), limit).await
        }
        .boxed()
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        async move {
            self.writing()?;
            self.inner.commit(ops).await
        }
        .boxed()
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        let name = name.to_owned();
        async move {
            self.writing()?;
            self.inner.put_blob(&name).await
        }
        .boxed()
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        let name = name.to_owned();
        async move {
            if self.mood.load(Ordering::SeqCst) == NO_BLOBS {
                return Err(StoreError::NoBlob);
            }
            self.reading()?;
            self.inner.get_blob(&name).await
        }
        .boxed()
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        let name = name.to_owned();
        async move { self.inner.delete_blob(&name).await }.boxed()
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let after = after.map(str::to_owned);
        async move { self.inner.list_blobs(after.as_deref(), limit).await }.boxed()
    }

    fn health(&self) -> Result<(), StoreError> {
        self.reading()
    }

    fn gauges(&self) -> Gauges {
        self.inner.gauges()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

#[test]
fn each_failure_of_the_store_has_its_own_refusal() {
    let mut parts = Parts::default();
    let store = Moody::new(parts.clock.timeline());
    parts.store = Some(Arc::clone(&store) as _);
    let server = Inside::with_parts(Settings::embedded_defaults(), parts);
    let held = server.acquire(&Ask::new("k", "tester").ttl_ms(600_000));
    let large = Bytes::from(format!("\"{}\"", "x".repeat(100_000)));
    let first = server.call(&held.commit(large.to_vec())).ok();
    let writes = || [Ask::new("new", "tester").request(), held.commit("1"), held.keepalive(5000)];

    store.feel(UNAVAILABLE);
    for request in writes() {
        let reply = server.call(&request);
        reply.refused(503, "store_unavailable");
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert!(reply.json()["outcome"].is_null(), "nothing was written: {}", reply.text());
    }
    for request in [Request::get(path::KEYS), lockd_tests::lease::public_get("k")] {
        server.call(&request).refused(503, "store_unavailable");
    }
    server.call(&Request::get(path::READYZ)).refused(503, "store_unavailable");
    assert_eq!(server.call(&Request::get(path::HEALTHZ)).status, 200, "the process lives");

    store.feel(UNKNOWN);
    for request in writes() {
        let reply = server.call(&request);
        reply.refused(503, "store_unavailable");
        assert_eq!(reply.json()["outcome"], "unknown", "{}", reply.text());
    }

    store.feel(DAMAGED);
    for request in [lockd_tests::lease::public_get("k"), held.get(), held.commit("1")] {
        let reply = server.call(&request);
        reply.refused(500, "store_damaged");
        assert!(!reply.text().contains("on purpose"), "the inside stays inside");
    }

    store.feel(CONTENDED);
    for request in writes() {
        let reply = server.call(&request);
        reply.refused(409, "cas_mismatch");
        assert_eq!(reply.header("retry-after"), Some("1"));
    }

    let read = Request::post(path::READ).json(&json!({"keys": ["k"]}));
    let reads = [lockd_tests::lease::public_get("k"), held.get(), read];
    store.feel(NO_BLOBS);
    for request in &reads {
        server.call(request).refused(500, "store_damaged");
    }
    store.feel(SLIPPERY);
    for request in &reads {
        server.call(request).refused(409, "read_conflict");
    }

    store.feel(WORKS);
    let seen = server.call(&lockd_tests::lease::public_get("k")).ok();
    assert_eq!(seen.body, large, "what was there is there");
    assert_eq!(seen.header("etag"), first.header("etag"));
    assert_eq!(seen.header(header::KEY_VERSION), Some("1"), "nothing came in between");
    server.done(&held.release());
    server.acquire(&Ask::new("k", "tester"));
    server.acquire(&Ask::new("new", "tester"));
}
