//! Writes under a lease: what is staged, what is committed, and what is refused.

use super::{Guard, Stage, StageRefused, Then, stage};
use crate::answer::Stamp;
use crate::fence::{Fence, FenceCondition, FenceFacts};
use crate::ids::{LeaseId, TxnId};
use crate::key::KeyName;
use crate::lease::{self, Acquire, Proof, ProofRefused, Release};
use crate::record::{Change, Content, Decided, Effect, Etag, KeyRecord, State, Version};
use crate::time::{Now, Span, Tick, UnixMillis};

fn at(ms: u64) -> Now {
    Now { tick: Tick(ms), wall: UnixMillis(1_000_000 + ms) }
}

fn held() -> KeyRecord {
    let ask = Acquire {
        new_id: LeaseId::new("a"),
        owner: "worker".into(),
        txn: TxnId::parse("00000000000000000000").unwrap(),
        recorded: false,
        ttl: Span(10_000),
        if_not_exists: false,
        stamp: None,
    };
    stored(lease::acquire(&KeyRecord::default(), &ask, at(0)).unwrap())
}

fn stored<A>(decided: Decided<A>) -> KeyRecord {
    let mut record = decided.record.expect("the decision changes the record");
    record.stored = true;
    record
}

fn proof() -> Proof {
    Proof { lease: LeaseId::new("a"), fence: Some(Fence(1)), txn: None }
}

fn document(name: &str) -> Change {
    let etag = Etag([u8::try_from(name.len()).unwrap(); 32]);
    Change::Write(State { etag, bytes: 9, content: Content::Blob(name.into()) })
}

fn write(change: Change, then: Then) -> Stage {
    Stage {
        proof: proof(),
        guard: Guard::default(),
        change,
        hidden: None,
        fences: Vec::new(),
        then,
        alone: false,
        stamp: None,
    }
}

fn run(record: &KeyRecord, ask: &Stage, ms: u64) -> Result<Decided<super::Written>, StageRefused> {
    stage(record, ask, &FenceFacts::default(), at(ms))
}

#[test]
fn staged_data_is_seen_by_the_holder_only() {
    let record = stored(run(&held(), &write(document("x"), Then::Stage), 1).unwrap());
    assert_eq!((record.version, &record.state), (Version(0), &None));
    let (version, state) = record.holder_view();
    assert_eq!((version, state.is_some()), (Version(1), true));
}

#[test]
fn many_updates_of_one_lease_are_one_version_and_the_last_wins() {
    let record = stored(run(&held(), &write(document("x"), Then::Stage), 1).unwrap());
    let second = run(&record, &write(document("xyz"), Then::Stage), 2).unwrap();
    assert_eq!(second.answer.version, Version(1));
    assert_eq!(second.effects, [Effect::DropBlob("x".into())]);
}

#[test]
fn committing_keeps_the_lease_and_grows_the_version_by_one() {
    let mut record = held();
    for round in 1..4 {
        let decided = run(&record, &write(document("x"), Then::Commit), round).unwrap();
        assert_eq!(decided.answer.version, Version(round));
        record = stored(decided);
        assert!(record.lease.is_some() && record.staged.is_none());
    }
}

#[test]
fn committing_and_releasing_in_one_step_ends_the_lease() {
    let decided = run(&held(), &write(document("x"), Then::Release), 1).unwrap();
    assert!(decided.effects.contains(&Effect::Committed));
    let record = stored(decided);
    assert!(record.lease.is_none());
    assert_eq!(record.version, Version(1));
    let again = Release { proof: proof(), rollback: false, fences: Vec::new(), stamp: None };
    assert!(lease::release(&record, &again, &FenceFacts::default(), at(2)).is_ok());
}

#[test]
fn a_write_that_arrives_after_its_lease_has_ended_is_refused() {
    let refused = run(&held(), &write(document("x"), Then::Commit), 10_000).unwrap_err();
    assert_eq!(refused, StageRefused::Proof(ProofRefused::Expired));
}

#[test]
fn guards_compare_with_what_the_holder_sees() {
    let guarded = |version, etag: Option<&str>, change| Stage {
        guard: Guard { version: Some(Version(version)), etag: etag.map(Into::into) },
        ..write(change, Then::Stage)
    };
    let record = held();
    assert!(matches!(
        run(&record, &guarded(1, None, document("x")), 1),
        Err(StageRefused::Version { current: Version(0), etag: None })
    ));
    let record = stored(run(&record, &guarded(0, Some(""), document("x")), 1).unwrap());
    assert!(matches!(
        run(&record, &guarded(1, Some("beef"), document("x")), 2),
        Err(StageRefused::Etag { current: Version(1), etag: Some(_) })
    ));
    let etag = Etag([1; 32]).to_string();
    assert!(run(&record, &guarded(1, Some(&etag), document("y")), 2).is_ok());
}

