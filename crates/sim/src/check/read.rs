//! Reads: nothing that was shown goes away, several keys are shown as of one moment, and a holder
//! sees what it has written.

use super::facts::{Facts, number};
use crate::answer::{Answer, Entry};
use crate::call::Ask;
use crate::history::{Moment, Op, Told};

/// The committed version of a key that an answer shows.
fn shown(op: &Op) -> Vec<(&str, u64)> {
    match (&op.ask, op.answer()) {
        (Ask::Get { key }, Some(Answer::Document(Some(seen)))) => vec![(key, seen.version)],
        (Ask::Describe { key }, Some(Answer::Described(seen))) => vec![(key, seen.version)],
        (Ask::Acquire(ask), Some(Answer::Granted { version, .. })) => vec![(&ask.key, *version)],
        (Ask::Read { .. }, Some(Answer::Entries(entries))) => {
            entries.iter().map(|entry| (entry.key.as_str(), entry.version)).collect()
        }
        _ => Vec::new(),
    }
}

pub(super) fn nothing_shown_then_gone(facts: &Facts<'_>) -> Vec<String> {
    let mut seen: Vec<(Moment, &str, u64)> = Vec::new();
    for op in &facts.history.ops {
        if let Some((heard, _)) = &op.heard {
            seen.extend(shown(op).into_iter().map(|(key, version)| (*heard, key, version)));
        }
    }
    for lease in facts.all_leases() {
        let commits = lease.chain.commits.iter();
        let heard = commits.filter_map(|commit| {
            commit.by.heard.as_ref().map(|(heard, _)| (*heard, lease.key, commit.version))
        });
        seen.extend(heard);
    }
    for (moment, told) in facts.history.watches.iter().flat_map(|watch| &watch.told) {
        if let Told::State { key, version, .. } | Told::Removed { key, version, .. } = told {
            seen.push((*moment, key, *version));
        }
    }
    let mut wrong = Vec::new();
    for op in &facts.history.ops {
        for (key, version) in shown(op) {
            let before = seen.iter().filter(|(heard, other, _)| *other == key && *heard < op.sent);
            let floor = before.map(|(_, _, version)| *version).max().unwrap_or(0);
            if version < floor {
                let number = number(facts.history, op);
                wrong.push(format!("{number} shows {key} at {version} after {floor} was shown"));
            }
        }
    }
    wrong
}

pub(super) fn reads_are_of_one_moment(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for op in &facts.history.ops {
        let (Ask::Read { .. }, Some(Answer::Entries(entries))) = (&op.ask, op.answer()) else {
            continue;
        };
        let born = entries.iter().filter_map(|entry| born(facts, entry)).max();
        let replaced = entries.iter().filter_map(|entry| replaced(facts, entry)).min();
        if let (Some(born), Some(replaced)) = (born, replaced)
            && born >= replaced
        {
            let number = number(facts.history, op);
            wrong.push(format!("{number} shows together what never was at one moment"));
        }
    }
    wrong
}

/// Before this moment the version of an entry cannot have been there.
fn born(facts: &Facts<'_>, entry: &Entry) -> Option<Moment> {
    let commits = facts.on(&entry.key).iter().flat_map(|lease| &lease.chain.commits);
    let made = commits.filter(|commit| commit.version == entry.version);
    made.map(|commit| super::facts::first_sent(facts.history, commit.by)).min()
}

/// From this moment on a newer version was certainly there.
fn replaced(facts: &Facts<'_>, entry: &Entry) -> Option<Moment> {
    let commits = facts.on(&entry.key).iter().flat_map(|lease| &lease.chain.commits);
    let newer = commits.filter(|commit| commit.version > entry.version);
    newer.filter_map(|commit| commit.by.heard.as_ref().map(|(heard, _)| *heard)).min()
}

pub(super) fn a_holder_sees_its_own_writes(facts: &Facts<'_>) -> Vec<String> {
    let odd = facts.all_leases().flat_map(|lease| &lease.chain.odd_views);
    odd.map(|(op, odd)| format!("{}: {odd}", number(facts.history, op))).collect()
}
