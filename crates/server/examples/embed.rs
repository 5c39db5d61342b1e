//! lockd inside another program: an application with pages of its own serves lockd's API from the
//! same listener, holds a lease through it, and stops both in order. Run it with
//! `cargo run -p lockd-server --example embed`.

#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Method, Request, Uri};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use lockd_server::{Server, Settings};
use lockd_wire::lease::{AcquireReply, ReleaseRequest};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run().await
}

/// The whole example; a test runs it too.
pub(crate) async fn run() -> Result<(), Failure> {
    // A store in memory. `StoreSetting::Embedded(path)` keeps data on disk.
    let lockd = Server::new(Settings::embedded_defaults()).await?;

    // Our own pages first; whatever they do not know is lockd's.
    let app = Router::new()
        .route("/hello", get(async || "hello from the application"))
        .fallback_service(lockd.handler());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut serving = JoinSet::new();
    serving.spawn(serve(listener, app));
    println!("one listener for both: http://{address}");

    println!("GET /hello: {}", ask(&address.to_string(), Method::GET, "/hello", "").await?);
    let wish = r#"{"key":"orders","owner":"the application","ttl_seconds":30}"#;
    let grant = ask(&address.to_string(), Method::POST, "/v1/acquire", wish).await?;
    let grant: AcquireReply = serde_json::from_str(&grant)?;
    println!("holding {} with fencing token {}", grant.key, grant.fencing_token);

    let done = ReleaseRequest { lease_id: grant.lease_id, ..ReleaseRequest::default() };
    let done = serde_json::to_string(&done)?;
    let released = ask(&address.to_string(), Method::POST, "/v1/release", &done).await?;
    println!("released: {}", released.trim());

    // First lockd, so that holders can still finish over our listener; then the listener.
    let stopped = lockd.shutdown(Duration::from_secs(5)).await;
    serving.shutdown().await;
    println!("stopped with {} leases left", stopped.leases_left);
    Ok(())
}

/// Accepts connections until it is stopped.
async fn serve(listener: TcpListener, app: Router) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let service = TowerToHyperService::new(app.clone());
        let connection = hyper::server::conn::http1::Builder::new();
        connections.spawn(connection.serve_connection(TokioIo::new(stream), service));
        // Ended connections are forgotten.
        while connections.try_join_next().is_some() {}
    }
}

/// One request over the network, as any other client would send it.
async fn ask(host: &str, method: Method, path: &str, body: &str) -> Result<String, Failure> {
    let uri: Uri = format!("http://{host}{path}").parse()?;
    let request = Request::builder().method(method).uri(uri).body(Body::from(body.to_owned()))?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await?;
    let body = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec())?)
}