#[test]
fn removing_nothing_is_no_change_and_removing_something_is_a_version() {
    let nothing = run(&held(), &write(Change::Remove, Then::Stage), 1).unwrap();
    assert_eq!((nothing.record, nothing.answer.removed), (None, false));
    let record = stored(run(&held(), &write(document("x"), Then::Commit), 1).unwrap());
    let removed = run(&record, &write(Change::Remove, Then::Commit), 2).unwrap();
    assert!(removed.answer.removed);
    assert_eq!(removed.effects, [Effect::DropBlob("x".into()), Effect::Removed]);
    let record = stored(removed);
    assert_eq!((record.version, &record.state), (Version(2), &None));
}

#[test]
fn removing_what_is_staged_counts_as_a_version_of_its_own() {
    let record = stored(run(&held(), &write(document("x"), Then::Stage), 1).unwrap());
    let removed = run(&record, &write(Change::Remove, Then::Stage), 2).unwrap();
    assert_eq!((removed.answer.version, removed.answer.removed), (Version(2), true));
    let record = stored(removed);
    let again = run(&record, &write(Change::Remove, Then::Stage), 3).unwrap();
    assert_eq!((again.answer.version, again.answer.removed), (Version(2), false));
    let rewritten = run(&record, &write(document("y"), Then::Stage), 3).unwrap();
    assert_eq!(rewritten.answer.version, Version(2), "an update keeps the staged version");
    let committed = run(&record, &write(Change::Keep, Then::Commit), 3).unwrap();
    assert_eq!(stored(committed).version, Version(2));
}

#[test]
fn hiding_alone_is_a_commit_with_its_own_version() {
    let ask = Stage { hidden: Some(true), ..write(Change::Keep, Then::Commit) };
    let decided = run(&held(), &ask, 1).unwrap();
    assert!(decided.answer.hidden);
    let record = stored(decided);
    assert_eq!((record.version, record.hidden), (Version(1), true));
}

#[test]
fn a_repeated_write_is_answered_and_not_done_again() {
    let stamp = Some(Stamp { id: 9, request: 9 });
    let ask = Stage { stamp, ..write(document("x"), Then::Release) };
    let first = run(&held(), &ask, 1).unwrap();
    let answer = first.answer.clone();
    let record = stored(first);
    let again = run(&record, &ask, 60_000).unwrap();
    assert_eq!((again.record, again.answer), (None, answer));
    let other = Stage { stamp: Some(Stamp { id: 9, request: 8 }), ..ask };
    assert!(matches!(run(&record, &other, 2), Err(StageRefused::Reused(_))));
}

#[test]
fn a_repeated_staged_write_is_not_confirmed_after_its_lease_is_gone() {
    let stamp = Some(Stamp { id: 9, request: 9 });
    let ask = Stage { stamp, ..write(document("x"), Then::Stage) };
    let record = stored(run(&held(), &ask, 1).unwrap());
    assert!(run(&record, &ask, 2).unwrap().record.is_none());
    let refused = run(&record, &ask, 10_000).unwrap_err();
    assert_eq!(refused, StageRefused::Proof(ProofRefused::Expired));
}

#[test]
fn fence_conditions_are_tested_when_staged_and_again_when_committed() {
    let key = KeyName::parse("default", "leader").unwrap();
    let ask = Stage {
        fences: vec![FenceCondition { key: key.clone(), token: Fence(4) }],
        ..write(document("x"), Then::Stage)
    };
    let still = FenceFacts::new(vec![(key.clone(), Fence(4))]);
    let moved = FenceFacts::new(vec![(key, Fence(5))]);
    assert!(matches!(stage(&held(), &ask, &moved, at(1)), Err(StageRefused::Fence(_))));
    let record = stored(stage(&held(), &ask, &still, at(1)).unwrap());
    let commit = write(Change::Keep, Then::Commit);
    assert!(matches!(stage(&record, &commit, &moved, at(2)), Err(StageRefused::Fence(_))));
    assert!(stage(&record, &commit, &still, at(2)).is_ok());
}

#[test]
fn at_most_sixteen_answers_are_kept() {
    let mut record = held();
    for id in 0..40 {
        let stamp = Some(Stamp { id, request: 0 });
        record = stored(
            run(&record, &Stage { stamp, ..write(document("x"), Then::Commit) }, 1).unwrap(),
        );
    }
    assert_eq!(record.answers.len(), 16);
    assert_eq!(record.answers.last().unwrap().stamp.id, 39);
}

#[test]
fn an_etag_is_written_in_hexadecimal() {
    let mut bytes = [0; 32];
    bytes[0] = 0x0f;
    bytes[31] = 0xa9;
    assert_eq!(Etag(bytes).to_string(), format!("0f{}a9", "00".repeat(30)));
}
