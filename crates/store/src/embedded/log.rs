//! The write-ahead log: which segments there are, which one is written, and which may be used
//! again. A segment is zero-filled (or a recycled one renamed), given a header and named in the
//! manifest before it is needed, by the preparer; its id and salt are in its name, so no byte of
//! an earlier use can pass for a frame. A file that the manifest may name is left alone until a
//! manifest without it is durable.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::clock::Stopwatch;
use super::disk::{Disk, SegmentFile};
use super::frame::{FrameBuilder, SEGMENT_HEADER_BYTES, Seal, SegmentHeader};
use super::head::Position;
use super::hold::HeldDir;
use super::manifest::{Manifest, Named, StoreId, TableMark};
use super::options::{EmbeddedOptions, SPARES_MAX, STALL_MAX};
use super::recover::Tail;

/// How often the preparer looks whether the directory is still the one that was opened.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A segment by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) seal: Seal,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// Where its frames begin: behind its header, if it has one.
    pub(super) start: u64,
}

impl Segment {
    fn new(dir: &Path, seal: Seal, bytes: u64) -> Self {
        let path = dir.join(file_name(seal));
        Self { seal, path, bytes, start: SEGMENT_HEADER_BYTES as u64 }
    }

    fn named(&self, first: Option<u64>) -> Named {
        Named { seal: self.seal, bytes: self.bytes, start: self.start, first }
    }
}

/// The name of a segment's file.
pub(super) fn file_name(seal: Seal) -> String {
    format!("{:016x}-{:016x}.seg", seal.segment, seal.salt)
}

/// The seal in a segment's file name.
pub(super) fn parse_name(name: &str) -> Option<Seal> {
    let (segment, salt) = name.strip_suffix(".seg")?.split_once('-')?;
    if segment.len() != 16 || salt.len() != 16 {
        return None;
    }
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Seal { segment: number(segment)?, salt: number(salt)? })
}

/// A segment that holds frames, with the number of its first.
#[derive(Debug)]
pub(super) struct Filled {
    pub(super) segment: Segment,
    pub(super) first: u64,
}

/// What the manifest says of the tree.
#[derive(Debug)]
pub(super) struct InTree {
    pub(super) position: Position,
    pub(super) tables: Vec<TableMark>,
}

/// The segments of one open store, shared by committer, preparer and checkpointer.
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    /// Pauses between attempts to make a segment, shortest and longest.
    backoff: (Duration, Duration),
    store: StoreId,
    held: Arc<HeldDir>,
    /// All frames with lower numbers are durable.
    synced: AtomicU64,
    /// How far the tree was in the last manifest. Held while one is written, and taken before
    /// `state`.
    in_tree: Mutex<InTree>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first; the last one is being written.
    filled: VecDeque<Filled>,
    prepared: Option<Segment>,
    /// Made, and about to be named in the manifest.
    coming: Vec<Segment>,
    /// Given up, but the manifest may still name them.
    retired: Vec<Segment>,
    /// Why the next segment is not ready.
    obstacle: Option<String>,
    spares: Vec<PathBuf>,
    next_id: u64,
    stop: bool,
}

