//! A file system so small that it can be filled: a tmpfs of its own, unmounted when the test ends.
//! Needs the right to mount, and says so when it is missing.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

#[derive(Debug)]
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder to mount on");
        let size = std::ffi::CString::new(format!("size={bytes}")).expect("no zero byte");
        let mounted =
            rustix::mount::mount("lockd-test", folder.path(), "tmpfs", MountFlags::empty(), &*size);
        mounted.expect("this test mounts a small tmpfs and needs the right to do so (root)");
        Self { folder }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Takes whatever space is left.
    pub fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.filler()).expect("file");
        let mut piece = 256 * 1024;
        while piece > 0 {
            if file.write_all(&vec![b'x'; piece]).is_err() {
                piece /= 2;
            }
        }
    }

    pub fn free(&self) {
        std::fs::remove_file(self.filler()).expect("the filler");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A server that is still ending may keep it busy: then it goes when that has ended.
        rustix::mount::unmount(self.path(), UnmountFlags::DETACH).ok();
    }
}
