//! The lock in PostgreSQL: an advisory lock of a session, and a row with the epoch.
//!
//! The session makes failures quick to notice: it ends with its process, and the next one may have
//! the lock. The row makes them safe: it says who leads under which epoch, and everything that is
//! done for a leader compares it. A process that is stopped keeps its session. So a leader counts
//! its renewals in the row, and a session that has the advisory lock while the row has not moved
//! for the time to live, by the count of whoever looks, is ended by whoever wants to lead: whether
//! it is a leader that is stopped, or somebody who has no business with the lock.
//!
//! A session that has ended without a word is taken for the end of its leader, which is told of it
//! by its own end of the connection; the next one gives it a moment. If the server itself was
//! started anew, or another one is in its place, nobody may have been told anything: then the next
//! one waits for the whole time to live.

mod database;
mod seat;
mod session;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::clock::{Clock, Moment};
use parking_lot::Mutex as Short;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, Notify};

use crate::lock::{Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Renewal};
use crate::outside::Forgetting;
pub use database::Database;
use seat::{DEPOSE, END, LEADERS, LOOK, RELEASE, RENEW, Stillness, TAKE, View};
pub use session::PostgresSettings;
use session::{Ears, Session, fault};

/// A leader whose session has ended without a word may not have noticed: it is given this long,
/// and never more than half of the time to live.
const MOMENT: Duration = Duration::from_secs(1);
/// How often others look whether the session of the leader is still there.
const PROBE: Duration = Duration::from_millis(200);
/// A session that is being ended, or a lock that somebody else was quicker to get.
const SOON: Duration = Duration::from_millis(30);
/// An answer is waited for at least this long, however short the time to live is.
const ANSWER_MIN: Duration = Duration::from_secs(1);

const POOLED: &str = "the session changes between requests: a pooler is in between; connect to \
                      PostgreSQL itself";

/// The lock of one candidate.
pub struct PostgresLock {
    settings: PostgresSettings,
    name: String,
    /// The number of the advisory lock.
    number: i64,
    candidate: Candidate,
    ttl: Duration,
    clock: Clock,
    seen: AtomicU64,
    session: Mutex<Option<Held>>,
    /// What was seen of the others.
    still: Short<Option<Stillness>>,
    memory: Forgetting,
    told: Arc<Notify>,
    shaken: Arc<Notify>,
}

/// A session, and what is known of what it holds.
struct Held {
    session: Session,
    /// Since when it was seen to have the advisory lock.
    locked: Option<Moment>,
    granted: Option<Epoch>,
}

impl fmt::Debug for PostgresLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresLock({}, {})", self.name, self.candidate.id)
    }
}

impl PostgresLock {
    /// Elections of other names in the same database do not touch each other.
    #[must_use]
    pub fn new(
        settings: PostgresSettings,
        name: &str,
        candidate: Candidate,
        ttl: Duration,
    ) -> Self {
        Self {
            // Whoever renews must hear of a server that is silent while there is time left.
            settings: settings.timeout_at_most((ttl / 4).max(ANSWER_MIN)),
            name: name.into(),
            number: number_of(name),
            candidate,
            ttl,
            clock: Clock::Boot,
            seen: AtomicU64::new(0),
            session: Mutex::new(None),
            still: Short::new(None),
            memory: Forgetting::default(),
            told: Arc::default(),
            shaken: Arc::default(),
        }
    }

