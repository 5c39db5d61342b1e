//! Decisions upon several records at once, and keys that join a transaction by them.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use lockd_core::fence::{FenceCondition, FenceFacts};
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::message;
use lockd_core::queue::{self, QueueName, Role};
use lockd_core::record::{Decided, KeyRecord};
use lockd_core::time::{Now, Span};
use lockd_core::txn::{self, JoinRefused};
use lockd_store::{Op, StoreError};

use super::batch::{Batch, Changed};
use crate::ids;

use super::still::{Still, Target, Tokens, target};
use super::{ATTEMPTS_MAX, CommitError, Loaded, Records, staged_fences};

/// How often news of another server is looked for, and how long one look is from the next.
const NEWS_LOOKS: usize = 12;
const NEWS_EVERY: Duration = Duration::from_millis(250);

/// Why a key did not join.
#[derive(Clone, Debug)]
pub(crate) enum NotJoined<R> {
    /// Its own record says no.
    Refused(R),
    Txn(JoinRefused),
    /// The lease that the transaction began with is over.
    Over,
}

/// Keys that are decided upon at once.
#[derive(Clone, Default)]
pub(crate) struct Together<'a> {
    pub(crate) keys: &'a [KeyName],
    /// The transaction that they join, and for how long it is to wait for them.
    pub(crate) join: Option<(TxnId, Span)>,
    /// The conditions of the command.
    pub(crate) fences: &'a [FenceCondition],
    /// Written in the same commit; after all else where one write follows the other.
    pub(crate) extra: Vec<Op>,
    /// The keys were made up for this and cannot be there: they are not looked for.
    pub(crate) fresh: bool,
}

/// An answer, and for each key what it will be.
pub(crate) type Verdict<A, R> = Result<(A, Vec<Option<Decided<()>>>), R>;

impl Records {
    /// Decides upon a key that joins a transaction by it: `decide` grants it. The transaction and
    /// the key that began it, if that is still on its own, change in the same commit.
    pub(crate) async fn commit_joined<A, R>(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
        ttl: Span,
        mut decide: impl FnMut(&KeyRecord, Now) -> Result<Decided<A>, R>,
    ) -> Result<A, CommitError<NotJoined<R>>> {
        let together =
            Together { keys: slice::from_ref(key), join: Some((txn, ttl)), ..Together::default() };
        self.commit_together(together, |records, _, now| {
            let record = records.first().cloned().unwrap_or_default();
            let Decided { record, answer, effects } = decide(&record, now)?;
            Ok((
                answer,
                vec![record.map(|next| Decided { record: Some(next), answer: (), effects })],
            ))
        })
        .await
    }

