//! A connection to Redis that is made when it is needed, and made anew after it broke. Nothing is
//! ever sent twice on its own account.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::redis::aio::{ConnectionLike, MultiplexedConnection, PubSub};
use ::redis::cluster::ClusterClientBuilder;
use ::redis::cluster_async::ClusterConnection;
use ::redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use ::redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ErrorKind, FromRedisValue,
    IntoConnectionInfo, RedisConnectionInfo, RedisError, RedisFuture, ScriptInvocation,
    ServerErrorKind, TlsCertificates, TlsMode, Value,
};
use futures_util::StreamExt;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use super::address::{Address, Kind};
use crate::lock::LockError;
use crate::tls::{Identity, Tls};

/// How a Redis is reached.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    pub address: Address,
    /// For addresses over TLS.
    pub tls: Tls,
    /// For a connection, and for an answer.
    pub timeout: Duration,
}

impl RedisSettings {
    #[must_use]
    pub fn new(address: Address) -> Self {
        Self { address, tls: Tls::default(), timeout: Duration::from_secs(3) }
    }
}

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
pub enum RedisFault {
    /// Nobody knows what became of it.
    #[error("{0}")]
    Unavailable(String),
    /// Redis said no, and will say so again.
    #[error("{0}")]
    Refused(String),
}

impl RedisFault {
    /// The same, with the servers that were asked and the likely cause.
    fn at(self, address: &Address) -> Self {
        let told = |why: String| {
            let hosts: Vec<String> =
                address.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
            let hosts = hosts.join(",");
            // The parser quotes what it read, over several lines.
            let first = why.lines().next().unwrap_or_default();
            match why.contains("Parse error") {
                true => format!(
                    "redis {hosts}: no Redis speaks there, or only over TLS (rediss://): {first}"
                ),
                false => format!("redis {hosts}: {first}"),
            }
        };
        match self {
            Self::Unavailable(why) => Self::Unavailable(told(why)),
            Self::Refused(why) => Self::Refused(told(why)),
        }
    }
}

impl From<RedisFault> for LockError {
    fn from(fault: RedisFault) -> Self {
        match fault {
            RedisFault::Unavailable(why) => Self::Unavailable(why),
            RedisFault::Refused(why) => Self::Refused(why),
        }
    }
}

/// How long after a broken subscription the next one is made.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// A Redis. Clones share one connection.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    settings: RedisSettings,
    connection: Mutex<Option<Connection>>,
    /// Somebody gave up waiting for an answer: the next request has a new connection.
    doubted: AtomicBool,
}

/// A request whose answer somebody waits for, until it is there.
struct Asked<'a> {
    doubted: &'a AtomicBool,
    answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.doubted.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.shared.settings.address)
    }
}

