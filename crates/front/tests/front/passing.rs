//! Requests that pass: streams, ends of all kinds, and controllers that come and go.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{any, get};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, Version};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use lockd_serve::Door;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::controller::{Program, Script, nowhere};
use crate::stand::{Stand, settings, soon};

const PIECE: usize = 64 * 1024;
/// A hundred megabytes.
const PIECES: usize = 1600;

/// A body that is sent piece by piece, as the test says.
fn told() -> (mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = mpsc::channel(4);
    let pieces = stream::unfold(receiver, |mut receiver| async {
        let piece: Bytes = receiver.recv().await?;
        Some((Ok::<_, std::io::Error>(piece), receiver))
    });
    (sender, Body::from_stream(pieces))
}

fn many() -> Body {
    let piece = Bytes::from(vec![7; PIECE]);
    let pieces = stream::repeat(piece).take(PIECES);
    Body::from_stream(pieces.map(Ok::<_, std::io::Error>))
}

async fn count(mut body: Body) -> usize {
    let mut total = 0;
    while let Some(frame) = body.frame().await {
        total += frame.unwrap().data_ref().map_or(0, Bytes::len);
    }
    total
}

#[tokio::test]
async fn an_event_arrives_before_the_next_is_sent() {
    let (events, body) = told();
    let body = Arc::new(parking_lot::Mutex::new(Some(body)));
    let stream = move || async move {
        ([("content-type", "text/event-stream")], body.lock().take().unwrap())
    };
    let program = Program::start(Router::new().route("/v1/events", get(stream))).await;
    let stand = Stand::before(program.address).await;
    let answer = stand.begin(Method::GET, "/v1/events", &[], Body::empty()).await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut body = answer.into_body();
    for number in 0..3 {
        let event = format!("data: {number}\n\n");
        events.send(event.clone().into()).await.unwrap();
        let frame = soon(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
    }
    drop(events);
    assert!(soon(body.frame()).await.is_none());
}

#[tokio::test]
async fn an_upload_arrives_while_it_is_sent() {
    let echo = any(|request: Request| async { request.into_body() });
    let program = Program::start(Router::new().fallback_service(echo)).await;
    let stand = Stand::before(program.address).await;
    stand.lead();
    let (pieces, body) = told();
    let mut back = stand.begin(Method::POST, "/echo", &[], body).await.into_body();
    for piece in ["one", "two"] {
        pieces.send(piece.into()).await.unwrap();
        assert_eq!(soon(back.frame()).await.unwrap().unwrap().into_data().unwrap(), piece);
    }
    drop(pieces);
    assert!(soon(back.frame()).await.is_none());
}

#[tokio::test]
async fn a_hundred_megabytes_pass_both_ways() {
    let swallow = |request: Request| async { count(request.into_body()).await.to_string() };
    let router = Router::new().route("/up", any(swallow)).route("/down", get(|| async { many() }));
    let program = Program::start(router).await;
    let stand = Stand::before(program.address).await;
    let gate = stand.lead();
    let up = stand.send(Method::PUT, "/up", &[], many()).await;
    assert_eq!(up.text(), (PIECE * PIECES).to_string());
    let down = stand.begin(Method::GET, "/down", &[], Body::empty()).await;
    assert_eq!(soon(count(Body::new(down.into_body()))).await, PIECE * PIECES);
    soon(gate.idle()).await;
}

#[tokio::test]
async fn a_client_of_http2_is_served_too() {
    let say = |request: Request| async move {
        let host = request.headers()["host"].to_str().unwrap().to_owned();
        format!("{:?} {} {host}", request.version(), request.uri())
    };
    let program = Program::start(Router::new().fallback(any(say))).await;
    let stand = Stand::before(program.address).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
    let uri: http::Uri = format!("http://{}/a//b?c", stand.address).parse().unwrap();
    let request = http::Request::builder().uri(uri).body(Body::empty()).unwrap();
    let answer = soon(client.request(request)).await.unwrap();
    assert_eq!(answer.version(), Version::HTTP_2);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, format!("HTTP/1.1 /a//b?c {}", stand.address));
}

