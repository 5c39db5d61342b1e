//! Queues: messages that are delivered at least once, to one consumer at a time.
//!
//! A message is given to a consumer for a time, its visibility. Whoever has it acknowledges it,
//! gives it back, or has its time extended; otherwise it goes to somebody else.

mod consumer;
mod delivery;
mod dequeue;
mod enqueue;
mod extender;
mod hold;
mod message;
mod pages;
mod payload;
mod settle;
mod subscribe;
mod watch;

use std::fmt;

use http::Method;
use lockd_wire::path;
use lockd_wire::queue::{CountReply, DeadRequest, PurgeRequest, QueueRequest, StatsReply};
use serde::Serialize;

use crate::body::Source;
use crate::call::{Call, Repeat};
use crate::client::Client;
use crate::error::{AdminKind, Error, Failed, ReadKind};

pub use dequeue::{Batch, Dequeue, DequeueBatch};
pub use enqueue::Enqueue;
pub use hold::Receipt;
pub use message::{Message, MessageState};
pub use pages::{MessagePages, QueuePages};
pub use payload::PayloadStream;
pub use settle::{Ack, Extended, Nack, Nacked, RawMessage};
pub use subscribe::Subscribe;
pub use watch::QueueWatch;

/// How many ids one request may name.
const IDS_MAX: usize = 1_000;

/// A queue, by its name. It begins with the first message that is put into it.
///
/// ```no_run
/// # async fn example(client: lockd_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use lockd_client::secs;
///
/// let jobs = client.queue("jobs");
/// jobs.enqueue("resize cat.png").await?;
///
/// if let Some(mut message) = jobs.dequeue().wait(secs(5)).await? {
///     println!("{:?}", message.bytes().await?);
///     message.ack().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Queue {
    client: Client,
    namespace: Option<String>,
    name: String,
}

impl Queue {
    pub(crate) fn new(client: Client, name: String) -> Self {
        let namespace = client.settings().namespace.clone();
        Self { client, namespace, name }
    }

    /// The namespace of the queue; the client's when not set.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts a message into the queue; the payload is read while it is sent.
    ///
    /// ```no_run
    /// # async fn example(jobs: lockd_client::Queue) -> Result<(), Box<dyn std::error::Error>> {
    /// use lockd_client::{Source, secs};
    ///
    /// let sent = jobs.enqueue(Source::file("cat.png")).content_type("image/png").await?;
    /// jobs.enqueue("later").delay(secs(60)).ttl(secs(3600)).await?;
    /// println!("{} is in the queue", sent.message_id);
    /// # Ok(())
    /// # }
    /// ```
    pub fn enqueue(&self, payload: impl Into<Source>) -> Enqueue {
        Enqueue::new(self.clone(), payload.into())
    }

    /// Puts a message into the queue whose payload is a value as JSON.
    pub fn enqueue_json<T: Serialize + ?Sized>(&self, value: &T) -> Enqueue {
        Enqueue::json(self.clone(), value)
    }

    /// Takes a message, if there is one; see [`Dequeue`] for waiting and for several at once.
    ///
    /// A message that is dropped without an answer is given back as failed, without waiting and
    /// as far as that works; otherwise its time runs out.
    pub fn dequeue(&self) -> Dequeue {
        Dequeue::new(self.clone())
    }

    /// Has a function called for every message, several at a time; see [`Subscribe`].
    pub fn subscribe<F>(&self, handler: F) -> Subscribe<F> {
        Subscribe::new(self.clone(), handler)
    }

