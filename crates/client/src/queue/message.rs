//! A message that was delivered: what is in it, and the answers that its consumer can give.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use lockd_wire::queue::DeliveredMessage;
use lockd_wire::state::Metadata;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Queue;
use super::hold::{GiveBack, Hold, Receipt, visibility};
use super::payload::Payload;
use super::settle::{Ack, Extended, Nack};
use crate::body::Source;
use crate::clock::Moment;
use crate::context::{Authority, LeaseContext};
use crate::error::{Cause, Error, Failed, Failure, ReadKind, SettleKind};
use crate::lease::{Lost, LostReason, Tenure};
use crate::read::{Get, GetStream};
use crate::update::{Then, Update};
use crate::write::{Mutate, Remove, SetMetadata};

/// What becomes of a message that nobody answers for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IfDropped {
    /// Its consumer had begun, and did not come to an end.
    Fail,
    /// Nobody has looked at it.
    Defer,
    /// Somebody else takes care of it.
    Leave,
}

/// A message, while it is with this consumer.
///
/// Dropping it without an answer gives it back as failed, on a best-effort basis and without
/// waiting. The message that a [`Subscribe`](super::Subscribe) hands out is answered for by that.
pub struct Message {
    hold: Arc<Hold>,
    tenure: Arc<Tenure>,
    delivered: Box<DeliveredMessage>,
    queue: Queue,
    payload: Payload,
    if_dropped: IfDropped,
}

impl Message {
    /// A message that arrived at `counted_from`.
    pub(super) fn new(
        queue: &Queue,
        delivered: Box<DeliveredMessage>,
        payload: Payload,
        counted_from: Moment,
    ) -> Self {
        let mut queue = queue.clone();
        if !delivered.namespace.is_empty() {
            queue.namespace = Some(delivered.namespace.clone());
        }
        let clock = queue.client.clock().clone();
        let tenure = Arc::new(Tenure::new(clock, counted_from, visibility(&delivered), 0));
        let hold = Arc::new(Hold::new(queue.client.clone(), &delivered, Arc::clone(&tenure)));
        Self { hold, tenure, delivered, queue, payload, if_dropped: IfDropped::Fail }
    }

    pub(super) fn if_dropped(mut self, if_dropped: IfDropped) -> Self {
        self.if_dropped = if_dropped;
        self
    }

    pub(super) fn with_payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(super) fn tenure(&self) -> &Arc<Tenure> {
        &self.tenure
    }

    /// How long each delivery is for.
    pub(super) fn visibility(&self) -> Duration {
        visibility(&self.delivered)
    }

    pub fn id(&self) -> &str {
        &self.delivered.message_id
    }

    /// The name of its queue.
    pub fn queue(&self) -> &str {
        &self.delivered.queue
    }

    pub fn namespace(&self) -> &str {
        &self.delivered.namespace
    }

    /// How often it was delivered, this time included.
    pub fn attempts(&self) -> u32 {
        self.delivered.attempts
    }

    /// How often it failed before.
    pub fn failures(&self) -> u32 {
        self.delivered.failure_attempts
    }

    /// Dead after so many failures; zero: never.
    pub fn max_attempts(&self) -> u32 {
        self.delivered.max_attempts
    }

    /// What kind of bytes the payload is.
    pub fn content_type(&self) -> &str {
        &self.delivered.payload_content_type
    }

    /// The number of bytes of the payload.
    pub fn payload_bytes(&self) -> u64 {
        self.delivered.payload_bytes
    }

    /// SHA-256 of the payload in hexadecimal, where the server told.
    pub fn sha256(&self) -> Option<&str> {
        Some(self.delivered.payload_sha256.as_str()).filter(|sha256| !sha256.is_empty())
    }

    /// When it was enqueued, in milliseconds since 1970; zero where the server did not tell.
    pub fn enqueued_at_unix_ms(&self) -> u64 {
        self.delivered.enqueued_at_unix_ms
    }

    /// Goes with the message from its enqueue to its end.
    pub fn correlation_id(&self) -> &str {
        &self.delivered.correlation_id
    }

