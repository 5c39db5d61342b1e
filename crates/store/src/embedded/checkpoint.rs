//! The checkpointer: moves what is durable in the log into the tree, one generation at a time,
//! and then gives the log's segments back. It never runs in the commit path; commits wait for it
//! only when the backlog has reached its bound.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc;

use super::clock::Stopwatch;
use super::committer::Message;
use super::head::{Frozen, Position, Table};
use super::log::{InTree, Log};
use super::options::{BACKLOG_TIMES, STALL_MAX};
use super::shared::{Counters, Shared, State};
use super::tree::{Tree, TreeError};

/// How often an idle store looks whether a checkpoint is due.
const TICK: Duration = Duration::from_secs(1);
/// The longest time without an attempt after checkpoints have failed again and again.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Runs in the tree that wait to be merged before a checkpoint waits too, and how long.
const UNMERGED_MAX: usize = 16;
const MERGE_WAIT_MAX: Duration = Duration::from_secs(5);
const MERGE_TICK: Duration = Duration::from_millis(5);
/// Free space that a checkpoint leaves alone.
const MARGIN_BYTES_MAX: u64 = 8 << 20;

/// Requests to the checkpointer and what became of them.
#[derive(Default)]
pub(super) struct Checkpoints {
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// One is due. Taken back by any that begins after.
    wanted: bool,
    /// So many must be made, whatever is due.
    promised: u64,
    /// Checkpoints begun and ended so far; equal when none is running.
    begun: u64,
    ended: u64,
    /// Why no checkpoint can be made at the moment (the disk is full).
    blocked: Option<String>,
    /// The tree failed; the store must be opened again.
    failed: Option<String>,
    stop: Option<Stop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// After writing out what there is.
    AfterLast,
    Now,
}

impl Checkpoints {
    pub(super) fn request(&self) {
        self.state.lock().wanted = true;
        self.changed.notify_all();
    }

    pub(super) fn stop(&self, how: Stop) {
        let mut state = self.state.lock();
        state.stop = Some(how);
        self.changed.notify_all();
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.state.lock().failed.clone()
    }

    pub(super) fn blocked(&self) -> Option<String> {
        self.state.lock().blocked.clone()
    }

    /// Ends this opening of the store: it has to be opened again.
    pub(super) fn give_up(&self, reason: String, committer: &mpsc::WeakSender<Message>) {
        self.state.lock().failed = Some(reason);
        self.changed.notify_all();
        if let Some(committer) = committer.upgrade() {
            // A full queue means that it is awake and will look by itself.
            committer.try_send(Message::Wake).ok();
        }
    }

    /// Waits for one checkpoint to end, a bounded time. An error says why there was none.
    pub(super) fn wait_for_one(&self) -> Result<(), String> {
        let mut state = self.state.lock();
        let ended = state.ended;
        state.wanted = true;
        self.changed.notify_all();
        let waiting = Stopwatch::start();
        while state.ended == ended {
            if let Some(reason) = state.failed.as_ref().or(state.blocked.as_ref()) {
                return Err(reason.clone());
            }
            let rest = STALL_MAX.saturating_sub(waiting.elapsed());
            if rest.is_zero() || self.changed.wait_for(&mut state, rest).timed_out() {
                return Err("the checkpoint takes too long".into());
            }
        }
        Ok(())
    }

    /// Waits until everything published before this call is in the tree.
    pub(super) fn flush(&self, patience: Duration) -> Result<(), String> {
        let mut state = self.state.lock();
        // One that is running may have begun too early; the one after it has not.
        let enough = state.begun + 1;
        state.promised = state.promised.max(enough);
        self.changed.notify_all();
        let waiting = Stopwatch::start();
        while state.ended < enough {
            if let Some(reason) = state.failed.as_ref().or(state.blocked.as_ref()) {
                return Err(reason.clone());
            }
            if state.stop.is_some() {
                return Err("the store is closing".into());
            }
            let rest = patience.saturating_sub(waiting.elapsed());
            if rest.is_zero() || self.changed.wait_for(&mut state, rest).timed_out() {
                return Err("the checkpoint takes too long".into());
            }
        }
        Ok(())
    }
}

