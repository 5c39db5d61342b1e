//! Transactions from the first key to the decision, and what late ones are told.

use super::*;
use crate::fence::Fence;
use crate::ids::LeaseId;
use crate::lease::Acquire;
use crate::record::{Change, Content, Etag, State, Version};
use crate::state::{Guard, Stage, StageRefused, Then};
use crate::time::{Span, Tick};

fn at(ms: u64) -> Now {
    Now { tick: Tick(ms), wall: UnixMillis(1_000_000 + ms) }
}

fn key(name: &str) -> KeyName {
    KeyName::parse("bank", name).unwrap()
}

fn txn(letter: char) -> TxnId {
    TxnId::parse(&letter.to_string().repeat(20)).unwrap()
}

fn document(byte: u8) -> State {
    State { etag: Etag([byte; 32]), bytes: 1, content: Content::Inline(vec![byte].into()) }
}

/// The key granted under a transaction, for a second.
fn held(name: &str, txn: TxnId, recorded: bool, now: Now) -> KeyRecord {
    let ask = Acquire {
        new_id: LeaseId::new(&format!("lease-{name}")),
        owner: "o".into(),
        txn,
        recorded,
        ttl: Span(1_000),
        if_not_exists: false,
        stamp: None,
    };
    lease::acquire(&KeyRecord::default(), &ask, now).unwrap().record.unwrap()
}

fn proof(name: &str) -> Proof {
    Proof { lease: LeaseId::new(&format!("lease-{name}")), fence: None, txn: None }
}

fn write(byte: u8, then: Then, alone: bool, name: &str) -> Stage {
    Stage {
        proof: proof(name),
        guard: Guard::default(),
        change: Change::Write(document(byte)),
        hidden: None,
        fences: Vec::new(),
        then,
        alone,
        stamp: None,
    }
}

fn staged(record: &KeyRecord, name: &str, byte: u8, now: Now) -> KeyRecord {
    let ask = write(byte, Then::Stage, false, name);
    state::stage(record, &ask, &FenceFacts::default(), now).unwrap().record.unwrap()
}

fn ask(outcome: Outcome, asker: Option<&str>) -> Settle {
    let by = asker.map_or(By::Order, |name| By::Holder {
        key: key(name),
        proof: proof(name),
        stamp: None,
    });
    Settle { txn: txn('t'), outcome, by, fences: Vec::new(), term: 0 }
}

/// Two keys of one transaction, the first with something staged.
fn two() -> (TxnRecord, Vec<(KeyName, KeyRecord)>) {
    let record = join(None, &[key("b"), key("a")], UnixMillis(9), at(0)).unwrap().unwrap();
    let a = staged(&held("a", txn('t'), true, at(0)), "a", 7, at(1));
    let b = held("b", txn('t'), true, at(0));
    (record, vec![(key("a"), a), (key("b"), b)])
}

fn settled(
    record: &TxnRecord,
    keys: &[(KeyName, KeyRecord)],
    ask: &Settle,
    now: Now,
) -> Result<Settled, DecideRefused> {
    settle(record, keys, ask, &FenceFacts::default(), now)
}

fn after(settled: &Settled, name: &str) -> KeyRecord {
    let found = settled.keys.iter().find(|(known, _)| *known == key(name)).unwrap();
    found.1.record.clone().unwrap()
}

