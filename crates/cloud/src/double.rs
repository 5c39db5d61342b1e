//! Object stores in memory that speak HTTP as the real ones do, and break their promises on
//! request. Nothing is signed, and every bucket exists.

mod ask;
mod dialect;
mod listing;
mod multipart;
mod read;
mod route;
mod shelf;
mod write;

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use parking_lot::Mutex;

use crate::clock::Clock;
use crate::op::{Counts, Op, Tally};
use crate::serve::Service;
use dialect::Dialect;
use shelf::{Object, Shelf};

/// How a store breaks its word about conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flaw {
    #[default]
    Honest,
    /// Writes over whatever is there now. At GCS: any generation but zero.
    IgnoresIfMatch,
    /// Writes although something is there. At GCS: generation zero.
    IgnoresIfNoneMatch,
    /// Looks, takes its time, and then writes whatever happened meanwhile.
    ChecksThenWrites,
    /// Answers 412 to every replacement, also of what is unchanged. At GCS: of every generation.
    RefusesIfMatch,
    /// Answers 400 to every replacement on a condition.
    DoesNotKnowIfMatch,
    /// Lists nothing, as if the bucket were empty.
    ListsNothing,
}

/// An upload in parts that was neither completed nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    pub key: String,
    pub id: String,
    /// How many parts have arrived.
    pub parts: usize,
}

/// What both doubles can do.
#[derive(Debug)]
pub struct Double {
    service: Service,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    dialect: Dialect,
    clock: Clock,
    tally: Tally,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    shelf: Shelf,
    flaw: Flaw,
    denied: HashSet<Op>,
}

impl Double {
    fn open(dialect: Dialect) -> Self {
        let state = Arc::new(State {
            dialect,
            clock: Clock::default(),
            tally: Tally::default(),
            inner: Mutex::default(),
        });
        let shared = Arc::clone(&state);
        let service = Service::start(move |request| route::answer(Arc::clone(&shared), request));
        Self { service, state }
    }

    /// Such as `http://127.0.0.1:40123`; buckets are its first path segment.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.service.endpoint()
    }

    pub fn set_flaw(&self, flaw: Flaw) {
        self.state.inner.lock().flaw = flaw;
    }

    /// From now on this kind of request is answered with 403.
    pub fn deny(&self, op: Op) {
        self.state.inner.lock().denied.insert(op);
    }

    pub fn allow(&self, op: Op) {
        self.state.inner.lock().denied.remove(&op);
    }

    /// Moves `Date` and `Last-Modified` away from the real time.
    pub fn set_clock_offset(&self, ms: i64) {
        self.state.clock.set_offset(ms);
    }

    #[must_use]
    pub fn requests(&self) -> Counts {
        self.state.tally.read()
    }

    pub fn reset_counts(&self) {
        self.state.tally.reset();
    }

    /// What is stored now, without a request.
    #[must_use]
    pub fn object(&self, bucket: &str, key: &str) -> Option<Bytes> {
        self.state.inner.lock().shelf.get(bucket, key).map(|object| object.bytes.clone())
    }

    /// The keys of a bucket in order.
    #[must_use]
    pub fn keys(&self, bucket: &str) -> Vec<String> {
        self.state.inner.lock().shelf.objects(bucket).map(|(key, _)| key.clone()).collect()
    }

    /// Stores something without a request and without conditions.
    pub fn put(&self, bucket: &str, key: &str, bytes: impl Into<Bytes>) {
        let object = Object::new(bytes.into(), self.state.clock.now(), HeaderMap::new());
        self.state.inner.lock().shelf.put(bucket, key, object);
    }

    /// Removes something without a request; says whether it was there.
    pub fn remove(&self, bucket: &str, key: &str) -> bool {
        self.state.inner.lock().shelf.remove(bucket, key)
    }

    #[must_use]
    pub fn uploads(&self, bucket: &str) -> Vec<Upload> {
        let inner = self.state.inner.lock();
        let uploads = inner.shelf.uploads(bucket).map(|(id, pending)| Upload {
            key: pending.key.clone(),
            id: id.clone(),
            parts: pending.parts.len(),
        });
        uploads.collect()
    }
}

/// A double of S3: conditions by `ETag`, and an `ETag` is the hash of the content.
#[derive(Debug)]
pub struct S3Double(Double);

impl S3Double {
    pub async fn start() -> Self {
        Self::start_now()
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        Self(Double::open(Dialect::S3))
    }
}

impl Deref for S3Double {
    type Target = Double;

    fn deref(&self) -> &Double {
        &self.0
    }
}

/// A double of Google Cloud Storage as its XML API shows it: conditions by generation.
#[derive(Debug)]
pub struct GcsDouble(Double);

impl GcsDouble {
    pub async fn start() -> Self {
        Self::start_now()
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        Self(Double::open(Dialect::Gcs))
    }

    /// The generation of what is stored now, without a request.
    #[must_use]
    pub fn generation(&self, bucket: &str, key: &str) -> Option<u64> {
        self.0.state.inner.lock().shelf.get(bucket, key).map(|object| object.generation)
    }
}

impl Deref for GcsDouble {
    type Target = Double;

    fn deref(&self) -> &Double {
        &self.0
    }
}
