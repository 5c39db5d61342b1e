//! What is waited for on behalf of the actor, which never waits itself.

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Note;

/// Whoever waits comes back with a note; all are given up with the actor.
pub(crate) struct Errands {
    running: TaskTracker,
    given_up: CancellationToken,
    notes: mpsc::Sender<Note>,
}

impl Errands {
    pub(crate) fn new(notes: mpsc::Sender<Note>) -> Self {
        Self { running: TaskTracker::new(), given_up: CancellationToken::new(), notes }
    }

    pub(super) fn wait(&self, errand: impl Future<Output = Option<Note>> + Send + 'static) {
        let (given_up, notes) = (self.given_up.clone(), self.notes.clone());
        self.running.spawn(async move {
            tokio::select! {
                () = given_up.cancelled() => {}
                note = errand => if let Some(note) = note {
                    let _heard = notes.send(note).await.is_ok();
                }
            }
        });
    }
}

impl Drop for Errands {
    fn drop(&mut self) {
        self.given_up.cancel();
    }
}
