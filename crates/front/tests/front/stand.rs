//! A front on a port of this machine, and clients for it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lockd_front::{Front, FrontSettings, Gate, Rules, Standing};
use lockd_serve::{Bound, Door, Serving};
use lockd_wire::node::{Role, RoleReply};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Nothing here takes this long unless it hangs.
pub(crate) const HANGS: Duration = Duration::from_secs(20);

pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(HANGS, future).await.expect("it hangs")
}

pub(crate) struct Stand {
    pub(crate) address: SocketAddr,
    pub(crate) standing: watch::Sender<Standing>,
    pub(crate) healthy: watch::Sender<bool>,
    serving: Serving,
}

impl Stand {
    pub(crate) async fn before(controller: SocketAddr) -> Self {
        Self::with(settings(controller), Door::Plain).await
    }

    pub(crate) async fn with(settings: FrontSettings, door: Door) -> Self {
        let (standing, seen) = watch::channel(standby("n1"));
        let (healthy, well) = watch::channel(true);
        let own = Router::new()
            .route("/ha/status", axum::routing::get(|| async { "own" }))
            .route("/ha/{*rest}", axum::routing::any(|| async { "other" }));
        // Addresses are not known to these servers, so one is made up.
        let peer: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        let router =
            Front::new(settings, seen, well).router(own).layer(axum::Extension(ConnectInfo(peer)));
        let bound = Bound::bind("127.0.0.1:0").await.unwrap();
        let address = bound.address;
        let serving = bound.serve(&door, router).unwrap();
        Self { address, standing, healthy, serving }
    }

    /// From now on it leads.
    pub(crate) fn lead(&self) -> Gate {
        let gate = Gate::new();
        self.standing.send_replace(leader("n1", Some(gate.clone())));
        gate
    }

    pub(crate) async fn stop(self) {
        self.serving.stop().await;
    }

    pub(crate) async fn ask(&self, method: Method, path: &str) -> Answer {
        self.send(method, path, &[], Body::empty()).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Answer {
        let answer = self.begin(method, path, headers, body).await;
        let (parts, body) = answer.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn begin(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> Response<Incoming> {
        let uri: Uri = format!("http://{}{path}", self.address).parse().unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        soon(client().request(request.body(body).unwrap())).await.unwrap()
    }

    pub(crate) async fn connect(&self) -> Line {
        Line::to(self.address).await
    }
}

pub(crate) fn client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build_http()
}

pub(crate) fn settings(controller: SocketAddr) -> FrontSettings {
    FrontSettings::new(format!("http://{controller}").parse().unwrap(), Rules::default())
}

pub(crate) fn standby(node: &str) -> Standing {
    Standing { role: RoleReply { node_id: node.into(), ..RoleReply::default() }, gate: None }
}

pub(crate) fn leader(node: &str, gate: Option<Gate>) -> Standing {
    let role = RoleReply {
        node_id: node.into(),
        role: Role::Leader,
        leader_epoch: Some(7),
        leader_id: Some(node.into()),
        leader_url: Some(format!("http://{node}")),
        ..RoleReply::default()
    };
    Standing { role, gate }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/json"));
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A connection on which every byte counts.
pub(crate) struct Line {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Line {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        Self::on(soon(TcpStream::connect(address)).await.unwrap())
    }

    pub(crate) fn on(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new() }
    }

    pub(crate) async fn write(&mut self, text: &str) {
        soon(self.stream.write_all(text.as_bytes())).await.unwrap();
    }

    /// `false` at the end, or when the line is broken.
    async fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let count = soon(self.stream.read(&mut buffer)).await.unwrap_or(0);
        self.read.extend(&buffer[..count]);
        count > 0
    }

    /// Up to and with this; what came instead where it never comes.
    pub(crate) async fn until(&mut self, mark: &str) -> String {
        let mark = mark.as_bytes();
        loop {
            if let Some(at) = self.read.windows(mark.len()).position(|window| window == mark) {
                let rest = self.read.split_off(at + mark.len());
                let found = std::mem::replace(&mut self.read, rest);
                return String::from_utf8(found).unwrap();
            }
            if !self.more().await {
                return String::from_utf8_lossy(&std::mem::take(&mut self.read)).into_owned();
            }
        }
    }

    pub(crate) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    pub(crate) async fn rest(&mut self) -> String {
        while self.more().await {}
        String::from_utf8_lossy(&std::mem::take(&mut self.read)).into_owned()
    }
}
