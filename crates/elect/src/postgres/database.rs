//! A database for statements that each are a transaction of their own: nothing is held open between
//! two of them, so a process that stops in between holds up nobody.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::session::{PostgresSettings, Session};
use crate::lock::LockError;

/// A connection that is made when it is needed, and made anew after it broke. Nothing is ever sent
/// twice on its own account.
#[derive(Debug)]
pub struct Database {
    settings: PostgresSettings,
    /// Run on every new connection.
    set_up: &'static str,
    session: Mutex<Option<Arc<Session>>>,
}

impl Database {
    /// `set_up` makes what the statements need, if it is not there.
    #[must_use]
    pub fn new(settings: PostgresSettings, set_up: &'static str) -> Self {
        Self { settings, set_up, session: Mutex::new(None) }
    }

    async fn session(&self) -> Result<Arc<Session>, LockError> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| session.is_open()) {
            return Ok(Arc::clone(session));
        }
        let made = Session::open(&self.settings, self.set_up, Arc::default(), Arc::default());
        let made = Arc::new(made.await?);
        *session = Some(Arc::clone(&made));
        Ok(made)
    }

    /// The number of rows that were changed.
    ///
    /// # Errors
    /// When the database cannot be asked, or refuses it.
    pub async fn run(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, LockError> {
        self.session().await?.run(statement, values).await
    }

    /// # Errors
    /// When the database cannot be asked, or refuses it.
    pub async fn rows(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LockError> {
        self.session().await?.rows(statement, values).await
    }
}
