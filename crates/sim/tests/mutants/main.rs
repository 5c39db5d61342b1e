//! Worlds that lie, to show that the checker notices: a store, a clock, a server or a record of
//! what happened that breaks one promise each. Every invariant has somebody who breaks it.

#![allow(
    clippy::wildcard_enum_match_arm,
    clippy::collapsible_match,
    clippy::collapsible_if,
    clippy::type_complexity,
    reason = "a mutant spoils the few cases it is about"
)]

mod clock;
mod door;
mod record;
mod store;

use std::sync::Arc;

use lockd_sim::check::{judge, names};
use lockd_sim::history::History;
use lockd_sim::world::{Edges, Plan, play};

/// One lie and the promise that it breaks.
struct Mutant {
    name: &'static str,
    breaks: &'static str,
    edges: Edges,
    /// Makes the lie matter more often.
    plan: fn(&mut Plan),
    /// Changes what was written down.
    record: fn(&mut History),
}

/// The lie must be noticed within this many histories.
const SEEDS: u64 = 600;

fn mutant(name: &'static str, breaks: &'static str) -> Mutant {
    Mutant { name, breaks, edges: Edges::default(), plan: |_| {}, record: |_| {} }
}

fn of_store(name: &'static str, breaks: &'static str, lie: store::Lie) -> Mutant {
    let edges = Edges { store: Arc::new(move |s| store::lying(s, lie)), ..Edges::default() };
    Mutant { edges, ..mutant(name, breaks) }
}

fn of_clock(name: &'static str, breaks: &'static str, lie: clock::Lie) -> Mutant {
    let edges = Edges { clock: Arc::new(move |c| clock::lying(c, lie)), ..Edges::default() };
    Mutant { edges, ..mutant(name, breaks) }
}

fn of_door(name: &'static str, breaks: &'static str, lie: door::Lie) -> Mutant {
    let edges = Edges { door: Arc::new(move |d| door::lying(d, lie)), ..Edges::default() };
    Mutant { edges, ..mutant(name, breaks) }
}

fn of_record(name: &'static str, breaks: &'static str, record: fn(&mut History)) -> Mutant {
    Mutant { record, ..mutant(name, breaks) }
}

fn mutants() -> Vec<Mutant> {
    let often_large = Mutant {
        plan: |plan| plan.large = 500,
        ..of_store(
            "cuts blobs",
            "refused_or_unanswered_write_is_whole_or_absent",
            store::Lie::CutsBlobs,
        )
    };
    vec![
        of_store("loses acked writes", "acked_write_survives", store::Lie::LosesWrites),
        of_store("acks before it is durable", "acked_write_survives", store::Lie::AcksEarly),
        of_store("shows what is not durable", "nothing_shown_then_gone", store::Lie::AcksEarly),
        of_store("lets two writers win", "tokens_strictly_grow", store::Lie::LetsTwoWin),
        of_store("lets two holders in", "one_holder_at_a_time", store::Lie::LetsTwoWin),
        of_store("reads stale records", "nothing_shown_then_gone", store::Lie::ReadsStale),
        of_store("loses the index of leases", "nobody_is_forgotten", store::Lie::LosesIndex),
        often_large,
        of_clock("jumps ahead", "one_holder_at_a_time", clock::Lie::JumpsAhead),
        of_clock("takes leases away early", "a_live_lease_is_honoured", clock::Lie::JumpsAhead),
        of_clock("runs slow", "an_ended_lease_stays_ended", clock::Lie::RunsSlow),
        of_door("replays lost writes", "lost_lease_write_never_visible", door::Lie::ReplaysLost),
        of_door("acks refused writes", "an_ended_lease_stays_ended", door::Lie::AcksRefused),
        of_door("commits writes it refused", "versions_grow_by_one", door::Lie::ReplaysLost),
        of_door("holds the first in line back", "waiters_in_order", door::Lie::HoldsBack),
        of_door("swallows an acquire", "nobody_is_forgotten", door::Lie::Swallows),
        of_door("forgets names", "same_request_same_answer", door::Lie::ForgetsNames),
        of_door("drops fence conditions", "fence_conditions_hold", door::Lie::DropsFences),
        of_door("rolls back every release", "acked_write_survives", door::Lie::RollsBack),
        of_door("reads key by key", "reads_are_of_one_moment", door::Lie::ReadsKeyByKey),
        of_door("hides staged data", "a_holder_sees_its_own_writes", door::Lie::HidesStaged),
        of_door("fails inside", "no_surprising_answers", door::Lie::FailsInside),
        of_record("repeats a token", "tokens_strictly_grow", record::repeat_token),
        of_record("skips a version", "versions_grow_by_one", record::skip_version),
        of_record("shows another document", "one_document_per_version", record::swap_document),
        of_record("loses an event", "watchers_hear_everything_in_order", record::lose_event),
        of_record("overlaps two holders", "one_holder_at_a_time", record::late_release),
    ]
}

/// The first seed at which the lie is noticed for what it is.
fn caught(mutant: &Mutant) -> Option<u64> {
    (0..SEEDS).find(|seed| {
        let mut plan = Plan::of(*seed);
        (mutant.plan)(&mut plan);
        // A server that cannot even start under a lie is no test of the checker.
        let Ok(mut history) = play(&plan, &mutant.edges) else { return false };
        (mutant.record)(&mut history);
        judge(&history).iter().any(|violation| violation.invariant == mutant.breaks)
    })
}

#[test]
fn every_lie_is_noticed() {
    let missed: Vec<_> = mutants()
        .iter()
        .filter(|mutant| caught(mutant).is_none())
        .map(|mutant| format!("{} should break {}", mutant.name, mutant.breaks))
        .collect();
    assert!(missed.is_empty(), "not noticed in {SEEDS} histories: {missed:#?}");
}

#[test]
fn every_invariant_has_somebody_who_breaks_it() {
    let mutants = mutants();
    let unbroken: Vec<_> =
        names().filter(|name| mutants.iter().all(|mutant| mutant.breaks != *name)).collect();
    assert!(unbroken.is_empty(), "{unbroken:?}");
    let unknown: Vec<_> =
        mutants.iter().filter(|mutant| names().all(|name| name != mutant.breaks)).collect();
    assert!(unknown.is_empty());
}
