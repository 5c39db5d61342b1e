//! The way from the proxy to the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, Uri, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::watch;

use crate::serve::Hangup;

/// What a late request may carry.
const WHOLE: usize = 64 << 20;

/// Shorter than any server keeps an idle connection open, so that none closes as we send.
const IDLE: Duration = Duration::from_secs(1);

pub(super) type Stream = UnsyncBoxBody<Bytes, hyper::Error>;

#[derive(Debug)]
pub(crate) struct Forward {
    upstream: Authority,
    rewrite_host: AtomicBool,
    held: watch::Sender<bool>,
    client: Client<HttpConnector, Stream>,
}

impl Forward {
    pub(crate) fn to(upstream: &str) -> Self {
        let uri: Uri = upstream.parse().expect("an endpoint");
        assert_eq!(uri.scheme(), Some(&Scheme::HTTP), "the proxy speaks only http: {upstream}");
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        let upstream = uri.authority().expect("a host in the endpoint").clone();
        let rewrite_host = AtomicBool::new(false);
        Self { upstream, rewrite_host, held: watch::Sender::new(false), client }
    }

    pub(super) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    pub(super) fn rewrite_host(&self, rewrite: bool) {
        self.rewrite_host.store(rewrite, Ordering::Relaxed);
    }

    /// A store that does not answer looks to the client as it would without us.
    pub(super) async fn send(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Stream>, Hangup> {
        self.pass(request.map(BodyExt::boxed_unsync)).await
    }

    /// Sends all of it and waits until all of the answer has come.
    pub(super) async fn finish(&self, request: Request<Full<Bytes>>) -> Result<(), Hangup> {
        self.whole(request).await.map(drop)
    }

    /// Sends all of it, for all of the answer.
    pub(crate) async fn whole(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Full<Bytes>>, Hangup> {
        let body = |full: Full<Bytes>| full.map_err(|never| match never {}).boxed_unsync();
        let (parts, answer) = self.pass(request.map(body)).await?.into_parts();
        let answer = answer.collect().await.map_err(|_broken| Hangup)?;
        Ok(Response::from_parts(parts, Full::new(answer.to_bytes())))
    }

    async fn pass(&self, mut request: Request<Stream>) -> Result<Response<Stream>, Hangup> {
        let mut held = self.held.subscribe();
        held.wait_for(|held| !held).await.map_err(|_closed| Hangup)?;
        let mut target = request.uri().clone().into_parts();
        target.scheme = Some(Scheme::HTTP);
        target.authority = Some(self.upstream.clone());
        *request.uri_mut() = Uri::from_parts(target).map_err(|_invalid| Hangup)?;
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        forget_connection(headers);
        if self.rewrite_host.load(Ordering::Relaxed) {
            let host = HeaderValue::from_str(self.upstream.as_str()).expect("a host");
            headers.insert(HOST, host);
        }
        let mut answer = self.client.request(request).await.map_err(|_unreachable| Hangup)?;
        *answer.version_mut() = Version::HTTP_11;
        forget_connection(answer.headers_mut());
        Ok(answer.map(BodyExt::boxed_unsync))
    }
}

/// Whether a connection stays open is not the business of the one on the other side.
fn forget_connection(headers: &mut HeaderMap) {
    headers.remove(CONNECTION);
    headers.remove("keep-alive");
}

/// The request with all of its body.
pub(super) async fn whole(request: Request<Incoming>) -> Result<Request<Full<Bytes>>, Hangup> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, WHOLE).collect().await.map_err(|_gone_or_large| Hangup)?;
    Ok(Request::from_parts(head, Full::new(body.to_bytes())))
}
