//! Taking messages. An empty queue is an answer, not an error.
//!
//! Asking again after a broken connection may take another message than the one that was lost on
//! the way; that one comes again when its time is over. Under a transaction it would be
//! acknowledged with the others, unseen, so there nothing is asked again.

use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use bytes::BytesMut;
use lockd_wire::queue::DequeueRequest;
use lockd_wire::{ErrorCode, path};

use super::Queue;
use super::delivery::{Deliveries, Whole};
use super::hold::has_code;
use super::message::{IfDropped, Message};
use super::payload::Payload;
use crate::acquire::Wait;
use crate::call::Repeat;
use crate::capped::Limit;
use crate::error::{DequeueKind, Error, Failed, Failure};
use crate::ttl::WireSpan;

/// How large a payload may be to be read into memory before it is asked for.
pub(super) const BUFFER_MAX: usize = 4 * 1024 * 1024;
/// How many messages can be taken at once.
const BATCH_MAX: u32 = 64;

/// A wish for a message; await it. Without a wait there is one at once or none.
///
/// ```no_run
/// # async fn example(jobs: lockd_client::Queue) -> Result<(), Box<dyn std::error::Error>> {
/// use lockd_client::secs;
///
/// while let Some(mut message) = jobs.dequeue().visibility(secs(60)).wait(secs(10)).await? {
///     let text = message.bytes().await?;
///     if text.is_empty() {
///         message.nack().error("nothing in it").await?;
///     } else {
///         message.ack().await?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is asked for before it is awaited"]
pub struct Dequeue {
    wish: Wish,
}

/// A wish for several messages; await it.
///
/// All of them have arrived when it is done, and can be read in any order. Payloads of more than
/// 4 MiB (see [`DequeueBatch::buffer_max`]) are not kept: they are asked for again when they are
/// read.
#[derive(Debug)]
#[must_use = "nothing is asked for before it is awaited"]
pub struct DequeueBatch {
    wish: Wish,
    count: u32,
    buffer_max: usize,
}

/// What is wished for, by those who take messages and those who subscribe to them.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) queue: Queue,
    pub(super) owner: String,
    pub(super) wait: Wait,
    pub(super) visibility: Option<Duration>,
    pub(super) with_state: bool,
    pub(super) txn_id: Option<String>,
}

impl Wish {
    pub(super) fn new(queue: Queue) -> Self {
        let owner = queue.client.settings().owner.clone();
        let (wait, visibility, with_state, txn_id) = (Wait::No, None, false, None);
        Self { queue, owner, wait, visibility, with_state, txn_id }
    }

    pub(super) fn request(&self, page_size: usize) -> Result<DequeueRequest, Failed> {
        let visibility = WireSpan::ttl(self.visibility)?;
        Ok(DequeueRequest {
            namespace: self.queue.namespace.clone(),
            queue: Some(self.queue.name.clone()),
            owner: Some(self.owner.clone()),
            txn_id: self.txn_id.clone(),
            visibility_timeout_seconds: visibility.seconds,
            visibility_timeout_ms: visibility.ms,
            wait_seconds: Some(self.wait.seconds()?),
            page_size: i64::try_from(page_size).ok(),
            start_after: None,
        })
    }

