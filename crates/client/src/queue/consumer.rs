//! What runs for a subscription: messages come in over one connection, and each is attended to by
//! a task of its own.
//!
//! The server is told how many messages this consumer has room for and sends no more than that.
//! Messages of a connection that broke still take their room, so the next one is opened for what
//! is left, and opened anew once more has become free.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use lockd_wire::path;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::delivery::Deliveries;
use super::dequeue::{Wish, arrived, is_empty};
use super::extender::Extender;
use super::hold::{GiveBack, Hold};
use super::message::{IfDropped, Message, lost};
use crate::error::{Cause, Class, Failed, Failure};
use crate::lease::Lost;
use crate::reply::Reply;
use crate::retry::{Remedy, Tries};

/// How long to look for messages that are on a connection before it is closed.
const CLOSING: Duration = Duration::from_millis(100);
/// What a consumer gives back when it ends is hidden for so long: until the server has noticed that
/// this very consumer is gone and gets no more.
const GOING: Duration = Duration::from_millis(500);
/// An empty queue is asked about no more often than this, whatever the server says.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Bytes of an error that are told to the server. As JSON it may be six times as long, which is
/// still less than the server takes.
const ERROR_BYTES_MAX: usize = 2 * 1024;
/// The pause after the first failure of a message; twice as long after each further one.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// How a consumer goes about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) concurrency: usize,
    pub(super) buffer_max: usize,
    pub(super) stalled_after: Option<Duration>,
    /// `None`: a growing one.
    pub(super) retry_delay: Option<Duration>,
    pub(super) stop_when_lost: bool,
}

pub(super) struct Consumer<F> {
    manner: Manner,
    handler: Arc<F>,
    intake: Intake,
    crew: Crew,
}

/// Those who work on messages, one task for each. They end with this.
#[derive(Default)]
struct Crew {
    tasks: JoinSet<()>,
    at_work: Vec<Weak<Hold>>,
}

impl<F> Consumer<F> {
    pub(super) fn new(wish: Wish, manner: Manner, handler: F) -> Self {
        let intake = Intake::new(wish, manner.buffer_max);
        Self { manner, handler: Arc::new(handler), intake, crew: Crew::default() }
    }

    pub(super) async fn run<R, E>(mut self, stop: impl Future<Output = ()>) -> Result<(), Failed>
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + 'static,
    {
        let mut stop = std::pin::pin!(stop);
        let ended = loop {
            let free = self.manner.concurrency.saturating_sub(self.crew.tasks.len());
            tokio::select! {
                biased;
                () = &mut stop => break Ok(()),
                Some(_) = self.crew.tasks.join_next(), if !self.crew.tasks.is_empty() => {}
                next = self.intake.next(free), if free > 0 => match next {
                    Ok(message) => {
                        let handler = Arc::clone(&self.handler);
                        self.crew.take_on(Arc::downgrade(message.hold()));
                        self.crew.tasks.spawn(attend(handler, message, self.manner));
                    }
                    Err(failure) => break Err(failure),
                },
            }
        };
        self.intake.close().await;
        while self.crew.tasks.join_next().await.is_some() {}
        ended
    }
}

impl Crew {
    fn take_on(&mut self, hold: Weak<Hold>) {
        self.at_work.retain(|hold| hold.strong_count() > 0);
        self.at_work.push(hold);
    }
}

/// The tasks end a little later than this, so the messages are not left to them.
impl Drop for Crew {
    fn drop(&mut self) {
        self.tasks.abort_all();
        for hold in self.at_work.iter().filter_map(Weak::upgrade) {
            hold.part(going());
        }
    }
}

/// Where messages come from. All state is kept here, so that asking for the next one can be given
/// up at any time.
struct Intake {
    wish: Wish,
    buffer_max: usize,
    connecting: Option<BoxFuture<'static, Result<Reply, Failed>>>,
    connection: Option<Deliveries>,
    /// How many messages the connection, or the one that is being made, was opened for.
    room: usize,
    /// Messages of a connection that was closed.
    arrived: VecDeque<Message>,
    /// Whether a server has ever listened to us.
    reached: bool,
    /// Connections in a row that gave no message.
    empty: Tries,
}

