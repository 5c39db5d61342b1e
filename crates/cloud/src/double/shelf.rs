//! What a double keeps: objects in order, and uploads that are not objects yet.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use jiff::Timestamp;
use md5::{Digest, Md5};

/// Generations look like those of GCS: large, and never the same twice.
const FIRST_GENERATION: u64 = 1_700_000_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Object {
    pub bytes: Bytes,
    /// With its quotes.
    pub etag: String,
    pub modified: Timestamp,
    /// Given when it is put.
    pub generation: u64,
    /// What the writer said about it and readers get back.
    pub attributes: HeaderMap,
}

impl Object {
    pub(super) fn new(bytes: Bytes, modified: Timestamp, attributes: HeaderMap) -> Self {
        let etag = format!("\"{}\"", hex(&Md5::digest(&bytes)));
        Self { bytes, etag, modified, generation: 0, attributes }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An upload in parts.
#[derive(Debug)]
pub(super) struct Pending {
    bucket: String,
    pub key: String,
    pub since: Timestamp,
    pub attributes: HeaderMap,
    pub parts: BTreeMap<u32, Object>,
}

impl Pending {
    pub(super) fn new(bucket: &str, key: &str, since: Timestamp, attributes: HeaderMap) -> Self {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Self { bucket, key, since, attributes, parts: BTreeMap::new() }
    }

    /// The object these parts make; nothing if one is missing or another than the client thinks.
    pub(super) fn assemble(&self, wanted: &[(u32, String)], now: Timestamp) -> Option<Object> {
        let mut bytes = BytesMut::new();
        let mut sums = Vec::new();
        for (number, etag) in wanted {
            let part = self.parts.get(number).filter(|part| same_tag(&part.etag, etag))?;
            bytes.extend_from_slice(&part.bytes);
            sums.extend_from_slice(&Md5::digest(&part.bytes));
        }
        let mut object = Object::new(bytes.freeze(), now, self.attributes.clone());
        object.etag = format!("\"{}-{}\"", hex(&Md5::digest(&sums)), wanted.len());
        Some(object)
    }
}

/// Whether two tags are the same but for their quotes.
pub(super) fn same_tag(one: &str, other: &str) -> bool {
    one.trim_matches('"') == other.trim_matches('"')
}

#[derive(Debug, Default)]
pub(super) struct Shelf {
    buckets: BTreeMap<String, BTreeMap<String, Object>>,
    uploads: BTreeMap<String, Pending>,
    written: u64,
    begun: u64,
}

impl Shelf {
    pub(super) fn get(&self, bucket: &str, key: &str) -> Option<&Object> {
        self.buckets.get(bucket)?.get(key)
    }

    /// In the order of their bytes.
    pub(super) fn objects(&self, bucket: &str) -> impl Iterator<Item = (&String, &Object)> {
        self.buckets.get(bucket).into_iter().flatten()
    }

    pub(super) fn put(&mut self, bucket: &str, key: &str, mut object: Object) -> Object {
        self.written += 1;
        object.generation = FIRST_GENERATION + self.written;
        let objects = self.buckets.entry(bucket.to_owned()).or_default();
        objects.insert(key.to_owned(), object.clone());
        object
    }

    pub(super) fn remove(&mut self, bucket: &str, key: &str) -> bool {
        self.buckets.get_mut(bucket).is_some_and(|objects| objects.remove(key).is_some())
    }

    pub(super) fn begin(&mut self, pending: Pending) -> String {
        self.begun += 1;
        let id = format!("upload-{:06}", self.begun);
        self.uploads.insert(id.clone(), pending);
        id
    }

    pub(super) fn upload(&mut self, bucket: &str, key: &str, id: &str) -> Option<&mut Pending> {
        let found = self.uploads.get_mut(id);
        found.filter(|pending| pending.bucket == bucket && pending.key == key)
    }

    pub(super) fn end_upload(&mut self, id: &str) {
        self.uploads.remove(id);
    }

    pub(super) fn uploads(&self, bucket: &str) -> impl Iterator<Item = (&String, &Pending)> {
        self.uploads.iter().filter(move |(_, pending)| pending.bucket == bucket)
    }
}
