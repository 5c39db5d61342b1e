//! Looking at a queue without taking anything from it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockd_core::message::{self, Place};
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::record::{Content, KeyRecord};
use lockd_core::time::{Span, UnixMillis};
use lockd_store::StoreError;

use super::QueueRefused;
use super::board::{Board, Bookmark, Counts, Presence, Present, Shelf};
use crate::app::read::{ATTEMPTS_MAX, Document, Missed};
use crate::app::{App, Refused};
use crate::commit::STAND_PREFIX;

/// How often a quiet watch says that it is still there.
const QUIET: Duration = Duration::from_secs(20);

/// A queue at one moment.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) counts: Counts,
    pub(crate) head: Option<Head>,
}

/// The message that is next.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: MessageId,
    /// It could be delivered now.
    pub(crate) due: bool,
    /// Since when it could be.
    pub(crate) waiting_for: Span,
    pub(crate) enqueued_at: UnixMillis,
    pub(crate) visible_at: UnixMillis,
}

/// A message, for those who look on.
pub(crate) struct MessageView {
    pub(crate) id: MessageId,
    pub(crate) record: KeyRecord,
    pub(crate) place: Place,
    /// Of a message that is in the queue: it could be delivered now.
    pub(crate) due: bool,
}

impl App {
    pub(crate) async fn stats(self: &Arc<Self>, queue: &QueueName) -> Result<Stats, Refused> {
        let board = self.board(queue).await?;
        let mut stats = Stats { counts: board.counts(self.clock().now()), head: None };
        if let Some((tick, id)) = board.head() {
            let record = self.records.load(&queue.message_key(id)).await?;
            let now = self.clock().now();
            stats.head = record.message.map(|message| Head {
                id,
                due: tick <= now.tick,
                waiting_for: tick.until(now.tick),
                enqueued_at: message.enqueued_at,
                visible_at: message.visible.wall,
            });
        }
        Ok(stats)
    }

    /// A page of messages, with where the next one begins.
    pub(crate) async fn shelf(
        self: &Arc<Self>,
        queue: &QueueName,
        shelf: Shelf,
        after: Option<Bookmark>,
        limit: usize,
    ) -> Result<(Vec<MessageView>, Option<Bookmark>), Refused> {
        let board = self.board(queue).await?;
        let page = board.shelf(shelf, after, limit);
        let next = page.last().copied().filter(|_| page.len() == limit);
        let mut views = Vec::with_capacity(page.len());
        for (_, id) in page {
            // What went away meanwhile is not shown.
            let Some(mut view) = self.message(queue, id).await? else { continue };
            if let Some(payload) = &mut view.record.state {
                // A page of payloads would be large, and nobody sees them here.
                payload.content = Content::Inline(Bytes::new());
            }
            views.push(view);
        }
        Ok((views, next))
    }

    async fn message(
        self: &Arc<Self>,
        queue: &QueueName,
        id: MessageId,
    ) -> Result<Option<MessageView>, StoreError> {
        let record = self.records.load(&queue.message_key(id)).await?;
        let now = self.clock().now();
        Ok(match message::place(&record) {
            Some(Place::Draft | Place::Gone) | None => None,
            Some(place) => {
                let due = matches!(place, Place::Queued(visible) if visible.is_past(now));
                Some(MessageView { id, record, place, due })
            }
        })
    }

    /// The payload of a message, whoever has it.
    pub(crate) async fn payload(
        self: &Arc<Self>,
        queue: &QueueName,
        id: MessageId,
    ) -> Result<(MessageView, Document), Refused> {
        let mut missed = Missed::default();
        for _ in 0..ATTEMPTS_MAX {
            let Some(view) = self.message(queue, id).await? else { break };
            let state = view.record.state.as_ref();
            match self.open(view.record.version, state).await {
                Err(StoreError::NoBlob) => missed.again(state)?,
                Ok(Some(document)) => return Ok((view, document)),
                Ok(None) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Err(QueueRefused::NotFound.into())
    }

    /// The queues of a namespace that have messages, in the order of their names.
    pub(crate) async fn queues(
        &self,
        namespace: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<String>, StoreError> {
        let prefix = format!("{STAND_PREFIX}{namespace}/");
        // Behind every message of a queue, whose ids are made of digits, letters and hyphens.
        let behind = |queue: &str| format!("{prefix}{queue}!~");
        let mut position = after.map(&behind);
        let mut queues: Vec<String> = Vec::new();
        while queues.len() < limit {
            let page = self.records.store().scan(&prefix, position.as_deref(), 1).await?;
            let Some((name, _)) = page.first() else { break };
            let rest = name.strip_prefix(&prefix).and_then(|rest| rest.split_once('!'));
            let Some((queue, _)) = rest else { break };
            position = Some(behind(queue));
            queues.push(queue.to_owned());
        }
        Ok(queues)
    }

    /// Follows whether a message could be delivered, and which.
    pub(crate) async fn watch_queue(
        self: &Arc<Self>,
        queue: &QueueName,
    ) -> Result<QueueWatch, Refused> {
        self.refuse_draining()?;
        let board = self.board(queue).await?;
        let present = board.enter(Presence::Watcher);
        Ok(QueueWatch { app: Arc::clone(self), board, told: None, _present: present })
    }
}

pub(crate) struct QueueWatch {
    app: Arc<App>,
    board: Arc<Board>,
    told: Option<Option<MessageId>>,
    _present: Present,
}

/// What a watch says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The message at the head that could be delivered now.
    Head(Option<MessageId>),
    /// Nothing has changed for a while.
    Quiet,
}

impl QueueWatch {
    /// `None`: the server goes away.
    pub(crate) async fn next(&mut self) -> Option<Seen> {
        let quiet = tokio::time::sleep(QUIET);
        tokio::pin!(quiet);
        loop {
            let mut changed = std::pin::pin!(self.board.changed());
            changed.as_mut().enable();
            let now = self.app.clock().now();
            let head = self.board.head();
            let due = head.filter(|(tick, _)| *tick <= now.tick).map(|(_, id)| id);
            if self.told != Some(due) {
                self.told = Some(due);
                return Some(Seen::Head(due));
            }
            let next = head.map(|(tick, _)| tick).filter(|tick| *tick > now.tick);
            let becomes_due = async {
                match next {
                    Some(tick) => self.app.clock().sleep_until(tick).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.app.drained() => return None,
                () = changed => {}
                () = becomes_due => {}
                () = &mut quiet => return Some(Seen::Quiet),
            }
        }
    }
}
