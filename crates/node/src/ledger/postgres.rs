//! The ledger in PostgreSQL. A write is one statement that reads the epoch's row for sharing and
//! keeps the record if it is there: nothing stays open between two statements, so a process that
//! stops in the middle holds up nobody.

use futures_util::future::BoxFuture;
use lockd_elect::LockError;
use lockd_elect::postgres::{Database, PostgresSettings};

use super::{Answer, Kind, Ledger, LedgerFault, Opened, Record, TERMS_MAX, Term, Written};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS lockd_controller_epoch (
        name text PRIMARY KEY, epoch bigint NOT NULL, node text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS lockd_controller_term (
        name text, epoch bigint, node text NOT NULL,
        began_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (name, epoch)
    );
    CREATE TABLE IF NOT EXISTS lockd_controller_record (
        name text, kind text, id text COLLATE \"C\", body text NOT NULL,
        leader_epoch bigint NOT NULL, PRIMARY KEY (name, kind, id)
    );";

/// Both the latest epoch and the list of all, or neither.
const OPEN: &str = "
    WITH opened AS (
        INSERT INTO lockd_controller_epoch AS e (name, epoch, node) VALUES ($1, $2, $3)
        ON CONFLICT (name) DO UPDATE SET epoch = $2, node = $3
            WHERE e.epoch < $2 OR (e.epoch = $2 AND e.node = $3)
        RETURNING epoch
    )
    INSERT INTO lockd_controller_term (name, epoch, node)
    SELECT $1, epoch, $3 FROM opened
    ON CONFLICT (name, epoch) DO UPDATE SET node = $3";

const WRITE: &str = "
    WITH office AS (
        SELECT 1 FROM lockd_controller_epoch WHERE name = $1 AND epoch = $2 FOR SHARE
    )
    INSERT INTO lockd_controller_record (name, kind, id, body, leader_epoch)
    SELECT $1, $3, $4, $5, $2 FROM office
    ON CONFLICT (name, kind, id) DO UPDATE SET body = $5, leader_epoch = $2";

/// The ledger of one cluster; others of another name can share the database.
#[derive(Debug)]
pub struct PostgresLedger {
    database: Database,
    name: String,
}

impl PostgresLedger {
    #[must_use]
    pub fn new(settings: PostgresSettings, name: &str) -> Self {
        Self { database: Database::new(settings, TABLES), name: name.into() }
    }
}

fn fault(error: LockError) -> LedgerFault {
    match error {
        LockError::Unavailable(why) => LedgerFault::Unavailable(why),
        LockError::Refused(why) => LedgerFault::Refused(why),
    }
}

fn number(epoch: u64) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

fn asked<'a, T>(
    asking: impl Future<Output = Result<T, LockError>> + Send + 'a,
) -> BoxFuture<'a, Result<T, LedgerFault>> {
    Box::pin(async move { asking.await.map_err(fault) })
}

impl Ledger for PostgresLedger {
    fn open<'a>(&'a self, term: &'a Term) -> Answer<'a, Opened> {
        asked(async move {
            let (name, epoch, node) = (&self.name, number(term.epoch), &term.node);
            if self.database.run(OPEN, &[name, &epoch, node]).await? > 0 {
                return Ok(Opened::Yes);
            }
            let look = "SELECT epoch FROM lockd_controller_epoch WHERE name = $1";
            let rows = self.database.rows(look, &[name]).await?;
            let stored: Option<i64> = rows.first().and_then(|row| row.try_get(0).ok());
            let stored = stored.and_then(|epoch| u64::try_from(epoch).ok());
            Ok(Opened::Behind(stored.unwrap_or(term.epoch)))
        })
    }

    fn write<'a>(&'a self, epoch: u64, record: &'a Record) -> Answer<'a, Written> {
        asked(async move {
            let (name, epoch, kind) = (&self.name, number(epoch), record.kind.as_str());
            let written =
                self.database.run(WRITE, &[name, &epoch, &kind, &record.id, &record.body]).await?;
            Ok(if written > 0 { Written::Done } else { Written::Stale })
        })
    }

    fn read<'a>(&'a self, kind: Kind, id: &'a str) -> Answer<'a, Option<Record>> {
        asked(async move {
            let look = "SELECT body FROM lockd_controller_record
                        WHERE name = $1 AND kind = $2 AND id = $3";
            let rows = self.database.rows(look, &[&self.name, &kind.as_str(), &id]).await?;
            let body = rows.first().and_then(|row| row.try_get::<_, String>(0).ok());
            Ok(body.map(|body| Record { kind, id: id.into(), body }))
        })
    }

    fn list<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        asked(async move {
            let look = "SELECT id, body FROM lockd_controller_record
                        WHERE name = $1 AND kind = $2 AND id > $3 ORDER BY id LIMIT $4";
            let (after, limit) = (after.unwrap_or(""), i64::try_from(limit).unwrap_or(i64::MAX));
            let rows =
                self.database.rows(look, &[&self.name, &kind.as_str(), &after, &limit]).await?;
            let record = |row: &tokio_postgres::Row| {
                Some(Record { kind, id: row.try_get(0).ok()?, body: row.try_get(1).ok()? })
            };
            Ok(rows.iter().filter_map(record).collect())
        })
    }

    fn terms(&self) -> Answer<'_, Vec<Term>> {
        asked(async move {
            let look = "SELECT epoch, node FROM lockd_controller_term WHERE name = $1
                        ORDER BY epoch DESC LIMIT $2";
            let limit = i64::try_from(TERMS_MAX).unwrap_or(i64::MAX);
            let rows = self.database.rows(look, &[&self.name, &limit]).await?;
            let term = |row: &tokio_postgres::Row| {
                let epoch: i64 = row.try_get(0).ok()?;
                Some(Term { epoch: u64::try_from(epoch).ok()?, node: row.try_get(1).ok()? })
            };
            Ok(rows.iter().filter_map(term).collect())
        })
    }
}
