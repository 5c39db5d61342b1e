//! What becomes of a message, one rule at a time.

use bytes::Bytes;

use super::{
    Back, Deliver, Delivered, Enqueue, EnqueueRefused, MessageRefused, NotDelivered, Place,
    Receipt, Which, ack, deliver, discard, enqueue, etag, extend, keep_state, lend_state, nack,
    place, redrive, undeliver,
};
use crate::fence::{Fence, FenceCondition, FenceFacts};
use crate::ids::{LeaseId, TxnId};
use crate::key::KeyName;
use crate::lease::{self, Acquire, InTxn, Proof, Release};
use crate::record::{Content, Decided, Effect, End, Etag, KeyRecord, Lease, State};
use crate::time::{Now, Span, Tick, UnixMillis};
use crate::txn::{self, Outcome, Why};

fn at(ms: u64) -> Now {
    Now { tick: Tick(ms), wall: UnixMillis(1_000_000 + ms) }
}

fn txn_id() -> TxnId {
    TxnId::parse("0000000000000000000a").unwrap()
}

fn ask() -> Enqueue {
    let content = Content::Blob("ns/q~jobs~msg~1/0-x".into());
    Enqueue {
        payload: State { etag: Etag([7; 32]), bytes: 3, content },
        content_type: "text/plain".into(),
        correlation: "c".into(),
        attributes: None,
        delay: Span::ZERO,
        visibility: Span(100),
        ttl: None,
        max_attempts: 2,
        txn: None,
        fences: Vec::new(),
    }
}

fn queued(change: impl FnOnce(&mut Enqueue)) -> KeyRecord {
    let mut ask = ask();
    change(&mut ask);
    stored(enqueue(&KeyRecord::default(), &ask, &FenceFacts::default(), at(0)).unwrap())
}

/// The record as it would be read back.
fn stored<A>(decided: Decided<A>) -> KeyRecord {
    KeyRecord { stored: true, ..decided.record.unwrap() }
}

fn consumer(id: &str) -> Deliver {
    Deliver {
        new_id: LeaseId::new(id),
        owner: "worker".into(),
        txn: txn_id(),
        recorded: false,
        visibility: None,
        visibility_max: Span(1_000),
        stateful: false,
    }
}

fn delivered(record: &KeyRecord, id: &str, now: Now) -> KeyRecord {
    stored(deliver(record, &consumer(id), now).unwrap())
}

fn proof(id: &str) -> Proof {
    Proof { lease: LeaseId::new(id), fence: None, txn: None }
}

fn receipt(id: &str) -> Receipt {
    Receipt { proof: proof(id), etag: None }
}

fn acked(record: &KeyRecord, id: &str, now: Now) -> Result<Decided<()>, MessageRefused> {
    ack(record, &proof(id), &[], &FenceFacts::default(), now)
}

fn counts(record: &KeyRecord) -> (u32, u32) {
    let message = record.message.as_ref().unwrap();
    (message.attempts, message.failures)
}

#[test]
fn a_message_is_delivered_to_one_and_gone_when_acknowledged() {
    let record = delivered(&queued(|_| {}), "1", at(1));
    assert_eq!(counts(&record), (1, 0));
    assert_eq!(place(&record), Some(Place::InFlight));
    assert_eq!(deliver(&record, &consumer("2"), at(2)).unwrap_err(), NotDelivered::Held);
    let gone = acked(&record, "1", at(2)).unwrap();
    assert!(gone.effects.contains(&Effect::DropBlob("ns/q~jobs~msg~1/0-x".into())));
    let gone = gone.record.unwrap();
    assert_eq!(place(&gone), Some(Place::Gone));
}

#[test]
fn nothing_is_delivered_before_its_time() {
    let record = queued(|ask| ask.delay = Span(50));
    let NotDelivered::NotYet(visible) = deliver(&record, &consumer("1"), at(49)).unwrap_err()
    else {
        panic!("too early")
    };
    assert_eq!(visible.tick, Tick(50));
    assert!(deliver(&record, &consumer("1"), at(50)).is_ok());
}

#[test]
fn the_visibility_given_at_enqueue_is_honoured_unless_the_consumer_says_otherwise() {
    let record = queued(|_| {});
    let ttl = |ask: &Deliver| deliver(&record, ask, at(0)).unwrap().record.unwrap().lease.unwrap();
    assert_eq!(ttl(&consumer("1")).ttl, Span(100));
    let longer = Deliver { visibility: Some(Span(5_000)), ..consumer("1") };
    assert_eq!(ttl(&longer).ttl, Span(1_000), "the server's limit");
}