/// A controller that never answers, and says when it begins and when it is dropped.
fn endless() -> (Router, mpsc::Receiver<CancellationToken>) {
    let (begun, begins) = mpsc::channel(8);
    let wait = move |request: Request| {
        let begun = begun.clone();
        async move {
            let dropped = CancellationToken::new();
            let guard: DropGuard = dropped.clone().drop_guard();
            begun.send(dropped).await.unwrap();
            if request.uri().path() == "/body" {
                let kept = stream::unfold(guard, |guard| async {
                    Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), guard))
                });
                return Body::from_stream(kept.take(1).chain(stream::pending()));
            }
            std::future::pending::<()>().await;
            drop(guard);
            Body::empty()
        }
    };
    (Router::new().fallback(any(wait)), begins)
}

#[tokio::test]
async fn a_client_that_goes_away_is_no_longer_worked_for() {
    let (router, mut begins) = endless();
    let program = Program::start(router).await;
    let stand = Stand::before(program.address).await;
    let gate = stand.lead();
    for request in [
        "GET /head HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /head HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\na",
    ] {
        let mut line = stand.connect().await;
        line.write(request).await;
        let dropped = soon(begins.recv()).await.unwrap();
        assert_eq!(gate.inside(), usize::from(request.starts_with("POST")));
        drop(line);
        soon(dropped.cancelled()).await;
        soon(gate.idle()).await;
    }
}

#[tokio::test]
async fn a_controller_that_was_restarted_is_found_again() {
    let router = || Router::new().fallback(any(|body: Bytes| async move { body }));
    let mut program = Program::start(router()).await;
    let address = program.address.to_string();
    let stand = Stand::before(program.address).await;
    stand.lead();
    for round in 0..10 {
        for method in [Method::GET, Method::POST, Method::POST, Method::GET] {
            let answer = stand.send(method.clone(), "/a", &[], Body::from("x")).await;
            assert_eq!((answer.status, answer.text()), (200, "x"), "{round} {method}");
            let answer = stand.ask(method, "/a").await;
            assert_eq!((answer.status, answer.text()), (200, ""), "{round}");
        }
        program.stop().await;
        program = Program::at(&address, router()).await;
    }
}

#[tokio::test]
async fn a_connection_that_is_kept_open_is_used_again_until_it_is_closed() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    stand.lead();
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let answer = async |inner: &mut crate::stand::Line| {
        let head = inner.head().await;
        inner.write(ok).await;
        head
    };
    let mut inner = {
        let asked = stand.ask(Method::GET, "/first");
        let (asked, inner) = tokio::join!(asked, async {
            let mut inner = script.accept().await;
            answer(&mut inner).await;
            inner
        });
        assert_eq!(asked.status, 200);
        inner
    };
    let (asked, head) = tokio::join!(stand.ask(Method::POST, "/again"), answer(&mut inner));
    assert_eq!(asked.status, 200);
    assert!(head.starts_with("POST /again"), "{head}");
    drop(inner);
    let (asked, head) = tokio::join!(stand.ask(Method::POST, "/anew"), async {
        answer(&mut script.accept().await).await
    });
    assert_eq!(asked.status, 200);
    assert!(head.starts_with("POST /anew"), "{head}");
}

