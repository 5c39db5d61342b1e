//! Delivering messages: to those who ask once and to those who stay. Who waits is served in order
//! of arrival, woken when a message becomes visible. A delivery that does not reach its consumer
//! is taken back at once.

use std::sync::Arc;

use futures_util::future::join_all;
use lockd_core::fence::Fence;
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::lease::{Acquire, AcquireRefused, InTxn, Proof};
use lockd_core::message::{self, Back, Deliver, Delivered, NotDelivered, Place, Receipt};
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::record::{Decided, Etag, KeyRecord, Lease};
use lockd_core::time::{Now, Span, Tick};
use lockd_store::StoreError;
use tokio::sync::Semaphore;

use super::QueueRefused;
use super::board::{Board, Candidate, Presence, Present, Seat};
use super::settle::Held;
use crate::app::lease::{Block, Undelivered};
use crate::app::read::Document;
use crate::app::txn::LOOKS_MAX;
use crate::app::{App, Refused, TxnRefused};
use crate::commit::{CommitError, NotJoined, Together, Verdict};
use crate::tasks::Complete;

/// Messages that are taken for a subscriber at once: they are in memory until it has read them.
const AT_ONCE_MAX: usize = 32;

/// When a message whose payload could not be read is tried again.
const UNREADABLE_AGAIN: Span = Span::secs(1);

/// A wish for messages, as it came in.
#[derive(Clone, Debug)]
pub(crate) struct TakeAsk {
    pub(crate) queue: QueueName,
    pub(crate) owner: Box<str>,
    pub(crate) txn: Option<TxnId>,
    /// `None`: as the sender of each message wished.
    pub(crate) visibility: Option<Span>,
    pub(crate) block: Block,
    /// At most so many.
    pub(crate) count: usize,
    pub(crate) stateful: bool,
}

/// A message with its consumer.
pub(crate) struct Delivery {
    pub(crate) queue: QueueName,
    pub(crate) id: MessageId,
    /// As it is while the consumer has it.
    pub(crate) record: KeyRecord,
    pub(crate) lease: Lease,
    pub(crate) state: Option<StateLease>,
    pub(crate) payload: Document,
    /// Takes the delivery back when dropped before it has left.
    pub(crate) undelivered: Undelivered,
}

/// The state beside a message.
#[derive(Clone, Debug)]
pub(crate) struct StateLease {
    pub(crate) lease: Lease,
    pub(crate) token: Fence,
    pub(crate) etag: Option<Etag>,
}

enum NotTaken {
    Message(NotDelivered),
    State(AcquireRefused),
}

/// What the record of a message became, if it is delivered.
pub(super) type Taken = Option<Box<TakenRecord>>;

pub(super) struct TakenRecord {
    record: KeyRecord,
    lease: Lease,
    state: Option<StateLease>,
}

impl App {
    /// Delivers up to so many messages, waiting for the first if asked to.
    pub(crate) async fn take(self: &Arc<Self>, ask: &TakeAsk) -> Result<Vec<Delivery>, Refused> {
        self.refuse_draining()?;
        let board = self.board(&ask.queue).await?;
        let until = match ask.block {
            Block::No | Block::Forever => None,
            Block::AtMost(span) => Some(self.clock().now().tick.plus(span)),
        };
        loop {
            let mut candidates = board.take(ask.count, self.clock().now());
            if candidates.is_empty() {
                if ask.block == Block::No {
                    return Err(QueueRefused::Empty { waited: None }.into());
                }
                candidates = Box::pin(self.wait_for_message(&board, ask, until)).await?;
            }
            let delivered = self.deliver_all(&board, candidates, ask).await?;
            if !delivered.is_empty() {
                return Ok(delivered);
            }
        }
    }

