//! The floor's log: plain appends, one write and one fdatasync for all requests that wait at that
//! moment. A thread of its own does it, since both calls block.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use tokio::sync::{mpsc, oneshot};

const RECORD_BYTES: usize = 1024;
const BATCH_MAX: usize = 1024;
const WAITING_MAX: usize = 16 * 1024;

type Reply = oneshot::Sender<Result<(), io::ErrorKind>>;

#[derive(Debug)]
pub(crate) struct Journal {
    waiting: mpsc::Sender<Reply>,
}

impl Journal {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("open {}", path.display()))?;
        let (waiting, requests) = mpsc::channel(WAITING_MAX);
        std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || commit_all(file, requests))?;
        Ok(Self { waiting })
    }

    /// Returns when one record of this caller is on the disk.
    pub(crate) async fn append(&self) -> io::Result<()> {
        let gone = |()| io::Error::other("the log has stopped");
        let (reply, done) = oneshot::channel();
        self.waiting.send(reply).await.map_err(|_| gone(()))?;
        done.await.map_err(|_| gone(()))?.map_err(io::Error::from)
    }
}

fn commit_all(mut file: File, mut requests: mpsc::Receiver<Reply>) {
    let records = vec![b'r'; BATCH_MAX * RECORD_BYTES];
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while requests.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
        let bytes = records.get(..batch.len() * RECORD_BYTES).unwrap_or_default();
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        let outcome = written.map_err(|error| error.kind());
        for reply in batch.drain(..) {
            // Nobody listens if the connection has gone.
            reply.send(outcome).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_append_is_one_record_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let journal = Journal::open(&path).unwrap();
        let (first, second, third) =
            tokio::join!(journal.append(), journal.append(), journal.append());
        first.and(second).and(third).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * 1024);
    }
}