enum NotDone {
    NoSpace(String),
    Tree(TreeError),
}

pub(super) struct Checkpointer {
    pub(super) shared: Arc<Shared>,
    pub(super) log: Arc<Log>,
    pub(super) tree: Arc<Tree>,
    pub(super) checkpoints: Arc<Checkpoints>,
    /// To wake the committer when the tree has failed.
    pub(super) committer: mpsc::WeakSender<Message>,
}

impl Drop for Checkpointer {
    /// A defect must not leave commits waiting for checkpoints that never come.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.give_up("the checkpointer has died of a defect".into());
        }
    }
}

impl Checkpointer {
    fn give_up(&self, reason: String) {
        self.checkpoints.give_up(reason, &self.committer);
    }

    /// Runs until told to stop or until the tree fails.
    pub(super) fn run(self) {
        let mut pause = self.shared.options.backoff_min;
        let mut idle_since = (Stopwatch::start(), 0);
        self.calm_down();
        while self.wait(&mut idle_since) {
            self.checkpoints.state.lock().begun += 1;
            let outcome = self.once();
            let mut state = self.checkpoints.state.lock();
            match outcome {
                Ok(()) => {
                    state.ended = state.begun;
                    state.blocked = None;
                    self.shared.tree_failures.store(0, Ordering::Relaxed);
                    pause = self.shared.options.backoff_min;
                }
                Err(NotDone::NoSpace(reason)) => {
                    if state.blocked.is_none() {
                        tracing::warn!(%reason, "checkpoint postponed");
                    }
                    state.blocked = Some(reason);
                    state.wanted = true;
                    self.checkpoints.changed.notify_all();
                    if state.stop.is_some() {
                        return;
                    }
                    self.checkpoints.changed.wait_for(&mut state, pause);
                    pause = (pause * 2).min(self.shared.options.backoff_max);
                }
                Err(NotDone::Tree(error)) => {
                    self.shared.tree_failures.fetch_add(1, Ordering::Relaxed);
                    drop(state);
                    self.give_up(error.to_string());
                    return;
                }
            }
            self.checkpoints.changed.notify_all();
        }
    }

    /// Every failure in the tree means that the store is opened again, and nobody can read
    /// meanwhile: where it fails every time (a disk that is nearly full), not too often.
    fn calm_down(&self) {
        let failures = self.shared.tree_failures.load(Ordering::Relaxed);
        if failures < 2 {
            return;
        }
        let pause = self.shared.options.backoff_min * (1 << failures.min(16));
        let mut state = self.checkpoints.state.lock();
        state.blocked = Some(format!("{failures} checkpoints in a row have failed"));
        self.checkpoints.changed.notify_all();
        let running = |state: &mut Progress| state.stop.is_none();
        self.checkpoints.changed.wait_while_for(&mut state, running, pause.min(RETRY_MAX));
        state.blocked = None;
    }

    /// Waits for work; `false` means stop.
    fn wait(&self, idle: &mut (Stopwatch, u64)) -> bool {
        let mut state = self.checkpoints.state.lock();
        loop {
            match state.stop {
                Some(Stop::Now) => return false,
                Some(Stop::AfterLast) => {
                    drop(state);
                    return !self.is_clean();
                }
                None => {}
            }
            if state.wanted || state.begun < state.promised {
                return true;
            }
            if self.checkpoints.changed.wait_for(&mut state, TICK).timed_out()
                && self.is_idle_due(idle)
            {
                return true;
            }
        }
    }

    fn is_clean(&self) -> bool {
        match &*self.shared.state.read() {
            State::Open { published, .. } => {
                published.head.is_empty() && published.frozen.is_none()
            }
            State::Failed(_) | State::Closed => true,
        }
    }

