//! Reads the log back. Frames are numbered without gaps, and each is synced before the next is
//! written, so a crash can spoil only the last one: an invalid frame is the end of the log only
//! if no later one exists anywhere, and if the manifest knows of none. Every segment that the
//! manifest names must be there, whole and of this store. Everything else is damage and stops the
//! opening.

use std::fs;
use std::path::{Path, PathBuf};

use super::dir::Layout;
use super::disk::Disk;
use super::frame::{Frame, SEGMENT_HEADER_BYTES, SegmentHeader, each_write, frame_at, later_frame};
use super::head::{Entry, Position, Table};
use super::log::{Filled, Segment, parse_name};
use super::manifest::{Manifest, Named, StoreId};
use super::options::OpenError;

/// What the log holds beyond the tree.
pub(super) struct Recovered {
    pub(super) head: Table,
    /// The end of the log.
    pub(super) position: Position,
    /// Where the frames of the last segment (the last of `filled`) end.
    pub(super) tail: Option<Tail>,
    pub(super) filled: Vec<Filled>,
    /// Segments without frames, of any size, that the manifest may name.
    pub(super) unused: Vec<Segment>,
    /// Files that are kept for reuse, and no manifest names them.
    pub(super) spares: Vec<PathBuf>,
    pub(super) next_id: u64,
    pub(super) frames: u64,
}

/// The end of the log.
pub(super) struct Tail {
    /// The last frame as it stands in the file. It may be in the page cache only (the process
    /// was killed, or the sync failed), so it is written again before anybody sees it.
    pub(super) last: Vec<u8>,
    pub(super) last_offset: u64,
    pub(super) end: u64,
}

/// A segment, with the number of its first frame, if it has one.
struct Found {
    segment: Segment,
    first: Option<u64>,
}

/// Reads every frame from `position` on. Without a manifest (the store is of an earlier version)
/// the segments are those that hold frames.
pub(super) fn recover(
    disk: &dyn Disk,
    layout: &Layout,
    position: Position,
    manifest: Option<&Manifest>,
) -> Result<Recovered, OpenError> {
    let (files, spares) = list(layout)?;
    let next_id = files.last().map_or(1, |segment| segment.seal.segment + 1);
    let mut recovered = Recovered {
        head: Table::default(),
        position,
        tail: None,
        filled: Vec::new(),
        unused: Vec::new(),
        spares,
        next_id,
        frames: 0,
    };
    let log = Reading { disk, layout, store: manifest.map(|manifest| manifest.store) };
    let (found, unnamed) = match manifest {
        Some(manifest) => log.named(files, manifest)?,
        None => (log.holding_frames(files)?, Vec::new()),
    };
    let (begun, empty): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|found| found.first.is_some());
    let mut replay = Replay { log: &log, start: position.next_frame, next: None };
    let mut begun = begun.into_iter().peekable();
    while let Some(Found { segment, first }) = begun.next() {
        let until = begun.peek().and_then(|next| next.first);
        replay.segment(segment, first.unwrap_or_default(), until, &mut recovered)?;
    }
    for segment in empty.into_iter().map(|found| found.segment).chain(unnamed) {
        replay.refuse_frames_in(&segment)?;
        recovered.unused.push(segment);
    }
    match manifest {
        Some(manifest) => replay.refuse_early_end(manifest, position, &recovered)?,
        // Cut off before what the tree holds: there is nothing in it to go on from.
        None if replay.next_or_start() < position.next_frame => {
            let filled = std::mem::take(&mut recovered.filled);
            recovered.unused.extend(filled.into_iter().map(|filled| filled.segment));
            recovered.tail = None;
        }
        None => {}
    }
    Ok(recovered)
}

/// The files of the log while they are read back.
struct Reading<'a> {
    disk: &'a dyn Disk,
    layout: &'a Layout,
    /// The store that segments with headers must be of.
    store: Option<StoreId>,
}

