//! The committer: one thread through which every commit passes. It takes whatever is waiting,
//! judges it against what is durable plus what it has accepted in this batch, writes one frame,
//! syncs once, publishes everything in one step and only then answers, refusals included.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::checkpoint::{Checkpoints, Pressure};
use super::clock::Stopwatch;
use super::frame::FrameBuilder;
use super::head::{Entry, Position};
use super::log::{AppendError, Log, LogWriter};
use super::options::{BATCH_BYTES, BATCH_COMMITS, COMMIT_BYTES_MAX, NAME_BYTES_MAX};
use super::shared::{Counters, Shared, State};
use super::tree::{Tree, TreeError};
use crate::port::{Expect, Name, Op, Revision, StoreError, Write};

/// Commits are acknowledged for this long without looking at the directory.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) type Answer = oneshot::Sender<Result<Vec<Revision>, StoreError>>;

/// What arrives at the committer.
pub(super) enum Message {
    Commit {
        ops: Vec<Op>,
        answer: Answer,
    },
    /// Write everything out and stop; the answer comes when the files are let go.
    Close(oneshot::Sender<()>),
    /// Look around: another thread has news.
    Wake,
}

/// Why the committer stopped.
pub(super) enum End {
    /// Asked to.
    Closed(oneshot::Sender<()>),
    /// Nobody is left to send anything.
    Abandoned,
    Failed(String),
}

pub(super) struct Committer {
    pub(super) shared: Arc<Shared>,
    pub(super) log: Arc<Log>,
    pub(super) tree: Arc<Tree>,
    pub(super) checkpoints: Arc<Checkpoints>,
    pub(super) writer: LogWriter,
    pub(super) revision: u64,
    pub(super) frame: FrameBuilder,
    /// When it was last seen that the directory is the one that was opened, and how many segments
    /// had been begun.
    pub(super) looked: (Stopwatch, u64),
}

/// Commits that share one frame, one sync and one moment.
#[derive(Default)]
struct Batch {
    /// The generation of the head that the commits are judged against, at the earliest.
    judged: u64,
    /// What the commits accepted so far leave behind.
    overlay: HashMap<Name, Entry>,
    writes: Vec<(Name, Entry)>,
    accepted: Vec<(Answer, Vec<Revision>)>,
    refused: Vec<(Answer, StoreError)>,
}

/// What is known of a record while a commit is judged.
struct Seen {
    revision: Option<Revision>,
    in_tree: bool,
}

impl Committer {
    /// Works until closed, abandoned or failed. What is left in the inbox was not begun.
    pub(super) fn run(&mut self, inbox: &mut Inbox) -> End {
        loop {
            if !inbox.wait() {
                return End::Abandoned;
            }
            if let Some(reason) = self.checkpoints.failure() {
                return End::Failed(reason);
            }
            if let Some(reason) = self.stall() {
                self.shared.starved.store(true, Ordering::Relaxed);
                inbox.refuse_commits(&reason);
            }
            match self.batch(&mut inbox.waiting) {
                Ok(None) => {}
                Ok(Some(close)) => return End::Closed(close),
                Err(reason) => return End::Failed(reason),
            }
        }
    }

    /// Asks for a checkpoint when one is due, and waits for it when the backlog is at its bound.
    fn stall(&self) -> Option<String> {
        let pressure = Pressure::of(&self.shared, &self.log);
        if pressure.stalled {
            return self.checkpoints.wait_for_one().err();
        }
        if pressure.due {
            self.checkpoints.request();
        }
        None
    }

    /// Takes commits from the front of `waiting`, as many as fit into one frame.
    fn batch(
        &mut self,
        waiting: &mut VecDeque<Message>,
    ) -> Result<Option<oneshot::Sender<()>>, String> {
        let mut batch = Batch { judged: self.generation(), ..Batch::default() };
        let mut close = None;
        self.frame.clear();
        while self.frame.len() < BATCH_BYTES {
            match waiting.pop_front() {
                Some(Message::Commit { ops, answer }) => {
                    if let Err(reason) = self.judge(&mut batch, ops, answer) {
                        batch.fail(&StoreError::Unavailable(reason.clone()));
                        return Err(reason);
                    }
                }
                Some(Message::Close(answer)) => {
                    close = Some(answer);
                    break;
                }
                Some(Message::Wake) => {}
                None => break,
            }
        }
        self.make_durable(batch)?;
        Ok(close)
    }

