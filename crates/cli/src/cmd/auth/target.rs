//! Which bundle a command is about: `server`, `client`, `tcclient` or `ca`, which are the usual
//! ones unless `--in` names another, or any file.

use std::path::{Path, PathBuf};

use clap::Args;
use lockd_pki::bootstrap::{CA_FILE, SERVER_FILE, TC_FILE};
use lockd_pki::{Bundle, files};

use crate::exit::{Done, Problem};
use crate::folder;

#[derive(Clone, Debug, Args)]
pub(super) struct Target {
    /// server, client, tcclient or ca; or a file, of whatever kind
    #[arg(value_name = "WHAT", required_unless_present = "file")]
    what: Option<PathBuf>,
    /// The file, instead of the one in the configuration folder
    #[arg(long = "in", id = "file", value_name = "FILE")]
    file: Option<PathBuf>,
}

/// A kind of bundle, as people name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Server,
    Client,
    Tcclient,
    Ca,
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "server" => Some(Self::Server),
            "client" => Some(Self::Client),
            "tcclient" | "tc-client" => Some(Self::Tcclient),
            "ca" => Some(Self::Ca),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Tcclient => "TC client",
            Self::Ca => "CA",
        }
    }

    fn usual(self, folder: &Path) -> Done<PathBuf> {
        match self {
            Self::Server => Ok(folder.join(SERVER_FILE)),
            Self::Tcclient => Ok(folder.join(TC_FILE)),
            Self::Ca => Ok(folder.join(CA_FILE)),
            Self::Client => Ok(files::find_client(folder)?.0),
        }
    }
}

impl Target {
    /// The file, and the kind that it must be of.
    fn find(&self) -> Done<(PathBuf, Option<Kind>)> {
        let kind = self.what.as_deref().and_then(Path::to_str).and_then(Kind::parse);
        match (kind, &self.what, &self.file) {
            (Some(kind), _, Some(file)) => Ok((file.clone(), Some(kind))),
            (Some(kind), _, None) => Ok((kind.usual(&folder::config_dir()?)?, Some(kind))),
            (None, Some(what), None) => Ok((what.clone(), None)),
            (None, None, Some(file)) => Ok((file.clone(), None)),
            (None, Some(what), Some(_)) => {
                let message = format!("both --in and {} name a file", what.display());
                Err(Problem::usage(message).hint("write server, client, tcclient, ca or one file"))
            }
            (None, None, None) => Err(Problem::usage("no bundle is named")),
        }
    }

    pub(super) fn path(&self) -> Done<PathBuf> {
        Ok(self.find()?.0)
    }

    /// Whether the bundle is of the kind that was asked for; what to say if not.
    pub(super) fn mismatch(&self, bundle: &Bundle) -> Done<Option<String>> {
        let (_, wanted) = self.find()?;
        Ok(wanted.map(Kind::name).filter(|wanted| *wanted != bundle.kind()).map(|wanted| {
            format!("it is a {} bundle where a {wanted} bundle is wanted", bundle.kind())
        }))
    }

    /// Refuses a bundle of another kind.
    pub(super) fn check(&self, bundle: &Bundle) -> Done {
        match self.mismatch(bundle)? {
            None => Ok(()),
            Some(problem) => Err(Problem::failed(format!("{}: {problem}", self.path()?.display()))),
        }
    }
}
