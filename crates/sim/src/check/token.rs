//! Tokens: one per lease, greater with every grant, never seen to go back.

use std::collections::HashMap;

use super::facts::{Facts, first_sent, number};
use crate::answer::Answer;
use crate::call::Ask;
use crate::history::{Moment, Op};

/// The token that an answer shows of a key.
fn shown(op: &Op) -> Option<(&str, u64)> {
    match (&op.ask, op.answer()?) {
        (Ask::Acquire(ask), Answer::Granted { held, .. }) => Some((&ask.key, held.token)),
        (Ask::Describe { key }, Answer::Described(described)) => Some((key, described.token)),
        (Ask::Revoke { key, .. }, Answer::Revoked { token, .. }) => Some((key, *token)),
        _ => None,
    }
}

pub(super) fn tokens_strictly_grow(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = same_token_twice(facts);
    let heard = |op: &Op| op.heard.as_ref().map(|(heard, _)| *heard);
    let seen: Vec<(&Op, &str, u64)> = facts
        .history
        .ops
        .iter()
        .filter_map(|op| shown(op).map(|(key, token)| (op, key, token)))
        .collect();
    // The highest token of a key that was shown before a moment.
    let floor = |key: &str, by: Moment| {
        let before = seen.iter().filter(|(op, other, _)| *other == key && heard(op) < Some(by));
        before.map(|(_, _, token)| *token).max().unwrap_or(0)
    };
    for (op, key, token) in &seen {
        let floor = floor(key, first_sent(facts.history, op));
        let grows = match op.ask {
            Ask::Acquire(_) => *token > floor,
            _ => *token >= floor,
        };
        if !grows {
            let number = number(facts.history, op);
            wrong.push(format!("{number} shows token {token} of {key} after {floor} was shown"));
        }
    }
    wrong
}

fn same_token_twice(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut tokens: HashMap<(&str, u64), &str> = HashMap::new();
    let mut leases: HashMap<&str, u64> = HashMap::new();
    for op in &facts.history.ops {
        let (Ask::Acquire(ask), Some(Answer::Granted { held, .. })) = (&op.ask, op.answer()) else {
            continue;
        };
        let lease = tokens.entry((&ask.key, held.token)).or_insert(&held.lease_id);
        let token = leases.entry(&held.lease_id).or_insert(held.token);
        if *lease != held.lease_id || *token != held.token {
            let number = number(facts.history, op);
            wrong.push(format!("{number}: token {} of {} was granted twice", held.token, ask.key));
        }
    }
    wrong
}
