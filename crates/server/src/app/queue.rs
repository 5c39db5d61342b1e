//! The queue: messages that are delivered at least once, to one consumer at a time, in the order
//! in which they become visible. A message is a record like that of a key, and a delivery is a
//! lease on it; what is special about queues is who gets which message, and when.

pub(crate) mod board;
pub(crate) mod consume;
pub(crate) mod enqueue;
pub(crate) mod look;
pub(crate) mod settle;
mod several;
pub(crate) mod tidy;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use lockd_core::key::KeyName;
use lockd_core::message::{self, MessageRefused, Place};
use lockd_core::queue::{MessageId, QueueName};
use lockd_store::{Name, StoreError};

use super::{App, Refused};
use crate::commit::{read_stand, stand_prefix};
use board::Board;

/// Entries of the index that are read at once.
const LOAD_PAGE: usize = 4_096;
/// Records that are read at a time where each costs a round trip.
const READ_AHEAD: usize = 32;

/// What stands against a wish about a message.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum QueueRefused {
    #[error("no message can be delivered now")]
    Empty {
        /// How long the caller was willing to wait; nothing when it was not.
        waited: Option<lockd_core::time::Span>,
    },
    #[error("too many consumers wait for messages")]
    Busy,
    #[error("a payload has at most {max} bytes here")]
    TooLarge { max: u64 },
    #[error("there is no such message; it was acknowledged, or removed")]
    NotFound,
    #[error("the message is not delivered under this lease any more")]
    LeaseMismatch,
    #[error("the message changed since; its meta_etag is {0}")]
    Etag(Box<str>),
}

impl From<QueueRefused> for Refused {
    fn from(refused: QueueRefused) -> Self {
        Self::Queue(refused)
    }
}

impl From<MessageRefused> for Refused {
    fn from(refused: MessageRefused) -> Self {
        match refused {
            MessageRefused::NotFound => QueueRefused::NotFound.into(),
            MessageRefused::LeaseMismatch => QueueRefused::LeaseMismatch.into(),
            MessageRefused::Etag { current } => QueueRefused::Etag(current).into(),
            MessageRefused::Fence(fence) => Self::Fence(fence),
            MessageRefused::InTxn(_) => Self::Contended,
        }
    }
}

impl App {
    /// The board of a queue, with everything that the store knows about it.
    async fn board(self: &Arc<Self>, queue: &QueueName) -> Result<Arc<Board>, StoreError> {
        let board = self.records.boards.get(queue, self.clock().now());
        board.loaded.get_or_try_init(|| self.load_board(&board)).await?;
        Ok(board)
    }

    /// Reads the queue if it is not in memory, and keeps it there for a while.
    pub(crate) async fn keep_queue(self: &Arc<Self>, queue: &QueueName) -> Result<(), StoreError> {
        self.board(queue).await.map(drop)
    }

    async fn load_board(self: &Arc<Self>, board: &Board) -> Result<(), StoreError> {
        let known = if self.records.is_atomic() {
            self.read_stands(&board.name).await?
        } else {
            self.read_messages(&board.name).await?
        };
        board.load(known, self.clock().now());
        Ok(())
    }

    /// Where the messages of a queue stand by the index, which is what their records say: both are
    /// written at one moment.
    async fn read_stands(
        self: &Arc<Self>,
        queue: &QueueName,
    ) -> Result<Vec<(MessageId, Place)>, StoreError> {
        let prefix = stand_prefix(queue);
        let mut known: Vec<(MessageId, Place)> = Vec::new();
        let mut after: Option<Name> = None;
        loop {
            let page = self.records.store().scan(&prefix, after.as_deref(), LOAD_PAGE).await?;
            let now = self.clock().now();
            for (name, stored) in &page {
                let id = name.strip_prefix(&prefix).and_then(|id| MessageId::parse(id).ok());
                let place = read_stand(&stored.bytes, now);
                let (Some(id), Some(place)) = (id, place) else {
                    tracing::error!(%name, "an entry of a queue cannot be read");
                    continue;
                };
                let key = queue.message_key(id);
                let place = match place {
                    // Its transaction may be decided, and only this message not know it yet. And
                    // a clock that was set may have made the index wrong about the future.
                    Place::Queued(visible) if !visible.is_past(now) => self.looked_up(&key).await?,
                    Place::Draft => self.looked_up(&key).await?,
                    Place::Queued(_) | Place::Dead(_) | Place::InFlight | Place::Gone
                        if self.records.live.get(&key).is_some() =>
                    {
                        Place::InFlight
                    }
                    Place::Queued(_) | Place::Dead(_) | Place::InFlight | Place::Gone => place,
                };
                known.push((id, place));
            }
            match page.last() {
                Some((last, _)) if page.len() == LOAD_PAGE => after = Some(Arc::clone(last)),
                Some(_) | None => return Ok(known),
            }
        }
    }

