//! The directory of a store: which format it has, what is in it, and whether the file system
//! under it can be trusted. It opens no log and no tree.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::disk::write_atomically;
use super::hold::{DirLock, Locks};
use super::manifest::Manifest;
use super::options::OpenError;

/// Version of everything below the directory.
pub(super) const FORMAT_VERSION: u32 = 2;
/// The version without a manifest. Such a store is brought to the present one when it is opened.
pub(super) const FORMAT_WITHOUT_MANIFEST: u32 = 1;
const FORMAT_MAGIC: &str = "lockd embedded store";

pub(super) const LOCK_FILE: &str = "LOCK";
pub(super) const MANIFEST_FILE: &str = "MANIFEST";
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

    pub(super) fn manifest(&self) -> PathBuf {
        self.root.join(MANIFEST_FILE)
    }

    pub(super) fn io(&self, error: impl std::fmt::Display) -> OpenError {
        OpenError::Io { path: self.root.clone(), detail: error.to_string() }
    }

    pub(super) fn lost(&self, error: &io::Error) -> OpenError {
        OpenError::Lost { path: self.root.clone(), detail: error.to_string() }
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
        let is_new = self.is_new()?;
        let lock = self.lock()?;
        if is_new {
            // In this order: a store of this format always has a manifest.
            let made = Manifest::empty().write_at_rest(self).and_then(|()| self.write_format());
            made.map_err(|error| self.io(error))?;
        }
        self.format()?;
        for part in self.parts() {
            make_dir(&part).map_err(|error| self.io(error))?;
            lock.add(part).map_err(|error| self.io(error))?;
        }
        sync_dir(&self.root).map_err(|error| self.io(error))?;
        Ok(lock)
    }

    fn parts(&self) -> [PathBuf; 3] {
        [self.log(), self.tree(), self.blobs()]
    }

    /// Locks a store that must exist already, and makes nothing.
    pub(super) fn claim_existing(&self) -> Result<DirLock, OpenError> {
        if !self.root.join(FORMAT_FILE).is_file() {
            self.refuse_lost_format()?;
            let detail = "there is no FORMAT file".to_owned();
            return Err(OpenError::NotAStore { path: self.root.clone(), detail });
        }
        let lock = self.lock()?;
        self.format()?;
        Ok(lock)
    }

    /// Moves a whole store to another directory of the same file system. The format file comes
    /// last: without it nothing takes the directory for a store.
    pub(super) fn move_into(&self, target: &Path) -> io::Result<()> {
        let target = Self { root: target.to_owned() };
        fs::rename(self.log(), target.log())?;
        fs::rename(self.tree(), target.tree())?;
        fs::rename(self.blobs(), target.blobs())?;
        fs::rename(self.manifest(), target.manifest())?;
        sync_dir(&target.root)?;
        fs::rename(self.root.join(FORMAT_FILE), target.root.join(FORMAT_FILE))?;
        fs::remove_dir_all(&self.root)?;
        sync_dir(&target.root)
    }

    /// Takes back what `move_into` has moved.
    pub(super) fn remove_parts(&self) {
        fs::remove_file(self.root.join(FORMAT_FILE)).ok();
        fs::remove_file(self.manifest()).ok();
        for part in self.parts() {
            fs::remove_dir_all(part).ok();
        }
    }

    fn lock(&self) -> Result<DirLock, OpenError> {
        let path = self.root.join(LOCK_FILE);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(|error| self.io(error))?;
        let in_use = |pid| OpenError::InUse { path: self.root.clone(), pid };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                (&mut file).take(32).read_to_string(&mut text).ok();
                return Err(in_use(text.trim().parse().ok()));
            }
            Err(TryLockError::Error(error)) => return Err(self.io(error)),
        }
        // The lock file may be a new one, in a directory that another process still holds.
        let taken = Locks::take(&self.root).map_err(|error| self.io(error))?;
        let locks = taken.map_err(|taken| in_use(taken.pid))?;
        // The pid only helps people; the lock is what counts.
        let note = format!("{}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.write_all_at(note.as_bytes(), 0))
            .map_err(|error| self.io(error))?;
        Ok(DirLock::new(&self.root, locks, (path, file)))
    }

    /// The version of the format of a store that has one this program can read.
    pub(super) fn format(&self) -> Result<u32, OpenError> {
        let path = self.root.join(FORMAT_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(self.io(error)),
        };
        let version =
            text.trim_end().strip_prefix(FORMAT_MAGIC).and_then(|v| v.trim().parse().ok());
        match version {
            Some(version @ (FORMAT_WITHOUT_MANIFEST | FORMAT_VERSION)) => Ok(version),
            Some(found) => {
                Err(OpenError::Version { path: self.root.clone(), found, known: FORMAT_VERSION })
            }
            None => Err(self.damaged("the FORMAT file is not readable")),
        }
    }

    /// Says that the store has the present format.
    pub(super) fn write_format(&self) -> io::Result<()> {
        let text = format!("{FORMAT_MAGIC} {FORMAT_VERSION}\n");
        write_atomically(&self.root.join(FORMAT_FILE), text.as_bytes())
    }

    /// Whether there is no store here yet. A directory that holds other people's files is not
    /// made into a store by accident.
    fn is_new(&self) -> Result<bool, OpenError> {
        if self.root.join(FORMAT_FILE).exists() {
            return Ok(false);
        }
        self.refuse_lost_format()?;
        // What a first opening may leave behind when it is cut short, and what mkfs makes.
        const HARMLESS: [&str; 5] =
            [LOCK_FILE, "FORMAT.tmp", "MANIFEST.tmp", MANIFEST_FILE, "lost+found"];
        for entry in fs::read_dir(&self.root).map_err(|error| self.io(error))? {
            let name = entry.map_err(|error| self.io(error))?.file_name();
            if !HARMLESS.iter().any(|harmless| name == *harmless) {
                let detail = format!("it contains {}", name.to_string_lossy());
                return Err(OpenError::NotAStore { path: self.root.clone(), detail });
            }
        }
        Ok(true)
    }

    /// A directory with all that a store has but its FORMAT file has lost it.
    fn refuse_lost_format(&self) -> Result<(), OpenError> {
        if self.manifest().exists() && self.parts().iter().any(|part| part.exists()) {
            return Err(self.damaged("the file FORMAT is missing"));
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
