//! Plain connections or mutual TLS: what a server is told, and what its clients bring.

use std::path::{Path, PathBuf};

use lockd_pki::bootstrap::CLIENT_FILE;
use lockd_pki::{Bundle, ClientBundle, files};
use lockd_server::Settings;

/// How servers are reached.
#[derive(Clone, Debug)]
pub enum Security {
    Plain,
    /// Mutual TLS with the bundles in this folder, which the first start makes.
    Mtls(PathBuf),
}

impl Security {
    pub fn set(&self, settings: &mut Settings) {
        if let Self::Mtls(folder) = self {
            settings.mtls = true;
            settings.identity.config_dir = Some(folder.clone());
        }
    }

    /// The client's bundle, after the first start.
    ///
    /// # Errors
    /// When there is none.
    pub fn bundle(&self) -> Result<Option<ClientBundle>, String> {
        match self {
            Self::Plain => Ok(None),
            Self::Mtls(folder) => read(&folder.join(CLIENT_FILE)).map(Some),
        }
    }
}

fn read(path: &Path) -> Result<ClientBundle, String> {
    match files::load(path) {
        Ok((Bundle::Client(bundle), _)) => Ok(bundle),
        Ok((other, _)) => Err(format!("the bundle of a {}", other.kind())),
        Err(error) => Err(error.to_string()),
    }
}
