//! For stores that write one record at a time, each write taking as long as a round trip: what is
//! decided upon a key while a write of it is under way is decided upon what that write will leave,
//! and all of it is written together as soon as it is through. If a write fails, everything that
//! was decided on top of it is decided again. Nobody hears anything before it is durable, refusals
//! included.
//!
//! A release that somebody waits for is held back for a moment, so that the next holder is granted
//! in the same write: passing a key on costs one round trip, not two.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockd_core::key::KeyName;
use lockd_core::pin;
use lockd_core::record::{Decided, Effect, KeyRecord};
use lockd_core::time::Now;
use lockd_core::txn;
use lockd_store::{StoreError, Stored};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::batch::Changed;
use super::{ATTEMPTS_MAX, CommitError, Loaded, Records, record_name};

/// How long a release waits for the next in line to come along.
const HAND_OVER: Duration = Duration::from_millis(25);
/// The longest pause before a lost race between servers is run again, and the first.
const PAUSE_MAX: Duration = Duration::from_millis(200);
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// All keys with something under way.
#[derive(Default)]
pub(super) struct Pipes {
    tips: Mutex<HashMap<KeyName, Tip>>,
}

/// The newest that is decided about a key.
struct Tip {
    record: KeyRecord,
    /// Decided, and not being written yet.
    open: Option<Arc<Group>>,
    /// Being written.
    flying: Option<Arc<Group>>,
}

impl Tip {
    /// The group that ends last.
    fn last(&self) -> Option<&Arc<Group>> {
        self.open.as_ref().or(self.flying.as_ref())
    }
}

/// What a write has left in the store.
type Left = Result<Option<Stored>, StoreError>;

/// Decisions that are written together.
struct Group {
    decided: Mutex<Vec<Decided<()>>>,
    joined: Notify,
    outcome: watch::Sender<Option<Left>>,
}

impl Group {
    fn of(decided: Decided<()>) -> Arc<Self> {
        let (outcome, _) = watch::channel(None);
        Arc::new(Self { decided: Mutex::new(vec![decided]), joined: Notify::new(), outcome })
    }

    async fn done(&self) -> Left {
        let mut outcome = self.outcome.subscribe();
        match outcome.wait_for(Option::is_some).await {
            Ok(done) => done.clone().unwrap_or(Err(StoreError::Conflict)),
            Err(_) => Err(StoreError::Unknown("the writer is gone".into())),
        }
    }
}

/// Where the record came from that was decided upon.
enum Basis {
    /// What is about to be written.
    Tip(Arc<Group>),
    /// The store has shown it since the request began.
    Seen(Option<Stored>),
    /// As it was last known here.
    Recalled(Option<Stored>),
}

/// What is to be done after a decision.
enum Next {
    /// Nothing was changed: it is answered once that is certain.
    Answer(Basis),
    /// Written by somebody else.
    Follow(Arc<Group>),
    /// What it was decided upon never came about.
    Again,
    /// Written by us, after another group or on top of what is stored.
    Lead(Arc<Group>, Result<Arc<Group>, Option<Stored>>, Box<KeyRecord>),
}

