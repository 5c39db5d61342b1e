//! The ledger in PostgreSQL. A write is one statement that reads the epoch's row for sharing and
//! keeps the record if it is there: nothing stays open between two statements, so a process that
//! stops in the middle holds up nobody.
//!
//! The epoch's row also holds a word that is new with every opening. A statement of a process that
//! was killed may still wait in the database when its successor, under the same epoch, has opened
//! and read everything: it carries the old word and changes nothing.

use lockd_elect::LockError;
use lockd_elect::postgres::{Database, PostgresSettings};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{
    Answer, Kind, Ledger, LedgerFault, Opened, PAGE_BYTES, Reader, Record, TERMS_MAX, Term,
    Written, chunk, in_time,
};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS lockd_controller_epoch (
        name text PRIMARY KEY, epoch bigint NOT NULL, node text NOT NULL, opening text NOT NULL
    );
    CREATE TABLE IF NOT EXISTS lockd_controller_term (
        name text, epoch bigint, node text NOT NULL,
        began_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (name, epoch)
    );
    CREATE TABLE IF NOT EXISTS lockd_controller_record (
        name text, kind text, id text COLLATE \"C\", version bigint NOT NULL, body text NOT NULL,
        leader_epoch bigint NOT NULL, PRIMARY KEY (name, kind, id)
    );";

/// Both the latest epoch and the list of all, or neither.
const OPEN: &str = "
    WITH opened AS (
        INSERT INTO lockd_controller_epoch AS e (name, epoch, node, opening)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT (name) DO UPDATE SET epoch = $2, node = $3, opening = $4
            WHERE e.epoch < $2 OR (e.epoch = $2 AND e.node = $3)
        RETURNING epoch
    )
    INSERT INTO lockd_controller_term (name, epoch, node)
    SELECT $1, epoch, $3 FROM opened
    ON CONFLICT (name, epoch) DO UPDATE SET node = $3";

/// How many offices and how many records there were to write: the first tells whether it is stale,
/// the second whether it is superseded.
const WRITE: &str = "
    WITH office AS (
        SELECT 1 FROM lockd_controller_epoch
        WHERE name = $1 AND epoch = $2 AND opening = $3 FOR SHARE
    ), written AS (
        INSERT INTO lockd_controller_record AS r (name, kind, id, version, body, leader_epoch)
        SELECT $1, $4, $5, $6, $7, $2 FROM office
        ON CONFLICT (name, kind, id) DO UPDATE SET version = $6, body = $7, leader_epoch = $2
            WHERE r.version < $6 OR (r.version = $6 AND r.body = $7)
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM office), (SELECT count(*) FROM written)";

const REMOVE: &str = "
    WITH office AS (
        SELECT 1 FROM lockd_controller_epoch
        WHERE name = $1 AND epoch = $2 AND opening = $3 FOR SHARE
    ), removed AS (
        DELETE FROM lockd_controller_record
        WHERE name = $1 AND kind = $4 AND id = $5 AND EXISTS (SELECT 1 FROM office)
    )
    SELECT (SELECT count(*) FROM office), 1::bigint";

/// How much is read at one time, apart from the leader's own: pages of lists, and single records. On
/// one connection answers come one after the other, so each of them waits for all before it.
const LISTS_AT_ONCE: usize = 4;
const READS_AT_ONCE: usize = 16;

/// The ledger of one cluster; others of another name can share the database.
#[derive(Debug)]
pub struct PostgresLedger {
    /// Of whoever leads: what it opens, loads, writes and removes.
    office: Database,
    /// For whoever looks. A connection that is given up fails all that wait on it: a leader's write
    /// must not be among them.
    readers: Database,
    lists: Semaphore,
    reads: Semaphore,
    name: String,
    opening: Mutex<Option<Opening>>,
}

/// The latest opening from here.
#[derive(Clone, Debug)]
struct Opening {
    term: Term,
    word: String,
    /// Whether it is known to have come about. Until then it is repeated with the same word: one
    /// that arrives late must not shut out the one that was answered.
    answered: bool,
}

