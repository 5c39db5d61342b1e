//! What the threads of one store share: the published state, the counters, and the settings. The
//! committer publishes, the checkpointer freezes and thaws, everybody else reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::blob::Blobs;
use super::checkpoint::Checkpoints;
use super::dir::Layout;
use super::head::Published;
use super::hold::HeldDir;
use super::log::Log;
use super::options::EmbeddedOptions;
use super::tree::{Tree, TreeError};
use crate::port::{Gauges, Name, Page, StoreError, Stored};

pub(super) struct Shared {
    pub(super) layout: Layout,
    pub(super) held: Arc<HeldDir>,
    pub(super) options: EmbeddedOptions,
    pub(super) state: RwLock<State>,
    pub(super) counters: Counters,
    pub(super) blobs: Arc<Blobs>,
    /// Commits were refused for want of space, and none has succeeded since.
    pub(super) starved: AtomicBool,
    /// How often in a row a checkpoint has failed in the tree.
    pub(super) tree_failures: AtomicU32,
}

/// Open, or not and why.
pub(super) enum State {
    Open { published: Published, log: Arc<Log>, checkpoints: Arc<Checkpoints> },
    Failed(String),
    Closed,
}

impl State {
    pub(super) fn published(&self) -> Result<&Published, StoreError> {
        match self {
            Self::Open { published, .. } => Ok(published),
            Self::Failed(reason) => Err(StoreError::Unavailable(reason.clone())),
            Self::Closed => Err(closed()),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) batches: AtomicU64,
    pub(super) commits: AtomicU64,
    pub(super) sync_nanos: AtomicU64,
    pub(super) reopened: AtomicU64,
    pub(super) checkpoints: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }
}

pub(super) fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

impl From<TreeError> for StoreError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Damaged(what) => Self::Damaged(what),
            TreeError::Failed(what) | TreeError::Broken(what) => Self::Unavailable(what),
        }
    }
}

impl Shared {
    pub(super) fn load(&self, name: &str) -> Result<Option<Stored>, StoreError> {
        let (tree, generation) = {
            let state = self.state.read();
            let published = state.published()?;
            if let Some(entry) = published.dirty(name) {
                return Ok(entry.stored());
            }
            (Arc::clone(&published.tree), published.generation)
        };
        // Not newer than the tree a moment ago, so the tree has it, or something newer still.
        if let Some(stored) = tree.cache.get(name) {
            return Ok(Some(stored));
        }
        let found = tree.read(name)?;
        if let Some(stored) = &found {
            self.keep(name, stored, &tree, generation);
        }
        Ok(found)
    }

    /// Keeps what was read from the tree, unless the tree may hold something newer by now: what
    /// has changed since then gets there with a later generation. The lock is held meanwhile, so
    /// that none can begin.
    pub(super) fn keep(&self, name: &str, stored: &Stored, tree: &Tree, generation: u64) {
        if let State::Open { published, .. } = &*self.state.read()
            && published.generation == generation
        {
            tree.cache.keep(name, stored);
        }
    }

    pub(super) fn load_many(&self, names: &[Name]) -> Result<Vec<Option<Stored>>, StoreError> {
        let (found, snapshot) = {
            let state = self.state.read();
            let published = state.published()?;
            let found: Vec<_> = names
                .iter()
                .map(|name| published.dirty(name).map(super::head::Entry::stored))
                .collect();
            let all_found = found.iter().all(Option::is_some);
            (found, (!all_found).then(|| published.tree.snapshot()))
        };
        let mut loaded = Vec::with_capacity(names.len());
        for (name, found) in names.iter().zip(found) {
            loaded.push(match (found, &snapshot) {
                (Some(stored), _) => stored,
                (None, Some(snapshot)) => snapshot.get(name)?,
                (None, None) => None,
            });
        }
        Ok(loaded)
    }

    pub(super) fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        use std::ops::Bound;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let (dirty, snapshot) = {
            let state = self.state.read();
            let published = state.published()?;
            (published.dirty_range(from, prefix, limit), published.tree.snapshot())
        };
        Ok(super::tree::merge(&snapshot, from, prefix, limit, dirty)?)
    }

    pub(super) fn health(&self) -> Result<(), StoreError> {
        let state = self.state.read();
        state.published()?;
        let State::Open { log, checkpoints, .. } = &*state else { return Ok(()) };
        let obstacle = log.obstacle().or_else(|| checkpoints.blocked());
        match obstacle.filter(|_| self.starved.load(Ordering::Relaxed)) {
            Some(reason) => Err(StoreError::Unavailable(reason)),
            None => Ok(()),
        }
    }

    pub(super) fn gauges(&self) -> Gauges {
        let files = match &*self.state.read() {
            State::Open { published, log, .. } => log.bytes() + published.tree.bytes(),
            State::Failed(_) | State::Closed => 0,
        };
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Gauges {
            size_bytes: files + self.blobs.bytes(),
            batches: read(&self.counters.batches),
            commits: read(&self.counters.commits),
            sync_nanos: read(&self.counters.sync_nanos),
            reopened: read(&self.counters.reopened),
        }
    }
}