    /// How many messages wait, are with consumers, and are dead.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn stats(&self) -> Result<StatsReply, Error<ReadKind>> {
        let call = self.call(path::QUEUE_STATS).json(&self.request())?;
        Ok(self.client.fetch(&call).await?.json()?)
    }

    /// Looks at the messages of the queue, in order, without taking them.
    pub fn peek(&self) -> MessagePages {
        MessagePages::new(self.clone(), path::QUEUE_PEEK)
    }

    /// Looks at the messages that failed too often.
    pub fn dead_letters(&self) -> MessagePages {
        MessagePages::new(self.clone(), path::QUEUE_DLQ)
    }

    /// Opens the payload of a message for reading, without taking it; `None` when there is no such
    /// message.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn payload(
        &self,
        message_id: &str,
    ) -> Result<Option<PayloadStream>, Error<ReadKind>> {
        Ok(payload::open(self, message_id).await?)
    }

    /// Follows whether the queue has something to deliver, without taking it.
    pub fn watch(&self) -> QueueWatch {
        QueueWatch::new(self.clone())
    }

    /// Removes what waits in the queue; how many messages that were. What is with a consumer stays,
    /// and so do the dead.
    ///
    /// # Errors
    /// When it could not be done.
    pub async fn purge(&self) -> Result<u64, Error<AdminKind>> {
        self.purge_with(false).await
    }

    /// As [`Queue::purge`], and the dead too.
    ///
    /// # Errors
    /// When it could not be done.
    pub async fn purge_with_dead(&self) -> Result<u64, Error<AdminKind>> {
        self.purge_with(true).await
    }

    /// Puts dead messages back into the queue; how many there were of them.
    ///
    /// # Errors
    /// When it could not be done, or not for all.
    pub async fn redrive<I>(&self, message_ids: I) -> Result<u64, Error<AdminKind>>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Ok(self.dead(path::QUEUE_DLQ_REDRIVE, ids(message_ids)).await?)
    }

    /// Puts all dead messages back into the queue; how many there were.
    ///
    /// # Errors
    /// When it could not be done.
    pub async fn redrive_all(&self) -> Result<u64, Error<AdminKind>> {
        Ok(self.all_dead(path::QUEUE_DLQ_REDRIVE).await?)
    }

    /// Removes dead messages for good; how many there were of them.
    ///
    /// # Errors
    /// When it could not be done, or not for all.
    pub async fn delete_dead<I>(&self, message_ids: I) -> Result<u64, Error<AdminKind>>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        Ok(self.dead(path::QUEUE_DLQ_DELETE, ids(message_ids)).await?)
    }

    /// Removes all dead messages for good; how many there were.
    ///
    /// # Errors
    /// When it could not be done.
    pub async fn delete_all_dead(&self) -> Result<u64, Error<AdminKind>> {
        Ok(self.all_dead(path::QUEUE_DLQ_DELETE).await?)
    }

    async fn purge_with(&self, dead: bool) -> Result<u64, Error<AdminKind>> {
        let QueueRequest { namespace, queue } = self.request();
        let request = PurgeRequest { namespace, queue, dead };
        let call = self.call(path::QUEUE_PURGE).repeat(Repeat::Unsent).json(&request)?;
        let reply: CountReply = self.client.fetch(&call).await?.json()?;
        Ok(reply.count)
    }

    async fn dead(&self, path: &'static str, message_ids: Vec<String>) -> Result<u64, Failed> {
        let mut count = 0;
        for some in message_ids.chunks(IDS_MAX) {
            count += self.change_dead(path, some.to_vec(), false).await?;
        }
        Ok(count)
    }

    async fn all_dead(&self, path: &'static str) -> Result<u64, Failed> {
        self.change_dead(path, Vec::new(), true).await
    }

    async fn change_dead(
        &self,
        path: &'static str,
        message_ids: Vec<String>,
        all: bool,
    ) -> Result<u64, Failed> {
        let QueueRequest { namespace, queue } = self.request();
        let request = DeadRequest { namespace, queue, message_ids, all };
        // A repetition would tell a wrong number.
        let call = self.call(path).repeat(Repeat::Unsent).json(&request)?;
        let reply: CountReply = self.client.fetch(&call).await?.json()?;
        Ok(reply.count)
    }

    fn call(&self, path: &'static str) -> Call {
        self.client
            .call(Method::POST, path)
            .naming("queue", Some(&self.name))
            .naming("namespace", self.namespace.as_deref())
    }

    fn request(&self) -> QueueRequest {
        QueueRequest { namespace: self.namespace.clone(), queue: self.name.clone() }
    }
}

fn ids<I>(message_ids: I) -> Vec<String>
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    message_ids.into_iter().map(|id| id.as_ref().to_owned()).collect()
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
