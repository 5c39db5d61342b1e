//! The few file operations the log is built on, as a trait, so that tests can fail any of them
//! or cut the power between them. Nothing here knows what is in the files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// One open segment.
pub(crate) trait SegmentFile: Send {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Returns after everything written is on stable storage.
    fn sync(&self) -> io::Result<()>;
}

/// The directory the segments live in.
pub(crate) trait Disk: Send + Sync + 'static {
    /// Makes a file of zeros, durable itself (its name is not, before `sync_dir`).
    fn create_zeroed(&self, path: &Path, bytes: u64) -> io::Result<()>;
    /// Makes a file with these bytes in place of one that is there. Its bytes are durable, its
    /// name is not, before `sync_dir`.
    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Writes the beginning of a file that is there; returns when it is durable.
    fn write_header(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
}

/// Straight to the operating system.
#[derive(Debug)]
pub(crate) struct RealDisk;

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

impl Disk for RealDisk {
    fn create_zeroed(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let file = new_file(path)?;
        let mut offset = 0;
        // Real zeros, not holes: a later write then changes no metadata, so its sync is one write.
        while offset < bytes {
            let rest = usize::try_from(bytes - offset).unwrap_or(usize::MAX).min(ZEROS.len());
            file.write_all_at(ZEROS.get(..rest).unwrap_or(&ZEROS), offset)?;
            offset += rest as u64;
        }
        file.sync_all()
    }

    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = new_file(path)?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()
    }

    fn write_header(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        Ok(Box::new(RealSegment(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

#[derive(Debug)]
struct RealSegment(File);

impl SegmentFile for RealSegment {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// A new file that only its owner may read.
pub(crate) fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Writes a small file so that it is there whole or not at all, also after a power cut.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    RealDisk.write_new(&temporary, bytes)?;
    fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
