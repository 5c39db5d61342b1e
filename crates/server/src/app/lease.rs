//! Acquire, keepalive, release, revoke. Waiting happens here, in the order of arrival; a grant
//! that nobody receives is given back at once.

use std::sync::Arc;
use std::time::Duration;

use lockd_core::answer::{Stamp, StampReused};
use lockd_core::fence::{Fence, FenceFacts};
use lockd_core::ids::{LeaseId, TxnId};
use lockd_core::key::KeyName;
use lockd_core::lease::{
    self, Acquire, AcquireRefused, InTxn, Proof, ProofRefused, Release, ReleaseRefused,
};
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::record::{Decided, Etag, KeyRecord, Lease, Version};
use lockd_core::time::{Deadline, Now, Span, Tick};

use super::txn::LOOKS_MAX;
use super::wait::{Arrival, JoinRefused, Turn, Waiting};
use super::{App, Refused, TxnRefused};
use crate::commit::{CommitError, NotJoined};
use crate::tasks::Complete;

/// How long an acquire may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    No,
    Forever,
    AtMost(Span),
}

/// A wish to hold a key, as it came in.
#[derive(Clone, Debug)]
pub(crate) struct AcquireAsk {
    pub(crate) key: KeyName,
    pub(crate) owner: Box<str>,
    pub(crate) ttl: Span,
    pub(crate) block: Block,
    pub(crate) if_not_exists: bool,
    pub(crate) txn: Option<TxnId>,
    pub(crate) stamp: Option<Stamp>,
}

/// A lease that was granted, with what the holder wants to know about the key.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) key: KeyName,
    pub(crate) lease: Lease,
    pub(crate) token: Fence,
    pub(crate) version: Version,
    pub(crate) etag: Option<Etag>,
    /// Gives the lease back when dropped before the answer has left.
    pub(crate) undelivered: Undelivered,
}

/// What stands in the way, with what is known about the key.
#[derive(Clone, Debug)]
struct Held {
    until: Deadline,
    version: Version,
    etag: Option<Etag>,
}

enum Attempt {
    Granted(Grant),
    Held(Held),
}

/// Version and document of a key when it was looked at.
type Seen = (Version, Option<Etag>);

enum NotGranted {
    /// The key's own record says no.
    Key(AcquireRefused, Seen),
    Other(Refused),
}

/// On a store with several servers, the first in line asks this often without being told.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// And so long after the holder's time was over.
const ASK_AFTER: Duration = Duration::from_millis(50);

const TXN_OVER: Refused =
    Refused::Txn(TxnRefused::Conflict("the lease that began this transaction is over"));

/// What an attempt may bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    /// A new lease, or the one that the same request got before.
    New,
    /// Nothing but the lease that the same request got before.
    Again,
}

fn granted_again(
    record: &KeyRecord,
    stamp: Option<Stamp>,
    now: Now,
) -> Result<Decided<Lease>, AcquireRefused> {
    match lease::granted_before(record, stamp, now)? {
        Some(lease) => Ok(Decided { record: None, answer: lease.clone(), effects: Vec::new() }),
        None => Err(AcquireRefused::Held {
            until: record.live_lease(now).map_or(now.plus(Span(1)), |lease| lease.expires),
        }),
    }
}

impl App {
    /// Grants the key, waiting for it if asked to. Who waits is served in order of arrival, and
    /// who does not wait never overtakes those who do.
    pub(crate) async fn acquire(self: &Arc<Self>, ask: AcquireAsk) -> Result<Grant, Refused> {
        self.refuse_draining()?;
        let held = if self.records.lines.has(&ask.key) {
            // A repeated request may hold the key already; a new one stands behind the others.
            match ask.stamp {
                Some(_) => self.attempt(&ask, Only::Again).await?,
                None => Attempt::Held(self.held_now(&ask.key)),
            }
        } else {
            self.attempt(&ask, Only::New).await?
        };
        let held = match held {
            Attempt::Granted(grant) => return Ok(grant),
            Attempt::Held(held) => held,
        };
        let until = match ask.block {
            Block::No => return Err(self.held(&held)),
            Block::Forever => None,
            Block::AtMost(span) => Some(self.clock().now().tick.plus(span)),
        };
        let records = &self.records;
        let holder = |key: &KeyName| records.live.txn_of(key);
        let arrival = Arrival { stamp: ask.stamp, txn: ask.txn, holder: &holder };
        let waiting = records.lines.join(&ask.key, &arrival).map_err(|refused| match refused {
            JoinRefused::Full => Refused::WaitersFull,
            JoinRefused::Reused => Refused::Reused(StampReused),
            JoinRefused::Deadlock => Refused::Deadlock,
        })?;
        Box::pin(self.wait(ask, waiting, held, until)).await
    }

