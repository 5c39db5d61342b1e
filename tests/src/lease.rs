//! The API in the words of the tests: asking for a key, holding it, writing under it. Each makes
//! a [`Request`] that a test may still spoil before it sends it.

use lockd_wire::{header, path};
use serde_json::{Value, json};

use crate::http::{Client, Reply, Request};

/// A wish to hold a key. Does not wait unless told to.
#[derive(Clone, Debug)]
pub struct Ask {
    body: Value,
    repeat: Option<String>,
}

impl Ask {
    #[must_use]
    pub fn new(key: &str, owner: &str) -> Self {
        Self { body: json!({"key": key, "owner": owner, "block_seconds": -1}), repeat: None }
    }

    /// Any other field of the request.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.body[name] = value.into();
        self
    }

    #[must_use]
    pub fn ttl_ms(self, ttl: u64) -> Self {
        self.field("ttl_ms", ttl)
    }

    /// How long to wait, as the API has it: 0 is for ever.
    #[must_use]
    pub fn block(self, seconds: i64) -> Self {
        self.field("block_seconds", seconds)
    }

    /// Makes the request safe to repeat.
    #[must_use]
    pub fn repeatable(mut self, key: &str) -> Self {
        self.repeat = Some(key.to_owned());
        self
    }

    #[must_use]
    pub fn request(&self) -> Request {
        let request = Request::post(path::ACQUIRE).json(&self.body);
        match &self.repeat {
            Some(key) => request.header(header::IDEMPOTENCY_KEY, key),
            None => request,
        }
    }
}

/// A lease, as its holder knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub namespace: String,
    pub key: String,
    pub lease: String,
    pub txn: String,
    pub token: u64,
    pub version: u64,
    pub expires_at_unix_ms: u64,
}

impl Held {
    /// The lease in the answer to an acquire.
    #[must_use]
    #[track_caller]
    pub fn of(reply: &Reply) -> Self {
        assert_eq!(reply.status, 200, "not granted: {}", reply.text());
        let body = reply.json();
        let text = |name: &str| body[name].as_str().expect("a text").to_owned();
        let number = |name: &str| body[name].as_u64().expect("a number");
        Self {
            namespace: text("namespace"),
            key: text("key"),
            lease: text("lease_id"),
            txn: text("txn_id"),
            token: number("fencing_token"),
            version: number("version"),
            expires_at_unix_ms: number("expires_at_unix_ms"),
        }
    }

    fn named(&self) -> Value {
        json!({"namespace": self.namespace, "key": self.key, "lease_id": self.lease, "txn_id": self.txn})
    }

    #[must_use]
    pub fn release(&self) -> Request {
        let request = Request::post(path::RELEASE).json(&self.named());
        request.header(header::FENCING_TOKEN, self.token)
    }

    #[must_use]
    pub fn rollback(&self) -> Request {
        let mut body = self.named();
        body["rollback"] = true.into();
        Request::post(path::RELEASE).json(&body).header(header::FENCING_TOKEN, self.token)
    }

    #[must_use]
    pub fn keepalive(&self, ttl_ms: u64) -> Request {
        let mut body = self.named();
        body["ttl_ms"] = ttl_ms.into();
        Request::post(path::KEEPALIVE).json(&body).header(header::FENCING_TOKEN, self.token)
    }

    /// A request to a state endpoint with the proof of this lease.
    #[must_use]
    pub fn state(&self, path: &str) -> Request {
        Request::post(path)
            .query("namespace", &self.namespace)
            .query("key", &self.key)
            .header(header::LEASE_ID, &self.lease)
            .header(header::TXN_ID, &self.txn)
            .header(header::FENCING_TOKEN, self.token)
    }

    /// Stages a document.
    #[must_use]
    pub fn update(&self, document: impl Into<Vec<u8>>) -> Request {
        self.state(path::UPDATE).body(document)
    }

    /// Commits a document at once and keeps the lease.
    #[must_use]
    pub fn commit(&self, document: impl Into<Vec<u8>>) -> Request {
        self.update(document).query("then", "commit")
    }

    #[must_use]
    pub fn get(&self) -> Request {
        self.state(path::GET)
    }

    #[must_use]
    pub fn mutate(&self, mutations: &[&str]) -> Request {
        self.state(path::MUTATE).json(&json!({"mutations": mutations}))
    }

    #[must_use]
    pub fn remove(&self) -> Request {
        self.state(path::REMOVE)
    }
}

/// A document as everybody sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Public {
    pub version: u64,
    pub etag: String,
    pub body: Vec<u8>,
}

#[must_use]
pub fn public_get(key: &str) -> Request {
    Request::post(path::GET).query("key", key).query("public", "1")
}

/// The document in an answer to a read; `None` for 204.
#[must_use]
#[track_caller]
pub fn public_of(reply: &Reply) -> Option<Public> {
    match reply.status {
        204 => None,
        200 => {
            let version = reply.header(header::KEY_VERSION).and_then(|text| text.parse().ok());
            let etag = reply.header("etag").expect("an etag").to_owned();
            Some(Public { version: version.expect("a version"), etag, body: reply.body.clone() })
        }
        other => panic!("a public read got {other}: {}", reply.text()),
    }
}

impl Client {
    #[track_caller]
    pub fn acquire(&mut self, ask: &Ask) -> Held {
        Held::of(&self.call(&ask.request()))
    }

    #[track_caller]
    pub fn release(&mut self, held: &Held) {
        assert_eq!(self.call(&held.release()).ok().json(), json!({"released": true}));
    }

    #[track_caller]
    pub fn public(&mut self, key: &str) -> Option<Public> {
        public_of(&self.call(&public_get(key)))
    }

    #[track_caller]
    pub fn describe(&mut self, key: &str) -> Value {
        self.call(&Request::get(path::DESCRIBE).query("key", key)).ok().json()
    }

    /// Who holds the key now.
    #[track_caller]
    pub fn owner(&mut self, key: &str) -> Option<String> {
        self.describe(key)["owner"].as_str().map(str::to_owned)
    }

    /// How many wait for a key that is held.
    #[track_caller]
    pub fn waiters(&mut self, key: &str) -> u64 {
        let request = Request::get(path::LEASES).query("namespace", "default").query("prefix", key);
        let leases = self.call(&request).ok().json();
        let mut leases = leases["leases"].as_array().expect("a list").iter();
        let found = leases.find(|lease| lease["key"] == *key);
        found.map_or(0, |lease| lease["waiters"].as_u64().expect("a number"))
    }
}