    /// Stands in line until given something, out of time, or sent away.
    async fn wait_for_message(
        self: &Arc<Self>,
        board: &Arc<Board>,
        ask: &TakeAsk,
        until: Option<Tick>,
    ) -> Result<Vec<Candidate>, Refused> {
        let seat = self.records.boards.sit(board, ask.count, self.clock().now());
        let seat: Seat = seat.map_err(|_| QueueRefused::Busy)?;
        loop {
            let now = self.clock().now();
            if let Some(given) = seat.given(now) {
                return Ok(given);
            }
            if until.is_some_and(|until| until <= now.tick) {
                let waited = match ask.block {
                    Block::AtMost(span) => Some(span),
                    Block::No | Block::Forever => None,
                };
                return Err(QueueRefused::Empty { waited }.into());
            }
            let next = match (seat.next_due(), until) {
                (Some(due), Some(until)) => Some(due.min(until)),
                (due, until) => due.or(until),
            };
            let look_again = async {
                match next {
                    Some(tick) => self.clock().sleep_until(tick).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.drained() => {
                    self.refuse_draining()?;
                }
                () = seat.called() => {}
                () = look_again => {}
            }
        }
    }

    /// Asks the record of each candidate. What could not be delivered for a reason of its own is
    /// left out.
    async fn deliver_all(
        self: &Arc<Self>,
        board: &Arc<Board>,
        candidates: Vec<Candidate>,
        ask: &TakeAsk,
    ) -> Result<Vec<Delivery>, Refused> {
        if candidates.len() > 1 && self.may_deliver_together(ask) {
            return self.deliver_together(board, candidates, ask).await;
        }
        let mut candidates = candidates.into_iter();
        if ask.txn.is_some() || candidates.len() == 1 {
            // Members of one transaction write the same record: one after the other.
            let mut delivered = Vec::new();
            for candidate in candidates.by_ref() {
                match self.deliver(board, candidate, ask).await {
                    Ok(delivery) => delivered.extend(delivery),
                    Err(_) if !delivered.is_empty() => break,
                    Err(refused) => return Err(refused),
                }
            }
            return Ok(delivered);
        }
        let all = candidates.map(|candidate| self.deliver(board, candidate, ask));
        what_there_is(join_all(all).await)
    }

    /// Asks once. Runs to its end even if the caller goes away; then the message is taken back.
    pub(super) fn deliver(
        self: &Arc<Self>,
        board: &Arc<Board>,
        candidate: Candidate,
        ask: &TakeAsk,
    ) -> Complete<Result<Option<Delivery>, Refused>> {
        let (app, board, ask) = (Arc::clone(self), Arc::clone(board), ask.clone());
        self.tasks.complete(async move { app.deliver_now(&board, candidate, &ask).await })
    }

    async fn deliver_now(
        self: &Arc<Self>,
        board: &Arc<Board>,
        candidate: Candidate,
        ask: &TakeAsk,
    ) -> Result<Option<Delivery>, Refused> {
        let key = board.name.message_key(candidate.id);
        let taken = match self.take_record(&board.name, candidate.id, &key, ask).await {
            Ok(taken) => taken,
            Err(CommitError::Refused(NotJoined::Refused(not_taken))) => {
                let now = self.clock().now();
                match not_taken {
                    NotTaken::Message(NotDelivered::Gone) => {
                        candidate.found(Place::Gone, now);
                        // Its entry in the index should be gone too.
                        self.records.adopt(&key).await?;
                    }
                    NotTaken::Message(NotDelivered::Held) => {
                        candidate.found(Place::InFlight, now);
                        if self.records.is_shared() {
                            // Another server has delivered it, and may not be there when its
                            // time is over.
                            self.records.adopt(&key).await?;
                        }
                    }
                    NotTaken::Message(NotDelivered::NotYet(visible)) => {
                        candidate.found(Place::Queued(visible), now);
                    }
                    NotTaken::State(_) => return Err(Refused::Contended),
                }
                return Ok(None);
            }
            Err(CommitError::Refused(NotJoined::Txn(refused))) => return Err(refused.into()),
            Err(CommitError::Refused(NotJoined::Over)) => {
                let why = "the lease that began this transaction is over";
                return Err(TxnRefused::Conflict(why).into());
            }
            Err(CommitError::Store(StoreError::Damaged(_))) => {
                // Told in the log. It must not stand in the way of the others.
                candidate.found(Place::Gone, self.clock().now());
                return Ok(None);
            }
            Err(CommitError::Store(error)) => return Err(error.into()),
            Err(CommitError::Contended) => return Err(Refused::Contended),
        };
        self.hand_over(board, candidate, taken).await
    }

    /// What was taken goes to its consumer.
    pub(super) async fn hand_over(
        self: &Arc<Self>,
        board: &Arc<Board>,
        candidate: Candidate,
        taken: Taken,
    ) -> Result<Option<Delivery>, Refused> {
        let id = candidate.decided();
        let Some(taken) = taken else {
            self.metrics().messages.expired.inc();
            return Ok(None);
        };
        let TakenRecord { record, lease, state } = *taken;
        let proof =
            Proof { lease: lease.id.clone(), fence: Some(record.fence), txn: Some(lease.txn) };
        let queue = board.name.clone();
        let undelivered = Undelivered::message(self, queue.clone(), id, proof);
        self.metrics().messages.delivered.inc();
        let payload = match self.open(record.version, record.state.as_ref()).await {
            Ok(Some(payload)) => payload,
            Ok(None) | Err(StoreError::NoBlob | StoreError::Damaged(_)) => {
                undelivered.unreadable();
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Delivery { queue, id, record, lease, state, payload, undelivered }))
    }

    /// One delivery, as core wants it.
    pub(super) fn delivery(&self, ask: &TakeAsk) -> Deliver {
        Deliver {
            new_id: self.ids.lease_id(),
            owner: ask.owner.clone(),
            txn: ask.txn.unwrap_or_else(|| self.new_txn()),
            recorded: ask.txn.is_some(),
            visibility: ask.visibility,
            visibility_max: self.limits.max_ttl,
            stateful: ask.stateful,
        }
    }

    async fn take_record(
        self: &Arc<Self>,
        queue: &QueueName,
        id: MessageId,
        key: &KeyName,
        ask: &TakeAsk,
    ) -> Result<Taken, CommitError<NotJoined<NotTaken>>> {
        let command = self.delivery(ask);
        if !ask.stateful && ask.txn.is_none() {
            let outcome = self.records.commit(key, &[], |record, _, now| {
                let decided = message::deliver(record, &command, now);
                let decided =
                    decided.map_err(|refused| NotJoined::Refused(NotTaken::Message(refused)))?;
                let next = decided.record.clone();
                Ok(decided.map(|delivered| taken(delivered, next, None)))
            });
            return outcome.await;
        }
        let mut keys = vec![key.clone()];
        if ask.stateful {
            keys.push(queue.state_key(id));
        }
        let state_command = Acquire {
            new_id: self.ids.lease_id(),
            owner: ask.owner.clone(),
            txn: ask.txn.unwrap_or_else(|| self.new_txn()),
            recorded: ask.txn.is_some(),
            ttl: Span::ZERO,
            if_not_exists: false,
            stamp: None,
        };
        let ttl = ask.visibility.unwrap_or(self.limits.default_ttl).min(self.limits.max_ttl);
        for _ in 0..LOOKS_MAX {
            let join = ask.txn.map(|txn| (txn, ttl));
            let together = Together { keys: &keys, join, ..Together::default() };
            let outcome = self.records.commit_together(together, |records, _, now| {
                take_both(records, &command, &state_command, now)
            });
            match Box::pin(outcome).await {
                Err(CommitError::Refused(NotJoined::Refused(NotTaken::State(
                    AcquireRefused::InTxn(InTxn(txn)),
                )))) => {
                    let state_key = queue.state_key(id);
                    if Box::pin(self.resolve(&state_key, txn)).await.is_err() {
                        return Err(CommitError::Contended);
                    }
                }
                outcome => return outcome,
            }
        }
        Err(CommitError::Contended)
    }

    /// Takes a delivery back that has not reached its consumer.
    pub(crate) async fn undeliver(
        self: &Arc<Self>,
        queue: &QueueName,
        id: MessageId,
        proof: &Proof,
    ) {
        let (key, state_key) = (queue.message_key(id), queue.state_key(id));
        if let Some(txn) = proof.txn
            && matches!(self.records.withdraw(&key, proof, txn).await, Ok(true))
        {
            let record = self.records.load(&state_key).await.unwrap_or_default();
            if let Some(lease) = record.lease.filter(|lease| lease.txn == txn) {
                let proof = Proof { lease: lease.id, fence: None, txn: None };
                let _in_time = self.records.withdraw(&state_key, &proof, txn).await.is_ok();
            }
            return;
        }
        let keys = [key, state_key];
        let together = Together { keys: &keys, ..Together::default() };
        let outcome = self.records.commit_together(together, |records, _, now| {
            let [record, state] = records else { return Err(()) };
            let back = message::undeliver(record, proof, now).ok_or(())?;
            Ok(((), vec![Some(back), message::return_state(state, now)]))
        });
        if let Err(CommitError::Store(error)) = outcome.await {
            tracing::warn!(%queue, message = %id, %error, "an undelivered message is hidden until its time is over");
        }
    }

    /// Ends a delivery whose payload cannot be read: that is a failure like any other, so that the
    /// message does not stand at the head of its queue for ever.
    pub(crate) async fn fail_unreadable(
        self: &Arc<Self>,
        queue: QueueName,
        id: MessageId,
        proof: Proof,
    ) {
        tracing::error!(%queue, message = %id, "the payload of a message cannot be read");
        let receipt = Receipt { proof, etag: None };
        let held = Held { queue, id, receipt, state: None };
        let error = Some(r#"{"reason":"payload_unreadable"}"#.into());
        let back = Back { failed: true, delay: UNREADABLE_AGAIN, error };
        if let Err(error) = self.nack(held, back).await {
            tracing::warn!(%error, "it is hidden until its time is over");
        }
    }

    /// Stays with a queue, to be given one message after the other.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        ask: TakeAsk,
        prefetch: usize,
    ) -> Result<Subscription, Refused> {
        let board = self.board(&ask.queue).await?;
        let present = board.enter(Presence::Subscriber);
        let credit = Arc::new(Semaphore::new(prefetch));
        Ok(Subscription { app: Arc::clone(self), ask, board, credit, _present: present })
    }
}

/// What was delivered; a failure only if nothing was.
pub(super) fn what_there_is(
    outcomes: Vec<Result<Option<Delivery>, Refused>>,
) -> Result<Vec<Delivery>, Refused> {
    let (mut delivered, mut failed) = (Vec::with_capacity(outcomes.len()), None);
    for one in outcomes {
        match one {
            Ok(delivery) => delivered.extend(delivery),
            Err(refused) => failed = Some(refused),
        }
    }
    match failed {
        Some(refused) if delivered.is_empty() => Err(refused),
        Some(_) | None => Ok(delivered),
    }
}

pub(super) fn taken(
    delivered: Delivered,
    next: Option<KeyRecord>,
    state: Option<StateLease>,
) -> Taken {
    match (delivered, next) {
        (Delivered::Lease(lease), Some(record)) => {
            Some(Box::new(TakenRecord { record, lease, state }))
        }
        (Delivered::Lease(_) | Delivered::Expired, _) => None,
    }
}

/// A message, and the state beside it if that was asked for.
fn take_both(
    records: &[KeyRecord],
    ask: &Deliver,
    state_ask: &Acquire,
    now: Now,
) -> Verdict<Taken, NotTaken> {
    let absent = KeyRecord::default();
    let (record, state) = match records {
        [record, state] => (record, Some(state)),
        [record] => (record, None),
        _ => (&absent, None),
    };
    let Decided { record: next, answer, effects } =
        message::deliver(record, ask, now).map_err(NotTaken::Message)?;
    let mut decided = vec![Some(Decided { record: next.clone(), answer: (), effects })];
    let (Some(state), Delivered::Lease(lease)) = (state, &answer) else {
        decided.resize_with(records.len(), || None);
        return Ok((taken(answer, next, None), decided));
    };
    // It ends when the delivery does.
    let state_ask = Acquire { ttl: lease.ttl, ..state_ask.clone() };
    let lent = message::lend_state(state, &state_ask, now).map_err(NotTaken::State)?;
    let token = lent.record.as_ref().map_or(state.fence, |next| next.fence);
    let etag = state.state.as_ref().map(|state| state.etag);
    let lease = StateLease { lease: lent.answer.clone(), token, etag };
    decided.push(Some(lent.map(|_| ())));
    Ok((taken(answer, next, Some(lease)), decided))
}

/// A consumer that stays. At most so many messages are with it at a time.
pub(crate) struct Subscription {
    app: Arc<App>,
    ask: TakeAsk,
    board: Arc<Board>,
    /// One permit for each message that it may have.
    credit: Arc<Semaphore>,
    _present: Present,
}

impl Subscription {
    /// The next messages, at least one.
    pub(crate) async fn next(&mut self, block: Block) -> Result<Vec<Delivery>, Refused> {
        let first = tokio::select! {
            biased;
            () = self.app.drained() => None,
            permit = self.credit.acquire() => permit.ok(),
        };
        let Some(mut permits) = first else {
            self.app.refuse_draining()?;
            return Err(Refused::Contended);
        };
        let more = self.credit.available_permits().min(AT_ONCE_MAX - 1);
        if let Some(more) =
            u32::try_from(more).ok().and_then(|more| self.credit.try_acquire_many(more).ok())
        {
            permits.merge(more);
        }
        self.ask.block = block;
        self.ask.count = permits.num_permits();
        let delivered = self.app.take(&self.ask).await?;
        for delivery in &delivered {
            if let Some(permit) = permits.split(1) {
                permit.forget();
                self.board.lend(delivery.id, &self.credit);
            }
        }
        Ok(delivered)
    }
}
