//! The whole API with callers of our choice: a server in memory, requests straight to its
//! entrance, certificates as they are after a handshake.

mod rights;
mod tenants;

use std::sync::{Arc, LazyLock};

use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use lockd_pki::issue::Authority;
use lockd_pki::{Admitted, Claim, Claims, ClientRequest, Grants, Peer, Role, Trust};
use serde_json::Value;

use super::auth::Who;
use super::body::Body;
use super::call::Origin;
use super::router::{Entry, Handler};
use crate::{Server, Settings};

const BOUNDARY: &str = "part";

struct World {
    entry: Arc<Entry>,
    _server: Server,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
}

/// A request that can be sent more than once.
#[derive(Clone, Debug)]
struct Ask {
    method: &'static str,
    target: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl World {
    async fn new() -> Self {
        let server = Server::new(Settings::embedded_defaults()).await.unwrap();
        let Handler(entry) = server.handler();
        Self { entry, _server: server }
    }

    async fn send(&self, who: &Who, ask: &Ask) -> Answer {
        let mut request = Request::builder().method(ask.method).uri(&ask.target);
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Body::from(ask.body.clone())).unwrap();
        let origin = Origin { who: who.clone(), outbox: None };
        let (head, body) = Arc::clone(&self.entry).handle(request, origin).await.into_parts();
        Answer { status: head.status, headers: head.headers, body }
    }
}

impl Answer {
    async fn bytes(self) -> Vec<u8> {
        self.body.collect().await.unwrap().to_bytes().to_vec()
    }

    async fn json(self) -> Value {
        serde_json::from_slice(&self.bytes().await).unwrap_or_default()
    }
}

impl Ask {
    fn new(method: &'static str, target: impl Into<String>) -> Self {
        Self { method, target: target.into(), headers: Vec::new(), body: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn json(mut self, body: &Value) -> Self {
        self.body = body.to_string().into_bytes();
        self
    }

    /// The two parts of a message on its way in.
    fn message(self, meta: &Value, payload: &str) -> Self {
        let mut ask = self.with("content-type", format!("multipart/related; boundary={BOUNDARY}"));
        let part = |name: &str, kind: &str, text: &str| {
            format!(
                "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\
                 Content-Type: {kind}\r\n\r\n{text}\r\n"
            )
        };
        let meta = part("meta", "application/json", &meta.to_string());
        let payload = part("payload", "text/plain", payload);
        ask.body = format!("{meta}{payload}--{BOUNDARY}--\r\n").into_bytes();
        ask
    }
}

/// A caller with these claims, by default an ordinary client.
fn client(claims: &[&str]) -> Who {
    static AUTHORITY: LazyLock<Authority> =
        LazyLock::new(|| Authority::create("lockd-ca", Timestamp::now()).unwrap());
    // An empty request would be issued with a claim on the default namespace.
    let no_claims = claims.is_empty();
    let claims = claims.iter().map(|claim| Claim::parse(claim).unwrap()).collect();
    let request = ClientRequest::sdk("worker", claims);
    let mut peer = AUTHORITY.issue_client(&request, Timestamp::now()).unwrap().peer;
    if no_claims {
        peer.claims = Claims::Granted(Grants::default());
    }
    Some(Arc::new(Admitted { peer, trust: Trust { own: true, tc: false } }))
}

/// The same caller in another role.
fn in_role(who: &Who, role: Role) -> Who {
    let who = who.as_ref().unwrap();
    let peer = Peer { role, ..who.peer.clone() };
    Some(Arc::new(Admitted { peer, trust: who.trust }))
}
