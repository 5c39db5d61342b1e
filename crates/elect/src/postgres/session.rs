//! A session of PostgreSQL. Whatever is asked has an end in time, on the server and here; a session
//! that does not answer is not used again.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockd_client::chain;
use rustls::ClientConfig;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::ToSql;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, NoTls, Row, SimpleQueryMessage,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::lock::LockError;
use crate::tls::Tls;

/// How a database is reached.
#[derive(Clone)]
pub struct PostgresSettings {
    config: Config,
    /// Where it is there, nothing is sent without it.
    tls: Option<ClientConfig>,
    timeout: Duration,
}

impl fmt::Debug for PostgresSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresSettings({:?})", self.config.get_hosts())
    }
}

impl PostgresSettings {
    /// From `postgres://user:password@host:port/database`. With `sslmode=require`, or where
    /// certificates are given, over TLS or not at all.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn parse(url: &str, tls: &Tls) -> Result<Self, String> {
        let mut config = Config::from_str(&required(url)).map_err(|error| error.to_string())?;
        if config.get_hosts().is_empty() {
            return Err("the address names no host: postgres://user@host:port/database".into());
        }
        let mode = config.get_ssl_mode();
        if mode == SslMode::Disable && tls.is_given() {
            return Err("sslmode=disable does not go with certificates".into());
        }
        let wanted = mode == SslMode::Require || tls.is_given();
        if wanted {
            // Otherwise whoever is in between could say that the server speaks no TLS.
            config.ssl_mode(SslMode::Require);
        }
        let tls = wanted.then(|| tls.config()).transpose()?;
        Ok(Self { config, tls, timeout: Duration::from_secs(3) })
    }

    /// For a connection, and for an answer.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Not longer than this.
    pub(super) fn timeout_at_most(self, longest: Duration) -> Self {
        let timeout = self.timeout.min(longest);
        self.timeout(timeout)
    }

    /// What every session is told first: nothing takes longer than whoever asked waits for it, and
    /// what was confirmed is on a disk.
    fn manners(&self) -> String {
        let longest = (self.timeout - self.timeout / 5).as_millis().max(1);
        format!(
            "SET statement_timeout = {longest}; SET lock_timeout = {longest};
             SELECT set_config('synchronous_commit', 'on', false)
             WHERE current_setting('synchronous_commit') IN ('off', 'local')"
        )
    }
}

/// What others call `verify-full` is the only way here, whatever it is called.
fn required(url: &str) -> String {
    let Some((address, query)) = url.split_once('?') else { return url.to_owned() };
    let query = query.replace("sslmode=verify-full", "sslmode=require");
    format!("{address}?{}", query.replace("sslmode=verify-ca", "sslmode=require"))
}

/// Who hears from a session.
#[derive(Clone, Debug, Default)]
pub(super) struct Ears {
    /// Notifications with this text are told.
    pub(super) name: String,
    pub(super) told: Arc<Notify>,
    /// That the session has ended.
    pub(super) ended: Arc<Notify>,
}

/// Ends its connection when it goes.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    speaks: JoinHandle<()>,
    timeout: Duration,
    given_up: AtomicBool,
    ended: Arc<Notify>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.speaks.abort();
    }
}

/// One after the other: two who make a table at the same time would not both be content.
const IN_LINE: &str = "SELECT pg_advisory_xact_lock(5494762870);";
/// How long a connection may be silent before the system asks whether the other side is there.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const ALIVE_TRIES: u32 = 3;

const NO_ANSWER: &str = "PostgreSQL does not answer in time";

impl Session {
    pub(super) async fn open(
        settings: &PostgresSettings,
        set_up: &str,
        ears: Ears,
    ) -> Result<Self, LockError> {
        let opening = async {
            let session = Self::connect(settings, ears).await?;
            session.asked(session.client.batch_execute(&settings.manners())).await?;
            // All of it is one transaction.
            let statements = format!("{IN_LINE}{set_up}");
            session.asked(session.client.batch_execute(&statements)).await?;
            Ok(session)
        };
        // Connecting and setting it up together.
        let opened = tokio::time::timeout(settings.timeout * 2, opening).await;
        opened.unwrap_or_else(|_| Err(LockError::Unavailable(NO_ANSWER.into())))
    }

