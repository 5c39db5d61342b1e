//! The lock in PostgreSQL: an advisory lock of a session, and a row with the epoch.
//!
//! The session makes failures quick to notice: it ends with its process, and the next one may have
//! the lock. The row makes them safe: it says who leads under which epoch, and everything that is
//! done for a leader compares it. A process that is stopped keeps its session; one that has not
//! renewed for the time to live, by the clock of the database, has it ended by whoever wants to
//! lead.

mod database;
mod session;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::clock::{Clock, Moment};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, Notify};
use tokio_postgres::Row;

use crate::lock::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};
pub use database::Database;
pub use session::PostgresSettings;
use session::{LEADERS, Session, fault};

/// A leader whose session has ended without a word may not have noticed: it is given this long.
const MOMENT: Duration = Duration::from_secs(1);
/// How often others look whether the session of the leader is still there.
const PROBE: Duration = Duration::from_millis(250);

/// What is known of the row: who leads, and how it is with its session.
const LOOK: &str = "
    SELECT epoch, holder, incarnation, released, backend,
           (extract(epoch FROM clock_timestamp() - renewed_at) * 1000)::bigint AS silent,
           EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                   AND classid = ($2::bigint >> 32 & 4294967295)::oid
                   AND objid = ($2::bigint & 4294967295)::oid AND objsubid = 1
                   AND pid = backend) AS present
    FROM lockd_leader WHERE name = $1";

/// The next epoch, or the present one for the very session that has it.
const TAKE: &str = "
    INSERT INTO lockd_leader AS l
        (name, epoch, holder, incarnation, backend, renewed_at, released)
    VALUES ($1, $2::bigint + 1, $3, $4, pg_backend_pid(), clock_timestamp(), false)
    ON CONFLICT (name) DO UPDATE SET
        epoch = CASE WHEN l.incarnation = $4 AND l.backend = pg_backend_pid()
                          AND NOT l.released AND l.epoch >= $2::bigint THEN l.epoch
                     ELSE greatest(l.epoch, $2::bigint) + 1 END,
        holder = $3, incarnation = $4, backend = pg_backend_pid(),
        renewed_at = clock_timestamp(), released = false
    RETURNING epoch";

const RENEW: &str = "
    UPDATE lockd_leader SET renewed_at = clock_timestamp()
    WHERE name = $1 AND epoch = $2 AND incarnation = $3 AND NOT released
      AND backend = pg_backend_pid()";

const RELEASE: &str = "
    UPDATE lockd_leader SET released = true
    WHERE name = $1 AND epoch = $2 AND incarnation = $3 AND NOT released";

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
    told: Arc<Notify>,
    shaken: Arc<Notify>,
}

/// A session, and what it holds.
struct Held {
    session: Session,
    /// Since when it has the advisory lock.
    locked: Option<Moment>,
}

/// The row.
struct Seat {
    epoch: Epoch,
    id: String,
    incarnation: String,
    released: bool,
    backend: i32,
    silent: Duration,
    /// Whether the session that took the lock still has it.
    present: bool,
}

