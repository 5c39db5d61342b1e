//! Clients that close just when their answer is written: whether it reached them decides.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf as _;
use futures_util::FutureExt as _;
use lockd_core::key::KeyName;
use lockd_core::time::Span;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};

use super::{Outbox, Piece, Watched};
use crate::app::App;
use crate::app::lease::{AcquireAsk, Block};
use crate::{Server, Settings};
use lockd_serve::Conn;

const ANSWER: &[u8] = b"granted";

/// A server whose only key is held by a grant that is in the write buffer of a connection.
struct Scene {
    server: Server,
    key: KeyName,
    connection: Watched<Conn>,
}

impl Scene {
    async fn new(conn: Conn) -> Self {
        let server = Server::new(Settings::embedded_defaults()).await.unwrap();
        let key = KeyName::parse("default", "k").unwrap();
        let ask = AcquireAsk {
            key: key.clone(),
            owner: "holder".into(),
            ttl: Span::secs(600),
            block: Block::No,
            if_not_exists: false,
            txn: None,
            stamp: None,
        };
        let grant = server.app().acquire(ask).await.unwrap();
        let outbox = Outbox::default();
        let connection = Watched::new(conn, outbox.clone());
        let mut piece = Piece::granting(ANSWER.into(), vec![grant.undelivered], Some(outbox));
        piece.advance(ANSWER.len());
        Self { server, key, connection }
    }

    fn app(&self) -> &Arc<App> {
        self.server.app()
    }

    fn is_held(&self) -> bool {
        self.app().records.live.get(&self.key).is_some()
    }

    /// Writes the answer before the runtime hears anything new about the socket.
    fn write_at_once(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.connection.write_all(bytes).now_or_never().expect("room in the socket")?;
        self.connection.flush().now_or_never().expect("no waiting")
    }

    /// Reads until the end of the connection.
    async fn read_to_end(&mut self) {
        let mut rest = Vec::new();
        let _broken = self.connection.read_to_end(&mut rest).await.is_err();
    }

    async fn await_free(&self) {
        let freed = async {
            while self.is_held() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), freed).await.expect("the key is free");
    }
}

async fn tcp() -> (Conn, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    stream.writable().await.unwrap();
    (Conn::Tcp(stream), client)
}

#[tokio::test]
async fn a_grant_is_not_written_to_a_client_that_is_known_to_have_closed() {
    let (conn, client) = tcp().await;
    let mut scene = Scene::new(conn).await;
    drop(client);
    assert_eq!(scene.connection.read(&mut [0; 8]).await.unwrap(), 0);
    scene.write_at_once(ANSWER).unwrap_err();
    assert!(scene.is_held());
    scene.connection = Watched::new(tcp().await.0, Outbox::default());
    scene.await_free().await;
}

#[tokio::test]
async fn a_grant_that_came_to_a_closed_socket_is_given_back() {
    let (conn, client) = tcp().await;
    let mut scene = Scene::new(conn).await;
    drop(client);
    scene.write_at_once(ANSWER).unwrap();
    scene.read_to_end().await;
    scene.await_free().await;
}

#[tokio::test]
async fn a_grant_that_a_client_reads_after_closing_its_sending_side_stays() {
    let (conn, mut client) = tcp().await;
    let mut scene = Scene::new(conn).await;
    client.shutdown(Shutdown::Write).unwrap();
    scene.write_at_once(ANSWER).unwrap();
    scene.read_to_end().await;
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, ANSWER);
    scene.connection = Watched::new(tcp().await.0, Outbox::default());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(scene.is_held());
}

#[tokio::test]
async fn a_grant_that_was_read_stays_when_its_client_closes() {
    let (conn, mut client) = tcp().await;
    let mut scene = Scene::new(conn).await;
    scene.write_at_once(ANSWER).unwrap();
    client.read_exact(&mut [0; ANSWER.len()]).unwrap();
    drop(client);
    scene.read_to_end().await;
    scene.connection = Watched::new(tcp().await.0, Outbox::default());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(scene.is_held());
}

#[tokio::test]
async fn a_reset_after_further_bytes_says_nothing_about_the_grant_before_them() {
    let (conn, client) = tcp().await;
    let mut scene = Scene::new(conn).await;
    scene.write_at_once(ANSWER).unwrap();
    drop(client);
    let _broken = scene.write_at_once(b"more").is_err();
    scene.read_to_end().await;
    scene.connection = Watched::new(tcp().await.0, Outbox::default());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(scene.is_held());
}

#[tokio::test]
async fn a_grant_that_was_left_unread_in_a_unix_socket_is_given_back() {
    let (stream, client) = UnixStream::pair().unwrap();
    stream.writable().await.unwrap();
    let mut scene = Scene::new(Conn::Unix(stream)).await;
    scene.write_at_once(ANSWER).unwrap();
    drop(client);
    scene.read_to_end().await;
    scene.await_free().await;
}
