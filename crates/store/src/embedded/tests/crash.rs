//! A workload with the disk failing, or the power going, at every single operation.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::faults::{Fault, FaultyDisk};
use super::{healed, scratch, small};
use crate::conformance::{delete, name, put};
use crate::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::port::{Expect, Op, Revision, Store, StoreError, Write};

const KEYS: usize = 8;
const COMMITS: usize = 60;

fn options(path: &Path, disk: &FaultyDisk) -> EmbeddedOptions {
    EmbeddedOptions { disk: Arc::new(disk.clone()), ..small(path) }
}

/// What a client knows: for each key what is there for certain, or what may be.
#[derive(Default)]
struct Ledger {
    /// The last state that was acknowledged.
    known: BTreeMap<String, Option<(Vec<u8>, Revision)>>,
    /// Commits whose outcome is unknown, newest last. At most one was ever under way, and none
    /// is sent before the last is resolved.
    doubt: Option<Vec<(String, Option<Vec<u8>>)>>,
    highest: u64,
}

impl Ledger {
    fn expect(&self, key: &str) -> Expect {
        match self.known.get(key) {
            Some(Some((_, revision))) => Expect::Revision(*revision),
            Some(None) | None => Expect::Absent,
        }
    }

    /// The commit number `at`: a pair of keys together, one of them deleted now and then.
    fn ops(&self, at: usize) -> Vec<Op> {
        let (one, two) = (format!("k{}", at % KEYS), format!("k{}", (at * 3 + 1) % KEYS));
        let value = format!("value {at} ").repeat(1 + at % 40);
        let mut ops = vec![put(&one, self.expect(&one), &value)];
        if two != one {
            let exists = self.expect(&two) != Expect::Absent;
            ops.push(if exists && at.is_multiple_of(5) {
                delete(&two, self.expect(&two))
            } else {
                put(&two, self.expect(&two), &value)
            });
        }
        ops
    }

    fn acknowledged(&mut self, ops: &[Op], revisions: &[Revision]) {
        for (op, revision) in ops.iter().zip(revisions) {
            assert!(revision.0 > self.highest, "{revision:?} is not above {}", self.highest);
            let state = match &op.write {
                Write::Put(bytes) => Some((bytes.to_vec(), *revision)),
                Write::Delete | Write::Check => None,
            };
            self.known.insert(op.name.to_string(), state);
        }
        self.highest = revisions.iter().map(|revision| revision.0).max().unwrap();
    }

    fn in_doubt(&mut self, ops: &[Op]) {
        let writes = ops.iter().map(|op| {
            let bytes = match &op.write {
                Write::Put(bytes) => Some(bytes.to_vec()),
                Write::Delete | Write::Check => None,
            };
            (op.name.to_string(), bytes)
        });
        self.doubt = Some(writes.collect());
    }

    /// Compares with the store: acknowledged commits are there, the one in doubt is there whole
    /// or not at all. Afterwards nothing is in doubt.
    async fn reconcile(&mut self, store: &dyn Store, context: &str) {
        let names: Vec<_> = (0..KEYS).map(|key| name(format!("k{key}"))).collect();
        let (loaded, scanned) = loop {
            let loaded = store.load_many(&names).await;
            match (loaded, store.scan("k", None, 100).await) {
                (Ok(loaded), Ok(scanned)) => break (loaded, scanned),
                (Err(StoreError::Unavailable(_)), _) | (_, Err(StoreError::Unavailable(_))) => {
                    healed(store).await;
                }
                (loaded, scanned) => panic!("{context}: {loaded:?} {scanned:?}"),
            }
        };
        let found: BTreeMap<String, _> =
            names.iter().zip(loaded).map(|(name, stored)| (name.to_string(), stored)).collect();
        let doubt = self.doubt.take().unwrap_or_default();
        let happened = doubt
            .iter()
            .any(|(key, bytes)| found[key].as_ref().map(|stored| stored.bytes.to_vec()) != *bytes);
        let happened = !doubt.is_empty() && !happened;
        for (key, stored) in &found {
            let expected = match doubt.iter().find(|(name, _)| name == key) {
                Some((_, bytes)) if happened => bytes.clone(),
                _ => self.known.get(key).cloned().flatten().map(|(bytes, _)| bytes),
            };
            let bytes = stored.as_ref().map(|stored| stored.bytes.to_vec());
            assert_eq!(bytes, expected, "{context}: {key} (doubtful commit there: {happened})");
            if let Some(stored) = stored {
                self.highest = self.highest.max(stored.revision.0);
            }
            let state = stored.as_ref().map(|stored| (stored.bytes.to_vec(), stored.revision));
            self.known.insert(key.clone(), state);
        }
        let present = found.values().filter(|stored| stored.is_some()).count();
        assert_eq!(scanned.len(), present, "{context}: scan and loads agree");
    }

