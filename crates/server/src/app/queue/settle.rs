//! What a consumer says about a message it has: done, not done, or not yet. In a transaction it
//! speaks for the whole of it.

use std::sync::Arc;

use lockd_core::fence::{FenceCondition, FenceFacts};
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::lease::{self, InTxn, Proof, ProofRefused};
use lockd_core::message::{self, Back, MessageRefused, Receipt};
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::record::{Decided, KeyRecord, Lease};
use lockd_core::time::{Now, Span};
use lockd_core::txn::{By, DecideRefused, Outcome, Settle, Why};

use super::QueueRefused;
use crate::app::txn::LOOKS_MAX;
use crate::app::{App, Refused};
use crate::commit::{CommitError, NotJoined, NotSettled, Together, Verdict};
use crate::tasks::Complete;

/// Which message, and what its consumer shows.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) queue: QueueName,
    pub(crate) id: MessageId,
    pub(crate) receipt: Receipt,
    /// The lease on the state beside it, if the consumer names it.
    pub(crate) state: Option<Proof>,
}

/// A message that was given back.
#[derive(Clone, Debug)]
pub(crate) struct GivenBack {
    pub(crate) etag: Box<str>,
    pub(crate) dead: bool,
}

/// A message that its consumer has for longer.
#[derive(Clone, Debug)]
pub(crate) struct Extended {
    pub(crate) etag: Box<str>,
    pub(crate) lease: Lease,
    pub(crate) state: Option<Lease>,
}

enum NotSaid {
    Message(MessageRefused),
    State(ProofRefused),
    /// The message has state beside it, which must change with it.
    NeedsState,
}

/// Why nothing was decided about a message.
enum Unsaid {
    /// Its transaction decides.
    InTxn(TxnId),
    Refused(Refused),
}

impl From<Unsaid> for Refused {
    fn from(unsaid: Unsaid) -> Self {
        match unsaid {
            Unsaid::InTxn(_) => Self::Contended,
            Unsaid::Refused(refused) => refused,
        }
    }
}

impl From<MessageRefused> for NotSaid {
    fn from(refused: MessageRefused) -> Self {
        Self::Message(refused)
    }
}

