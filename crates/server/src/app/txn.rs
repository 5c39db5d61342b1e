//! Transactions over several keys: deciding them, and finishing what others have left undone. A
//! key that takes part in one refuses to be decided upon alone; whoever hears that comes here.

use std::sync::Arc;

use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use lockd_core::lease::{ProofRefused, Release};
use lockd_core::time::{Span, UnixMillis};
use lockd_core::txn::{By, DecideRefused, JoinRefused, Outcome, Settle, TxnRecord, TxnState, Why};
use lockd_store::StoreError;

use super::{App, Refused, TxnRefused};
use crate::commit::{CommitError, NotJoined, NotSettled, TXN_PREFIX, decode_txn};
use crate::tasks::Complete;

/// How often a key may change hands while its transaction is looked up.
pub(super) const LOOKS_MAX: usize = 8;

/// Transactions that are looked at together.
const DUE_PAGE: usize = 1_000;

/// A transaction, for those who look on.
pub(crate) struct TxnView {
    pub(crate) txn: TxnId,
    pub(crate) record: TxnRecord,
}

impl App {
    /// Ends a transaction because the holder of one of its keys lets go. `false`: the key has
    /// changed since, ask it again.
    pub(super) async fn settle_release(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
        ask: &Release,
    ) -> Result<bool, Refused> {
        let outcome = if ask.rollback { Outcome::Rollback(Why::Asked) } else { Outcome::Commit };
        let (proof, stamp) = (ask.proof.clone(), ask.stamp);
        let by = By::Holder { key: key.clone(), proof, stamp };
        let settle = Settle { txn, outcome, by, fences: ask.fences.clone(), term: 0 };
        match self.records.settle(&settle).await {
            Ok(_) => Ok(true),
            Err(CommitError::Refused(NotSettled::Refused(
                DecideRefused::Proof(ProofRefused::Expired) | DecideRefused::Conflict(_),
            ))) => {
                self.resolve(key, txn).await?;
                Ok(false)
            }
            Err(CommitError::Refused(NotSettled::NotFound)) => {
                self.records.forget(key, txn).await.map_err(no_refusal)?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Rolls a transaction back because an operator takes one of its keys. `false`: the key has
    /// changed since, ask it again.
    pub(super) async fn settle_revoked(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
        reason: &str,
    ) -> Result<bool, Refused> {
        let Some(record) = self.records.load_txn(txn).await? else {
            self.resolve(key, txn).await?;
            return Ok(false);
        };
        let outcome = Outcome::Rollback(Why::Revoked { key: key.clone(), reason: reason.into() });
        let (by, fences) = (By::Order, Vec::new());
        let ask = Settle { txn, outcome: outcome.clone(), by, fences, term: record.term };
        match self.records.settle(&ask).await {
            Ok(decided) => Ok(decided == outcome),
            Err(CommitError::Refused(NotSettled::NotFound)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Finishes a transaction as far as that can be done now: brings a decision to all its keys,
    /// or rolls it back because the lease of this key has run out.
    pub(super) async fn resolve(
        self: &Arc<Self>,
        key: &KeyName,
        txn: TxnId,
    ) -> Result<(), Refused> {
        let ask = match self.records.load_txn(txn).await? {
            None => return self.records.forget(key, txn).await.map_err(no_refusal),
            Some(TxnRecord { state: TxnState::Decided(outcome), term, .. }) => {
                Settle { txn, outcome, by: By::Order, fences: Vec::new(), term }
            }
            Some(TxnRecord { state: TxnState::Pending, term, .. }) => {
                let outcome = Outcome::Rollback(Why::Lapsed);
                Settle { txn, outcome, by: By::Lapse(key.clone()), fences: Vec::new(), term }
            }
        };
        match self.records.settle(&ask).await {
            Ok(outcome) => {
                tracing::debug!(txn = txn.as_str(), ?outcome, "a transaction was finished");
                Ok(())
            }
            // Renewed, decided or forgotten meanwhile: whoever asked looks again.
            Err(CommitError::Refused(
                NotSettled::NotFound
                | NotSettled::Refused(DecideRefused::StillHeld | DecideRefused::Conflict(_)),
            )) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Decides a transaction for a client or a coordinator, and says how it stands then.
    pub(crate) fn decide(self: &Arc<Self>, ask: Settle) -> Complete<Result<TxnRecord, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            if ask.closes_unknown() {
                app.enlist_first(ask.txn).await?;
            }
            let outcome = app.records.settle(&ask).await;
            app.counted(outcome.map_err(Refused::from))?;
            let record = app.records.load_txn(ask.txn).await?;
            // Removed since: with a retention of nothing.
            record.ok_or(TxnRefused::NotFound.into())
        })
    }

    /// A lease that is alone in its transaction has no record of it, but is no unknown one: its
    /// key takes part in what is decided.
    async fn enlist_first(self: &Arc<Self>, txn: TxnId) -> Result<(), Refused> {
        let Some(first) = self.records.live.alone_under(txn) else { return Ok(()) };
        let until = self.clock().now().wall.plus(self.limits.default_ttl);
        match self.records.enlist(txn, &[first], until).await {
            // It was released, or another key has joined: the decision finds that.
            Ok(()) | Err(CommitError::Refused(_)) => Ok(()),
            Err(CommitError::Store(error)) => Err(Refused::Store(error)),
            Err(CommitError::Contended) => Err(Refused::Contended),
        }
    }

    /// Adds keys to a transaction by order of a coordinator. One that is decided in the same way
    /// keeps the keys it has.
    pub(crate) fn enlist(
        self: &Arc<Self>,
        txn: TxnId,
        keys: Vec<KeyName>,
        expires_at: Option<UnixMillis>,
        wish: Option<Outcome>,
    ) -> Complete<Result<(), Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let usual = app.clock().now().wall.plus(app.limits.default_ttl);
            let joined = app.records.enlist(txn, &keys, expires_at.unwrap_or(usual)).await;
            let Err(CommitError::Refused(NotJoined::Txn(JoinRefused::Decided))) = &joined else {
                return joined.map_err(|error| match error {
                    CommitError::Refused(NotJoined::Txn(refused)) => refused.into(),
                    CommitError::Refused(NotJoined::Over | NotJoined::Refused(())) => {
                        TxnRefused::Conflict("the transaction was rolled back and is forgotten")
                            .into()
                    }
                    CommitError::Store(error) => Refused::Store(error),
                    CommitError::Contended => Refused::Contended,
                });
            };
            let known = app.records.load_txn(txn).await?;
            let agrees = known.is_some_and(|record| {
                let takes_part =
                    |key: &KeyName| record.participants.iter().any(|one| one.key == *key);
                keys.iter().all(takes_part)
                    && record
                        .outcome()
                        .zip(wish.as_ref())
                        .is_some_and(|(known, wish)| known.agrees(wish))
            });
            if agrees { Ok(()) } else { Err(JoinRefused::Decided.into()) }
        })
    }

    /// Finishes a transaction as far as that can be done now.
    pub(crate) fn finish_txn(self: &Arc<Self>, txn: TxnId) -> Complete<Result<(), Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            if app.records.load_txn(txn).await?.is_none() {
                return Err(TxnRefused::NotFound.into());
            }
            app.tidy_txn(txn, Span(u64::MAX)).await?;
            Ok(())
        })
    }

    /// Transactions in the order of their ids.
    pub(crate) async fn txns(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<TxnView>, Refused> {
        let after = after.map(|after| [TXN_PREFIX, after].concat());
        let page = self.records.store().scan(TXN_PREFIX, after.as_deref(), limit).await?;
        let views = page.iter().map(|(name, stored)| {
            let text = name.strip_prefix(TXN_PREFIX).unwrap_or_default();
            let txn = TxnId::parse(text)
                .map_err(|error| StoreError::Damaged(format!("transaction {text}: {error}")))?;
            Ok(TxnView { txn, record: decode_txn(text, stored)? })
        });
        views.collect()
    }

    pub(crate) async fn txn(&self, txn: TxnId) -> Result<Option<TxnView>, Refused> {
        let record = self.records.load_txn(txn).await?;
        Ok(record.map(|record| TxnView { txn, record }))
    }

    /// One pass over the transactions that are due: finishes what is decided, gives up what nobody
    /// holds any more, and forgets what has been over for long enough; how many were forgotten.
    pub(crate) async fn tidy_txns(self: &Arc<Self>, retention: Span) -> Result<usize, Refused> {
        let mut forgotten = 0;
        loop {
            let page = self.records.due_txns(DUE_PAGE).await?;
            for (name, txn) in &page {
                let again = match self.tidy_txn(*txn, retention).await {
                    // Told in the log; the others are looked after.
                    Err(Refused::Store(StoreError::Damaged(_))) => Some(self.clock().now().wall),
                    again => again?,
                };
                forgotten += usize::from(again.is_none());
                self.records.due_again(Arc::clone(name), *txn, again).await?;
            }
            if page.len() < DUE_PAGE || self.tasks.is_stopping() {
                return Ok(forgotten);
            }
        }
    }

    /// Does what can be done about one transaction now; when to look at it again, if ever.
    async fn tidy_txn(
        self: &Arc<Self>,
        txn: TxnId,
        retention: Span,
    ) -> Result<Option<UnixMillis>, Refused> {
        let now = self.clock().now().wall;
        let Some(record) = self.records.load_txn(txn).await? else { return Ok(None) };
        match record.state {
            TxnState::Decided(_) if record.is_applied() => {
                let until = record.updated_at.plus(retention);
                let over = until < now && self.records.forget_txn(txn).await?;
                Ok((!over).then_some(until.max(now)))
            }
            TxnState::Decided(outcome) => {
                let by = By::Order;
                let ask = Settle { txn, outcome, by, fences: Vec::new(), term: record.term };
                self.records.settle(&ask).await?;
                Ok(Some(now))
            }
            TxnState::Pending if record.expires_at < now => {
                let (outcome, by) = (Outcome::Rollback(Why::Lapsed), By::Abandoned);
                let ask = Settle { txn, outcome, by, fences: Vec::new(), term: record.term };
                match self.records.settle(&ask).await {
                    Ok(_)
                    | Err(CommitError::Refused(NotSettled::Refused(DecideRefused::StillHeld))) => {
                        Ok(Some(now))
                    }
                    Err(error) => Err(error.into()),
                }
            }
            TxnState::Pending => Ok(Some(record.expires_at)),
        }
    }
}

fn no_refusal(error: CommitError<()>) -> Refused {
    match error {
        CommitError::Store(error) => Refused::Store(error),
        CommitError::Refused(()) | CommitError::Contended => Refused::Contended,
    }
}