impl Seat {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let (epoch, silent): (i64, i64) = (row.try_get("epoch")?, row.try_get("silent")?);
        Ok(Self {
            epoch: Epoch(u64::try_from(epoch).unwrap_or(0)),
            id: row.try_get("holder")?,
            incarnation: row.try_get("incarnation")?,
            released: row.try_get("released")?,
            backend: row.try_get("backend")?,
            silent: Duration::from_millis(u64::try_from(silent).unwrap_or(0)),
            present: row.try_get("present")?,
        })
    }

    fn holder(&self, ttl: Duration) -> Holder {
        Holder {
            id: self.id.clone(),
            epoch: Some(self.epoch),
            remaining: Some(ttl.saturating_sub(self.silent)),
        }
    }
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
            settings,
            name: name.into(),
            number: number_of(name),
            candidate,
            ttl,
            clock: Clock::Boot,
            seen: AtomicU64::new(0),
            session: Mutex::new(None),
            told: Arc::default(),
            shaken: Arc::default(),
        }
    }

    /// The session, made if there is none. A request that was given up in the middle leaves it as
    /// it is: whatever it has done is found out by the next one.
    async fn session(&self) -> Result<MappedMutexGuard<'_, Held>, LockError> {
        let mut held = self.session.lock().await;
        if !held.as_ref().is_some_and(|held| held.session.is_open()) {
            let (told, shaken) = (Arc::clone(&self.told), Arc::clone(&self.shaken));
            *held = None;
            let session = Session::open(&self.settings, LEADERS, told, shaken).await?;
            *held = Some(Held { session, locked: None });
        }
        let held = MutexGuard::try_map(held, Option::as_mut);
        held.map_err(|_| LockError::Unavailable("there is no session".into()))
    }

    async fn look(&self, session: &Session) -> Result<Option<Seat>, LockError> {
        let row = session.row(LOOK, &[&self.name, &self.number]).await?;
        let Some(row) = row else { return Ok(None) };
        let seat = Seat::read(&row).map_err(|error| fault(&error))?;
        self.saw(seat.epoch);
        Ok(Some(seat))
    }

    async fn try_now(&self) -> Result<Attempt, LockError> {
        let before = self.seen.load(Ordering::Relaxed);
        let mut held = self.session().await?;
        let seat = self.look(&held.session).await?;
        if held.locked.is_none() {
            let sits = seat.as_ref().filter(|seat| seat.present && !seat.released);
            if let Some(seat) = sits {
                if seat.silent < self.ttl {
                    return Ok(Attempt::Held(seat.holder(self.ttl)));
                }
                // It is stopped, or cut off, and its session with it.
                tracing::warn!(holder = %seat.id, silent = ?seat.silent, "ends a silent session");
                held.session.run("SELECT pg_terminate_backend($1)", &[&seat.backend]).await?;
            }
            let locks = "SELECT pg_try_advisory_lock($1) AS locked";
            let locked = held.session.row(locks, &[&self.number]).await?;
            if !locked.is_some_and(|row| row.try_get("locked").unwrap_or(false)) {
                let soon = Some(PROBE);
                let holder = seat.map(|seat| Holder { remaining: soon, ..seat.holder(self.ttl) });
                return Ok(Attempt::Held(holder.unwrap_or_default()));
            }
            held.locked = Some(self.clock.now());
        }
        let since = held.locked.map_or(Duration::ZERO, |at| self.clock.now().since(at));
        let other = seat
            .as_ref()
            .filter(|seat| !seat.released && seat.incarnation != self.candidate.incarnation);
        if let Some(other) = other {
            let left = MOMENT.min(self.ttl.saturating_sub(other.silent)).saturating_sub(since);
            if !left.is_zero() {
                let holder = Holder { remaining: Some(left), ..other.holder(self.ttl) };
                return Ok(Attempt::Held(holder));
            }
        }
        let kept = seat.is_some_and(|seat| seat.epoch.0 >= before);
        let epoch = self.take(&held.session, before).await?;
        let memory = if kept { Memory::Kept } else { Memory::Lost };
        Ok(Attempt::Granted(Grant { epoch, memory }))
    }

    /// With the advisory lock in hand: the next epoch, unless this one is ours already.
    async fn take(&self, session: &Session, seen: u64) -> Result<Epoch, LockError> {
        let seen = i64::try_from(seen).unwrap_or(i64::MAX);
        let (id, incarnation) = (&self.candidate.id, &self.candidate.incarnation);
        let row = session.row(TAKE, &[&self.name, &seen, id, incarnation]).await?;
        let epoch = row.and_then(|row| row.try_get::<_, i64>("epoch").ok());
        let epoch = epoch.and_then(|epoch| u64::try_from(epoch).ok()).map(Epoch);
        let epoch = epoch.ok_or_else(|| LockError::Unavailable("no epoch was given".into()))?;
        self.saw(epoch);
        Ok(epoch)
    }

    async fn renew_now(&self, epoch: Epoch) -> Result<Renewal, LockError> {
        let held = self.session().await?;
        let number = i64::try_from(epoch.0).unwrap_or(i64::MAX);
        let incarnation = &self.candidate.incarnation;
        if held.session.run(RENEW, &[&self.name, &number, incarnation]).await? == 1 {
            return Ok(Renewal::Kept);
        }
        match self.look(&held.session).await? {
            Some(seat) if self.is_elsewhere(&held, &seat, epoch) => Err(LockError::Refused(
                "the session changes between requests: a pooler is in between; connect to \
                 PostgreSQL itself"
                    .into(),
            )),
            Some(seat) if !seat.released && seat.incarnation != *incarnation => {
                Ok(Renewal::Lost(Loss::TakenBy(seat.id)))
            }
            Some(_) | None => Ok(Renewal::Lost(Loss::Vanished)),
        }
    }

    /// Ours by the row, on a session that never broke, and yet of another backend.
    fn is_elsewhere(&self, held: &Held, seat: &Seat, epoch: Epoch) -> bool {
        let ours = seat.incarnation == self.candidate.incarnation && seat.epoch == epoch;
        ours && !seat.released && held.locked.is_some()
    }

    async fn release_now(&self, epoch: Epoch) -> Result<(), LockError> {
        let mut held = self.session().await?;
        let number = i64::try_from(epoch.0).unwrap_or(i64::MAX);
        let incarnation = &self.candidate.incarnation;
        if held.session.run(RELEASE, &[&self.name, &number, incarnation]).await? == 1 {
            // It may have been taken more than once, by requests that were given up.
            let let_go = "SELECT pg_advisory_unlock_all(), pg_notify('lockd_leader', $1)";
            held.session.run(let_go, &[&self.name]).await?;
            held.locked = None;
        }
        Ok(())
    }

    async fn observe_now(&self) -> Result<Option<Holder>, LockError> {
        let held = self.session().await?;
        let seat = self.look(&held.session).await?;
        let sits = seat.filter(|seat| !seat.released && (seat.present || seat.silent < self.ttl));
        Ok(sits.map(|seat| seat.holder(self.ttl)))
    }

    /// Until the session of the holder is gone, or somebody has said that the lock is free.
    async fn vacated_now(&self) {
        loop {
            tokio::select! {
                () = self.told.notified() => return,
                () = tokio::time::sleep(PROBE) => {}
            }
            let Ok(held) = self.session().await else { continue };
            if let Ok(seat) = self.look(&held.session).await
                && seat.is_none_or(|seat| seat.released || !seat.present)
            {
                return;
            }
        }
    }
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