    /// Stands in line until granted, out of time, or sent away.
    async fn wait(
        self: &Arc<Self>,
        ask: AcquireAsk,
        waiting: Waiting,
        mut held: Held,
        until: Option<Tick>,
    ) -> Result<Grant, Refused> {
        loop {
            let out_of_time = async {
                match until {
                    Some(tick) => self.clock().sleep_until(tick).await,
                    None => std::future::pending().await,
                }
            };
            let turn = tokio::select! {
                biased;
                () = self.drained() => return Err(self.draining()),
                turn = waiting.turn() => turn,
                () = out_of_time => return Err(self.held(&held)),
                () = self.nobody_told(held.until), if self.records.is_shared() => {
                    if !waiting.is_first() {
                        continue;
                    }
                    Turn::Ask
                }
            };
            if turn == Turn::TakenOver {
                return Err(self.held(&held));
            }
            match self.attempt(&ask, Only::New).await? {
                Attempt::Granted(grant) => {
                    if self.records.is_shared() {
                        // The next one would be busy asking in vain when the key is passed on.
                        waiting.took_it();
                    }
                    if let Some(took) = waiting.since_freed() {
                        self.metrics().handoff.observe(took.as_secs_f64());
                    }
                    return Ok(grant);
                }
                Attempt::Held(now_held) => held = now_held,
            }
        }
    }

    /// Another server may have let go of a key and died before it could tell.
    async fn nobody_told(&self, until: Deadline) {
        let left = Duration::from_millis(until.remaining(self.clock().now()).0);
        // Who asks too often is busy asking when the key is passed on.
        let wait = if left.is_zero() { ASK_AGAIN } else { (left + ASK_AFTER).min(ASK_AGAIN) };
        tokio::time::sleep(wait).await;
    }

    /// Asks once. Runs to its end even if the caller goes away; then the grant is given back.
    fn attempt(
        self: &Arc<Self>,
        ask: &AcquireAsk,
        only: Only,
    ) -> Complete<Result<Attempt, Refused>> {
        let (app, ask) = (Arc::clone(self), ask.clone());
        self.tasks.complete(async move { app.attempt_now(&ask, only).await })
    }

    async fn attempt_now(
        self: &Arc<Self>,
        ask: &AcquireAsk,
        only: Only,
    ) -> Result<Attempt, Refused> {
        let command = Acquire {
            new_id: self.ids.lease_id(),
            owner: ask.owner.clone(),
            txn: ask.txn.unwrap_or_else(|| self.new_txn()),
            recorded: ask.txn.is_some(),
            ttl: ask.ttl,
            if_not_exists: ask.if_not_exists,
            stamp: ask.stamp,
        };
        for _ in 0..LOOKS_MAX {
            match self.grant(ask, &command, only).await {
                Ok((lease, token, (version, etag))) => {
                    let undelivered = Undelivered::new(self, ask, &lease, token);
                    let key = ask.key.clone();
                    let grant = Grant { key, lease, token, version, etag, undelivered };
                    return Ok(Attempt::Granted(grant));
                }
                Err(NotGranted::Key(AcquireRefused::Held { until }, (version, etag))) => {
                    return Ok(Attempt::Held(Held { until, version, etag }));
                }
                // Its holder's time is over, but not its transaction.
                Err(NotGranted::Key(AcquireRefused::InTxn(InTxn(txn)), _)) => {
                    let resolved = Box::pin(self.resolve(&ask.key, txn)).await;
                    resolved.inspect_err(|_| self.wake(&ask.key))?;
                }
                Err(NotGranted::Key(AcquireRefused::Exists, _)) => {
                    self.wake(&ask.key);
                    return Err(Refused::Exists);
                }
                Err(NotGranted::Key(AcquireRefused::Reused(reused), _)) => {
                    self.wake(&ask.key);
                    return Err(reused.into());
                }
                Err(NotGranted::Other(refused)) => {
                    self.wake(&ask.key);
                    return Err(refused);
                }
            }
        }
        self.wake(&ask.key);
        Err(Refused::Contended)
    }

