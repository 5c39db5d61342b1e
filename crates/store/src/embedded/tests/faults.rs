//! A disk that fails or loses power at a chosen operation. It works on real files and keeps what
//! it takes to undo everything that was not synced; a power cut undoes it, tears the last write
//! at a place that depends on the seed, and lets nothing through afterwards.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::PATIENCE;
use crate::embedded::disk::{Disk, RealDisk, SegmentFile};

/// What happens at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It fails once, and everything works again after it.
    Error,
    /// It is done, but reported as failed, once.
    LyingError,
    /// The power goes before it.
    PowerCut,
}

#[derive(Default)]
struct State {
    operations: u64,
    fault: Option<(u64, Fault)>,
    dead: bool,
    seed: u64,
    undo: Vec<Undo>,
    /// Files by their present path, so that a rename keeps their history together.
    ids: HashMap<PathBuf, u64>,
    next_id: u64,
    full: bool,
    fail_sync: bool,
}

/// How to take back one thing that is not durable yet.
enum Undo {
    Write { file: u64, offset: u64, before: Vec<u8>, after: Vec<u8> },
    Create { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, replaced: Option<Vec<u8>> },
    Remove { path: PathBuf, content: Vec<u8> },
}

impl Undo {
    /// The folder whose sync makes it durable; a write needs that of its file.
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::Write { .. } => None,
            Self::Create { path } | Self::Rename { to: path, .. } | Self::Remove { path, .. } => {
                path.parent()
            }
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct FaultyDisk {
    state: Arc<Mutex<State>>,
    gate: Arc<Gate>,
}

/// Where syncs can be held up.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    shut: bool,
    /// Syncs that may pass though it is shut.
    tickets: usize,
    standing: usize,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.standing += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.shut && state.tickets == 0);
        state.tickets = state.tickets.saturating_sub(1);
        state.standing -= 1;
    }
}

impl FaultyDisk {
    /// Strikes at the operation with this number, counted from zero.
    pub(super) fn striking(at: u64, fault: Fault, seed: u64) -> Self {
        let disk = Self::default();
        {
            let mut state = disk.state.lock();
            state.fault = Some((at, fault));
            state.seed = seed;
        }
        disk
    }

    /// Aims at an operation from now on: the next one is number zero.
    pub(super) fn strike(&self, at: u64, fault: Fault) {
        let mut state = self.state.lock();
        state.fault = Some((state.operations + at, fault));
    }

    pub(super) fn has_struck(&self) -> bool {
        let state = self.state.lock();
        state.fault.is_some_and(|(at, _)| state.operations > at)
    }

    /// The next sync of a segment fails, whatever else happens before it.
    pub(super) fn fail_next_sync(&self) {
        self.state.lock().fail_sync = true;
    }

    /// While full, nothing new can be made.
    pub(super) fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Holds up every sync from now on, or lets them go.
    pub(super) fn hold_syncs(&self, hold: bool) {
        self.gate.state.lock().shut = hold;
        self.gate.changed.notify_all();
    }

    /// Lets all go when the result is dropped, so that a test that fails also ends.
    pub(super) fn release_at_the_end(&self) -> impl Drop {
        struct Release(FaultyDisk);
        impl Drop for Release {
            fn drop(&mut self) {
                self.0.hold_syncs(false);
            }
        }
        Release(self.clone())
    }

    /// Lets the one that is held up go, and holds up the next.
    pub(super) fn hold_next_sync(&self) {
        self.gate.state.lock().tickets = 1;
        self.gate.changed.notify_all();
    }

    /// Waits until a sync is being held up.
    pub(super) fn wait_for_held_sync(&self) {
        let mut state = self.gate.state.lock();
        let nobody = |state: &mut GateState| state.standing == 0;
        let waited = self.gate.changed.wait_while_for(&mut state, nobody, PATIENCE);
        assert!(!waited.timed_out(), "no sync came");
    }

    /// Cuts the power now.
    pub(super) fn cut_power(&self) {
        self.state.lock().cut_power();
    }
}

#[derive(Clone, Copy)]
enum Verdict {
    Go,
    GoThenFail,
}

fn error(what: &str) -> io::Error {
    io::Error::other(format!("injected: {what}"))
}

impl State {
    fn operation(&mut self) -> io::Result<Verdict> {
        if self.dead {
            return Err(error("no power"));
        }
        let number = self.operations;
        self.operations += 1;
        match self.fault {
            Some((at, Fault::Error)) if at == number => Err(error("i/o error")),
            Some((at, Fault::LyingError)) if at == number => Ok(Verdict::GoThenFail),
            Some((at, Fault::PowerCut)) if at == number => {
                self.cut_power();
                Err(error("power cut"))
            }
            _ => Ok(Verdict::Go),
        }
    }

    fn id(&mut self, path: &Path) -> u64 {
        if let Some(id) = self.ids.get(path) {
            return *id;
        }
        self.next_id += 1;
        self.ids.insert(path.to_owned(), self.next_id);
        self.next_id
    }

    fn path(&self, id: u64) -> Option<PathBuf> {
        self.ids.iter().find(|(_, known)| **known == id).map(|(path, _)| path.clone())
    }

