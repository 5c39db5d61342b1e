//! Serves an axum router: takes a port, serves it in the background, and lets it go.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use http::Request;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use lockd_pki::TlsError;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Service as _;

use crate::accept::{HttpPort, accept};
use crate::connection::{Caller, ConnectionLimits, Serve};
use crate::door::{AfterChange, Certified, Door, MutualTls};
use crate::listener::{Listener, LocalAddress, Transport};
use crate::slots::{PerAddress, Slots};

/// Connections at one time. Fewer where the system allows only few files.
const CONNECTIONS_MAX: usize = 4_096;
/// Files that connections leave to everything else, and how many a connection may need: one that is
/// passed on has one to each side.
const FILES_APART: usize = 256;
const FILES_EACH: usize = 2;
/// How long requests may take to end at the stop.
const WIND_DOWN: Duration = Duration::from_secs(5);
/// How long the body of a request may pause.
const BODY_PAUSE: Duration = Duration::from_secs(30);
const HEADERS_MAX: usize = 64 * 1024;
const STREAMS_MAX: u32 = 100;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// How many connections one port has at a time.
#[must_use]
pub fn connections_max() -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let files = files.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX);
    let left = files.saturating_sub(FILES_APART).max(files / 2);
    (left / FILES_EACH).clamp(1, CONNECTIONS_MAX)
}

/// A port that is taken, and not served yet.
#[derive(Debug)]
pub struct Bound {
    pub address: SocketAddr,
    listener: Listener,
}

impl Bound {
    /// Without a host, every address.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub async fn bind(listen: &str) -> Result<Self, ServeError> {
        let unbound = |source| ServeError::Listen { address: listen.into(), source };
        let everywhere = listen.strip_prefix(':').map(|port| format!("0.0.0.0:{port}"));
        let slot = everywhere.as_deref().unwrap_or(listen);
        let listener = Listener::at(slot).await.map_err(unbound)?;
        match listener.local().map_err(unbound)? {
            LocalAddress::Tcp(address) => Ok(Self { address, listener }),
            LocalAddress::Unix(_) => Err(unbound(io::ErrorKind::Unsupported.into())),
        }
    }

    /// Serves in the background.
    ///
    /// # Errors
    /// When the credentials cannot be used.
    pub fn serve(self, door: &Door, router: axum::Router) -> Result<Serving, ServeError> {
        let tls = match door {
            Door::Plain => None,
            Door::Tls { live, changes } => {
                let changes = changes.clone();
                Some(MutualTls::new(live, changes, AfterChange::WindDown, Arc::new(log_refusal))?)
            }
        };
        let limits = ConnectionLimits {
            first_request: ConnectionLimits::FIRST_REQUEST,
            idle: ConnectionLimits::IDLE,
            headers_max: HEADERS_MAX,
            streams_max: STREAMS_MAX,
            plain_h2: true,
            wind_down: Some(WIND_DOWN),
        };
        let slots = Slots::new(connections_max(), PerAddress::Auto);
        let port = HttpPort::new(Routed(router), limits, slots, tls);
        let (stop, running) = (CancellationToken::new(), TaskTracker::new());
        running.spawn(accept(self.listener, port, stop.clone(), running.clone()));
        Ok(Serving { address: self.address, stop, running })
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
        if tokio::time::timeout(WIND_DOWN, self.running.wait()).await.is_err() {
            tracing::debug!("connections were cut off");
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn log_refusal(refusal: &lockd_pki::Refusal) {
    tracing::warn!(reason = %refusal.reason, "a client was not let in");
}

/// A router as what answers at a port.
struct Routed(axum::Router);

impl Serve for Routed {
    type Socket<S: Transport> = S;
    type Body = Body;
    type Service = Routes;

    fn open<S: Transport>(&self, socket: S, caller: Caller) -> (S, Routes) {
        (socket, Routes { router: self.0.clone(), caller })
    }
}

/// A router for the requests of one connection.
struct Routes {
    router: axum::Router,
    caller: Caller,
}

impl Service<Request<Incoming>> for Routes {
    type Response = axum::response::Response;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<axum::routing::future::RouteFuture<Self::Error>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let mut request = request.map(|body| Body::new(Paced { body, pause: None }));
        if let Some(address) = self.caller.address {
            request.extensions_mut().insert(ConnectInfo(address));
        }
        if self.caller.admitted.is_some() {
            request.extensions_mut().insert(Certified);
        }
        Box::pin(self.router.clone().call(request))
    }
}

/// The body of a request, which fails when its client stops sending.
struct Paced {
    body: Incoming,
    /// While the next piece is waited for.
    pause: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for Paced {
    type Data = <Incoming as http_body::Body>::Data;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.pause = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(BODY_PAUSE)));
        ready!(pause.as_mut().poll(cx));
        let late =
            io::Error::new(io::ErrorKind::TimedOut, "the body of the request stopped coming");
        Poll::Ready(Some(Err(late.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
