//! The life of a store: opens tree and log, runs the committer, and after a failure closes
//! everything, opens it again from what is on disk, and goes on. Nothing that was open when a
//! write or a sync failed is used afterwards.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::mpsc;

use super::checkpoint::{Checkpointer, Checkpoints, Pressure, Stop};
use super::clock::Stopwatch;
use super::committer::{Committer, End, Inbox, Message};
use super::dir::FORMAT_WITHOUT_MANIFEST;
use super::frame::FrameBuilder;
use super::head::{Position, Published};
use super::hold::DirLock;
use super::log::{Adopted, InTree, Log, LogWriter};
use super::manifest::{Manifest, StoreId};
use super::options::{OpenError, SPARES_MAX};
use super::recover::{Recovered, recover};
use super::shared::{Counters, Shared, State};
use super::tree::{Tree, TreeError};

/// How often a failed store looks for messages while it waits.
const FAILED_TICK: Duration = Duration::from_millis(10);

/// The open files of a store and the threads on them.
pub(super) struct Engine {
    committer: Committer,
    preparer: JoinHandle<()>,
    checkpointer: JoinHandle<()>,
}

/// How an opening came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    Start,
    /// The last segment saw a failure: new frames go elsewhere.
    Failure,
}

impl Engine {
    /// Opens what is on disk and publishes it.
    pub(super) fn open(
        shared: &Arc<Shared>,
        sender: mpsc::WeakSender<Message>,
        occasion: Occasion,
    ) -> Result<Self, OpenError> {
        let opening = Stopwatch::start();
        let layout = &shared.layout;
        let disk = &*shared.options.disk;
        let manifest = match layout.format()? {
            FORMAT_WITHOUT_MANIFEST => None,
            _ => Some(Manifest::load(disk, layout)?),
        };
        let store = manifest.as_ref().map_or_else(StoreId::random, |manifest| manifest.store);
        let (tree, in_tree) = open_tree(shared, store, manifest.as_ref())?;
        let recovered = recover(disk, layout, in_tree, manifest.as_ref())?;
        let (frames, records) = (recovered.frames, recovered.head.len());
        let position = recovered.position;
        let held = Arc::clone(&shared.held);
        let in_tree = InTree { position: in_tree, tables: tree.tables() };
        let is_behind = manifest.as_ref().is_some_and(|known| known.is_behind(&in_tree.tables));
        let log = Arc::new(Log::new(layout.log(), &shared.options, held, (store, in_tree)));
        let mut writer = LogWriter::new(Arc::clone(&log), position.next_frame);
        if let (Some(tail), Some(last)) = (&recovered.tail, recovered.filled.last()) {
            writer.resume(&last.segment, tail).map_err(|error| layout.io(error))?;
            // New frames go into segments with headers.
            if occasion == Occasion::Failure || last.segment.start == 0 {
                writer.leave_segment();
            }
        }
        let head = adopt(shared, &log, recovered);
        shared.blobs.belong_to(store);
        if is_behind {
            log.write_manifest(None).map_err(|error| layout.io(error))?;
        }
        if manifest.is_none() {
            // In this order: a store of the present format always has a manifest.
            let upgraded = log.write_manifest(None).and_then(|()| layout.write_format());
            upgraded.map_err(|error| layout.io(error))?;
            tracing::info!(path = %layout.root.display(), "store upgraded to have a manifest");
        }
        let checkpoints = Arc::new(Checkpoints::default());
        if occasion == Occasion::Failure {
            Counters::add(&shared.counters.reopened, 1);
        }
        let published =
            Published { head, frozen: None, tree: Arc::clone(&tree), position, generation: 0 };
        *shared.state.write() =
            State::Open { published, log: Arc::clone(&log), checkpoints: Arc::clone(&checkpoints) };
        tracing::info!(
            path = %layout.root.display(),
            frames,
            records,
            revision = position.revision,
            millis = opening.elapsed().as_millis(),
            "store opened"
        );
        let engine = Self::start(shared, &log, &tree, checkpoints, (writer, position), sender);
        engine.map_err(|error| layout.io(error))
    }

    fn start(
        shared: &Arc<Shared>,
        log: &Arc<Log>,
        tree: &Arc<Tree>,
        checkpoints: Arc<Checkpoints>,
        (writer, position): (LogWriter, Position),
        sender: mpsc::WeakSender<Message>,
    ) -> std::io::Result<Self> {
        let preparing = Arc::clone(log);
        let (failing, waking) = (Arc::clone(&checkpoints), sender.clone());
        let preparer = thread::Builder::new()
            .name("lockd-segments".into())
            .spawn(move || preparing.prepare_ahead(|reason| failing.give_up(reason, &waking)))?;
        let checkpointer = Checkpointer {
            shared: Arc::clone(shared),
            log: Arc::clone(log),
            tree: Arc::clone(tree),
            checkpoints: Arc::clone(&checkpoints),
            committer: sender,
        };
        let checkpointer = thread::Builder::new()
            .name("lockd-checkpoint".into())
            .spawn(move || checkpointer.run());
        let checkpointer = match checkpointer {
            Ok(checkpointer) => checkpointer,
            Err(error) => {
                log.stop();
                preparer.join().ok();
                return Err(error);
            }
        };
        if Pressure::of(shared, log).due {
            checkpoints.request();
        }
        let committer = Committer {
            shared: Arc::clone(shared),
            log: Arc::clone(log),
            tree: Arc::clone(tree),
            checkpoints,
            writer,
            revision: position.revision,
            frame: FrameBuilder::default(),
            looked: (Stopwatch::start(), 0),
        };
        Ok(Self { committer, preparer, checkpointer })
    }

