//! Following whether a queue has something to deliver. A broken connection is made anew; what is
//! told then begins with how things are, so nothing needs to be resumed.

use std::time::Duration;

use futures_util::Stream;
use hyper::body::Incoming;
use lockd_wire::path;
use lockd_wire::queue::{WATCH_EVENT, WatchEvent};

use super::Queue;
use crate::error::{Error, Failed, Failure, ReadKind};
use crate::retry::{Remedy, Tries};
use crate::transport::chunk;
use crate::watch::sse::{Parser, TooLong};

/// A server that says nothing for this long, not even that it is alive, is asked anew.
const SILENCE: Duration = Duration::from_secs(60);

/// Follows a queue without taking from it. Ask for one event after the other with
/// [`QueueWatch::next`]: the first says how things are, the others what has changed.
#[derive(Debug)]
pub struct QueueWatch {
    queue: Queue,
    silence: Duration,
    /// What was told last; telling it again would be no news.
    told: Option<(bool, Option<String>)>,
    connection: Option<Connection>,
    /// Whether there ever was a connection.
    started: bool,
    /// Connections in a row that gave no event.
    empty: Tries,
}

#[derive(Debug)]
struct Connection {
    body: Incoming,
    parser: Parser,
}

impl QueueWatch {
    pub(super) fn new(queue: Queue) -> Self {
        Self {
            queue,
            silence: SILENCE,
            told: None,
            connection: None,
            started: false,
            empty: Tries::new(1, u32::MAX),
        }
    }

    /// How long a server may say nothing at all before it is asked anew: a minute unless set.
    #[must_use]
    pub fn silence(mut self, longest: Duration) -> Self {
        self.silence = longest;
        self
    }

    /// The next event. Waits as long as it takes; dropping the future loses nothing.
    ///
    /// # Errors
    /// When no server can be reached, or the request is refused. Asking again tries again.
    pub async fn next(&mut self) -> Result<WatchEvent, Error<ReadKind>> {
        loop {
            if let Some(event) = self.received()? {
                return Ok(event);
            }
            match &mut self.connection {
                None => self.connect().await?,
                Some(connection) => match chunk(&mut connection.body, Some(self.silence)).await {
                    Ok(Some(bytes)) => connection.parser.push(&bytes),
                    Ok(None) => self.connection = None,
                    Err(failure) => {
                        tracing::debug!(%failure, "watch interrupted");
                        self.connection = None;
                    }
                },
            }
        }
    }

    /// The same as a stream. It ends after an error that asking again would not mend.
    pub fn into_stream(self) -> impl Stream<Item = Result<WatchEvent, Error<ReadKind>>> + Send {
        futures_util::stream::unfold(Some(self), |state| async move {
            let mut watch = state?;
            let next = watch.next().await;
            let goes_on = next.as_ref().err().is_none_or(Error::retryable);
            Some((next, goes_on.then_some(watch)))
        })
    }

    async fn connect(&mut self) -> Result<(), Failed> {
        let call = self
            .queue
            .call(path::QUEUE_WATCH)
            .header("accept", "text/event-stream")?
            .json(&self.queue.request())?;
        if self.started
            && let Some(pause) = self.empty.next(Remedy::Later, None)
        {
            tokio::time::sleep(pause).await;
        }
        self.started = true;
        let body = self.queue.client.open(&call).await?.into_body();
        self.connection = Some(Connection { body, parser: Parser::default() });
        Ok(())
    }

    /// An event that has arrived as a whole and is news.
    fn received(&mut self) -> Result<Option<WatchEvent>, Failed> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(None) };
            let message = match connection.parser.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(None),
                Err(TooLong) => {
                    self.connection = None;
                    return Err(Failure::garbled("an event is longer than it may be"));
                }
            };
            if message.kind != WATCH_EVENT {
                continue;
            }
            let event: WatchEvent = match serde_json::from_str(&message.data) {
                Ok(event) => event,
                Err(error) => {
                    self.connection = None;
                    return Err(Failure::garbled("an event is not readable").because(error));
                }
            };
            self.empty.reset();
            let news = Some((event.available, event.head_message_id.clone()));
            if self.told != news {
                self.told = news;
                return Ok(Some(event));
            }
        }
    }
}
