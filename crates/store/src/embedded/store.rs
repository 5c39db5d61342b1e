//! The port over the parts of the adapter: reads go to the published state, commits to the
//! committer's queue, blobs to their files.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::thread::{self, JoinHandle};

use futures_util::future::{BoxFuture, ready};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};

use super::blob::Blobs;
use super::committer::{Inbox, Message};
use super::dir::Layout;
use super::engine::{Engine, Occasion, supervise};
use super::options::{EmbeddedOptions, OpenError, QUEUE_COMMITS};
use super::shared::{Counters, Shared, State, closed};
use crate::port::{
    Abilities, BlobReader, BlobWriter, Gauges, Name, Op, Page, Revision, Store, StoreError, Stored,
};

/// Segments are never made smaller than this, nor the checkpoint threshold.
const SEGMENT_BYTES_LEAST: u64 = 256 << 10;
/// A small file system gives each segment, and the log before a checkpoint, this share of it.
const SEGMENT_SHARE: u64 = 32;
const CHECKPOINT_SHARE: u64 = 16;

/// A store in a directory of this machine.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens the store, making it if it is not there. Blocks while the log is read back.
    pub fn open(options: EmbeddedOptions) -> Result<Arc<Self>, OpenError> {
        let layout = Layout { root: options.path.clone() };
        let lock = layout.claim(options.allow_network_fs)?;
        let options = fit_to_disk(options, &layout)?;
        let blobs = Arc::new(Blobs::new(layout.blobs()));
        let shared = Arc::new(Shared {
            layout,
            held: lock.dir(),
            options,
            state: RwLock::new(State::Closed),
            counters: Counters::default(),
            blobs,
            starved: AtomicBool::new(false),
            tree_failures: AtomicU32::new(0),
        });
        measure_blobs(&shared);
        let (queue, receiver) = mpsc::channel(QUEUE_COMMITS);
        let sender = queue.downgrade();
        let engine = Engine::open(&shared, sender.clone(), Occasion::Start)?;
        let inbox = Inbox::new(receiver);
        let supervised = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("lockd-commit".into())
            .spawn(move || supervise(&supervised, engine, inbox, &sender, lock))
            .map_err(|error| shared.layout.io(error))?;
        Ok(Arc::new(Self { shared, queue, thread: Mutex::new(Some(thread)) }))
    }

    /// The directory it lives in.
    pub fn path(&self) -> &Path {
        &self.shared.layout.root
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Commits that wait for the committer.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    async fn send(&self, ops: Vec<Op>) -> Result<Vec<Revision>, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Message::Commit { ops, answer }).await.map_err(|_| closed())?;
        // No answer at all: the committer's thread died with the commit in its hands.
        answered.await.unwrap_or_else(|_| {
            Err(StoreError::Unknown("the committer stopped without an answer".into()))
        })
    }

    fn blobs(&self) -> Result<&Arc<Blobs>, StoreError> {
        if let State::Closed = &*self.shared.state.read() {
            return Err(closed());
        }
        // A blob that is made or read elsewhere is not one of ours.
        self.shared.held.check().map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(&self.shared.blobs)
    }
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore").field("path", &self.shared.layout.root).finish()
    }
}

/// Counting many blobs takes long, and nothing waits for it.
fn measure_blobs(shared: &Shared) {
    let blobs = Arc::clone(&shared.blobs);
    let measuring = thread::Builder::new().name("lockd-blobs".into()).spawn(move || {
        blobs.sweep_deleted();
        blobs.measure();
    });
    if let Err(error) = measuring {
        tracing::warn!(%error, "the size of the blobs stays unknown");
    }
}

/// On a small file system the log takes a small part of it.
fn fit_to_disk(
    mut options: EmbeddedOptions,
    layout: &Layout,
) -> Result<EmbeddedOptions, OpenError> {
    let (total, _) = layout.space().map_err(|error| layout.io(error))?;
    let share = |share: u64| (total / share).max(SEGMENT_BYTES_LEAST) & !4095;
    options.segment_bytes = options.segment_bytes.min(share(SEGMENT_SHARE));
    options.checkpoint_bytes = options.checkpoint_bytes.min(share(CHECKPOINT_SHARE));
    options.head_bytes = options.head_bytes.min(share(CHECKPOINT_SHARE));
    Ok(options)
}

impl Drop for EmbeddedStore {
    /// Ends the threads without a checkpoint: what was committed is in the log.
    fn drop(&mut self) {
        let (lone, _) = mpsc::channel(1);
        self.queue = lone;
        if let Some(thread) = self.thread.lock().take() {
            thread.join().ok();
        }
    }
}

impl Store for EmbeddedStore {
    fn abilities(&self) -> Abilities {
        Abilities { atomic_batch: true, snapshot: true, shared: false, watch: false }
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        Box::pin(ready(self.shared.load(name)))
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        Box::pin(ready(self.shared.load_many(names)))
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        let shared = Arc::clone(&self.shared);
        let scan = move || shared.scan(&prefix, after.as_deref(), limit);
        Box::pin(off_thread(scan))
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        Box::pin(self.send(ops))
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.blobs()?.put(&name).await })
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.blobs()?.get(&name).await })
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        let name = name.to_owned();
        Box::pin(async move { self.blobs()?.delete(&name).await })
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let after = after.map(str::to_owned);
        Box::pin(async move { self.blobs()?.list(after, limit).await })
    }

    fn health(&self) -> Result<(), StoreError> {
        self.shared.health()
    }

    fn gauges(&self) -> Gauges {
        self.shared.gauges()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            if self.queue.send(Message::Close(answer)).await.is_ok() {
                answered.await.ok();
            }
        })
    }
}

/// Runs disk work where it does not hold up other tasks.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(StoreError::Unavailable(format!("the work was not done: {error}"))),
    }
}