    /// The key may be free all the same: the next in line must not wait in vain.
    fn wake(&self, key: &KeyName) {
        self.records.lines.wake(key);
    }

    async fn grant(
        self: &Arc<Self>,
        ask: &AcquireAsk,
        command: &Acquire,
        only: Only,
    ) -> Result<(Lease, Fence, Seen), NotGranted> {
        let decide = |record: &KeyRecord, now: Now| {
            let seen = (record.version, record.state.as_ref().map(|state| state.etag));
            let decided = match only {
                Only::New => lease::acquire(record, command, now),
                Only::Again => granted_again(record, ask.stamp, now),
            };
            let decided = decided.map_err(|refused| (refused, seen))?;
            let token = decided.record.as_ref().map_or(record.fence, |next| next.fence);
            Ok(decided.map(|lease| (lease, token, seen)))
        };
        let Some(txn) = ask.txn else {
            let decide = |record: &KeyRecord, _: &FenceFacts, now: Now| decide(record, now);
            let granted = self.records.commit(&ask.key, &[], decide).await;
            return granted.map_err(|error| match error {
                CommitError::Refused((refused, seen)) => NotGranted::Key(refused, seen),
                CommitError::Store(error) => NotGranted::Other(Refused::Store(error)),
                CommitError::Contended => NotGranted::Other(Refused::Contended),
            });
        };
        let joined = self.records.commit_joined(&ask.key, txn, ask.ttl, decide);
        let granted = Box::pin(joined).await;
        granted.map_err(|error| match error {
            CommitError::Refused(NotJoined::Refused((refused, seen))) => {
                NotGranted::Key(refused, seen)
            }
            CommitError::Refused(NotJoined::Txn(refused)) => NotGranted::Other(refused.into()),
            CommitError::Refused(NotJoined::Over) => NotGranted::Other(TXN_OVER),
            CommitError::Store(error) => NotGranted::Other(Refused::Store(error)),
            CommitError::Contended => NotGranted::Other(Refused::Contended),
        })
    }

    /// What is known about a key with a line, without asking the store.
    fn held_now(&self, key: &KeyName) -> Held {
        let now = self.clock().now();
        let live = self.records.live.get(key);
        let until = live.map_or_else(|| now.plus(Span(1)), |live| live.lease.expires);
        Held { until, version: Version(0), etag: None }
    }

    fn held(&self, held: &Held) -> Refused {
        let left = held.until.remaining(self.clock().now());
        let known = held.version != Version(0);
        Refused::Held {
            retry_after: left.max(Span(1)),
            version: known.then_some(held.version),
            etag: held.etag,
        }
    }

    pub(crate) fn refuse_draining(&self) -> Result<(), Refused> {
        if self.is_draining() { Err(self.draining()) } else { Ok(()) }
    }

    fn draining(&self) -> Refused {
        Refused::Draining { retry_after: Span::secs(1) }
    }

