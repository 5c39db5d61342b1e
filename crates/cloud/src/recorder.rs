//! An HTTP/1.1 proxy that writes down what was asked and answered, and when: whoever judges a
//! history afterwards does not have to believe those who made it. What has arrived is carried out
//! even if whoever asked is gone.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;

use crate::proxy::Forward;
use crate::serve::{Hangup, Service};

/// A request and its answer.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub method: Method,
    /// Path and query.
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Before it was sent on.
    pub began: Instant,
    /// After the answer was there.
    pub ended: Instant,
    /// Nothing if there was no answer.
    pub status: Option<StatusCode>,
}

/// Ends, with all it carries, when it goes.
#[derive(Debug)]
pub struct Recorder {
    service: Service,
    exchanges: Arc<Mutex<Vec<Exchange>>>,
}

impl Recorder {
    /// In front of an endpoint such as `http://127.0.0.1:40123`. Only what `wanted` names is
    /// written down, by method and target.
    #[must_use]
    pub fn start_now(upstream: &str, wanted: fn(&Method, &str) -> bool) -> Self {
        let exchanges = Arc::<Mutex<Vec<Exchange>>>::default();
        let forward = Arc::new(Forward::to(upstream));
        let kept = Arc::clone(&exchanges);
        let service = Service::start(move |request| {
            let (forward, kept) = (Arc::clone(&forward), Arc::clone(&kept));
            async move {
                let carried = tokio::spawn(carry(forward, kept, wanted, request));
                carried.await.unwrap_or(Err(Hangup))
            }
        });
        Self { service, exchanges }
    }

    #[must_use]
    pub fn endpoint(&self) -> String {
        self.service.endpoint()
    }

    /// In the order of their ends.
    #[must_use]
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.exchanges.lock().clone()
    }
}

async fn carry(
    forward: Arc<Forward>,
    kept: Arc<Mutex<Vec<Exchange>>>,
    wanted: fn(&Method, &str) -> bool,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Hangup> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_gone| Hangup)?.to_bytes();
    let target = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let (method, headers) = (parts.method.clone(), parts.headers.clone());
    let began = Instant::now();
    let answer = forward.whole(Request::from_parts(parts, Full::new(body.clone()))).await;
    if wanted(&method, &target) {
        let status = answer.as_ref().ok().map(Response::status);
        let ended = Instant::now();
        kept.lock().push(Exchange { method, target, headers, body, began, ended, status });
    }
    answer
}