impl App {
    /// The work is done: the message is gone, and its state with it. In a transaction, the
    /// transaction is committed.
    pub(crate) fn ack(
        self: &Arc<Self>,
        held: Held,
        fences: Vec<FenceCondition>,
    ) -> Complete<Result<(), Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let outcome = app.ack_now(&held, &fences).await;
            if outcome.is_ok() {
                app.records.boards.remember_acked(held.receipt.proof.lease.clone());
                app.metrics().messages.acked.inc();
            }
            app.counted(outcome)
        })
    }

    /// The same for several messages of one queue, in one commit. What became of each, in their
    /// order; a fence condition that does not hold refuses them all.
    pub(crate) fn ack_all(
        self: &Arc<Self>,
        all: Vec<Held>,
        fences: Vec<FenceCondition>,
    ) -> Complete<Result<Vec<Result<(), Refused>>, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let outcomes = app.ack_together(&all, &fences).await;
            let mut outcomes = app.counted(outcomes)?;
            for (held, outcome) in all.iter().zip(&mut outcomes) {
                // What does not stand alone is looked at on its own.
                if outcome.is_err() {
                    *outcome = Box::pin(app.ack_now(held, &fences)).await;
                }
                if outcome.is_ok() {
                    app.records.boards.remember_acked(held.receipt.proof.lease.clone());
                    app.metrics().messages.acked.inc();
                }
            }
            Ok(outcomes)
        })
    }

    async fn ack_together(
        self: &Arc<Self>,
        all: &[Held],
        fences: &[FenceCondition],
    ) -> Result<Vec<Result<(), Refused>>, Refused> {
        let keys: Vec<KeyName> = all.iter().map(|held| held.queue.message_key(held.id)).collect();
        let together = Together { keys: &keys, fences, ..Together::default() };
        let outcome = self.records.commit_together(together, |records, facts, now| {
            facts.check(fences).map_err(MessageRefused::from)?;
            let acked = records.iter().zip(all).map(|(record, held)| {
                let alone = record.message.as_ref().is_none_or(|message| !message.stateful);
                let acked = message::ack(record, &held.receipt.proof, &[], facts, now);
                acked.ok().filter(|_| alone)
            });
            let acked: Vec<_> = acked.collect();
            let outcomes: Vec<_> = acked
                .iter()
                .map(|acked| acked.as_ref().map(|_| ()).ok_or(QueueRefused::LeaseMismatch.into()))
                .collect();
            Ok::<_, MessageRefused>((outcomes, acked))
        });
        outcome.await.map_err(|error| match error {
            CommitError::Refused(NotJoined::Refused(refused)) => refused.into(),
            CommitError::Store(error) => error.into(),
            CommitError::Contended | CommitError::Refused(_) => Refused::Contended,
        })
    }

    async fn ack_now(
        self: &Arc<Self>,
        held: &Held,
        fences: &[FenceCondition],
    ) -> Result<(), Refused> {
        let decide = |records: &[KeyRecord], facts: &FenceFacts, now: Now| {
            let (record, state) = both(records, held, now)?;
            let gone = message::ack(record, &held.receipt.proof, fences, facts, now)?;
            Ok(((), vec![Some(gone), state.and_then(message::drop_state)]))
        };
        match self.say(held, fences, decide).await {
            Err(Unsaid::Refused(Refused::Queue(QueueRefused::NotFound)))
                if self.records.boards.was_acked(&held.receipt.proof.lease) =>
            {
                Ok(())
            }
            Err(Unsaid::InTxn(txn)) => {
                Box::pin(self.settle_consumed(held, txn, None, fences.to_vec())).await
            }
            outcome => outcome.map_err(Refused::from),
        }
    }

    /// The work was not done: somebody else gets the message, or nobody if it has failed too
    /// often. What the consumer kept beside it stays. In a transaction, the transaction is rolled
    /// back.
    pub(crate) fn nack(
        self: &Arc<Self>,
        held: Held,
        back: Back,
    ) -> Complete<Result<GivenBack, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let outcome = app.nack_now(&held, &back).await;
            if outcome.is_ok() {
                app.metrics().messages.nacked.inc();
            }
            outcome
        })
    }

    async fn nack_now(self: &Arc<Self>, held: &Held, back: &Back) -> Result<GivenBack, Refused> {
        let decide = |records: &[KeyRecord], facts: &FenceFacts, now: Now| {
            let (record, state) = both(records, held, now)?;
            let decided = message::nack(record, &held.receipt, back, now)?;
            let given = decided.record.as_ref().map(given_back);
            let kept = match state {
                Some(state) => {
                    let (_, delivery) = message::check(record, &held.receipt.proof, now)?;
                    let kept = message::keep_state(delivery, state, facts, now);
                    kept.map_err(MessageRefused::from)?
                }
                None => None,
            };
            Ok((given, vec![Some(decided), kept]))
        };
        match self.say(held, &[], decide).await {
            Ok(given) => given.ok_or_else(|| QueueRefused::NotFound.into()),
            Err(Unsaid::InTxn(txn)) => {
                Box::pin(self.settle_consumed(held, txn, Some(back.clone()), Vec::new())).await?;
                let record = self.records.load(&held.queue.message_key(held.id)).await?;
                Ok(given_back(&record))
            }
            Err(Unsaid::Refused(refused)) => Err(refused),
        }
    }

    /// More time for the work, counted from now; for the state beside it too.
    pub(crate) fn extend(
        self: &Arc<Self>,
        held: Held,
        by: Option<Span>,
    ) -> Complete<Result<Extended, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let by = by.map(|by| by.min(app.limits.max_ttl));
            let decide = |records: &[KeyRecord], _: &FenceFacts, now: Now| {
                let (record, state) = both(records, &held, now)?;
                let decided = message::extend(record, &held.receipt, by, now)?;
                let etag = decided.record.as_ref().map(message::etag).unwrap_or_default();
                let lease = decided.answer.clone();
                let mut extended = Extended { etag, lease, state: None };
                let mut changes = vec![Some(decided.map(|_| ()))];
                if let Some(renewed) =
                    state.and_then(|state| renewed(state, extended.lease.ttl, now))
                {
                    extended.state = Some(renewed.answer.clone());
                    changes.push(Some(renewed.map(|_| ())));
                }
                changes.resize_with(records.len(), || None);
                Ok((extended, changes))
            };
            Ok(app.say(&held, &[], decide).await?)
        })
    }

    /// Decides upon a message, with the state beside it if it has one.
    async fn say<A>(
        self: &Arc<Self>,
        held: &Held,
        fences: &[FenceCondition],
        mut decide: impl FnMut(&[KeyRecord], &FenceFacts, Now) -> Verdict<A, NotSaid>,
    ) -> Result<A, Unsaid> {
        let both = [held.queue.message_key(held.id), held.queue.state_key(held.id)];
        let mut keys = both.get(..1).unwrap_or_default();
        let refused = loop {
            let together = Together { keys, fences, ..Together::default() };
            match self.records.commit_together(together, &mut decide).await {
                Ok(answer) => return Ok(answer),
                Err(CommitError::Refused(NotJoined::Refused(NotSaid::NeedsState)))
                    if keys.len() == 1 =>
                {
                    keys = &both;
                }
                Err(error) => break error,
            }
        };
        Err(Unsaid::Refused(match refused {
            CommitError::Refused(NotJoined::Refused(NotSaid::Message(refused))) => {
                if let MessageRefused::InTxn(InTxn(txn)) = refused {
                    return Err(Unsaid::InTxn(txn));
                }
                refused.into()
            }
            CommitError::Refused(NotJoined::Refused(NotSaid::State(refused))) => refused.into(),
            CommitError::Store(error) => error.into(),
            CommitError::Contended | CommitError::Refused(_) => Refused::Contended,
        }))
    }

    /// Ends the transaction in which a message was delivered, by the word of its consumer.
    async fn settle_consumed(
        self: &Arc<Self>,
        held: &Held,
        txn: TxnId,
        back: Option<Back>,
        fences: Vec<FenceCondition>,
    ) -> Result<(), Refused> {
        let key = held.queue.message_key(held.id);
        let outcome = match back {
            Some(_) => Outcome::Rollback(Why::Asked),
            None => Outcome::Commit,
        };
        let by = By::Consumer { key: key.clone(), proof: held.receipt.proof.clone(), back };
        let ask = Settle { txn, outcome, by, fences, term: 0 };
        for _ in 0..LOOKS_MAX {
            match self.records.settle(&ask).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Refused(
                    NotSettled::NotFound
                    | NotSettled::Refused(DecideRefused::Proof(_) | DecideRefused::Conflict(_)),
                )) => {
                    // Decided otherwise, or out of time: the message is not this consumer's.
                    self.resolve(&key, txn).await?;
                    return Err(QueueRefused::LeaseMismatch.into());
                }
                Err(CommitError::Contended) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Refused::Contended)
    }
}

