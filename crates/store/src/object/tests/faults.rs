//! Answers that are lost, late or wrong.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use lockd_cloud::{Fault, Plan, Proxy, S3Double};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::super::{ObjectOptions, ObjectStore};
use super::{at, open};
use crate::conformance::{delete, load, name, put};
use crate::port::{Expect, Store, StoreError};

/// A double behind a proxy, and two servers' views of it.
struct World {
    double: S3Double,
    proxy: Proxy,
    /// Past the proxy, so to speak: never hit by faults.
    direct: Arc<ObjectStore>,
    through: Arc<ObjectStore>,
}

impl World {
    async fn start() -> Self {
        let double = S3Double::start().await;
        let proxy = Proxy::start(&double.endpoint()).await;
        let direct = open(&at(&double.endpoint(), "f"));
        let through = open(&ObjectOptions {
            timeout: Duration::from_millis(500),
            ..at(&proxy.endpoint(), "f")
        });
        Self { double, proxy, direct, through }
    }
}

async fn late_is_over(proxy: &Proxy) {
    while proxy.late() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_recognised() {
    for fault in [Fault::DropAnswer, Fault::ErrorAfter(StatusCode::INTERNAL_SERVER_ERROR)] {
        let world = World::start().await;
        world.proxy.arm(fault, Method::PUT, "records/k");
        let created = world.through.commit(vec![put("k", Expect::Absent, "one")]).await.unwrap();
        let seen = load(&*world.direct, "k").await.unwrap();
        assert_eq!((seen.bytes, vec![seen.revision]), (Bytes::from("one"), created.clone()));
        world.proxy.arm(fault, Method::PUT, "records/k");
        let expect = Expect::Revision(created[0]);
        let updated = world.through.commit(vec![put("k", expect, "two")]).await.unwrap();
        assert_eq!(load(&*world.direct, "k").await.unwrap().revision, updated[0]);
        assert_eq!(world.proxy.armed(), 0, "both faults struck");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn also_when_another_has_written_on_top_of_it() {
    let world = World::start().await;
    let first = world.through.commit(vec![put("k", Expect::Absent, "one")]).await.unwrap()[0];
    world.proxy.arm(Fault::DropAnswer, Method::PUT, "records/k");
    // The one whose answer is lost must look; until then it may not get there.
    let write = world.through.commit(vec![put("k", Expect::Revision(first), "two")]);
    let others = async {
        let second = loop {
            let seen = load(&*world.direct, "k").await.unwrap();
            if seen.bytes == "two" {
                break seen.revision;
            }
            tokio::task::yield_now().await;
        };
        let mut top = second;
        for number in 0..3 {
            let op = put("k", Expect::Revision(top), format!("three {number}"));
            top = world.direct.commit(vec![op]).await.unwrap()[0];
        }
        second
    };
    let (written, second) = tokio::join!(write, others);
    assert_eq!(written.unwrap(), vec![second], "its own, under what came later");
    assert_eq!(load(&*world.direct, "k").await.unwrap().bytes, "three 2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_lands_late_undoes_nothing() {
    let world = World::start().await;
    let first = world.through.commit(vec![put("k", Expect::Absent, "one")]).await.unwrap()[0];
    let late = Fault::Late(Duration::from_millis(300));
    world.proxy.arm(late, Method::PUT, "records/k");
    // Sent again at once, it takes effect; then the first one arrives.
    let second = world.through.commit(vec![put("k", Expect::Revision(first), "two")]).await;
    let second = second.unwrap()[0];
    let third = world.direct.commit(vec![put("k", Expect::Revision(second), "three")]).await;
    let third = third.unwrap()[0];
    late_is_over(&world.proxy).await;
    let seen = load(&*world.direct, "k").await.unwrap();
    assert_eq!((seen.bytes, seen.revision), (Bytes::from("three"), third));
    // The same bytes again have another version: nobody mistakes them for the old ones.
    let again = world.direct.commit(vec![put("k", Expect::Revision(third), "two")]).await.unwrap();
    let stale = world.through.commit(vec![put("k", Expect::Revision(second), "four")]).await;
    assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?} {again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_without_a_reason_are_asked_again() {
    let world = World::start().await;
    world.proxy.arm(Fault::Conflict, Method::PUT, "records/k");
    let first = world.through.commit(vec![put("k", Expect::Absent, "one")]).await.unwrap()[0];
    for fault in
        [Fault::Conflict, Fault::ErrorBefore(StatusCode::SERVICE_UNAVAILABLE), Fault::DropRequest]
    {
        world.proxy.arm(fault, Method::PUT, "records/k");
        let before = load(&*world.direct, "k").await.unwrap().revision;
        let op = put("k", Expect::Revision(before), format!("{fault:?}"));
        world.through.commit(vec![op]).await.unwrap();
    }
    assert_ne!(load(&*world.direct, "k").await.unwrap().revision, first);
    assert_eq!(world.proxy.armed(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_records_hold_their_place() {
    let world = World::start().await;
    let first = world.direct.commit(vec![put("k", Expect::Absent, "one")]).await.unwrap()[0];
    assert!(load(&*world.through, "k").await.is_some());
    world.direct.commit(vec![delete("k", Expect::Revision(first))]).await.unwrap();
    assert!(load(&*world.through, "k").await.is_none());
    assert!(world.double.object("lockd", "f/records/k").is_some(), "a tombstone");
    // One who never heard of it makes it anew; one who knew the old one does not.
    let stale = world.through.commit(vec![put("k", Expect::Revision(first), "two")]).await;
    assert!(matches!(stale, Err(StoreError::Conflict)), "{stale:?}");
    let fresh = open(&at(&world.double.endpoint(), "f"));
    let again = fresh.commit(vec![put("k", Expect::Absent, "two")]).await.unwrap()[0];
    assert_eq!(again.0, first.0 + 2);
    // Where nothing was, a tombstone stops one who is about to create.
    world.direct.commit(vec![delete("never", Expect::Never)]).await.unwrap();
    assert!(world.double.object("lockd", "f/records/never").is_some());
    for store in [&world.through, &fresh] {
        let late = store.commit(vec![put("never", Expect::Never, "late")]).await;
        assert!(matches!(late, Err(StoreError::Conflict)), "{late:?}");
    }
    assert!(load(&*world.direct, "never").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_says_so_and_comes_back() {
    let world = World::start().await;
    world.through.commit(vec![put("k", Expect::Absent, "one")]).await.unwrap();
    let short = open(&ObjectOptions {
        timeout: Duration::from_millis(50),
        patience: Duration::from_millis(200),
        ..at(&world.proxy.endpoint(), "f")
    });
    world.proxy.hold();
    let away = short.load(&name("k")).await;
    assert!(matches!(away, Err(StoreError::Unavailable(_))), "{away:?}");
    let unknown = short.commit(vec![put("new", Expect::Absent, "x")]).await;
    assert!(matches!(unknown, Err(StoreError::Unknown(_))), "{unknown:?}");
    assert!(short.health().is_err());
    world.proxy.release();
    assert!(short.load(&name("k")).await.unwrap().is_some());
    assert!(short.health().is_ok());
}

/// Counters that several raise through a store which loses answers, errs, and delivers late: every
/// increment that was confirmed is there, and none that was refused.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_done_twice_whatever_the_network_does() {
    let double = S3Double::start().await;
    let proxy = Proxy::start(&double.endpoint()).await;
    proxy.set_seed(7);
    proxy.set_plan(Plan {
        drop_request: 40,
        drop_answer: 60,
        error_before: 40,
        error_after: 60,
        conflict: 40,
        late: 40,
        late_up_to: Duration::from_millis(100),
        ..Plan::default()
    });
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..8_u64 {
        let store = open(&at(&proxy.endpoint(), "c"));
        tasks.spawn(async move {
            let mut rng = StdRng::seed_from_u64(worker);
            let (mut done, mut unknown) = (0_u64, 0_u64);
            for _ in 0..40 {
                let key = ["a", "b", "c"].choose(&mut rng).unwrap();
                let Ok(stored) = store.load(&name(key)).await else { continue };
                let (expect, count) = match &stored {
                    Some(stored) => {
                        let text = String::from_utf8(stored.bytes.to_vec()).unwrap();
                        (Expect::Revision(stored.revision), text.parse::<u64>().unwrap())
                    }
                    None => (Expect::Absent, 0),
                };
                match store.commit(vec![put(key, expect, (count + 1).to_string())]).await {
                    Ok(_) => done += 1,
                    Err(StoreError::Unknown(_)) => unknown += 1,
                    Err(StoreError::Conflict | StoreError::Unavailable(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
            (done, unknown)
        });
    }
    let (mut done, mut unknown) = (0, 0);
    while let Some(worker) = tasks.join_next().await {
        let (one, other) = worker.unwrap();
        done += one;
        unknown += other;
    }
    late_is_over(&proxy).await;
    let direct = open(&at(&double.endpoint(), "c"));
    let mut total = 0;
    for key in ["a", "b", "c"] {
        let stored = load(&*direct, key).await.unwrap();
        total += String::from_utf8(stored.bytes.to_vec()).unwrap().parse::<u64>().unwrap();
    }
    assert!(proxy.faults() > 50, "{} faults", proxy.faults());
    assert!(done > 50, "{done} done");
    assert!((done..=done + unknown).contains(&total), "{done} {unknown} {total}");
}
