//! The agent as a whole: from its start to its end.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Clock;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::ask;
use crate::call::Controllers;
use crate::settings::{AgentSettings, SettingsError};

/// What is killed at the end of the grace is gone, and told, within this.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// How far an agent is. Only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Working,
    /// It asks for no more work.
    Leaving,
    /// Jobs are asked to end.
    Ending,
    /// They are killed.
    Over,
}

/// What all parts of an agent know.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) settings: AgentSettings,
    pub(crate) controllers: Controllers,
    pub(crate) clock: Clock,
    pub(crate) incarnation: String,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) jobs: TaskTracker,
    pub(crate) dismissed: CancellationToken,
    phase: watch::Sender<Phase>,
}

impl Shared {
    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_further = to > *phase;
            *phase = to.max(*phase);
            is_further
        });
    }
}

/// Until the agent is so far.
pub(crate) async fn reached(mut phase: watch::Receiver<Phase>, at: Phase) {
    // Nobody is left to say so: then it is over.
    let _nobody = phase.wait_for(|now| *now >= at).await.is_err();
}

/// An agent that works, until it is stopped. Dropped, all its jobs are killed.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    asker: TaskTracker,
}

impl Agent {
    /// Starts to ask for work, in the background.
    ///
    /// # Errors
    /// When the settings are wrong.
    pub fn start(settings: AgentSettings) -> Result<Self, SettingsError> {
        settings.check()?;
        let shared = Arc::new(Shared {
            controllers: Controllers::new(&settings)?,
            clock: Clock::Boot,
            incarnation: format!("{:032x}", rand::random::<u128>()),
            slots: Arc::new(Semaphore::new(settings.slots)),
            jobs: TaskTracker::new(),
            dismissed: CancellationToken::new(),
            phase: watch::Sender::new(Phase::Working),
            settings,
        });
        let asker = TaskTracker::new();
        asker.spawn(ask::keep_asking(Arc::clone(&shared)));
        Ok(Self { shared, asker })
    }

    /// How many jobs it has.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.shared.jobs.len()
    }

    /// Until a controller says that this agent was deleted: then it gets no more work. What it has
    /// goes on.
    pub async fn dismissed(&self) {
        self.shared.dismissed.cancelled().await;
    }

    /// Asks for no more work and lets jobs end for two thirds of the grace. Then they are asked to
    /// end; those that do not are killed when the grace is over. What was not done is given back.
    pub async fn stop(&self) {
        let (shared, grace) = (&self.shared, self.shared.settings.grace);
        self.asker.close();
        shared.jobs.close();
        for (phase, within) in [
            (Phase::Leaving, grace * 2 / 3),
            (Phase::Ending, grace / 3),
            (Phase::Over, GONE_WITHIN),
        ] {
            shared.advance(phase);
            if tokio::time::timeout(within, self.ended()).await.is_ok() {
                return;
            }
        }
        tracing::warn!(jobs = self.busy(), "jobs could not be ended in time");
    }

    async fn ended(&self) {
        // Only the asker begins jobs.
        self.asker.wait().await;
        self.shared.jobs.wait().await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.shared.advance(Phase::Over);
    }
}
