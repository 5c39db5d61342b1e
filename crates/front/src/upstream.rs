//! The way to another server: to the controller beside the node, or to the node that leads. A
//! request is sent once; only a read without a body is sent again, when a connection that had been
//! kept open turns out to be gone.

use std::error::Error as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::Notify;

use crate::body::{Broken, Passing};
use crate::gate::Pass;

/// Connections are kept open this long without a request: less than servers do, so that none is
/// closed there while something is sent.
const IDLE: Duration = Duration::from_secs(3);
/// How many are kept open so.
const IDLE_MAX: usize = 128;

/// A head that is ready to be sent, and may be sent again.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot be reached: {0}")]
    Unsent(String),
    #[error("did not answer: {0}")]
    Sent(String),
    #[error("did not answer within {0:?}")]
    Late(Duration),
    /// The client did not send its body to the end, or not as it must.
    #[error("the body of the request cannot be read: {0}")]
    Body(String),
    #[error("the node no longer leads")]
    Cut,
}

/// How one request is to be carried.
#[derive(Debug)]
pub(crate) struct Carriage<'a> {
    /// Of a change.
    pub(crate) pass: Option<&'a Arc<Pass>>,
    /// It changes nothing.
    pub(crate) read: bool,
    /// How long nothing may move before the head of the answer.
    pub(crate) patience: Duration,
}

type Plain = Client<Timed<HttpConnector>, Passing>;
type Tls = Client<Timed<HttpsConnector<HttpConnector>>, Passing>;

#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    plain: Plain,
    tls: Option<Tls>,
}

impl Upstream {
    pub(crate) fn new(connect: Duration, tls: Option<&rustls::ClientConfig>) -> Self {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        let tls = tls.map(|config| {
            let mut config = config.clone();
            // The connector says what it speaks.
            config.alpn_protocols.clear();
            let mut http = http.clone();
            http.enforce_http(false);
            let https = HttpsConnectorBuilder::new().with_tls_config(config);
            client(https.https_only().enable_http1().wrap_connector(http), connect)
        });
        Self { plain: client(http, connect), tls }
    }

    pub(crate) async fn send(
        &self,
        head: Head,
        body: Body,
        how: &Carriage<'_>,
    ) -> Result<Response<Incoming>, Failure> {
        let again = (how.read && http_body::Body::is_end_stream(&body)).then(|| head.clone());
        match (self.send_once(head, body, how).await, again) {
            (Err(Failure::Sent(why)), Some(head)) => {
                tracing::debug!(why, "a read is sent again");
                self.send_once(head, Body::empty(), how).await
            }
            (outcome, _) => outcome,
        }
    }

    async fn send_once(
        &self,
        head: Head,
        body: Body,
        how: &Carriage<'_>,
    ) -> Result<Response<Incoming>, Failure> {
        let moved = Arc::new(Notify::new());
        let mut request = Request::new(Passing::up(body, how.pass, &moved));
        *request.method_mut() = head.method;
        *request.uri_mut() = head.uri;
        *request.headers_mut() = head.headers;
        *request.version_mut() = Version::HTTP_11;
        let answer = self.start(request)?;
        let cut = async {
            match how.pass {
                Some(pass) => pass.cut().await,
                None => std::future::pending().await,
            }
        };
        // A body that is slow and moves is not late.
        let late =
            async { while tokio::time::timeout(how.patience, moved.notified()).await.is_ok() {} };
        tokio::select! {
            biased;
            () = cut => Err(Failure::Cut),
            answered = answer => answered.map_err(|error| failure(&error)),
            () = late => Err(Failure::Late(how.patience)),
        }
    }

    fn start(&self, request: Request<Passing>) -> Result<ResponseFuture, Failure> {
        if request.uri().scheme() != Some(&Scheme::HTTPS) {
            return Ok(self.plain.request(request));
        }
        match &self.tls {
            Some(tls) => Ok(tls.request(request)),
            None => Err(Failure::Unsent("there are no certificates to reach it with".into())),
        }
    }
}

fn client<C>(connector: C, patience: Duration) -> Client<Timed<C>, Passing>
where
    Timed<C>: hyper_util::client::legacy::connect::Connect + Clone,
{
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_MAX)
        .build(Timed { connector, patience })
}

/// Whether anything was sent: a request that the connection gave back was not begun.
fn failure(error: &Error) -> Failure {
    let cause = error.source();
    if let Some(why) = cause.and_then(of_client) {
        return Failure::Body(why);
    }
    let why = cause.map_or_else(|| error.to_string(), deepest);
    let given_back = cause
        .and_then(|cause| cause.downcast_ref::<hyper::Error>())
        .is_some_and(hyper::Error::is_canceled);
    match error.is_connect() || given_back {
        true => Failure::Unsent(why),
        false => Failure::Sent(why),
    }
}

/// What was wrong with what the client has sent.
fn of_client(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(Broken::Body(body)) = error.downcast_ref::<Broken>() {
            return Some(deepest(body));
        }
        next = error.source();
    }
    None
}

fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The same path at another server.
pub(crate) fn at(scheme: &Scheme, authority: &Authority, uri: &Uri) -> Option<Uri> {
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(scheme.clone());
    parts.authority = Some(authority.clone());
    let path = uri.path_and_query().cloned();
    parts.path_and_query = Some(path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")));
    Uri::from_parts(parts).ok()
}

/// Connecting takes so long at most, with names, handshakes and all.
#[derive(Clone, Debug)]
pub(crate) struct Timed<C> {
    connector: C,
    patience: Duration,
}

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, axum::BoxError>> + Send>>;

impl<C> tower::Service<Uri> for Timed<C>
where
    C: tower::Service<Uri>,
    C::Error: Into<axum::BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = axum::BoxError;
    type Future = Connecting<C::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), axum::BoxError>> {
        Poll::Ready(ready!(self.connector.poll_ready(cx)).map_err(Into::into))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, patience) = (self.connector.call(uri), self.patience);
        Box::pin(async move {
            match tokio::time::timeout(patience, connecting).await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => {
                    let why = format!("no connection within {patience:?}");
                    Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::Service as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_is_not_made_in_time_is_given_up() {
        let connector = tower::service_fn(|_: Uri| std::future::pending::<io::Result<()>>());
        let mut timed = Timed { connector, patience: Duration::from_secs(2) };
        let error = timed.call(Uri::from_static("http://far")).await.unwrap_err();
        assert_eq!(error.to_string(), "no connection within 2s");
    }

    #[test]
    fn a_path_is_the_same_elsewhere() {
        let place: Authority = "far:81".parse().unwrap();
        for (uri, there) in [
            ("/a//b?c", "http://far:81/a//b?c"),
            ("http://near/%2F/..", "http://far:81/%2F/.."),
            ("//near/a", "http://far:81//near/a"),
            ("http://near", "http://far:81/"),
        ] {
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(at(&Scheme::HTTP, &place, &uri).unwrap().to_string(), there);
        }
    }
}