    fn generation(&self) -> u64 {
        match &*self.shared.state.read() {
            State::Open { published, .. } => published.generation,
            State::Failed(_) | State::Closed => 0,
        }
    }

    /// Tests one commit and adds it to the batch or to the refusals.
    fn judge(&mut self, batch: &mut Batch, ops: Vec<Op>, answer: Answer) -> Result<(), String> {
        if let Err(error) = check_size(&ops) {
            batch.refused.push((answer, error));
            return Ok(());
        }
        let mut seen = Vec::with_capacity(ops.len());
        for op in &ops {
            match self.look(batch, op) {
                Ok(found) if op.expect.is_met_by(found.revision) => seen.push(found.in_tree),
                Ok(_) => {
                    batch.refused.push((answer, StoreError::Conflict));
                    return Ok(());
                }
                // What cannot be read is a matter of this commit alone, unless nothing can.
                Err(error) => {
                    let broken = matches!(error, TreeError::Broken(_));
                    let reason = error.to_string();
                    batch.refused.push((answer, error.into()));
                    return if broken { Err(reason) } else { Ok(()) };
                }
            }
        }
        self.revision += 1;
        let revision = self.revision;
        if ops.iter().any(|op| !matches!(op.write, Write::Check)) {
            self.frame.push(revision, &ops);
        }
        batch.accepted.push((answer, vec![Revision(revision); ops.len()]));
        for (op, in_tree) in ops.into_iter().zip(seen) {
            let bytes = match op.write {
                Write::Put(bytes) => Some(bytes),
                Write::Delete => None,
                Write::Check => continue,
            };
            let entry = Entry { revision, bytes, in_tree };
            batch.overlay.insert(Arc::clone(&op.name), entry.clone());
            batch.writes.push((op.name, entry));
        }
        Ok(())
    }

    /// The present revision of a record: from this batch, from the head, from the tree.
    fn look(&self, batch: &Batch, op: &Op) -> Result<Seen, TreeError> {
        let of = |entry: &Entry, in_tree| Seen {
            revision: entry.bytes.is_some().then_some(Revision(entry.revision)),
            in_tree,
        };
        if let Some(entry) = batch.overlay.get(&op.name) {
            return Ok(of(entry, entry.in_tree));
        }
        if let State::Open { published, .. } = &*self.shared.state.read() {
            if let Some(entry) = published.head.get(&op.name) {
                return Ok(of(entry, entry.in_tree));
            }
            // It is on its way into the tree.
            let frozen = published.frozen.as_ref();
            if let Some(entry) = frozen.and_then(|frozen| frozen.table.get(&op.name)) {
                return Ok(of(entry, true));
            }
        }
        if op.expect == Expect::Any {
            return Ok(Seen { revision: None, in_tree: true });
        }
        let stored = self.tree.get(&op.name)?;
        let in_tree = stored.is_some();
        Ok(Seen { revision: stored.map(|stored| stored.revision), in_tree })
    }

    /// Writes, syncs, publishes and answers.
    fn make_durable(&mut self, batch: Batch) -> Result<(), String> {
        let commits = batch.accepted.len();
        if !self.frame.is_empty() {
            match self.writer.append(&mut self.frame) {
                Ok(sync) => self.count(commits, sync),
                Err(AppendError::NoRoom(reason)) => {
                    self.shared.starved.store(true, Ordering::Relaxed);
                    batch.fail(&StoreError::Unavailable(reason));
                    return Ok(());
                }
                Err(AppendError::Failed(error)) => {
                    return Err(self.fail(batch, format!("the log failed: {error}")));
                }
            }
            if let Err(reason) = self.look_at_directory() {
                return Err(self.fail(batch, reason));
            }
        }
        let Batch { judged, writes, accepted, refused, .. } = batch;
        let position = Position { next_frame: self.writer.next_number(), revision: self.revision };
        if let State::Open { published, .. } = &mut *self.shared.state.write() {
            published.publish(writes, judged, position);
        }
        // A caller that has gone does not want to know.
        for (answer, revisions) in accepted {
            answer.send(Ok(revisions)).ok();
        }
        for (answer, error) in refused {
            answer.send(Err(error)).ok();
        }
        Ok(())
    }

    /// Answers a batch that may or may not be durable.
    fn fail(&self, batch: Batch, reason: String) -> String {
        // First of all nothing may be read on: a caller that learns that the outcome is unknown
        // will load, and must not see the state before a commit that happened.
        *self.shared.state.write() = State::Failed(reason.clone());
        batch.fail(&StoreError::Unknown(reason.clone()));
        reason
    }

