//! Which CA signs: the one that is named, else the one at hand. At hand is the key inside the
//! server bundle that is named, then `ca.pem` beside it. A CA is never taken from another folder
//! than the command is about, unless that is the configuration folder and nothing was named.

use std::path::{Path, PathBuf};

use clap::Args;
use lockd_pki::bootstrap::{CA_FILE, SERVER_FILE};
use lockd_pki::inspect::CaKey;
use lockd_pki::{Authority, Bundle, Certificate, files};

use super::load;
use super::password::{PasswordArgs, Passwords};
use crate::exit::{Done, Problem};
use crate::folder;

/// Where the CA is.
#[derive(Clone, Debug, Args)]
pub(super) struct SignerArgs {
    /// The bundle with the CA and its key
    #[arg(long, value_name = "FILE", conflicts_with = "server_in")]
    pub(super) ca_in: Option<PathBuf>,
    /// A server bundle: its CA signs, with the key in it or in ca.pem beside it
    #[arg(long, value_name = "FILE")]
    pub(super) server_in: Option<PathBuf>,
    #[command(flatten)]
    pub(super) password: PasswordArgs,
}

/// A CA that can sign, and the file its key is in.
#[derive(Debug)]
pub(super) struct Signer {
    pub(super) authority: Authority,
    pub(super) file: PathBuf,
}

const WHICH: &str = "name the CA with --ca-in ca.pem, or make one with `lockd auth new ca`";

impl SignerArgs {
    /// The CA for a new client: the named one, or the one beside the new file or in the
    /// configuration folder.
    pub(super) fn for_client(&self, out: &Path) -> Done<Signer> {
        if let Some(named) = self.named()? {
            return Ok(named);
        }
        let folders = [folder::of(out).to_owned(), folder::config_dir()?];
        for folder in &folders {
            for file in [CA_FILE, SERVER_FILE] {
                if let Some(found) = self.in_file(&folder.join(file), None)? {
                    return Ok(found);
                }
            }
        }
        let [beside, usual] = folders.map(|folder| folder.display().to_string());
        let places = if beside == usual { usual } else { format!("{beside} nor in {usual}") };
        Err(Problem::failed(format!("there is no CA with its key in {places}")).hint(WHICH))
    }

    /// The CA for a new server: the named one, or the one beside it. None means that one is to be
    /// made.
    pub(super) fn for_server(&self, out: &Path, replaced: Option<&Bundle>) -> Done<Option<Signer>> {
        if let Some(named) = self.named()? {
            return Ok(Some(named));
        }
        match replaced {
            Some(bundle) => self.of_bundle(out, bundle).map(Some),
            None => {
                let beside = folder::of(out).join(CA_FILE);
                if !files::exists(&beside)? {
                    return Ok(None);
                }
                match self.in_file(&beside, None)? {
                    Some(found) => Ok(Some(found)),
                    None => Err(no_key(&beside)),
                }
            }
        }
    }

    /// The CA that goes on signing for a bundle.
    pub(super) fn for_renewal(&self, file: &Path, bundle: &Bundle) -> Done<Signer> {
        match self.named()? {
            Some(named) => Ok(named),
            None => self.of_bundle(file, bundle),
        }
    }

    fn named(&self) -> Done<Option<Signer>> {
        match (&self.ca_in, &self.server_in) {
            (Some(path), _) => {
                let bundle = load(path)?;
                self.unlock(path, &bundle).map(Some)
            }
            (None, Some(path)) => {
                let bundle = load(path)?;
                if !matches!(bundle, Bundle::Server(_)) {
                    let message =
                        format!("{} is a {} bundle, not a server's", path.display(), bundle.kind());
                    return Err(Problem::failed(message).hint(WHICH));
                }
                self.of_bundle(path, &bundle).map(Some)
            }
            (None, None) => Ok(None),
        }
    }

    /// The CA of a bundle: with the key in it, else with the key in `ca.pem` beside it, else with
    /// that in the configuration folder, if it is the same CA.
    fn of_bundle(&self, file: &Path, bundle: &Bundle) -> Done<Signer> {
        if bundle.ca_key() != CaKey::Absent {
            return self.unlock(file, bundle);
        }
        let trusted = certificates(bundle);
        let beside = folder::of(file).join(CA_FILE);
        let usual = folder::config_dir().map(|folder| folder.join(CA_FILE)).ok();
        for path in [Some(&beside), usual.as_ref()].into_iter().flatten() {
            if let Some(found) = self.in_file(path, Some(trusted))? {
                return Ok(found);
            }
        }
        let message = format!(
            "the key of the CA is neither in {} nor in {}",
            file.display(),
            beside.display()
        );
        Err(Problem::failed(message).hint("name the file that has it with --ca-in"))
    }

    /// The CA in a file, if there is one with its key and it is one of the wanted.
    fn in_file(&self, path: &Path, wanted: Option<&[Certificate]>) -> Done<Option<Signer>> {
        if !files::exists(path)? {
            return Ok(None);
        }
        let bundle = load(path)?;
        let known = certificates(&bundle);
        let is_wanted =
            wanted.is_none_or(|wanted| known.iter().any(|known| wanted.contains(known)));
        if bundle.ca_key() == CaKey::Absent || !is_wanted {
            return Ok(None);
        }
        self.unlock(path, &bundle).map(Some)
    }

    fn unlock(&self, path: &Path, bundle: &Bundle) -> Done<Signer> {
        let password = match bundle.ca_key() {
            CaKey::Absent => return Err(no_key(path)),
            CaKey::Plain => None,
            CaKey::Sealed => Some(Passwords::new(&self.password).to_open(path)?),
        };
        let authority = match bundle {
            Bundle::Ca(bundle) => bundle.authority(password.as_ref())?,
            Bundle::Server(bundle) => bundle.authority(password.as_ref())?,
            Bundle::Client(_) => return Err(no_key(path)),
        };
        Ok(Signer { authority, file: path.to_owned() })
    }
}

fn no_key(path: &Path) -> Problem {
    Problem::failed(format!("the key of a CA is not in {}", path.display())).hint(WHICH)
}

fn certificates(bundle: &Bundle) -> &[Certificate] {
    match bundle {
        Bundle::Ca(bundle) => bundle.certificates(),
        Bundle::Server(bundle) => bundle.certificates(),
        Bundle::Client(bundle) => bundle.certificates(),
    }
}
