//! A port with mutual TLS whose credentials change while it is served.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use lockd_pki::{Bundle, ClientBundle, Credentials, LiveCredentials, ServerBundle, files};
use lockd_serve::{Bound, Certified, CredentialChanges, Door, Serving};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// Far longer than an end takes, and than a request takes after which a connection goes on.
const SOON: Duration = Duration::from_secs(30);

struct Site {
    serving: Serving,
    live: Arc<LiveCredentials>,
    changes: CredentialChanges,
    server: ServerBundle,
    client: ClientBundle,
}

fn bundle(folder: &Path, name: &str) -> Bundle {
    files::load(&folder.join(name)).unwrap().0
}

fn credentials(server: &ServerBundle) -> Credentials {
    Credentials::server(server, &[], server.denylist()).unwrap()
}

impl Site {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = ["127.0.0.1".to_owned()];
        lockd_pki::bootstrap(folder.path(), &here, jiff::Timestamp::now()).unwrap();
        let Bundle::Server(server) = bundle(folder.path(), "server.pem") else { panic!() };
        let Bundle::Client(client) = bundle(folder.path(), "client.pem") else { panic!() };
        let live = LiveCredentials::new(credentials(&server));
        let (door, changes) = Door::tls(Arc::clone(&live));
        let healthy = |_: axum::Extension<Certified>| async { "ok" };
        let waiting = || async {
            std::future::pending::<()>().await;
            ""
        };
        let router = Router::new().route("/healthz", get(healthy)).route("/waits", get(waiting));
        let serving = Bound::bind("127.0.0.1:0").await.unwrap().serve(&door, router).unwrap();
        Self { serving, live, changes, server, client }
    }

    fn renew(&self) {
        self.live.replace(credentials(&self.server));
        self.changes.announce();
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let mut config = lockd_pki::client_config(&self.client).unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let address = self.serving.address;
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::IpAddress(address.ip().into());
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

async fn healthy(stream: &mut TlsStream<TcpStream>) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok") {
        let read = tokio::time::timeout(SOON, stream.read_buf(&mut answer)).await;
        assert!(read.unwrap().unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
    }
}

/// Until the server closes the connection, with or without a word of TLS.
async fn ended(mut stream: TlsStream<TcpStream>) {
    let mut rest = Vec::new();
    let end = tokio::time::timeout(SOON, stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "it is still open");
    assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
}

#[tokio::test]
async fn renewed_credentials_end_connections_of_before_and_none_of_after() {
    let site = Site::start().await;
    let mut before = site.connect().await;
    healthy(&mut before).await;
    site.renew();
    ended(before).await;
    let mut after = site.connect().await;
    healthy(&mut after).await;
    healthy(&mut after).await;
}

#[tokio::test]
async fn a_revoked_client_is_cut_off_in_the_middle_of_a_request() {
    let mut site = Site::start().await;
    let mut waits = site.connect().await;
    healthy(&mut waits).await;
    waits.write_all(b"GET /waits HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    site.server.revoke(site.client.leaf().peer.serial);
    site.renew();
    ended(waits).await;
}