impl PostgresLedger {
    #[must_use]
    pub fn new(settings: PostgresSettings, name: &str) -> Self {
        Self {
            office: Database::new(settings.clone(), TABLES),
            readers: Database::new(settings, TABLES),
            lists: Semaphore::new(LISTS_AT_ONCE),
            reads: Semaphore::new(READS_AT_ONCE),
            name: name.into(),
            opening: Mutex::new(None),
        }
    }

    /// The word to open with.
    fn word(&self, term: &Term) -> String {
        let mut opening = self.opening.lock();
        if let Some(last) = opening.as_ref()
            && last.term == *term
            && !last.answered
        {
            return last.word.clone();
        }
        let word = format!("{:032x}", rand::random::<u128>());
        *opening = Some(Opening { term: term.clone(), word: word.clone(), answered: false });
        word
    }

    fn answered(&self, word: &str) {
        if let Some(last) = self.opening.lock().as_mut().filter(|last| last.word == word) {
            last.answered = true;
        }
    }

    /// The word under which this epoch was opened here.
    fn opened(&self, epoch: u64) -> Option<String> {
        let opening = self.opening.lock();
        let opening = opening.as_ref().filter(|last| last.answered && last.term.epoch == epoch);
        opening.map(|last| last.word.clone())
    }

    async fn open_now(&self, term: &Term) -> Result<Opened, LedgerFault> {
        let (name, epoch, node) = (&self.name, number(term.epoch), &term.node);
        let word = self.word(term);
        if self.office.run(OPEN, &[name, &epoch, node, &word]).await.map_err(fault)? > 0 {
            self.answered(&word);
            return Ok(Opened::Yes);
        }
        Ok(Opened::Behind(self.latest().await?.unwrap_or(term.epoch)))
    }

    /// The epoch that was opened last.
    async fn latest(&self) -> Result<Option<u64>, LedgerFault> {
        let look = "SELECT epoch FROM lockd_controller_epoch WHERE name = $1";
        let rows = self.office.rows(look, &[&self.name]).await.map_err(fault)?;
        let stored: Option<i64> = rows.first().and_then(|row| row.try_get(0).ok());
        Ok(stored.and_then(|epoch| u64::try_from(epoch).ok()))
    }

    async fn write_now(&self, epoch: u64, record: &Record) -> Result<Written, LedgerFault> {
        let Some(word) = self.opened(epoch) else { return Ok(Written::Stale(None)) };
        let (name, epoch, kind) = (&self.name, number(epoch), record.kind.as_str());
        let (id, version, body) = (&record.id, number(record.version), &record.body);
        let values: [&(dyn ToSql + Sync); 7] = [name, &epoch, &word, &kind, id, &version, body];
        let rows = self.office.rows(WRITE, &values).await.map_err(fault)?;
        self.written(&rows).await
    }

    async fn remove_now(&self, epoch: u64, kind: Kind, id: &str) -> Result<Written, LedgerFault> {
        let Some(word) = self.opened(epoch) else { return Ok(Written::Stale(None)) };
        let (name, epoch, kind) = (&self.name, number(epoch), kind.as_str());
        let values: [&(dyn ToSql + Sync); 5] = [name, &epoch, &word, &kind, &id];
        let rows = self.office.rows(REMOVE, &values).await.map_err(fault)?;
        self.written(&rows).await
    }

