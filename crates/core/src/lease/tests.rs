//! Leases from grant to end: who gets a key, who keeps it, and what late holders are told.

use super::{
    Acquire, AcquireRefused, Proof, ProofRefused, Release, ReleaseRefused, acquire, check, lapse,
    release, renew, revoke,
};
use crate::answer::{Stamp, StampReused};
use crate::fence::{Fence, FenceCondition, FenceFacts};
use crate::ids::{LeaseId, TxnId};
use crate::key::KeyName;
use crate::record::{
    Change, Content, Decided, Effect, End, Etag, KeyRecord, Staged, State, Version,
};
use crate::time::{Now, Span, Tick, UnixMillis};

fn at(ms: u64) -> Now {
    Now { tick: Tick(ms), wall: UnixMillis(1_000_000 + ms) }
}

fn ask(id: &str) -> Acquire {
    Acquire {
        new_id: LeaseId::new(id),
        owner: "worker".into(),
        txn: TxnId::parse("00000000000000000000").unwrap(),
        recorded: false,
        ttl: Span(10_000),
        if_not_exists: false,
        stamp: None,
    }
}

fn proof(id: &str, fence: u64) -> Proof {
    Proof { lease: LeaseId::new(id), fence: Some(Fence(fence)), txn: None }
}

fn let_go(id: &str, fence: u64, rollback: bool) -> Release {
    Release { proof: proof(id, fence), rollback, fences: Vec::new(), stamp: None }
}

fn stored<A>(decided: Decided<A>) -> KeyRecord {
    let mut record = decided.record.expect("the decision changes the record");
    record.stored = true;
    record
}

fn held() -> KeyRecord {
    stored(acquire(&KeyRecord::default(), &ask("a"), at(0)).unwrap())
}

fn with_staged(mut record: KeyRecord) -> KeyRecord {
    let state = State { etag: Etag([1; 32]), bytes: 2, content: Content::Blob("blob/1".into()) };
    record.staged = Some(Staged {
        version: record.version.next(),
        change: Change::Write(state),
        attachments: None,
        hidden: None,
        fences: Vec::new(),
    });
    record
}

fn drops(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::DropBlob(_))).count()
}

#[test]
fn the_first_grant_has_token_one_and_each_further_one_more() {
    let record = held();
    assert_eq!(record.fence, Fence(1));
    let record =
        stored(release(&record, &let_go("a", 1, false), &FenceFacts::default(), at(1)).unwrap());
    let record = stored(acquire(&record, &ask("b"), at(2)).unwrap());
    assert_eq!(record.fence, Fence(2));
}

#[test]
fn tokens_start_above_the_floor_of_a_restored_store() {
    let record = stored(acquire(&KeyRecord::absent(Fence(700)), &ask("a"), at(0)).unwrap());
    assert_eq!(record.fence, Fence(701));
}

#[test]
fn a_live_lease_excludes_and_says_until_when() {
    let record = held();
    let refused = acquire(&record, &ask("b"), at(9_999)).unwrap_err();
    assert_eq!(refused, AcquireRefused::Held { until: at(10_000).plus(Span(0)) });
    let taken = acquire(&record, &ask("b"), at(10_000)).unwrap();
    let ended =
        Effect::Ended { owner: "worker".into(), fence: Fence(1), how: End::Lapsed { lost: false } };
    assert_eq!(taken.effects, [ended, Effect::Granted]);
}

#[test]
fn a_key_that_exists_is_not_acquired_as_new() {
    let ask = Acquire { if_not_exists: true, ..ask("b") };
    assert!(acquire(&KeyRecord::default(), &ask, at(0)).is_ok());
    assert_eq!(acquire(&held(), &ask, at(20_000)).unwrap_err(), AcquireRefused::Exists);
}

#[test]
fn a_repeated_acquire_gets_its_lease_again_while_it_lives() {
    let stamp = Some(Stamp { id: 1, request: 2 });
    let first = Acquire { stamp, ..ask("a") };
    let record = stored(acquire(&KeyRecord::default(), &first, at(0)).unwrap());
    let again = acquire(&record, &Acquire { stamp, ..ask("b") }, at(5)).unwrap();
    assert_eq!((again.record, again.answer.id), (None, LeaseId::new("a")));
    let other = Acquire { stamp: Some(Stamp { id: 1, request: 3 }), ..ask("b") };
    assert_eq!(acquire(&record, &other, at(5)).unwrap_err(), AcquireRefused::Reused(StampReused));
    let late = acquire(&record, &Acquire { stamp, ..ask("b") }, at(10_000)).unwrap();
    assert_eq!(late.answer.id, LeaseId::new("b"));
}

#[test]
fn only_the_holder_with_the_right_token_and_transaction_passes() {
    let record = held();
    assert!(check(&record, &proof("a", 1), at(9_999)).is_ok());
    assert_eq!(check(&record, &proof("a", 1), at(10_000)).unwrap_err(), ProofRefused::Expired);
    let fenced = ProofRefused::Fenced { current: Fence(1) };
    assert_eq!(check(&record, &proof("a", 2), at(1)).unwrap_err(), fenced);
    assert_eq!(check(&record, &proof("b", 1), at(1)).unwrap_err(), ProofRefused::NotHeld);
    let other = TxnId::parse("11111111111111111111").unwrap();
    let wrong = Proof { txn: Some(other), ..proof("a", 1) };
    assert_eq!(check(&record, &wrong, at(1)).unwrap_err(), ProofRefused::OtherTxn);
}