    /// Whether nothing was committed for a while and there is enough to be worth a run.
    fn is_idle_due(&self, idle: &mut (Stopwatch, u64)) -> bool {
        let state = self.shared.state.read();
        let State::Open { published, .. } = &*state else { return false };
        if published.position.next_frame != idle.1 {
            *idle = (Stopwatch::start(), published.position.next_frame);
            return false;
        }
        let bytes = published.bytes();
        bytes > 0
            && bytes >= self.shared.options.idle_bytes
            && idle.0.elapsed() >= self.shared.options.idle_after
    }

    fn once(&self) -> Result<(), NotDone> {
        let running = Stopwatch::start();
        self.wait_for_merges()?;
        self.check_space()?;
        let frozen = match &mut *self.shared.state.write() {
            State::Open { published, .. } => Some(published.freeze()),
            State::Failed(_) | State::Closed => None,
        };
        // Who asked for it until now has it.
        self.checkpoints.state.lock().wanted = false;
        let Some(Frozen { table, position }) = frozen else { return Ok(()) };
        self.ingest(&table, position).map_err(NotDone::Tree)?;
        // While they are still seen as newer than the tree, nobody looks for them in the cache.
        self.tree.cache.refresh(&table);
        if let State::Open { published, .. } = &mut *self.shared.state.write() {
            published.frozen = None;
        }
        self.log.recycle(InTree { position, tables: self.tree.tables() });
        Counters::add(&self.shared.counters.checkpoints, 1);
        tracing::debug!(
            records = table.len(),
            bytes = table.bytes(),
            unmerged = self.tree.unmerged(),
            millis = running.elapsed().as_millis(),
            "checkpoint"
        );
        Ok(())
    }

    /// The tree merges in the background. Where it cannot keep up, the store slows down with it
    /// rather than let the runs pile up.
    fn wait_for_merges(&self) -> Result<(), NotDone> {
        let waiting = Stopwatch::start();
        while self.tree.unmerged() >= UNMERGED_MAX && waiting.elapsed() < MERGE_WAIT_MAX {
            self.tree.check_alive().map_err(NotDone::Tree)?;
            let mut state = self.checkpoints.state.lock();
            let running = |state: &mut Progress| state.stop.is_none();
            self.checkpoints.changed.wait_while_for(&mut state, running, MERGE_TICK);
            if state.stop.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn ingest(&self, table: &Table, position: Position) -> Result<(), TreeError> {
        #[cfg(test)]
        {
            let failing = &self.shared.options.failing_checkpoints;
            let count_down = |left: u32| left.checked_sub(1);
            if failing.try_update(Ordering::SeqCst, Ordering::SeqCst, count_down).is_ok() {
                return Err(TreeError::Failed("injected".into()));
            }
        }
        self.tree.ingest(table, position)
    }

    /// A tree that meets a full disk has to be opened again, so it is asked for room first.
    fn check_space(&self) -> Result<(), NotDone> {
        let Ok((total, free)) = self.shared.layout.space() else { return Ok(()) };
        let bytes = match &*self.shared.state.read() {
            State::Open { published, .. } => published.bytes(),
            State::Failed(_) | State::Closed => 0,
        };
        let needed = bytes + bytes / 4 + (total / 64).min(MARGIN_BYTES_MAX);
        if free < needed {
            let reason = format!("the disk is full: {free} bytes free, {needed} needed");
            return Err(NotDone::NoSpace(reason));
        }
        Ok(())
    }
}

/// Whether a checkpoint is due, and whether commits must wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pressure {
    pub(super) due: bool,
    pub(super) stalled: bool,
}

impl Pressure {
    pub(super) fn of(shared: &Shared, log: &Log) -> Self {
        let (head, all, running) = match &*shared.state.read() {
            State::Open { published, .. } => {
                (published.head.bytes(), published.bytes(), published.frozen.is_some())
            }
            State::Failed(_) | State::Closed => (0, 0, false),
        };
        let (head_max, log_max) = (shared.options.head_bytes, shared.options.checkpoint_bytes);
        let backlog = log.backlog();
        Self {
            // A running checkpoint frees the log that was there before it began.
            due: head >= head_max || (backlog >= log_max && !running),
            stalled: all >= head_max * BACKLOG_TIMES || backlog >= log_max * BACKLOG_TIMES,
        }
    }
}