/// The message and the state beside it, when both were asked for.
fn both<'a>(
    records: &'a [KeyRecord],
    held: &Held,
    now: Now,
) -> Result<(&'a KeyRecord, Option<&'a KeyRecord>), NotSaid> {
    let (record, state) = match records {
        [record, state] => (record, Some(state)),
        [record] => (record, None),
        _ => return Err(MessageRefused::NotFound.into()),
    };
    let (message, _) = message::check(record, &held.receipt.proof, now)?;
    if state.is_none() && message.stateful {
        return Err(NotSaid::NeedsState);
    }
    // A consumer may have let go of the state before.
    if let (Some(state), Some(proof)) = (state.filter(|state| state.lease.is_some()), &held.state) {
        lease::check(state, proof, now).map_err(NotSaid::State)?;
    }
    Ok((record, state))
}

/// The consumer of the message is the holder of its state.
fn renewed(state: &KeyRecord, ttl: Span, now: Now) -> Option<Decided<Lease>> {
    let id = state.lease.as_ref()?.id.clone();
    let proof = Proof { lease: id, fence: None, txn: None };
    lease::renew(state, &proof, ttl, now).ok()
}

fn given_back(record: &KeyRecord) -> GivenBack {
    let dead = record.message.as_ref().is_some_and(|message| message.dead.is_some());
    GivenBack { etag: message::etag(record), dead }
}
