//! What a lease may have done to its key: from which version to which, and what it certainly
//! committed. Asks without an answer leave room; answered ones close it.

use super::facts::Lease;
use crate::answer::Answer;
use crate::call::{Ask, Then, What, Write};
use crate::history::Op;

/// A commit that certainly happened.
#[derive(Clone, Debug)]
pub(super) struct Commit<'a> {
    pub(super) version: u64,
    /// `None`: the document was removed.
    pub(super) text: Option<&'a str>,
    pub(super) by: &'a Op,
}

/// The versions that the key may have had when the lease was over, and what is odd on the way.
#[derive(Debug, Default)]
pub(super) struct Chain<'a> {
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) commits: Vec<Commit<'a>>,
    pub(super) odd_versions: Vec<(&'a Op, String)>,
    pub(super) odd_views: Vec<(&'a Op, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Staged<'a> {
    No,
    Maybe,
    Yes { version: u64, text: Option<&'a str> },
}

struct Walk<'a> {
    chain: Chain<'a>,
    staged: Staged<'a>,
    /// Commits without an answer: each may yet happen, or have happened.
    open: Vec<&'a Op>,
    /// Something that stages or forgets staged data has no answer: it may come at any later time.
    unsure: bool,
    /// Removals that may have raised the staged version by one each.
    removals: u64,
}

/// By how much a commit may raise the version: a removal of what was staged counts besides.
fn raise(op: &Op) -> u64 {
    1 + u64::from(matches!(&op.ask, Ask::Write(write) if write.what == What::Remove))
}

impl<'a> Chain<'a> {
    /// `revives`: the clock was set back before a reboot, so a lease that was told to be over and
    /// had not been cleared away may have come back.
    pub(super) fn of(lease: &Lease<'a>, revives: bool) -> Self {
        let chain = Self { low: lease.version, high: lease.version, ..Self::default() };
        let mut walk =
            Walk { chain, staged: Staged::No, open: Vec::new(), unsure: false, removals: 0 };
        for (place, op) in lease.ops.iter().copied().enumerate() {
            let before = lease.ops.get(..place).unwrap_or_default();
            match &op.ask {
                Ask::Write(write) => walk.write(op, write, before),
                Ask::Release(release) => walk.release(op, release.rollback),
                Ask::View { .. } => walk.view(op),
                Ask::Acquire(_)
                | Ask::Keepalive { .. }
                | Ask::Get { .. }
                | Ask::Describe { .. }
                | Ask::Read { .. }
                | Ask::Revoke { .. } => {}
            }
            if op.is_lost() && !revives {
                walk.staged = Staged::No;
            }
        }
        walk.chain
    }
}

impl<'a> Walk<'a> {
    fn is_sure(&self) -> bool {
        self.open.is_empty() && !self.unsure
    }

    fn slack(&self) -> u64 {
        self.open.iter().map(|op| raise(op)).sum()
    }

    fn write(&mut self, op: &'a Op, write: &'a Write, before: &[&'a Op]) {
        let text = match &write.what {
            What::Document(text) => Some(&**text),
            What::Remove | What::Metadata | What::Mutate(_) => None,
        };
        let same = |other: &&Op| write.idem.is_some() && other.ask == op.ask;
        let again = before.iter().copied().any(|other| same(&other));
        self.removals += raise(op) - 1;
        match op.answer() {
            Some(Answer::Written { version, .. } | Answer::Removed { version: Some(version) }) => {
                let known = before.iter().any(|other| same(other) && other.is_done());
                self.open.retain(|other| !same(other));
                if !known {
                    self.expect(op, *version);
                    self.wrote(op, write.then, *version, text, again);
                }
            }
            Some(Answer::Removed { version: None }) => self.removed_nothing(op, write.then),
            Some(_) | None if op.is_open() => match write.then {
                Then::Stage => {
                    self.staged = Staged::Maybe;
                    self.unsure = true;
                }
                Then::Commit | Then::Release => {
                    self.chain.high += raise(op);
                    self.open.push(op);
                    if self.staged != Staged::No {
                        self.staged = Staged::Maybe;
                    }
                }
            },
            Some(_) | None => {}
        }
    }

    /// A new version follows upon one that the key can have.
    fn expect(&mut self, op: &'a Op, version: u64) {
        let Chain { low, high, .. } = self.chain;
        let most = high + 1 + self.removals;
        if version <= low || version > most {
            let odd = format!("version {version} where {} to {most} was due", low + 1);
            self.chain.odd_versions.push((op, odd));
        }
    }

    fn wrote(&mut self, op: &'a Op, then: Then, version: u64, text: Option<&'a str>, again: bool) {
        match then {
            Then::Stage => {
                let base = version.saturating_sub(1);
                self.chain.low = self.chain.low.max(base.saturating_sub(self.removals));
                self.chain.high = base + self.slack();
                // An earlier sending of the same may come after a later write.
                self.staged = if self.is_sure() && !again {
                    Staged::Yes { version, text }
                } else {
                    Staged::Maybe
                };
            }
            Then::Commit | Then::Release => {
                self.chain.low = version;
                self.chain.high = version + self.slack();
                self.chain.commits.push(Commit { version, text, by: op });
                self.staged = if self.is_sure() { Staged::No } else { Staged::Maybe };
                if self.is_sure() {
                    self.removals = 0;
                }
            }
        }
    }

    /// There was no document to remove; what was staged, if anything, is committed all the same.
    fn removed_nothing(&mut self, op: &'a Op, then: Then) {
        if then == Then::Stage {
            return;
        }
        self.commit_staged(op);
    }

    fn commit_staged(&mut self, op: &'a Op) {
        match self.staged {
            Staged::Yes { version, text } => {
                self.chain.low = version;
                let most = self.chain.high + 1 + self.removals;
                self.chain.high = if self.is_sure() { version } else { most };
                if self.is_sure() {
                    self.chain.commits.push(Commit { version, text, by: op });
                }
            }
            Staged::No if self.is_sure() => {}
            Staged::Maybe | Staged::No => self.chain.high += 1 + self.removals,
        }
        self.staged = Staged::No;
    }

    fn release(&mut self, op: &'a Op, rollback: bool) {
        if op.is_done() && !rollback {
            self.commit_staged(op);
        } else if op.is_done() {
            self.staged = Staged::No;
        } else if op.is_open() && rollback {
            self.unsure = true;
        } else if op.is_open() && self.staged != Staged::No {
            self.chain.high += 1 + self.removals;
            self.staged = Staged::Maybe;
            self.unsure = true;
        }
    }

    fn view(&mut self, op: &'a Op) {
        let (Some(Answer::Document(seen)), Staged::Yes { version, text }) =
            (op.answer(), self.staged)
        else {
            return;
        };
        let same = match seen {
            Some(seen) => seen.version == version && Some(&*seen.text) == text,
            None => text.is_none(),
        };
        if !same {
            let odd = format!("the holder has staged version {version} and is shown another");
            self.chain.odd_views.push((op, odd));
        }
    }
}
