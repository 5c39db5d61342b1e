//! Letting go of a lease, with or without what was staged.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use http::Method;
use lockd_wire::lease::{ReleaseReply, ReleaseRequest};
use lockd_wire::{header, path};

use crate::call::{Call, Patience, new_request_id};
use crate::client::Client;
use crate::context::{Authority, LeaseContext};
use crate::error::{Error, Failed, Failure, ReleaseKind};
use crate::lease::{Lease, LostReason};
use crate::write::{Fence, fences};

/// Ends a lease; await it.
#[derive(Debug)]
#[must_use = "nothing is released before it is awaited"]
pub struct Release {
    holder: Holder,
    rollback: bool,
    fences: Vec<Fence>,
    name: Option<String>,
}

#[derive(Debug)]
enum Holder {
    /// Guards of one transaction; the first is the one that is released.
    Guards(Vec<Lease>),
    Raw(Arc<Authority>),
}

impl Release {
    pub(crate) fn guarded(lease: Lease, rollback: bool) -> Self {
        Self::new(Holder::Guards(vec![lease]), rollback)
    }

    /// Ends all leases of a transaction by letting go of the first.
    pub(crate) fn all(leases: impl IntoIterator<Item = Lease>, rollback: bool) -> Self {
        Self::new(Holder::Guards(leases.into_iter().collect()), rollback)
    }

    pub(crate) fn raw(authority: Arc<Authority>, rollback: bool) -> Self {
        Self::new(Holder::Raw(authority), rollback)
    }

    fn new(holder: Holder, rollback: bool) -> Self {
        Self { holder, rollback, fences: Vec::new(), name: None }
    }

    /// Only if the other lease is still the latest of its key, tested in the same step.
    pub fn fenced_by(self, other: &Lease) -> Self {
        let full_name = format!("{}/{}", other.namespace(), other.key());
        self.fence(full_name, other.token())
    }

    /// Only if the latest token of that key, written `namespace/key`, is still this one.
    pub fn fence(mut self, full_name: impl Into<String>, token: u64) -> Self {
        self.fences.push(Fence { full_name: full_name.into(), token });
        self
    }

    /// Names the request, so that it can be made again. Drawn at random when not set.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.name = Some(key.into());
        self
    }

    async fn send(self) -> Result<(), Error<ReleaseKind>> {
        let name = self.name.unwrap_or_else(new_request_id);
        match self.holder {
            Holder::Raw(authority) => {
                let (client, context) = (authority.client(), authority.context());
                let patience = client.patience();
                send(client, context, self.rollback, &self.fences, &name, patience).await?;
            }
            // Dropped at the end: what is not over by then is tried to be rolled back.
            Holder::Guards(leases) => {
                let Some(first) = leases.first() else {
                    let why = "a transaction is decided by letting go of a key: give its leases";
                    return Err(Failure::invalid(why).into());
                };
                for lease in &leases {
                    lease.stop_renewing().await;
                }
                let authority = first.authority();
                let (client, context) = (authority.client(), authority.context());
                let patience = client.patience();
                let sent =
                    send(client, context, self.rollback, &self.fences, &name, patience).await;
                settle(&leases, sent)?;
            }
        }
        Ok(())
    }
}

/// Tells the guards how their release went.
fn settle(leases: &[Lease], sent: Result<(), Failed>) -> Result<(), Failed> {
    let over = match &sent {
        Ok(()) => Some(LostReason::Released),
        Err(failure) => failure.refusal().and_then(LostReason::told_by),
    };
    if let Some(over) = over {
        for lease in leases {
            lease.tenure().end(over.clone());
        }
    }
    sent
}

impl IntoFuture for Release {
    type Output = Result<(), Error<ReleaseKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

pub(crate) async fn send(
    client: &Client,
    context: &LeaseContext,
    rollback: bool,
    conditions: &[Fence],
    name: &str,
    patience: Patience,
) -> Result<(), Failed> {
    let request = ReleaseRequest {
        namespace: client.namespace_or(context.namespace.as_deref()).map(str::to_owned),
        key: Some(context.key.clone()).filter(|key| !key.is_empty()),
        lease_id: context.lease_id.clone(),
        txn_id: context.txn_id.clone(),
        rollback,
    };
    let token = context.token.map(|token| token.to_string());
    let call = Call::new(Method::POST, path::RELEASE, patience)
        .naming("namespace", request.namespace.as_deref())
        .naming("lease id", Some(&request.lease_id))
        .named(name)?
        .header_if(header::FENCING_TOKEN, token.as_deref())?;
    let call = fences(call, conditions)?.json(&request)?;
    let reply: ReleaseReply = client.fetch(&call).await?.json()?;
    if reply.released {
        Ok(())
    } else {
        Err(Failure::garbled("it neither released the lease nor said why"))
    }
}
