//! Delivering several messages to one consumer in one commit.

use std::sync::Arc;

use futures_util::future::join_all;
use lockd_core::key::KeyName;
use lockd_core::message::{self, Deliver};
use lockd_core::record::Decided;

use super::board::{Board, Candidate};
use super::consume::{Delivery, TakeAsk, Taken, taken, what_there_is};
use crate::app::{App, Refused};
use crate::commit::Together;
use crate::tasks::Complete;

impl App {
    /// Where the store writes them at one moment, and nothing else depends on them.
    pub(super) fn may_deliver_together(&self, ask: &TakeAsk) -> bool {
        self.records.is_atomic() && ask.txn.is_none() && !ask.stateful
    }

    /// As many as can be delivered as they are; those that cannot are looked at one by one. Runs
    /// to its end even if the caller goes away; then the messages are taken back.
    pub(super) fn deliver_together(
        self: &Arc<Self>,
        board: &Arc<Board>,
        candidates: Vec<Candidate>,
        ask: &TakeAsk,
    ) -> Complete<Result<Vec<Delivery>, Refused>> {
        let (app, board, ask) = (Arc::clone(self), Arc::clone(board), ask.clone());
        self.tasks.complete(async move {
            let all = app.take_together(&board, &candidates, &ask).await;
            let (mut outcomes, mut left) = (Vec::with_capacity(all.len()), Vec::new());
            for (candidate, taken) in candidates.into_iter().zip(all) {
                match taken {
                    Some(taken) => outcomes.push(app.hand_over(&board, candidate, taken).await),
                    None => left.push(app.deliver(&board, candidate, &ask)),
                }
            }
            outcomes.extend(join_all(left).await);
            what_there_is(outcomes)
        })
    }

    /// For each candidate what was taken, or nothing if it needs a closer look.
    async fn take_together(
        self: &Arc<Self>,
        board: &Arc<Board>,
        candidates: &[Candidate],
        ask: &TakeAsk,
    ) -> Vec<Option<Taken>> {
        let keys: Vec<KeyName> =
            candidates.iter().map(|candidate| board.name.message_key(candidate.id)).collect();
        let commands: Vec<Deliver> = candidates.iter().map(|_| self.delivery(ask)).collect();
        let together = Together { keys: &keys, ..Together::default() };
        let outcome = self.records.commit_together(together, |records, _, now| {
            let mut all = Vec::with_capacity(records.len());
            let mut changed = Vec::with_capacity(records.len());
            for (record, command) in records.iter().zip(&commands) {
                match message::deliver(record, command, now) {
                    Ok(Decided { record, answer, effects }) => {
                        all.push(Some(taken(answer, record.clone(), None)));
                        changed.push(Some(Decided { record, answer: (), effects }));
                    }
                    Err(_) => {
                        all.push(None);
                        changed.push(None);
                    }
                }
            }
            Ok::<_, ()>((all, changed))
        });
        // Whatever is in the way of all may be in the way of one only.
        outcome.await.unwrap_or_else(|_| candidates.iter().map(|_| None).collect())
    }
}
