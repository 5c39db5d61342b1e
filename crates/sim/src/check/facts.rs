//! What follows from a history at first sight: which leases there were, who did what under them,
//! which document came with which write. Judging is left to the invariants.

use std::collections::{BTreeMap, HashMap};

use super::chain::Chain;
use crate::answer::Answer;
use crate::call::{Ask, Held, What};
use crate::history::{Happening, History, Moment, Op};

/// A lease that somebody was granted.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    pub(super) key: &'a str,
    pub(super) held: &'a Held,
    pub(super) ttl_ms: u64,
    /// When its holder first asked for it; a repeated ask counts from the first.
    pub(super) asked: Moment,
    /// When its holder first heard of it.
    pub(super) known: Moment,
    /// The key's version then.
    pub(super) version: u64,
    /// What was asked under it, in order.
    pub(super) ops: Vec<&'a Op>,
    pub(super) chain: Chain<'a>,
}

impl Lease<'_> {
    pub(super) fn token(&self) -> u64 {
        self.held.token
    }
}

/// A document, by who wrote it.
#[derive(Debug)]
pub(super) struct Text<'a> {
    pub(super) lease_id: &'a str,
    pub(super) key: &'a str,
    pub(super) carriers: Vec<&'a Op>,
}

pub(super) struct Facts<'a> {
    pub(super) history: &'a History,
    /// By key, in the order of their tokens.
    pub(super) leases: BTreeMap<&'a str, Vec<Lease<'a>>>,
    pub(super) texts: HashMap<&'a str, Text<'a>>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let mut facts = Self { history, leases: BTreeMap::new(), texts: HashMap::new() };
        facts.find_leases();
        facts.find_texts();
        let boots: Vec<Moment> = facts.when(|what| *what == Happening::Rebooted).collect();
        let mut leases = std::mem::take(&mut facts.leases);
        for lease in leases.values_mut().flatten() {
            let back = |boot: &Moment| facts.is_stepped(lease.asked, *boot, |by_ms| by_ms < 0);
            lease.chain = Chain::of(lease, boots.iter().any(back));
        }
        facts.leases = leases;
        facts
    }

    fn find_leases(&mut self) {
        let mut places: HashMap<&'a str, (&'a str, usize)> = HashMap::new();
        for op in &self.history.ops {
            let (Ask::Acquire(ask), Some((heard, Answer::Granted { held, version, ttl_ms, .. }))) =
                (&op.ask, &op.heard)
            else {
                continue;
            };
            if places.contains_key(held.lease_id.as_str()) {
                continue;
            }
            let leases = self.leases.entry(&ask.key).or_default();
            places.insert(&held.lease_id, (&ask.key, leases.len()));
            leases.push(Lease {
                key: &ask.key,
                held,
                ttl_ms: *ttl_ms,
                asked: first_sent(self.history, op),
                known: *heard,
                version: *version,
                ops: Vec::new(),
                chain: Chain::default(),
            });
        }
        for op in &self.history.ops {
            let place = op.ask.held().and_then(|held| places.get(held.lease_id.as_str()));
            let Some((key, place)) = place else { continue };
            if let Some(lease) = self.leases.get_mut(key).and_then(|list| list.get_mut(*place)) {
                lease.ops.push(op);
            }
        }
        for leases in self.leases.values_mut() {
            leases.sort_by_key(Lease::token);
        }
    }

    fn find_texts(&mut self) {
        for op in &self.history.ops {
            let Ask::Write(write) = &op.ask else { continue };
            let (What::Document(text), Some(key)) = (&write.what, &write.key) else { continue };
            let lease_id = write.held.lease_id.as_str();
            let known = self.texts.entry(text).or_insert(Text { lease_id, key, carriers: vec![] });
            known.carriers.push(op);
        }
    }

    pub(super) fn all_leases(&self) -> impl Iterator<Item = &Lease<'a>> {
        self.leases.values().flatten()
    }

    pub(super) fn on(&self, key: &str) -> &[Lease<'a>] {
        self.leases.get(key).map_or(&[], Vec::as_slice)
    }

    /// The moments at which something befell the server.
    pub(super) fn when(&self, what: impl Fn(&Happening) -> bool) -> impl Iterator<Item = Moment> {
        let happenings = self.history.happenings.iter();
        happenings.filter(move |(_, happening)| what(happening)).map(|(moment, _)| *moment)
    }

    /// Whether the wall clock was set in such a way between two moments.
    pub(super) fn is_stepped(
        &self,
        from: Moment,
        until: Moment,
        way: impl Fn(i64) -> bool,
    ) -> bool {
        let such =
            |what: &Happening| matches!(what, Happening::WallStepped { by_ms } if way(*by_ms));
        self.when(such).any(|step| from < step && step < until)
    }

    /// Whether a lease was certainly over for its holder's writes before that moment, because
    /// the key's token had grown or its holder had let go.
    pub(super) fn is_over(&self, lease: &Lease<'_>, by: Moment) -> bool {
        let newer = |other: &Lease<'_>| other.token() > lease.token() && other.known < by;
        if self.on(lease.key).iter().any(newer) {
            return true;
        }
        let revoked = self.history.ops.iter().any(|op| match (&op.ask, &op.heard) {
            (Ask::Revoke { key, .. }, Some((heard, Answer::Revoked { token, .. }))) => {
                key == lease.key && *token > lease.token() && *heard < by
            }
            _ => false,
        });
        let let_go = lease.ops.iter().any(|op| match (&op.ask, &op.heard) {
            (Ask::Release(_), Some((heard, Answer::Released))) => *heard < by,
            (Ask::Write(write), Some((heard, _))) => {
                write.then == crate::call::Then::Release && op.is_done() && *heard < by
            }
            _ => false,
        });
        revoked || let_go
    }

    /// Whether an ask repeats an earlier one under the same name.
    pub(super) fn is_repeat(&self, op: &Op) -> bool {
        first_sent(self.history, op) < op.sent
    }
}

/// When this was first asked for, under the same name.
pub(super) fn first_sent(history: &History, op: &Op) -> Moment {
    if op.ask.idem().is_none() {
        return op.sent;
    }
    let same = history.ops.iter().find(|other| other.client == op.client && other.ask == op.ask);
    same.map_or(op.sent, |first| first.sent)
}

/// How an ask is named in a message.
pub(super) fn number(history: &History, op: &Op) -> String {
    let place = history.ops.iter().position(|other| other.sent == op.sent);
    place.map_or_else(|| "#?".into(), |place| format!("#{place}"))
}
