//! Acting under a lease: what has to be shown for it, and calls without a guard, for programs
//! whose steps run in processes of their own.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use lockd_wire::lease::{KeepaliveReply, KeepaliveRequest};
use lockd_wire::{header, path};
use serde::Serialize;

use crate::acquire::Grant;
use crate::attachment::Attachments;
use crate::body::Source;
use crate::call::{Call, Patience};
use crate::capped::Limit;
use crate::client::Client;
use crate::error::{Cause, Error, Failed, Failure, KeepaliveKind};
use crate::lease::{Lease, Tenure};
use crate::read::{Get, GetStream};
use crate::release::Release;
use crate::ttl::{WireSpan, granted};
use crate::update::{Then, Update};
use crate::wire;
use crate::write::{Mutate, Remove, SetMetadata};

/// What the holder of a lease shows. Whoever knows it can act as the holder.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseContext {
    /// `None` for the server's default.
    pub namespace: Option<String>,
    pub key: String,
    pub lease_id: String,
    pub txn_id: Option<String>,
    /// The fencing token.
    pub token: Option<u64>,
}

/// A renewed lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewed {
    /// How long it lives from now on, by the server's clock.
    pub ttl: Duration,
    pub expires_at_unix: u64,
    pub expires_at_unix_ms: u64,
    /// The fencing token, which renewing does not change.
    pub token: Option<u64>,
}

/// Who may act: a context, and the guard's count of its time where there is a guard.
#[derive(Debug)]
pub(crate) struct Authority {
    client: Client,
    context: LeaseContext,
    tenure: Option<Arc<Tenure>>,
}

impl Authority {
    pub(crate) fn guarded(client: Client, context: LeaseContext, tenure: Arc<Tenure>) -> Self {
        Self { client, context, tenure: Some(tenure) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn context(&self) -> &LeaseContext {
        &self.context
    }

    /// A call on the key of this lease. Not made when the lease is known to be lost, and not
    /// repeated once it is.
    pub(crate) fn call(&self, path: &'static str) -> Result<Call, Failed> {
        let mut patience = self.client.patience();
        if let Some(tenure) = &self.tenure {
            if let Some(lost) = tenure.lost_yet() {
                return Err(Failure::new(Cause::Lost(lost)));
            }
            let tenure = Arc::clone(tenure);
            patience.worth = Some(Arc::new(move || tenure.is_held()));
        }
        let context = &self.context;
        let token = context.token.map(|token| token.to_string());
        Call::new(Method::POST, path, patience)
            .query("key", &context.key)
            .query_if("namespace", self.client.namespace_or(context.namespace.as_deref()))
            .header(header::LEASE_ID, &context.lease_id)?
            .header_if(header::TXN_ID, context.txn_id.as_deref())?
            .header_if(header::FENCING_TOKEN, token.as_deref())
    }

    /// Lets the guard know what a failure says about its lease.
    pub(crate) fn observe(&self, failure: Failed) -> Failed {
        if let Some(tenure) = &self.tenure {
            tenure.observe(&failure);
        }
        failure
    }

    pub(crate) fn wrote(&self, version: u64) {
        if let Some(tenure) = &self.tenure {
            tenure.wrote(version);
        }
    }
}

/// A lease without a guard: every call is made as it is.
#[derive(Clone, Debug)]
pub struct RawLease {
    authority: Arc<Authority>,
}

impl RawLease {
    pub(crate) fn new(client: Client, context: LeaseContext) -> Self {
        Self { authority: Arc::new(Authority { client, context, tenure: None }) }
    }

    pub fn context(&self) -> &LeaseContext {
        &self.authority.context
    }

    /// Gives the lease a new time to live; the server's default when none is named.
    ///
    /// # Errors
    /// When the lease is over, or no server could be asked.
    pub async fn keepalive(&self, ttl: Option<Duration>) -> Result<Renewed, Error<KeepaliveKind>> {
        let client = &self.authority.client;
        Ok(keepalive(client, &self.authority.context, ttl, client.patience()).await?)
    }

    /// Makes a guard of it: renews it once, and from then on by itself.
    pub fn resume(self) -> Resume {
        Resume { authority: self.authority, ttl: None, renew: true }
    }

    /// Reads the state, with what the lease has staged.
    pub fn get(&self) -> Get {
        Get::leased(Arc::clone(&self.authority))
    }

    /// Reads the state piece by piece.
    pub fn get_stream(&self) -> GetStream {
        GetStream::leased(Arc::clone(&self.authority))
    }

    /// Stages a new state.
    pub fn update<T: Serialize + ?Sized>(&self, value: &T) -> Update {
        Update::value(Arc::clone(&self.authority), value, Then::Stage)
    }

    /// Stages a new state that is read while it is sent.
    pub fn update_stream(&self, source: impl Into<Source>) -> Update {
        Update::source(Arc::clone(&self.authority), source.into(), Then::Stage)
    }

    /// Publishes a new state and ends the lease, in one step.
    pub fn finish_stream(&self, source: impl Into<Source>) -> Update {
        Update::source(Arc::clone(&self.authority), source.into(), Then::Release)
    }

    /// Stages changes to the state, made on the server.
    pub fn mutate<I>(&self, expressions: I) -> Mutate
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let expressions = expressions.into_iter().map(|text| text.as_ref().to_owned()).collect();
        Mutate::new(Arc::clone(&self.authority), expressions)
    }

    /// Bytes of any kind beside the state.
    pub fn attachments(&self) -> Attachments {
        Attachments::of(&self.authority)
    }

    /// Stages the removal of the state.
    pub fn remove(&self) -> Remove {
        Remove::new(Arc::clone(&self.authority))
    }

    /// Stages new attributes.
    pub fn metadata(&self, metadata: wire::state::Metadata) -> SetMetadata {
        SetMetadata::new(Arc::clone(&self.authority), metadata)
    }

    /// Commits what is staged and ends the lease.
    pub fn release(&self) -> Release {
        Release::raw(Arc::clone(&self.authority), false)
    }

    /// Forgets what is staged and ends the lease.
    pub fn rollback(&self) -> Release {
        Release::raw(Arc::clone(&self.authority), true)
    }
}

/// Makes a guard of a lease that was granted elsewhere.
#[derive(Debug)]
#[must_use = "nothing happens before it is awaited"]
pub struct Resume {
    authority: Arc<Authority>,
    ttl: Option<Duration>,
    renew: bool,
}

impl Resume {
    /// How long the lease lives without renewal; the server's default when not set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Whether the guard renews the lease by itself, which it does unless told otherwise.
    pub fn renew(mut self, renew: bool) -> Self {
        self.renew = renew;
        self
    }