impl Records {
    /// As `commit`, for one record at a time and without conditions.
    pub(super) async fn commit_piped<A, R>(
        self: &Arc<Self>,
        key: &KeyName,
        decide: &mut impl FnMut(&KeyRecord, Now) -> Result<Decided<A>, R>,
    ) -> Result<A, CommitError<R>> {
        let mut seen: Option<Loaded> = None;
        let mut pause = PAUSE_MIN;
        for _ in 0..ATTEMPTS_MAX {
            let turn = self.turn(key).lock().await;
            let Some((record, basis)) = self.basis(key, seen.take()) else {
                drop(turn);
                seen = Some(self.load_present(key).await?);
                continue;
            };
            let (answer, next) = match decide(&record, self.clock.now()) {
                Err(refused) => (Err(CommitError::Refused(refused)), Next::Answer(basis)),
                Ok(Decided { record: None, answer, .. }) => (Ok(answer), Next::Answer(basis)),
                Ok(Decided { record: Some(next), answer, effects }) => {
                    let decided = Decided { record: Some(next), answer: (), effects };
                    (Ok(answer), self.enter(key, decided, basis, record))
                }
            };
            drop(turn);
            let left = match next {
                Next::Answer(Basis::Seen(_)) => return answer,
                Next::Answer(Basis::Recalled(_)) => {
                    seen = Some(self.load_present(key).await?);
                    continue;
                }
                Next::Answer(Basis::Tip(group)) => {
                    group.done().await.map_err(|_| StoreError::Conflict)
                }
                Next::Again => Err(StoreError::Conflict),
                Next::Follow(group) => group.done().await,
                Next::Lead(group, after, before) => self.lead(key, group, after, *before).await,
            };
            match left {
                Ok(_) => return answer,
                Err(StoreError::Conflict) => {
                    self.metrics.store_conflicts.inc();
                    tokio::time::sleep(pause.mul_f64(self.jitter())).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(CommitError::Contended)
    }

    /// What there is to decide upon without asking the store. The caller has the key's turn.
    fn basis(&self, key: &KeyName, seen: Option<Loaded>) -> Option<(KeyRecord, Basis)> {
        if let Some(tip) = self.pipes.tips.lock().get(key)
            && let Some(last) = tip.last()
        {
            return Some((tip.record.clone(), Basis::Tip(Arc::clone(last))));
        }
        if let Some(Loaded { stored, record }) = seen {
            return Some((record, Basis::Seen(stored)));
        }
        let stored = self.store.recall(&record_name(key))?;
        let record = self.decode(key, stored.as_ref()).ok()?;
        // Its transaction may have been decided, or its token raised: that must be looked at.
        let is_plain = txn::undecided(&record).is_none() && pin::over(&record).next().is_none();
        is_plain.then_some((record, Basis::Recalled(stored)))
    }

    /// Puts a decision where it will be written. The caller has the key's turn.
    fn enter(&self, key: &KeyName, decided: Decided<()>, basis: Basis, before: KeyRecord) -> Next {
        let mut tips = self.pipes.tips.lock();
        let ends = decided.effects.iter().any(|effect| matches!(effect, Effect::Ended { .. }));
        let record = decided.record.clone().unwrap_or_default();
        let next = if let Some(tip) = tips.get_mut(key) {
            tip.record = record;
            if let Some(open) = &tip.open {
                open.decided.lock().push(decided);
                open.joined.notify_one();
                Next::Follow(Arc::clone(open))
            } else {
                let group = Group::of(decided);
                tip.open = Some(Arc::clone(&group));
                Next::Lead(group, tip.flying.clone().ok_or(None), Box::new(before))
            }
        } else {
            let stored = match basis {
                Basis::Seen(stored) | Basis::Recalled(stored) => stored,
                // Written meanwhile. Nobody else has decided since, for we have the turn.
                Basis::Tip(group) => match &*group.outcome.borrow() {
                    Some(Ok(stored)) => stored.clone(),
                    Some(Err(_)) | None => return Next::Again,
                },
            };
            let group = Group::of(decided);
            let open = Some(Arc::clone(&group));
            tips.insert(key.clone(), Tip { record, open, flying: None });
            Next::Lead(group, Err(stored), Box::new(before))
        };
        drop(tips);
        if ends {
            // The next in line may come along.
            self.lines.wake(key);
        }
        next
    }

    /// Writes a group when its time has come.
    async fn lead(
        self: &Arc<Self>,
        key: &KeyName,
        group: Arc<Group>,
        after: Result<Arc<Group>, Option<Stored>>,
        before: KeyRecord,
    ) -> Left {
        let lead = Lead { records: self, key, group };
        let stored = match after {
            Err(stored) => stored,
            Ok(flying) => match flying.done().await {
                Ok(stored) => stored,
                // All that was decided on top of it never was.
                Err(_) => return lead.end(Err(StoreError::Conflict)),
            },
        };
        while lead.is_passing_on() {
            let joined = tokio::time::timeout(HAND_OVER, lead.group.joined.notified()).await;
            if joined.is_err() {
                break;
            }
        }
        let decided = lead.take_off();
        let effects = decided.iter().flat_map(|one| one.effects.iter().cloned()).collect();
        let record = decided.last().and_then(|last| last.record.clone());
        let whole = Decided { record, answer: (), effects };
        let changed = Changed { key: key.clone(), stored, before, decided: whole };
        let written = self.write_key(&changed).await;
        match &written {
            Ok(_) => {
                for one in &decided {
                    if let Some(record) = &one.record {
                        self.tell(key, record, &one.effects);
                    }
                }
                if changed.frees() {
                    self.lines.wake(key);
                }
            }
            Err(StoreError::Unknown(_)) => self.find_out(key.clone()),
            Err(_) => {}
        }
        lead.end(written)
    }

    /// The key's turn, when nothing of it is under way.
    pub(super) async fn alone(&self, key: &KeyName) -> tokio::sync::MutexGuard<'_, ()> {
        let turn = self.turn(key).lock().await;
        self.settled_down(key).await;
        turn
    }

    /// Waits for what is under way. The caller has the turn, so nothing new begins.
    pub(super) async fn settled_down(&self, key: &KeyName) {
        while !self.is_atomic() {
            let last = self.pipes.tips.lock().get(key).and_then(|tip| tip.last().cloned());
            let Some(last) = last else { return };
            let _either_way = last.done().await.is_ok();
            // Its leader takes it out of the way right after.
            tokio::task::yield_now().await;
        }
    }

    /// The record as it is in the store now, after every decision that was made about it.
    pub(super) async fn load_present(
        self: &Arc<Self>,
        key: &KeyName,
    ) -> Result<Loaded, StoreError> {
        let loaded = self.load_stored(key).await?;
        if self.is_settled() || txn::undecided(&loaded.record).is_none() {
            return Ok(loaded);
        }
        Box::pin(async {
            let _turn = self.alone(key).await;
            self.load_settled(key).await
        })
        .await
    }

    fn jitter(&self) -> f64 {
        // Drawn from what differs between servers and moments; it decides nothing.
        let tick = self.clock.now().tick.0;
        let drawn = self.secret.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(tick << 7);
        0.5 + f64::from(u16::try_from(drawn % 1_024).unwrap_or(0)) / 1_024.0
    }
}

/// Whoever writes a group. Dropped before the end, it tells the others that the outcome is unknown.
struct Lead<'a> {
    records: &'a Arc<Records>,
    key: &'a KeyName,
    group: Arc<Group>,
}

impl Lead<'_> {
    /// Somebody waits for what this group lets go of.
    fn is_passing_on(&self) -> bool {
        let decided = self.group.decided.lock();
        let is_free = decided.last().and_then(|last| last.record.as_ref());
        is_free.is_some_and(|record| record.lease.is_none() && !record.gone)
            && decided
                .iter()
                .flat_map(|one| &one.effects)
                .any(|e| matches!(e, Effect::Ended { .. }))
            && self.records.lines.has(self.key)
    }

    /// From here on nobody joins.
    fn take_off(&self) -> Vec<Decided<()>> {
        let mut tips = self.records.pipes.tips.lock();
        if let Some(tip) = tips.get_mut(self.key) {
            tip.open = None;
            tip.flying = Some(Arc::clone(&self.group));
        }
        std::mem::take(&mut *self.group.decided.lock())
    }

    fn end(self, left: Left) -> Left {
        self.finish(left.clone());
        left
    }

    fn finish(&self, left: Left) {
        let is_mine = |group: &Option<Arc<Group>>| {
            group.as_ref().is_some_and(|g| Arc::ptr_eq(g, &self.group))
        };
        let mut tips = self.records.pipes.tips.lock();
        if let Some(tip) = tips.get_mut(self.key) {
            if is_mine(&tip.flying) {
                tip.flying = None;
            }
            if is_mine(&tip.open) {
                tip.open = None;
            }
            if tip.last().is_none() {
                tips.remove(self.key);
            }
        }
        drop(tips);
        self.group.outcome.send_if_modified(|outcome| {
            let first = outcome.is_none();
            if first {
                *outcome = Some(left);
            }
            first
        });
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.finish(Err(StoreError::Unknown("the writer is gone".into())));
    }
}
