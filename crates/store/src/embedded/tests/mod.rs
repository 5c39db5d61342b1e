//! Tests of the adapter that need its insides.

mod backup;
mod cache;
mod conformance;
mod crash;
mod damage;
mod durable;
mod faults;
mod lost;
mod model;
mod opening;
mod pressure;
mod space;
mod tree;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tempfile::TempDir;

use super::head::Published;
use super::shared::State;
use super::{EmbeddedOptions, EmbeddedStore};
use crate::port::Store;

/// A folder in memory where there is one: these tests make and open hundreds of stores, and what
/// a sync is worth is not what they are about.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Small segments and frequent checkpoints.
fn small(path: &Path) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(path);
    options.segment_bytes = 4096;
    options.checkpoint_bytes = 8192;
    options.head_bytes = 4096;
    options.backoff_min = Duration::from_millis(1);
    options
}

/// Nothing goes into the tree before the store is closed.
fn log_only(path: &Path) -> EmbeddedOptions {
    let mut options = EmbeddedOptions::new(path);
    options.segment_bytes = 4096;
    options.checkpoint_bytes = 1 << 40;
    options.head_bytes = 1 << 40;
    options
}

fn open(options: EmbeddedOptions) -> Arc<EmbeddedStore> {
    EmbeddedStore::open(options).unwrap()
}

impl EmbeddedStore {
    /// Checkpoints made so far.
    fn checkpoints(&self) -> u64 {
        self.shared().counters.checkpoints.load(Ordering::Relaxed)
    }

    /// Makes a checkpoint and waits for it.
    fn checkpoint_now(&self) {
        let checkpoints = match &*self.shared().state.read() {
            State::Open { checkpoints, .. } => Arc::clone(checkpoints),
            State::Failed(_) | State::Closed => return,
        };
        checkpoints.flush(PATIENCE).unwrap();
    }

    /// Memory held by records that wait for a checkpoint.
    fn backlog_bytes(&self) -> u64 {
        self.shared().state.read().published().map_or(0, Published::bytes)
    }
}

/// How long a test waits for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds; that it never does is a failure.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{what}: not in {PATIENCE:?}");
}

/// Waits until the store works, again or by itself.
async fn healed(store: &dyn Store) {
    eventually("the store heals", || store.health().is_ok()).await;
}