    /// Decides upon several keys at once, in one commit. With `join` they take part in that
    /// transaction from then on, if anything changes. `decide` says for each key, in their order,
    /// what it will be.
    pub(crate) async fn commit_together<A, R>(
        self: &Arc<Self>,
        ask: Together<'_>,
        mut decide: impl FnMut(&[KeyRecord], &FenceFacts, Now) -> Verdict<A, R>,
    ) -> Result<A, CommitError<NotJoined<R>>> {
        if let Some((txn, _)) = ask.join {
            Box::pin(self.heard_of(txn)).await?;
        }
        let (mut still, mut again) = (Still::nothing(self), false);
        for _ in 0..ATTEMPTS_MAX {
            let first = self.first_of(&ask);
            let txn = ask.join.map(|(txn, _)| txn);
            let turns = self.turns(txn, first.iter().chain(ask.keys)).await;
            if self.first_of(&ask) != first {
                continue;
            }
            let mut revisions = Vec::with_capacity(ask.keys.len());
            let mut records = Vec::with_capacity(ask.keys.len());
            for key in ask.keys {
                let Loaded { stored, record } = if ask.fresh {
                    Loaded { stored: None, record: self.decode(key, None)? }
                } else {
                    self.load_settled(key).await?
                };
                revisions.push(stored);
                records.push(record);
            }
            let own = ask.keys.iter().zip(&records);
            let conditions = records.iter().flat_map(staged_fences).chain(ask.fences);
            let targets: Vec<Target> =
                ask.keys.iter().zip(&revisions).map(|(key, at)| target(key, at.as_ref())).collect();
            // In a transaction they are tested again when it is decided.
            let written = ask.join.is_none().then_some(targets.as_slice());
            let (facts, checks) = match self.tokens(&still, own, conditions, written).await? {
                Tokens::Known(facts, checks) => (facts, checks),
                Tokens::NotStill(conditions) => {
                    drop(turns);
                    still = self.hold_still(targets, &conditions).await?;
                    continue;
                }
            };
            let now = self.clock.now();
            let (answer, decided) = decide(&records, &facts, now).map_err(refused)?;
            if decided.iter().all(Option::is_none) {
                return Ok(answer);
            }
            let mut batch = Batch { checks, extra: ask.extra.clone(), ..Batch::default() };
            if let Some((txn, ttl)) = ask.join {
                Box::pin(self.join(&mut batch, txn, ttl, ask.keys, first)).await?;
            }
            let loaded = ask.keys.iter().zip(revisions).zip(records);
            for (((key, stored), before), decided) in loaded.zip(decided) {
                if let Some(decided) = decided {
                    batch.keys.push(Changed { key: key.clone(), stored, before, decided });
                }
            }
            match still.during(self.write(batch)).await {
                Ok(()) => return Ok(answer),
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                    // Somebody has put a mark in its place: that will not change. If it was for
                    // the sake of a token, the conditions say so when they are tested again.
                    let is_last = ask.fences.is_empty() || std::mem::replace(&mut again, true);
                    if ask.fresh && !self.is_atomic() && is_last {
                        break;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommitError::Contended)
    }

    /// A transaction may have begun at another server, with a lease that has no record of its own
    /// yet: before that key can take part, it must be known.
    async fn heard_of<R>(&self, txn: TxnId) -> Result<(), CommitError<NotJoined<R>>> {
        if !self.is_shared() || !ids::is_marked(txn) {
            return Ok(());
        }
        for _ in 0..NEWS_LOOKS {
            if self.live.alone_under(txn).is_some() || self.load_txn(txn).await?.is_some() {
                return Ok(());
            }
            self.journal.hurry();
            tokio::time::sleep(NEWS_EVERY).await;
        }
        Err(CommitError::Refused(NotJoined::Over))
    }

    /// The key that began the transaction, if it is still on its own and none of these.
    fn first_of(&self, ask: &Together<'_>) -> Option<KeyName> {
        let (txn, _) = ask.join?;
        self.live.alone_under(txn).filter(|first| !ask.keys.contains(first))
    }

    /// Adds the keys to their transaction, and the one that began it.
    async fn join<R>(
        self: &Arc<Self>,
        batch: &mut Batch,
        txn: TxnId,
        ttl: Span,
        keys: &[KeyName],
        first: Option<KeyName>,
    ) -> Result<(), CommitError<NotJoined<R>>> {
        let now = self.clock.now();
        let known = self.load_txn_stored(txn).await?;
        let mut joining = keys.to_vec();
        if let Some(first) = first {
            let Loaded { stored, record } = self.load_stored(&first).await?;
            // The state of a message shares the fate of its delivery, and of nothing else.
            let own = queue::role(&first) != Some(Role::State);
            let Some(enrolled) = txn::enrol(&record, txn, now).filter(|_| own) else {
                return Err(CommitError::Refused(NotJoined::Over));
            };
            joining.push(first.clone());
            let decided = Decided { record: Some(enrolled), answer: (), effects: Vec::new() };
            batch.keys.push(Changed { key: first, stored, before: record, decided });
        }
        let record_now = known.as_ref().map(|(record, _)| record);
        let joined = txn::join(record_now, &joining, now.wall.plus(ttl), now)
            .map_err(|refused| CommitError::Refused(NotJoined::Txn(refused)))?;
        batch.txn = joined.map(|record| (txn, known.map(|(_, stored)| stored), record));
        Ok(())
    }

    /// Removes the state of a message that is gone: a transaction that did not know of it has
    /// acknowledged the message, or a store that writes step by step was stopped between the two.
    pub(crate) async fn drop_if_left_alone(
        self: &Arc<Self>,
        key: &KeyName,
    ) -> Result<(), CommitError<NotJoined<()>>> {
        let Some((queue, id, Role::State)) = QueueName::of(key) else { return Ok(()) };
        let keys = [queue.message_key(id), key.clone()];
        let together = Together { keys: &keys, ..Together::default() };
        self.commit_together(together, |records, _, _| {
            let [message, state] = records else { return Ok(((), Vec::new())) };
            let left = !message.stored && state.lease.is_none();
            let dropped = if left { message::drop_state(state) } else { None };
            Ok(((), vec![None, dropped]))
        })
        .await
    }
}

fn refused<R>(refused: R) -> CommitError<NotJoined<R>> {
    CommitError::Refused(NotJoined::Refused(refused))
}
