//! The row of an election, whoever has its advisory lock, and how long nothing has moved: counted
//! here, on a clock that nobody sets, because the clock of the database may be.

use std::time::Duration;

use lockd_client::clock::Moment;
use tokio_postgres::Row;

use crate::lock::{Epoch, Holder};

/// Makes the table, or what an older one lacks, and asks for nothing where there is nothing to do:
/// whoever may only use the table need not be allowed to make it. The session is not ended for
/// being idle, nor by the server for a silence that candidates judge for themselves.
pub(super) const LEADERS: &str = "
    DO $$ BEGIN
        IF to_regclass('lockd_leader') IS NULL THEN
            CREATE TABLE lockd_leader (
                name text PRIMARY KEY,
                epoch bigint NOT NULL,
                holder text NOT NULL,
                incarnation text NOT NULL,
                backend integer NOT NULL,
                renewed_at timestamptz NOT NULL,
                released boolean NOT NULL
            );
        END IF;
        IF (SELECT count(*) FROM pg_attribute WHERE attrelid = 'lockd_leader'::regclass
            AND attname IN ('beat', 'server') AND NOT attisdropped) < 2 THEN
            ALTER TABLE lockd_leader
                ADD COLUMN IF NOT EXISTS beat bigint NOT NULL DEFAULT 0,
                ADD COLUMN IF NOT EXISTS server timestamptz;
        END IF;
    END $$;
    SELECT set_config(name, '0', false) FROM pg_settings
    WHERE name IN ('idle_session_timeout', 'tcp_keepalives_idle', 'tcp_user_timeout');
    LISTEN lockd_leader";

/// Whoever has the advisory lock `$2`.
macro_rules! keeper {
    () => {
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
         AND classid = ($2::bigint >> 32 & 4294967295)::oid
         AND objid = ($2::bigint & 4294967295)::oid AND objsubid = 1"
    };
}

/// Always one row; without a name if there is none in the table.
pub(super) const LOOK: &str = concat!(
    "SELECT l.name, epoch, beat, holder, incarnation, released, backend,
            server IS NOT DISTINCT FROM pg_postmaster_start_time() AS same_server,
            pg_backend_pid() AS own, (",
    keeper!(),
    " LIMIT 1) AS keeper
     FROM (SELECT 1) AS one LEFT JOIN lockd_leader AS l ON l.name = $1"
);

/// With the advisory lock in hand: the next epoch, or the present one for the very session that
/// has it.
pub(super) const TAKE: &str = concat!(
    "INSERT INTO lockd_leader AS l
         (name, epoch, beat, holder, incarnation, backend, server, renewed_at, released)
     SELECT $1, $3::bigint + 1, 0, $4, $5, pg_backend_pid(), pg_postmaster_start_time(),
            clock_timestamp(), false
     WHERE pg_backend_pid() IN (",
    keeper!(),
    ")
     ON CONFLICT (name) DO UPDATE SET
         epoch = CASE WHEN l.incarnation = $5 AND l.backend = pg_backend_pid()
                           AND NOT l.released AND l.epoch >= $3::bigint THEN l.epoch
                      ELSE greatest(l.epoch, $3::bigint) + 1 END,
         beat = l.beat + 1, holder = $4, incarnation = $5, backend = pg_backend_pid(),
         server = pg_postmaster_start_time(), renewed_at = clock_timestamp(), released = false
     RETURNING epoch"
);

pub(super) const RENEW: &str = "
    UPDATE lockd_leader SET beat = beat + 1, renewed_at = clock_timestamp()
    WHERE name = $1 AND epoch = $2 AND incarnation = $3 AND NOT released
      AND backend = pg_backend_pid()";

pub(super) const RELEASE: &str = "
    UPDATE lockd_leader SET released = true
    WHERE name = $1 AND epoch = $2 AND incarnation = $3 AND NOT released
      AND backend = pg_backend_pid()";

/// It is over for a leader that has not moved since it was looked at, also if it moves now.
pub(super) const DEPOSE: &str = "
    UPDATE lockd_leader SET released = true
    WHERE name = $1 AND epoch = $2 AND beat = $3 AND NOT released";

/// Ends the session `$3`, if it still has the advisory lock `$2` of the election `$1`.
pub(super) const END: &str = concat!(
    "SELECT pg_terminate_backend(pid), $1::text FROM (",
    keeper!(),
    ") AS k WHERE pid = $3"
);

/// The row.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) epoch: Epoch,
    pub(super) beat: i64,
    pub(super) id: String,
    pub(super) incarnation: String,
    pub(super) released: bool,
    pub(super) backend: i32,
    /// Whether it was taken from the server that runs now, and that never stopped since.
    pub(super) same_server: bool,
}

impl Seat {
    pub(super) fn holder(&self, remaining: Duration) -> Holder {
        Holder { id: self.id.clone(), epoch: Some(self.epoch), remaining: Some(remaining) }
    }
}

/// What can be seen.
#[derive(Debug)]
pub(super) struct View {
    pub(super) seat: Option<Seat>,
    /// The session that has the advisory lock.
    pub(super) keeper: Option<i32>,
    /// The session that looks.
    pub(super) own: i32,
}

impl View {
    pub(super) fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let view = Self { seat: None, keeper: row.try_get("keeper")?, own: row.try_get("own")? };
        if row.try_get::<_, Option<&str>>("name")?.is_none() {
            return Ok(view);
        }
        let epoch: i64 = row.try_get("epoch")?;
        let seat = Seat {
            epoch: Epoch(u64::try_from(epoch).unwrap_or(0)),
            beat: row.try_get("beat")?,
            id: row.try_get("holder")?,
            incarnation: row.try_get("incarnation")?,
            released: row.try_get("released")?,
            backend: row.try_get("backend")?,
            same_server: row.try_get("same_server")?,
        };
        Ok(Self { seat: Some(seat), ..view })
    }

    pub(super) fn is_ours(&self) -> bool {
        self.keeper == Some(self.own)
    }

    /// Whoever leads, if the session that took the lock still has it.
    pub(super) fn leads(&self) -> Option<&Seat> {
        let leads = |seat: &&Seat| !seat.released && self.keeper == Some(seat.backend);
        self.seat.as_ref().filter(leads)
    }

    fn marks(&self) -> Option<(Epoch, i64)> {
        self.seat.as_ref().map(|seat| (seat.epoch, seat.beat))
    }
}

/// Since when things are as they are.
#[derive(Debug)]
pub(super) struct Stillness {
    marks: Option<(Epoch, i64)>,
    keeper: Option<i32>,
    row_since: Moment,
    keeper_since: Moment,
}

impl Stillness {
    /// What was seen by a look that was answered `now`. Whatever moved may have moved until then.
    pub(super) fn saw(&mut self, view: &View, now: Moment) {
        let moved = self.marks != view.marks();
        if moved {
            self.row_since = now;
        }
        if moved || self.keeper != view.keeper {
            self.keeper_since = now;
        }
        (self.marks, self.keeper) = (view.marks(), view.keeper);
    }

    /// Nothing was seen before `now`.
    pub(super) fn new(view: &View, now: Moment) -> Self {
        let (marks, keeper) = (view.marks(), view.keeper);
        Self { marks, keeper, row_since: now, keeper_since: now }
    }

    /// For how long the row has not moved.
    pub(super) fn row(&self, now: Moment) -> Duration {
        now.since(self.row_since)
    }

    /// For how long one session has had the advisory lock while the row did not move.
    pub(super) fn keeper(&self, now: Moment) -> Duration {
        now.since(self.keeper_since)
    }
}
