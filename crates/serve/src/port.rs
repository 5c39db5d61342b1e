//! Taking a port, serving it, and letting it go: connections, handshakes and heads of requests have
//! bounds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use lockd_pki::{LiveCredentials, TlsError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at one time; more wait to be taken in. Fewer where the system allows only few files.
const CONNECTIONS_MAX: usize = 4_096;
/// Files that connections leave to everything else, and how many a connection may need: whoever
/// passes it on has one to each side.
const FILES_APART: usize = 256;
const FILES_EACH: usize = 2;
/// How long a handshake may take, and the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long requests may take to end at the stop.
const FAREWELL: Duration = Duration::from_secs(5);
/// After the machine could not take in a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How one comes in.
#[derive(Clone)]
pub enum Door {
    Plain,
    /// With certificates on both sides.
    Tls {
        live: Arc<LiveCredentials>,
        /// Told when the credentials have changed: whoever is connected is let go, and shows its
        /// certificate again.
        changed: Arc<Notify>,
    },
}

impl Door {
    /// A door with certificates, and whom to tell that they have changed.
    #[must_use]
    pub fn tls(live: Arc<LiveCredentials>) -> (Self, Arc<Notify>) {
        let changed = Arc::<Notify>::default();
        (Self::Tls { live, changed: Arc::clone(&changed) }, changed)
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Tls { .. } => "Tls",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Set for requests whose client has shown a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Certified;

/// A port that is taken, and not served yet.
#[derive(Debug)]
pub struct Bound {
    pub address: SocketAddr,
    listener: TcpListener,
}

impl Bound {
    /// Without a host, every address.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub async fn bind(listen: &str) -> Result<Self, ServeError> {
        let unbound = |source| ServeError::Listen { address: listen.into(), source };
        let everywhere = listen.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
        let place = everywhere.as_deref().unwrap_or(listen);
        let listener = TcpListener::bind(place).await.map_err(unbound)?;
        let address = listener.local_addr().map_err(unbound)?;
        Ok(Self { address, listener })
    }

    /// Serves in the background.
    ///
    /// # Errors
    /// When the credentials cannot be used.
    pub fn serve(self, door: &Door, router: axum::Router) -> Result<Serving, ServeError> {
        let acceptor = match door {
            Door::Plain => None,
            Door::Tls { live, changed } => {
                let config = lockd_pki::server_config(live, Arc::new(log_refusal))?;
                Some((TlsAcceptor::from(Arc::new(config)), Arc::clone(changed)))
            }
        };
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        let Self { address, listener } = self;
        let server =
            Server { listener, acceptor, router, stop: stop.clone(), running: running.clone() };
        running.spawn(server.run());
        Ok(Serving { address, stop, running })
    }
}

/// A server that runs. It ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Serving {
    pub address: SocketAddr,
    stop: CancellationToken,
    running: TaskTracker,
}

impl Serving {
    /// Lets requests end, for a while.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.running.close();
        if tokio::time::timeout(FAREWELL, self.running.wait()).await.is_err() {
            tracing::debug!("connections were cut off");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Server {
    listener: TcpListener,
    acceptor: Option<(TlsAcceptor, Arc<Notify>)>,
    router: axum::Router,
    stop: CancellationToken,
    running: TaskTracker,
}

/// How many connections one port has at a time.
#[must_use]
pub fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    let left = files.saturating_sub(FILES_APART).max(files / 2);
    (left / FILES_EACH).clamp(1, CONNECTIONS_MAX)
}

impl Server {
    async fn run(self) {
        let places = Arc::new(Semaphore::new(connections_max()));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken in");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let _may_fail = stream.set_nodelay(true).is_ok();
            let acceptor = self.acceptor.clone();
            let router = self.router.clone().layer(axum::Extension(ConnectInfo(peer)));
            let stop = self.stop.clone();
            self.running.spawn(async move {
                let serving = async {
                    match acceptor {
                        None => {
                            let io = TokioIo::new(stream);
                            serve(io, router, stop.cancelled()).await;
                        }
                        Some((acceptor, changed)) => {
                            // Before the handshake, so that no change is missed.
                            let changed = changed.notified();
                            if let Some(stream) = shaken(&acceptor, stream).await {
                                let router = router.layer(axum::Extension(Certified));
                                let over = async {
                                    tokio::select! {
                                        () = stop.cancelled() => {}
                                        () = changed => {}
                                    }
                                };
                                serve(TokioIo::new(stream), router, over).await;
                            }
                        }
                    }
                };
                let cut_off = async {
                    stop.cancelled().await;
                    tokio::time::sleep(FAREWELL).await;
                };
                tokio::select! {
                    () = serving => {}
                    () = cut_off => {}
                }
                drop(place);
            });
        }
    }
}

fn log_refusal(refusal: &lockd_pki::Refusal) {
    tracing::warn!(reason = %refusal.reason, "a client was not let in");
}

async fn shaken(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> Option<tokio_rustls::server::TlsStream<TcpStream>> {
    match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a handshake failed");
            None
        }
        Err(_) => None,
    }
}

/// Until the client goes, or it is over: then what is under way still ends.
async fn serve<I>(io: TokioIo<I>, router: axum::Router, over: impl Future<Output = ()>)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(100);
    let serving = builder.serve_connection(io, TowerToHyperService::new(router));
    tokio::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = over => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