#[test]
fn a_delivery_that_times_out_counts_as_failed_and_the_last_one_kills() {
    let mut record = queued(|_| {});
    for round in 1..=2 {
        record = delivered(&record, "1", at(round * 1_000));
        let late = at(round * 1_000 + 100);
        record = stored(lease::lapse(&record, late).unwrap().unwrap());
    }
    assert_eq!(counts(&record), (2, 2));
    assert_eq!(place(&record), Some(Place::Dead(at(2_100).wall)));
    assert_eq!(deliver(&record, &consumer("2"), at(9_000)).unwrap_err(), NotDelivered::Gone);
}

#[test]
fn given_back_as_failed_it_counts_and_deferred_it_does_not() {
    let record = delivered(&queued(|_| {}), "1", at(0));
    let back = Back { failed: false, delay: Span(40), error: None };
    let deferred = stored(nack(&record, &receipt("1"), &back, at(10)).unwrap());
    assert_eq!(counts(&deferred), (1, 0));
    assert_eq!(place(&deferred), Some(Place::Queued(at(50).plus(Span::ZERO))));
    let error: Box<str> = r#"{"why":"no"}"#.into();
    let back = Back { failed: true, delay: Span::ZERO, error: Some(error.clone()) };
    let failed = stored(nack(&record, &receipt("1"), &back, at(10)).unwrap());
    assert_eq!(counts(&failed), (1, 1));
    assert_eq!(failed.message.as_ref().unwrap().last_error, Some(error));
    let again = delivered(&failed, "2", at(11));
    let dead = stored(nack(&again, &receipt("2"), &back, at(12)).unwrap());
    assert_eq!(place(&dead), Some(Place::Dead(at(12).wall)));
}

#[test]
fn without_a_limit_a_message_never_dies() {
    let mut record = queued(|ask| ask.max_attempts = 0);
    for round in 0..20 {
        record = delivered(&record, "1", at(round));
        let back = Back { failed: true, ..Back::default() };
        record = stored(nack(&record, &receipt("1"), &back, at(round)).unwrap());
    }
    assert_eq!(counts(&record), (20, 20));
    assert!(matches!(place(&record), Some(Place::Queued(_))));
}

#[test]
fn a_stale_lease_can_do_nothing() {
    let first = delivered(&queued(|_| {}), "1", at(0));
    let lapsed = stored(lease::lapse(&first, at(200)).unwrap().unwrap());
    let second = delivered(&lapsed, "2", at(201));
    for record in [&lapsed, &second] {
        assert_eq!(acked(record, "1", at(202)).unwrap_err(), MessageRefused::LeaseMismatch);
        let refused = nack(record, &receipt("1"), &Back::default(), at(202)).unwrap_err();
        assert_eq!(refused, MessageRefused::LeaseMismatch);
        let refused = extend(record, &receipt("1"), None, at(202)).unwrap_err();
        assert_eq!(refused, MessageRefused::LeaseMismatch);
    }
    // Out of time, though nobody has noticed yet.
    assert_eq!(acked(&first, "1", at(100)).unwrap_err(), MessageRefused::LeaseMismatch);
    let missing = acked(&KeyRecord::default(), "1", at(0)).unwrap_err();
    assert_eq!(missing, MessageRefused::NotFound);
}

#[test]
fn an_extension_counts_from_now_and_makes_a_new_etag() {
    let record = delivered(&queued(|_| {}), "1", at(0));
    let old = etag(&record);
    let longer = extend(&record, &receipt("1"), Some(Span(500)), at(90)).unwrap();
    assert_eq!(longer.answer.expires.tick, Tick(590));
    let record = stored(longer);
    assert_ne!(etag(&record), old);
    let stale = Receipt { etag: Some(old), ..receipt("1") };
    let refused = extend(&record, &stale, None, at(91)).unwrap_err();
    assert_eq!(refused, MessageRefused::Etag { current: etag(&record) });
    let same = extend(&record, &receipt("1"), None, at(91)).unwrap();
    assert_eq!(same.answer.ttl, Span(500), "as much as the delivery had");
    assert!(acked(&record, "1", at(91)).is_ok());
}