    /// Asks for messages; `None` when there are none.
    async fn ask(&self, count: u32) -> Result<Option<Deliveries>, Failed> {
        let client = &self.queue.client;
        let path = if self.with_state { path::QUEUE_DEQUEUE_STATE } else { path::QUEUE_DEQUEUE };
        let repeat = if self.txn_id.is_some() { Repeat::Unsent } else { Repeat::Harmless };
        let request = self.request(usize::try_from(count).unwrap_or(1))?;
        let mut call = self.queue.call(path).repeat(repeat).json(&request)?;
        call = call
            .naming("owner", Some(&self.owner))
            .naming("transaction id", self.txn_id.as_deref())
            .checked()?;
        call.patience = self.wait.patience(client, client.clock().now())?;
        match client.open(&call).await {
            Ok(reply) => {
                let silence = Some(reply.silence());
                Ok(Some(Deliveries::new(reply, silence).map_err(|failure| self.lost(failure))?))
            }
            Err(failure) if is_empty(&failure) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The message as it came, unless the server capped its visibility: then that is reported.
    pub(super) fn looked_at(&self, message: Message) -> Message {
        let caps = &self.queue.client.settings().caps;
        caps.check(Limit::Visibility, self.visibility, message.visibility());
        message
    }

    /// Messages may have been taken that nobody has seen.
    fn lost(&self, mut failure: Failed) -> Failed {
        failure.unknown = self.txn_id.is_some();
        failure
    }
}

macro_rules! options {
    () => {
        /// Who takes it, for people to read; the client's owner when not set.
        pub fn owner(mut self, owner: impl Into<String>) -> Self {
            self.wish.owner = owner.into();
            self
        }

        /// How long the message is with this consumer before it goes to another; what was said
        /// when it was enqueued when not set.
        pub fn visibility(mut self, visibility: Duration) -> Self {
            self.wish.visibility = Some(visibility);
            self
        }

        /// Waits that long for a message, in whole seconds, rounded up.
        pub fn wait(mut self, longest: Duration) -> Self {
            self.wish.wait = Wait::at_most(longest);
            self
        }

        /// Waits until there is a message, however long it takes.
        pub fn wait_forever(mut self) -> Self {
            self.wish.wait = Wait::Forever;
            self
        }

        /// Does not wait, which is the default.
        pub fn no_wait(mut self) -> Self {
            self.wish.wait = Wait::No;
            self
        }

        /// Takes the state of the message with it; see [`Message::state`].
        pub fn with_state(mut self) -> Self {
            self.wish.with_state = true;
            self
        }

        /// Under a transaction: acknowledged when that is committed, given back when it is rolled
        /// back. `.in_txn(&txn)`, or its id.
        pub fn in_txn(mut self, txn: impl Into<String>) -> Self {
            self.wish.txn_id = Some(txn.into());
            self
        }
    };
}

impl Dequeue {
    pub(super) fn new(queue: Queue) -> Self {
        Self { wish: Wish::new(queue) }
    }

    options!();

    /// Up to so many messages at once, at most 64. The wait is for the first of them.
    pub fn batch(self, count: u32) -> DequeueBatch {
        let count = count.clamp(1, BATCH_MAX);
        DequeueBatch { wish: self.wish, count, buffer_max: BUFFER_MAX }
    }

    async fn send(self) -> Result<Option<Message>, Failed> {
        let wish = self.wish;
        let Some(mut deliveries) = wish.ask(1).await? else { return Ok(None) };
        let next = deliveries.next().await.map_err(|failure| wish.lost(failure))?;
        let Some(delivered) = next else { return Ok(None) };
        let arrived = wish.queue.client.clock().now();
        if delivered.payload_bytes > BUFFER_MAX as u64 {
            let payload = Payload::Arriving(Box::new(deliveries));
            return Ok(Some(wish.looked_at(Message::new(
                &wish.queue,
                delivered,
                payload,
                arrived,
            ))));
        }
        // From here on it is given back if this future is dropped.
        let message = Message::new(&wish.queue, delivered, Payload::Away, arrived)
            .if_dropped(IfDropped::Defer);
        let message = wish.looked_at(message);
        let payload = gather(&mut deliveries).await;
        Ok(Some(message.with_payload(payload).if_dropped(IfDropped::Fail)))
    }
}

impl DequeueBatch {
    options!();

    /// How many bytes of a payload are kept in memory: 4 MiB unless set. Larger ones are asked for
    /// again when they are read. A batch takes at most so much for each of its messages.
    pub fn buffer_max(mut self, bytes: usize) -> Self {
        self.buffer_max = bytes;
        self
    }

    async fn send(self) -> Result<Batch, Failed> {
        let (wish, mut batch) = (self.wish, Batch::default());
        let Some(mut deliveries) = wish.ask(self.count).await? else { return Ok(batch) };
        loop {
            let next = deliveries.next_whole(self.buffer_max).await;
            let broken = next.is_err();
            let whole = match next {
                Ok(Some(whole)) => Some(whole),
                Ok(None) => break,
                Err(failure) if wish.txn_id.is_some() => return Err(wish.lost(failure)),
                Err(failure) => {
                    let whole = deliveries.broken_off();
                    if whole.is_none() && batch.is_empty() {
                        return Err(failure);
                    }
                    tracing::debug!(%failure, "batch broken off; the rest comes again");
                    whole
                }
            };
            batch.messages.extend(whole.map(|whole| arrived(&wish, whole)));
            if broken {
                return Ok(batch);
            }
        }
        deliveries.finish().await;
        Ok(batch)
    }
}

/// A message that nobody has looked at yet.
pub(super) fn arrived(wish: &Wish, whole: Whole) -> Message {
    let payload = whole.payload.map_or(Payload::Away, Payload::Here);
    let now = wish.queue.client.clock().now();
    let message = Message::new(&wish.queue, whole.message, payload, now);
    wish.looked_at(message.if_dropped(IfDropped::Defer))
}

/// The payload as a whole; one that breaks off is asked for again when it is wanted.
async fn gather(deliveries: &mut Deliveries) -> Payload {
    let mut whole = BytesMut::new();
    loop {
        match deliveries.chunk().await {
            Ok(Some(bytes)) => whole.extend_from_slice(&bytes),
            Ok(None) => break,
            Err(failure) => {
                tracing::debug!(%failure, "payload broken off");
                return Payload::Away;
            }
        }
    }
    deliveries.finish().await;
    Payload::Here(whole.freeze())
}

/// Whether the queue has nothing to deliver.
pub(super) fn is_empty(failure: &Failure) -> bool {
    has_code(failure, ErrorCode::Waiting)
}

impl IntoFuture for Dequeue {
    type Output = Result<Option<Message>, Error<DequeueKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

impl IntoFuture for DequeueBatch {
    type Output = Result<Batch, Error<DequeueKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.send().await?) })
    }
}

/// Messages that were taken together, in the order of the queue.
///
/// A message that is taken out and dropped without an answer is given back as failed; those that
/// nobody took out are given back without counting as failed.
#[derive(Debug, Default)]
pub struct Batch {
    messages: VecDeque<Message>,
}

impl Batch {
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

impl Iterator for Batch {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        Some(self.messages.pop_front()?.if_dropped(IfDropped::Fail))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.messages.len(), Some(self.messages.len()))
    }
}

impl ExactSizeIterator for Batch {}
