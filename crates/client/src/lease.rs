//! The guard of a lease: renews itself, tells when it is lost, and lets go when dropped.
//!
//! Nothing here blocks, and nothing pretends: a dropped guard hands a rollback to a task in the
//! background and may fail to deliver it; then the lease runs out by itself.

mod farewell;
mod keeper;
mod lost;
mod tenure;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::acquire::Grant;
use crate::attachment::Attachments;
use crate::client::Client;
use crate::clock::Moment;
use crate::context::{Authority, LeaseContext};
use crate::error::{Failed, Failure};
use crate::read::{Get, GetStream};
use crate::release::Release;
use crate::update::{Finish, Then, Update};
use crate::write::{Mutate, Remove, SetMetadata};
use crate::{Source, wire};

pub(crate) use farewell::{Unanswered, Unguarded};
use keeper::Keeper;
pub use lost::{Lost, LostReason};
pub(crate) use tenure::Tenure;

/// A lease that is held, until it is released, lost or dropped.
///
/// Dropping it rolls back what was staged, on a best-effort basis and without waiting.
pub struct Lease {
    authority: Arc<Authority>,
    tenure: Arc<Tenure>,
    grant: Grant,
    runtime: Handle,
    /// Ends with the task that renews.
    kept: CancellationToken,
}

impl Lease {
    /// Starts to guard a lease that was granted, or renewed, by a request sent at `counted_from`.
    pub(crate) fn start(
        client: Client,
        grant: Grant,
        counted_from: Moment,
        renew: bool,
    ) -> Result<Self, Failed> {
        let runtime = Handle::try_current()
            .map_err(|error| Failure::invalid("a lease needs a runtime").because(error))?;
        let clock = client.clock().clone();
        let tenure = Arc::new(Tenure::new(clock, counted_from, grant.ttl, grant.version));
        let kept = CancellationToken::new();
        if renew {
            let (client, context) = (client.clone(), grant.context.clone());
            let keeper = Keeper { client, context, tenure: Arc::clone(&tenure), ttl: grant.ttl };
            let ends = kept.clone().drop_guard();
            runtime.spawn(async move {
                let _ends = ends;
                keeper.keep(counted_from).await;
            });
        } else {
            kept.cancel();
        }
        let authority = Authority::guarded(client, grant.context.clone(), Arc::clone(&tenure));
        Ok(Self { authority: Arc::new(authority), tenure, grant, runtime, kept })
    }

    /// The fencing token: grows with every grant of the key. Send it with every write to places
    /// outside of lockd, and have them refuse lower ones.
    pub fn token(&self) -> u64 {
        self.grant.context.token.unwrap_or_default()
    }

    /// The version of the state as this lease last saw it: at the grant, or after its own write.
    pub fn version(&self) -> u64 {
        self.tenure.version()
    }

    pub fn key(&self) -> &str {
        &self.grant.context.key
    }

    pub fn namespace(&self) -> &str {
        self.grant.context.namespace.as_deref().unwrap_or_default()
    }

    pub fn owner(&self) -> &str {
        &self.grant.owner
    }

    /// The server's answer to the acquire.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// What another process needs to act under this lease. A secret.
    pub fn context(&self) -> &LeaseContext {
        &self.grant.context
    }

    /// Whether it is certainly held at this moment, by this machine's own count.
    pub fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    /// How long it is certainly held if it is not renewed again; zero when it is not held.
    pub fn expires_in(&self) -> Duration {
        self.tenure.remaining()
    }

    /// Waits until the lease is over, and tells when and why. The future stands on its own: it can
    /// be moved to another task and outlives the guard.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static {
        let tenure = Arc::clone(&self.tenure);
        async move { tenure.lost().await }
    }

    /// What became of the lease, if it is over.
    pub fn lost_yet(&self) -> Option<Lost> {
        self.tenure.lost_yet()
    }

    /// Reads the state, with what this lease has staged.
    pub fn get(&self) -> Get {
        Get::leased(Arc::clone(&self.authority))
    }

    /// Reads the state piece by piece.
    pub fn get_stream(&self) -> GetStream {
        GetStream::leased(Arc::clone(&self.authority))
    }

    /// Stages a new state. It becomes visible when the lease is released.
    pub fn update<T: Serialize + ?Sized>(&self, value: &T) -> Update {
        Update::value(Arc::clone(&self.authority), value, Then::Stage)
    }

    /// Stages a new state that is JSON already.
    pub fn update_json_bytes(&self, json: impl Into<bytes::Bytes>) -> Update {
        Update::source(Arc::clone(&self.authority), Source::bytes(json), Then::Stage)
    }

    /// Stages a new state that is read while it is sent.
    pub fn update_stream(&self, source: impl Into<Source>) -> Update {
        Update::source(Arc::clone(&self.authority), source.into(), Then::Stage)
    }

    /// Publishes a new state at once and keeps the lease.
    pub fn checkpoint<T: Serialize + ?Sized>(&self, value: &T) -> Update {
        Update::value(Arc::clone(&self.authority), value, Then::Commit)
    }

    /// Publishes a new state and releases the lease, in one step. When it fails the lease is let
    /// go of as if dropped.
    pub fn finish<T: Serialize + ?Sized>(self, value: &T) -> Finish {
        let update = Update::value(Arc::clone(&self.authority), value, Then::Release);
        Finish::new(self, update)
    }

    /// As [`Lease::finish`], with a state that is read while it is sent.
    pub fn finish_stream(self, source: impl Into<Source>) -> Finish {
        let update = Update::source(Arc::clone(&self.authority), source.into(), Then::Release);
        Finish::new(self, update)
    }

    /// Stages changes to the state, made on the server: `lease.mutate(["/count++"])`.
    pub fn mutate<I>(&self, expressions: I) -> Mutate
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let expressions = expressions.into_iter().map(|text| text.as_ref().to_owned()).collect();
        Mutate::new(Arc::clone(&self.authority), expressions)
    }

    /// Stages the removal of the state.
    pub fn remove(&self) -> Remove {
        Remove::new(Arc::clone(&self.authority))
    }

    /// Bytes of any kind beside the state.
    pub fn attachments(&self) -> Attachments {
        Attachments::of(&self.authority)
    }

    /// Stages new attributes.
    pub fn metadata(&self, metadata: wire::state::Metadata) -> SetMetadata {
        SetMetadata::new(Arc::clone(&self.authority), metadata)
    }

    /// Commits what is staged and ends the lease.
    pub fn release(self) -> Release {
        Release::guarded(self, false)
    }

    /// Forgets what is staged and ends the lease.
    pub fn rollback(self) -> Release {
        Release::guarded(self, true)
    }

    pub(crate) fn authority(&self) -> &Arc<Authority> {
        &self.authority
    }

    pub(crate) fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Stops renewing, and waits until no renewal is under way any more.
    pub(crate) async fn stop_renewing(&self) {
        self.tenure.leave();
        self.kept.cancelled().await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.tenure.lost_yet().is_some() || !self.tenure.leave() {
            return;
        }
        let (client, context) = (self.authority.client(), self.grant.context.clone());
        farewell::part(client, context, &self.runtime, Arc::clone(&self.tenure));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("namespace", &self.namespace())
            .field("key", &self.key())
            .field("token", &self.token())
            .field("expires_in", &self.expires_in())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