    /// Commits from `at` on, until done or until a commit fails.
    async fn work(&mut self, store: &dyn Store, mut at: usize) -> (usize, Option<StoreError>) {
        while at < COMMITS {
            let ops = self.ops(at);
            match store.commit(ops.clone()).await {
                Ok(revisions) => self.acknowledged(&ops, &revisions),
                Err(error) => {
                    if matches!(error, StoreError::Unknown(_)) {
                        self.in_doubt(&ops);
                    }
                    return (at, Some(error));
                }
            }
            at += 1;
        }
        (at, None)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_at_any_operation_loses_nothing_acknowledged() {
    for strike in 0.. {
        let folder = scratch();
        let disk = FaultyDisk::striking(strike, Fault::PowerCut, strike);
        let mut ledger = Ledger::default();
        let mut reached = 0;
        if let Ok(store) = EmbeddedStore::open(options(folder.path(), &disk)) {
            reached = ledger.work(&*store, 0).await.0;
            // The power is gone at the latest now, in the middle of whatever runs.
            disk.cut_power();
        }
        let struck = disk.has_struck();
        let context = format!("power cut at operation {strike}, {reached} commits");
        // The second life loses its power too, while and after it reads the log back.
        let disk = FaultyDisk::striking(strike % 7, Fault::PowerCut, strike / 7);
        if let Ok(store) = EmbeddedStore::open(options(folder.path(), &disk)) {
            ledger.reconcile(&*store, &context).await;
            reached = ledger.work(&*store, reached).await.0;
            disk.cut_power();
        }
        let store = EmbeddedStore::open(options(folder.path(), &FaultyDisk::default())).unwrap();
        ledger.reconcile(&*store, &context).await;
        let (_, error) = ledger.work(&*store, reached).await;
        assert!(error.is_none(), "{context}: {error:?}");
        ledger.reconcile(&*store, &context).await;
        store.close().await;
        let store = EmbeddedStore::open(options(folder.path(), &FaultyDisk::default())).unwrap();
        ledger.reconcile(&*store, &context).await;
        if !struck {
            assert!(strike > 100, "the workload has fewer operations than it should: {strike}");
            break;
        }
    }
}

/// The power goes at every operation of an orderly stop: of its checkpoint and its manifest.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_at_any_operation_of_a_stop_loses_nothing_acknowledged() {
    for strike in 0.. {
        let folder = scratch();
        let disk = FaultyDisk::default();
        let mut ledger = Ledger::default();
        let store = EmbeddedStore::open(options(folder.path(), &disk)).unwrap();
        let (_, error) = ledger.work(&*store, 0).await;
        assert!(error.is_none(), "{error:?}");
        disk.strike(strike, Fault::PowerCut);
        store.close().await;
        let struck = disk.has_struck();
        let context = format!("power cut at operation {strike} of the stop");
        let store = EmbeddedStore::open(options(folder.path(), &FaultyDisk::default())).unwrap();
        ledger.reconcile(&*store, &context).await;
        if !struck {
            assert!(strike >= 3, "a stop has fewer operations than it should: {strike}");
            break;
        }
    }
}

async fn fails_and_heals(fault: Fault) {
    let mut untouched = false;
    for strike in 0.. {
        let folder = scratch();
        let disk = FaultyDisk::default();
        let store = EmbeddedStore::open(options(folder.path(), &disk)).unwrap();
        disk.strike(strike, fault);
        let mut ledger = Ledger::default();
        let context = format!("{fault:?} at operation {strike}");
        let mut at = 0;
        loop {
            let (reached, error) = ledger.work(&*store, at).await;
            at = reached;
            match error {
                None => break,
                Some(StoreError::Unknown(_) | StoreError::Unavailable(_)) => {}
                Some(other) => panic!("{context}: {other}"),
            }
            healed(&*store).await;
            ledger.reconcile(&*store, &context).await;
        }
        ledger.reconcile(&*store, &context).await;
        untouched |= !disk.has_struck();
        // What was shown after healing is durable: the power may go.
        disk.cut_power();
        drop(store);
        let store = EmbeddedStore::open(options(folder.path(), &FaultyDisk::default())).unwrap();
        ledger.reconcile(&*store, &context).await;
        if untouched {
            assert!(strike > 60, "the workload has fewer operations than it should: {strike}");
            break;
        }
    }
}

/// The tree fails at some checkpoints in a row; then the power goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_checkpoint_loses_nothing() {
    for failures in [1, 4] {
        let folder = scratch();
        let disk = FaultyDisk::default();
        let options = options(folder.path(), &disk);
        let store = EmbeddedStore::open(options.clone()).unwrap();
        let mut ledger = Ledger::default();
        options.failing_checkpoints.store(failures, Ordering::SeqCst);
        let mut at = 0;
        while options.failing_checkpoints.load(Ordering::SeqCst) > 0 {
            let (reached, error) = ledger.work(&*store, at % COMMITS).await;
            at = reached;
            if error.is_some() {
                healed(&*store).await;
                ledger.reconcile(&*store, "a checkpoint failed").await;
            }
        }
        healed(&*store).await;
        ledger.reconcile(&*store, "checkpoints failed").await;
        disk.cut_power();
        drop(store);
        let store = EmbeddedStore::open(small(folder.path())).unwrap();
        ledger.reconcile(&*store, "after the power cut").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_at_any_operation_heals_without_loss() {
    fails_and_heals(Fault::Error).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_that_lies_about_failing_heals_without_loss() {
    fails_and_heals(Fault::LyingError).await;
}