impl Log {
    pub(super) fn new(
        dir: PathBuf,
        options: &EmbeddedOptions,
        held: Arc<HeldDir>,
        (store, in_tree): (StoreId, InTree),
    ) -> Self {
        Self {
            disk: Arc::clone(&options.disk),
            dir,
            segment_bytes: options.segment_bytes,
            backoff: (options.backoff_min, options.backoff_max),
            store,
            held,
            synced: AtomicU64::new(in_tree.position.next_frame),
            in_tree: Mutex::new(in_tree),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes over what recovery found: segments with frames, segments without that are named in
    /// the manifest, and files free for use.
    pub(super) fn adopt(&self, found: Adopted) {
        self.synced.store(found.synced, Ordering::Release);
        let mut state = self.state.lock();
        state.filled = found.filled.into();
        state.retired = found.unused;
        state.spares = found.spares;
        state.next_id = found.next_id;
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.state.lock();
        let filled: u64 = state.filled.iter().map(|filled| filled.segment.bytes).sum();
        let others = state.prepared.iter().chain(&state.coming).chain(&state.retired);
        let others: u64 = others.map(|segment| segment.bytes).sum();
        filled + others + state.spares.len() as u64 * self.segment_bytes
    }

    /// Bytes of segments that wait for a checkpoint.
    pub(super) fn backlog(&self) -> u64 {
        let state = self.state.lock();
        let sealed = state.filled.len().saturating_sub(1);
        state.filled.iter().take(sealed).map(|filled| filled.segment.bytes).sum()
    }

    /// Why commits that need a new segment are refused, if they are.
    pub(super) fn obstacle(&self) -> Option<String> {
        self.state.lock().obstacle.clone()
    }

    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// The preparer: keeps one segment ready until `stop`. Reports when the directory is no longer
    /// the one that was opened.
    pub(super) fn prepare_ahead(&self, lost: impl Fn(String)) {
        let mut pause = self.backoff.0;
        let mut made = None;
        let mut state = self.state.lock();
        while !state.stop {
            if state.prepared.is_some() {
                if self.changed.wait_for(&mut state, LOOK_EVERY).timed_out()
                    && let Err(error) = MutexGuard::unlocked(&mut state, || self.held.check())
                {
                    MutexGuard::unlocked(&mut state, || lost(error.to_string()));
                }
                continue;
            }
            match MutexGuard::unlocked(&mut state, || self.prepare(&mut made)) {
                Ok(segment) => {
                    state.coming.retain(|coming| *coming != segment);
                    state.prepared = Some(segment);
                    state.obstacle = None;
                    pause = self.backoff.0;
                    self.changed.notify_all();
                }
                Err(error) => {
                    if state.obstacle.is_none() {
                        tracing::warn!(%error, "cannot prepare a log segment");
                    }
                    state.obstacle = Some(format!("cannot prepare a log segment: {error}"));
                    self.changed.notify_all();
                    if let Err(error) = self.held.check() {
                        MutexGuard::unlocked(&mut state, || lost(error.to_string()));
                    }
                    if !state.stop {
                        self.changed.wait_for(&mut state, pause);
                    }
                    pause = (pause * 2).min(self.backoff.1);
                }
            }
        }
    }

    /// Makes the next segment, unless that was done before, and names it in the manifest.
    fn prepare(&self, made: &mut Option<Segment>) -> io::Result<Segment> {
        let segment = match made.take() {
            Some(segment) => segment,
            None => {
                let (id, spare) = {
                    let mut state = self.state.lock();
                    state.next_id += 1;
                    (state.next_id - 1, state.spares.pop())
                };
                let segment = self.make_segment(id, self.segment_bytes, spare)?;
                self.state.lock().coming.push(segment.clone());
                segment
            }
        };
        if let Err(error) = self.write_manifest(None) {
            *made = Some(segment);
            return Err(error);
        }
        Ok(segment)
    }

    /// Makes a segment ready for frames: its bytes and its name are durable before it is named in
    /// the manifest, and that is before it is used.
    fn make_segment(&self, id: u64, bytes: u64, spare: Option<PathBuf>) -> io::Result<Segment> {
        // Nothing is made in a directory that took the place of ours.
        self.held.check()?;
        let seal = Seal { segment: id, salt: rand::random() };
        let segment = Segment::new(&self.dir, seal, bytes);
        let header = SegmentHeader { store: self.store, seal, bytes };
        let make = || {
            match spare {
                Some(spare) => self.disk.rename(&spare, &segment.path)?,
                None => self.disk.create_zeroed(&segment.path, bytes)?,
            }
            self.disk.write_header(&segment.path, &header.encode())?;
            self.disk.sync_dir(&self.dir)
        };
        match make() {
            Ok(()) => Ok(segment),
            Err(error) => {
                // Half a segment would only take the space that is missing.
                self.disk.remove(&segment.path).ok();
                Err(error)
            }
        }
    }

    /// Writes down which segments there are and how far log and tree are durable, and then gives
    /// up the files that are not named any more.
    pub(super) fn write_manifest(&self, in_tree: Option<InTree>) -> io::Result<()> {
        let mut reached = self.in_tree.lock();
        if let Some(in_tree) = in_tree {
            *reached = in_tree;
        }
        let (segments, retired) = {
            let mut state = self.state.lock();
            (state.named(), std::mem::take(&mut state.retired))
        };
        let synced = self.synced.load(Ordering::Acquire);
        let (store, tables) = (self.store, reached.tables.clone());
        let manifest = Manifest { store, tree: reached.position, synced, segments, tables };
        let root = self.dir.parent().unwrap_or(&self.dir);
        let written = self.held.check().and_then(|()| manifest.write(&*self.disk, root));
        match written {
            Ok(()) => self.dispose(retired),
            Err(_) => self.state.lock().retired.extend(retired),
        }
        written
    }

    /// The next segment for a frame with this number, waiting a bounded time for the preparer.
    fn take_prepared(&self, first: u64) -> Result<Segment, String> {
        let mut state = self.state.lock();
        let waiting = Stopwatch::start();
        loop {
            if let Some(segment) = state.prepared.take() {
                // In one step: a manifest that is written meanwhile names it.
                state.filled.push_back(Filled { segment: segment.clone(), first });
                self.changed.notify_all();
                return Ok(segment);
            }
            if let Some(obstacle) = &state.obstacle {
                return Err(obstacle.clone());
            }
            let rest = STALL_MAX.saturating_sub(waiting.elapsed());
            if rest.is_zero() || self.changed.wait_for(&mut state, rest).timed_out() {
                return Err("no log segment became ready in time".into());
            }
        }
    }

    /// A segment for the frame with this number, which needs `frame_bytes`.
    fn next_segment(&self, frame_bytes: u64, first: u64) -> Result<Segment, String> {
        let bytes = frame_bytes + SEGMENT_HEADER_BYTES as u64;
        if bytes <= self.segment_bytes {
            return self.take_prepared(first);
        }
        let id = {
            let mut state = self.state.lock();
            state.next_id += 1;
            state.next_id - 1
        };
        let obstacle = |error| format!("cannot make a log segment of {bytes} bytes: {error}");
        let segment =
            self.make_segment(id, bytes.next_multiple_of(4096), None).map_err(obstacle)?;
        self.state.lock().coming.push(segment.clone());
        let written = self.write_manifest(None);
        let mut state = self.state.lock();
        state.coming.retain(|coming| *coming != segment);
        match written {
            Ok(()) => {
                state.filled.push_back(Filled { segment: segment.clone(), first });
                Ok(segment)
            }
            Err(error) => {
                state.retired.push(segment);
                Err(obstacle(error))
            }
        }
    }

    /// Gives up segments whose frames are all in the tree up to its position. Call only when what
    /// they hold is durable in the tree.
    pub(super) fn recycle(&self, in_tree: InTree) {
        {
            let mut state = self.state.lock();
            while state.filled.get(1).is_some_and(|next| next.first <= in_tree.position.next_frame)
            {
                let freed = state.filled.pop_front();
                state.retired.extend(freed.map(|freed| freed.segment));
            }
        }
        // They are given up with the next manifest then.
        if let Err(error) = self.write_manifest(Some(in_tree)) {
            tracing::warn!(%error, "cannot write the manifest");
        }
    }

    /// Keeps files that no manifest names for reuse, or removes them.
    fn dispose(&self, retired: Vec<Segment>) {
        let mut room = SPARES_MAX.saturating_sub(self.state.lock().spares.len());
        let mut spares = Vec::new();
        for segment in retired {
            let spare = self.dir.join(format!("{:016x}.spare", segment.seal.segment));
            let outcome = if room > 0 && segment.bytes == self.segment_bytes {
                room -= 1;
                self.disk.rename(&segment.path, &spare).map(|()| spares.push(spare))
            } else {
                self.disk.remove(&segment.path)
            };
            // A file left behind is found again, and given up again, at the next opening.
            if let Err(error) = outcome {
                tracing::warn!(%error, segment = %segment.path.display(), "cannot recycle");
            }
        }
        self.state.lock().spares.extend(spares);
    }
}

impl State {
    /// Every segment that holds frames, or may before the next manifest is written.
    fn named(&self) -> Vec<Named> {
        let filled = self.filled.iter().map(|filled| filled.segment.named(Some(filled.first)));
        let others = self.prepared.iter().chain(&self.coming).map(|segment| segment.named(None));
        filled.chain(others).collect()
    }
}

/// What recovery hands to the log.
pub(super) struct Adopted {
    pub(super) filled: Vec<Filled>,
    /// Segments without frames that the manifest may name.
    pub(super) unused: Vec<Segment>,
    pub(super) spares: Vec<PathBuf>,
    pub(super) next_id: u64,
    /// All frames with lower numbers are durable.
    pub(super) synced: u64,
}

/// Why a frame is not in the log.
#[derive(Debug)]
pub(super) enum AppendError {
    /// Nothing was written and the log can be used further.
    NoRoom(String),
    /// A write or sync failed: what is on disk is unknown and these files must not be used on.
    Failed(io::Error),
}

/// The end of the log, owned by the committer.
pub(super) struct LogWriter {
    log: Arc<Log>,
    current: Option<Current>,
    next_number: u64,
    begun: u64,
}

struct Current {
    file: Box<dyn SegmentFile>,
    seal: Seal,
    offset: u64,
    bytes: u64,
}

impl LogWriter {
    pub(super) fn new(log: Arc<Log>, next_number: u64) -> Self {
        Self { log, current: None, next_number, begun: 0 }
    }

    /// Goes on behind the last frame of a segment, after writing that frame once more: the copy
    /// that was read may never have reached the disk.
    pub(super) fn resume(&mut self, segment: &Segment, tail: &Tail) -> io::Result<()> {
        let file = self.log.disk.open(&segment.path)?;
        file.write_at(tail.last_offset, &tail.last)?;
        file.sync()?;
        let (seal, bytes) = (segment.seal, segment.bytes);
        self.current = Some(Current { file, seal, offset: tail.end, bytes });
        Ok(())
    }

    /// Leaves the current segment: the next frame begins a new one.
    pub(super) fn leave_segment(&mut self) {
        self.current = None;
    }

    /// How many segments were begun.
    pub(super) fn segments_begun(&self) -> u64 {
        self.begun
    }

    /// The number the next frame will get.
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Writes a frame and syncs it. Returns how long the sync took.
    pub(super) fn append(&mut self, frame: &mut FrameBuilder) -> Result<Duration, AppendError> {
        let len = frame.len() as u64;
        let fits = |current: &Current| current.offset + len <= current.bytes;
        let fresh = match &mut self.current {
            Some(current) if fits(current) => None,
            Some(_) | None => {
                let next = self.log.next_segment(len, self.next_number);
                Some(next.map_err(AppendError::NoRoom)?)
            }
        };
        if let Some(segment) = fresh {
            let file = self.log.disk.open(&segment.path).map_err(AppendError::Failed)?;
            let Segment { seal, bytes, start, .. } = segment;
            self.current = Some(Current { file, seal, offset: start, bytes });
            self.begun += 1;
        }
        let Some(current) = &mut self.current else {
            return Err(AppendError::NoRoom("there is no log segment".into()));
        };
        let bytes = frame.seal(current.seal, self.next_number);
        current.file.write_at(current.offset, bytes).map_err(AppendError::Failed)?;
        let syncing = Stopwatch::start();
        current.file.sync().map_err(AppendError::Failed)?;
        current.offset += len;
        self.next_number += 1;
        self.log.synced.store(self.next_number, Ordering::Release);
        Ok(syncing.elapsed())
    }
}