impl Reading<'_> {
    /// The segments that the manifest names, in order of their frames, and the rest.
    fn named(
        &self,
        mut files: Vec<Segment>,
        manifest: &Manifest,
    ) -> Result<(Vec<Found>, Vec<Segment>), OpenError> {
        let mut found = Vec::new();
        for Named { seal, bytes, start, first } in manifest.segments.iter().cloned() {
            let Some(at) = files.iter().position(|file| file.seal == seal) else {
                let path = self.layout.log().join(super::log::file_name(seal));
                return Err(self.layout.damaged(format!(
                    "log segment {} is missing, though the manifest names it",
                    path.display()
                )));
            };
            // The size that the manifest names, not that of the file.
            let segment = Segment { bytes, start, ..files.remove(at) };
            let first = match first {
                Some(first) => Some(first),
                None => self.first_frame(&segment, &self.read(&segment)?),
            };
            found.push(Found { segment, first });
        }
        // Stable: of two that begin with the same frame, the first failed before it was written.
        found.sort_by_key(|found| found.first);
        Ok((found, files))
    }

    /// The segments of a store of the version without a manifest.
    fn holding_frames(&self, files: Vec<Segment>) -> Result<Vec<Found>, OpenError> {
        let mut found = Vec::new();
        let mut last = None;
        for file in files {
            let bytes = self.read(&file)?;
            if SegmentHeader::parse(&bytes).is_some() {
                let what = "a segment of a later version than the file FORMAT says";
                return Err(self.layout.damaged(at(&file, 0, what)));
            }
            let segment = Segment { start: 0, ..file };
            let first = self.first_frame(&segment, &bytes);
            if let (Some(first), Some(last)) = (first, last)
                && last > first
            {
                let what = format!("begins with frame {first}, behind one with frame {last}");
                return Err(self.layout.damaged(at(&segment, 0, &what)));
            }
            last = first.or(last);
            found.push(Found { segment, first });
        }
        Ok(found)
    }

    fn first_frame(&self, segment: &Segment, bytes: &[u8]) -> Option<u64> {
        let start = usize::try_from(segment.start).unwrap_or(usize::MAX);
        frame_at(bytes, start, segment.seal).map(|frame| frame.number)
    }

    /// The bytes of a segment, which must be this segment.
    fn read(&self, segment: &Segment) -> Result<Vec<u8>, OpenError> {
        let bytes = self.read_any(segment)?;
        if let Some(store) = self.store
            && segment.start > 0
        {
            let header = SegmentHeader { store, seal: segment.seal, bytes: segment.bytes };
            if let Some(fault) = header.fault_of(&bytes) {
                return Err(self.layout.damaged(at(segment, 0, &fault)));
            }
        }
        Ok(bytes)
    }

    fn read_any(&self, segment: &Segment) -> Result<Vec<u8>, OpenError> {
        let failed = |error| self.layout.io(format!("{}: {error}", segment.path.display()));
        self.disk.read(&segment.path).map_err(failed)
    }
}

struct Replay<'a> {
    log: &'a Reading<'a>,
    /// The first frame that is wanted.
    start: u64,
    /// The number of the next frame in the log, once the first segment was seen.
    next: Option<u64>,
}

