//! What a node must know again after a restart: whether the cluster is paused, and whether it was
//! the last that led. Written beside everything else; nobody waits for it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::history::{blocking, replace};
use crate::settings::StartError;

const FILE: &str = "node.json";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    pub(crate) paused: bool,
    pub(crate) led: bool,
}

#[derive(Debug)]
pub(crate) struct Folder {
    latest: watch::Sender<Remembered>,
}

impl Folder {
    /// With what it remembers, and whoever writes to it from now on.
    pub(crate) fn open(
        folder: Option<&Path>,
    ) -> Result<(Self, Remembered, Option<Writer>), StartError> {
        let Some(folder) = folder else {
            let remembered = Remembered::default();
            return Ok((Self { latest: watch::Sender::new(remembered) }, remembered, None));
        };
        let failed = |source| StartError::Folder { path: folder.into(), source };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let path = folder.join(FILE);
        let remembered = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error))
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Remembered::default(),
            Err(error) => return Err(failed(error)),
        };
        let latest = watch::Sender::new(remembered);
        let writer = Writer { path, latest: latest.subscribe() };
        Ok((Self { latest }, remembered, Some(writer)))
    }

    pub(crate) fn remember(&self, now: Remembered) {
        self.latest.send_if_modified(|was| std::mem::replace(was, now) != now);
    }
}

pub(crate) struct Writer {
    path: PathBuf,
    latest: watch::Receiver<Remembered>,
}

impl Writer {
    pub(crate) async fn run(mut self) {
        while self.latest.changed().await.is_ok() {
            let remembered = *self.latest.borrow_and_update();
            let text = serde_json::to_string(&remembered).unwrap_or_default();
            let path = self.path.clone();
            if let Err(error) = blocking(move || replace(&path, &text)).await {
                tracing::warn!(%error, "the state of the node could not be written down");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_node_knows_again_what_it_knew() {
        let place = tempfile::tempdir().unwrap();
        let (folder, remembered, writer) = Folder::open(Some(place.path())).unwrap();
        assert_eq!(remembered, Remembered::default());
        folder.remember(Remembered { paused: true, led: true });
        drop(folder);
        writer.unwrap().run().await;
        let (_, remembered, _) = Folder::open(Some(place.path())).unwrap();
        assert_eq!(remembered, Remembered { paused: true, led: true });
    }
}
