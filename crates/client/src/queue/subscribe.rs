//! Having a function called for every message: how it is set up. What runs is in `consumer`.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::Queue;
use super::consumer::{Consumer, Manner};
use super::dequeue::{BUFFER_MAX, Wish};
use super::message::Message;
use crate::acquire::Wait;
use crate::error::{DequeueKind, Error};

/// A function that is called for every message of a queue; [`Subscribe::run`] runs it.
///
/// - Done without an error, the message is acknowledged.
/// - With an error, it is given back as failed, with the text of the error.
/// - A panic is an error too. It does not end the consumer.
/// - The function may acknowledge or give back the message itself; then that counts.
///
/// While the function runs, the time of its message is extended, whenever half of it is over. When
/// that is refused because the message is no longer ours, the function is stopped: its future is
/// dropped at the await it is at.
///
/// A consumer has at most as many messages at a time as it has functions running. Payloads of more
/// than 4 MiB (see [`Subscribe::buffer_max`]) are not kept: they are asked for again when they are
/// read.
///
/// ```no_run
/// # #[derive(serde::Deserialize)]
/// # struct Job { picture: String }
/// # async fn resize(_: &str) -> std::io::Result<()> { Ok(()) }
/// # async fn example(client: lockd_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use lockd_client::{Message, secs};
///
/// let stop = async { drop(tokio::signal::ctrl_c().await) };
/// client
///     .queue("pictures")
///     .subscribe(|mut message: Message| async move {
///         let job: Job = message.json().await?;
///         resize(&job.picture).await?;
///         Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
///     })
///     .concurrency(8)
///     .visibility(secs(60))
///     .run(stop)
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is consumed before it runs"]
pub struct Subscribe<F> {
    wish: Wish,
    handler: F,
    manner: Manner,
}

impl<F> Subscribe<F> {
    pub(super) fn new(queue: Queue, handler: F) -> Self {
        let manner = Manner {
            concurrency: 1,
            buffer_max: BUFFER_MAX,
            stalled_after: None,
            retry_delay: None,
            stop_when_lost: true,
        };
        Self { wish: Wish { wait: Wait::Forever, ..Wish::new(queue) }, handler, manner }
    }

    /// Who consumes, for people to read; the client's owner when not set.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.wish.owner = owner.into();
        self
    }

    /// How many messages are worked on at a time: one unless set.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.manner.concurrency = messages.max(1);
        self
    }

    /// How long a message is with this consumer without an extension; what was said when it was
    /// enqueued when not set. A consumer that dies keeps its messages for so long.
    pub fn visibility(mut self, visibility: Duration) -> Self {
        self.wish.visibility = Some(visibility);
        self
    }

    /// Takes the state of each message with it; see [`Message::state`].
    pub fn with_state(mut self) -> Self {
        self.wish.with_state = true;
        self
    }

    /// When the function has not called [`Message::progress`] for so long, its message is not
    /// extended any more and goes to somebody else. Unless set, it is extended for as long as the
    /// function runs.
    pub fn stalled_after(mut self, longest: Duration) -> Self {
        self.manner.stalled_after = Some(longest);
        self
    }

    /// How long a failed message is not delivered again. Unless set, the pause grows with each
    /// failure: one second, two, four, up to a minute.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.manner.retry_delay = Some(delay);
        self
    }

    /// How many bytes of a payload are kept in memory: 4 MiB unless set. Larger ones are asked for
    /// again when they are read.
    pub fn buffer_max(mut self, bytes: usize) -> Self {
        self.manner.buffer_max = bytes;
        self
    }

    /// Whether the function is stopped when its message is lost, which it is unless told
    /// otherwise. One that goes on learns of it from [`Message::lost`].
    pub fn stop_when_lost(mut self, stop: bool) -> Self {
        self.manner.stop_when_lost = stop;
        self
    }

    /// Consumes until `stop` is done: then no new message is taken, functions that run come to
    /// their end, and messages that had arrived and not begun are given back. Dropping the future
    /// stops the functions too, and gives their messages back.
    ///
    /// A broken connection is made anew, for ever, and to another server where there is one.
    ///
    /// # Errors
    /// When the request is refused for good, or no server could be reached from the start.
    pub async fn run<R, E>(self, stop: impl Future<Output = ()>) -> Result<(), Error<DequeueKind>>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + 'static,
    {
        Ok(Consumer::new(self.wish, self.manner, self.handler).run(stop).await?)
    }
}

impl<F> fmt::Debug for Subscribe<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscribe")
            .field("wish", &self.wish)
            .field("manner", &self.manner)
            .finish_non_exhaustive()
    }
}