    async fn connect(settings: &PostgresSettings, ears: Ears) -> Result<Self, LockError> {
        let PostgresSettings { timeout, .. } = *settings;
        let mut config = settings.config.clone();
        config.connect_timeout(timeout).tcp_user_timeout(timeout);
        config.keepalives_idle(ALIVE_EVERY).keepalives_interval(ALIVE_EVERY);
        config.keepalives_retries(ALIVE_TRIES);
        config.application_name("lockd leader");
        let ended = Arc::clone(&ears.ended);
        let opening = async {
            match &settings.tls {
                None => {
                    let (client, connection) = config.connect(NoTls).await?;
                    Ok((client, speak(connection, ears)))
                }
                Some(tls) => {
                    let tls = MakeRustlsConnect::new(tls.clone());
                    let (client, connection) = config.connect(tls).await?;
                    Ok((client, speak(connection, ears)))
                }
            }
        };
        let (client, speaks) = opening.await.map_err(|error: Error| fault(&error))?;
        Ok(Self { client, speaks, timeout, given_up: AtomicBool::new(false), ended })
    }

    /// Whether two connections are served by one session: then something in between deals them
    /// out as it likes, and nothing that belongs to a session can be relied on.
    pub(super) async fn is_pooled(&self, settings: &PostgresSettings) -> Result<bool, LockError> {
        let first = self.backend().await?;
        let looking = async { Self::connect(settings, Ears::default()).await?.backend().await };
        let second = tokio::time::timeout(settings.timeout, looking).await;
        // Who cannot have a second one has learnt nothing.
        Ok(matches!(second, Ok(Ok(second)) if second == first))
    }

    /// The number of the process that serves it.
    async fn backend(&self) -> Result<Option<String>, LockError> {
        let answer = self.client.simple_query("SELECT pg_backend_pid()");
        let answer = self.asked(answer).await?;
        Ok(answer.iter().find_map(|message| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            row.get(0).map(Into::into)
        }))
    }

    /// The number of rows that were changed.
    pub(super) async fn run(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, LockError> {
        self.asked(self.client.execute(statement, values)).await
    }

    /// The one row, if there is one.
    pub(super) async fn row(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, LockError> {
        self.asked(self.client.query_opt(statement, values)).await
    }

    pub(super) async fn rows(
        &self,
        statement: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, LockError> {
        self.asked(self.client.query(statement, values)).await
    }

    /// An answer in time, or the end of the session.
    async fn asked<T>(
        &self,
        asking: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, LockError> {
        match tokio::time::timeout(self.timeout, asking).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if is_reader(&error) {
                    // The next one may be that of whoever may write.
                    self.give_up();
                }
                Err(fault(&error))
            }
            Err(_) => {
                self.give_up();
                Err(LockError::Unavailable(NO_ANSWER.into()))
            }
        }
    }

    /// It is not used again, and what it held is lost.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
        self.speaks.abort();
        self.ended.notify_one();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed) && !self.client.is_closed()
    }
}

/// Carries what is said, until the session ends.
fn speak<S, T>(mut connection: Connection<S, T>, ears: Ears) -> JoinHandle<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let speaking = async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(news))) if news.payload() == ears.name => {
                    ears.told.notify_one();
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "a session of PostgreSQL ended");
                    break;
                }
                None => break,
            }
        }
        // Whoever hears that it has ended must find it closed.
        drop(connection);
        ears.ended.notify_one();
    };
    #[expect(clippy::disallowed_methods, reason = "ends with its session")]
    tokio::spawn(speaking)
}

/// It was asked to write, and only reads: a standby, or about to become one.
const READ_ONLY: &str = "25006";
/// Somebody had what it needed for too long.
const LOCK_TIMEOUT: &str = "55P03";

fn is_reader(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code() == READ_ONLY)
}

/// What the same request would meet again: no right, no such database, a wrong password.
pub(super) fn fault(error: &Error) -> LockError {
    let text = chain(error);
    // By class: connection lost, resources, operator's doing, too many connections pass.
    let refused = error.code().is_some_and(|code| {
        let passes = ["08", "40", "53", "57", "58", READ_ONLY, LOCK_TIMEOUT];
        !passes.iter().any(|class| code.code().starts_with(class))
    });
    if refused { LockError::Refused(text) } else { LockError::Unavailable(text) }
}