#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Redis {
    #[must_use]
    pub fn new(settings: RedisSettings) -> Self {
        let doubted = AtomicBool::new(false);
        Self { shared: Arc::new(Shared { settings, connection: Mutex::new(None), doubted }) }
    }

    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.settings.address
    }

    /// Runs a script.
    ///
    /// # Errors
    /// When Redis cannot be reached or refuses it.
    pub async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, RedisFault> {
        let asked = async {
            let mut connection = self.connection().await?;
            let mut asked = Asked { doubted: &self.shared.doubted, answered: false };
            let answer = script.invoke_async(&mut connection).await;
            asked.answered = true;
            match answer {
                Ok(answer) => Ok(answer),
                Err(error) => Err(self.failed(error).await),
            }
        };
        self.in_time(asked).await
    }

    /// Sends one command.
    ///
    /// # Errors
    /// When Redis cannot be reached or refuses it.
    pub async fn send<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisFault> {
        let asked = async {
            let mut connection = self.connection().await?;
            let mut asked = Asked { doubted: &self.shared.doubted, answered: false };
            let answer = command.query_async(&mut connection).await;
            asked.answered = true;
            match answer {
                Ok(answer) => Ok(answer),
                Err(error) => Err(self.failed(error).await),
            }
        };
        self.in_time(asked).await
    }

    /// Connecting and answering together.
    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, RedisFault>>,
    ) -> Result<T, RedisFault> {
        let timeout = self.shared.settings.timeout * 2;
        let address = &self.shared.settings.address;
        match tokio::time::timeout(timeout, asked).await {
            Ok(answer) => answer.map_err(|fault| fault.at(address)),
            Err(_) => Err(RedisFault::Unavailable("no answer in time".into()).at(address)),
        }
    }

    async fn connection(&self) -> Result<Connection, RedisFault> {
        let mut connection = self.shared.connection.lock().await;
        if self.shared.doubted.swap(false, Ordering::Relaxed) {
            *connection = None;
        }
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let made = self.connect().await.map_err(|error| fault(&error))?;
        *connection = Some(made.clone());
        Ok(made)
    }

    /// A broken connection is not used again; a server that is no longer the first is not either.
    async fn failed(&self, error: RedisError) -> RedisFault {
        let moved = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
        let broken = error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error();
        let fault = fault(&error);
        if broken || moved || error.is_connection_dropped() {
            *self.shared.connection.lock().await = None;
        }
        fault
    }

    async fn connect(&self) -> Result<Connection, RedisError> {
        let RedisSettings { address, tls, timeout } = &self.shared.settings;
        if address.kind == Kind::Cluster {
            let mut builder = ClusterClientBuilder::new(self.addresses())
                // What was sent may have been done: whoever asked decides what to do about it.
                .retries(0)
                .connection_timeout(*timeout)
                .response_timeout(*timeout);
            if let Some(username) = &address.username {
                builder = builder.username(username);
            }
            if let Some(password) = &address.password {
                builder = builder.password(password);
            }
            if address.tls {
                builder = builder.tls(TlsMode::Secure);
            }
            if tls.is_given() {
                builder = builder.certs(self.certificates());
            }
            return Ok(Connection::Cluster(builder.build()?.get_async_connection().await?));
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(*timeout))
            .set_response_timeout(Some(*timeout));
        let client = self.client().await?;
        let made = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Connection::One(made))
    }

    fn addresses(&self) -> Vec<ConnectionAddr> {
        let Address { hosts, tls, .. } = self.address();
        let made = hosts.iter().map(|(host, port)| {
            if *tls {
                let host = host.clone();
                ConnectionAddr::TcpTls { host, port: *port, insecure: false, tls_params: None }
            } else {
                ConnectionAddr::Tcp(host.clone(), *port)
            }
        });
        made.collect()
    }

    fn certificates(&self) -> TlsCertificates {
        let Tls { authorities, identity } = self.shared.settings.tls.clone();
        let shown = |Identity { certificate, key }| ClientTlsConfig {
            client_cert: certificate,
            client_key: key,
        };
        TlsCertificates { client_tls: identity.map(shown), root_cert: authorities }
    }

    /// A client of one server: the only one, the one that the sentinels name, any of a cluster.
    async fn client(&self) -> Result<Client, RedisError> {
        let address = self.address();
        if let Kind::Sentinel(service) = &address.kind {
            let kind = SentinelServerType::Master;
            let mut builder = SentinelClientBuilder::new(self.addresses(), service, kind)?
                .set_client_to_redis_db(address.database);
            if let Some(username) = &address.username {
                builder = builder.set_client_to_redis_username(username);
            }
            if let Some(password) = &address.password {
                builder = builder.set_client_to_redis_password(password);
            }
            if address.tls {
                builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
                if self.shared.settings.tls.is_given() {
                    builder = builder
                        .set_client_to_redis_certificates(self.certificates())
                        .set_client_to_sentinel_certificates(self.certificates());
                }
            }
            return builder.build()?.async_get_client().await;
        }
        let mut settings = RedisConnectionInfo::default().set_db(address.database);
        if let Some(username) = &address.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &address.password {
            settings = settings.set_password(password);
        }
        let first = self.addresses().into_iter().next();
        let first = first.ok_or((ErrorKind::InvalidClientConfig, "the address has no host"))?;
        let info = first.into_connection_info()?.set_redis_settings(settings);
        if self.shared.settings.tls.is_given() && address.tls {
            return Client::build_with_tls(info, self.certificates());
        }
        Client::open(info)
    }

    /// Notifies whenever something is published on a channel, and whenever something may have been
    /// missed. Runs until it is told to stop, or is not allowed to listen.
    pub async fn listen(&self, channel: &str, heard: &Notify, stop: &CancellationToken) {
        loop {
            let listening = async {
                let mut listening: PubSub = self.client().await?.get_async_pubsub().await?;
                listening.subscribe(channel).await?;
                heard.notify_one();
                let mut messages = listening.on_message();
                while messages.next().await.is_some() {
                    heard.notify_one();
                }
                Ok::<_, RedisError>(())
            };
            tokio::select! {
                () = stop.cancelled() => return,
                ended = listening => match ended {
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
                        tracing::warn!(%error, channel, "may not listen; looks from time to time");
                        return;
                    }
                    Err(error) => tracing::debug!(%error, channel, "does not hear anything"),
                    Ok(()) => {}
                },
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LISTEN_AGAIN) => {}
            }
        }
    }
}

/// Errors that the same request would meet again.
const REFUSALS: [ErrorKind; 3] = [
    ErrorKind::AuthenticationFailed,
    ErrorKind::InvalidClientConfig,
    ErrorKind::Server(ServerErrorKind::NoPerm),
];
/// The same, by the words that Redis begins them with.
const REFUSAL_CODES: [&str; 4] = ["WRONGTYPE", "NOAUTH", "WRONGPASS", "CROSSSLOT"];

fn fault(error: &RedisError) -> RedisFault {
    let mut text = error.to_string();
    if text.contains("unauthenticated") {
        // What it says to a long request, instead of NOAUTH.
        text = "NOAUTH: Redis asks for a password".into();
    }
    let refused =
        REFUSALS.contains(&error.kind()) || REFUSAL_CODES.iter().any(|code| text.contains(code));
    if refused { RedisFault::Refused(text) } else { RedisFault::Unavailable(text) }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(one) => one.req_packed_command(command),
            Self::Cluster(cluster) => cluster.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a ::redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(one) => one.req_packed_commands(commands, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(one) => one.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}
