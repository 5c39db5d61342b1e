//! A database for statements that each are a transaction of their own: nothing is held open between
//! two of them, so a process that stops in between holds up nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::session::{Ears, PostgresSettings, Session};
use crate::lock::LockError;

/// A connection that is made when it is needed, and made anew after it broke or did not answer.
/// Nothing is ever sent twice on its own account.
#[derive(Debug)]
pub struct Database {
    settings: PostgresSettings,
    /// Run on every new connection.
    set_up: &'static str,
    session: Mutex<Option<Arc<Line>>>,
}

/// A session, and whether new requests may use it.
#[derive(Debug)]
struct Line {
    session: Session,
    doubted: AtomicBool,
}

/// A request that may be given up by whoever asked. If it is, nothing is known of its session: the
/// next request has a new one, while those that wait for answers on the old one still get them.
struct Asked {
    line: Arc<Line>,
    answered: bool,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.answered {
            self.line.doubted.store(true, Ordering::Relaxed);
        }
    }
}

impl Database {
    /// `set_up` makes what the statements need, if it is not there.
    #[must_use]
    pub fn new(settings: PostgresSettings, set_up: &'static str) -> Self {
        Self { settings, set_up, session: Mutex::new(None) }
    }

    async fn ask(&self) -> Result<Asked, LockError> {
        let mut session = self.session.lock().await;
        let usable =
            |line: &&Arc<Line>| line.session.is_open() && !line.doubted.load(Ordering::Relaxed);
        if let Some(line) = session.as_ref().filter(usable) {
            return Ok(Asked { line: Arc::clone(line), answered: false });
        }
        let made = Session::open(&self.settings, self.set_up, Ears::default()).await?;
        let line = Arc::new(Line { session: made, doubted: AtomicBool::new(false) });
        *session = Some(Arc::clone(&line));
        Ok(Asked { line, answered: false })
    }

    /// The number of rows that were changed.
    ///
    /// # Errors
    /// When the database cannot be asked, does not answer in time, or refuses it.
    pub async fn run(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, LockError> {
        let mut asked = self.ask().await?;
        let answer = asked.line.session.run(statement, values).await;
        asked.answered = true;
        answer
    }

    /// # Errors
    /// When the database cannot be asked, does not answer in time, or refuses it.
    pub async fn rows(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LockError> {
        let mut asked = self.ask().await?;
        let answer = asked.line.session.rows(statement, values).await;
        asked.answered = true;
        answer
    }
}