    fn cut_power(&mut self) {
        self.dead = true;
        let mut last = true;
        for undo in std::mem::take(&mut self.undo).into_iter().rev() {
            match undo {
                Undo::Write { file, offset, before, after } => {
                    let Some(path) = self.path(file) else { continue };
                    let open = OpenOptions::new().write(true).open(path).unwrap();
                    open.write_all_at(&before, offset).unwrap();
                    if last {
                        self.tear(&open, offset, &after);
                    }
                    last = false;
                }
                Undo::Create { path } => fs::remove_file(path).unwrap_or(()),
                Undo::Rename { from, to, replaced } => {
                    fs::rename(&to, &from).unwrap();
                    if let Some(id) = self.ids.remove(&to) {
                        self.ids.insert(from, id);
                    }
                    if let Some(content) = replaced {
                        fs::write(to, content).unwrap();
                    }
                }
                Undo::Remove { path, content } => fs::write(path, content).unwrap(),
            }
        }
    }

    /// Some of the last write reached the disk: by the seed nothing, all of it, a beginning, an
    /// end, or every other sector.
    fn tear(&self, file: &fs::File, offset: u64, after: &[u8]) {
        let seed = usize::try_from(self.seed).unwrap();
        let middle = seed.wrapping_mul(7919) % (after.len() + 1);
        match self.seed % 5 {
            0 => {}
            1 => file.write_all_at(after, offset).unwrap(),
            2 => file.write_all_at(&after[..middle], offset).unwrap(),
            3 => file.write_all_at(&after[middle..], offset + middle as u64).unwrap(),
            _ => {
                for (at, sector) in after.chunks(512).enumerate().filter(|(at, _)| at % 2 == 1) {
                    file.write_all_at(sector, offset + at as u64 * 512).unwrap();
                }
            }
        }
    }
}

/// Runs one operation and, if it is to lie, reports a failure after it.
fn run<T>(verdict: Verdict, outcome: io::Result<T>) -> io::Result<T> {
    match verdict {
        Verdict::Go => outcome,
        Verdict::GoThenFail => outcome.and_then(|_| Err(error("failed after all"))),
    }
}

impl Disk for FaultyDisk {
    fn create_zeroed(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.full {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let verdict = state.operation()?;
        state.undo.push(Undo::Create { path: path.to_owned() });
        state.id(path);
        run(verdict, RealDisk.create_zeroed(path, bytes))
    }

    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.full {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        let verdict = state.operation()?;
        if let Ok(content) = fs::read(path) {
            state.undo.push(Undo::Remove { path: path.to_owned(), content });
        }
        state.undo.push(Undo::Create { path: path.to_owned() });
        state.ids.remove(path);
        state.id(path);
        run(verdict, RealDisk.write_new(path, bytes))
    }

    fn write_header(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let verdict = self.state.lock().operation()?;
        run(verdict, RealDisk.write_header(path, bytes))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        let mut state = self.state.lock();
        let verdict = state.operation()?;
        let id = state.id(path);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        run(verdict, Ok(Box::new(FaultySegment { disk: self.clone(), id, file }) as _))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if self.state.lock().dead {
            return Err(error("no power"));
        }
        RealDisk.read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let verdict = state.operation()?;
        let replaced = fs::read(to).ok();
        RealDisk.rename(from, to)?;
        let id = state.id(from);
        state.ids.remove(from);
        state.ids.insert(to.to_owned(), id);
        let (from, to) = (from.to_owned(), to.to_owned());
        state.undo.push(Undo::Rename { from, to, replaced });
        run(verdict, Ok(()))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let verdict = state.operation()?;
        let content = fs::read(path)?;
        RealDisk.remove(path)?;
        state.undo.push(Undo::Remove { path: path.to_owned(), content });
        run(verdict, Ok(()))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        let verdict = state.operation()?;
        let outcome = RealDisk.sync_dir(path);
        if matches!(verdict, Verdict::Go) {
            state.undo.retain(|undo| undo.folder() != Some(path));
        }
        run(verdict, outcome)
    }
}

struct FaultySegment {
    disk: FaultyDisk,
    id: u64,
    file: fs::File,
}

impl SegmentFile for FaultySegment {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let (file, after) = (self.id, bytes.to_vec());
        let mut before = vec![0; bytes.len()];
        self.file.read_exact_at(&mut before, offset)?;
        // Power may go in the middle of it: what tears is this write.
        let undo = Undo::Write { file, offset, before, after };
        if state.fault == Some((state.operations, Fault::PowerCut)) && !state.dead {
            state.undo.push(undo);
            return state.operation().map(|_| ());
        }
        let verdict = state.operation()?;
        state.undo.push(undo);
        run(verdict, self.file.write_all_at(bytes, offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.gate.pass();
        let mut state = self.disk.state.lock();
        if std::mem::take(&mut state.fail_sync) {
            return Err(error("i/o error"));
        }
        let verdict = state.operation()?;
        // A sync that fails leaves the pages behind: nothing of it is durable for that.
        if matches!(verdict, Verdict::Go) {
            let id = self.id;
            state.undo.retain(|undo| !matches!(undo, Undo::Write { file, .. } if *file == id));
        }
        run(verdict, Ok(()))
    }
}