#[test]
fn a_delivery_that_never_arrived_leaves_no_trace() {
    let before = queued(|_| {});
    let record = delivered(&before, "1", at(70));
    let back = stored(undeliver(&record, &proof("1"), at(80)).unwrap());
    assert_eq!(counts(&back), (0, 0));
    assert_eq!(place(&back), place(&before), "at the place where it was");
    assert!(undeliver(&back, &proof("1"), at(81)).is_none());
}

#[test]
fn a_message_that_nobody_took_in_time_is_removed_instead() {
    let record = queued(|ask| ask.ttl = Some(Span(30)));
    assert!(discard(&record, Which::Expired, at(29)).is_none());
    assert!(discard(&record, Which::Expired, at(30)).unwrap().record.unwrap().gone);
    let taken = deliver(&record, &consumer("1"), at(30)).unwrap();
    assert_eq!(taken.answer, Delivered::Expired);
    assert!(taken.record.unwrap().gone);
    let held = delivered(&record, "1", at(29));
    assert!(discard(&held, Which::Expired, at(60)).is_none(), "its consumer may finish");
}

#[test]
fn operators_remove_what_waits_and_bring_back_what_is_dead() {
    let record = queued(|ask| ask.max_attempts = 1);
    assert!(discard(&record, Which::Waiting, at(1)).is_some());
    assert!(discard(&record, Which::Dead, at(1)).is_none());
    let held = delivered(&record, "1", at(1));
    assert!(discard(&held, Which::Waiting, at(2)).is_none());
    let back = Back { failed: true, ..Back::default() };
    let dead = stored(nack(&held, &receipt("1"), &back, at(3)).unwrap());
    assert!(discard(&dead, Which::Waiting, at(4)).is_none());
    assert!(discard(&dead, Which::Dead, at(4)).is_some());
    let again = stored(redrive(&dead, at(5)).unwrap());
    assert_eq!(counts(&again), (1, 0));
    assert!(deliver(&again, &consumer("2"), at(5)).is_ok());
    assert!(redrive(&again, at(6)).is_none());
}

#[test]
fn revoking_a_delivery_does_not_count_against_the_message() {
    let record = delivered(&queued(|_| {}), "1", at(0));
    let back = stored(lease::revoke(&record, "stuck", at(1)).unwrap().unwrap());
    assert_eq!(counts(&back), (1, 0));
    assert!(matches!(place(&back), Some(Place::Queued(_))));
}

#[test]
fn releasing_the_lease_of_a_message_acknowledges_it_or_gives_it_back() {
    let record = delivered(&queued(|_| {}), "1", at(0));
    let release = |rollback| {
        let ask = Release { proof: proof("1"), rollback, fences: Vec::new(), stamp: None };
        lease::release(&record, &ask, &FenceFacts::default(), at(1)).unwrap().record.unwrap()
    };
    assert!(release(false).gone);
    let back = release(true);
    assert_eq!((back.gone, counts(&back)), (false, (1, 1)));
}

#[test]
fn fences_are_tested_at_enqueue_and_ack() {
    let key = KeyName::parse("ns", "leader").unwrap();
    let fences = vec![FenceCondition { key: key.clone(), token: Fence(3) }];
    let holds = FenceFacts::new(vec![(key.clone(), Fence(3))]);
    let fails = FenceFacts::new(vec![(key, Fence(4))]);
    let asked = Enqueue { fences: fences.clone(), ..ask() };
    let refused = enqueue(&KeyRecord::default(), &asked, &fails, at(0)).unwrap_err();
    assert!(matches!(refused, EnqueueRefused::Fence(_)));
    let record = stored(enqueue(&KeyRecord::default(), &asked, &holds, at(0)).unwrap());
    let record = delivered(&record, "1", at(0));
    let refused = ack(&record, &proof("1"), &fences, &fails, at(1)).unwrap_err();
    assert!(matches!(refused, MessageRefused::Fence(_)));
    assert!(ack(&record, &proof("1"), &fences, &holds, at(1)).is_ok());
}

#[test]
fn a_key_that_is_taken_is_not_enqueued_to() {
    let taken = KeyRecord { stored: true, ..KeyRecord::default() };
    let refused = enqueue(&taken, &ask(), &FenceFacts::default(), at(0)).unwrap_err();
    assert_eq!(refused, EnqueueRefused::Taken);
}

fn message_key() -> KeyName {
    KeyName::parse("ns", "q/jobs/msg/0190b3a4-7c1d-7000-8000-00000000abcd").unwrap()
}

