//! Extends the time of one message in the background, as long as the work on it goes on.
//!
//! Half of the visibility after the last extension it asks for the next, and goes on asking until
//! it succeeds, is told that the message is gone, or the time is over.

use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use crate::call::Patience;
use crate::lease::{LostReason, Tenure};
use crate::retry::jittered;

const PAUSE_MAX: Duration = Duration::from_secs(2);

pub(super) struct Extender {
    pub(super) hold: Arc<Hold>,
    pub(super) tenure: Arc<Tenure>,
    pub(super) visibility: Duration,
    /// Without progress for so long, nothing is extended.
    pub(super) stalled_after: Option<Duration>,
}

impl Extender {
    /// Runs until there is nothing left to extend.
    pub(super) async fn run(self) {
        let left = Arc::clone(&self.tenure);
        tokio::select! {
            biased;
            () = left.left() => {}
            () = self.extend() => {}
        }
    }

    async fn extend(&self) {
        let clock = self.hold.client().clock();
        let mut due = clock.now().plus(self.visibility / 2);
        loop {
            let deadline = self.tenure.deadline();
            clock.sleep_until(due.min(deadline)).await;
            if clock.now() >= deadline {
                return self.expire();
            }
            if self.stalled().is_some() {
                // It may yet go on before the time is over.
                due = clock.now().plus(self.pause());
                continue;
            }
            let sent = clock.now();
            match self.hold.extend(Some(self.visibility), self.patience()).await {
                Ok(extended) => due = sent.plus(extended.visibility / 2),
                Err(failure) => {
                    self.tenure.renewal_failed(&failure);
                    let message_id = self.hold.receipt().message_id;
                    tracing::debug!(message_id, %failure, "message not extended");
                    due = clock.now().plus(jittered(self.pause()));
                }
            }
        }
    }

    fn expire(&self) {
        match self.stalled() {
            Some(still) => {
                let detail = format!("there was no progress for {still:?}");
                self.tenure.lose(LostReason::Expired, detail);
            }
            None => self.tenure.expire(),
        }
    }

    /// For how long nothing has moved, if that is too long.
    fn stalled(&self) -> Option<Duration> {
        let longest = self.stalled_after?;
        Some(self.hold.stood_still()).filter(|still| *still >= longest)
    }

    fn pause(&self) -> Duration {
        (self.visibility / 10).clamp(Duration::from_millis(1), PAUSE_MAX)
    }

    /// One pass over the servers, short enough that others can be asked before time is over.
    fn patience(&self) -> Patience {
        let client = self.hold.client();
        let share = (self.visibility / 4 / client.servers()).max(self.visibility / 12);
        Patience {
            silence: Some(client.settings().timeout.min(share)),
            passes: 1,
            passes_reached: 1,
            until: Some(self.tenure.deadline()),
            worth: None,
        }
    }
}
