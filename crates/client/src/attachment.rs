//! Attachments: bytes of any kind beside the state of a key. Under a lease they are staged, and
//! become visible with everything else that was staged.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use lockd_wire::attachment::{
    AttachReply, AttachmentInfo, AttachmentsReply, DetachAllReply, DetachReply,
};
use lockd_wire::{ErrorCode, header, path};

use crate::body::Source;
use crate::call::Repeat;
use crate::client::Client;
use crate::context::Authority;
use crate::error::{Error, Failed, ReadKind, UpdateKind};
use crate::read::Scope;
use crate::transport::chunk;

/// The attachments of a key, for reading.
#[derive(Clone, Debug)]
pub struct AttachmentsView(Scope);

/// The attachments of a key that is held.
#[derive(Clone, Debug)]
pub struct Attachments {
    view: AttachmentsView,
    authority: Arc<Authority>,
}

impl Deref for Attachments {
    type Target = AttachmentsView;

    fn deref(&self) -> &AttachmentsView {
        &self.view
    }
}

impl AttachmentsView {
    pub(crate) fn public(client: Client, key: String) -> Self {
        Self(Scope::Public { client, namespace: None, key })
    }

    /// The namespace of the key, unless the lease says which.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.0.set_namespace(namespace.into());
        self
    }

    /// All of them, in the order of their names.
    ///
    /// # Errors
    /// When they cannot be had.
    pub async fn list(&self) -> Result<Vec<AttachmentInfo>, Error<ReadKind>> {
        let call = self.0.call_to(path::ATTACHMENTS)?.method(Method::GET);
        let fetched = self.0.client().fetch(&call).await;
        let loaded = fetched.map_err(|failure| self.0.observe(failure))?;
        let reply: AttachmentsReply = loaded.json()?;
        Ok(reply.attachments)
    }

    /// Opens one for reading; `None` when there is none of that name.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn get(&self, name: &str) -> Result<Option<AttachmentStream>, Error<ReadKind>> {
        let call = self.0.call_to(path::ATTACHMENT)?.method(Method::GET).query("name", name);
        let reply = match self.0.client().open(&call).await {
            Ok(reply) => reply,
            Err(failure) if is_absent(&failure) => return Ok(None),
            Err(failure) => return Err(self.0.observe(failure).into()),
        };
        Ok(Some(AttachmentStream {
            id: reply.head.text(header::ATTACHMENT_ID),
            content_type: reply.head.text(CONTENT_TYPE.as_str()),
            sha256: reply.head.text(header::ATTACHMENT_SHA256),
            length: reply.length(),
            silence: reply.silence(),
            body: reply.into_body(),
        }))
    }
}

fn is_absent(failure: &Failed) -> bool {
    let code = ErrorCode::AttachmentNotFound.as_str();
    failure.refusal().is_some_and(|refusal| refusal.body.error == code)
}

impl Attachments {
    pub(crate) fn of(authority: &Arc<Authority>) -> Self {
        let view = AttachmentsView(Scope::Leased(Arc::clone(authority)));
        Self { view, authority: Arc::clone(authority) }
    }

    /// Stages an attachment, which is read while it is sent. One of the same name is replaced.
    pub fn put(&self, name: impl Into<String>, source: impl Into<Source>) -> PutAttachment {
        PutAttachment {
            authority: Arc::clone(&self.authority),
            name: name.into(),
            source: source.into(),
            content_type: None,
            keep_existing: false,
            max_bytes: None,
            expected_sha256: None,
        }
    }

    /// Stages the removal of one; whether there was one.
    ///
    /// # Errors
    /// When the lease is over, or it could not be done.
    pub async fn delete(&self, name: &str) -> Result<bool, Error<UpdateKind>> {
        let call = self.authority.call(path::ATTACHMENT)?.method(Method::DELETE);
        let call = call.query("name", name).repeat(Repeat::Unsent);
        let sent = self.authority.client().fetch(&call).await;
        let loaded = sent.map_err(|failure| self.authority.observe(failure))?;
        let reply: DetachReply = loaded.json()?;
        Ok(reply.deleted)
    }

    /// Stages the removal of all; how many there were.
    ///
    /// # Errors
    /// When the lease is over, or it could not be done.
    pub async fn delete_all(&self) -> Result<u64, Error<UpdateKind>> {
        let call = self.authority.call(path::ATTACHMENTS)?.method(Method::DELETE);
        let sent = self.authority.client().fetch(&call.repeat(Repeat::Unsent)).await;
        let loaded = sent.map_err(|failure| self.authority.observe(failure))?;
        let reply: DetachAllReply = loaded.json()?;
        Ok(reply.deleted)
    }
}

/// What is attached now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attached {
    pub info: AttachmentInfo,
    /// One of that name was there, and stayed.
    pub kept: bool,
    /// The version that the key will have.
    pub version: u64,
}

/// Attaches something; await it.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct PutAttachment {
    authority: Arc<Authority>,
    name: String,
    source: Source,
    content_type: Option<String>,
    keep_existing: bool,
    max_bytes: Option<u64>,
    expected_sha256: Option<String>,
}

impl PutAttachment {
    /// What kind of bytes they are; `application/octet-stream` when not set.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Leaves one of the same name alone.
    pub fn keep_existing(mut self) -> Self {
        self.keep_existing = true;
        self
    }

    /// Refuses more bytes than these.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Only if what arrives has this SHA-256, in hexadecimal.
    pub fn expected_sha256(mut self, sha256: impl Into<String>) -> Self {
        self.expected_sha256 = Some(sha256.into());
        self
    }

    async fn send(self) -> Result<Attached, Failed> {
        let max_bytes = self.max_bytes.map(|bytes| bytes.to_string());
        let content_type = self.content_type.as_deref().unwrap_or("application/octet-stream");
        // The same again is the same attachment: it may be repeated.
        let call = self
            .authority
            .call(path::ATTACHMENTS)?
            .query("name", self.name)
            .query("content_type", content_type)
            .query_if("max_bytes", max_bytes.as_deref())
            .query_if("prevent_overwrite", self.keep_existing.then_some("1"))
            .header_if(header::EXPECTED_SHA256, self.expected_sha256.as_deref())?
            .body(self.source);
        let sent = self.authority.client().fetch(&call).await;
        let loaded = sent.map_err(|failure| self.authority.observe(failure))?;
        let reply: AttachReply = loaded.json()?;
        Ok(Attached { info: reply.attachment, kept: reply.noop, version: reply.version })
    }
}

impl IntoFuture for PutAttachment {
    type Output = Result<Attached, Error<UpdateKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

/// An attachment while it arrives.
#[derive(Debug)]
pub struct AttachmentStream {
    id: Option<String>,
    content_type: Option<String>,
    sha256: Option<String>,
    length: Option<u64>,
    body: Incoming,
    silence: Duration,
}

impl AttachmentStream {
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    pub fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// In hexadecimal.
    pub fn sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
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
}