    /// The session, made if there is none. A request that was given up in the middle leaves it as
    /// it is: whatever it has done is found out by the next one.
    async fn session(&self) -> Result<MappedMutexGuard<'_, Held>, LockError> {
        let mut held = self.session.lock().await;
        if !held.as_ref().is_some_and(|held| held.session.is_open()) {
            *held = None;
            let ears = Ears {
                name: self.name.clone(),
                told: Arc::clone(&self.told),
                ended: Arc::clone(&self.shaken),
            };
            let session = Session::open(&self.settings, LEADERS, ears).await?;
            if session.is_pooled(&self.settings).await? {
                return Err(LockError::Refused(POOLED.into()));
            }
            *held = Some(Held { session, locked: None, granted: None });
        }
        let held = MutexGuard::try_map(held, Option::as_mut);
        held.map_err(|_| LockError::Unavailable("there is no session".into()))
    }

    /// The session, unless it is gone: then all that it held went with it.
    async fn present(&self) -> Option<MappedMutexGuard<'_, Held>> {
        let held = MutexGuard::try_map(self.session.lock().await, Option::as_mut).ok()?;
        Some(held).filter(|held| held.session.is_open())
    }

    async fn look(&self, held: &mut Held) -> Result<View, LockError> {
        let row = held.session.row(LOOK, &[&self.name, &self.number]).await?;
        let row = row.ok_or_else(|| LockError::Unavailable("no row was given".into()))?;
        let view = View::read(&row).map_err(|error| fault(&error))?;
        if let Some(seat) = &view.seat {
            self.saw(seat.epoch);
        }
        let now = self.clock.now();
        self.still.lock().get_or_insert_with(|| Stillness::new(&view, now)).saw(&view, now);
        if view.is_ours() {
            held.locked.get_or_insert(now);
        } else {
            held.locked = None;
        }
        Ok(view)
    }

    /// How much of the time to live is left, counted from a stillness that was seen.
    fn left(&self, still: impl FnOnce(&Stillness) -> Duration) -> Duration {
        self.ttl.saturating_sub(self.still.lock().as_ref().map_or(Duration::ZERO, still))
    }

    async fn try_now(&self) -> Result<Attempt, LockError> {
        let before = self.seen.load(Ordering::Relaxed);
        let mut held = self.session().await?;
        let asked = self.clock.now();
        let view = self.look(&mut held).await?;
        if !view.is_ours() {
            if let Some(keeper) = view.keeper
                && let Some(holder) = self.kept_by(keeper, &held.session, &view, asked).await?
            {
                return Ok(Attempt::Held(holder));
            }
            if let Some(holder) = self.after_another_server(&view, asked) {
                return Ok(Attempt::Held(holder));
            }
            let locks = "SELECT pg_try_advisory_lock($1) AS locked";
            let locked = held.session.row(locks, &[&self.number]).await?;
            if !locked.is_some_and(|row| row.try_get("locked").unwrap_or(false)) {
                let holder = view.leads().map(|seat| seat.holder(SOON));
                let nobody = Holder { remaining: Some(SOON), ..Holder::default() };
                return Ok(Attempt::Held(holder.unwrap_or(nobody)));
            }
            held.locked = Some(self.clock.now());
        }
        if let Some(holder) = self.moment(&held, &view, asked) {
            return Ok(Attempt::Held(holder));
        }
        let kept = view.seat.is_some_and(|seat| seat.epoch.0 >= before);
        let memory = self.memory.after(kept, self.ttl);
        let epoch = self.take(&mut held, before).await?;
        Ok(Attempt::Granted(Grant { epoch, memory }))
    }

    /// Somebody else's session has the advisory lock: `None` if it has been ended.
    async fn kept_by(
        &self,
        keeper: i32,
        session: &Session,
        view: &View,
        asked: Moment,
    ) -> Result<Option<Holder>, LockError> {
        let left = self.left(|still| still.keeper(asked));
        if !left.is_zero() {
            let nobody = Holder { remaining: Some(left), ..Holder::default() };
            return Ok(Some(view.leads().map_or(nobody, |seat| seat.holder(left))));
        }
        // It is stopped, or cut off, and its session with it; or it was never a leader's.
        let holder = view.leads().map(|seat| seat.id.as_str());
        tracing::warn!(election = %self.name, keeper, holder, "ends a session that does not renew");
        if let Some(seat) = view.leads() {
            let epoch = number(seat.epoch);
            match session.run(DEPOSE, &[&self.name, &epoch, &seat.beat]).await {
                Ok(0) => return Ok(Some(seat.holder(SOON))),
                Err(error) if !session.is_open() => return Err(error),
                // What cannot be written may be held up by that very session.
                Ok(_) | Err(_) => {}
            }
        }
        let ended = session.run(END, &[&self.name, &self.number, &keeper]).await;
        ended.map(|_| None).map_err(|error| match error {
            LockError::Refused(why) => LockError::Refused(format!(
                "the advisory lock {} of the election {:?} is with session {keeper}, which does \
                 not renew it and may not be ended from here: {why}",
                self.number, self.name
            )),
            error @ LockError::Unavailable(_) => error,
        })
    }

    /// Whoever led when another server was here may lead by its own count, and not know.
    fn after_another_server(&self, view: &View, asked: Moment) -> Option<Holder> {
        let left = self.left(|still| still.row(asked));
        let other = self.other(view).filter(|seat| !seat.same_server && !left.is_zero())?;
        Some(other.holder(left))
    }

    /// Whoever has lost its session and may not have noticed yet.
    fn moment(&self, held: &Held, view: &View, asked: Moment) -> Option<Holder> {
        let waited = held.locked.map_or(Duration::ZERO, |at| self.clock.now().since(at));
        let left = MOMENT.min(self.ttl / 2).saturating_sub(waited);
        let left = left.min(self.left(|still| still.row(asked)));
        let other = self.other(view).filter(|_| !left.is_zero())?;
        Some(other.holder(left))
    }

    /// The row, if it is somebody else's who did not release it.
    fn other<'a>(&self, view: &'a View) -> Option<&'a seat::Seat> {
        let seat = view.seat.as_ref();
        seat.filter(|seat| !seat.released && seat.incarnation != self.candidate.incarnation)
    }

    /// With the advisory lock in hand: the next epoch, unless this one is ours already. That counts
    /// as a renewal.
    async fn take(&self, held: &mut Held, seen: u64) -> Result<Epoch, LockError> {
        let seen = i64::try_from(seen).unwrap_or(i64::MAX);
        let (id, incarnation) = (&self.candidate.id, &self.candidate.incarnation);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&self.name, &self.number, &seen, id, incarnation];
        let row = held.session.row(TAKE, &values).await?;
        let epoch = row.and_then(|row| row.try_get::<_, i64>("epoch").ok());
        let epoch = epoch.and_then(|epoch| u64::try_from(epoch).ok()).map(Epoch);
        let epoch = epoch.ok_or_else(|| LockError::Refused(POOLED.into()))?;
        self.saw(epoch);
        held.granted = Some(epoch);
        Ok(epoch)
    }

    async fn renew_now(&self, epoch: Epoch) -> Result<Renewal, LockError> {
        let Some(mut held) = self.present().await else {
            return Ok(Renewal::Lost(Loss::Vanished));
        };
        let incarnation = &self.candidate.incarnation;
        if held.session.run(RENEW, &[&self.name, &number(epoch), incarnation]).await? == 1 {
            return Ok(Renewal::Kept);
        }
        // It is lost, whether or not it can be seen to whom.
        let Some(seat) = self.look(&mut held).await.ok().and_then(|view| view.seat) else {
            return Ok(Renewal::Lost(Loss::Vanished));
        };
        let ours = seat.incarnation == *incarnation;
        if ours && !seat.released && seat.epoch == epoch && held.granted == Some(epoch) {
            // Of another session, and this one never broke.
            return Err(LockError::Refused(POOLED.into()));
        }
        let taken = !ours && !seat.released;
        Ok(Renewal::Lost(if taken { Loss::TakenBy(seat.id) } else { Loss::Vanished }))
    }

    async fn release_now(&self, epoch: Epoch) -> Result<(), LockError> {
        let Some(mut held) = self.present().await else { return Ok(()) };
        let incarnation = &self.candidate.incarnation;
        if held.session.run(RELEASE, &[&self.name, &number(epoch), incarnation]).await? == 0 {
            // Not ours, unless an earlier release was given up half-way.
            let view = self.look(&mut held).await?;
            if !view.is_ours() || view.leads().is_some() {
                return Ok(());
            }
        }
        self.let_go(&mut held).await
    }

    async fn let_go(&self, held: &mut Held) -> Result<(), LockError> {
        // It may have been taken more than once, by requests that were given up.
        let let_go = "SELECT pg_advisory_unlock_all(), pg_notify('lockd_leader', $1)";
        held.session.run(let_go, &[&self.name]).await?;
        (held.locked, held.granted) = (None, None);
        Ok(())
    }

    async fn observe_now(&self) -> Result<Option<Holder>, LockError> {
        let mut held = self.session().await?;
        let asked = self.clock.now();
        let view = self.look(&mut held).await?;
        let waited = held.locked.map_or(Duration::ZERO, |at| self.clock.now().since(at));
        if view.is_ours() && view.leads().is_none() && waited > MOMENT * 2 {
            // Left by an attempt that was given up: whoever only looks keeps nobody from it.
            self.let_go(&mut held).await?;
        }
        let left = self.left(|still| still.keeper(asked));
        Ok(view.leads().filter(|_| !left.is_zero()).map(|seat| seat.holder(left)))
    }

    /// Until the advisory lock changes hands, nobody has it, or whoever has it does not renew.
    async fn vacated_now(&self) {
        let mut before = None;
        loop {
            tokio::select! {
                () = self.told.notified() => return,
                () = tokio::time::sleep(PROBE) => {}
            }
            let Ok(mut held) = self.session().await else { continue };
            let asked = self.clock.now();
            let Ok(view) = self.look(&mut held).await else { continue };
            let still = self.left(|still| still.keeper(asked)).is_zero();
            let keeper = view.keeper.filter(|_| !view.is_ours() && !still);
            if keeper.is_none() || *before.get_or_insert(keeper) != keeper {
                return;
            }
        }
    }
}

fn number(epoch: Epoch) -> i64 {
    i64::try_from(epoch.0).unwrap_or(i64::MAX)
}

/// The same for the same name, everywhere and always.
fn number_of(name: &str) -> i64 {
    // FNV-1a: a name is short, and nobody gains by a collision.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::from_be_bytes(hash.to_be_bytes())
}

impl LeaderLock for PostgresLock {
    fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn try_acquire(&self) -> BoxFuture<'_, Result<Attempt, LockError>> {
        Box::pin(self.try_now())
    }

    fn renew(&self, epoch: Epoch) -> BoxFuture<'_, Result<Renewal, LockError>> {
        Box::pin(self.renew_now(epoch))
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(self.release_now(epoch))
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        Box::pin(self.observe_now())
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.vacated_now())
    }

    fn shaken(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.shaken.notified())
    }

    fn saw(&self, epoch: Epoch) {
        self.seen.fetch_max(epoch.0, Ordering::Relaxed);
    }
}
