//! Conditions on other keys' tokens: what was committed under one must not have been committed
//! after that token was certainly gone.

use super::facts::{Facts, number};
use crate::answer::Answer;
use crate::call::{Ask, Fence, NAMESPACE, Then};
use crate::history::{Moment, Op};

pub(super) fn fence_conditions_hold(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for lease in facts.all_leases() {
        // Conditions of staged writes are tested again when those are committed.
        let mut staged: Vec<&Fence> = Vec::new();
        let mut certain = true;
        for op in &lease.ops {
            certain &= !op.is_open();
            let (fences, commits) = match &op.ask {
                Ask::Write(write) => (write.fences.as_slice(), write.then != Then::Stage),
                Ask::Release(release) => (release.fences.as_slice(), !release.rollback),
                _ => continue,
            };
            if !op.is_done() || facts.is_repeat(op) {
                continue;
            }
            // A release that finds its lease over tests nothing.
            let commit = lease.chain.commits.iter().any(|commit| commit.by.sent == op.sent);
            let tests = matches!(op.ask, Ask::Write(_)) || commit;
            let kept = staged.iter().copied().filter(|_| commits && certain);
            for fence in fences.iter().filter(|_| tests).chain(kept) {
                if is_gone(facts, fence, op.sent) {
                    let number = number(facts.history, op);
                    let Fence { name, token } = fence;
                    wrong.push(format!("{number} was done after token {token} of {name} was gone"));
                }
            }
            if commits || matches!(op.ask, Ask::Release(_)) {
                staged.clear();
            } else if !matches!(op.answer(), Some(Answer::Removed { version: None })) {
                staged.extend(fences);
            }
        }
    }
    wrong
}

/// Whether a higher token was known before that moment.
fn is_gone(facts: &Facts<'_>, fence: &Fence, by: Moment) -> bool {
    let key = fence.name.strip_prefix(NAMESPACE).and_then(|rest| rest.strip_prefix('/'));
    let shows = |op: &Op| {
        let (heard, answer) = op.heard.as_ref()?;
        let token = match (&op.ask, answer) {
            (Ask::Acquire(ask), Answer::Granted { held, .. }) if Some(&*ask.key) == key => {
                held.token
            }
            (Ask::Revoke { key: other, .. }, Answer::Revoked { token, .. })
                if Some(&**other) == key =>
            {
                *token
            }
            _ => return None,
        };
        (*heard < by).then_some(token)
    };
    facts.history.ops.iter().filter_map(shows).any(|token| token > fence.token)
}
