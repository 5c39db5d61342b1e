//! The tasks of one server. Everything that runs beside requests is started here under a name, so
//! that shutdown can stop it, wait for it, and say who did not stop.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Starts and stops tasks. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    runtime: Handle,
}

impl Tasks {
    /// Must be called inside a runtime.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self {
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            runtime: Handle::current(),
        }
    }

    /// Runs until done; the task itself watches [`Tasks::stopping`].
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        tracing::trace!(task = name, "task started");
        self.tracker.spawn_on(task, &self.runtime);
    }

    /// Ready when the server wants its tasks to end.
    pub(crate) fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        self.stop.clone().cancelled_owned()
    }

    /// For what starts tasks of its own, such as connections: what tells them to stop, and what
    /// waits for them.
    pub(crate) fn parts(&self) -> (CancellationToken, TaskTracker) {
        (self.stop.clone(), self.tracker.clone())
    }

    #[must_use]
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Tells all tasks to stop and waits for them. `false` when some did not stop in time.
    pub(crate) async fn stop(&self, grace: Duration) -> bool {
        self.stop.cancel();
        self.tracker.close();
        tokio::time::timeout(grace, self.tracker.wait()).await.is_ok()
    }

    /// Runs `work` in place. If the caller goes away in the middle, the rest of it runs on as a
    /// task: what began to be written is finished, and its consequences follow.
    pub(crate) fn complete<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Complete<T> {
        Complete { work: Some(Box::pin(work)), begun: false, tasks: self.clone() }
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

/// See [`Tasks::complete`].
#[must_use = "nothing happens until it is awaited"]
pub(crate) struct Complete<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    begun: bool,
    tasks: Tasks,
}

impl<T: Send + 'static> Future for Complete<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let Some(work) = &mut self.work else { return Poll::Pending };
        let output = std::task::ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for Complete<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.begun) {
            self.tasks.spawn("complete", async move {
                drop(work.await);
            });
        }
    }
}
