//! Following what happens to keys. A broken connection is made anew from the last event that was
//! handed out; when the server cannot continue there it says so with a `Reset`.
//!
//! While a snapshot is coming in, its place is not remembered: resuming in the middle of one would
//! leave out its rest.

pub(crate) mod sse;

use std::time::Duration;

use futures_util::Stream;
use http::Method;
use hyper::body::Incoming;
use lockd_wire::path;
use lockd_wire::watch::{self, LeaseEvent, ResetEvent, StateEvent};
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::{Error, Failed, Failure, ReadKind};
use crate::retry::{Remedy, Tries};
use crate::transport::chunk;

use sse::{Message, Parser};

/// A server that says nothing for this long, not even that it is alive, is asked anew.
const SILENCE: Duration = Duration::from_secs(60);
const LAST_EVENT_ID: &str = "last-event-id";

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Where a later watch can go on; see [`Watch::resume_from`]. None within a snapshot.
    pub id: Option<String>,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A new state was committed.
    State(StateEvent),
    /// The state was removed.
    Removed(StateEvent),
    /// A lease was granted, released, revoked, or ran out.
    Lease(LeaseEvent),
    /// Forget what you knew: a snapshot begins, or is complete.
    Reset(ResetEvent),
}

/// Follows keys. Ask it for one event after the other with [`Watch::next`].
#[derive(Debug)]
pub struct Watch {
    client: Client,
    namespace: Option<String>,
    key: Option<String>,
    prefix: Option<String>,
    silence: Duration,
    last_id: Option<String>,
    in_snapshot: bool,
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

impl Watch {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            namespace: client.settings().namespace.clone(),
            client,
            key: None,
            prefix: None,
            silence: SILENCE,
            last_id: None,
            in_snapshot: false,
            connection: None,
            started: false,
            empty: Tries::new(1, u32::MAX),
        }
    }

    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub(crate) fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into()).filter(|prefix: &String| !prefix.is_empty());
        self
    }

    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Goes on after the event with this id, instead of starting with a snapshot.
    pub fn resume_from(mut self, id: impl Into<String>) -> Self {
        self.last_id = Some(id.into());
        self
    }

    /// How long a server may say nothing at all before it is asked anew: a minute unless set.
    pub fn silence(mut self, longest: Duration) -> Self {
        self.silence = longest;
        self
    }

    /// The next event. Waits as long as it takes; dropping the future loses nothing.
    ///
    /// # Errors
    /// When no server can be reached, or the request is refused. Asking again tries again.
    pub async fn next(&mut self) -> Result<Event, Error<ReadKind>> {
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
    pub fn into_stream(self) -> impl Stream<Item = Result<Event, Error<ReadKind>>> + Send {
        futures_util::stream::unfold(Some(self), |state| async move {
            let mut watch = state?;
            let next = watch.next().await;
            let goes_on = next.as_ref().err().is_none_or(Error::retryable);
            Some((next, goes_on.then_some(watch)))
        })
    }

    async fn connect(&mut self) -> Result<(), Failed> {
        let call = self
            .client
            .call(Method::GET, path::WATCH)
            .query_if("namespace", self.namespace.as_deref())
            .query_if("key", self.key.as_deref())
            .query_if("prefix", self.prefix.as_deref())
            .header("accept", "text/event-stream")?
            .header_if(LAST_EVENT_ID, self.last_id.as_deref())?;
        if self.started
            && let Some(pause) = self.empty.next(Remedy::Later, None)
        {
            tokio::time::sleep(pause).await;
        }
        self.started = true;
        let body = self.client.open(&call).await?.into_body();
        self.connection = Some(Connection { body, parser: Parser::default() });
        Ok(())
    }

    /// An event that has arrived as a whole.
    fn received(&mut self) -> Result<Option<Event>, Failed> {
        loop {
            let Some(connection) = &mut self.connection else { return Ok(None) };
            let message = match connection.parser.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => return Ok(None),
                Err(sse::TooLong) => {
                    self.connection = None;
                    return Err(Failure::garbled("an event is longer than it may be"));
                }
            };
            match change(&message) {
                Ok(None) => {}
                Ok(Some(change)) => return Ok(Some(self.take(message.id, change))),
                Err(failure) => {
                    self.connection = None;
                    return Err(failure);
                }
            }
        }
    }

    /// Remembers where an event leaves off, and hands it out.
    fn take(&mut self, id: Option<String>, change: Change) -> Event {
        self.empty.reset();
        if let Change::Reset(reset) = &change {
            self.in_snapshot = !reset.complete;
        }
        let id = if self.in_snapshot { None } else { id };
        if self.in_snapshot || id.is_some() {
            self.last_id.clone_from(&id);
        }
        Event { id, change }
    }
}

/// What a message says; `None` for kinds that this client does not know.
fn change(message: &Message) -> Result<Option<Change>, Failed> {
    fn read<T: DeserializeOwned>(message: &Message) -> Result<T, Failed> {
        serde_json::from_str(&message.data).map_err(|error| {
            Failure::garbled(format!("an event {:?} is not readable", message.kind)).because(error)
        })
    }
    Ok(match message.kind.as_str() {
        watch::STATE => Some(Change::State(read(message)?)),
        watch::REMOVED => Some(Change::Removed(read(message)?)),
        watch::LEASE => Some(Change::Lease(read(message)?)),
        watch::RESET => Some(Change::Reset(read(message)?)),
        _ => None,
    })
}
