//! Why something is not done. Refusals are answers: they carry what the caller needs next.

use lockd_wire::job::{STALE_EPOCH, StaleEpoch};

use crate::job::SpecRefused;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// This controller does not lead, or not any more.
    NotLeader,
    /// Of a leader or an attempt that is over.
    StaleEpoch(Box<StaleEpoch>),
    NotFound(&'static str),
    JobOver,
    AgentDeleted,
    /// The key is no key.
    Key,
    /// Another job came under that key.
    KeyReused,
    Spec(SpecRefused),
    /// What was sent cannot be used.
    Invalid(String),
    TooManyJobs,
    TooManyAgents,
    TooManyWaiters,
    /// The store did not say what became of the change: it may have happened.
    Unknown,
    /// The store cannot be asked; nothing was changed.
    Unavailable,
    /// What is kept cannot be read.
    Damaged,
}

impl Refusal {
    /// Under this epoch, if any; the rest is told where it is known.
    pub(crate) fn stale(leader_epoch: Option<u64>, detail: &str) -> Self {
        Self::StaleEpoch(Box::new(StaleEpoch {
            error: STALE_EPOCH.into(),
            detail: detail.into(),
            leader_epoch,
            ..StaleEpoch::default()
        }))
    }
}