impl Replay<'_> {
    fn next_or_start(&self) -> u64 {
        self.next.unwrap_or(self.start)
    }

    /// Takes in one segment. `until` is the first frame of the next: what is numbered from there
    /// on in this one was replaced.
    fn segment(
        &mut self,
        segment: Segment,
        first: u64,
        until: Option<u64>,
        recovered: &mut Recovered,
    ) -> Result<(), OpenError> {
        let bytes = self.log.read(&segment)?;
        if first > self.next_or_start() {
            return Err(self.log.layout.damaged(format!(
                "log segment {} begins with frame {first}, but frame {} is missing",
                segment.path.display(),
                self.next_or_start(),
            )));
        }
        let superseded = until.is_some_and(|until| until <= self.start);
        if !superseded {
            self.next = Some(first);
            // A segment that was begun may hold no frame yet: the log ends in it all the same.
            recovered.tail =
                Some(Tail { last: Vec::new(), last_offset: segment.start, end: segment.start });
            self.frames(&segment, &bytes, until, recovered)?;
        }
        recovered.filled.push(Filled { segment, first });
        Ok(())
    }

    /// A segment that is not part of the log holds nothing that belongs to it.
    fn refuse_frames_in(&self, segment: &Segment) -> Result<(), OpenError> {
        let bytes = self.log.read_any(segment)?;
        refuse_later(self.log.layout, segment, &bytes, 0, self.next_or_start())
    }

    /// What was durable when the manifest was written, or when the tree was, is there.
    fn refuse_early_end(
        &self,
        manifest: &Manifest,
        in_tree: Position,
        recovered: &Recovered,
    ) -> Result<(), OpenError> {
        let (end, known) = (self.next_or_start(), manifest.synced.max(in_tree.next_frame));
        if end >= known {
            return Ok(());
        }
        let last = recovered.filled.last().map(|filled| filled.segment.path.display().to_string());
        Err(self.log.layout.damaged(format!(
            "log segment {} ends before frame {end}, but all frames before {known} were durable",
            last.unwrap_or_default()
        )))
    }

    fn frames(
        &mut self,
        segment: &Segment,
        bytes: &[u8],
        until: Option<u64>,
        recovered: &mut Recovered,
    ) -> Result<(), OpenError> {
        let mut offset = usize::try_from(segment.start).unwrap_or(usize::MAX);
        loop {
            let next = self.next_or_start();
            if until.is_some_and(|until| next >= until) {
                return Ok(());
            }
            let Some(frame) =
                frame_at(bytes, offset, segment.seal).filter(|frame| frame.number == next)
            else {
                return self.end_of_frames(segment, bytes, offset, until);
            };
            if next >= self.start {
                self.apply(segment, offset, frame, recovered)?;
            }
            recovered.tail = Some(Tail {
                last: bytes.get(offset..frame.end).unwrap_or_default().to_vec(),
                last_offset: offset as u64,
                end: frame.end as u64,
            });
            self.next = Some(next + 1);
            offset = frame.end;
        }
    }

    fn apply(
        &self,
        segment: &Segment,
        offset: usize,
        frame: Frame<'_>,
        recovered: &mut Recovered,
    ) -> Result<(), OpenError> {
        let mut highest = recovered.position.revision;
        each_write(frame.payload, |logged| {
            highest = highest.max(logged.revision);
            let entry = Entry { revision: logged.revision, bytes: logged.bytes, in_tree: true };
            recovered.head.put(logged.name, entry);
        })
        .ok_or_else(|| {
            self.log.layout.damaged(at(segment, offset, "a frame that makes no sense"))
        })?;
        recovered.position = Position { next_frame: frame.number + 1, revision: highest };
        recovered.frames += 1;
        Ok(())
    }

    /// The log ends here, or it is damaged here.
    fn end_of_frames(
        &self,
        segment: &Segment,
        bytes: &[u8],
        offset: usize,
        until: Option<u64>,
    ) -> Result<(), OpenError> {
        let next = self.next_or_start();
        if let Some(until) = until {
            let what = format!("no valid frame {next}, though frame {until} exists");
            return Err(self.log.layout.damaged(at(segment, offset, &what)));
        }
        refuse_later(self.log.layout, segment, bytes, offset, next)
    }
}

fn refuse_later(
    layout: &Layout,
    segment: &Segment,
    bytes: &[u8],
    offset: usize,
    next: u64,
) -> Result<(), OpenError> {
    match later_frame(bytes, offset, next, segment.seal) {
        None => Ok(()),
        Some((found, number)) => {
            let what = format!("no valid frame {next}, though frame {number} follows at {found}");
            Err(layout.damaged(at(segment, offset, &what)))
        }
    }
}

fn at(segment: &Segment, offset: usize, what: &str) -> String {
    format!("log segment {} at offset {offset}: {what}", segment.path.display())
}

/// The segments in order of their ids, and the files that are kept for reuse.
fn list(layout: &Layout) -> Result<(Vec<Segment>, Vec<PathBuf>), OpenError> {
    let mut segments = Vec::new();
    let mut spares = Vec::new();
    for entry in fs::read_dir(layout.log()).map_err(|error| layout.io(error))? {
        let entry = entry.map_err(|error| layout.io(error))?;
        let path = entry.path();
        if let Some(seal) = entry.file_name().to_str().and_then(parse_name) {
            let bytes = entry.metadata().map_err(|error| layout.io(error))?.len();
            let start = SEGMENT_HEADER_BYTES as u64;
            segments.push(Segment { seal, path, bytes, start });
        } else if is_spare(&path) {
            spares.push(path);
        }
    }
    segments.sort_by_key(|segment| segment.seal.segment);
    Ok((segments, spares))
}

fn is_spare(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "spare")
}
