//! Waiting: who came later is not served earlier, and after everything works again nobody is left
//! without an answer.

use super::facts::{Facts, first_sent, number};
use crate::answer::Answer;
use crate::call::Ask;
use crate::history::{Happening, Moment, Op};

/// When an ask stopped to wait.
fn over(facts: &Facts<'_>, op: &Op) -> Option<Moment> {
    let crashed = facts.when(|what| *what == Happening::Crashed { process: op.process }).next();
    let heard = op.heard.as_ref().map(|(heard, _)| *heard);
    [heard, op.gave_up, crashed].into_iter().flatten().min()
}

pub(super) fn waiters_in_order(facts: &Facts<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (moment, happening) in &facts.history.happenings {
        let Happening::InLine { ops } = happening else { continue };
        for waiting in ops.iter().filter_map(|op| facts.history.ops.get(*op)) {
            for other in &facts.history.ops {
                if overtakes(facts, other, waiting, *moment) {
                    let (late, early) =
                        (number(facts.history, other), number(facts.history, waiting));
                    wrong.push(format!(
                        "{late} came after {early} stood in line and was served first"
                    ));
                }
            }
        }
    }
    wrong
}

fn overtakes(facts: &Facts<'_>, late: &Op, early: &Op, in_line: Moment) -> bool {
    let (Ask::Acquire(ask), Ask::Acquire(before)) = (&late.ask, &early.ask) else { return false };
    let Some((heard, Answer::Granted { .. })) = &late.heard else { return false };
    ask.key == before.key
        && late.process == early.process
        && first_sent(facts.history, late) > in_line
        && over(facts, early).is_none_or(|over| over > *heard)
}

pub(super) fn nobody_is_forgotten(facts: &Facts<'_>) -> Vec<String> {
    let Some(rest) = facts.when(|what| *what == Happening::AtRest).last() else {
        return Vec::new();
    };
    let mut wrong = Vec::new();
    for op in &facts.history.ops {
        let waits = op.sent < rest && over(facts, op).is_none_or(|over| over > rest);
        let unserved = op.sent > rest && !op.is_done();
        if waits || unserved {
            let number = number(facts.history, op);
            wrong.push(format!("{number} was not served although everything works"));
        }
    }
    wrong
}
