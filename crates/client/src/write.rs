//! The other writes under a lease: mutations, removal, attributes. And the conditions that any
//! write may carry.
//!
//! Each is named once, so that the server recognises it when it comes twice.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use lockd_wire::state::{Metadata, MetadataReply, MutateRequest, RemoveReply, UpdateReply};
use lockd_wire::{header, path};

use crate::call::{Call, new_request_id};
use crate::context::Authority;
use crate::error::{Error, Failed, UpdateKind};
use crate::lease::Lease;
use crate::reply::Loaded;
use crate::update::{Then, Updated};

/// A token that another key must still be at.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    pub(crate) full_name: String,
    pub(crate) token: u64,
}

/// What must hold for a write to happen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) version: Option<u64>,
    pub(crate) etag: Option<String>,
    fences: Vec<Fence>,
}

impl Conditions {
    pub(crate) fn fenced_by(&mut self, other: &Lease) {
        self.fence(format!("{}/{}", other.namespace(), other.key()), other.token());
    }

    pub(crate) fn fence(&mut self, full_name: String, token: u64) {
        self.fences.push(Fence { full_name, token });
    }

    pub(crate) fn add_to(&self, call: Call) -> Result<Call, Failed> {
        let version = self.version.map(|version| version.to_string());
        let call = call
            .header_if(header::IF_VERSION, version.as_deref())?
            .header_if(header::IF_STATE_ETAG, self.etag.as_deref())?;
        fences(call, &self.fences)
    }
}

/// Adds fence conditions, in pairs of headers whose order is kept.
pub(crate) fn fences(mut call: Call, fences: &[Fence]) -> Result<Call, Failed> {
    for fence in fences {
        call = call
            .header(header::FENCE_KEY, &fence.full_name)?
            .header(header::FENCE_TOKEN, &fence.token.to_string())?;
    }
    Ok(call)
}

/// What all of these have in common.
#[derive(Clone, Debug)]
struct Write {
    authority: Arc<Authority>,
    conditions: Conditions,
    then: Then,
    name: Option<String>,
}

impl Write {
    fn new(authority: Arc<Authority>) -> Self {
        Self { authority, conditions: Conditions::default(), then: Then::Stage, name: None }
    }

    async fn send(&self, path: &'static str, body: Option<Vec<u8>>) -> Result<Loaded, Failed> {
        let name = self.name.clone().unwrap_or_else(new_request_id);
        let call = self.authority.call(path)?.query_if("then", self.then.text()).named(&name)?;
        let mut call = self.conditions.add_to(call)?;
        if let Some(body) = body {
            call = call.body(body.into());
        }
        let sent = self.authority.client().fetch(&call).await;
        sent.map_err(|failure| self.authority.observe(failure))
    }
}

macro_rules! options {
    () => {
        /// Only if the state is still at this version.
        pub fn if_version(mut self, version: u64) -> Self {
            self.write.conditions.version = Some(version);
            self
        }

        /// Only if the state still has this etag.
        pub fn if_etag(mut self, etag: impl Into<String>) -> Self {
            self.write.conditions.etag = Some(etag.into());
            self
        }

        /// Only if the other lease is still the latest of its key, tested in the same step.
        pub fn fenced_by(mut self, other: &Lease) -> Self {
            self.write.conditions.fenced_by(other);
            self
        }

        /// Only if the latest token of that key, written `namespace/key`, is still this one.
        pub fn fence(mut self, full_name: impl Into<String>, token: u64) -> Self {
            self.write.conditions.fence(full_name.into(), token);
            self
        }

        /// Publishes at once and keeps the lease, instead of only staging.
        pub fn then_commit(mut self) -> Self {
            self.write.then = Then::Commit;
            self
        }

        /// Names the request, so that it can be made again. Drawn at random when not set.
        pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
            self.write.name = Some(key.into());
            self
        }
    };
}

/// Changes the state on the server; await it.
#[derive(Debug)]
#[must_use = "nothing is written before it is awaited"]
pub struct Mutate {
    write: Write,
    expressions: Vec<String>,
}

impl Mutate {
    pub(crate) fn new(authority: Arc<Authority>, expressions: Vec<String>) -> Self {
        Self { write: Write::new(authority), expressions }
    }

    options!();

    async fn send(self) -> Result<Updated, Failed> {
        let request = MutateRequest { namespace: None, mutations: self.expressions };
        let body = encode(&request)?;
        let loaded = self.write.send(path::MUTATE, Some(body)).await?;
        let reply: UpdateReply = loaded.json()?;
        self.write.authority.wrote(reply.new_version);
        Ok(reply.into())
    }
}

impl IntoFuture for Mutate {
    type Output = Result<Updated, Error<UpdateKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

/// A removal that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// Whether there was anything to remove.
    pub removed: bool,
    pub version: Option<u64>,
}

/// Removes the state; await it.
#[derive(Debug)]
#[must_use = "nothing is removed before it is awaited"]
pub struct Remove {
    write: Write,
}

impl Remove {
    pub(crate) fn new(authority: Arc<Authority>) -> Self {
        Self { write: Write::new(authority) }
    }

    options!();

    async fn send(self) -> Result<Removed, Failed> {
        let loaded = self.write.send(path::REMOVE, None).await?;
        let reply: RemoveReply = loaded.json()?;
        if let Some(version) = reply.new_version {
            self.write.authority.wrote(version);
        }
        Ok(Removed { removed: reply.removed, version: reply.new_version })
    }
}

impl IntoFuture for Remove {
    type Output = Result<Removed, Error<UpdateKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

/// Sets attributes; await it.
#[derive(Debug)]
#[must_use = "nothing is written before it is awaited"]
pub struct SetMetadata {
    write: Write,
    metadata: Metadata,
}

impl SetMetadata {
    pub(crate) fn new(authority: Arc<Authority>, metadata: Metadata) -> Self {
        Self { write: Write::new(authority), metadata }
    }

    options!();

    async fn send(self) -> Result<MetadataReply, Failed> {
        let body = encode(&self.metadata)?;
        let loaded = self.write.send(path::METADATA, Some(body)).await?;
        let reply: MetadataReply = loaded.json()?;
        self.write.authority.wrote(reply.version);
        Ok(reply)
    }
}

impl IntoFuture for SetMetadata {
    type Output = Result<MetadataReply, Error<UpdateKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

fn encode<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, Failed> {
    serde_json::to_vec(value)
        .map_err(|error| crate::error::Failure::source("the request cannot be encoded", error))
}
