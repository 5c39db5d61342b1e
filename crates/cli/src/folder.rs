//! Where bundles and settings are kept when nobody says otherwise: `LOCKD_CONFIG_DIR`, else
//! `~/.lockd`. Nothing is made here; whoever writes makes the folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::exit::{Done, Problem};

const VARIABLE: &str = "LOCKD_CONFIG_DIR";

/// The configuration folder.
///
/// # Errors
/// When neither the variable nor a home is set.
pub fn config_dir() -> Done<PathBuf> {
    find(std::env::var_os(VARIABLE), std::env::home_dir()).ok_or_else(|| {
        Problem::usage("there is no home folder to keep files in")
            .hint(format!("name a folder with {VARIABLE}"))
    })
}

fn find(named: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let named = named.filter(|named| !named.is_empty()).map(PathBuf::from);
    let home = home.filter(|home| !home.as_os_str().is_empty());
    named.or_else(|| home.map(|home| home.join(".lockd")))
}

/// The folder that a file is in.
#[must_use]
pub fn of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_beats_the_home_and_blank_counts_as_absent() {
        let home = || Some(PathBuf::from("/home/a"));
        assert_eq!(find(Some("/etc/lockd".into()), home()), Some("/etc/lockd".into()));
        assert_eq!(find(Some(OsString::new()), home()), Some("/home/a/.lockd".into()));
        assert_eq!(find(None, home()), Some("/home/a/.lockd".into()));
        assert_eq!(find(None, Some(PathBuf::new())), None);
    }

    #[test]
    fn a_bare_name_is_in_this_folder() {
        assert_eq!(of(Path::new("server.pem")), Path::new("."));
        assert_eq!(of(Path::new("a/server.pem")), Path::new("a"));
    }
}
