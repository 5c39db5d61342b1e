//! What must hold while many tasks use one store, and when futures are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt;
use tokio::task::JoinSet;

use super::{MakeStore, commit_one, is_conflict, load, name, put};
use crate::port::{Expect, Store, Stored};

const RACERS: usize = 16;
const ROUNDS: usize = 100;

pub async fn one_winner_per_revision(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &fixture.store;
    let mut current = commit_one(&**store, put("a", Expect::Absent, "start")).await.unwrap();
    for round in 0..ROUNDS {
        let mut racers = JoinSet::new();
        for racer in 0..RACERS {
            let store = Arc::clone(store);
            let op = put("a", Expect::Revision(current), format!("{round}/{racer}"));
            racers.spawn(async move { (racer, commit_one(&*store, op).await) });
        }
        let mut winner = None;
        while let Some(outcome) = racers.join_next().await {
            match outcome.unwrap() {
                (racer, Ok(revision)) => {
                    assert!(winner.is_none(), "two winners in round {round}");
                    winner = Some((racer, revision));
                }
                (_, lost) => assert!(is_conflict(&lost), "losers are told so: {lost:?}"),
            }
        }
        let Some((racer, revision)) = winner else { panic!("nobody won round {round}") };
        let stored = load(&**store, "a").await.unwrap();
        assert_eq!(stored.bytes, format!("{round}/{racer}"));
        assert_eq!(stored.revision, revision);
        current = revision;
    }
    store.close().await;
}

pub async fn one_creator_per_name(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &fixture.store;
    for round in 0..20 {
        let mut racers = JoinSet::new();
        for _ in 0..RACERS {
            let store = Arc::clone(store);
            let op = put(format!("n{round}"), Expect::Absent, "x");
            racers.spawn(async move { commit_one(&*store, op).await });
        }
        let outcomes = racers.join_all().await;
        let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert_eq!(won, 1, "round {round}");
    }
    store.close().await;
}

fn amount(stored: &Option<Stored>) -> i64 {
    let bytes = &stored.as_ref().unwrap().bytes;
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

/// Moves money from one account to the other until told to stop.
async fn move_money(
    store: Arc<dyn Store>,
    stop: Arc<AtomicBool>,
    moved: Arc<AtomicUsize>,
    step: i64,
) {
    let accounts = [name("account/a"), name("account/b")];
    while !stop.load(Ordering::Relaxed) {
        let loaded = store.load_many(&accounts).await.unwrap();
        let ops = vec![
            put(
                &accounts[0],
                Expect::unchanged(loaded[0].as_ref()),
                (amount(&loaded[0]) - step).to_string(),
            ),
            put(
                &accounts[1],
                Expect::unchanged(loaded[1].as_ref()),
                (amount(&loaded[1]) + step).to_string(),
            ),
        ];
        match store.commit(ops).await {
            Ok(_) => {
                moved.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => assert!(is_conflict::<()>(&Err(error.clone())), "{error}"),
        }
    }
}

pub async fn snapshots_show_one_moment(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &fixture.store;
    if store.abilities().snapshot && store.abilities().atomic_batch {
        let start = vec![
            put("account/a", Expect::Absent, "1000"),
            put("account/b", Expect::Absent, "1000"),
        ];
        store.commit(start).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let moved = Arc::new(AtomicUsize::new(0));
        let mut writers = JoinSet::new();
        for step in 1..=4 {
            let (stop, moved) = (Arc::clone(&stop), Arc::clone(&moved));
            writers.spawn(move_money(Arc::clone(store), stop, moved, step));
        }
        let accounts = [name("account/a"), name("account/b")];
        let mut looks = 0;
        while looks < 2000 || moved.load(Ordering::Relaxed) < 200 {
            looks += 1;
            let loaded = store.load_many(&accounts).await.unwrap();
            assert_eq!(amount(&loaded[0]) + amount(&loaded[1]), 2000, "money was in the air");
            let page = store.scan("account/", None, 2).await.unwrap();
            let [(_, one), (_, two)] = <[_; 2]>::try_from(page).unwrap();
            assert_eq!(amount(&Some(one)) + amount(&Some(two)), 2000, "scans are snapshots too");
        }
        stop.store(true, Ordering::Relaxed);
        writers.join_all().await;
    }
    store.close().await;
}

/// A commit whose future is dropped at its first wait has happened whole or not at all.
pub async fn dropped_commits_are_whole_or_nothing(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let batch = store.abilities().atomic_batch;
    for round in 0..100 {
        let mut ops = vec![put(format!("drop/{round}/a"), Expect::Absent, "x")];
        if batch {
            ops.push(put(format!("drop/{round}/b"), Expect::Absent, "x"));
        }
        drop(store.commit(ops).now_or_never());
    }
    // Behind everything that was sent before.
    commit_one(store, put("fence", Expect::Absent, "x")).await.unwrap();
    for round in 0..100 {
        let a = load(store, &format!("drop/{round}/a")).await;
        let b = load(store, &format!("drop/{round}/b")).await;
        assert!(!batch || a.is_some() == b.is_some(), "half a commit in round {round}");
        // Whatever happened, the record can be used on.
        let op = put(format!("drop/{round}/a"), Expect::unchanged(a.as_ref()), "y");
        commit_one(store, op).await.unwrap();
    }
    store.close().await;
}
