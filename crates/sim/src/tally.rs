//! What histories reached: how often each ask heard each answer, and what befell the server. A
//! checker that finds nothing wrong is worth as much as what it was shown.

use std::collections::BTreeMap;
use std::fmt;

use crate::answer::Answer;
use crate::call::{Ask, Then, What};
use crate::history::{Happening, History, Op};

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<String, u64>);

impl Tally {
    pub fn add(&mut self, history: &History) {
        for op in &history.ops {
            self.count(format!("{} {}", verb(&op.ask), outcome(op)));
        }
        for (_, happening) in &history.happenings {
            let name = match happening {
                Happening::Started { .. } => "started",
                Happening::Draining { .. } => "draining",
                Happening::Crashed { .. } => "crashed",
                Happening::Rebooted => "rebooted",
                Happening::WallStepped { .. } => "wall stepped",
                Happening::InLine { .. } => "in line",
                Happening::Healed => "healed",
                Happening::AtRest => "at rest",
            };
            self.count(format!("server {name}"));
        }
        for watch in &history.watches {
            let name = if watch.resumed { "watch resumed" } else { "watch" };
            *self.0.entry(name.into()).or_default() += watch.told.len() as u64;
        }
    }

    fn count(&mut self, name: String) {
        *self.0.entry(name).or_default() += 1;
    }

    /// How often it happened.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Takes in the counts of another.
    pub fn join(&mut self, other: Self) {
        for (name, count) in other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:>9} {name}"))
    }
}

fn verb(ask: &Ask) -> &'static str {
    match ask {
        Ask::Acquire(_) => "acquire",
        Ask::Keepalive { .. } => "keepalive",
        Ask::Write(write) => match (&write.what, write.then) {
            (What::Document(_), Then::Stage) => "stage",
            (What::Document(_), Then::Commit) => "commit",
            (What::Document(_), Then::Release) => "finish",
            (What::Remove, _) => "remove",
            (What::Metadata, _) => "metadata",
            (What::Mutate(_), _) => "mutate",
        },
        Ask::Release(release) if release.rollback => "rollback",
        Ask::Release(_) => "release",
        Ask::Get { .. } => "get",
        Ask::View { .. } => "view",
        Ask::Describe { .. } => "describe",
        Ask::Read { .. } => "read",
        Ask::Revoke { .. } => "revoke",
    }
}

fn outcome(op: &Op) -> String {
    match op.answer() {
        Some(Answer::Refused(refused)) if refused.unknown => format!("{} unknown", refused.code),
        Some(Answer::Refused(refused)) => refused.code.clone(),
        Some(_) => "done".into(),
        None if op.gave_up.is_some() => "given up".into(),
        None => "unanswered".into(),
    }
}
