//! Versions: every commit makes the next one, and none is lost or invented between two holders.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

use super::facts::{Facts, number};
use crate::answer::Answer;
use crate::call::{Ask, Held};

/// Hand-overs from one holder to the next: the version left and the version found.
fn hand_overs<'a>(facts: &'a Facts<'_>) -> impl Iterator<Item = (&'a str, u64, (u64, u64), u64)> {
    facts.leases.iter().flat_map(|(key, leases)| {
        let mut left = (0, 0);
        leases.iter().map(move |lease| {
            let before = std::mem::replace(&mut left, (lease.chain.low, lease.chain.high));
            (*key, lease.token(), before, lease.version)
        })
    })
}

pub(super) fn versions_grow_by_one(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for lease in facts.all_leases() {
        for (op, odd) in &lease.chain.odd_versions {
            wrong.push(format!("{} got {odd}", number(facts.history, op)));
        }
    }
    for (key, token, (_, high), found) in hand_overs(facts) {
        if found > high {
            wrong.push(format!("token {token} found {key} at {found}, at most {high} was made"));
        }
    }
    wrong
}

pub(super) fn acked_write_survives(facts: &Facts<'_>) -> Vec<String> {
    let lost = hand_overs(facts).filter(|(_, _, (low, _), found)| found < low);
    let told = lost.map(|(key, token, (low, _), found)| {
        format!("token {token} found {key} at {found}, but {low} was answered for")
    });
    told.collect()
}

fn etag(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Everything that anybody was told about what a version is.
struct Versions<'a> {
    known: HashMap<(&'a str, u64), Option<&'a str>>,
    wrong: Vec<String>,
}

impl<'a> Versions<'a> {
    fn add(&mut self, key: &'a str, version: u64, text: Option<&'a str>, by: &str) {
        let known = self.known.entry((key, version)).or_insert(text);
        if *known != text {
            self.wrong.push(format!("{by}: version {version} of {key} has two documents"));
        }
    }

    fn add_etag(&mut self, key: &'a str, version: u64, shown: Option<&str>, by: &str) {
        if let Some(known) = self.known.get(&(key, version))
            && known.map(etag).as_deref() != shown
        {
            self.wrong.push(format!("{by}: the etag of version {version} of {key} is another's"));
        }
    }
}

pub(super) fn one_document_per_version(facts: &Facts<'_>) -> Vec<String> {
    let mut versions = Versions { known: HashMap::new(), wrong: Vec::new() };
    for key in facts.leases.keys() {
        versions.add(key, 0, None, "nothing");
    }
    for lease in facts.all_leases() {
        for commit in &lease.chain.commits {
            let by = number(facts.history, commit.by);
            versions.add(lease.key, commit.version, commit.text, &by);
        }
    }
    let own = |held: &Held, text: &str| {
        facts.texts.get(text).is_some_and(|known| known.lease_id == held.lease_id)
    };
    for op in &facts.history.ops {
        let by = number(facts.history, op);
        match (&op.ask, op.answer()) {
            (Ask::Get { key }, Some(Answer::Document(Some(seen)))) => {
                versions.add(key, seen.version, Some(&seen.text), &by);
            }
            (Ask::View { key: Some(key), held }, Some(Answer::Document(Some(seen))))
                if !own(held, &seen.text) =>
            {
                versions.add(key, seen.version, Some(&seen.text), &by);
            }
            (Ask::Read { .. }, Some(Answer::Entries(entries))) => {
                for entry in entries {
                    versions.add(&entry.key, entry.version, entry.text.as_deref(), &by);
                }
            }
            _ => {}
        }
    }
    for op in &facts.history.ops {
        let by = number(facts.history, op);
        match (&op.ask, op.answer()) {
            (Ask::Acquire(ask), Some(Answer::Granted { version, etag, .. })) => {
                versions.add_etag(&ask.key, *version, etag.as_deref(), &by);
            }
            (Ask::Describe { key }, Some(Answer::Described(seen))) => {
                versions.add_etag(key, seen.version, seen.etag.as_deref(), &by);
            }
            _ => {}
        }
    }
    versions.wrong
}