    /// Gives a lease a new time to live.
    pub(crate) fn keepalive(
        self: &Arc<Self>,
        key: KeyName,
        proof: Proof,
        ttl: Span,
    ) -> Complete<Result<(Lease, Fence), Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let decide = |record: &KeyRecord, _: &FenceFacts, now: Now| {
                let token = record.fence;
                let decided = lease::renew(record, &proof, ttl, now)?;
                Ok::<_, ProofRefused>(decided.map(|lease| (lease, token)))
            };
            let outcome = app.records.commit(&key, &[], decide).await;
            app.counted(outcome.map_err(Refused::from))
        })
    }

    /// Ends a lease and commits what it staged, or forgets it.
    pub(crate) fn release(
        self: &Arc<Self>,
        key: KeyName,
        ask: Release,
    ) -> Complete<Result<(), Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let outcome = app.release_now(&key, &ask).await;
            app.counted(outcome)
        })
    }

    async fn release_now(self: &Arc<Self>, key: &KeyName, ask: &Release) -> Result<(), Refused> {
        for _ in 0..LOOKS_MAX {
            let decide = |record: &KeyRecord, facts: &FenceFacts, now: Now| {
                lease::release(record, ask, facts, now)
            };
            match self.records.commit(key, &ask.fences, decide).await {
                Err(CommitError::Refused(ReleaseRefused::InTxn(InTxn(txn)))) => {
                    if Box::pin(self.settle_release(key, txn, ask)).await? {
                        return Ok(());
                    }
                }
                outcome => return outcome.map_err(Refused::from),
            }
        }
        Err(Refused::Contended)
    }

    /// Takes a key from its holder by order of an operator.
    pub(crate) fn revoke(
        self: &Arc<Self>,
        key: KeyName,
        reason: String,
    ) -> Complete<Result<Revoked, Refused>> {
        let app = Arc::clone(self);
        self.tasks.complete(async move {
            let revoked = app.revoke_now(&key, &reason).await?;
            if let Revoked { owner: Some(owner), token } = &revoked {
                tracing::warn!(
                    target: "lockd::audit",
                    %key, %owner, token = token.0, %reason, "lease revoked by an operator"
                );
            }
            Ok(revoked)
        })
    }

    async fn revoke_now(self: &Arc<Self>, key: &KeyName, reason: &str) -> Result<Revoked, Refused> {
        for _ in 0..LOOKS_MAX {
            let decide = |record: &KeyRecord, _: &FenceFacts, now: Now| {
                let held = record.live_lease(now).map(|lease| lease.owner.clone());
                match lease::revoke(record, reason, now) {
                    Ok(None) => {
                        Err(NotRevoked::Free(if record.stored { record.fence } else { Fence(0) }))
                    }
                    Ok(Some(decided)) => {
                        let token = decided.record.as_ref().map_or(record.fence, |next| next.fence);
                        Ok(decided.map(|lease| (lease.owner, token)))
                    }
                    Err(InTxn(txn)) => {
                        Err(NotRevoked::InTxn(txn, held.unwrap_or_default(), record.fence.next()))
                    }
                }
            };
            let (txn, owner, token) = match self.records.commit(key, &[], decide).await {
                Ok((owner, token)) => return Ok(Revoked { owner: Some(owner), token }),
                Err(CommitError::Refused(NotRevoked::Free(token))) => {
                    return Ok(Revoked { owner: None, token });
                }
                Err(CommitError::Refused(NotRevoked::InTxn(txn, owner, token))) => {
                    (txn, owner, token)
                }
                Err(CommitError::Store(error)) => return Err(Refused::Store(error)),
                Err(CommitError::Contended) => return Err(Refused::Contended),
            };
            if self.settle_revoked(key, txn, reason).await? {
                return Ok(Revoked { owner: Some(owner), token });
            }
        }
        Err(Refused::Contended)
    }

    /// Ends the lease of a key if its time is over; `false` when there is none to end.
    pub(crate) async fn lapse(self: &Arc<Self>, key: &KeyName) -> Result<bool, Refused> {
        let decide = |record: &KeyRecord, _: &FenceFacts, now: Now| match lease::lapse(record, now)
        {
            Ok(Some(decided)) => Ok(decided),
            Ok(None) => Err(None),
            Err(InTxn(txn)) => Err(Some(txn)),
        };
        match self.records.commit(key, &[], decide).await {
            Ok(()) => {
                let alone = self.records.drop_if_left_alone(key).await;
                alone.map_err(|error| match error {
                    CommitError::Store(error) => Refused::Store(error),
                    CommitError::Refused(_) | CommitError::Contended => Refused::Contended,
                })?;
                Ok(true)
            }
            Err(CommitError::Refused(None)) => Ok(false),
            Err(CommitError::Refused(Some(txn))) => {
                self.resolve(key, txn).await?;
                // Whether this key was reached is looked at again.
                Ok(false)
            }
            Err(CommitError::Store(error)) => Err(Refused::Store(error)),
            Err(CommitError::Contended) => Err(Refused::Contended),
        }
    }

    /// The key of a lease that is named by its id alone.
    pub(crate) fn key_of_lease(&self, lease: &LeaseId) -> Option<KeyName> {
        self.records.live.key_of(lease)
    }

    /// Counts writes that were fenced off.
    pub(crate) fn counted<T>(&self, outcome: Result<T, Refused>) -> Result<T, Refused> {
        match &outcome {
            Err(Refused::Fence(_)) => self.metrics().fenced("condition"),
            Err(Refused::Proof(ProofRefused::Fenced { .. })) => self.metrics().fenced("key"),
            Ok(_) | Err(_) => {}
        }
        outcome
    }
}

