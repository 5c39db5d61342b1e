//! Many messages at once: by order of an operator, or because their time is over. And what a
//! payload leaves behind that no message came to name.

use std::sync::Arc;

use lockd_core::key::KeyName;
use lockd_core::message::{self, Which};
use lockd_core::queue::{MessageId, QueueName, Role};
use lockd_core::record::{Decided, KeyRecord};
use lockd_core::time::{Now, Span};
use lockd_store::{Expect, Name, Op, StoreError, Write};

use super::board::{Bookmark, Shelf};
use crate::app::{App, Refused};
use crate::commit::{
    CommitError, DAY_MS, EXPIRY_PREFIX, Forbidden, MARK_PREFIX, MINUTE_MS, NotJoined, Together,
    record_name,
};
use crate::tasks::Complete;

/// Messages that are changed in one commit.
const TOGETHER: usize = 256;

/// A payload that is younger than this may still be coming in at another server.
const UPLOADS_TAKE_MS: u64 = 3_600_000;

/// Dead messages that an operator means.
#[derive(Clone, Debug)]
pub(crate) enum Meant {
    These(Vec<MessageId>),
    All,
}

/// What is done to dead messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Redrive,
    Delete,
}

impl App {
    /// Removes what waits in a queue, and the dead if so asked; how many.
    pub(crate) fn purge(
        self: &Arc<Self>,
        queue: QueueName,
        dead: bool,
    ) -> Complete<Result<usize, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let remove = |which| move |record: &KeyRecord, now| message::discard(record, which, now);
            let mut purged =
                app.change_shelf(&queue, Shelf::Queued, &remove(Which::Waiting)).await?;
            if dead {
                purged += app.change_shelf(&queue, Shelf::Dead, &remove(Which::Dead)).await?;
            }
            tracing::warn!(target: "lockd::audit", %queue, purged, dead, "queue purged by an operator");
            Ok(purged)
        })
    }

    /// Gives dead messages all their attempts again, or removes them; how many.
    pub(crate) fn deal_with_dead(
        self: &Arc<Self>,
        queue: QueueName,
        meant: Meant,
        deed: Deed,
    ) -> Complete<Result<usize, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let change = |record: &KeyRecord, now: Now| match deed {
                Deed::Redrive => message::redrive(record, now),
                Deed::Delete => message::discard(record, Which::Dead, now),
            };
            let changed = match meant {
                Meant::All => app.change_shelf(&queue, Shelf::Dead, &change).await?,
                Meant::These(ids) => app.change_messages(&queue, &ids, &change).await?,
            };
            tracing::warn!(target: "lockd::audit", %queue, changed, ?deed, "dead messages dealt with by an operator");
            Ok(changed)
        })
    }

    /// Changes the messages that are on a shelf now.
    async fn change_shelf(
        self: &Arc<Self>,
        queue: &QueueName,
        shelf: Shelf,
        change: &(dyn Fn(&KeyRecord, Now) -> Option<Decided<()>> + Sync),
    ) -> Result<usize, Refused> {
        let board = self.board(queue).await?;
        // Whoever comes later is not meant, however long this takes.
        let last = self.ids.message_id(self.clock().now().wall);
        let mut changed = 0;
        let mut after: Option<Bookmark> = None;
        loop {
            let page = board.shelf(shelf, after, TOGETHER);
            let ids: Vec<MessageId> =
                page.iter().map(|(_, id)| *id).filter(|id| *id < last).collect();
            changed += self.change_messages(queue, &ids, change).await?;
            match page.last() {
                Some(last) if page.len() == TOGETHER => after = Some(*last),
                Some(_) | None => return Ok(changed),
            }
        }
    }

    async fn change_messages(
        self: &Arc<Self>,
        queue: &QueueName,
        ids: &[MessageId],
        change: &(dyn Fn(&KeyRecord, Now) -> Option<Decided<()>> + Sync),
    ) -> Result<usize, Refused> {
        let mut changed = 0;
        for some in ids.chunks(TOGETHER) {
            // With the state beside each, which dies with its message.
            let keys: Vec<KeyName> =
                some.iter().flat_map(|id| [queue.message_key(*id), queue.state_key(*id)]).collect();
            changed += self.change_pairs(&keys, change).await?;
        }
        Ok(changed)
    }

    async fn change_pairs(
        self: &Arc<Self>,
        keys: &[KeyName],
        change: &(dyn Fn(&KeyRecord, Now) -> Option<Decided<()>> + Sync),
    ) -> Result<usize, Refused> {
        let together = Together { keys, ..Together::default() };
        let outcome = self.records.commit_together(together, |records, _, now| {
            let mut decided = Vec::with_capacity(records.len());
            let mut changed = 0;
            for pair in records.chunks_exact(2) {
                let [record, state] = pair else { continue };
                let next = change(record, now);
                let gone = next
                    .as_ref()
                    .and_then(|next| next.record.as_ref())
                    .is_some_and(|next| next.gone);
                changed += usize::from(next.is_some());
                decided.push(next);
                decided.push(if gone { message::drop_state(state) } else { None });
            }
            Ok::<_, ()>((changed, decided))
        });
        outcome.await.map_err(|error| match error {
            CommitError::Store(error) => Refused::Store(error),
            CommitError::Refused(NotJoined::Refused(()) | NotJoined::Txn(_) | NotJoined::Over)
            | CommitError::Contended => Refused::Contended,
        })
    }

    /// One pass over what is due: messages that have lived too long, answers that nobody will ask
    /// for, marks of collectors, queues that nobody uses. How many messages were removed.
    pub(crate) async fn tidy_queues(self: &Arc<Self>) -> Result<usize, Refused> {
        self.records.boards.forget_idle(self.clock().now());
        self.forget_answers().await?;
        self.forget_marks().await?;
        let mut removed = 0;
        let mut after: Option<Name> = None;
        loop {
            let page =
                self.records.store().scan_names(EXPIRY_PREFIX, after.as_deref(), TOGETHER).await?;
            let minute = self.clock().now().wall.0 / MINUTE_MS;
            let mut keys = Vec::new();
            let mut more = page.len() == TOGETHER;
            for name in &page {
                let due = name.strip_prefix(EXPIRY_PREFIX).and_then(|rest| rest.split_once('/'));
                let Some((at, key)) = due else { continue };
                if at.parse::<u64>().is_ok_and(|at| at > minute) {
                    more = false;
                    break;
                }
                if let Some((queue, id, Role::Message)) =
                    KeyName::parse_full(key).ok().as_ref().and_then(QueueName::of)
                {
                    keys.extend([queue.message_key(id), queue.state_key(id)]);
                }
            }
            let expire = |record: &KeyRecord, now| message::discard(record, Which::Expired, now);
            let count = self.change_pairs(&keys, &expire).await?;
            self.metrics().messages.expired.inc_by(count as u64);
            removed += count;
            match page.last() {
                Some(last) if more && !self.tasks.is_stopping() => {
                    after = Some(Arc::clone(last));
                }
                Some(_) | None => return Ok(removed),
            }
        }
    }

    /// Whether a blob is a payload that no message names, nor ever will: then its name is marked,
    /// so that whoever is about to name it cannot.
    pub(crate) async fn is_lost_payload(
        self: &Arc<Self>,
        key: &KeyName,
        blob: &str,
    ) -> Result<bool, StoreError> {
        let Some((_, id, Role::Message)) = QueueName::of(key) else { return Ok(false) };
        // One that another server is taking in is left to it for a while; what decides is the mark.
        let age = self.clock().now().wall.0.saturating_sub(id.made_at().0);
        if self.arriving.has(id) || (self.records.is_shared() && age < UPLOADS_TAKE_MS) {
            return Ok(false);
        }
        let record = self.records.load(key).await?;
        if record.stored {
            return Ok(record.blobs().all(|named| **named != *blob));
        }
        // Unless it came in just then.
        Ok(self.records.forbid(key).await? != Forbidden::Exists)
    }

    /// Removes the marks of collectors after a day: by then nobody is about to name anything.
    async fn forget_marks(&self) -> Result<(), StoreError> {
        let today = self.clock().now().wall.0 / DAY_MS;
        loop {
            let page = self.records.store().scan_names(MARK_PREFIX, None, TOGETHER).await?;
            let mut ops = Vec::new();
            for name in &page {
                let rest = name.strip_prefix(MARK_PREFIX).and_then(|rest| rest.split_once('/'));
                let Some((day, key)) = rest else { continue };
                if day.parse::<u64>().is_ok_and(|day| day + 2 > today) {
                    break;
                }
                let Ok(key) = KeyName::parse_full(key) else { continue };
                if let Some(stored) = self.records.store().load(&record_name(&key)).await?
                    && self.records.decode(&key, Some(&stored))?.message.is_none()
                {
                    let expect = Expect::Revision(stored.revision);
                    ops.push(Op { name: record_name(&key), expect, write: Write::Delete });
                }
                ops.push(Op { name: Arc::clone(name), expect: Expect::Any, write: Write::Delete });
            }
            if ops.is_empty() || self.tasks.is_stopping() {
                return Ok(());
            }
            self.records.commit_plain(ops).await?;
        }
    }
}

/// How often [`App::tidy_queues`] is worth its while: expiries are kept by the minute.
pub(crate) const TIDY_EVERY: Span = Span::secs(30);
