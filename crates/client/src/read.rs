//! Reading state: of one key as a whole or piece by piece, and of several keys at one moment.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::Method;
use hyper::body::Incoming;
use lockd_wire::state::{ReadReply, ReadRequest};
use lockd_wire::{header, path};
use serde::de::DeserializeOwned;

use crate::call::Call;
use crate::client::Client;
use crate::context::Authority;
use crate::error::{Error, Failed, Failure, ReadKind};
use crate::reply::Head;
use crate::transport::chunk;

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Document {
    pub version: u64,
    pub etag: Option<String>,
    /// JSON.
    pub bytes: Bytes,
}

impl Document {
    /// The state as a value.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error<ReadKind>> {
        serde_json::from_slice(&self.bytes).map_err(|error| {
            Failure::source("the state is not of the type asked for", error).into()
        })
    }
}

/// What is read, and by whom.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    Public { client: Client, namespace: Option<String>, key: String },
    Leased(Arc<Authority>),
}

impl Scope {
    pub(crate) fn client(&self) -> &Client {
        match self {
            Self::Public { client, .. } => client,
            Self::Leased(authority) => authority.client(),
        }
    }

    pub(crate) fn set_namespace(&mut self, to: String) {
        match self {
            Self::Public { namespace, .. } => *namespace = Some(to),
            Self::Leased(_) => {}
        }
    }

    fn call(&self) -> Result<Call, Failed> {
        self.call_to(path::GET)
    }

    pub(crate) fn call_to(&self, path: &'static str) -> Result<Call, Failed> {
        match self {
            Self::Public { client, namespace, key } => Ok(client
                .call(Method::POST, path)
                .query("key", key)
                .query_if("namespace", client.namespace_or(namespace.as_deref()))
                .query("public", "1")),
            Self::Leased(authority) => authority.call(path),
        }
    }

    pub(crate) fn observe(&self, failure: Failed) -> Failed {
        match self {
            Self::Public { .. } => failure,
            Self::Leased(authority) => authority.observe(failure),
        }
    }
}

/// Reads the state of a key; await it. `None` when there is none.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before it is awaited"]
pub struct Get(Scope);

impl Get {
    pub(crate) fn public(client: Client, key: String) -> Self {
        Self(Scope::Public { client, namespace: None, key })
    }

    pub(crate) fn leased(authority: Arc<Authority>) -> Self {
        Self(Scope::Leased(authority))
    }

    /// The namespace of the key, unless the lease says which.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.set_namespace(namespace.into());
        self
    }

    async fn send(self) -> Result<Option<Document>, Failed> {
        let fetched = self.0.client().fetch_document(&self.0.call()?).await;
        let loaded = fetched.map_err(|failure| self.0.observe(failure))?;
        if !loaded.head.has_content() {
            return Ok(None);
        }
        let (version, etag) = (version(&loaded.head)?, loaded.head.etag());
        Ok(Some(Document { version, etag, bytes: loaded.bytes }))
    }
}

impl IntoFuture for Get {
    type Output = Result<Option<Document>, Error<ReadKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

/// Opens the state of a key for reading piece by piece; await it. `None` when there is none.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before it is awaited"]
pub struct GetStream(Scope);

impl GetStream {
    pub(crate) fn public(client: Client, key: String) -> Self {
        Self(Scope::Public { client, namespace: None, key })
    }

    pub(crate) fn leased(authority: Arc<Authority>) -> Self {
        Self(Scope::Leased(authority))
    }

    /// The namespace of the key, unless the lease says which.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.set_namespace(namespace.into());
        self
    }

    async fn send(self) -> Result<Option<DocumentStream>, Failed> {
        let opened = self.0.client().open(&self.0.call()?).await;
        let reply = opened.map_err(|failure| self.0.observe(failure))?;
        if !reply.head.has_content() {
            return Ok(None);
        }
        Ok(Some(DocumentStream {
            version: version(&reply.head)?,
            etag: reply.head.etag(),
            length: reply.length(),
            silence: reply.silence(),
            body: reply.into_body(),
        }))
    }
}

impl IntoFuture for GetStream {
    type Output = Result<Option<DocumentStream>, Error<ReadKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

fn version(head: &Head) -> Result<u64, Failed> {
    head.number(header::KEY_VERSION)
        .ok_or_else(|| Failure::garbled(format!("no {} on a document", header::KEY_VERSION)))
}

/// The state of a key while it arrives.
#[derive(Debug)]
pub struct DocumentStream {
    version: u64,
    etag: Option<String>,
    length: Option<u64>,
    body: Incoming,
    silence: Duration,
}

impl DocumentStream {
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    /// The number of bytes to come, where the server told.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; `None` at the end. An error means that the rest cannot be had.
    ///
    /// # Errors
    /// When the connection breaks or falls silent.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error<ReadKind>> {
        Ok(chunk(&mut self.body, Some(self.silence)).await?)
    }

    /// The same as a stream, which ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, Error<ReadKind>>> + Send {
        futures_util::stream::unfold(Some(self), |state| async move {
            let mut document = state?;
            match document.chunk().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(document))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}

/// One of several keys that were read together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    pub namespace: String,
    pub key: String,
    /// Zero for a key that never had a committed state.
    pub version: u64,
    /// `None` when the key has no committed state.
    pub document: Option<Document>,
}

/// Reads several keys as of one moment; await it. The entries come in the order of the keys.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before it is awaited"]
pub struct ReadMany {
    client: Client,
    request: ReadRequest,
}

impl ReadMany {
    pub(crate) fn new(client: Client, keys: Vec<String>) -> Self {
        let namespace = client.settings().namespace.clone();
        Self { client, request: ReadRequest { namespace, keys, full_names: false } }
    }

    /// The namespace of the keys.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.request.namespace = Some(namespace.into());
        self
    }

    /// The keys are written `namespace/key`.
    pub fn full_names(mut self) -> Self {
        self.request.namespace = None;
        self.request.full_names = true;
        self
    }

    async fn send(self) -> Result<Vec<Entry>, Failed> {
        let mut call = self.client.call(Method::POST, path::READ).json(&self.request)?;
        call = call.naming("namespace", self.request.namespace.as_deref());
        for key in &self.request.keys {
            call = call.naming("key", Some(key));
        }
        let reply: ReadReply = self.client.fetch_document(&call).await?.json()?;
        if reply.entries.len() != self.request.keys.len() {
            return Err(Failure::garbled("it has another number of entries than keys"));
        }
        let entries = reply.entries.into_iter().map(|entry| Entry {
            namespace: entry.namespace,
            key: entry.key,
            version: entry.version,
            document: entry.state.map(|state| Document {
                version: entry.version,
                etag: entry.state_etag,
                bytes: Bytes::from(Box::<str>::from(state).into_string()),
            }),
        });
        Ok(entries.collect())
    }
}

impl IntoFuture for ReadMany {
    type Output = Result<Vec<Entry>, Error<ReadKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}