#[test]
fn a_former_holder_learns_what_became_of_its_lease() {
    let record = held();
    let next = stored(acquire(&record, &ask("b"), at(10_000)).unwrap());
    assert_eq!(check(&next, &proof("a", 1), at(10_001)).unwrap_err(), ProofRefused::Expired);
    let later = stored(acquire(&next, &ask("c"), at(30_000)).unwrap());
    let fenced = ProofRefused::Fenced { current: Fence(3) };
    assert_eq!(check(&later, &proof("a", 1), at(30_001)).unwrap_err(), fenced);
}

#[test]
fn renewing_counts_from_now_and_may_shorten() {
    let record = held();
    let renewed = stored(renew(&record, &proof("a", 1), Span(2_000), at(1_000)).unwrap());
    assert_eq!(renewed.lease.as_ref().unwrap().expires.tick, Tick(3_000));
    assert_eq!(renewed.fence, Fence(1));
    assert_eq!(
        renew(&renewed, &proof("a", 1), Span(2_000), at(3_000)).unwrap_err(),
        ProofRefused::Expired
    );
}

#[test]
fn releasing_commits_what_was_staged_and_repeats_its_answer() {
    let record = with_staged(held());
    let facts = FenceFacts::default();
    let released = release(&record, &let_go("a", 1, false), &facts, at(5)).unwrap();
    assert!(released.effects.contains(&Effect::Committed));
    let record = stored(released);
    assert_eq!((record.version, record.lease.is_none()), (Version(1), true));
    assert_eq!(record.fence, Fence(1));
    assert!(release(&record, &let_go("a", 1, false), &facts, at(6)).unwrap().record.is_none());
    assert_eq!(
        release(&record, &let_go("a", 1, true), &facts, at(6)).unwrap_err(),
        ReleaseRefused::Decided
    );
    assert_eq!(
        release(&record, &let_go("x", 1, false), &facts, at(6)).unwrap_err(),
        ReleaseRefused::Proof(ProofRefused::Fenced { current: Fence(1) })
    );
}

#[test]
fn rolling_back_forgets_what_was_staged_and_a_later_commit_is_refused() {
    let facts = FenceFacts::default();
    let released = release(&with_staged(held()), &let_go("a", 1, true), &facts, at(5)).unwrap();
    assert_eq!(drops(&released.effects), 1);
    let record = stored(released);
    assert_eq!((record.version, &record.staged), (Version(0), &None));
    assert!(release(&record, &let_go("a", 1, true), &facts, at(6)).is_ok());
    assert_eq!(
        release(&record, &let_go("a", 1, false), &facts, at(6)).unwrap_err(),
        ReleaseRefused::Proof(ProofRefused::Expired)
    );
}

#[test]
fn a_late_release_is_true_only_if_nothing_was_lost() {
    let facts = FenceFacts::default();
    let lost = with_staged(held());
    let ask = let_go("a", 1, false);
    let expired = ReleaseRefused::Proof(ProofRefused::Expired);
    assert_eq!(release(&lost, &ask, &facts, at(10_000)).unwrap_err(), expired);
    // What was told is written down: the lease is over for good.
    let ended = stored(release(&held(), &ask, &facts, at(10_000)).unwrap());
    assert!(ended.lease.is_none());
    let lapsed = stored(lapse(&lost, at(10_000)).unwrap().unwrap());
    assert_eq!(release(&lapsed, &ask, &facts, at(10_001)).unwrap_err(), expired);
    let lapsed = stored(lapse(&held(), at(10_000)).unwrap().unwrap());
    assert!(release(&lapsed, &ask, &facts, at(10_001)).is_ok());
}

#[test]
fn a_release_with_a_broken_fence_condition_changes_nothing() {
    let key = KeyName::parse("default", "leader").unwrap();
    let fences = vec![FenceCondition { key: key.clone(), token: Fence(4) }];
    let ask = Release { fences, ..let_go("a", 1, false) };
    let moved = FenceFacts::new(vec![(key.clone(), Fence(5))]);
    assert!(matches!(
        release(&with_staged(held()), &ask, &moved, at(5)),
        Err(ReleaseRefused::Fence(refused)) if refused.current == Fence(5)
    ));
    let still = FenceFacts::new(vec![(key, Fence(4))]);
    assert!(release(&with_staged(held()), &ask, &still, at(5)).is_ok());
}

#[test]
fn revoking_grows_the_token_and_tells_the_holder() {
    let revoked = revoke(&with_staged(held()), "stuck", at(5)).unwrap().unwrap();
    assert_eq!(drops(&revoked.effects), 1);
    let record = stored(revoked);
    assert_eq!((record.fence, record.version), (Fence(2), Version(0)));
    let told = ProofRefused::Revoked { reason: "stuck".into() };
    assert_eq!(check(&record, &proof("a", 1), at(6)).unwrap_err(), told);
    assert!(revoke(&record, "again", at(7)).unwrap().is_none());
}

#[test]
fn only_leases_that_ran_out_lapse() {
    assert!(lapse(&held(), at(9_999)).unwrap().is_none());
    let record = stored(lapse(&held(), at(10_000)).unwrap().unwrap());
    assert!(record.lease.is_none());
    assert!(lapse(&record, at(10_001)).unwrap().is_none());
}
