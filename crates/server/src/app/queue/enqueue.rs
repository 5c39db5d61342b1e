//! Messages on their way in. A large payload streams into a blob before any record names it; then
//! one commit puts the message into its queue, or into the transaction that enqueues it.

use std::collections::HashSet;
use std::sync::Arc;

use lockd_core::answer::{Stamp, StampReused};
use lockd_core::fence::{Fence, FenceCondition};
use lockd_core::ids::TxnId;
use lockd_core::limits::INLINE_BYTES_MAX;
use lockd_core::message::{self, Enqueue, EnqueueRefused, Enqueued};
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::record::{Decided, Etag, KeyRecord};
use lockd_core::time::{Span, UnixMillis};
use lockd_store::{Expect, Name, Op, Revision, StoreError, Stored, Write, codec};
use parking_lot::Mutex;

use super::QueueRefused;
use crate::app::document::{Bound, Expected, Incoming, Pieces, Upload};
use crate::app::{App, Refused, TxnRefused};
use crate::commit::{CommitError, Forbidden, NotJoined, Together};

/// An answer is remembered under this prefix, a stretch of time, the queue and the stamp.
pub(crate) const ANSWER_PREFIX: &str = "e/";
/// Answers are kept for at least this long, and for at most twice as long.
const ANSWERS_KEPT: Span = Span::secs(600);
/// Stands before an answer whose message may not be there.
const CLAIM: &[u8] = b"claim";
const CLAIMS_MAX: usize = 8;

/// A message, as it came in.
#[derive(Clone, Debug)]
pub(crate) struct EnqueueAsk {
    pub(crate) queue: QueueName,
    pub(crate) content_type: Box<str>,
    pub(crate) correlation: Box<str>,
    pub(crate) attributes: Option<Box<str>>,
    pub(crate) delay: Span,
    pub(crate) visibility: Span,
    pub(crate) ttl: Option<Span>,
    pub(crate) max_attempts: u32,
    pub(crate) txn: Option<TxnId>,
    pub(crate) fences: Vec<FenceCondition>,
    /// Without the payload.
    pub(crate) stamp: Option<Stamp>,
}

/// The messages whose payloads are coming in now. Their blobs belong to nobody yet.
#[derive(Debug, Default)]
pub(crate) struct Arriving(Mutex<HashSet<MessageId>>);

impl Arriving {
    pub(super) fn has(&self, id: MessageId) -> bool {
        self.0.lock().contains(&id)
    }
}

struct Arrival {
    app: Arc<App>,
    id: MessageId,
}

impl Arrival {
    fn new(app: &Arc<App>, id: MessageId) -> Self {
        app.arriving.0.lock().insert(id);
        Self { app: Arc::clone(app), id }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.app.arriving.0.lock().remove(&self.id);
    }
}

/// Whose enqueue it is.
enum Claim {
    /// Ours, written down there.
    Mine(Name, Revision),
    Answered(Enqueued),
}

