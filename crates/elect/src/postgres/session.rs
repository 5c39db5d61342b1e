//! A session of PostgreSQL that belongs to one lock.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::lock::LockError;
use crate::outside::{told, trusting};

/// How a database is reached.
#[derive(Clone)]
pub struct PostgresSettings {
    config: Config,
    /// Certificates of authorities, in PEM. Where they are given, the server must have one of
    /// theirs.
    authorities: Option<Vec<u8>>,
    timeout: Duration,
}

impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresSettings({:?})", self.config.get_hosts())
    }
}

impl PostgresSettings {
    /// From `postgres://user:password@host:port/database`.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, String> {
        let config = Config::from_str(url).map_err(|error| error.to_string())?;
        if config.get_hosts().is_empty() {
            return Err("the address names no host: postgres://user@host:port/database".into());
        }
        Ok(Self { config, authorities: None, timeout: Duration::from_secs(3) })
    }

    /// Over TLS, with these authorities.
    #[must_use]
    pub fn authorities(mut self, pem: Vec<u8>) -> Self {
        self.authorities = Some(pem);
        self
    }

    /// For a connection.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

/// Ends its connection when it goes.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    speaks: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.speaks.abort();
    }
}

/// One after the other: two who make a table at the same time would not both be content.
const IN_LINE: &str = "SELECT pg_advisory_xact_lock(5494762870);";

/// For leader locks.
pub(super) const LEADERS: &str = "
    CREATE TABLE IF NOT EXISTS lockd_leader (
        name text PRIMARY KEY,
        epoch bigint NOT NULL,
        holder text NOT NULL,
        incarnation text NOT NULL,
        backend integer NOT NULL,
        renewed_at timestamptz NOT NULL,
        released boolean NOT NULL
    );
    LISTEN lockd_leader";

impl Session {
    /// `told` hears notifications, `shaken` when the session ends.
    pub(super) async fn open(
        settings: &PostgresSettings,
        set_up: &str,
        told: Arc<Notify>,
        shaken: Arc<Notify>,
    ) -> Result<Self, LockError> {
        let mut config = settings.config.clone();
        config.connect_timeout(settings.timeout).tcp_user_timeout(settings.timeout);
        config.application_name("lockd leader");
        let opening = async {
            match &settings.authorities {
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    Ok((client, speak(connection, told, shaken)))
                }
                Some(pem) => {
                    let tls = MakeRustlsConnect::new(trusting(pem));
                    let (client, connection) = config.connect(tls).await?;
                    Ok((client, speak(connection, told, shaken)))
                }
            }
        };
        let (client, speaks) = opening.await.map_err(|error: Error| fault(&error))?;
        let session = Self { client, speaks };
        // All of it is one transaction.
        let statements = format!("{IN_LINE}{set_up}");
        let set_up = session.client.batch_execute(&statements);
        match tokio::time::timeout(settings.timeout, set_up).await {
            Ok(Ok(())) => Ok(session),
            Ok(Err(error)) => Err(fault(&error)),
            Err(_) => Err(LockError::Unavailable("no answer in time".into())),
        }
    }

    /// The number of rows that were changed.
    pub(super) async fn run(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, LockError> {
        self.client.execute(statement, values).await.map_err(|error| fault(&error))
    }

    /// The one row, if there is one.
    pub(super) async fn row(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, LockError> {
        self.client.query_opt(statement, values).await.map_err(|error| fault(&error))
    }

    pub(super) async fn rows(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LockError> {
        self.client.query(statement, values).await.map_err(|error| fault(&error))
    }

    pub(super) fn is_open(&self) -> bool {
        !self.client.is_closed()
    }
}

/// Carries what is said, until the session ends.
fn speak<S, T>(
    mut connection: Connection<S, T>,
    told: Arc<Notify>,
    shaken: Arc<Notify>,
) -> JoinHandle<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let speaking = async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(_))) => told.notify_one(),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "a session of PostgreSQL ended");
                    break;
                }
                None => break,
            }
        }
        shaken.notify_one();
    };
    #[expect(clippy::disallowed_methods, reason = "ends with its session")]
    tokio::spawn(speaking)
}

/// What the same request would meet again: no right, no such database, a wrong password.
pub(super) fn fault(error: &Error) -> LockError {
    let text = told(error);
    // By class: connection lost, resources, operator's doing, too many connections pass.
    let refused = error.code().is_some_and(|code| {
        let passes = ["08", "40", "53", "57", "58"];
        !passes.iter().any(|class| code.code().starts_with(class))
    });
    if refused { LockError::Refused(text) } else { LockError::Unavailable(text) }
}
