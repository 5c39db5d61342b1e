//! First start: a CA, and bundles for a server, a client and a coordinator's client, in a folder
//! that has none. What is there is kept, so it can run at every start.
//!
//! No lock is needed when several processes start at once, or when one dies half way: each file
//! is created whole and only where there is none, `ca.pem` comes first, and whoever loses the race
//! for it goes on with the winner's. So every bundle is of the one CA that is in the file.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use zeroize::Zeroizing;

use crate::bundle::{CaBundle, ClientBundle, ServerBundle};
use crate::certificate::Certificate;
use crate::error::{BundleError, FileError, IssueError};
use crate::files::{self, Existing, Warning};
use crate::issue::{Authority, CA_NAME, CLIENT_NAME, ClientRequest, ServerRequest, TC_NAME};
use crate::seal::Cost;

pub const CA_FILE: &str = "ca.pem";
pub const SERVER_FILE: &str = "server.pem";
pub const CLIENT_FILE: &str = "client.pem";
pub const TC_FILE: &str = "tc-client.pem";

/// A folder that a server can start from.
#[derive(Debug)]
pub struct Bootstrapped {
    pub server: ServerBundle,
    /// Files that were not there before.
    pub made: Vec<PathBuf>,
    pub warnings: Vec<Warning>,
}

/// Why there is nothing to start from.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Issue(#[from] IssueError),
    #[error(
        "{}: there is no {CA_FILE} and no {SERVER_FILE}, but {found}; a new CA would not match it: \
         put {CA_FILE} back, or use another folder", folder.display()
    )]
    CaMissing { folder: PathBuf, found: &'static str },
    #[error(
        "{}: cannot be made, because the CA key is protected by a password; issue it with \
         \"lockd auth new\"", path.display()
    )]
    CaLocked { path: PathBuf },
    #[error(
        "{}: is not of the CA in {CA_FILE} beside it; issue it again, or put the right {CA_FILE} \
         back", path.display()
    )]
    OtherCa { path: PathBuf },
}

/// Makes what is missing in the folder and reads the server's bundle.
///
/// # Errors
/// When the folder cannot be used as it is; what was there is never changed.
pub fn bootstrap(
    folder: &Path,
    hosts: &[String],
    now: Timestamp,
) -> Result<Bootstrapped, BootstrapError> {
    files::make_folder(folder)?;
    let mut start = Start { folder, hosts, now, made: Vec::new(), warnings: Vec::new() };
    // The others are looked for before the CA: another process writes it first, so whoever sees
    // one of them and then no CA knows that it was taken away.
    let mut found = None;
    for file in [TC_FILE, CLIENT_FILE, SERVER_FILE] {
        if files::exists(&folder.join(file))? {
            found = Some(file);
        }
    }
    if files::exists(&folder.join(CA_FILE))? {
        return start.complete();
    }
    match found {
        None => {
            start.make_ca()?;
            start.complete()
        }
        // The CA is kept elsewhere, as it should be. There is nothing to issue with.
        Some(SERVER_FILE) => {
            let server = start.load_server()?;
            Ok(Bootstrapped { server, made: start.made, warnings: start.warnings })
        }
        Some(found) => Err(BootstrapError::CaMissing { folder: folder.to_owned(), found }),
    }
}

struct Start<'a> {
    folder: &'a Path,
    hosts: &'a [String],
    now: Timestamp,
    made: Vec<PathBuf>,
    warnings: Vec<Warning>,
}

impl Start<'_> {
    fn make_ca(&mut self) -> Result<(), BootstrapError> {
        let authority = Authority::create(CA_NAME, self.now)?;
        let bundle = CaBundle::new(&authority, None, Cost::default())?;
        self.create(CA_FILE, &bundle.to_pem())
    }

    /// With a CA in place: makes the other files and sees that they are all of this CA.
    fn complete(mut self) -> Result<Bootstrapped, BootstrapError> {
        let path = self.folder.join(CA_FILE);
        let loaded = files::read(&path)?;
        self.warnings.extend(loaded.warning);
        let ca = CaBundle::parse(&path.display().to_string(), &loaded.text)?;
        for file in [SERVER_FILE, CLIENT_FILE, TC_FILE] {
            let path = self.folder.join(file);
            if files::exists(&path)? {
                continue;
            }
            // A server can do without clients beside it, so only its own bundle is insisted on.
            if file != SERVER_FILE && !ca.can_sign() {
                continue;
            }
            if ca.is_sealed() {
                return Err(BootstrapError::CaLocked { path });
            }
            let text = self.issue(file, &ca.authority(None)?)?;
            self.create(file, &text)?;
        }
        for file in [CLIENT_FILE, TC_FILE] {
            self.check_client(&ca, &self.folder.join(file))?;
        }
        let server = self.load_server()?;
        if !is_of(&ca, server.certificates()) {
            return Err(BootstrapError::OtherCa { path: self.folder.join(SERVER_FILE) });
        }
        Ok(Bootstrapped { server, made: self.made, warnings: self.warnings })
    }

    fn issue(
        &self,
        file: &str,
        authority: &Authority,
    ) -> Result<Zeroizing<String>, BootstrapError> {
        let client = |request: &ClientRequest| -> Result<_, BootstrapError> {
            let leaf = authority.issue_client(request, self.now)?;
            Ok(ClientBundle::new(authority, leaf).to_pem())
        };
        match file {
            SERVER_FILE => {
                let machine = files::machine_name();
                let request = ServerRequest::new(self.hosts, machine.as_deref());
                Ok(ServerBundle::issue(authority, &request, self.now)?.to_pem())
            }
            TC_FILE => client(&ClientRequest::tc(TC_NAME)),
            _ => client(&ClientRequest::sdk(CLIENT_NAME, Vec::new())),
        }
    }

    /// Only where there is no such file; another process may have been faster.
    fn create(&mut self, file: &str, text: &str) -> Result<(), BootstrapError> {
        let path = self.folder.join(file);
        match files::write(&path, text, Existing::Refuse) {
            Ok(()) => self.made.push(path),
            Err(FileError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// A client that this server will not let in is no reason not to start, but worth a word.
    fn check_client(&mut self, ca: &CaBundle, path: &Path) -> Result<(), BootstrapError> {
        if !files::exists(path)? {
            return Ok(());
        }
        let loaded = files::read(path)?;
        self.warnings.extend(loaded.warning);
        match ClientBundle::parse(&path.display().to_string(), &loaded.text) {
            Ok(client) if is_of(ca, client.certificates()) => {}
            Ok(_) => self.warnings.push(Warning::OtherCa { path: path.to_owned() }),
            Err(error) => self.warnings.push(Warning::Unusable(error.to_string())),
        }
        Ok(())
    }

    fn load_server(&mut self) -> Result<ServerBundle, BootstrapError> {
        let path = self.folder.join(SERVER_FILE);
        let loaded = files::read(&path)?;
        self.warnings.extend(loaded.warning);
        Ok(ServerBundle::parse(&path.display().to_string(), &loaded.text)?)
    }
}

/// Whether one of these CAs is in the bundle.
fn is_of(ca: &CaBundle, trusted: &[Certificate]) -> bool {
    trusted.iter().any(|trusted| ca.certificates().contains(trusted))
}

#[cfg(test)]
mod tests;