    /// What was synced into a directory that was removed or replaced is lost. Looks now and then,
    /// and whenever a segment was begun.
    fn look_at_directory(&mut self) -> Result<(), String> {
        let begun = self.writer.segments_begun();
        if self.looked.0.elapsed() < LOOK_EVERY && self.looked.1 == begun {
            return Ok(());
        }
        self.shared.held.check().map_err(|error| error.to_string())?;
        self.looked = (Stopwatch::start(), begun);
        Ok(())
    }

    fn count(&self, commits: usize, sync: Duration) {
        let nanos = u64::try_from(sync.as_nanos()).unwrap_or(u64::MAX);
        self.shared.starved.store(false, Ordering::Relaxed);
        Counters::add(&self.shared.counters.batches, 1);
        Counters::add(&self.shared.counters.commits, commits as u64);
        Counters::add(&self.shared.counters.sync_nanos, nanos);
        if let Some(observer) = &self.shared.options.observer {
            observer.batch_synced(commits, nanos);
        }
    }
}

impl Batch {
    /// Answers everybody in a batch that did not become durable. Refusals too: they may have been
    /// judged against commits that are now in doubt.
    fn fail(self, error: &StoreError) {
        for (answer, _) in self.accepted {
            answer.send(Err(error.clone())).ok();
        }
        for (answer, refusal) in self.refused {
            let judged = matches!(refusal, StoreError::Conflict);
            let refusal = if judged { unwritten(error) } else { refusal };
            answer.send(Err(refusal)).ok();
        }
    }
}

/// A refused commit wrote nothing, whatever became of its batch.
fn unwritten(error: &StoreError) -> StoreError {
    if let StoreError::Unknown(reason) = error {
        StoreError::Unavailable(reason.clone())
    } else {
        error.clone()
    }
}

fn check_size(ops: &[Op]) -> Result<(), StoreError> {
    let mut total = 0;
    for op in ops {
        if op.name.len() > NAME_BYTES_MAX {
            let reason = format!("a record name of {} bytes is too long", op.name.len());
            return Err(StoreError::Unavailable(reason));
        }
        total += op.name.len();
        if let Write::Put(bytes) = &op.write {
            total += bytes.len();
        }
    }
    if total > COMMIT_BYTES_MAX {
        return Err(StoreError::Unavailable(format!("a commit of {total} bytes is too large")));
    }
    Ok(())
}

/// What has arrived and waits to be taken up.
pub(super) struct Inbox {
    receiver: mpsc::Receiver<Message>,
    received: Vec<Message>,
    pub(super) waiting: VecDeque<Message>,
}

impl Inbox {
    pub(super) fn new(receiver: mpsc::Receiver<Message>) -> Self {
        let received = Vec::with_capacity(BATCH_COMMITS);
        Self { receiver, received, waiting: VecDeque::new() }
    }

    /// Waits until there is something; `false` when there never will be.
    fn wait(&mut self) -> bool {
        if self.waiting.is_empty() {
            self.receiver.blocking_recv_many(&mut self.received, BATCH_COMMITS);
            self.waiting.extend(self.received.drain(..));
        }
        !self.waiting.is_empty()
    }

    /// Takes in what has arrived; `false` when nobody can send any more.
    pub(super) fn collect(&mut self) -> bool {
        loop {
            match self.receiver.try_recv() {
                Ok(message) => self.waiting.push_back(message),
                Err(mpsc::error::TryRecvError::Empty) => return true,
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Lets nobody in any more.
    pub(super) fn shut(&mut self) {
        self.receiver.close();
        self.collect();
    }

    /// Answers the commits, of which nothing was written, and keeps the rest.
    pub(super) fn refuse_commits(&mut self, reason: &str) {
        for message in std::mem::take(&mut self.waiting) {
            match message {
                Message::Commit { answer, .. } => {
                    answer.send(Err(StoreError::Unavailable(reason.to_owned()))).ok();
                }
                other @ (Message::Close(_) | Message::Wake) => self.waiting.push_back(other),
            }
        }
    }

    /// A request to close, if one is waiting.
    pub(super) fn take_close(&mut self) -> Option<oneshot::Sender<()>> {
        let at = self.waiting.iter().position(|message| matches!(message, Message::Close(_)))?;
        match self.waiting.remove(at)? {
            Message::Close(answer) => Some(answer),
            Message::Commit { .. } | Message::Wake => None,
        }
    }
}
