//! The directory of a store: who owns it, which format it has, and whether the file system
//! under it can be trusted. It opens no log and no tree.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::disk::write_atomically;
use super::options::OpenError;

/// Version of everything below the directory.
pub(super) const FORMAT_VERSION: u32 = 1;
const FORMAT_MAGIC: &str = "lockd embedded store";

const LOCK_FILE: &str = "LOCK";
const FORMAT_FILE: &str = "FORMAT";

/// The parts of a store's directory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) root: PathBuf,
}

impl Layout {
    pub(super) fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    pub(super) fn tree(&self) -> PathBuf {
        self.root.join("tree")
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.root.join("blobs")
    }

    pub(super) fn io(&self, error: impl std::fmt::Display) -> OpenError {
        OpenError::Io { path: self.root.clone(), detail: error.to_string() }
    }

    pub(super) fn damaged(&self, detail: impl Into<String>) -> OpenError {
        OpenError::Damaged { path: self.root.clone(), detail: detail.into() }
    }

    /// Takes the directory into possession: makes it if missing, locks it, checks its format.
    pub(super) fn claim(&self, allow_network_fs: bool) -> Result<DirLock, OpenError> {
        make_dir(&self.root).map_err(|error| self.io(error))?;
        if !allow_network_fs {
            self.refuse_network_fs()?;
        }
        self.refuse_foreign_dir()?;
        let lock = self.lock()?;
        self.check_format()?;
        for part in [self.log(), self.tree(), self.blobs()] {
            make_dir(&part).map_err(|error| self.io(error))?;
        }
        sync_dir(&self.root).map_err(|error| self.io(error))?;
        Ok(lock)
    }

    /// Locks a store that must exist already, and makes nothing.
    pub(super) fn claim_existing(&self) -> Result<DirLock, OpenError> {
        if !self.root.join(FORMAT_FILE).is_file() {
            let detail = "there is no FORMAT file".to_owned();
            return Err(OpenError::NotAStore { path: self.root.clone(), detail });
        }
        let lock = self.lock()?;
        self.check_format()?;
        Ok(lock)
    }

    /// Moves a whole store to another directory of the same file system. The format file comes
    /// last: without it nothing takes the directory for a store.
    pub(super) fn move_into(&self, target: &Path) -> io::Result<()> {
        let target = Self { root: target.to_owned() };
        fs::rename(self.log(), target.log())?;
        fs::rename(self.tree(), target.tree())?;
        fs::rename(self.blobs(), target.blobs())?;
        sync_dir(&target.root)?;
        fs::rename(self.root.join(FORMAT_FILE), target.root.join(FORMAT_FILE))?;
        fs::remove_dir_all(&self.root)?;
        sync_dir(&target.root)
    }

    /// Takes back what `move_into` has moved.
    pub(super) fn remove_parts(&self) {
        fs::remove_file(self.root.join(FORMAT_FILE)).ok();
        for part in [self.log(), self.tree(), self.blobs()] {
            fs::remove_dir_all(part).ok();
        }
    }

    fn lock(&self) -> Result<DirLock, OpenError> {
        let path = self.root.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(|error| self.io(error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                (&mut file).take(32).read_to_string(&mut text).ok();
                let pid = text.trim().parse().ok();
                return Err(OpenError::InUse { path: self.root.clone(), pid });
            }
            Err(TryLockError::Error(error)) => return Err(self.io(error)),
        }
        // The pid only helps people; the lock is what counts.
        let note = format!("{}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.write_all_at(note.as_bytes(), 0))
            .map_err(|error| self.io(error))?;
        Ok(DirLock { file })
    }

    fn check_format(&self) -> Result<(), OpenError> {
        let path = self.root.join(FORMAT_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let text = format!("{FORMAT_MAGIC} {FORMAT_VERSION}\n");
                return write_atomically(&path, text.as_bytes()).map_err(|error| self.io(error));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(self.io(error)),
        };
        let version =
            text.trim_end().strip_prefix(FORMAT_MAGIC).and_then(|v| v.trim().parse().ok());
        match version {
            Some(FORMAT_VERSION) => Ok(()),
            Some(found) => {
                Err(OpenError::Version { path: self.root.clone(), found, known: FORMAT_VERSION })
            }
            None => Err(self.damaged("the FORMAT file is not readable")),
        }
    }

    /// A directory that holds other people's files is not made into a store by accident.
    fn refuse_foreign_dir(&self) -> Result<(), OpenError> {
        if self.root.join(FORMAT_FILE).exists() {
            return Ok(());
        }
        for entry in fs::read_dir(&self.root).map_err(|error| self.io(error))? {
            let name = entry.map_err(|error| self.io(error))?.file_name();
            // What a first opening may leave behind when it is cut short, and what mkfs makes.
            if name != LOCK_FILE && name != "FORMAT.tmp" && name != "lost+found" {
                let detail = format!("it contains {}", name.to_string_lossy());
                return Err(OpenError::NotAStore { path: self.root.clone(), detail });
            }
        }
        Ok(())
    }

    fn refuse_network_fs(&self) -> Result<(), OpenError> {
        let stat = rustix::fs::statfs(&self.root).map_err(|error| self.io(error))?;
        match network_fs(stat.f_type) {
            Some(kind) => Err(OpenError::NetworkFs { path: self.root.clone(), kind }),
            None => Ok(()),
        }
    }

    /// Size of the file system and what is free on it for us, in bytes.
    pub(super) fn space(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.root)?;
        Ok((stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize))
    }
}

/// The store is ours while this lives.
#[derive(Debug)]
pub(super) struct DirLock {
    file: File,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        self.file.set_len(0).ok();
        self.file.flush().ok();
        self.file.unlock().ok();
    }
}

/// The name of a network file system by its magic number.
fn network_fs(magic: i64) -> Option<&'static str> {
    // FUSE says nothing of what is behind it: sshfs, s3fs and the like are, so it counts.
    const KNOWN: [(i64, &str); 12] = [
        (0x6969, "nfs"),
        (0x517b, "smb"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x6573_5546, "fuse"),
        (0x0102_1997, "9p"),
        (0x00c3_6400, "ceph"),
        (0x5346_414f, "afs"),
        (0x6b41_4653, "kafs"),
        (0x7375_7245, "coda"),
        (0x0bd0_0bd0, "lustre"),
        (0x2030_528c, "orangefs"),
    ];
    // f_type is signed on some architectures: compare the 32 bits that carry it.
    KNOWN
        .iter()
        .find(|(known, _)| known & 0xffff_ffff == magic & 0xffff_ffff)
        .map(|(_, name)| *name)
}

/// Makes a directory (and its parents) that only its owner may enter.
pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::network_fs;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_fs(0x6969), Some("nfs"));
        assert_eq!(network_fs(0xff53_4d42), Some("cifs"));
        assert_eq!(network_fs(i64::from(0xff53_4d42_u32.cast_signed())), Some("cifs"), "signed");
        assert_eq!(network_fs(0x6573_5546), Some("fuse"));
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert_eq!(network_fs(local), None, "ext4, xfs, btrfs, tmpfs, overlay");
        }
    }
}
