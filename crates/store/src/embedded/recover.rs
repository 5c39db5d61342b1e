//! Reads the log back. Frames are numbered without gaps, and each is synced before the next is
//! written, so a crash can spoil only the last one: an invalid frame is the end of the log only
//! if no later one exists anywhere. Everything else is damage and stops the opening.

use std::fs;
use std::path::{Path, PathBuf};

use super::dir::Layout;
use super::disk::Disk;
use super::frame::{Frame, each_write, frame_at, later_frame};
use super::head::{Entry, Position, Table};
use super::log::{Filled, Segment, parse_name};
use super::options::OpenError;

/// What the log holds beyond the tree.
pub(super) struct Recovered {
    pub(super) head: Table,
    /// The end of the log.
    pub(super) position: Position,
    /// Where the last segment with frames (the last of `filled`) ends.
    pub(super) tail: Option<Tail>,
    pub(super) filled: Vec<Filled>,
    /// Files without frames, of any size.
    pub(super) unused: Vec<PathBuf>,
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
    /// The number that a frame behind it must have.
    pub(super) next_frame: u64,
}

/// A segment file and what is in it.
struct Read {
    segment: Segment,
    bytes: Vec<u8>,
    /// The number of the first frame, if it is valid.
    first: Option<u64>,
}

/// Reads every frame from `position` on.
pub(super) fn recover(
    disk: &dyn Disk,
    layout: &Layout,
    position: Position,
) -> Result<Recovered, OpenError> {
    let (segments, spares) = list(layout)?;
    let next_id = segments.last().map_or(1, |segment| segment.seal.segment + 1);
    let mut recovered = Recovered {
        head: Table::default(),
        position,
        tail: None,
        filled: Vec::new(),
        unused: spares,
        next_id,
        frames: 0,
    };
    let mut replay = Replay { layout, start: position.next_frame, next: None };
    let mut pending: Option<Read> = None;
    for segment in segments {
        let read = read_segment(disk, layout, segment)?;
        let Some(first) = read.first else {
            refuse_later_frames(layout, &read, 0, replay.next_or_start())?;
            recovered.unused.push(read.segment.path);
            continue;
        };
        if let Some(before) = pending.replace(read) {
            if before.first > Some(first) {
                let what = format!("is behind one that begins with frame {first}");
                return Err(layout.damaged(at(&before.segment, 0, &what)));
            }
            replay.segment(before, Some(first), &mut recovered)?;
        }
    }
    if let Some(last) = pending {
        replay.segment(last, None, &mut recovered)?;
    }
    Ok(recovered)
}

struct Replay<'a> {
    layout: &'a Layout,
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
        read: Read,
        until: Option<u64>,
        recovered: &mut Recovered,
    ) -> Result<(), OpenError> {
        let Read { segment, bytes, first: Some(first) } = read else { return Ok(()) };
        if first > self.next_or_start() {
            return Err(self.layout.damaged(format!(
                "log segment {} begins with frame {first}, but frame {} is missing",
                segment.path.display(),
                self.next_or_start(),
            )));
        }
        let superseded = until.is_some_and(|until| until <= self.start);
        if !superseded {
            self.next = Some(first);
            self.frames(&segment, &bytes, until, recovered)?;
        }
        recovered.filled.push(Filled { segment, first });
        Ok(())
    }

    fn frames(
        &mut self,
        segment: &Segment,
        bytes: &[u8],
        until: Option<u64>,
        recovered: &mut Recovered,
    ) -> Result<(), OpenError> {
        let mut offset = 0;
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
                next_frame: next + 1,
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
        .ok_or_else(|| self.layout.damaged(at(segment, offset, "a frame that makes no sense")))?;
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
            return Err(self.layout.damaged(at(segment, offset, &what)));
        }
        refuse_later(self.layout, segment, bytes, offset, next)
    }
}

fn refuse_later_frames(
    layout: &Layout,
    read: &Read,
    offset: usize,
    next: u64,
) -> Result<(), OpenError> {
    refuse_later(layout, &read.segment, &read.bytes, offset, next)
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

fn read_segment(disk: &dyn Disk, layout: &Layout, segment: Segment) -> Result<Read, OpenError> {
    let bytes = disk
        .read(&segment.path)
        .map_err(|error| layout.io(format!("{}: {error}", segment.path.display())))?;
    let first = frame_at(&bytes, 0, segment.seal).map(|frame| frame.number);
    Ok(Read { segment, bytes, first })
}

/// The segments in order of use, and the files that are kept for reuse.
fn list(layout: &Layout) -> Result<(Vec<Segment>, Vec<PathBuf>), OpenError> {
    let mut segments = Vec::new();
    let mut spares = Vec::new();
    for entry in fs::read_dir(layout.log()).map_err(|error| layout.io(error))? {
        let entry = entry.map_err(|error| layout.io(error))?;
        let path = entry.path();
        if let Some(seal) = entry.file_name().to_str().and_then(parse_name) {
            let bytes = entry.metadata().map_err(|error| layout.io(error))?.len();
            segments.push(Segment { seal, path, bytes });
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
