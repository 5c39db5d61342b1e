//! The checker: named invariants over a history, each a function of its own. It sees what clients
//! saw and what befell the server, nothing else, so it judges every server that was ever asked.

mod chain;
mod facts;
mod fence;
mod hold;
mod line;
mod read;
mod repeat;
mod sane;
mod token;
mod version;
mod visible;
mod watch;

use std::fmt;

use crate::history::History;
use facts::Facts;

/// An invariant that does not hold, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

type Invariant = fn(&Facts<'_>) -> Vec<String>;

/// Every invariant, by name.
const INVARIANTS: &[(&str, Invariant)] = &[
    ("one_holder_at_a_time", hold::one_holder_at_a_time),
    ("a_live_lease_is_honoured", hold::a_live_lease_is_honoured),
    ("an_ended_lease_stays_ended", hold::an_ended_lease_stays_ended),
    ("tokens_strictly_grow", token::tokens_strictly_grow),
    ("versions_grow_by_one", version::versions_grow_by_one),
    ("acked_write_survives", version::acked_write_survives),
    ("one_document_per_version", version::one_document_per_version),
    ("lost_lease_write_never_visible", visible::lost_lease_write_never_visible),
    (
        "refused_or_unanswered_write_is_whole_or_absent",
        visible::refused_or_unanswered_write_is_whole_or_absent,
    ),
    ("nothing_shown_then_gone", read::nothing_shown_then_gone),
    ("reads_are_of_one_moment", read::reads_are_of_one_moment),
    ("a_holder_sees_its_own_writes", read::a_holder_sees_its_own_writes),
    ("fence_conditions_hold", fence::fence_conditions_hold),
    ("same_request_same_answer", repeat::same_request_same_answer),
    ("waiters_in_order", line::waiters_in_order),
    ("nobody_is_forgotten", line::nobody_is_forgotten),
    ("watchers_hear_everything_in_order", watch::watchers_hear_everything_in_order),
    ("no_surprising_answers", sane::no_surprising_answers),
];

/// The names of all invariants.
pub fn names() -> impl Iterator<Item = &'static str> {
    INVARIANTS.iter().map(|(name, _)| *name)
}

/// Everything that is wrong with a history.
#[must_use]
pub fn judge(history: &History) -> Vec<Violation> {
    let facts = Facts::of(history);
    let judged = INVARIANTS.iter().flat_map(|(invariant, judge)| {
        judge(&facts).into_iter().map(|detail| Violation { invariant, detail })
    });
    judged.collect()
}