impl Intake {
    fn new(wish: Wish, buffer_max: usize) -> Self {
        Self {
            wish,
            buffer_max,
            connecting: None,
            connection: None,
            room: 0,
            arrived: VecDeque::new(),
            reached: false,
            empty: Tries::new(1, u32::MAX),
        }
    }

    /// The next message, for a consumer that has room for so many.
    async fn next(&mut self, free: usize) -> Result<Message, Failed> {
        loop {
            if let Some(message) = self.arrived.pop_front() {
                return Ok(message);
            }
            if self.connection.is_none() {
                self.connect(free).await?;
                continue;
            }
            if free > self.room {
                self.disconnect().await;
                continue;
            }
            if let Some(message) = self.receive().await {
                return Ok(message);
            }
        }
    }

    /// The next message of the connection; `None` when that has ended.
    async fn receive(&mut self) -> Option<Message> {
        let connection = self.connection.as_mut()?;
        let whole = match connection.next_whole(self.buffer_max).await {
            Ok(Some(whole)) => {
                self.empty.reset();
                return Some(arrived(&self.wish, whole));
            }
            Ok(None) => None,
            Err(failure) => {
                tracing::debug!(%failure, "subscription interrupted");
                connection.broken_off()
            }
        };
        self.connection = None;
        whole.map(|whole| arrived(&self.wish, whole))
    }

