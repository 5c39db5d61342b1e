//! Renews one lease in the background, from grant to loss or release.
//!
//! A third of the time to live after the last renewal it asks for the next, and goes on asking
//! until it succeeds, is told that the lease is gone, or the time is over. It stops the moment the
//! lease is being let go of, with whatever is under way.

use std::sync::Arc;
use std::time::Duration;

use super::tenure::Tenure;
use crate::call::Patience;
use crate::client::Client;
use crate::clock::Moment;
use crate::context::{LeaseContext, keepalive};
use crate::retry::jittered;

const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Keeper {
    pub(super) client: Client,
    pub(super) context: LeaseContext,
    pub(super) tenure: Arc<Tenure>,
    pub(super) ttl: Duration,
}

impl Keeper {
    /// Runs until there is nothing left to keep. `counted_from` is that of the grant.
    pub(super) async fn keep(self, counted_from: Moment) {
        let left = Arc::clone(&self.tenure);
        tokio::select! {
            biased;
            () = left.left() => {}
            () = self.renew(counted_from) => {}
        }
    }

    async fn renew(&self, counted_from: Moment) {
        let clock = self.client.clock();
        let mut due = counted_from.plus(self.ttl / 3);
        loop {
            let deadline = self.tenure.deadline();
            clock.sleep_until(due.min(deadline)).await;
            if clock.now() >= deadline {
                return self.tenure.expire();
            }
            let sent = clock.now();
            match keepalive(&self.client, &self.context, Some(self.ttl), self.patience()).await {
                Ok(renewed) => {
                    self.tenure.extend(sent, renewed.ttl);
                    due = sent.plus(renewed.ttl / 3);
                }
                Err(failure) => {
                    self.tenure.renewal_failed(&failure);
                    tracing::debug!(key = self.context.key, %failure, "lease not renewed");
                    due = clock.now().plus(jittered((self.ttl / 10).min(PAUSE_MAX)));
                }
            }
        }
    }

    /// One pass over the servers, short enough that others can be asked before time is over.
    fn patience(&self) -> Patience {
        let share = (self.ttl / 3 / self.client.servers()).max(self.ttl / 12);
        Patience {
            silence: Some(self.client.settings().timeout.min(share)),
            passes: 1,
            passes_reached: 1,
            until: Some(self.tenure.deadline()),
            worth: None,
        }
    }
}