#[tokio::test]
async fn only_a_read_is_sent_again_when_a_connection_breaks() {
    let script = Script::start().await;
    let stand = Stand::before(script.address).await;
    stand.lead();
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let both = async |method: Method, body: &'static str, then: &str| {
        let asked = stand.send(method.clone(), "/a", &[], Body::from(body));
        let answers = async {
            let mut inner = script.accept().await;
            inner.head().await;
            drop(inner);
            if !then.is_empty() {
                let mut again = script.accept().await;
                let head = again.head().await;
                assert!(head.starts_with(method.as_str()), "{head}");
                again.write(then).await;
            }
        };
        tokio::join!(asked, answers).0
    };
    assert_eq!(both(Method::GET, "", ok).await.status, 200);
    for (method, body) in [(Method::POST, "x"), (Method::POST, ""), (Method::DELETE, "")] {
        let answer = both(method, body, "").await;
        assert_eq!(answer.status, 502);
        let said = answer.json();
        assert_eq!(
            (&said["error"], &said["outcome"]),
            (&"controller_unavailable".into(), &"unknown".into())
        );
    }
    let answer = both(Method::GET, "body", "").await;
    assert_eq!((answer.status, answer.json().get("outcome")), (502, None), "a read has no outcome");
}

#[tokio::test]
async fn a_controller_that_is_not_there_has_done_nothing() {
    let stand = Stand::before(nowhere().await).await;
    let gate = stand.lead();
    for method in [Method::GET, Method::POST] {
        let answer = stand.send(method, "/a", &[], Body::from("x")).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("x-role"), Some("LEADER"));
        let said = answer.json();
        assert_eq!(
            (said["error"].as_str(), said.get("outcome")),
            (Some("controller_unavailable"), None)
        );
    }
    soon(gate.idle()).await;
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_given_up() {
    let (router, mut begins) = endless();
    let program = Program::start(router).await;
    let answer_timeout = Duration::from_millis(100);
    let settings = lockd_front::FrontSettings { answer_timeout, ..settings(program.address) };
    let stand = Stand::with(settings, Door::Plain).await;
    let gate = stand.lead();
    for (method, outcome) in [(Method::GET, None), (Method::POST, Some("unknown"))] {
        let answer = stand.ask(method, "/head").await;
        assert_eq!(answer.status, 504);
        let said = answer.json();
        assert_eq!(said["error"], "controller_unavailable");
        assert_eq!(said.get("outcome").and_then(|outcome| outcome.as_str()), outcome);
        soon(soon(begins.recv()).await.unwrap().cancelled()).await;
    }
    soon(gate.idle()).await;
}

#[tokio::test]
async fn an_upload_that_moves_is_not_late() {
    let swallow = |request: Request| async { count(request.into_body()).await.to_string() };
    let program = Program::start(Router::new().fallback(any(swallow))).await;
    let answer_timeout = Duration::from_millis(400);
    let settings = lockd_front::FrontSettings { answer_timeout, ..settings(program.address) };
    let stand = Stand::with(settings, Door::Plain).await;
    stand.lead();
    let (pieces, body) = told();
    let tasks = TaskTracker::new();
    tasks.spawn(async move {
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            pieces.send(Bytes::from_static(b"x")).await.unwrap();
        }
    });
    let answer = stand.send(Method::POST, "/a", &[], body).await;
    assert_eq!((answer.status, answer.text()), (200, "10"));
}

#[tokio::test]
async fn requests_under_way_have_a_bound() {
    let (router, mut begins) = endless();
    let program = Program::start(router).await;
    let settings = lockd_front::FrontSettings { requests_max: 1, ..settings(program.address) };
    let stand = Stand::with(settings, Door::Plain).await;
    let first = stand.begin(Method::GET, "/body", &[], Body::empty()).await;
    let dropped = soon(begins.recv()).await.unwrap();
    let answer = stand.ask(Method::GET, "/a").await;
    assert_eq!(
        (answer.status, answer.json()["error"].as_str()),
        (503, Some("too_many_connections"))
    );
    assert_eq!(stand.ask(Method::GET, "/role").await.status, 200);
    drop(first);
    soon(dropped.cancelled()).await;
    // The place is given back with the answer, a moment before or after the controller hears.
    soon(async {
        loop {
            let mut line = stand.connect().await;
            line.write("GET /body HTTP/1.1\r\nHost: h\r\n\r\n").await;
            if line.head().await.starts_with("HTTP/1.1 200") {
                return;
            }
        }
    })
    .await;
}
