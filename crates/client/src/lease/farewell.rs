//! The best-effort release of a lease that nobody holds on to any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::lost::LostReason;
use super::tenure::Tenure;
use crate::acquire::Grant;
use crate::call::{Call, new_request_id};
use crate::client::Client;
use crate::clock::Moment;
use crate::context::LeaseContext;
use crate::error::Failed;
use crate::release;
use crate::reply::Loaded;

const LONGEST: Duration = Duration::from_secs(5);
const PASSES: u32 = 3;
/// How long a dropped acquire is asked once more: enough for an answer that is there.
const ASK_AGAIN_MAX: Duration = Duration::from_millis(500);

/// Rolls a lease back in the background; the caller does not wait.
pub(super) fn part(client: &Client, context: LeaseContext, runtime: &Handle, tenure: Arc<Tenure>) {
    let from = client.clone();
    client.spawn_farewell(runtime, async move {
        send(&from, &context, tenure.deadline()).await;
        tenure.end(LostReason::Released);
    });
}

async fn send(client: &Client, context: &LeaseContext, deadline: Moment) {
    let mut patience = client.patience();
    patience.silence = Some(client.settings().timeout.min(LONGEST));
    patience.passes = PASSES;
    patience.passes_reached = PASSES;
    patience.until = Some(deadline.min(client.clock().now().plus(LONGEST)));
    let name = new_request_id();
    if let Err(failure) = release::send(client, context, true, &[], &name, patience).await {
        tracing::debug!(key = context.key, %failure, "dropped lease not released");
    }
}

/// An acquire that is under way; dropped before the answer, it is asked once more under the same
/// name, and what it was granted is released. Otherwise a grant that crossed the drop would block
/// the key until it runs out.
pub(crate) struct Unanswered {
    client: Client,
    call: Arc<Call>,
    runtime: Option<Handle>,
    armed: bool,
}

impl Unanswered {
    pub(crate) fn new(client: Client, call: Call) -> Self {
        let runtime = Handle::try_current().ok();
        Self { client, call: Arc::new(call), runtime, armed: true }
    }

    /// There is nothing to ask for any more.
    pub(crate) fn answered(&mut self) {
        self.armed = false;
    }

    pub(crate) async fn fetch(mut self) -> Result<Loaded, Failed> {
        let loaded = self.client.fetch(&self.call).await;
        self.answered();
        loaded
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let (true, Some(runtime)) = (self.armed, &self.runtime) else { return };
        let (client, call) = (self.client.clone(), Arc::clone(&self.call));
        self.client.spawn_farewell(runtime, async move {
            let again = tokio::time::timeout(ASK_AGAIN_MAX, client.fetch(&call)).await;
            let Ok(Ok(loaded)) = again else { return };
            let Ok(grant) = Grant::read(&loaded, None) else { return };
            send(&client, &grant.context, client.clock().now().plus(grant.ttl)).await;
        });
    }
}

/// A lease that was granted but is not guarded yet; dropped, it is released.
pub(crate) struct Unguarded {
    client: Client,
    context: Option<LeaseContext>,
    runtime: Option<Handle>,
    ttl: Duration,
}

impl Unguarded {
    pub(crate) fn new(client: Client, context: LeaseContext, ttl: Duration) -> Self {
        Self { client, context: Some(context), runtime: Handle::try_current().ok(), ttl }
    }

    /// Somebody else looks after it now.
    pub(crate) fn hand_over(mut self) {
        self.context = None;
    }
}

impl Drop for Unguarded {
    fn drop(&mut self) {
        let (Some(context), Some(runtime)) = (self.context.take(), &self.runtime) else { return };
        let client = self.client.clone();
        // When it was granted is not known; the server knows whether it is over.
        let deadline = client.clock().now().plus(self.ttl);
        self.client.spawn_farewell(runtime, async move {
            send(&client, &context, deadline).await;
        });
    }
}
