//! The only file here that touches the disk. Bundles hold keys: they are written whole or not at
//! all, for their owner only, never over something else unless that is asked for, and read with a
//! bound. What is in them is for `bundle`.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::bundle::{Bundle, CaBundle, ClientBundle};
use crate::certificate::Certificate;
use crate::error::FileError;
use crate::identity::Role;
use crate::serial::Denylist;

/// No bundle and no denylist is larger.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Files that are looked at in a folder.
const FILES_MAX: usize = 256;
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const MODE_OF_OTHERS: u32 = 0o077;

/// A text that was read.
#[derive(Debug)]
pub struct Loaded {
    pub text: Zeroizing<String>,
    pub warning: Option<Warning>,
}

/// Something that works and should not be left so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    #[error(
        "{}: others than its owner can read the key (mode {mode:03o}); run chmod 600",
        path.display()
    )]
    ReadableByOthers { path: PathBuf, mode: u32 },
    #[error(
        "{}: is not of the CA in ca.pem beside it; the server here will not let it in",
        path.display()
    )]
    OtherCa { path: PathBuf },
    #[error("{0}")]
    Unusable(String),
}

/// What to do when the file is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    Replace,
}

/// Reads a text of bounded size.
///
/// # Errors
/// When it is no file, is too large, is no text or cannot be read.
pub fn read(path: &Path) -> Result<Loaded, FileError> {
    // Asked before opening: to open a pipe would wait for a writer.
    let about = fs::metadata(path).map_err(FileError::io(path, "read it"))?;
    if !about.is_file() {
        return Err(FileError::NotAFile { path: path.to_owned() });
    }
    let too_large = || FileError::TooLarge { path: path.to_owned(), max: FILE_BYTES_MAX };
    if about.len() > FILE_BYTES_MAX {
        return Err(too_large());
    }
    let file = File::open(path).map_err(FileError::io(path, "open it"))?;
    let bytes = read_bounded(file, usize::try_from(about.len()).unwrap_or_default())
        .map_err(FileError::io(path, "read it"))?
        .ok_or_else(too_large)?;
    let text =
        std::str::from_utf8(&bytes).map_err(|_| FileError::NotText { path: path.to_owned() })?;
    let mode = about.permissions().mode() & 0o777;
    let open = mode & MODE_OF_OTHERS != 0 && text.contains("PRIVATE KEY-----");
    let warning = open.then(|| Warning::ReadableByOthers { path: path.to_owned(), mode });
    Ok(Loaded { text: Zeroizing::new(text.to_owned()), warning })
}

/// Reads a bundle of whatever kind.
///
/// # Errors
/// When the file cannot be read or is no bundle.
pub fn load(path: &Path) -> Result<(Bundle, Option<Warning>), FileError> {
    let loaded = read(path)?;
    let bundle = Bundle::parse(&path.display().to_string(), &loaded.text)?;
    Ok((bundle, loaded.warning))
}

/// Writes a file that appears whole or not at all, readable by its owner only. When this returns
/// well, the file is on disk.
///
/// # Errors
/// When the file is there and must not be replaced, or the disk does not take it.
pub fn write(path: &Path, text: &str, existing: Existing) -> Result<(), FileError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".lockd-")
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(folder)
        .map_err(FileError::io(path, "write beside it"))?;
    file.write_all(text.as_bytes()).map_err(FileError::io(path, "write it"))?;
    file.as_file().sync_all().map_err(FileError::io(path, "sync it"))?;
    let persisted = match existing {
        Existing::Refuse => file.persist_noclobber(path),
        Existing::Replace => file.persist(path),
    };
    match persisted {
        Ok(_) => {}
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(FileError::Exists { path: path.to_owned() });
        }
        Err(error) => return Err(FileError::io(path, "put it in place")(error.error)),
    }
    let folder_file = File::open(folder).map_err(FileError::io(folder, "open it"))?;
    folder_file.sync_all().map_err(FileError::io(folder, "sync it"))
}

/// Makes a folder that only its owner can enter, and those above it; one that exists stays as it
/// is.
///
/// # Errors
/// When it cannot be made.
pub fn make_folder(folder: &Path) -> Result<(), FileError> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(folder)
        .map_err(FileError::io(folder, "make it"))
}

/// # Errors
/// When the folder cannot be searched.
pub fn exists(path: &Path) -> Result<bool, FileError> {
    path.try_exists().map_err(FileError::io(path, "look for it"))
}

/// The one client bundle in a folder: `client*.pem` of an ordinary client.
///
/// # Errors
/// When there is none, with what is wrong with those that look like one, or several.
pub fn find_client(folder: &Path) -> Result<(PathBuf, ClientBundle), FileError> {
    let (mut usable, mut unusable) = (Vec::new(), Vec::new());
    for path in list(folder, |name| name.starts_with("client") && name.ends_with(".pem"))? {
        let bundle = read(&path)
            .and_then(|loaded| Ok(ClientBundle::parse(&path.display().to_string(), &loaded.text)?));
        match bundle {
            Err(error) => unusable.push(error.to_string()),
            Ok(bundle) => match &bundle.leaf().peer.role {
                Role::Sdk(_) => usable.push((path, bundle)),
                role @ (Role::Tc(_) | Role::Server(_)) => {
                    unusable.push(format!("{}: it is that of a {}", path.display(), role.kind()));
                }
            },
        }
    }
    match (usable.pop(), usable.is_empty()) {
        (None, _) => Err(FileError::NoClient { folder: folder.to_owned(), unusable }),
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            let all = usable.iter().chain([&last]);
            let usable = all.map(|(path, _)| path.display().to_string()).collect();
            Err(FileError::SeveralClients { folder: folder.to_owned(), usable })
        }
    }
}

/// The CAs in a folder of further trust, every file a bundle of certificates. No folder is no
/// trust.
///
/// # Errors
/// When a file is something else: trust that is only half read would keep somebody out.
pub fn read_trust(folder: &Path) -> Result<Vec<Certificate>, FileError> {
    if !exists(folder)? {
        return Ok(Vec::new());
    }
    let mut trusted = Vec::new();
    for path in list(folder, |name| !name.starts_with('.'))? {
        let loaded = read(&path)?;
        let bundle = CaBundle::parse(&path.display().to_string(), &loaded.text)?;
        trusted.extend(bundle.certificates().iter().cloned());
    }
    Ok(trusted)
}

/// A denylist in a file of its own.
///
/// # Errors
/// When the file cannot be read, or a line is no serial.
pub fn read_denylist(path: &Path) -> Result<Denylist, FileError> {
    Denylist::parse(&read(path)?.text)
        .map_err(|fault| FileError::Denylist { path: path.to_owned(), fault })
}

/// What the machine calls itself, when that could be the name of a host.
#[must_use]
pub fn machine_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!name.is_empty() && name.len() <= 253 && name.chars().all(allowed)).then_some(name)
}

/// All there is, or `None` when that is too much. What a file says of its size is only a hint.
fn read_bounded(source: impl Read, hint: usize) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(hint + 1));
    source.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let fits = u64::try_from(bytes.len()).is_ok_and(|size| size <= FILE_BYTES_MAX);
    Ok(fits.then_some(bytes))
}

/// Files with such a name, in order. Folders are left out.
fn list(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, FileError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(FileError::io(folder, "list it"))? {
        let entry = entry.map_err(FileError::io(folder, "list it"))?;
        let path = entry.path();
        if entry.file_name().to_str().is_some_and(&wanted) && !path.is_dir() {
            if found.len() == FILES_MAX {
                return Err(FileError::TooManyFiles { folder: folder.to_owned(), max: FILES_MAX });
            }
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;
