//! The server: a port, with or without TLS, and connections with bounds.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use lockd_pki::{LiveCredentials, TlsError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::{Access, AccessError};
use super::routes::{Api, Certified, router};
use crate::coordinator::Coordinator;

/// Connections at one time; more wait to be taken in.
const CONNECTIONS_MAX: usize = 1_024;
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
    Tls(Arc<LiveCredentials>),
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Tls(_) => "Tls",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A server that runs. It ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Serving {
    pub address: SocketAddr,
    stop: CancellationToken,
    running: TaskTracker,
}

impl Serving {
    /// Listens and serves in the background.
    ///
    /// # Errors
    /// When it cannot listen there, or everybody could ask.
    pub async fn start(
        listen: &str,
        door: Door,
        access: Access,
        coordinator: Coordinator,
    ) -> Result<Self, ServeError> {
        let unbound = |source| ServeError::Listen { address: listen.into(), source };
        // Without a host, every address.
        let everywhere = listen.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
        let place = everywhere.as_deref().unwrap_or(listen);
        let listener = TcpListener::bind(place).await.map_err(unbound)?;
        let address = listener.local_addr().map_err(unbound)?;
        access.check(address)?;
        let acceptor = match &door {
            Door::Plain => None,
            Door::Tls(live) => {
                let config = lockd_pki::server_config(live, Arc::new(log_refusal))?;
                Some(TlsAcceptor::from(Arc::new(config)))
            }
        };
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        let api = Api { coordinator, access: Arc::new(access) };
        let server = Server {
            listener,
            acceptor,
            router: router(api),
            stop: stop.clone(),
            running: running.clone(),
        };
        running.spawn(server.run());
        Ok(Self { address, stop, running })
    }

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
    acceptor: Option<TlsAcceptor>,
    router: axum::Router,
    stop: CancellationToken,
    running: TaskTracker,
}

impl Server {
    async fn run(self) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken in");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let _may_fail = stream.set_nodelay(true).is_ok();
            let (acceptor, router) = (self.acceptor.clone(), self.router.clone());
            let stop = self.stop.clone();
            self.running.spawn(async move {
                let serving = async {
                    match acceptor {
                        None => serve(TokioIo::new(stream), router, &stop).await,
                        Some(acceptor) => {
                            if let Some(stream) = shaken(&acceptor, stream).await {
                                let router = router.layer(axum::Extension(Certified));
                                serve(TokioIo::new(stream), router, &stop).await;
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

async fn serve<I>(io: TokioIo<I>, router: axum::Router, stop: &CancellationToken)
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
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
