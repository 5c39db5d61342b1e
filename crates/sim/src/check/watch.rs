//! Watchers: after a snapshot every version in order and none left out, and at rest they know what
//! there is.

use std::collections::HashMap;

use super::facts::Facts;
use crate::answer::Answer;
use crate::call::{Ask, What};
use crate::history::{Happening, Moment, Op, Told, Watched};

/// What a watcher knows of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    version: Option<u64>,
    /// Up to here the snapshot may be told once more.
    snapshot: u64,
}

pub(super) fn watchers_hear_everything_in_order(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let rest = facts.when(|what| *what == Happening::AtRest).last();
    let removes = |op: &&Op| matches!(&op.ask, Ask::Write(write) if write.what == What::Remove);
    let removals = facts.history.ops.iter().filter(removes).count() as u64;
    for (place, watch) in facts.history.watches.iter().enumerate() {
        let mut listener = Listener::new(watch);
        listener.removals = removals;
        for (_, told) in &watch.told {
            if let Err(odd) = listener.hear(told) {
                wrong.push(format!("watch {place}: {odd}"));
            }
        }
        if rest.is_some_and(|rest| listens_at(facts, watch, rest)) {
            wrong.extend(listener.misses(facts).map(|odd| format!("watch {place}: {odd}")));
        }
    }
    wrong
}

/// Whether somebody listened then, to a process that lived then.
fn listens_at(facts: &Facts<'_>, watch: &Watched, moment: Moment) -> bool {
    let before = |happening: Happening| facts.when(|what| *what == happening).any(|at| at < moment);
    let process = watch.process;
    watch.ended.is_none_or(|ended| ended > moment)
        && before(Happening::Started { process })
        && !before(Happening::Crashed { process })
}

struct Listener {
    known: HashMap<String, Known>,
    complete: bool,
    /// It goes on from an earlier watch: what it knew is not written here.
    resumed: bool,
    /// A removal of what was staged makes the next version larger by one more.
    removals: u64,
}

impl Listener {
    fn new(watch: &Watched) -> Self {
        Self { known: HashMap::new(), complete: watch.resumed, resumed: watch.resumed, removals: 0 }
    }

    fn hear(&mut self, told: &Told) -> Result<(), String> {
        match told {
            Told::Reset { complete: false } => {
                self.known.clear();
                (self.complete, self.resumed) = (false, false);
                Ok(())
            }
            Told::Reset { complete: true } => {
                self.complete = true;
                Ok(())
            }
            Told::State { key, version, snapshot } | Told::Removed { key, version, snapshot } => {
                self.version(key, *version, *snapshot)
            }
            Told::Lease { .. } => Ok(()),
        }
    }

    fn version(&mut self, key: &str, version: u64, snapshot: bool) -> Result<(), String> {
        let fresh = if self.resumed { None } else { Some(0) };
        let known =
            self.known.entry(key.to_owned()).or_insert(Known { version: fresh, snapshot: 0 });
        if snapshot {
            *known = Known { version: Some(version), snapshot: version };
            return if self.complete { Err("a snapshot after its end".into()) } else { Ok(()) };
        }
        if version <= known.snapshot {
            return Ok(());
        }
        let before = known.version.replace(version);
        let due = before.map(|before| before + 1..=before + 1 + self.removals);
        match due {
            Some(due) if !due.contains(&version) => {
                Err(format!("{key} at {version} where {} was due", due.start()))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// What it has not heard of, as the auditor found it.
    fn misses(&self, facts: &Facts<'_>) -> impl Iterator<Item = String> {
        let read = facts.history.ops.iter().rev().find_map(|op| match (&op.ask, op.answer()) {
            (Ask::Read { .. }, Some(Answer::Entries(entries))) => Some(entries.clone()),
            _ => None,
        });
        let missing = read.unwrap_or_default().into_iter().filter_map(|entry| {
            let known = self.known.get(&entry.key).and_then(|known| known.version);
            // Nobody waits for a commit whose client gave up: it may come after the auditor read.
            let made = facts.on(&entry.key).iter().map(|lease| lease.chain.high).max();
            let most = made.unwrap_or_default().max(entry.version);
            // One who resumed and was told nothing knew it before.
            let fine = known.map_or(self.resumed || entry.version == 0, |version| {
                (entry.version..=most).contains(&version)
            });
            (!fine).then(|| format!("was told {known:?} of {} at {}", entry.key, entry.version))
        });
        missing.collect::<Vec<_>>().into_iter()
    }
}
