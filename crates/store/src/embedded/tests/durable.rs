//! Durable first: while a sync is held up nothing of its batch is shown or answered, refusals
//! included.

use std::sync::Arc;

use futures_util::FutureExt;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};

use super::faults::FaultyDisk;
use super::{eventually, healed, open, scratch, small};
use crate::conformance::{commit_one, is_conflict, is_unavailable, load, put};
use crate::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::port::{Expect, Revision, Store, StoreError};

type Outcome = Result<Revision, StoreError>;

/// A store whose committer has one batch in its hands: the creation of `k`, and a second
/// creation of it that must be refused. The sync of that batch is held up.
async fn held(
    disk: &FaultyDisk,
    folder: &std::path::Path,
) -> (Arc<EmbeddedStore>, JoinHandle<Outcome>, JoinHandle<Outcome>, impl Drop) {
    let options = EmbeddedOptions { disk: Arc::new(disk.clone()), ..small(folder) };
    let store = open(options);
    let release = disk.release_at_the_end();
    disk.hold_syncs(true);
    let create = |at: &'static str| {
        let store = Arc::clone(&store);
        tasks().spawn(async move { commit_one(&*store, put(at, Expect::Absent, "x")).await })
    };
    // This one keeps the committer busy until both of the others wait in its queue.
    let busy = create("busy");
    wait_for_held_sync(disk).await;
    let winner = create("k");
    eventually("it waits", || store.queued() == 1).await;
    let loser = create("k");
    eventually("it waits too", || store.queued() == 2).await;
    let syncs = store.gauges().batches;
    disk.hold_next_sync();
    busy.await.unwrap().unwrap();
    assert_eq!(store.gauges().batches, syncs + 1);
    wait_for_held_sync(disk).await;
    (store, winner, loser, release)
}

fn tasks() -> tokio::runtime::Handle {
    tokio::runtime::Handle::current()
}

async fn wait_for_held_sync(disk: &FaultyDisk) {
    let disk = disk.clone();
    spawn_blocking(move || disk.wait_for_held_sync()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_shown_or_answered_before_it_is_durable() {
    let folder = scratch();
    let disk = FaultyDisk::default();
    let (store, mut winner, mut loser, _release) = held(&disk, folder.path()).await;
    for _ in 0..100 {
        assert!(load(&*store, "k").await.is_none(), "shown before it was durable");
        assert_eq!(store.scan("", None, 9).await.unwrap().len(), 1);
        assert!((&mut winner).now_or_never().is_none(), "answered before it was durable");
        assert!((&mut loser).now_or_never().is_none(), "refused because of what is not durable");
        tokio::task::yield_now().await;
    }
    disk.hold_syncs(false);
    let revision = winner.await.unwrap().unwrap();
    assert!(is_conflict(&loser.await.unwrap()));
    assert_eq!(load(&*store, "k").await.unwrap().revision, revision);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_does_not_outlive_the_batch_it_was_judged_by() {
    let folder = scratch();
    let disk = FaultyDisk::default();
    let (store, winner, loser, _release) = held(&disk, folder.path()).await;
    disk.fail_next_sync();
    disk.hold_syncs(false);
    let winner = winner.await.unwrap();
    assert!(matches!(winner, Err(StoreError::Unknown(_))), "{winner:?}");
    let loser = loser.await.unwrap();
    assert!(is_unavailable(&loser), "it may be wrong by now: {loser:?}");
    // Who asks now is not told of the time before.
    let asked = store.load(&Arc::from("k")).await;
    assert!(asked.is_err() || store.gauges().reopened == 1, "{asked:?}");
    healed(&*store).await;
    assert_eq!(store.gauges().reopened, 1);
    load(&*store, "busy").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_waits_shares_one_sync() {
    let folder = scratch();
    let disk = FaultyDisk::default();
    let options = EmbeddedOptions { disk: Arc::new(disk.clone()), ..small(folder.path()) };
    let store = open(options);
    let _release = disk.release_at_the_end();
    disk.hold_syncs(true);
    let mut commits = JoinSet::new();
    for at in 0..50 {
        let store = Arc::clone(&store);
        let op = put(format!("k{at}"), Expect::Absent, "x");
        commits.spawn(async move { commit_one(&*store, op).await.unwrap() });
        if at == 0 {
            wait_for_held_sync(&disk).await;
        }
    }
    eventually("all wait", || store.queued() == 49).await;
    disk.hold_syncs(false);
    commits.join_all().await;
    assert_eq!(store.gauges().batches, 2, "one alone, then all the others together");
}
