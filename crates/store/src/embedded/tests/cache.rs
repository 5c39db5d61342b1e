//! What is kept in memory of the tree is what the tree holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::{open, scratch, small};
use crate::port::{Expect, Name, Op, Store, Write};

const NAMES: usize = 40;
const ROUNDS: u64 = 400;

fn name(number: usize) -> Name {
    format!("n/{number:03}").into()
}

fn put(number: usize, value: u64) -> Op {
    let bytes = Bytes::from(format!("{value:0>200}"));
    Op { name: name(number), expect: Expect::Any, write: Write::Put(bytes) }
}

/// Readers fill the cache from the tree while checkpoints replace what is in the tree: none may
/// leave an older record behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_never_sees_an_older_record_than_before() {
    let folder = scratch();
    let mut options = small(folder.path());
    // Room for a few records: they come and go.
    options.cache_bytes = 8 << 10;
    let store = open(options);
    store.commit((0..NAMES).map(|number| put(number, 0)).collect()).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..3 {
        let (store, over) = (Arc::clone(&store), Arc::clone(&over));
        readers.spawn(async move {
            let mut seen = [0; NAMES];
            let mut number = reader;
            while !over.load(Ordering::Relaxed) {
                number = (number * 7 + 3 + reader) % NAMES;
                let stored = store.load(&name(number)).await.unwrap().unwrap();
                let value: u64 = std::str::from_utf8(&stored.bytes).unwrap().parse().unwrap();
                assert!(seen[number] <= value, "{number}: {value} after {}", seen[number]);
                seen[number] = value;
                tokio::task::yield_now().await;
            }
        });
    }
    for round in 1..=ROUNDS {
        // Half of the records change, so that the others are read from the tree.
        let start = usize::try_from(round % 2).unwrap();
        store.commit((start..NAMES).step_by(2).map(|n| put(n, round)).collect()).await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = readers.join_next().await {
        ended.unwrap();
    }
    assert!(store.checkpoints() > 10, "{}", store.checkpoints());
    for number in 0..NAMES {
        let last = ROUNDS - u64::from(number % 2 != usize::try_from(ROUNDS % 2).unwrap());
        let stored = store.load(&name(number)).await.unwrap().unwrap();
        assert_eq!(std::str::from_utf8(&stored.bytes).unwrap().parse(), Ok(last), "{number}");
    }
    store.close().await;
}

/// A reader that was slow between reading the tree and keeping what it read.
#[tokio::test]
async fn what_was_read_before_a_checkpoint_is_not_kept_after_it() {
    let folder = scratch();
    let store = open(small(folder.path()));
    store.commit(vec![put(1, 1)]).await.unwrap();
    store.checkpoint_now();
    let (tree, generation) = {
        let state = store.shared().state.read();
        let published = state.published().unwrap();
        (Arc::clone(&published.tree), published.generation)
    };
    let old = tree.read(&name(1)).unwrap().unwrap();
    store.commit(vec![put(1, 2)]).await.unwrap();
    store.checkpoint_now();
    store.shared().keep(&name(1), &old, &tree, generation);
    let now = store.load(&name(1)).await.unwrap().unwrap();
    assert!(now.bytes.ends_with(b"2"), "{now:?}");
    store.close().await;
}

/// A deleted record does not come back from memory.
#[tokio::test]
async fn what_a_checkpoint_deletes_is_forgotten() {
    let folder = scratch();
    let store = open(small(folder.path()));
    store.commit(vec![put(1, 1)]).await.unwrap();
    store.checkpoint_now();
    assert!(store.load(&name(1)).await.unwrap().is_some());
    let delete = Op { name: name(1), expect: Expect::Any, write: Write::Delete };
    store.commit(vec![delete]).await.unwrap();
    store.checkpoint_now();
    assert_eq!(store.load(&name(1)).await.unwrap(), None);
    store.close().await;
}
