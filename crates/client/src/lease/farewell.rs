//! The best-effort release of a lease that nobody holds on to any more.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::lost::LostReason;
use super::tenure::Tenure;
use crate::call::new_request_id;
use crate::client::Client;
use crate::clock::Moment;
use crate::context::LeaseContext;
use crate::release;

const LONGEST: Duration = Duration::from_secs(5);
const PASSES: u32 = 3;

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
    patience.until = Some(deadline.min(client.clock().now().plus(LONGEST)));
    let name = new_request_id();
    if let Err(failure) = release::send(client, context, true, &[], &name, patience).await {
        tracing::debug!(key = context.key, %failure, "dropped lease not released");
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
