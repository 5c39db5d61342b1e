//! What may be seen by others: whole documents, and only those whose writer held the key when they
//! were committed.

use super::facts::{Facts, Lease, Text, number};
use crate::answer::Answer;
use crate::call::{Ask, Then};
use crate::history::Op;

/// Documents that were shown to others than their writer, with who was shown them.
fn shown<'a>(facts: &Facts<'a>) -> Vec<(&'a Op, &'a str, &'a str)> {
    let mut shown = Vec::new();
    for op in &facts.history.ops {
        match (&op.ask, op.answer()) {
            (Ask::Get { key }, Some(Answer::Document(Some(seen)))) => {
                shown.push((op, key.as_str(), &*seen.text));
            }
            (Ask::View { key: Some(key), held }, Some(Answer::Document(Some(seen)))) => {
                let text = facts.texts.get(&*seen.text);
                if text.is_none_or(|text| text.lease_id != held.lease_id) {
                    shown.push((op, key.as_str(), &*seen.text));
                }
            }
            (Ask::Read { .. }, Some(Answer::Entries(entries))) => {
                let texts = entries.iter().filter_map(|entry| {
                    entry.text.as_deref().map(|text| (op, entry.key.as_str(), text))
                });
                shown.extend(texts);
            }
            _ => {}
        }
    }
    shown
}

pub(super) fn refused_or_unanswered_write_is_whole_or_absent(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (op, key, seen) in shown(facts) {
        let number = number(facts.history, op);
        match facts.texts.get(seen) {
            Some(text) if text.key == key => {
                if text.carriers.iter().all(|carrier| carrier.is_refused()) {
                    wrong.push(format!("{number} was shown what was refused"));
                }
            }
            Some(_) | None => {
                let begins = seen.get(..seen.len().min(40)).unwrap_or_default();
                wrong.push(format!("{number} was shown what nobody wrote to {key}: {begins}"));
            }
        }
    }
    wrong
}

pub(super) fn lost_lease_write_never_visible(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (op, _, seen) in shown(facts) {
        let Some(text) = facts.texts.get(seen) else { continue };
        let lease = facts.all_leases().find(|lease| lease.held.lease_id == text.lease_id);
        if !lease.is_some_and(|lease| may_be_committed(facts, lease, text)) {
            let number = number(facts.history, op);
            wrong.push(format!("{number} was shown what was never committed under its lease"));
        }
    }
    wrong
}

/// Whether anything asked while the lease was not over can have committed the document.
fn may_be_committed(facts: &Facts<'_>, lease: &Lease<'_>, text: &Text<'_>) -> bool {
    let in_time = |op: &Op| !op.is_refused() && !facts.is_over(lease, op.sent);
    text.carriers.iter().any(|carrier| {
        let Ask::Write(write) = &carrier.ask else { return false };
        if !in_time(carrier) {
            return false;
        }
        if write.then != Then::Stage {
            return true;
        }
        lease.ops.iter().any(|op| match &op.ask {
            Ask::Release(release) => !release.rollback && op.sent > carrier.sent && in_time(op),
            _ => false,
        })
    })
}