fn applied(record: &KeyRecord, outcome: &Outcome, now: Now) -> KeyRecord {
    stored(txn::apply(&message_key(), record, txn_id(), outcome, now).unwrap())
}

#[test]
fn what_a_transaction_enqueues_is_there_on_commit_only() {
    let record = queued(|ask| (ask.txn, ask.delay) = (Some(txn_id()), Span(10)));
    assert_eq!(place(&record), Some(Place::Draft));
    assert_eq!(deliver(&record, &consumer("1"), at(99)).unwrap_err(), NotDelivered::Gone);
    let kept = applied(&record, &Outcome::Commit, at(500));
    assert_eq!(place(&kept), Some(Place::Queued(at(510).plus(Span::ZERO))));
    assert!(txn::apply(&message_key(), &kept, txn_id(), &Outcome::Commit, at(501)).is_none());
    let dropped =
        txn::apply(&message_key(), &record, txn_id(), &Outcome::Rollback(Why::Asked), at(500));
    let dropped = dropped.unwrap();
    assert!(dropped.record.unwrap().gone);
    assert!(matches!(dropped.effects.as_slice(), [Effect::DropBlob(_)]));
}

#[test]
fn the_life_of_a_draft_begins_with_its_commit_and_no_clock_shortens_it() {
    let draft = |ask: &mut Enqueue| (ask.txn, ask.ttl) = (Some(txn_id()), Some(Span(10)));
    let kept = applied(&queued(draft), &Outcome::Commit, at(500));
    let far_ahead = Now { tick: Tick(509), wall: UnixMillis(9_999_999) };
    assert!(discard(&kept, Which::Expired, far_ahead).is_none());
    assert!(discard(&kept, Which::Expired, at(510)).is_some());
}

#[test]
fn in_a_transaction_commit_acknowledges_and_rollback_gives_back() {
    let ask = Deliver { recorded: true, ..consumer("1") };
    let record = stored(deliver(&queued(|_| {}), &ask, at(0)).unwrap());
    let refused = acked(&record, "1", at(1)).unwrap_err();
    assert_eq!(refused, MessageRefused::InTxn(InTxn(txn_id())));
    // Not redelivered before the decision, however late it comes.
    assert_eq!(deliver(&record, &consumer("2"), at(9_999)).unwrap_err(), NotDelivered::Held);
    assert!(lease::lapse(&record, at(9_999)).is_err());
    assert!(applied(&record, &Outcome::Commit, at(9_999)).gone);
    let back = applied(&record, &Outcome::Rollback(Why::Asked), at(9_999));
    assert_eq!((back.gone, counts(&back)), (false, (1, 1)));
}

fn state_lease(id: &str) -> Acquire {
    Acquire {
        new_id: LeaseId::new(id),
        owner: "worker".into(),
        txn: txn_id(),
        recorded: false,
        ttl: Span(100),
        if_not_exists: false,
        stamp: None,
    }
}

#[test]
fn the_state_of_a_message_goes_to_whoever_has_the_message() {
    let first = stored(lend_state(&KeyRecord::default(), &state_lease("1"), at(0)).unwrap());
    assert!(first.hidden);
    let second = stored(lend_state(&first, &state_lease("2"), at(1)).unwrap());
    assert_eq!(second.lease.as_ref().unwrap().id, LeaseId::new("2"));
    assert_eq!(second.fence, Fence(2));
    assert!(matches!(second.ended.unwrap().how, End::Lapsed { lost: false }));
}

#[test]
fn what_a_consumer_kept_is_there_for_the_next_one() {
    let mut record = stored(lend_state(&KeyRecord::default(), &state_lease("1"), at(0)).unwrap());
    let content = Content::Inline(Bytes::from_static(b"1"));
    let written = State { etag: Etag([1; 32]), bytes: 1, content };
    crate::state::begun(&mut record).change = crate::record::Change::Write(written.clone());
    let own = record.lease.clone().unwrap();
    let kept = |delivery: &Lease, now: Now| {
        let kept = keep_state(delivery, &record, &FenceFacts::default(), now).unwrap().unwrap();
        kept.record.unwrap()
    };
    assert_eq!(kept(&own, at(1)).state, Some(written));
    assert_eq!(kept(&own, at(1)).lease, None);
    let other = Lease { granted_at: UnixMillis(5), ..own.clone() };
    assert_eq!(kept(&other, at(1)).state, None, "left by an earlier consumer");
    assert_eq!(kept(&own, at(100)).state, None, "out of time");
}