/// The former owner, if there was one, and the token now.
#[derive(Debug)]
pub(crate) struct Revoked {
    pub(crate) owner: Option<Box<str>>,
    pub(crate) token: Fence,
}

enum NotRevoked {
    /// Nobody holds the key, whose token is this.
    Free(Fence),
    /// Its holder has it under a transaction; the token that it will have.
    InTxn(TxnId, Box<str>, Fence),
}

/// A grant on its way to its holder. Dropped on the way, the lease is given back at once; with an
/// idempotency key it is kept for the retry.
pub(crate) struct Undelivered {
    back: Option<Box<GrantBack>>,
}

/// A grant, and to whom it goes back.
struct GrantBack {
    app: Arc<App>,
    what: What,
    proof: Proof,
}

/// What was granted.
enum What {
    Key(KeyName),
    Message(QueueName, MessageId),
}

impl std::fmt::Debug for Undelivered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Undelivered").field("armed", &self.back.is_some()).finish()
    }
}

impl Undelivered {
    fn new(app: &Arc<App>, ask: &AcquireAsk, lease: &Lease, token: Fence) -> Self {
        if ask.stamp.is_some() {
            return Self { back: None };
        }
        let proof = Proof { lease: lease.id.clone(), fence: Some(token), txn: Some(lease.txn) };
        Self::of(app, What::Key(ask.key.clone()), proof)
    }

    /// A message on its way to its consumer.
    pub(crate) fn message(app: &Arc<App>, queue: QueueName, id: MessageId, proof: Proof) -> Self {
        Self::of(app, What::Message(queue, id), proof)
    }

    fn of(app: &Arc<App>, what: What, proof: Proof) -> Self {
        Self { back: Some(Box::new(GrantBack { app: Arc::clone(app), what, proof })) }
    }

    /// What was granted cannot be read: of a message, that is a failed delivery.
    pub(crate) fn unreadable(mut self) {
        let Some(back) = self.back.take() else { return };
        let GrantBack { app, what, proof } = *back;
        if let What::Message(queue, id) = what {
            let tasks = app.tasks.clone();
            tasks.spawn("give back", async move { app.fail_unreadable(queue, id, proof).await });
        }
    }

    /// The holder has it.
    pub(crate) fn delivered(mut self) {
        self.back = None;
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let Some(back) = self.back.take() else { return };
        let GrantBack { app, what, proof } = *back;
        let tasks = app.tasks.clone();
        tasks.spawn("give back", async move {
            match what {
                What::Key(key) => give_back(&app, key, proof).await,
                What::Message(queue, id) => app.undeliver(&queue, id, &proof).await,
            }
        });
    }
}

async fn give_back(app: &Arc<App>, key: KeyName, proof: Proof) {
    if let Some(txn) = proof.txn
        && matches!(app.records.withdraw(&key, &proof, txn).await, Ok(true))
    {
        return;
    }
    let ask = Release { proof, rollback: true, fences: Vec::new(), stamp: None };
    if let Err(error) = app.release(key.clone(), ask).await {
        tracing::warn!(%key, %error, "an undelivered lease stays until it expires");
    }
}