    /// Where the messages of a queue stand by their own records. Where one write follows the other,
    /// the index only says which there are: an entry that arrives late, or whose record was changed
    /// by somebody else first, says something that never was or no longer is.
    async fn read_messages(
        self: &Arc<Self>,
        queue: &QueueName,
    ) -> Result<Vec<(MessageId, Place)>, StoreError> {
        let prefix = stand_prefix(queue);
        let mut known: Vec<(MessageId, Place)> = Vec::new();
        let mut after: Option<Name> = None;
        loop {
            let page =
                self.records.store().scan_names(&prefix, after.as_deref(), LOAD_PAGE).await?;
            let places = page.iter().filter_map(|name| {
                let id = name.strip_prefix(&prefix).and_then(|id| MessageId::parse(id).ok());
                if id.is_none() {
                    tracing::error!(%name, "an entry of a queue cannot be read");
                }
                id.map(|id| self.placed(id, queue.message_key(id)))
            });
            let places: Vec<_> = places.collect();
            let places: Vec<(MessageId, Place)> =
                stream::iter(places).buffered(READ_AHEAD).try_collect().await?;
            known.extend(places);
            match page.last() {
                Some(last) if page.len() == LOAD_PAGE => after = Some(Arc::clone(last)),
                Some(_) | None => return Ok(known),
            }
        }
    }

    fn placed(
        self: &Arc<Self>,
        id: MessageId,
        key: KeyName,
    ) -> BoxFuture<'static, Result<(MessageId, Place), StoreError>> {
        let app = Arc::clone(self);
        Box::pin(async move {
            match app.looked_up(&key).await {
                // Told in the log. It must not stand in the way of the others.
                Err(StoreError::Damaged(_)) => Ok((id, Place::Gone)),
                place => Ok((id, place?)),
            }
        })
    }

    /// Reads again what the store knows about a queue in use.
    pub(crate) async fn reload_board(self: &Arc<Self>, board: &Board) -> Result<(), StoreError> {
        board.doubt();
        self.load_board(board).await
    }

    /// Takes over messages of a queue in use that the store has and nobody has told of.
    pub(crate) async fn refresh_board(
        self: &Arc<Self>,
        board: &Arc<Board>,
    ) -> Result<(), StoreError> {
        let prefix = stand_prefix(&board.name);
        let mut after: Option<Name> = None;
        loop {
            let page = self.records.store().scan_names(&prefix, after.as_deref(), 1_000).await?;
            for name in &page {
                let id = name.strip_prefix(&prefix).and_then(|id| MessageId::parse(id).ok());
                if let Some(id) = id.filter(|id| !board.has(*id)) {
                    let place = self.looked_up(&board.name.message_key(id)).await?;
                    self.records.boards.follow(&board.name, id, place, self.clock().now());
                }
            }
            match page.last() {
                Some(last) if page.len() == 1_000 => after = Some(Arc::clone(last)),
                Some(_) | None => return Ok(()),
            }
        }
    }

    /// Where a message stands by its own record.
    async fn looked_up(self: &Arc<Self>, key: &KeyName) -> Result<Place, StoreError> {
        let record = self.records.load(key).await?;
        let place = message::place(&record).unwrap_or(Place::Gone);
        if place == Place::InFlight {
            // Whoever has it may be gone when its time is over.
            self.records.live.follow(key, &record);
        }
        Ok(place)
    }
}
