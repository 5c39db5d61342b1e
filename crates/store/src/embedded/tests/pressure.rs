//! The store under load: checkpoints beside readers, a bounded backlog, futures dropped anywhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::task::JoinSet;

use super::{eventually, healed, open, scratch, small};
use crate::conformance::{commit_one, delete, load, name as name_of, put};
use crate::embedded::EmbeddedOptions;
use crate::port::{Expect, Name, Revision, Store};

/// Every name is written all the time, so a page that lacks one, or shows one twice or out of
/// order, was caught between head, frozen generation and tree.
#[tokio::test(flavor = "multi_thread")]
async fn readers_see_every_record_while_checkpoints_run() {
    let folder = scratch();
    let store = open(small(folder.path()));
    let names: Vec<String> = (0..50).map(|at| format!("n{at:02}")).collect();
    for name in &names {
        commit_one(&*store, put(name, Expect::Absent, "0")).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        writers.spawn(async move {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                let name = format!("n{:02}", (round * 4 + writer) % 50);
                commit_one(&*store, put(name, Expect::Any, "x".repeat(100))).await.unwrap();
                // Noise that comes and goes between the names.
                let noise = format!("n{:02}-{writer}", round % 50);
                commit_one(&*store, put(&noise, Expect::Any, "y")).await.unwrap();
                commit_one(&*store, delete(&noise, Expect::Any)).await.unwrap();
                round += 1;
            }
        });
    }
    // What was seen once is never followed by something older.
    let mut newest: BTreeMap<String, Revision> = BTreeMap::new();
    let mut saw = |name: &str, revision: Revision| {
        let before = newest.insert(name.to_owned(), revision);
        assert!(before <= Some(revision), "{name} went back from {before:?} to {revision:?}");
    };
    while store.checkpoints() < 40 {
        let page = store.scan("n", None, 1000).await.unwrap();
        let seen: Vec<_> = page.iter().map(|(name, _)| name.to_string()).collect();
        assert!(seen.is_sorted(), "{seen:?}");
        for (name, stored) in &page {
            saw(name, stored.revision);
        }
        let kept: Vec<_> = seen.into_iter().filter(|name| name.len() == 3).collect();
        assert_eq!(kept, names);
        let first = store.scan("n", Some("n24"), 1).await.unwrap();
        assert!(first[0].0.starts_with("n24-") || &*first[0].0 == "n25", "{first:?}");
        for name in &names {
            saw(name, load(&*store, name).await.expect("it vanished").revision);
        }
        let all: Vec<Name> = names.iter().map(name_of).collect();
        for (name, stored) in names.iter().zip(store.load_many(&all).await.unwrap()) {
            saw(name, stored.expect("it vanished").revision);
        }
    }
    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
}

#[tokio::test]
async fn an_idle_store_moves_its_records_into_the_tree() {
    let folder = scratch();
    let mut options = EmbeddedOptions::new(folder.path());
    options.idle_after = Duration::from_millis(1);
    options.idle_bytes = 1;
    let store = open(options);
    commit_one(&*store, put("a", Expect::Absent, "x")).await.unwrap();
    eventually("a checkpoint", || store.checkpoints() > 0).await;
    assert!(load(&*store, "a").await.is_some());
}

/// Writers that never pause do not make head and log grow beyond their bounds.
#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_is_bounded() {
    let folder = scratch();
    let store = open(small(folder.path()));
    let mut writers = JoinSet::new();
    for writer in 0..16 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let mut most = 0;
            for round in 0..100 {
                let name = format!("w{writer}/{round}");
                commit_one(&*store, put(name, Expect::Absent, vec![0; 500])).await.unwrap();
                most = most.max(store.backlog_bytes());
            }
            most
        });
    }
    let most = writers.join_all().await.into_iter().max().unwrap();
    // Four times the threshold, and one batch on top.
    assert!(most < 4 * 4096 + 16 * 1024, "{most} bytes waited for a checkpoint");
    assert_eq!(store.scan("w", None, 10_000).await.unwrap().len(), 1600);
}

#[tokio::test(flavor = "multi_thread")]
async fn blob_futures_can_be_dropped_at_any_await() {
    let folder = scratch();
    let store = open(small(folder.path()));
    let chunk = || Bytes::from(vec![7; 300_000]);
    for polls in 0..40 {
        // Cuts the whole upload off after so many turns of the runtime.
        let upload = async {
            let mut writer = store.put_blob(&format!("up/{polls}")).await.unwrap();
            for _ in 0..8 {
                writer.write(chunk()).await.unwrap();
            }
            writer.finish().await.unwrap();
        };
        let turns = async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! { biased; () = upload => {}, () = turns => {} }
    }
    // A write dropped in the middle loses its chunk at most, and the writer can go on.
    let mut writer = store.put_blob("resumed").await.unwrap();
    let mut sent = 0;
    for _ in 0..30 {
        if writer.write(chunk()).now_or_never().is_some() {
            sent += 300_000;
        }
    }
    writer.finish().await.unwrap();
    let mut reader = store.get_blob("resumed").await.unwrap();
    let mut read = 0;
    loop {
        // Dropped now and then while it waits; nothing is skipped for that.
        if let Some(done) = reader.next().now_or_never() {
            match done.unwrap() {
                Some(chunk) => read += chunk.len(),
                None => break,
            }
        } else {
            tokio::task::yield_now().await;
        }
    }
    assert!(read >= sent, "{read} of {sent}");
    for name in store.list_blobs(Some("up/"), 100).await.unwrap() {
        let whole = store.get_blob(&name).await.is_ok();
        assert!(whole || name == "resumed", "{name} is left behind unfinished");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_observer_sees_every_batch() {
    use std::sync::atomic::AtomicU64;

    #[derive(Default)]
    struct Count(AtomicU64);
    impl crate::port::Observer for Count {
        fn batch_synced(&self, commits: usize, _nanos: u64) {
            self.0.fetch_add(commits as u64, Ordering::Relaxed);
        }
    }
    let folder = scratch();
    let count = Arc::new(Count::default());
    let mut options = small(folder.path());
    options.observer = Some(Arc::clone(&count) as _);
    let store = open(options);
    for at in 0..20 {
        commit_one(&*store, put(format!("k{at}"), Expect::Absent, "x")).await.unwrap();
    }
    assert_eq!(count.0.load(Ordering::Relaxed), 20);
    let gauges = store.gauges();
    assert_eq!((gauges.commits, gauges.reopened), (20, 0));
    assert!(gauges.batches <= 20 && gauges.batches > 0 && gauges.size_bytes > 0);
    healed(&*store).await;
}
