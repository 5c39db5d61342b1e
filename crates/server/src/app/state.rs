//! Update, metadata and remove: writes under a lease. Whether the lease still lives is tested
//! again in the commit itself, because a body may take longer to arrive than its lease lives.

use std::sync::Arc;

use lockd_core::answer::{Stamp, Written};
use lockd_core::fence::{Fence, FenceCondition, FenceFacts};
use lockd_core::key::KeyName;
use lockd_core::lease::{self, InTxn, Proof};
use lockd_core::record::{Change, Decided, Etag, KeyRecord};
use lockd_core::state::{self, Guard, Stage, StageRefused, Then};
use lockd_core::time::Now;
use lockd_store::StoreError;

use super::document::{Expected, Incoming, Pieces, Upload};
use super::{App, Refused};
use crate::commit::CommitError;
use crate::tasks::Complete;

/// What every write under a lease carries.
#[derive(Clone, Debug)]
pub(crate) struct WriteAsk {
    pub(crate) key: KeyName,
    pub(crate) proof: Proof,
    pub(crate) guard: Guard,
    pub(crate) hidden: Option<bool>,
    pub(crate) fences: Vec<FenceCondition>,
    pub(crate) then: Then,
    pub(crate) stamp: Option<Stamp>,
}

impl WriteAsk {
    pub(crate) fn stage(self, change: Change) -> Stage {
        Stage {
            proof: self.proof,
            guard: self.guard,
            change,
            hidden: self.hidden,
            fences: self.fences,
            then: self.then,
            alone: false,
            stamp: self.stamp,
        }
    }
}

impl App {
    /// Stages a new document, or commits it at once. `early` looks at the lease before the body
    /// is read: worth it for bodies that are long or of unknown length.
    pub(crate) async fn update(
        self: &Arc<Self>,
        ask: WriteAsk,
        body: &mut Pieces,
        expected: Expected,
        early: bool,
    ) -> Result<Written, Refused> {
        let look = early || ask.proof.fence.is_none();
        // A repeated request is let in although its lease may be over: it gets the answer it had.
        let again = look && self.was_answered(&ask).await?;
        let token = match ask.proof.fence {
            Some(token) if again || !look => token,
            None if again => Fence(0),
            Some(_) | None => self.check(&ask.key, &ask.proof).await?,
        };
        let upload = Upload::document(self, &ask.key, token);
        let proof = (!again).then_some(&ask.proof);
        let taken = upload.take(body, &expected, proof).await;
        if matches!(taken, Err(Refused::Contended)) {
            self.check(&ask.key, &ask.proof).await?;
        }
        let incoming = self.counted(taken)?;
        // The same idempotency key with another document is another request.
        let stamp = ask.stamp.map(|stamp| stamp_with(stamp, &incoming.state.etag));
        self.install(WriteAsk { stamp, ..ask }, incoming, |_| true).await
    }

    /// Commits a write that has come in. `base` must accept the record as it is then; when it
    /// does not, the write is contended.
    pub(crate) fn install(
        self: &Arc<Self>,
        ask: WriteAsk,
        incoming: Incoming,
        base: impl Fn(&KeyRecord) -> bool + Send + Sync + 'static,
    ) -> Complete<Result<Written, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let key = ask.key.clone();
            let fences = ask.fences.clone();
            let stage = ask.stage(Change::Write(incoming.state.clone()));
            let mut named = false;
            let decide = |record: &KeyRecord, stage: &Stage, facts: &FenceFacts, now: Now| {
                if !base(record) {
                    return Err(Moved::Base);
                }
                let decided = state::stage(record, stage, facts, now).map_err(Moved::Refused)?;
                named = decided.record.is_some();
                Ok(decided)
            };
            let outcome = app.commit_stage(&key, &fences, stage, decide).await;
            // A write of unknown outcome may have named the blob: then the collector decides.
            let unknown = matches!(outcome, Err(CommitError::Store(StoreError::Unknown(_))));
            if unknown || (named && outcome.is_ok()) {
                incoming.settled();
            }
            app.counted(outcome.map_err(Refused::from))
        })
    }

    /// A write without a document: removing it, or changing what is known about it.
    pub(crate) fn change(
        self: &Arc<Self>,
        ask: WriteAsk,
        change: Change,
    ) -> Complete<Result<Written, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let key = ask.key.clone();
            let fences = ask.fences.clone();
            let stage = ask.stage(change);
            let decide = |record: &KeyRecord, stage: &Stage, facts: &FenceFacts, now: Now| {
                state::stage(record, stage, facts, now).map_err(Moved::Refused)
            };
            let outcome = app.commit_stage(&key, &fences, stage, decide).await;
            app.counted(outcome.map_err(Refused::from))
        })
    }

    /// Commits a write. One that is to be visible at once needs a key that is alone in its
    /// transaction.
    async fn commit_stage(
        self: &Arc<Self>,
        key: &KeyName,
        fences: &[FenceCondition],
        mut stage: Stage,
        mut decide: impl FnMut(&KeyRecord, &Stage, &FenceFacts, Now) -> Result<Decided<Written>, Moved>,
    ) -> Result<Written, CommitError<Moved>> {
        let asked =
            |record: &KeyRecord, facts: &FenceFacts, now: Now| decide(record, &stage, facts, now);
        let txn = match self.records.commit(key, fences, asked).await {
            Err(CommitError::Refused(Moved::Refused(StageRefused::InTxn(InTxn(txn))))) => txn,
            outcome => return outcome,
        };
        let refused = CommitError::Refused(Moved::Refused(StageRefused::InTxn(InTxn(txn))));
        stage.alone = true;
        let mut asked =
            |record: &KeyRecord, facts: &FenceFacts, now: Now| decide(record, &stage, facts, now);
        if stage.then == Then::Release {
            let written = Box::pin(self.records.commit_last(key, txn, fences, asked)).await?;
            return written.ok_or(refused);
        }
        let record = self.records.load_txn(txn).await?;
        if record.is_none_or(|record| record.participants.iter().any(|one| one.key != *key)) {
            return Err(refused);
        }
        // Whoever joins from now on finds this written before it.
        self.records.commit(key, fences, &mut asked).await
    }

    /// Whether the caller holds the key now; the token under which it does.
    pub(crate) async fn check(&self, key: &KeyName, proof: &Proof) -> Result<Fence, Refused> {
        let record = self.records.load(key).await?;
        let held = lease::check(&record, proof, self.clock().now()).map(|_| record.fence);
        self.counted(held.map_err(Refused::from))
    }
}

enum Moved {
    Base,
    Refused(StageRefused),
}

impl From<Moved> for Refused {
    fn from(moved: Moved) -> Self {
        match moved {
            Moved::Base => Self::Contended,
            Moved::Refused(refused) => refused.into(),
        }
    }
}

fn stamp_with(stamp: Stamp, etag: &Etag) -> Stamp {
    let [low @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = etag.0;
    Stamp { request: stamp.request ^ u128::from_le_bytes(low), ..stamp }
}
