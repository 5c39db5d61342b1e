//! A server inside the test process: no sockets, every request a call. For tests that ask a great
//! deal and want to know what came of each single question.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use lockd_server::{Body, Handler, Parts, Server, Settings};
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::http::{Reply, Request};
use crate::lease::{Ask, Held};

/// A server, its entrance, and the threads it runs on.
pub struct Inside {
    pub runtime: Runtime,
    pub server: Arc<Server>,
    pub handler: Handler,
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

impl Default for Inside {
    fn default() -> Self {
        Self::new(Settings::embedded_defaults())
    }
}

impl Inside {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with_parts(settings, Parts::default())
    }

    #[must_use]
    pub fn with_parts(settings: Settings, parts: Parts) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.enable_all().build().expect("threads");
        let server = runtime.block_on(Server::with_parts(settings, parts)).expect("a server");
        let handler = server.handler();
        Self { runtime, server: Arc::new(server), handler }
    }

    #[must_use]
    pub fn call(&self, request: &Request) -> Reply {
        self.runtime.block_on(ask(&self.handler, to_http(request)))
    }

    #[track_caller]
    pub fn acquire(&self, ask: &Ask) -> Held {
        Held::of(&self.call(&ask.request()))
    }

    /// The JSON answer to a read.
    #[track_caller]
    pub fn look(&self, request: &Request) -> Value {
        self.call(request).ok().json()
    }

    /// A request that must succeed and whose answer does not matter.
    #[track_caller]
    pub fn done(&self, request: &Request) {
        assert_eq!(self.call(request).ok().status, 200);
    }

    pub fn stop(&self) {
        self.runtime.block_on(self.server.shutdown(Duration::ZERO));
    }
}

/// One request to its end.
pub async fn ask(handler: &Handler, request: ::http::Request<Body>) -> Reply {
    let answer = handler.clone().oneshot(request).await;
    read(answer.unwrap_or_else(|never| match never {})).await
}

/// An answer with all of its body.
pub async fn read(answer: ::http::Response<Body>) -> Reply {
    let (head, body) = answer.into_parts();
    let body = body.collect().await.expect("a body that comes to its end").to_bytes().to_vec();
    let text = |value: &::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_string(), text(value))).collect();
    Reply { status: head.status.as_u16(), headers, body }
}

/// The request as the server's own type.
#[must_use]
pub fn to_http(request: &Request) -> ::http::Request<Body> {
    let mut builder =
        ::http::Request::builder().method(request.method.as_str()).uri(request.target());
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    let body = request.body.clone().map_or_else(Body::empty, Body::from);
    builder.body(body).expect("a request")
}