    async fn start(self) -> Result<Lease, Error<KeepaliveKind>> {
        let (client, context) = (&self.authority.client, &self.authority.context);
        let known = client.describe(context.namespace.as_deref(), &context.key).await;
        let sent = client.clock().now();
        let renewed = keepalive(client, context, self.ttl, client.patience()).await?;
        let (owner, version, etag, namespace) = match known {
            Ok(known) => (known.owner, known.version, known.state_etag, Some(known.namespace)),
            Err(_) => (None, 0, None, context.namespace.clone()),
        };
        let token = context.token.or(renewed.token);
        let grant = Grant {
            context: LeaseContext { namespace, token, ..context.clone() },
            owner: owner.unwrap_or_default(),
            version,
            etag,
            ttl: renewed.ttl,
            expires_at_unix: renewed.expires_at_unix,
            expires_at_unix_ms: renewed.expires_at_unix_ms,
            correlation_id: String::new(),
        };
        Ok(Lease::start(client.clone(), grant, sent, self.renew)?)
    }
}

impl IntoFuture for Resume {
    type Output = Result<Lease, Error<KeepaliveKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}

/// Renews a lease. Sent again freely: the last one to arrive counts.
pub(crate) async fn keepalive(
    client: &Client,
    context: &LeaseContext,
    ttl: Option<Duration>,
    patience: Patience,
) -> Result<Renewed, Failed> {
    let asked = WireSpan::ttl(ttl)?;
    let request = KeepaliveRequest {
        namespace: client.namespace_or(context.namespace.as_deref()).map(str::to_owned),
        key: Some(context.key.clone()).filter(|key| !key.is_empty()),
        lease_id: context.lease_id.clone(),
        ttl_seconds: asked.seconds,
        ttl_ms: asked.ms,
        txn_id: context.txn_id.clone(),
    };
    let token = context.token.map(|token| token.to_string());
    let call = Call::new(Method::POST, path::KEEPALIVE, patience)
        .naming("namespace", request.namespace.as_deref())
        .naming("lease id", Some(&request.lease_id))
        .header_if(header::FENCING_TOKEN, token.as_deref())?
        .json(&request)?;
    let loaded = client.fetch(&call).await?;
    let reply: KeepaliveReply = loaded.json()?;
    let told = (reply.ttl_ms, reply.expires_at_unix_ms);
    let time = granted(&loaded.head, told, reply.expires_at_unix, ttl)?;
    client.settings().caps.check(Limit::Ttl, ttl, time.ttl);
    Ok(Renewed {
        ttl: time.ttl,
        expires_at_unix: reply.expires_at_unix,
        expires_at_unix_ms: time.expires_at_unix_ms,
        token: loaded.head.number(header::FENCING_TOKEN),
    })
}

/// Without the lease id, which is a secret.
impl fmt::Debug for LeaseContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseContext")
            .field("namespace", &self.namespace)
            .field("key", &self.key)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
