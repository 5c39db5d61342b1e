//! The server at its port: each connection has an outbox for what is granted on it, each request
//! knows the certificate of its client, and connections are counted.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::Request;
use hyper::body::Incoming;
use hyper::service::Service;
use lockd_serve::{Caller, ConnectionEvent, ConnectionStage, Serve, Transport};

use crate::http::body::{Body, Outgoing};
use crate::http::call::Origin;
use crate::http::delivery::{Outbox, Watched};
use crate::http::router::Entry;
use crate::metrics::Metrics;

/// Routes for the clients of a port.
pub(crate) struct ServedApi {
    pub(crate) entry: Arc<Entry>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Serve for ServedApi {
    type Socket<S: Transport> = Watched<S>;
    type Body = Outgoing;
    type Service = Calls;

    fn open<S: Transport>(&self, socket: S, caller: Caller) -> (Watched<S>, Calls) {
        let outbox = Outbox::default();
        let origin = Origin { outbox: Some(outbox.clone()), who: caller.admitted };
        (Watched::new(socket, outbox), Calls { entry: Arc::clone(&self.entry), origin })
    }

    fn saw(&self, event: ConnectionEvent) {
        let metrics = &self.metrics;
        match event {
            ConnectionEvent::Opened => drop(metrics.connections.inc()),
            ConnectionEvent::Closed => drop(metrics.connections.dec()),
            ConnectionEvent::HandshakeFailed => drop(metrics.tls.handshakes_failed.inc()),
            ConnectionEvent::Refused => drop(metrics.crowd.refused.inc()),
            ConnectionEvent::Evicted(stage) => {
                metrics.crowd.evicted(stage);
                if stage == ConnectionStage::Handshake {
                    metrics.tls.handshakes_dropped.inc();
                }
            }
        }
    }
}

/// The requests of one connection.
pub(crate) struct Calls {
    entry: Arc<Entry>,
    origin: Origin,
}

impl Service<Request<Incoming>> for Calls {
    type Response = http::Response<Outgoing>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (entry, origin) = (Arc::clone(&self.entry), self.origin.clone());
        Box::pin(async move {
            let answer = entry.handle(request.map(Body::from), origin).await;
            Ok(answer.map(Outgoing::new))
        })
    }
}