    /// The fencing token: grows with every delivery of the message. Send it with every write to
    /// places outside of lockd, and have them refuse lower ones.
    pub fn token(&self) -> u64 {
        self.delivered.fencing_token
    }

    /// What was said about it when it was enqueued; `None` when nothing was.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn attributes<T: DeserializeOwned>(&self) -> Result<Option<T>, Error<ReadKind>> {
        let Some(raw) = &self.delivered.attributes else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|error| {
            Failure::source("the attributes are not of the type asked for", error).into()
        })
    }

    /// The server's own words about it. They hold its lease id, which is a secret.
    pub fn delivered(&self) -> &DeliveredMessage {
        &self.delivered
    }

    /// What another process needs to answer for this message. A secret.
    pub fn receipt(&self) -> Receipt {
        self.hold.receipt()
    }

    /// Hands the message over to another process, which answers for it with the receipt: nothing is
    /// given back by itself any more.
    #[must_use]
    pub fn detach(mut self) -> Receipt {
        self.if_dropped = IfDropped::Leave;
        self.hold.receipt()
    }

    /// Whether it is with this consumer at this moment, by this machine's own count. Its time
    /// counts from when it arrived here, which is a little later than when it was sent.
    pub fn is_held(&self) -> bool {
        self.tenure.is_held()
    }

    /// How long it is with this consumer if its time is not extended; zero when it is not.
    pub fn expires_in(&self) -> Duration {
        self.tenure.remaining()
    }

    /// Waits until the message is no longer with this consumer, and tells why; after an answer of
    /// its own that is never. The future stands on its own: it can be moved to another task.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + 'static {
        let tenure = Arc::clone(&self.tenure);
        async move { lost(&tenure).await }
    }

    /// Why the message is no longer with this consumer, if that is so.
    pub fn lost_yet(&self) -> Option<Lost> {
        self.tenure.lost_yet().filter(|lost| lost.reason != LostReason::Released)
    }

    /// Tells that the work goes on; see [`Subscribe::stalled_after`](super::Subscribe). Reading
    /// the payload tells it too.
    pub fn progress(&self) {
        self.hold.progress();
    }

    /// The next piece of the payload; `None` at the end.
    ///
    /// # Errors
    /// When it cannot be had; then the message is best given back.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Error<ReadKind>> {
        Ok(self.piece().await?)
    }

    /// The payload piece by piece. It ends after an error.
    pub fn stream(&mut self) -> impl Stream<Item = Result<Bytes, Error<ReadKind>>> + Send + '_ {
        futures_util::stream::unfold(Some(self), |state| async move {
            let message = state?;
            match message.chunk().await {
                Ok(Some(bytes)) => Some((Ok(bytes), Some(message))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// What is left of the payload, as a whole: all of it unless pieces were taken before. It
    /// stays, and can be asked for again.
    ///
    /// # Errors
    /// When it cannot be had, or has more bytes than this client may take into memory.
    pub async fn bytes(&mut self) -> Result<Bytes, Error<ReadKind>> {
        if let Payload::Here(bytes) = &self.payload {
            return Ok(bytes.clone());
        }
        let bytes_max = self.queue.client.settings().document_bytes_max;
        if self.delivered.payload_bytes > bytes_max as u64 {
            return Err(Failure::new(Cause::TooLarge(bytes_max)).into());
        }
        let mut whole = BytesMut::new();
        while let Some(bytes) = self.piece().await? {
            if whole.len().saturating_add(bytes.len()) > bytes_max {
                return Err(Failure::new(Cause::TooLarge(bytes_max)).into());
            }
            whole.extend_from_slice(&bytes);
        }
        let bytes = whole.freeze();
        self.payload = Payload::Here(bytes.clone());
        Ok(bytes)
    }

    /// The payload as a value.
    ///
    /// # Errors
    /// When it cannot be had, or is of another type.
    pub async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Error<ReadKind>> {
        let bytes = self.bytes().await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::source("the payload is not of the type asked for", error).into()
        })
    }

    /// The work is done: the message is removed.
    pub fn ack(&self) -> Ack {
        Ack::new(&self.hold)
    }

    /// The work is not done: the message goes to the next consumer.
    pub fn nack(&self) -> Nack {
        Nack::new(&self.hold)
    }

    /// Gives the message so much time, counted from now.
    ///
    /// # Errors
    /// When the message is not ours any more, or no server could be asked.
    pub async fn extend(&self, by: Duration) -> Result<Extended, Error<SettleKind>> {
        Ok(self.hold.extend(Some(by), self.hold.patience()).await?)
    }

    /// The state that goes with the message, where it was asked for.
    pub fn state(&self) -> Option<MessageState> {
        let delivered = &self.delivered;
        let context = LeaseContext {
            namespace: self.queue.namespace.clone(),
            key: format!("q/{}/state/{}", delivered.queue, delivered.message_id),
            lease_id: delivered.state_lease_id.clone()?,
            txn_id: delivered.state_txn_id.clone(),
            token: delivered.state_fencing_token,
        };
        let (client, tenure) = (self.queue.client.clone(), Arc::clone(&self.tenure));
        Some(MessageState { authority: Arc::new(Authority::guarded(client, context, tenure)) })
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Failed> {
        let bytes = self.payload.chunk(&self.queue, &self.delivered.message_id).await?;
        self.hold.progress();
        Ok(bytes)
    }
}

/// Waits until a message is lost; one that was answered for is not.
pub(super) async fn lost(tenure: &Tenure) -> Lost {
    let lost = tenure.lost().await;
    if lost.reason == LostReason::Released {
        std::future::pending::<()>().await;
    }
    lost
}

impl Drop for Message {
    fn drop(&mut self) {
        match self.if_dropped {
            IfDropped::Fail => self.hold.part(GiveBack::default()),
            IfDropped::Defer => self.hold.part(GiveBack::deferred()),
            IfDropped::Leave => {}
        }
    }
}

/// Without its lease id, which is a secret.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("queue", &self.queue())
            .field("id", &self.id())
            .field("attempts", &self.attempts())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

/// The state of a message: a document that goes with it from one consumer to the next. It is held
/// and let go of with the message: what was staged is committed when the message is given back,
/// and forgotten with the message when that is acknowledged.
#[derive(Clone, Debug)]
pub struct MessageState {
    authority: Arc<Authority>,
}

impl MessageState {
    /// What another process needs to act on it. A secret.
    pub fn context(&self) -> &LeaseContext {
        self.authority.context()
    }

    /// Reads the state; `None` when there is none yet.
    pub fn get(&self) -> Get {
        Get::leased(Arc::clone(&self.authority))
    }

    /// Reads the state piece by piece.
    pub fn get_stream(&self) -> GetStream {
        GetStream::leased(Arc::clone(&self.authority))
    }

    /// Stages a new state.
    pub fn update<T: Serialize + ?Sized>(&self, value: &T) -> Update {
        Update::value(Arc::clone(&self.authority), value, Then::Stage)
    }

    /// Stages a new state that is read while it is sent.
    pub fn update_stream(&self, source: impl Into<Source>) -> Update {
        Update::source(Arc::clone(&self.authority), source.into(), Then::Stage)
    }

    /// Publishes a new state at once, so that the next consumer finds it even if this one dies.
    pub fn checkpoint<T: Serialize + ?Sized>(&self, value: &T) -> Update {
        Update::value(Arc::clone(&self.authority), value, Then::Commit)
    }

    /// Stages changes to the state, made on the server.
    pub fn mutate<I>(&self, expressions: I) -> Mutate
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let expressions = expressions.into_iter().map(|text| text.as_ref().to_owned()).collect();
        Mutate::new(Arc::clone(&self.authority), expressions)
    }

    /// Stages the removal of the state.
    pub fn remove(&self) -> Remove {
        Remove::new(Arc::clone(&self.authority))
    }

    /// Stages new attributes.
    pub fn metadata(&self, metadata: Metadata) -> SetMetadata {
        SetMetadata::new(Arc::clone(&self.authority), metadata)
    }
}