    async fn connect(&mut self, free: usize) -> Result<(), Failed> {
        if self.connecting.is_none() {
            let pause = if self.reached { self.empty.next(Remedy::Later, None) } else { None };
            self.room = free;
            self.connecting = Some(self.open(pause.unwrap_or_default())?);
        }
        let Some(connecting) = &mut self.connecting else { return Ok(()) };
        let opened = connecting.await;
        self.connecting = None;
        match opened {
            Ok(reply) => {
                self.reached = true;
                self.connection = Some(Deliveries::new(reply, None)?);
                Ok(())
            }
            // The pause before this answer was long enough already.
            Err(failure) if is_empty(&failure) => {
                self.reached = true;
                self.empty.reset();
                Ok(())
            }
            Err(failure) if self.is_passing(&failure) => {
                tracing::warn!(%failure, "subscription interrupted; still trying");
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Asks for messages, after a pause.
    fn open(&self, pause: Duration) -> Result<BoxFuture<'static, Result<Reply, Failed>>, Failed> {
        let with_state = self.wish.with_state;
        let path = if with_state { path::QUEUE_SUBSCRIBE_STATE } else { path::QUEUE_SUBSCRIBE };
        let client = self.wish.queue.client.clone();
        let mut call = self.wish.queue.call(path).json(&self.wish.request(self.room)?)?;
        call.patience.silence = None;
        Ok(Box::pin(async move {
            tokio::time::sleep(pause).await;
            let began = client.clock().now();
            let opened = client.open(&call).await;
            if opened.as_ref().is_err_and(|failure| is_empty(failure)) {
                let waited = client.clock().now().since(began);
                let pause = ASK_EVERY.saturating_sub(waited).max(ASK_PAUSE_MIN);
                tokio::time::sleep(pause).await;
            }
            opened
        }))
    }

    /// Whether a failure may well be over at the next attempt. Who was never reached is probably
    /// misspelt.
    fn is_passing(&mut self, failure: &Failure) -> bool {
        self.reached |= matches!(failure.cause, Cause::Broken | Cause::TimedOut(_));
        match Class::of(failure) {
            Class::Busy | Class::Unavailable | Class::OutcomeUnknown | Class::Other => self.reached,
            Class::Exists
            | Class::LeaseLost
            | Class::Conflict
            | Class::FenceFailed
            | Class::TxnConflict
            | Class::Invalid
            | Class::TooLarge
            | Class::Forbidden
            | Class::Source => false,
        }
    }

    /// Closes the connection, after a look at what is on it.
    async fn disconnect(&mut self) {
        while let Some(connection) = &mut self.connection
            && self.arrived.len() < self.room
        {
            let next = tokio::time::timeout(CLOSING, connection.next_whole(self.buffer_max)).await;
            let Ok(Ok(Some(whole))) = next else { break };
            self.arrived.push_back(arrived(&self.wish, whole));
        }
        self.connection = None;
    }

    /// Takes no more messages, and gives back what had arrived.
    async fn close(&mut self) {
        self.connecting = None;
        // Given back only after the connection is closed, or they would come again over it.
        self.disconnect().await;
        let given_back = self.arrived.drain(..).map(|message| async move {
            if let Err(failure) = message.hold().nack(&going()).await {
                tracing::debug!(id = message.id(), %failure, "message not given back");
            }
        });
        futures_util::future::join_all(given_back).await;
    }
}

fn going() -> GiveBack {
    GiveBack { delay: GOING, ..GiveBack::deferred() }
}

/// How the work on a message ended.
enum Outcome {
    Done,
    Failed(String),
    Lost(Lost),
}

/// Runs the handler for one message and answers for it.
async fn attend<F, R, E>(handler: Arc<F>, message: Message, manner: Manner)
where
    F: Fn(Message) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display + 'static,
{
    let (hold, tenure) = (Arc::clone(message.hold()), Arc::clone(message.tenure()));
    let id = message.id().to_owned();
    let retry_delay = manner.retry_delay.unwrap_or_else(|| growing(message.failures()));
    let extender = Extender {
        hold: Arc::clone(&hold),
        tenure: Arc::clone(&tenure),
        visibility: message.visibility(),
        stalled_after: manner.stalled_after,
    };
    // A task of its own: a handler that does not yield must not lose its message.
    let _extending = AbortOnDropHandle::new(Handle::current().spawn(extender.run()));
    hold.progress();
    let message = message.if_dropped(IfDropped::Leave);
    let outcome = tokio::select! {
        biased;
        outcome = work(handler, message) => outcome,
        lost = lost(&tenure), if manner.stop_when_lost => Outcome::Lost(lost),
    };
    answer(&hold, &id, outcome, retry_delay).await;
}

async fn work<F, R, E>(handler: Arc<F>, message: Message) -> Outcome
where
    F: Fn(Message) -> R,
    R: Future<Output = Result<(), E>>,
    E: fmt::Display + 'static,
{
    // The alternate form has the causes too, where an error tells them at all.
    let working = async { handler(message).await.map_err(|error| format!("{error:#}")) };
    match AssertUnwindSafe(working).catch_unwind().await {
        Ok(Ok(())) => Outcome::Done,
        Ok(Err(error)) => Outcome::Failed(error),
        Err(panic) => Outcome::Failed(format!("the handler panicked: {}", said(&*panic))),
    }
}

/// How long a message rests that has failed so often before. What it needs may be away for a
/// while, and its attempts should outlast that.
fn growing(failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
    RETRY_FIRST.saturating_mul(doubled).min(RETRY_LONGEST)
}

/// What a panic said.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

async fn answer(hold: &Hold, id: &str, outcome: Outcome, retry_delay: Duration) {
    if let Outcome::Lost(lost) = outcome {
        tracing::warn!(id, %lost, "message lost; its handler was stopped");
        return;
    }
    // The handler has answered itself.
    if hold.is_settled().await {
        return;
    }
    let answered = match outcome {
        Outcome::Done => hold.ack(&[]).await,
        Outcome::Failed(error) => {
            tracing::debug!(id, error, "message failed");
            let error = serde_json::value::to_raw_value(shortened(&error)).ok();
            let how = GiveBack { delay: retry_delay, defer: false, error };
            hold.nack(&how).await.map(|_| ())
        }
        Outcome::Lost(_) => Ok(()),
    };
    if let Err(failure) = answered {
        tracing::warn!(id, %failure, "message worked on but not answered for; it may come again");
    }
}

fn shortened(text: &str) -> &str {
    text.get(..text.floor_char_boundary(ERROR_BYTES_MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::growing;

    #[test]
    fn the_pause_after_a_failure_grows_up_to_a_minute() {
        let pauses: Vec<u64> = [0, 1, 2, 5, 6, 31, 99].map(|n| growing(n).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 32, 60, 60, 60]);
        assert!(growing(u32::MAX) <= Duration::from_secs(60));
    }
}
