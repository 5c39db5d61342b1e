//! A port from outside: it serves what is asked, and lets go of what asks nothing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use lockd_serve::{Bound, Door, Serving};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

async fn port(router: Router) -> Serving {
    let bound = Bound::bind("127.0.0.1:0").await.unwrap();
    bound.serve(&Door::Plain, router).unwrap()
}

async fn sent(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream
}

/// All that comes until the connection ends.
async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

const CLOSED_AFTER: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn what_is_no_request_yet_does_not_delay_the_stop_and_a_request_ends_before_it() {
    let (began, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, released) = (Arc::clone(&began), Arc::clone(&release));
    let slow = || async move {
        begins.notify_one();
        released.notified().await;
        "slow"
    };
    let serving =
        port(Router::new().route("/healthz", get(|| async { "ok" })).route("/slow", get(slow)))
            .await;
    let address = serving.address;
    let unfinished = [
        sent(address, b"").await,
        sent(address, b"PRI * HTTP/2.0\r\n").await,
        sent(address, b"GET / HTTP/1.1\r\nhost").await,
    ];
    let waits = sent(address, b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    began.notified().await;
    // Accepted after all others.
    assert!(answer(sent(address, CLOSED_AFTER).await).await.ends_with("ok"));
    let start = Instant::now();
    let stopping = async {
        serving.stop().await;
        start.elapsed()
    };
    let slow = async {
        release.notify_one();
        answer(waits).await
    };
    let (took, slow) = tokio::join!(stopping, slow);
    assert!(slow.ends_with("slow"), "{slow}");
    // Less than what requests in progress are given.
    assert!(took < Duration::from_secs(4), "{took:?}");
    for stream in unfinished {
        assert_eq!(answer(stream).await, "");
    }
}

#[tokio::test]
async fn http2_is_spoken_to_a_client_that_begins_with_its_preface() {
    let serving = port(Router::new().route("/healthz", get(|| async { "ok" }))).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut stream = sent(serving.address, preface).await;
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame[3], 4, "the settings of the server: {frame:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_coming_is_given_up() {
    let serving = port(Router::new().route("/", post(|body: String| async { body }))).await;
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhalf";
    let answer = answer(sent(serving.address, head).await).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_closed_when_its_first_request_does_not_come() {
    let serving = port(Router::new()).await;
    for half in [&b""[..], b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\nhost"] {
        assert_eq!(answer(sent(serving.address, half).await).await, "");
    }
    let mut spoken = sent(serving.address, b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /").await;
    let mut heard = String::new();
    spoken.read_to_string(&mut heard).await.unwrap();
    assert!(heard.starts_with("HTTP/1.1 404"), "{heard}");
}