    /// Ends the threads and lets go of the files. What readers see meanwhile is `after`.
    fn shut(self, how: Stop, after: State) {
        let Self { committer, preparer, checkpointer } = self;
        // The last checkpoint needs the state; otherwise nobody shall wait for the threads.
        let mut after = Some(after);
        if how == Stop::Now {
            *committer.shared.state.write() = after.take().unwrap_or(State::Closed);
        }
        committer.checkpoints.stop(how);
        committer.log.stop();
        checkpointer.join().ok();
        preparer.join().ok();
        if how == Stop::AfterLast
            && let Err(error) = committer.log.write_manifest(None)
        {
            tracing::warn!(%error, "cannot write the manifest");
        }
        if let Some(after) = after {
            *committer.shared.state.write() = after;
        }
        drop(committer);
    }
}

/// Opens the tree, which must reach what the manifest says.
fn open_tree(
    shared: &Shared,
    store: StoreId,
    manifest: Option<&Manifest>,
) -> Result<(Arc<Tree>, Position), OpenError> {
    let layout = &shared.layout;
    let opened = Tree::open(&layout.tree(), shared.options.cache_bytes, store);
    let (tree, in_tree) = opened.map_err(|error| match error {
        TreeError::Damaged(what) => layout.damaged(what),
        TreeError::Failed(what) | TreeError::Broken(what) => layout.io(what),
    })?;
    if let Some(manifest) = manifest {
        manifest.judge_tree(in_tree, &tree.tables()).map_err(|what| layout.damaged(what))?;
    }
    Ok((Arc::new(tree), in_tree))
}

/// Hands the recovered segments to the log and clears away what cannot be used.
fn adopt(shared: &Shared, log: &Log, recovered: Recovered) -> super::head::Table {
    let Recovered { head, filled, unused, spares: found, next_id, position, .. } = recovered;
    let size = shared.options.segment_bytes;
    let mut spares: Vec<PathBuf> = Vec::new();
    for path in found {
        let fits = fs::metadata(&path).is_ok_and(|meta| meta.len() == size);
        if fits && spares.len() < SPARES_MAX {
            spares.push(path);
        } else if let Err(error) = shared.options.disk.remove(&path) {
            tracing::warn!(%error, file = %path.display(), "cannot remove an unused segment");
        }
    }
    log.adopt(Adopted { filled, unused, spares, next_id, synced: position.next_frame });
    head
}

/// The body of the committer's thread: runs engines one after the other until closed.
pub(super) fn supervise(
    shared: &Arc<Shared>,
    first: Engine,
    mut inbox: Inbox,
    sender: &mpsc::WeakSender<Message>,
    lock: DirLock,
) {
    let _alarm = Alarm(shared);
    let mut engine = first;
    let answer = loop {
        match engine.committer.run(&mut inbox) {
            End::Closed(answer) => {
                inbox.shut();
                inbox.refuse_commits("the store is closed");
                engine.shut(Stop::AfterLast, State::Closed);
                break Some(answer);
            }
            End::Abandoned => {
                engine.shut(Stop::Now, State::Closed);
                break None;
            }
            End::Failed(reason) => {
                tracing::warn!(%reason, "the store failed and is opened again");
                engine.shut(Stop::Now, State::Failed(reason.clone()));
                match reopen(shared, &mut inbox, sender, reason) {
                    Ok(reopened) => engine = reopened,
                    Err(answer) => {
                        *shared.state.write() = State::Closed;
                        break answer;
                    }
                }
            }
        }
    };
    inbox.shut();
    inbox.refuse_commits("the store is closed");
    drop(lock);
    // Only now may somebody else open it. More than one may have asked to close.
    drop(inbox);
    if let Some(answer) = answer {
        answer.send(()).ok();
    }
}

/// Says so if the committer's thread dies of a defect: readers would not notice by themselves.
struct Alarm<'a>(&'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let reason = "the committer has died of a defect; restart the server".to_owned();
            tracing::error!(%reason, "store");
            *self.0.state.write() = State::Failed(reason);
        }
    }
}

type CloseAnswer = Option<tokio::sync::oneshot::Sender<()>>;

/// Tries to open the store until it works, with growing pauses in which callers are refused.
fn reopen(
    shared: &Arc<Shared>,
    inbox: &mut Inbox,
    sender: &mpsc::WeakSender<Message>,
    mut reason: String,
) -> Result<Engine, CloseAnswer> {
    let mut pause = shared.options.backoff_min;
    loop {
        let waiting = Stopwatch::start();
        loop {
            let reachable = inbox.collect();
            inbox.refuse_commits(&reason);
            if let Some(answer) = inbox.take_close() {
                return Err(Some(answer));
            }
            if !reachable {
                return Err(None);
            }
            if waiting.elapsed() >= pause {
                break;
            }
            thread::sleep(FAILED_TICK);
        }
        // Nothing is opened, and nothing is made, in a directory that took the place of ours.
        let held = shared.held.check().map_err(|error| shared.layout.lost(&error));
        match held.and_then(|()| Engine::open(shared, sender.clone(), Occasion::Failure)) {
            Ok(engine) => return Ok(engine),
            Err(error) => {
                let obstacle = error.to_string();
                if obstacle != reason {
                    tracing::warn!(%error, "the store cannot be opened again yet");
                }
                reason = obstacle;
                *shared.state.write() = State::Failed(reason.clone());
                pause = (pause * 2).min(shared.options.backoff_max);
            }
        }
    }
}
