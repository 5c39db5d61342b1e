//! Only answers that the API gives: nothing garbled, nothing internal, no refusal that a client of
//! good faith cannot earn.

use super::facts::{Facts, number};
use crate::answer::Answer;
use crate::call::Ask;

const EXPECTED: &[&str] = &[
    "waiting",
    "already_exists",
    "version_conflict",
    "lease_required",
    "lease_expired",
    "revoked",
    "fencing_mismatch",
    "fence_failed",
    "txn_conflict",
    "store_unavailable",
    "cas_mismatch",
    "read_conflict",
    "shutdown_draining",
];

pub(super) fn no_surprising_answers(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for op in &facts.history.ops {
        let Some(refused) = op.answer().and_then(Answer::refused) else { continue };
        // A document that can no longer be read breaks off; there is no way to say more.
        let reads = matches!(op.ask, Ask::Get { .. } | Ask::View { .. } | Ask::Read { .. });
        let broke_off = reads && refused.code == "broken";
        if !broke_off && !EXPECTED.contains(&refused.code.as_str()) {
            let number = number(facts.history, op);
            wrong.push(format!("{number} heard {}: {}", refused.code, refused.detail));
        }
    }
    wrong
}
