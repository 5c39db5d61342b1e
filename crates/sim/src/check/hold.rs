//! Who held a key when, by its holder's own count: from when it heard of the grant until its time
//! to live after it had asked, or until it let go.

use super::facts::{Facts, Lease, number};
use crate::answer::Answer;
use crate::call::{Ask, Then};
use crate::history::{Happening, Moment, Op};

/// A time during which a holder may be sure that it holds.
#[derive(Clone, Copy, Debug)]
struct Hold {
    from: Moment,
    until: Moment,
}

/// Whether a refusal ends a hold: for its holder it does; to judge the refusal it must not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusals {
    End,
    Ignore,
}

fn after(moment: Moment, ms: u64) -> Moment {
    Moment { at: moment.at + ms * 1_000, seq: 0 }
}

/// The end of a holder's own count.
fn sure_until(facts: &Facts<'_>, asked: Moment, ms: u64) -> Moment {
    let end = after(asked, ms);
    Moment { at: end.at.saturating_sub(facts.history.grain), ..end }
}

/// The times during which a lease was held.
fn holds(facts: &Facts<'_>, lease: &Lease<'_>, refusals: Refusals) -> Vec<Hold> {
    let mut holds = Vec::new();
    let mut from = lease.known;
    let mut until = sure_until(facts, lease.asked, lease.ttl_ms);
    for op in &lease.ops {
        if refusals == Refusals::End && op.is_lost() {
            until = until.min(op.sent);
            break;
        }
        match &op.ask {
            Ask::Keepalive { ttl_ms, .. } if !op.is_refused() => {
                let renewed = sure_until(facts, op.sent, ttl_ms.unwrap_or(0));
                // Until the answer is there, either time may count.
                let meanwhile = until.min(renewed);
                match &op.heard {
                    Some((heard, Answer::Renewed { .. })) if meanwhile > *heard => until = renewed,
                    Some((heard, Answer::Renewed { .. })) => {
                        holds.push(Hold { from, until: meanwhile });
                        (from, until) = (*heard, renewed);
                    }
                    Some(_) | None => until = meanwhile,
                }
            }
            ask if lets_go(ask) && !op.is_refused() => {
                until = until.min(op.sent);
                break;
            }
            ask if lets_go(ask) => {
                // Refused for another reason than the lease: it is held on.
                holds.push(Hold { from, until: until.min(op.sent) });
                from = op.heard.as_ref().map_or(op.sent, |(heard, _)| *heard);
            }
            _ => {}
        }
    }
    holds.push(Hold { from, until });
    holds.iter_mut().for_each(|hold| excuse(facts, lease, hold));
    holds.retain(|hold| hold.from < hold.until);
    holds
}

fn lets_go(ask: &Ask) -> bool {
    match ask {
        Ask::Release(_) => true,
        Ask::Write(write) => write.then == Then::Release,
        _ => false,
    }
}

/// Takes away what nobody can promise: an operator's orders, and clocks that were set before the
/// machine was started anew.
fn excuse(facts: &Facts<'_>, lease: &Lease<'_>, hold: &mut Hold) {
    for op in &facts.history.ops {
        let Ask::Revoke { key, .. } = &op.ask else { continue };
        if key != lease.key || op.is_refused() {
            continue;
        }
        let meant = match op.answer() {
            Some(Answer::Revoked { owner: Some(_), token }) => *token == lease.token() + 1,
            Some(Answer::Revoked { owner: None, .. }) => false,
            Some(_) | None => true,
        };
        // One without an answer may have come about as long as its process lived.
        let dead = |happening: &Happening| *happening == Happening::Crashed { process: op.process };
        let gone = facts.when(dead).next().is_some_and(|dead| dead < lease.asked);
        if meant && !(op.is_open() && gone) {
            hold.until = hold.until.min(op.sent.max(hold.from));
        }
    }
    for boot in facts.when(|happening| *happening == Happening::Rebooted) {
        if facts.is_stepped(lease.asked, boot, |by_ms| by_ms > 0) {
            hold.until = hold.until.min(boot.max(hold.from));
        }
    }
}

pub(super) fn one_holder_at_a_time(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, leases) in &facts.leases {
        let mut all: Vec<(Hold, u64)> = Vec::new();
        for lease in leases {
            let holds = holds(facts, lease, Refusals::End);
            all.extend(holds.into_iter().map(|hold| (hold, lease.token())));
        }
        all.sort_by_key(|(hold, _)| hold.from);
        let mut latest: Option<(Hold, u64)> = None;
        for (hold, token) in all {
            if let Some((before, other)) = latest
                && other != token
                && hold.from < before.until
            {
                wrong.push(format!(
                    "{key} was held under token {other} until {:?} and under {token} from {:?}",
                    before.until, hold.from
                ));
            }
            if latest.is_none_or(|(before, _)| before.until < hold.until) {
                latest = Some((hold, token));
            }
        }
    }
    wrong
}

pub(super) fn a_live_lease_is_honoured(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for lease in facts.all_leases() {
        let holds = holds(facts, lease, Refusals::Ignore);
        for op in lease.ops.iter().filter(|op| op.is_lost()) {
            let Some((heard, _)) = op.heard else { continue };
            if holds.iter().any(|hold| hold.from < op.sent && heard < hold.until) {
                let number = number(facts.history, op);
                wrong.push(format!("{number} was refused while its lease was held"));
            }
        }
    }
    wrong
}

/// The last moment at which the server may have taken a lease for live.
fn upper_end(facts: &Facts<'_>, lease: &Lease<'_>, before: &[&Op]) -> Option<Moment> {
    let (mut from, mut ttl_ms) = (lease.known, lease.ttl_ms);
    let mut longest = ttl_ms;
    for op in before {
        let Ask::Keepalive { ttl_ms: asked, .. } = &op.ask else { continue };
        match &op.heard {
            Some((heard, Answer::Renewed { ttl_ms: renewed })) => {
                (from, ttl_ms) = (*heard, *renewed);
                longest = longest.max(ttl_ms);
            }
            Some(_) if op.is_refused() => {}
            Some(_) | None => {
                asked.as_ref()?;
                return None;
            }
        }
    }
    let mut end = after(from, ttl_ms);
    // With the clock set back, a reboot leaves at most the whole time to live from its start on.
    for boot in facts.when(|happening| *happening == Happening::Rebooted) {
        if facts.is_stepped(lease.asked, boot, |by_ms| by_ms < 0) {
            end = end.max(after(boot, longest + RESTART_MS_MAX));
        }
    }
    Some(end)
}

/// A process starts within this time after a reboot.
const RESTART_MS_MAX: u64 = 1_000;

pub(super) fn an_ended_lease_stays_ended(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for lease in facts.all_leases() {
        for (place, op) in lease.ops.iter().enumerate() {
            let acts = matches!(op.ask, Ask::Write(_) | Ask::Keepalive { .. } | Ask::View { .. });
            if !acts || !op.is_done() || facts.is_repeat(op) {
                continue;
            }
            let before = lease.ops.get(..place).unwrap_or_default();
            let ran_out = upper_end(facts, lease, before).is_some_and(|end| op.sent >= end);
            if ran_out || facts.is_over(lease, op.sent) {
                let number = number(facts.history, op);
                wrong.push(format!("{number} was done although its lease was over"));
            }
        }
    }
    wrong
}