/// The revision of a write that may have lost a race.
fn won(written: Result<Vec<Revision>, StoreError>) -> Result<Option<Revision>, Refused> {
    match written {
        Ok(revisions) => Ok(Some(revisions.first().copied().unwrap_or(Revision(0)))),
        Err(StoreError::Conflict) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What a message that came in is answered with.
fn enqueued(
    ask: &EnqueueAsk,
    id: MessageId,
    incoming: &Incoming,
    stamp: Option<Stamp>,
    now: UnixMillis,
) -> Enqueued {
    Enqueued {
        request: stamp.map_or(0, |stamp| stamp.request),
        id,
        visible_at: now.plus(ask.delay),
        visibility: ask.visibility,
        max_attempts: ask.max_attempts,
        bytes: incoming.state.bytes,
    }
}

enum NotEnqueued {
    Refused(Refused),
    /// The same request was answered before, or is being answered.
    Answered,
}

impl App {
    /// Takes in a message. Once it is answered it is in the queue, whatever happens.
    pub(crate) async fn enqueue(
        self: &Arc<Self>,
        ask: EnqueueAsk,
        body: &mut Pieces,
    ) -> Result<Enqueued, Refused> {
        let id = self.ids.message_id(self.clock().now().wall);
        let arrival = Arrival::new(self, id);
        let key = ask.queue.message_key(id);
        let inline_max = INLINE_BYTES_MAX;
        let upload = Upload { app: self, key: &key, token: Fence(0), inline_max };
        let bound = self.limits.payload_max.map(|max| {
            let too_large = |max| QueueRefused::TooLarge { max }.into();
            Bound { max, too_large }
        });
        let incoming = upload.take_raw(body, &Expected::default(), bound, None).await?;
        let app = Arc::clone(self);
        self.tasks
            .complete(async move {
                let _arrival = arrival;
                let outcome = app.put_in_queue(&ask, id, incoming).await;
                app.counted(outcome)
            })
            .await
    }

    async fn put_in_queue(
        self: &Arc<Self>,
        ask: &EnqueueAsk,
        id: MessageId,
        incoming: Incoming,
    ) -> Result<Enqueued, Refused> {
        let Some(stamp) = ask.stamp else {
            return match self.put_message(ask, id, incoming, None).await {
                Ok(enqueued) => Ok(enqueued),
                Err(NotEnqueued::Refused(refused)) => Err(refused),
                Err(NotEnqueued::Answered) => Err(Refused::Contended),
            };
        };
        let request = stamp.request ^ payload_part(&incoming.state.etag);
        let stamp = Stamp { request, ..stamp };
        // Two at once under one stamp: the second finds the answer of the first.
        let _turn = self.records.stamp_turn(stamp.id).await;
        if !self.records.is_atomic() {
            return self.put_claimed(ask, id, incoming, stamp).await;
        }
        if let Some(known) = self.answered(&ask.queue, stamp).await? {
            return Ok(known);
        }
        match self.put_message(ask, id, incoming, Some(stamp)).await {
            Ok(enqueued) => Ok(enqueued),
            Err(NotEnqueued::Refused(refused)) => Err(refused),
            Err(NotEnqueued::Answered) => {
                self.answered(&ask.queue, stamp).await?.ok_or(Refused::Contended)
            }
        }
    }

    /// Where a message and its answer cannot be written at one moment: the answer first, as a
    /// claim. Who finds the claim of another and no message makes sure that there never will be
    /// one, and claims it for itself.
    async fn put_claimed(
        self: &Arc<Self>,
        ask: &EnqueueAsk,
        id: MessageId,
        incoming: Incoming,
        stamp: Stamp,
    ) -> Result<Enqueued, Refused> {
        let now = self.clock().now().wall;
        let answer = enqueued(ask, id, &incoming, Some(stamp), now);
        let (name, revision) = match self.claim(&ask.queue, stamp, &answer).await? {
            Claim::Answered(known) => return Ok(known),
            Claim::Mine(name, revision) => (name, revision),
        };
        let (expect, store) = (Expect::Revision(revision), self.records.store());
        match self.put_message(ask, id, incoming, None).await {
            Ok(_) => {
                let write = Write::Put(codec::encode_enqueued(&answer));
                // If this is not written down, whoever repeats the request finds the message.
                let _noted = store.commit(vec![Op { name, expect, write }]).await.is_ok();
                Ok(answer)
            }
            Err(NotEnqueued::Refused(Refused::Store(StoreError::Unknown(why)))) => {
                Err(Refused::Store(StoreError::Unknown(why)))
            }
            Err(NotEnqueued::Refused(refused)) => {
                let op = Op { name, expect, write: Write::Delete };
                let _found_empty = store.commit(vec![op]).await.is_ok();
                Err(refused)
            }
            Err(NotEnqueued::Answered) => Err(Refused::Contended),
        }
    }

    async fn claim(
        &self,
        queue: &QueueName,
        stamp: Stamp,
        answer: &Enqueued,
    ) -> Result<Claim, Refused> {
        let store = self.records.store();
        let claim = || Write::Put([CLAIM, &codec::encode_enqueued(answer)].concat().into());
        for _ in 0..CLAIMS_MAX {
            let found = self.find_answers(queue, stamp).await?;
            let Some((name, stored, known, is_claim)) = found.into_iter().next() else {
                let name = answer_name(self.clock().now().wall, queue, stamp);
                let op = Op { name: Arc::clone(&name), expect: Expect::Absent, write: claim() };
                let Some(revision) = won(store.commit(vec![op]).await)? else { continue };
                if self.find_answers(queue, stamp).await?.len() == 1 {
                    return Ok(Claim::Mine(name, revision));
                }
                // Another has claimed it at the same time, under the next stretch of time.
                let expect = Expect::Revision(revision);
                won(store.commit(vec![Op { name, expect, write: Write::Delete }]).await)?;
                continue;
            };
            if !is_claim {
                return Ok(Claim::Answered(known));
            }
            let expect = Expect::Revision(stored.revision);
            let message = queue.message_key(known.id);
            if self.records.forbid(&message).await? == Forbidden::Exists {
                let write = Write::Put(codec::encode_enqueued(&known));
                let _noted = store.commit(vec![Op { name, expect, write }]).await.is_ok();
                return Ok(Claim::Answered(known));
            }
            let op = Op { name: Arc::clone(&name), expect, write: claim() };
            if let Some(revision) = won(store.commit(vec![op]).await)? {
                return Ok(Claim::Mine(name, revision));
            }
        }
        Err(Refused::Contended)
    }

    async fn put_message(
        self: &Arc<Self>,
        ask: &EnqueueAsk,
        id: MessageId,
        incoming: Incoming,
        stamp: Option<Stamp>,
    ) -> Result<Enqueued, NotEnqueued> {
        let now = self.clock().now();
        let command = Enqueue {
            payload: incoming.state.clone(),
            content_type: ask.content_type.clone(),
            correlation: ask.correlation.clone(),
            attributes: ask.attributes.clone(),
            delay: ask.delay,
            visibility: ask.visibility,
            ttl: ask.ttl,
            max_attempts: ask.max_attempts,
            txn: ask.txn,
            fences: ask.fences.clone(),
        };
        let enqueued = enqueued(ask, id, &incoming, stamp, now.wall);
        let extra = stamp.map(|stamp| Op {
            name: answer_name(now.wall, &ask.queue, stamp),
            expect: Expect::Absent,
            write: Write::Put(codec::encode_enqueued(&enqueued)),
        });
        let keys = [ask.queue.message_key(id)];
        let together = Together {
            keys: &keys,
            join: ask.txn.map(|txn| (txn, self.limits.default_ttl)),
            fences: &ask.fences,
            extra: extra.into_iter().collect(),
            fresh: true,
        };
        let outcome = self.records.commit_together(together, |records, facts, now| {
            let absent = KeyRecord::default();
            let record = records.first().unwrap_or(&absent);
            let Decided { record, effects, .. } = message::enqueue(record, &command, facts, now)?;
            Ok(((), vec![Some(Decided { record, answer: (), effects })]))
        });
        match outcome.await {
            Ok(()) => {
                incoming.settled();
                self.metrics().messages.enqueued.inc();
                Ok(enqueued)
            }
            Err(error) => {
                // A write of unknown outcome may have named the blob: then the collector decides.
                if matches!(error, CommitError::Store(StoreError::Unknown(_))) {
                    incoming.settled();
                }
                Err(not_enqueued(error, stamp.is_some()))
            }
        }
    }

    /// The answer to the same request, if it was made before.
    async fn answered(&self, queue: &QueueName, stamp: Stamp) -> Result<Option<Enqueued>, Refused> {
        let found = self.find_answers(queue, stamp).await?;
        Ok(found.into_iter().next().map(|(_, _, known, _)| known))
    }

    /// Where the answer is, what it is, and whether it is only claimed.
    async fn find_answers(
        &self,
        queue: &QueueName,
        stamp: Stamp,
    ) -> Result<Vec<(Name, Stored, Enqueued, bool)>, Refused> {
        let now = self.clock().now().wall;
        let before = UnixMillis(now.0.saturating_sub(ANSWERS_KEPT.0));
        let mut found = Vec::new();
        // The clock may have been set back since.
        for at in [now, before, now.plus(ANSWERS_KEPT)] {
            let name = answer_name(at, queue, stamp);
            let Some(stored) = self.records.store().load(&name).await? else { continue };
            let is_claim = stored.bytes.starts_with(CLAIM);
            let answer = stored.bytes.slice(if is_claim { CLAIM.len() } else { 0 }..);
            let known = codec::decode_enqueued(&answer)
                .map_err(|error| StoreError::Damaged(format!("answer {name}: {error}")))?;
            if known.request != stamp.request {
                return Err(StampReused.into());
            }
            found.push((name, stored, known, is_claim));
        }
        Ok(found)
    }

    /// Forgets answers that nobody will ask for again; how many.
    pub(super) async fn forget_answers(&self) -> Result<usize, StoreError> {
        let oldest = stretch(self.clock().now().wall).saturating_sub(1);
        let mut forgotten = 0;
        loop {
            let page = self.records.store().scan_names(ANSWER_PREFIX, None, 1_000).await?;
            let mut ops = Vec::new();
            for name in page {
                let number = name.strip_prefix(ANSWER_PREFIX).and_then(|rest| rest.split_once('/'));
                let number = number.and_then(|(number, _)| number.parse::<u64>().ok());
                if number.is_some_and(|number| number < oldest) {
                    // Nobody uses a name of that time any more.
                    ops.push(Op { name, expect: Expect::Any, write: Write::Delete });
                }
            }
            if ops.is_empty() || self.tasks.is_stopping() {
                return Ok(forgotten);
            }
            forgotten += ops.len();
            self.records.commit_plain(ops).await?;
        }
    }
}

fn not_enqueued(error: CommitError<NotJoined<EnqueueRefused>>, stamped: bool) -> NotEnqueued {
    NotEnqueued::Refused(match error {
        CommitError::Refused(NotJoined::Refused(EnqueueRefused::Fence(fence))) => fence.into(),
        CommitError::Refused(NotJoined::Refused(EnqueueRefused::Taken)) => Refused::Contended,
        CommitError::Refused(NotJoined::Txn(refused)) => refused.into(),
        CommitError::Refused(NotJoined::Over) => {
            TxnRefused::Conflict("the lease that began this transaction is over").into()
        }
        CommitError::Store(error) => error.into(),
        CommitError::Contended if stamped => return NotEnqueued::Answered,
        CommitError::Contended => Refused::Contended,
    })
}

/// The payload is part of what was asked for.
fn payload_part(etag: &Etag) -> u128 {
    let [part @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = etag.0;
    u128::from_le_bytes(part)
}

fn stretch(at: UnixMillis) -> u64 {
    at.0 / ANSWERS_KEPT.0
}

fn answer_name(at: UnixMillis, queue: &QueueName, stamp: Stamp) -> Name {
    format!("{ANSWER_PREFIX}{:012}/{queue}/{:032x}", stretch(at), stamp.id).into()
}