    async fn written(&self, rows: &[Row]) -> Result<Written, LedgerFault> {
        let counts = |row: &Row| Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?));
        match rows.first().map(counts) {
            // That it is stale is certain, whether or not it can be seen who is the latest.
            Some(Ok((0, _))) => Ok(Written::Stale(self.latest().await.ok().flatten())),
            Some(Ok((_, 0))) => Ok(Written::Superseded),
            Some(Ok(_)) => Ok(Written::Done),
            Some(Err(error)) => Err(unread(&error)),
            None => Err(LedgerFault::Unavailable("the database gave no row".into())),
        }
    }

    /// Rows for whoever looks, when it is its turn.
    async fn seen(
        &self,
        places: &Semaphore,
        look: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LedgerFault> {
        let _place = places.acquire().await.ok();
        self.readers.rows(look, values).await.map_err(fault)
    }

    async fn list_now(
        &self,
        reader: Reader,
        (kind, after): (Kind, Option<&str>),
        limit: usize,
    ) -> Result<Vec<Record>, LedgerFault> {
        let look = "SELECT id, version, body FROM lockd_controller_record
                    WHERE name = $1 AND kind = $2 AND id > $3 ORDER BY id LIMIT $4";
        let mut after = after.unwrap_or("").to_owned();
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < limit && bytes < PAGE_BYTES {
            let wanted = (limit - records.len()).min(chunk(records.len(), bytes));
            let count = i64::try_from(wanted).unwrap_or(i64::MAX);
            let kind_text = kind.as_str();
            let values: [&(dyn ToSql + Sync); 4] = [&self.name, &kind_text, &after, &count];
            let rows = match reader {
                Reader::Leader => self.office.rows(look, &values).await.map_err(fault)?,
                Reader::Client => self.seen(&self.lists, look, &values).await?,
            };
            for row in &rows {
                let id: String = row.try_get(0).map_err(|error| unread(&error))?;
                after.clone_from(&id);
                match read(kind, id, row.try_get(1), row.try_get(2)) {
                    Ok(record) => {
                        bytes += record.body.len();
                        records.push(record);
                    }
                    Err(error) => tracing::error!(%error, "a record cannot be read"),
                }
            }
            if rows.len() < wanted {
                break;
            }
        }
        Ok(records)
    }
}

fn read(
    kind: Kind,
    id: String,
    version: Result<i64, tokio_postgres::Error>,
    body: Result<String, tokio_postgres::Error>,
) -> Result<Record, tokio_postgres::Error> {
    let version = u64::try_from(version?).unwrap_or(0);
    Ok(Record { kind, id, version, body: body? })
}

/// What has an answer that cannot be read may have happened.
fn unread(error: &tokio_postgres::Error) -> LedgerFault {
    LedgerFault::Unavailable(error.to_string())
}

fn fault(error: LockError) -> LedgerFault {
    match error {
        LockError::Unavailable(why) => LedgerFault::Unavailable(why),
        LockError::Refused(why) => LedgerFault::Refused(why),
    }
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Ledger for PostgresLedger {
    fn open<'a>(&'a self, term: &'a Term) -> Answer<'a, Opened> {
        in_time(self.open_now(term))
    }

    fn write<'a>(&'a self, epoch: u64, record: &'a Record) -> Answer<'a, Written> {
        in_time(self.write_now(epoch, record))
    }

    fn remove<'a>(&'a self, epoch: u64, kind: Kind, id: &'a str) -> Answer<'a, Written> {
        in_time(self.remove_now(epoch, kind, id))
    }

    fn read<'a>(&'a self, kind: Kind, id: &'a str) -> Answer<'a, Option<Record>> {
        in_time(async move {
            let look = "SELECT version, body FROM lockd_controller_record
                        WHERE name = $1 AND kind = $2 AND id = $3";
            let kind_text = kind.as_str();
            let values: [&(dyn ToSql + Sync); 3] = [&self.name, &kind_text, &id];
            let rows = self.seen(&self.reads, look, &values).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            let record = read(kind, id.into(), row.try_get(0), row.try_get(1));
            record.map(Some).map_err(|error| unread(&error))
        })
    }

    fn list<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        in_time(self.list_now(Reader::Client, (kind, after), limit))
    }

    fn load<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        in_time(self.list_now(Reader::Leader, (kind, after), limit))
    }

    fn terms(&self) -> Answer<'_, Vec<Term>> {
        in_time(async move {
            let look = "SELECT epoch, node FROM lockd_controller_term WHERE name = $1
                        ORDER BY epoch DESC LIMIT $2";
            let limit = i64::try_from(TERMS_MAX).unwrap_or(i64::MAX);
            let rows = self.seen(&self.reads, look, &[&self.name, &limit]).await?;
            let term = |row: &Row| {
                let epoch: i64 = row.try_get(0).ok()?;
                Some(Term { epoch: u64::try_from(epoch).ok()?, node: row.try_get(1).ok()? })
            };
            Ok(rows.iter().filter_map(term).collect())
        })
    }
}
