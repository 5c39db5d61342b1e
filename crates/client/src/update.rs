//! Writing a new state: staged, published at once, or published with the release.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use lockd_wire::state::UpdateReply;
use lockd_wire::{header, path};
use serde::Serialize;

use crate::body::Source;
use crate::call::new_request_id;
use crate::context::Authority;
use crate::error::{Error, Failed, Failure, UpdateKind};
use crate::lease::{Lease, LostReason};
use crate::write::Conditions;

/// What follows a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Stage,
    Commit,
    Release,
}

impl Then {
    /// As the query has it.
    pub(crate) fn text(self) -> Option<&'static str> {
        match self {
            Self::Stage => None,
            Self::Commit => Some("commit"),
            Self::Release => Some("release"),
        }
    }
}

/// A write that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    pub version: u64,
    pub etag: String,
    /// Stored bytes, after insignificant white space was taken out.
    pub bytes: u64,
    /// Whether the key is kept out of query results.
    pub hidden: Option<bool>,
}

/// Writes a new state; await it.
#[derive(Debug)]
#[must_use = "nothing is written before it is awaited"]
pub struct Update {
    authority: Arc<Authority>,
    document: Result<Source, Failed>,
    then: Then,
    conditions: Conditions,
    expected_bytes: Option<u64>,
    expected_sha256: Option<String>,
    hidden: Option<bool>,
    name: Option<String>,
}

impl Update {
    pub(crate) fn value<T: Serialize + ?Sized>(
        authority: Arc<Authority>,
        value: &T,
        then: Then,
    ) -> Self {
        let document = serde_json::to_vec(value)
            .map(Source::bytes)
            .map_err(|error| Failure::source("the state cannot be written as JSON", error));
        Self::new(authority, document, then)
    }

    pub(crate) fn source(authority: Arc<Authority>, source: Source, then: Then) -> Self {
        Self::new(authority, Ok(source), then)
    }

    fn new(authority: Arc<Authority>, document: Result<Source, Failed>, then: Then) -> Self {
        Self {
            authority,
            document,
            then,
            conditions: Conditions::default(),
            expected_bytes: None,
            expected_sha256: None,
            hidden: None,
            name: None,
        }
    }

    /// Publishes at once and keeps the lease, instead of only staging.
    pub fn then_commit(mut self) -> Self {
        self.then = Then::Commit;
        self
    }

    /// Only if the state is still at this version.
    pub fn if_version(mut self, version: u64) -> Self {
        self.conditions.version = Some(version);
        self
    }

    /// Only if the state still has this etag.
    pub fn if_etag(mut self, etag: impl Into<String>) -> Self {
        self.conditions.etag = Some(etag.into());
        self
    }

    /// Only if the other lease is still the latest of its key, tested in the same step.
    pub fn fenced_by(mut self, other: &Lease) -> Self {
        self.conditions.fenced_by(other);
        self
    }

    /// Only if the latest token of that key, written `namespace/key`, is still this one.
    pub fn fence(mut self, full_name: impl Into<String>, token: u64) -> Self {
        self.conditions.fence(full_name.into(), token);
        self
    }

    /// Keeps the key out of query results, or not.
    pub fn hidden(mut self, hidden: bool) -> Self {
        self.hidden = Some(hidden);
        self
    }

    /// Only if that many bytes arrive.
    pub fn expected_bytes(mut self, bytes: u64) -> Self {
        self.expected_bytes = Some(bytes);
        self
    }

    /// Only if what arrives has this SHA-256, in hexadecimal.
    pub fn expected_sha256(mut self, sha256: impl Into<String>) -> Self {
        self.expected_sha256 = Some(sha256.into());
        self
    }

    /// Names the request, so that it can be made again. Drawn at random when not set.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.name = Some(key.into());
        self
    }

    async fn send(self) -> Result<Updated, Failed> {
        let name = self.name.unwrap_or_else(new_request_id);
        let expected_bytes = self.expected_bytes.map(|bytes| bytes.to_string());
        let hidden = self.hidden.map(|hidden| hidden.to_string());
        let call = self
            .authority
            .call(path::UPDATE)?
            .query_if("then", self.then.text())
            .named(&name)?
            .header_if(header::EXPECTED_BYTES, expected_bytes.as_deref())?
            .header_if(header::EXPECTED_SHA256, self.expected_sha256.as_deref())?
            .header_if(header::QUERY_HIDDEN, hidden.as_deref())?;
        let call = self.conditions.add_to(call)?.body(self.document?);
        let loaded = self.authority.client().fetch(&call).await;
        let loaded = loaded.map_err(|failure| self.authority.observe(failure))?;
        let reply: UpdateReply = loaded.json()?;
        self.authority.wrote(reply.new_version);
        Ok(reply.into())
    }
}

impl IntoFuture for Update {
    type Output = Result<Updated, Error<UpdateKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

/// Writes a new state and releases the lease in one step; await it.
#[derive(Debug)]
#[must_use = "nothing is written before it is awaited"]
pub struct Finish {
    lease: Lease,
    update: Update,
}

impl Finish {
    pub(crate) fn new(lease: Lease, update: Update) -> Self {
        Self { lease, update }
    }

    /// Only if the state is still at this version.
    pub fn if_version(mut self, version: u64) -> Self {
        self.update = self.update.if_version(version);
        self
    }

    /// Only if the state still has this etag.
    pub fn if_etag(mut self, etag: impl Into<String>) -> Self {
        self.update = self.update.if_etag(etag);
        self
    }

    /// Only if the other lease is still the latest of its key, tested in the same step.
    pub fn fenced_by(mut self, other: &Lease) -> Self {
        self.update = self.update.fenced_by(other);
        self
    }

    /// Only if the latest token of that key, written `namespace/key`, is still this one.
    pub fn fence(mut self, full_name: impl Into<String>, token: u64) -> Self {
        self.update = self.update.fence(full_name, token);
        self
    }

    /// Keeps the key out of query results, or not.
    pub fn hidden(mut self, hidden: bool) -> Self {
        self.update = self.update.hidden(hidden);
        self
    }

    /// Names the request, so that it can be made again. Drawn at random when not set.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.update = self.update.idempotency_key(key);
        self
    }

    async fn send(self) -> Result<Updated, Failed> {
        let Self { lease, update } = self;
        lease.tenure().finishing();
        let updated = update.send().await;
        match &updated {
            Ok(_) => lease.tenure().end(LostReason::Released),
            Err(failure) => {
                if let Some(reason) = failure.refusal().and_then(LostReason::told_by) {
                    lease.tenure().end(reason);
                }
            }
        }
        updated
    }
}

impl IntoFuture for Finish {
    type Output = Result<Updated, Error<UpdateKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

impl From<UpdateReply> for Updated {
    fn from(reply: UpdateReply) -> Self {
        Self {
            version: reply.new_version,
            etag: reply.new_state_etag,
            bytes: reply.bytes,
            hidden: reply.metadata.query_hidden,
        }
    }
}
