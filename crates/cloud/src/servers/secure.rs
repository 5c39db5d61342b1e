//! What a server needs for TLS.

use std::path::PathBuf;

/// Files in PEM.
#[derive(Clone, Debug)]
pub struct ServerFiles {
    /// Whose certificates are let in.
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}
