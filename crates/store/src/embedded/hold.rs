//! What a process holds of a store's directory while it has the store open: the directory, its
//! parts and its lock file, kept open and locked, and the name of the directory's path. It notices
//! when the directory is removed or another one is put in its place, and keeps a second process
//! from starting on the new one.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Names of sockets may be this long, without the byte that makes them abstract.
const SOCKET_NAME_BYTES_MAX: usize = 107;
const SOCKET_NAME_PREFIX: &str = "lockd-store:";

/// A directory that this process holds, until it is released.
#[derive(Debug)]
pub(super) struct HeldDir {
    root: PathBuf,
    held: Mutex<Option<Held>>,
}

#[derive(Debug)]
struct Held {
    /// Open for as long as they are held, so that their inodes are given to no other file.
    entries: Vec<Entry>,
    _path_lock: Option<OwnedFd>,
}

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    file: File,
}

/// Holds the directory while it lives.
#[derive(Debug)]
pub(super) struct DirLock(Arc<HeldDir>);

impl DirLock {
    /// Holds `root`, whose lock file is `lock` and locked already.
    pub(super) fn new(root: &Path, locks: Locks, lock: (PathBuf, File)) -> Self {
        let (path, file) = lock;
        let Locks { dir, path_lock } = locks;
        let entries = vec![Entry { path: root.to_owned(), file: dir }, Entry { path, file }];
        let held = Mutex::new(Some(Held { entries, _path_lock: path_lock }));
        Self(Arc::new(HeldDir { root: root.to_owned(), held }))
    }

    /// Holds a part of the directory too.
    pub(super) fn add(&self, path: PathBuf) -> io::Result<()> {
        let file = File::open(&path)?;
        if let Some(held) = &mut *self.0.held.lock() {
            held.entries.push(Entry { path, file });
        }
        Ok(())
    }

    pub(super) fn dir(&self) -> Arc<HeldDir> {
        Arc::clone(&self.0)
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        let held = self.0.held.lock().take();
        for Entry { file, path } in held.iter().flat_map(|held| &held.entries) {
            // The pid in the lock file is that of a holder.
            if path.file_name().is_some_and(|name| name == super::dir::LOCK_FILE) {
                file.set_len(0).ok();
            }
            file.unlock().ok();
        }
    }
}

impl HeldDir {
    /// An error if what is at the directory's path is no longer what this process holds.
    pub(super) fn check(&self) -> io::Result<()> {
        let held = self.held.lock();
        let Some(held) = &*held else {
            return Err(io::Error::other("the store is closed"));
        };
        held.entries.iter().try_for_each(Entry::check).map_err(|what| {
            let root = self.root.display();
            io::Error::other(format!(
                "the store directory {root} is not the one that was opened: {what}; put the \
                 directory back, or restart the server to use what is there now"
            ))
        })
    }
}

impl Entry {
    fn check(&self) -> Result<(), String> {
        let path = self.path.display();
        let held = self.file.metadata().map_err(|error| format!("{path}: {error}"))?;
        match fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) != (held.dev(), held.ino()) => {
                Err(format!("{path} was replaced"))
            }
            // A bind mount still leads to a directory that was removed.
            Ok(there) if there.nlink() == 0 => Err(format!("{path} was removed")),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(format!("{path} was removed"))
            }
            Err(error) => Err(format!("{path}: {error}")),
        }
    }
}

/// Locks that outlive the removal of what is in the directory.
#[derive(Debug)]
pub(super) struct Locks {
    dir: File,
    path_lock: Option<OwnedFd>,
}

/// Another process has it.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) pid: Option<u32>,
}

impl Locks {
    /// Takes the lock of the directory itself, which holds when its content is removed, and that
    /// of its path, which holds when the directory is.
    pub(super) fn take(root: &Path) -> io::Result<Result<Self, Taken>> {
        let path_lock = match lock_path(&fs::canonicalize(root)?) {
            Ok(path_lock) => path_lock,
            Err(taken) => return Ok(Err(taken)),
        };
        let dir = File::open(root)?;
        match dir.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(Taken { pid: None })),
            // Some file systems lock no directories; the lock file counts there.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, path = %root.display(), "cannot lock the store directory");
            }
        }
        Ok(Ok(Self { dir, path_lock }))
    }
}

/// How often, and after which pauses, a name in use is tried again: a program that was just being
/// started by the last holder has a copy of its socket for a moment.
const BIND_ATTEMPTS: usize = 50;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// Binds an abstract socket named after the path: it needs no writable folder, no other process
/// can remove it, and it goes with the process.
fn lock_path(path: &Path) -> Result<Option<OwnedFd>, Taken> {
    let mut pid = None;
    for attempt in 0..BIND_ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(BIND_PAUSE);
        }
        let error = match bind(&socket_name(path)) {
            Ok(socket) => return Ok(Some(socket)),
            Err(BindError::InUse(holder)) => {
                pid = holder.or(pid);
                continue;
            }
            Err(BindError::Other(error)) => error,
        };
        tracing::warn!(%error, path = %path.display(), "cannot lock the path of the store");
        return Ok(None);
    }
    Err(Taken { pid })
}

enum BindError {
    /// Another process has the name.
    InUse(Option<u32>),
    Other(Errno),
}

impl From<Errno> for BindError {
    fn from(error: Errno) -> Self {
        Self::Other(error)
    }
}

fn bind(name: &[u8]) -> Result<OwnedFd, BindError> {
    let address = SocketAddrUnix::new_abstract_name(name)?;
    let socket = stream_socket()?;
    net::bind(&socket, &address).map_err(|error| match error {
        Errno::ADDRINUSE => BindError::InUse(holder(&address)),
        error => BindError::Other(error),
    })?;
    // So that a second process can ask who holds it.
    net::listen(&socket, 8)?;
    Ok(socket)
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The process that listens there.
fn holder(address: &SocketAddrUnix) -> Option<u32> {
    let socket = stream_socket().ok()?;
    net::connect(&socket, address).ok()?;
    let peer = net::sockopt::socket_peercred(&socket).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

/// The path itself where it fits, for those who list sockets; else its end and a checksum.
fn socket_name(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let path = path.as_os_str().as_bytes();
    let mut name = SOCKET_NAME_PREFIX.as_bytes().to_vec();
    if name.len() + path.len() <= SOCKET_NAME_BYTES_MAX {
        name.extend_from_slice(path);
        return name;
    }
    let backwards: Vec<u8> = path.iter().rev().copied().collect();
    let checksum = format!("{:08x}{:08x}", crc32c::crc32c(path), crc32c::crc32c(&backwards));
    name.extend_from_slice(checksum.as_bytes());
    let room = SOCKET_NAME_BYTES_MAX.saturating_sub(name.len());
    name.extend_from_slice(path.get(path.len().saturating_sub(room)..).unwrap_or(path));
    name
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{SOCKET_NAME_BYTES_MAX, socket_name};

    #[test]
    fn long_paths_get_names_of_their_own() {
        assert_eq!(socket_name(Path::new("/var/lib/lockd")), b"lockd-store:/var/lib/lockd");
        let long = |middle: &str| format!("/{}/{middle}/{}", "a".repeat(300), "z".repeat(300));
        let (one, two) = (socket_name(Path::new(&long("x"))), socket_name(Path::new(&long("y"))));
        assert_ne!(one, two);
        assert_eq!((one.len(), two.len()), (SOCKET_NAME_BYTES_MAX, SOCKET_NAME_BYTES_MAX));
    }
}
