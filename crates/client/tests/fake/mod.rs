//! A scripted server: answers come from a list per path, and what was asked can be waited for.
//! It knows nothing about leases; tests say what it says.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Chunks = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, io::Error>> + Send>>;

/// How long a test waits to be asked; with stopped time that is no time at all.
const ASKED_MAX: Duration = Duration::from_secs(30);

/// What the server was asked.
#[derive(Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn headers_of(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn name(&self) -> &str {
        self.header("x-idempotency-key").expect("the request is named")
    }
}

/// What the server says.
pub enum Answer {
    Json(u16, Vec<(&'static str, String)>, Value),
    Raw(u16, Vec<(&'static str, String)>, &'static [u8]),
    Stream(Vec<(&'static str, String)>, Chunks),
    /// Closes the connection without a word.
    Hangup,
    /// Never answers.
    Silence,
    /// Answers when told to.
    When(oneshot::Receiver<()>, Box<Self>),
    /// Answers without having read the body; its chunks are handed over as they come.
    Unread(mpsc::Sender<Bytes>, Box<Self>),
}

impl Answer {
    pub fn ok(body: Value) -> Self {
        Self::Json(200, Vec::new(), body)
    }

    pub fn error(status: u16, code: &str) -> Self {
        Self::Json(status, Vec::new(), json!({ "error": code, "detail": "as scripted" }))
    }

    pub fn with(mut self, name: &'static str, value: &impl ToString) -> Self {
        match &mut self {
            Self::Json(_, headers, _) | Self::Raw(_, headers, _) | Self::Stream(headers, _) => {
                headers.push((name, value.to_string()));
            }
            Self::Hangup | Self::Silence | Self::When(..) | Self::Unread(..) => {
                panic!("this answer has no headers")
            }
        }
        self
    }

    /// This answer, once the returned sender says so.
    pub fn when(self) -> (oneshot::Sender<()>, Self) {
        let (sender, receiver) = oneshot::channel();
        (sender, Self::When(receiver, Box::new(self)))
    }
}

/// The usual answer to an acquire.
pub fn granted(ttl: Duration, token: u64) -> Answer {
    Answer::ok(json!({
        "namespace": "default", "lease_id": "L1", "txn_id": "T1", "key": "jobs/7", "owner": "me",
        "expires_at_unix": 1, "expires_at_unix_ms": 1000, "ttl_ms": ms(ttl),
        "version": 3, "state_etag": "e3", "fencing_token": token, "correlation_id": "c"
    }))
}

pub fn renewed(ttl: Duration) -> Answer {
    Answer::ok(json!({
        "expires_at_unix": 2, "expires_at_unix_ms": 2000, "ttl_ms": ms(ttl)
    }))
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap()
}

pub fn released() -> Answer {
    Answer::ok(json!({ "released": true }))
}

pub fn updated(version: u64) -> Answer {
    Answer::ok(json!({
        "new_version": version, "new_state_etag": "e", "bytes": 2, "metadata": {}
    }))
}

/// A message as it is delivered, up to the end of its payload: the next delimiter comes with the
/// next message.
pub fn delivery(id: &str, visibility: Duration, payload: &[u8]) -> Bytes {
    let message = json!({ "message": {
        "namespace": "default", "queue": "jobs", "message_id": id, "attempts": 2,
        "max_attempts": 5, "failure_attempts": 1, "not_visible_until_unix": 1,
        "visibility_timeout_seconds": visibility.as_secs(), "visibility_timeout_ms": ms(visibility),
        "attributes": { "size": 7 }, "payload_content_type": "text/plain",
        "payload_bytes": payload.len(), "payload_sha256": "abc", "enqueued_at_unix_ms": 5,
        "correlation_id": "c", "lease_id": format!("L-{id}"), "lease_expires_at_unix": 1,
        "fencing_token": 3, "txn_id": "T1", "meta_etag": "e1"
    } });
    delivery_of(&message, payload)
}

pub fn delivery_of(message: &Value, payload: &[u8]) -> Bytes {
    let head = format!(
        "\r\n--B\r\nContent-Disposition: form-data; name=\"meta\"\r\nContent-Type: \
         application/json\r\n\r\n{message}\n\r\n--B\r\nContent-Disposition: form-data; \
         name=\"payload\"\r\nContent-Length: {}\r\nContent-Type: text/plain\r\n\r\n",
        payload.len()
    );
    [head.as_bytes(), payload].concat().into()
}

pub const CLOSE: &[u8] = b"\r\n--B--\r\n";

/// Messages in one answer that ends.
pub fn deliveries(messages: &[Bytes]) -> Answer {
    let mut pieces = messages.to_vec();
    pieces.push(Bytes::from_static(CLOSE));
    let frames = pieces.into_iter().map(|piece| Ok(Frame::data(piece)));
    Answer::Stream(related(), Box::pin(futures_util::stream::iter(frames.collect::<Vec<_>>())))
}

/// An answer whose pieces come when they are sent; it ends when the sender is dropped.
pub fn feed() -> (mpsc::Sender<Bytes>, Answer) {
    let (sender, receiver) = mpsc::channel(16);
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let piece: Bytes = receiver.recv().await?;
        Some((Ok(Frame::data(piece)), receiver))
    });
    (sender, Answer::Stream(related(), Box::pin(pieces)))
}

fn related() -> Vec<(&'static str, String)> {
    vec![("content-type", "multipart/related; boundary=B".to_owned())]
}

pub fn acked() -> Answer {
    Answer::ok(json!({ "acked": true, "correlation_id": "c" }))
}

pub fn nacked() -> Answer {
    Answer::ok(json!({ "requeued": true, "meta_etag": "e9", "correlation_id": "c" }))
}

pub fn extended(visibility: Duration, meta_etag: &str) -> Answer {
    Answer::ok(json!({
        "lease_expires_at_unix": 2, "lease_expires_at_unix_ms": 2000,
        "visibility_timeout_seconds": visibility.as_secs(), "visibility_timeout_ms": ms(visibility),
        "meta_etag": meta_etag, "correlation_id": "c"
    }))
}

type Always = Arc<dyn Fn() -> Answer + Send + Sync>;

#[derive(Default)]
struct Script {
    once: BTreeMap<String, VecDeque<Answer>>,
    always: BTreeMap<String, Always>,
    watchers: BTreeMap<String, mpsc::UnboundedSender<Seen>>,
    seen: BTreeMap<String, mpsc::UnboundedReceiver<Seen>>,
}

/// The server. Its clones are the same server.
#[derive(Clone, Default)]
pub struct Fake {
    script: Arc<Mutex<Script>>,
}

impl Fake {
    /// The next answer for a path, after those scripted before.
    pub fn then(&self, path: &str, answer: Answer) -> &Self {
        self.script.lock().unwrap().once.entry(path.to_owned()).or_default().push_back(answer);
        self
    }

    /// The answer for a path when nothing else is scripted.
    pub fn always(&self, path: &str, answer: impl Fn() -> Answer + Send + Sync + 'static) -> &Self {
        self.script.lock().unwrap().always.insert(path.to_owned(), Arc::new(answer));
        self
    }

    /// Waits for the next request to a path. Bodies have been read by then.
    pub async fn asked(&self, path: &str) -> Seen {
        let mut receiver = self.take_receiver(path);
        let seen = tokio::time::timeout(ASKED_MAX, receiver.recv()).await;
        let seen = seen.unwrap_or_else(|_| panic!("nobody asked for {path}")).unwrap();
        self.script.lock().unwrap().seen.insert(path.to_owned(), receiver);
        seen
    }

    /// The requests to a path that have come and not been looked at.
    pub fn asked_already(&self, path: &str) -> Vec<Seen> {
        let mut receiver = self.take_receiver(path);
        let mut all = Vec::new();
        while let Ok(seen) = receiver.try_recv() {
            all.push(seen);
        }
        self.script.lock().unwrap().seen.insert(path.to_owned(), receiver);
        all
    }

    fn take_receiver(&self, path: &str) -> mpsc::UnboundedReceiver<Seen> {
        let mut script = self.script.lock().unwrap();
        script.sender(path);
        script.seen.remove(path).expect("one test waits for a path at a time")
    }

    /// Serves a free port of this machine; returns its address.
    pub async fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let fake = self.clone();
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                fake.serve(stream);
            }
        });
        format!("http://{address}")
    }

    pub fn listen_unix(&self, path: &std::path::Path) {
        let listener = tokio::net::UnixListener::bind(path).unwrap();
        let fake = self.clone();
        spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                fake.serve(stream);
            }
        });
    }

    /// Serves one connection.
    pub fn serve(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let fake = self.clone();
        spawn(async move {
            let service = service_fn(move |request| {
                let fake = fake.clone();
                async move { fake.answer(request).await }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            drop(connection.await);
        });
    }

    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Body>> {
        let path = request.uri().path().to_owned();
        let mut answer = self.script.lock().unwrap().next(&path);
        let (head, mut body) = request.into_parts();
        let mut seen = Seen {
            method: head.method,
            path: path.clone(),
            query: query(head.uri.query().unwrap_or_default()),
            headers: head.headers,
            body: Bytes::new(),
        };
        if let Answer::Unread(chunks, then) = answer {
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(io::Error::other)?;
                chunks.send(frame.into_data().unwrap()).await.unwrap();
            }
            drop(chunks);
            answer = *then;
        } else {
            seen.body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        }
        self.script.lock().unwrap().sender(&path).send(seen).unwrap();
        loop {
            answer = match answer {
                Answer::When(signal, then) => {
                    drop(signal.await);
                    *then
                }
                Answer::Json(status, headers, value) => {
                    let body = Full::new(Bytes::from(value.to_string()));
                    return Ok(respond(status, headers, boxed(body)));
                }
                Answer::Raw(status, headers, bytes) => {
                    return Ok(respond(status, headers, boxed(Full::from(bytes))));
                }
                Answer::Stream(headers, chunks) => {
                    let body = StreamBody::new(chunks).boxed_unsync();
                    return Ok(respond(200, headers, body));
                }
                Answer::Hangup => return Err(io::Error::other("as scripted")),
                Answer::Silence => std::future::pending().await,
                Answer::Unread(..) => panic!("the body has been read"),
            };
        }
    }
}

impl Script {
    fn next(&mut self, path: &str) -> Answer {
        if let Some(answer) = self.once.get_mut(path).and_then(VecDeque::pop_front) {
            return answer;
        }
        match self.always.get(path) {
            Some(answer) => answer(),
            None => Answer::error(500, "not_scripted"),
        }
    }

    fn sender(&mut self, path: &str) -> mpsc::UnboundedSender<Seen> {
        if let Some(sender) = self.watchers.get(path) {
            return sender.clone();
        }
        #[expect(clippy::disallowed_methods, reason = "a test asks a bounded number of times")]
        let (sender, receiver) = mpsc::unbounded_channel();
        self.watchers.insert(path.to_owned(), sender.clone());
        self.seen.insert(path.to_owned(), receiver);
        sender
    }
}

fn respond(status: u16, headers: Vec<(&'static str, String)>, body: Body) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response.body(body).unwrap()
}

fn boxed(body: Full<Bytes>) -> Body {
    body.map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn query(text: &str) -> BTreeMap<String, String> {
    let decode =
        |part: &str| percent_encoding::percent_decode_str(part).decode_utf8().unwrap().into_owned();
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "the runtime of a test ends its tasks")]
pub fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}
