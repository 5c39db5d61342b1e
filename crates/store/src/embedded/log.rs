//! The write-ahead log: which segments there are, which one is written, and which may be used
//! again. A segment is zero-filled (or a recycled one renamed) before it is needed, by the
//! preparer; its id and salt are in its name, so no byte of an earlier use can pass for a frame.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::clock::Stopwatch;
use super::disk::{Disk, SegmentFile};
use super::frame::{FrameBuilder, Seal};
use super::options::{EmbeddedOptions, SPARES_MAX, STALL_MAX};
use super::recover::Tail;

/// A segment by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) seal: Seal,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

impl Segment {
    fn new(dir: &Path, seal: Seal, bytes: u64) -> Self {
        let path = dir.join(format!("{:016x}-{:016x}.seg", seal.segment, seal.salt));
        Self { seal, path, bytes }
    }
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

/// The segments of one open store, shared by committer, preparer and checkpointer.
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    /// Pauses between attempts to make a segment, shortest and longest.
    backoff: (Duration, Duration),
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Oldest first; the last one is being written.
    filled: VecDeque<Filled>,
    prepared: Option<Segment>,
    /// The preparer is at work, under an id it has drawn already.
    preparing: bool,
    /// Why the next segment is not ready.
    obstacle: Option<String>,
    spares: Vec<PathBuf>,
    next_id: u64,
    stop: bool,
}

impl Log {
    pub(super) fn new(dir: PathBuf, options: &EmbeddedOptions) -> Self {
        Self {
            disk: Arc::clone(&options.disk),
            dir,
            segment_bytes: options.segment_bytes,
            backoff: (options.backoff_min, options.backoff_max),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes over what recovery found: segments with frames, and files free for use.
    pub(super) fn adopt(&self, filled: Vec<Filled>, spares: Vec<PathBuf>, next_id: u64) {
        let mut state = self.state.lock();
        state.filled = filled.into();
        state.spares = spares;
        state.next_id = next_id;
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.state.lock();
        let filled: u64 = state.filled.iter().map(|filled| filled.segment.bytes).sum();
        let ready = state.prepared.as_ref().map_or(0, |segment| segment.bytes);
        filled + ready + state.spares.len() as u64 * self.segment_bytes
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

    /// The preparer: keeps one segment ready until `stop`.
    pub(super) fn prepare_ahead(&self) {
        let mut pause = self.backoff.0;
        let mut state = self.state.lock();
        while !state.stop {
            if state.prepared.is_some() {
                self.changed.wait(&mut state);
                continue;
            }
            let spare = state.spares.pop();
            let id = state.next_id;
            state.next_id += 1;
            state.preparing = true;
            drop(state);
            let outcome = self.make_segment(id, self.segment_bytes, spare);
            state = self.state.lock();
            state.preparing = false;
            match outcome {
                Ok(segment) => {
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
                    if !state.stop {
                        self.changed.wait_for(&mut state, pause);
                    }
                    pause = (pause * 2).min(self.backoff.1);
                }
            }
        }
    }

    /// Makes a segment ready for frames: its bytes and its name are durable before it is used.
    fn make_segment(&self, id: u64, bytes: u64, spare: Option<PathBuf>) -> io::Result<Segment> {
        let seal = Seal { segment: id, salt: rand::random() };
        let segment = Segment::new(&self.dir, seal, bytes);
        let made = match spare {
            Some(spare) => self.disk.rename(&spare, &segment.path),
            None => self.disk.create_zeroed(&segment.path, bytes),
        };
        match made.and_then(|()| self.disk.sync_dir(&self.dir)) {
            Ok(()) => Ok(segment),
            Err(error) => {
                // Half a segment would only take the space that is missing.
                self.disk.remove(&segment.path).ok();
                Err(error)
            }
        }
    }

    /// The next segment, waiting a bounded time for the preparer.
    fn take_prepared(&self) -> Result<Segment, String> {
        let mut state = self.state.lock();
        let waiting = Stopwatch::start();
        loop {
            if let Some(segment) = state.prepared.take() {
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

    /// A segment for a frame that needs at least `bytes`.
    fn next_segment(&self, bytes: u64) -> Result<Segment, String> {
        if bytes <= self.segment_bytes {
            return self.take_prepared();
        }
        let id = {
            let mut state = self.state.lock();
            // Ids are in order of use: one that is ready, or soon will be, was drawn too early
            // and has to be used under a later id.
            let unready = |state: &mut State| state.preparing;
            self.changed.wait_while_for(&mut state, unready, STALL_MAX);
            if state.preparing {
                return Err("no log segment became ready in time".into());
            }
            if let Some(segment) = state.prepared.take() {
                state.spares.push(segment.path);
            }
            state.next_id += 1;
            state.next_id - 1
        };
        let outcome = self.make_segment(id, bytes.next_multiple_of(4096), None);
        self.changed.notify_all();
        outcome.map_err(|error| format!("cannot make a log segment of {bytes} bytes: {error}"))
    }

    fn begin(&self, segment: Segment, first: u64) {
        self.state.lock().filled.push_back(Filled { segment, first });
    }

    /// Gives up segments whose frames are all numbered below `position`. Call only when what
    /// they hold is durable in the tree.
    pub(super) fn recycle(&self, position: u64) {
        let mut freed = Vec::new();
        let mut room = {
            let mut state = self.state.lock();
            while state.filled.get(1).is_some_and(|next| next.first <= position) {
                freed.extend(state.filled.pop_front());
            }
            SPARES_MAX.saturating_sub(state.spares.len())
        };
        let mut spares = Vec::new();
        for Filled { segment, .. } in freed {
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
}

struct Current {
    file: Box<dyn SegmentFile>,
    seal: Seal,
    offset: u64,
    bytes: u64,
}

impl LogWriter {
    pub(super) fn new(log: Arc<Log>, next_number: u64) -> Self {
        Self { log, current: None, next_number }
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
            Some(_) | None => Some(self.log.next_segment(len).map_err(AppendError::NoRoom)?),
        };
        if let Some(segment) = fresh {
            let file = self.log.disk.open(&segment.path).map_err(AppendError::Failed)?;
            self.current =
                Some(Current { file, seal: segment.seal, offset: 0, bytes: segment.bytes });
            self.log.begin(segment, self.next_number);
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
        Ok(syncing.elapsed())
    }
}
