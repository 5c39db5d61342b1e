//! The same ask under the same name: done once, and answered alike each time.

use super::facts::{Facts, number};
use crate::answer::Answer;
use crate::call::Ask;
use crate::history::Op;

pub(super) fn same_request_same_answer(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let ops = &facts.history.ops;
    for (place, op) in ops.iter().enumerate() {
        if op.ask.idem().is_none() || !op.is_done() {
            continue;
        }
        let earlier = ops.get(..place).unwrap_or_default().iter();
        let mut same = earlier.filter(|other| other.client == op.client && other.ask == op.ask);
        if let Some(first) = same.find(|other| other.is_done())
            && !agree(first, op)
        {
            let (first, again) = (number(facts.history, first), number(facts.history, op));
            wrong.push(format!("{again} was answered otherwise than {first}"));
        }
    }
    wrong
}

fn agree(first: &Op, again: &Op) -> bool {
    match (&first.ask, first.answer(), again.answer()) {
        // While the lease lives it is the same one; afterwards there may be a newer one.
        (
            Ask::Acquire(_),
            Some(Answer::Granted { held, .. }),
            Some(Answer::Granted { held: other, .. }),
        ) => held == other || held.token < other.token,
        (_, first, again) => first == again,
    }
}
