//! What a client knows and what it asks next. It keeps to the rules as little as real clients do:
//! it repeats itself, uses leases that are over, and asks for keys it already has.

use super::plan::Plan;
use crate::answer::Answer;
use crate::call::{Acquire, Ask, Block, Fence, Held, NAMESPACE, Release, Then, What, Write};
use crate::dice::Dice;
use crate::history::Op;

/// A lease as its holder knows it.
#[derive(Clone, Debug)]
struct Mine {
    key: String,
    held: Held,
    version: u64,
}

/// One client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    number: usize,
    held: Vec<Mine>,
    over: Vec<Mine>,
    /// Asked under a name: may be asked again, above all when there was no answer.
    again: Option<(Ask, u64)>,
    /// Tokens of keys, as far as heard.
    tokens: Vec<(String, u64)>,
    names: u64,
    documents: u64,
}

/// How many leases that are over a client remembers.
const OVER_MAX: usize = 4;

#[derive(Clone, Copy)]
enum Wish {
    Acquire,
    Stage,
    Commit,
    Finish,
    Remove,
    Release,
    Rollback,
    Keepalive,
    View,
    Stale,
    Look,
    Revoke,
}

impl Client {
    #[must_use]
    pub(crate) fn new(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    /// What it asks next.
    pub(crate) fn next(&mut self, plan: &Plan, dice: &mut Dice) -> Ask {
        if let Some((again, often)) = self.again.take()
            && dice.chance(often)
        {
            return again;
        }
        let holds = !self.held.is_empty();
        let stale = if self.over.is_empty() { 0 } else { plan.stale };
        let wishes: &[(u64, Wish)] = if holds {
            &[
                (60, Wish::Acquire),
                (180, Wish::Stage),
                (150, Wish::Commit),
                (70, Wish::Finish),
                (40, Wish::Remove),
                (140, Wish::Release),
                (50, Wish::Rollback),
                (100, Wish::Keepalive),
                (50, Wish::View),
                (60, Wish::Look),
                (plan.revokes, Wish::Revoke),
                (stale, Wish::Stale),
            ]
        } else {
            &[
                (600, Wish::Acquire),
                (180, Wish::Look),
                (plan.revokes, Wish::Revoke),
                (2 * stale, Wish::Stale),
            ]
        };
        let wish = dice.weighted(wishes).unwrap_or(Wish::Look);
        self.ask(wish, plan, dice).unwrap_or_else(|| look(plan, dice))
    }

    fn ask(&mut self, wish: Wish, plan: &Plan, dice: &mut Dice) -> Option<Ask> {
        let mine = match wish {
            Wish::Stale => dice.pick(&self.over).cloned(),
            _ => dice.pick(&self.held).cloned(),
        };
        Some(match wish {
            Wish::Acquire => self.acquire(plan, dice)?,
            Wish::Look => look(plan, dice),
            Wish::Revoke => {
                Ask::Revoke { key: dice.pick(&plan.keys)?.clone(), reason: "told to".into() }
            }
            Wish::Stage => self.write(mine?, Then::Stage, plan, dice),
            Wish::Commit => self.write(mine?, Then::Commit, plan, dice),
            Wish::Finish => self.write(mine?, Then::Release, plan, dice),
            Wish::Remove => self.remove(mine?, plan, dice),
            Wish::Release => self.release(mine?, false, plan, dice),
            Wish::Rollback => self.release(mine?, true, plan, dice),
            Wish::Keepalive => keepalive(mine?, plan, dice),
            Wish::View => view(mine?),
            Wish::Stale => {
                let mine = mine?;
                match dice.below(5) {
                    0 => self.write(mine, Then::Stage, plan, dice),
                    1 => self.write(mine, Then::Commit, plan, dice),
                    2 => keepalive(mine, plan, dice),
                    3 => view(mine),
                    _ => {
                        let rollback = dice.chance(300);
                        self.release(mine, rollback, plan, dice)
                    }
                }
            }
        })
    }

    fn acquire(&mut self, plan: &Plan, dice: &mut Dice) -> Option<Ask> {
        let block = match dice.chance(plan.waits) {
            false => Block::No,
            true if dice.chance(400) => Block::Forever,
            true => Block::Seconds(u32::try_from(dice.between(1, 8)).unwrap_or(1)),
        };
        Some(Ask::Acquire(Acquire {
            key: dice.pick(&plan.keys)?.clone(),
            owner: format!("c{}", self.number),
            ttl_ms: Some(dice.between(plan.ttl_ms.0, plan.ttl_ms.1)),
            block,
            if_not_exists: dice.chance(20),
            txn: None,
            idem: self.name(plan, dice),
        }))
    }

    fn write(&mut self, mine: Mine, then: Then, plan: &Plan, dice: &mut Dice) -> Ask {
        self.documents += 1;
        let (by, number) = (self.number, self.documents);
        let padding = if dice.chance(plan.large) { 66_000 } else { 0 };
        let text = format!(r#"{{"by":{by},"n":{number},"pad":"{}"}}"#, "x".repeat(padding));
        self.change(mine, What::Document(text.into()), then, plan, dice)
    }

    fn remove(&mut self, mine: Mine, plan: &Plan, dice: &mut Dice) -> Ask {
        let then = dice.pick(&[Then::Stage, Then::Commit, Then::Release]).copied();
        self.change(mine, What::Remove, then.unwrap_or_default(), plan, dice)
    }

    fn change(&mut self, mine: Mine, what: What, then: Then, plan: &Plan, dice: &mut Dice) -> Ask {
        let guess = if dice.chance(850) { mine.version } else { mine.version + 1 };
        Ask::Write(Write {
            fences: self.fences(&mine, dice),
            key: Some(mine.key),
            held: mine.held,
            what,
            then,
            if_version: dice.chance(150).then_some(guess),
            if_etag: None,
            hidden: None,
            idem: self.name(plan, dice),
            streamed: dice.chance(100),
        })
    }

    fn release(&mut self, mine: Mine, rollback: bool, plan: &Plan, dice: &mut Dice) -> Ask {
        Ask::Release(Release {
            fences: self.fences(&mine, dice),
            key: Some(mine.key),
            held: mine.held,
            rollback,
            idem: self.name(plan, dice),
        })
    }

    /// Sometimes a condition on another key's token, as it was last heard of.
    fn fences(&self, mine: &Mine, dice: &mut Dice) -> Vec<Fence> {
        if !dice.chance(120) {
            return Vec::new();
        }
        let others: Vec<_> = self.tokens.iter().filter(|(key, _)| *key != mine.key).collect();
        let fence = dice
            .pick(&others)
            .map(|(key, token)| Fence { name: format!("{NAMESPACE}/{key}"), token: *token });
        fence.into_iter().collect()
    }

    fn name(&mut self, plan: &Plan, dice: &mut Dice) -> Option<String> {
        dice.chance(plan.named).then(|| {
            self.names += 1;
            format!("c{}-{}", self.number, self.names)
        })
    }

    /// Learns from an ask that is over, answered or not.
    pub(crate) fn learn(&mut self, op: &Op) {
        if op.ask.idem().is_some() {
            let often = if op.is_open() { 700 } else { 80 };
            self.again = Some((op.ask.clone(), often));
        }
        match (&op.ask, op.answer()) {
            (Ask::Acquire(ask), Some(Answer::Granted { held, version, .. })) => {
                self.know(&ask.key, held.token);
                self.held.retain(|mine| mine.held.lease_id != held.lease_id);
                let (key, held) = (ask.key.clone(), held.clone());
                self.held.push(Mine { key, held, version: *version });
            }
            (Ask::Describe { key }, Some(Answer::Described(described))) => {
                self.know(key, described.token);
            }
            (Ask::Revoke { key, .. }, Some(Answer::Revoked { token, .. })) => {
                self.know(key, *token);
            }
            (
                Ask::Write(ask),
                Some(Answer::Written { version, .. } | Answer::Removed { version: Some(version) }),
            ) => {
                for mine in self.held.iter_mut().filter(|mine| mine.held == ask.held) {
                    mine.version = *version;
                }
            }
            _ => {}
        }
        let ends = match &op.ask {
            Ask::Release(_) => !op.is_refused(),
            Ask::Write(write) => write.then == Then::Release && !op.is_refused(),
            _ => false,
        };
        if let Some(held) = op.ask.held().filter(|_| ends || op.is_lost()).cloned() {
            self.let_go(&held);
        }
    }

    fn know(&mut self, key: &str, token: u64) {
        self.tokens.retain(|(known, _)| known != key);
        self.tokens.push((key.to_owned(), token));
    }

    fn let_go(&mut self, held: &Held) {
        let Some(place) = self.held.iter().position(|mine| mine.held == *held) else { return };
        self.over.push(self.held.remove(place));
        if self.over.len() > OVER_MAX {
            self.over.remove(0);
        }
    }
}

fn keepalive(mine: Mine, plan: &Plan, dice: &mut Dice) -> Ask {
    let ttl_ms = Some(dice.between(plan.ttl_ms.0, plan.ttl_ms.1));
    Ask::Keepalive { key: Some(mine.key), held: mine.held, ttl_ms }
}

fn view(mine: Mine) -> Ask {
    Ask::View { key: Some(mine.key), held: mine.held }
}

/// Reads what is public.
fn look(plan: &Plan, dice: &mut Dice) -> Ask {
    let key = dice.pick(&plan.keys).cloned().unwrap_or_default();
    match dice.below(4) {
        0 => Ask::Get { key },
        1 => Ask::Describe { key },
        _ => Ask::Read { keys: plan.keys.clone() },
    }
}
