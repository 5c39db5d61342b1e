//! The file in which `lockc` remembers what it holds. It has secrets in it: it is readable by its
//! owner only, replaced whole, and not believed when it belongs to somebody else. Commands that
//! run at the same time take turns.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockd_client::LeaseContext;
use serde::{Deserialize, Serialize};

use crate::context::plain;
use crate::exit::{Done, Problem};
use crate::{folder, ui};

const FOLDER: &str = ".lockc";
const FILE: &str = "context.json";
const VARIABLE: &str = "LOCKC_CONTEXT";
/// Keys that are remembered at the same time.
const HELD_MAX: usize = 256;
const BYTES_MAX: u64 = 1024 * 1024;
/// How long another command may take to write the file.
const TURN_MAX: Duration = Duration::from_secs(5);
const TURN_EVERY: Duration = Duration::from_millis(20);

/// A key that is held, and how to act on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Held {
    pub(super) server: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bundle: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    pub(super) key: String,
    pub(super) lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) txn_id: Option<String>,
    pub(super) owner: String,
    pub(super) expires_at_unix_ms: u64,
}

impl Held {
    pub(super) fn context(&self) -> LeaseContext {
        LeaseContext {
            namespace: self.namespace.clone(),
            key: self.key.clone(),
            lease_id: self.lease_id.clone(),
            txn_id: self.txn_id.clone(),
            token: self.fencing_token,
        }
    }

    fn is_of(&self, key: &str) -> bool {
        let full = self.namespace.as_ref().map(|namespace| format!("{namespace}/{}", self.key));
        plain(&self.key) == plain(key) || full.is_some_and(|full| plain(&full) == plain(key))
    }
}

/// All that is held; what was acquired last is at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contents {
    pub(super) held: Vec<Held>,
}

impl Contents {
    /// The named key, or the last one.
    pub(super) fn choose(&self, key: Option<&str>) -> Option<&Held> {
        match key {
            None => self.held.last(),
            Some(key) => self.held.iter().rfind(|held| held.is_of(key)),
        }
    }

    /// A key is held once: what was known of it before is over.
    fn put(&mut self, held: Held) -> Done {
        self.forget_key(&held);
        if self.held.len() >= HELD_MAX {
            return Err(Problem::failed(format!("{HELD_MAX} keys are remembered already"))
                .hint("release some, or use another folder"));
        }
        self.held.push(held);
        Ok(())
    }

    fn forget_key(&mut self, gone: &Held) {
        self.held.retain(|held| {
            (&held.server, &held.namespace, &held.key) != (&gone.server, &gone.namespace, &gone.key)
        });
    }

    fn forget_lease(&mut self, lease_id: &str) {
        self.held.retain(|held| held.lease_id != lease_id);
    }
}

/// Where the file is.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    path: PathBuf,
    /// How long to wait for another command.
    patience: Duration,
}

impl Memory {
    /// The file that is named, else that of this folder or the nearest one above, else that of
    /// this folder, which is not there yet.
    pub(super) fn find() -> Done<Self> {
        let named = std::env::var_os(VARIABLE).filter(|named| !named.is_empty());
        if let Some(named) = named {
            return Ok(Self::at(PathBuf::from(named)));
        }
        let here = std::env::current_dir()
            .map_err(|error| Problem::failed(format!("there is no current folder: {error}")))?;
        Ok(Self::at_or_above(&here))
    }

    fn at(path: PathBuf) -> Self {
        Self { path, patience: TURN_MAX }
    }

    fn at_or_above(here: &Path) -> Self {
        let place = |folder: &Path| folder.join(FOLDER).join(FILE);
        let found = here.ancestors().map(place).find(|path| path.is_file());
        Self::at(found.unwrap_or_else(|| place(here)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What is remembered; nothing when there is no file.
    pub(super) fn load(&self) -> Done<Contents> {
        let cannot = |error: io::Error| {
            Problem::failed(format!("cannot read {}: {error}", self.path.display()))
        };
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Contents::default());
            }
            Err(error) => return Err(cannot(error)),
        };
        let about = file.metadata().map_err(cannot)?;
        // Whoever wrote it chooses which server we talk to, and would read what we write.
        if about.uid() != rustix::process::geteuid().as_raw() {
            let message = format!("{} belongs to somebody else", self.path.display());
            return Err(Problem::failed(message)
                .hint(format!("go to a folder of your own, or name a file with {VARIABLE}")));
        }
        if about.permissions().mode() & 0o077 != 0 {
            ui::note(&format!("{}: others can read it; run chmod 600", self.path.display()));
        }
        let mut text = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(cannot)?;
        if text.len() as u64 > BYTES_MAX {
            return Err(Problem::failed(format!("{} is too large", self.path.display())));
        }
        serde_json::from_slice(&text).map_err(|error| {
            Problem::failed(format!("{} cannot be read: {error}", self.path.display()))
                .hint("remove it; what it remembers runs out by itself")
        })
    }

    pub(super) async fn remember(&self, held: Held) -> Done {
        self.change(|contents| contents.put(held)).await
    }

    pub(super) async fn forget(&self, lease_id: &str) -> Done {
        self.change(|contents| {
            contents.forget_lease(lease_id);
            Ok(())
        })
        .await
    }

    /// Writes down when a lease runs out now.
    pub(super) async fn renewed(&self, lease_id: &str, expires_at_unix_ms: u64) -> Done {
        self.change(|contents| {
            let renewed = contents.held.iter_mut().filter(|held| held.lease_id == lease_id);
            renewed.for_each(|held| held.expires_at_unix_ms = expires_at_unix_ms);
            Ok(())
        })
        .await
    }

    async fn change(&self, change: impl FnOnce(&mut Contents) -> Done) -> Done {
        let cannot = |error: io::Error| {
            Problem::failed(format!("cannot write {}: {error}", self.path.display()))
        };
        let folder = folder::of(&self.path);
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(cannot)?;
        let _turn = self.turn().await?;
        let mut contents = self.load()?;
        change(&mut contents)?;
        let text = serde_json::to_vec_pretty(&contents)
            .map_err(|error| Problem::failed(error.to_string()))?;
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)
            .map_err(cannot)?;
        file.write_all(&text).map_err(cannot)?;
        file.as_file().sync_all().map_err(cannot)?;
        file.persist(&self.path).map_err(|error| cannot(error.error))?;
        Ok(())
    }

    /// Waits until no other command changes the file. The turn is over when the value is dropped,
    /// or the process ends.
    async fn turn(&self) -> Done<File> {
        let path = self.path.with_extension("lock");
        let cannot =
            |error: io::Error| Problem::failed(format!("cannot lock {}: {error}", path.display()));
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let file = std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600)
            .open(&path)
            .map_err(cannot)?;
        let take = async {
            loop {
                match file.try_lock() {
                    Ok(()) => return Ok(()),
                    Err(TryLockError::WouldBlock) => tokio::time::sleep(TURN_EVERY).await,
                    Err(TryLockError::Error(error)) => return Err(cannot(error)),
                }
            }
        };
        match tokio::time::timeout(self.patience, take).await {
            Ok(taken) => taken.map(|()| file),
            Err(_) => Err(Problem::failed(format!("{} is locked for too long", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests;