#[test]
fn participants_are_kept_in_order_and_once() {
    let (record, _) = two();
    let names: Vec<&str> = record.participants.iter().map(|one| one.key.key()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(join(Some(&record), &[key("a")], UnixMillis(99), at(5)), Ok(None));
    let third = join(Some(&record), &[key("c")], UnixMillis(99), at(5)).unwrap().unwrap();
    assert_eq!((third.participants.len(), third.expires_at), (3, UnixMillis(99)));
    let many: Vec<KeyName> = (0..=PARTICIPANTS_MAX).map(|n| key(&format!("k{n}"))).collect();
    assert_eq!(join(None, &many, UnixMillis(1), at(0)), Err(JoinRefused::Full));
}

#[test]
fn a_decided_transaction_cannot_be_joined() {
    let (record, keys) = two();
    for outcome in [Outcome::Commit, Outcome::Rollback(Why::Lapsed)] {
        let decided = settled(&record, &keys, &ask(outcome, None), at(2)).unwrap();
        let refused = join(decided.record.as_ref(), &[key("c")], UnixMillis(1), at(3));
        assert_eq!(refused, Err(JoinRefused::Decided));
    }
}

#[test]
fn releasing_one_participant_commits_all_even_with_nothing_staged_there() {
    let (record, keys) = two();
    let settled = settled(&record, &keys, &ask(Outcome::Commit, Some("b")), at(2)).unwrap();
    let (a, b) = (after(&settled, "a"), after(&settled, "b"));
    assert_eq!((a.version, a.state), (Version(1), Some(document(7))));
    assert_eq!((b.version, b.state.as_ref()), (Version(0), None));
    for record in [&after(&settled, "a"), &b] {
        assert!(record.lease.is_none() && record.staged.is_none());
        assert_eq!(record.ended.as_ref().unwrap().how, End::Committed);
    }
    assert!(settled.record.unwrap().is_applied());
}

#[test]
fn a_stage_that_arrives_after_the_commit_finds_its_lease_gone() {
    let (record, keys) = two();
    let settled = settled(&record, &keys, &ask(Outcome::Commit, Some("a")), at(2)).unwrap();
    let late = state::stage(
        &after(&settled, "b"),
        &write(9, Then::Stage, false, "b"),
        &FenceFacts::default(),
        at(3),
    );
    assert_eq!(late.unwrap_err(), StageRefused::Proof(ProofRefused::NotHeld));
}

#[test]
fn a_lease_that_ran_out_does_not_stop_a_commit_and_never_an_apply() {
    let (record, mut keys) = two();
    // The asker has renewed; the other has not, and its time is over.
    keys[0].1 =
        lease::renew(&keys[0].1, &proof("a"), Span(9_000), at(500)).unwrap().record.unwrap();
    let settled = settled(&record, &keys, &ask(Outcome::Commit, Some("a")), at(5_000)).unwrap();
    assert_eq!(after(&settled, "a").state, Some(document(7)));
    assert_eq!(after(&settled, "b").ended.unwrap().how, End::Committed);
    // Long after, the same decision still reaches a key that it has not reached.
    let late = apply(&key("a"), &keys[0].1, txn('t'), &Outcome::Commit, at(99_999)).unwrap();
    assert_eq!(late.record.unwrap().state, Some(document(7)));
}

#[test]
fn the_first_lease_that_runs_out_rolls_all_back() {
    let (record, keys) = two();
    let mut lapsed = ask(Outcome::Rollback(Why::Lapsed), None);
    lapsed.by = By::Lapse(key("b"));
    let early = settled(&record, &keys, &lapsed, at(999)).unwrap_err();
    assert_eq!(early, DecideRefused::StillHeld);
    let settled = settled(&record, &keys, &lapsed, at(2_000)).unwrap();
    for name in ["a", "b"] {
        let record = after(&settled, name);
        assert_eq!((record.version, record.state.clone()), (Version(0), None));
        assert_eq!(record.ended.as_ref().unwrap().how, End::Lapsed { lost: true });
        // And the holder of the other key hears of it: its release did not commit.
        let release =
            lease::Release { proof: proof(name), rollback: false, fences: Vec::new(), stamp: None };
        let told = lease::release(&record, &release, &FenceFacts::default(), at(2_001));
        assert_eq!(told.unwrap_err(), ProofRefused::Expired.into());
    }
}

#[test]
fn a_key_in_a_transaction_is_not_decided_upon_alone() {
    let in_txn = lease::InTxn(txn('t'));
    let record = staged(&held("a", txn('t'), true, at(0)), "a", 7, at(1));
    let release =
        lease::Release { proof: proof("a"), rollback: false, fences: Vec::new(), stamp: None };
    for now in [at(2), at(5_000)] {
        let refused = lease::release(&record, &release, &FenceFacts::default(), now);
        assert_eq!(refused.unwrap_err(), in_txn.into());
    }
    assert_eq!(lease::lapse(&record, at(5_000)), Err(in_txn));
    assert_eq!(lease::revoke(&record, "r", at(2)).unwrap_err(), in_txn);
    let mut other = Acquire {
        new_id: LeaseId::new("other"),
        owner: "o".into(),
        txn: txn('u'),
        recorded: false,
        ttl: Span(1),
        if_not_exists: false,
        stamp: None,
    };
    let refused = lease::acquire(&record, &other, at(5_000)).unwrap_err();
    assert_eq!(refused, in_txn.into());
    other.if_not_exists = true;
    for then in [Then::Commit, Then::Release] {
        let refused =
            state::stage(&record, &write(8, then, false, "a"), &FenceFacts::default(), at(2));
        assert_eq!(refused.unwrap_err(), in_txn.into());
        let alone =
            state::stage(&record, &write(8, then, true, "a"), &FenceFacts::default(), at(2));
        assert_eq!(alone.unwrap().record.unwrap().state, Some(document(8)));
    }
}

#[test]
fn only_a_holder_of_a_participant_may_ask() {
    let (record, keys) = two();
    let mut stranger = ask(Outcome::Commit, None);
    stranger.by = By::Holder { key: key("a"), proof: proof("b"), stamp: None };
    let refused = settled(&record, &keys, &stranger, at(2)).unwrap_err();
    assert_eq!(refused, ProofRefused::NotHeld.into());
    let late = settled(&record, &keys, &ask(Outcome::Commit, Some("a")), at(5_000)).unwrap_err();
    assert_eq!(late, ProofRefused::Expired.into());
    let elsewhere = ask(Outcome::Commit, Some("c"));
    assert_eq!(
        settled(&record, &keys, &elsewhere, at(2)).unwrap_err(),
        ProofRefused::NotHeld.into()
    );
}

#[test]
fn a_decision_is_made_once_and_repeats_itself() {
    let (record, keys) = two();
    let first = settled(&record, &keys, &ask(Outcome::Commit, None), at(2)).unwrap();
    let decided = first.record.unwrap();
    let keys: Vec<_> = keys.into_iter().map(|(key, _)| (key, KeyRecord::default())).collect();
    let again = settled(&decided, &keys, &ask(Outcome::Commit, None), at(3)).unwrap();
    assert_eq!((again.record, again.keys.len()), (None, 0));
    let other = settled(&decided, &keys, &ask(Outcome::Rollback(Why::Asked), None), at(3));
    assert_eq!(other.unwrap_err(), DecideRefused::Conflict(Outcome::Commit));
}

#[test]
fn terms_only_grow() {
    let (record, _) = two();
    let (_, next) = decide(&record, &Outcome::Commit, 5, at(1)).unwrap();
    let decided = next.unwrap();
    assert_eq!(decided.term, 5);
    let decide = |term| decide(&decided, &Outcome::Commit, term, at(2));
    assert_eq!(decide(0).unwrap_err(), DecideRefused::TermRequired);
    assert_eq!(decide(4).unwrap_err(), DecideRefused::TermStale { stored: 5 });
    assert_eq!(decide(5).unwrap(), (Outcome::Commit, None));
    assert_eq!(decide(6).unwrap().1.unwrap().term, 6);
}

#[test]
fn fences_of_all_that_is_staged_are_tested_again_by_the_decision() {
    let (record, mut keys) = two();
    let leader = key("leader");
    let mut fenced = write(8, Then::Stage, false, "b");
    fenced.fences = vec![FenceCondition { key: leader.clone(), token: Fence(3) }];
    let facts = |token| FenceFacts::new(vec![(leader.clone(), Fence(token))]);
    let staged = state::stage(&keys[1].1, &fenced, &facts(3), at(1)).unwrap();
    keys[1].1 = staged.record.unwrap();
    let commit = ask(Outcome::Commit, Some("a"));
    let refused = settle(&record, &keys, &commit, &facts(4), at(2)).unwrap_err();
    assert!(matches!(refused, DecideRefused::Fence(_)), "{refused:?}");
    // Giving up needs no condition.
    let rollback = ask(Outcome::Rollback(Why::Asked), Some("a"));
    settle(&record, &keys, &rollback, &facts(4), at(2)).unwrap();
    settle(&record, &keys, &commit, &facts(3), at(2)).unwrap();
}

#[test]
fn a_revoked_key_gets_a_new_token_and_all_hear_the_reason() {
    let (record, keys) = two();
    let why = Why::Revoked { key: key("b"), reason: "stuck".into() };
    let settled = settled(&record, &keys, &ask(Outcome::Rollback(why), None), at(2)).unwrap();
    assert_eq!((after(&settled, "a").fence, after(&settled, "b").fence), (Fence(1), Fence(2)));
    for name in ["a", "b"] {
        let told = lease::check(&after(&settled, name), &proof(name), at(3)).unwrap_err();
        assert_eq!(told, ProofRefused::Revoked { reason: "stuck".into() });
    }
}

#[test]
fn a_lease_without_a_record_is_enrolled_while_it_lives() {
    let record = held("a", txn('t'), false, at(0));
    assert!(enrol(&record, txn('t'), at(5)).unwrap().lease.unwrap().recorded);
    assert_eq!(enrol(&record, txn('u'), at(5)), None, "another's");
    assert_eq!(enrol(&record, txn('t'), at(5_000)), None, "over");
    assert_eq!(enrol(&KeyRecord::default(), txn('t'), at(5)), None, "released");
}

#[test]
fn a_grant_that_nobody_heard_of_leaves_the_transaction_as_it_was() {
    let (record, keys) = two();
    let (next, freed) = withdraw(&record, &key("b"), &keys[1].1, txn('t'), at(2)).unwrap();
    assert_eq!(next.participants.len(), 1);
    assert!(freed.record.unwrap().lease.is_none());
    assert_eq!(withdraw(&record, &key("a"), &keys[0].1, txn('t'), at(2)), None, "it has written");
    let decided = settled(&record, &keys, &ask(Outcome::Commit, None), at(2)).unwrap();
    let decided = decided.record.unwrap();
    assert_eq!(withdraw(&decided, &key("b"), &keys[1].1, txn('t'), at(2)), None, "too late");
}

#[test]
fn a_key_of_another_transaction_is_left_alone() {
    for record in [
        held("a", txn('u'), true, at(0)),
        // The same id, but this lease decides for itself.
        held("a", txn('t'), false, at(0)),
        KeyRecord::default(),
    ] {
        assert_eq!(apply(&key("a"), &record, txn('t'), &Outcome::Commit, at(1)), None);
    }
}

/// However often and in whatever order a decision reaches the keys, each ends up the same.
#[test]
fn applying_is_idempotent() {
    let (_, keys) = two();
    for outcome in [Outcome::Commit, Outcome::Rollback(Why::Asked)] {
        for (name, once) in &keys {
            let first = apply(name, once, txn('t'), &outcome, at(2)).unwrap().record.unwrap();
            assert_eq!(apply(name, &first, txn('t'), &outcome, at(3)), None);
        }
    }
}
