//! Bodies in pieces of one byte: the work of the server grows with their bytes and no faster. Work
//! is measured as processor time, and only ever compared with the same kind of work.

use std::convert::Infallible;
use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use lockd_server::Body;
use lockd_tests::http::{Connection, Place};
use lockd_tests::http2::Http2;
use lockd_tests::inside::{Inside, ask, to_http};
use lockd_tests::tunnel::session;
use lockd_tests::{Ask, Options, Request, Server};
use lockd_wire::path;

/// Four times the bytes are four times the work; were each byte to cost as much as all before it,
/// they would be sixteen times.
const LARGER: usize = 4;
const FACTOR_MAX: u32 = 8;

/// Fails when the work grows faster than the bytes; `work` may also come to nothing. A busy machine makes some runs dearer: the
/// cheapest of a few counts.
#[track_caller]
fn grows_with_the_bytes(what: &str, bytes: usize, mut work: impl FnMut(usize) -> Option<Duration>) {
    let (mut small, mut large) = (Duration::MAX, Duration::MAX);
    for _ in 0..5 {
        small = work(bytes).unwrap_or(Duration::MAX).min(small);
        large = work(bytes * LARGER).unwrap_or(Duration::MAX).min(large);
        if small.max(large) < Duration::MAX && large <= small.saturating_mul(FACTOR_MAX) {
            println!("{what}: {bytes} bytes {small:?}, {LARGER} times as many {large:?}");
            return;
        }
    }
    panic!("{what}: {bytes} bytes cost {small:?}, {LARGER} times as many {large:?}");
}

/// Processor time that threads have used, by the kernel's count.
fn used(task: &std::path::Path) -> Duration {
    let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

fn used_by_server(server: &Server) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("its threads");
    tasks.filter_map(Result::ok).map(|task| used(&task.path())).sum()
}

/// Bodies by what they spend their bytes on.
fn kinds(count: usize) -> Vec<(&'static str, Request)> {
    let blanks = " ".repeat(count);
    let wish = format!(r#"{{"owner":"o","key":"k","block_seconds":-1{blanks}}}"#);
    let names = format!(r#"{{"keys":["k"]{blanks}}}"#);
    vec![
        ("a command", Request::post(path::ACQUIRE).body(wish)),
        ("a read of several keys", Request::post(path::READ).body(names)),
        ("a part meta", enqueue("", "", &blanks, "work", "")),
        ("a payload", enqueue("", "", "", &"x".repeat(count), "")),
        ("a payload of line ends", enqueue("", "", "", &"\r\n".repeat(count / 2), "")),
        ("bytes before the first part", enqueue(&"x".repeat(count), "", "", "work", "")),
        ("the head of a part", enqueue("", &"x".repeat(count), "", "work", "")),
        ("a part behind the payload", enqueue("", "", "", "work", &"x".repeat(count))),
    ]
}

fn enqueue(before: &str, head: &str, blanks: &str, payload: &str, extra: &str) -> Request {
    let body = format!(
        "{before}\r\n--cut\r\nContent-Disposition: form-data; name=\"meta\"\r\nX-Head: {head}\r\n\
         \r\n{{\"queue\":\"jobs\"{blanks}}}\r\n--cut\r\nContent-Disposition: form-data; \
         name=\"payload\"\r\n\r\n{payload}\r\n--cut\r\nContent-Disposition: form-data; \
         name=\"extra\"\r\n\r\n{extra}\r\n--cut--\r\n"
    );
    let kind = "multipart/related; boundary=cut";
    Request::post(path::QUEUE_ENQUEUE).header("content-type", kind).body(body)
}

/// The body in pieces of one byte, none of which is there before it is asked for.
fn in_single_bytes(request: &Request) -> http::Request<Body> {
    let bytes = request.body.clone().unwrap_or_default();
    let pieces = stream::unfold(bytes.into_iter(), |mut left| async move {
        // Twice: a look without waiting finds nothing, and so does the first look with it.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let byte = left.next()?;
        Some((Ok::<_, Infallible>(Bytes::copy_from_slice(&[byte])), left))
    });
    to_http(request).map(|_| Body::from_stream(pieces))
}

/// Makes a request with a body of so many bytes.
type OfSize = Box<dyn Fn(usize) -> Request>;

#[test]
fn the_work_of_a_body_grows_with_its_bytes_however_it_is_cut() {
    let server = Inside::default();
    let held = server.acquire(&Ask::new("k", "holder").ttl_ms(600_000));
    let mut all: Vec<(&str, OfSize)> = Vec::new();
    for (index, (name, _)) in kinds(0).into_iter().enumerate() {
        all.push((name, Box::new(move |count| kinds(count).remove(index).1)));
    }
    let document = held.clone();
    all.push((
        "a document",
        Box::new(move |count| document.update(format!("\"{}\"", "x".repeat(count)))),
    ));
    all.push(("blanks", Box::new(move |count| held.update(format!("{}1", " ".repeat(count))))));
    for (name, request) in all {
        grows_with_the_bytes(name, 128 * 1024, |count| {
            let request = in_single_bytes(&request(count));
            let thread = std::path::Path::new("/proc/thread-self");
            let before = used(thread);
            let reply = server.runtime.block_on(ask(&server.handler, request));
            assert!(reply.status < 500, "{name}: {}", reply.text());
            Some(used(thread) - before)
        });
    }
}

#[test]
fn the_work_of_single_byte_chunks_grows_with_their_number() {
    let server = Server::start(Options::in_memory().plain());
    for kind in [0, 2, 6] {
        let name = kinds(0)[kind].0;
        grows_with_the_bytes(name, 64 * 1024, |count| {
            let request = kinds(count).remove(kind).1;
            let body = request.body.clone().unwrap_or_default();
            let head = Request { body: None, ..request }.head("transfer-encoding: chunked\r\n");
            let mut all = head;
            all.extend(body.iter().flat_map(|byte| [b'1', b'\r', b'\n', *byte, b'\r', b'\n']));
            all.extend_from_slice(b"0\r\n\r\n");
            let mut connection = Connection::open(&server.place).expect("a connection");
            let before = used_by_server(&server);
            connection.socket.write_all(&all).expect("sent");
            assert!(connection.reply().expect("an answer").status < 500);
            Some(used_by_server(&server) - before)
        });
    }
}

#[test]
fn the_work_of_single_byte_http2_frames_grows_with_their_number() {
    let server = Server::start(Options::secure());
    let Place::Tcp(address) = server.place else { panic!("not over the network") };
    let bundle = server.bundle_for_everything();
    for kind in [0, 2, 6] {
        let name = kinds(0)[kind].0;
        grows_with_the_bytes(name, 64 * 1024, |count| {
            let mut connection = Http2::open(session(address, &bundle, b"h2"), 65_535);
            let before = used_by_server(&server);
            // The HTTP layer refuses small frames that pile up: then it is tried again.
            let called = connection.call_in_single_bytes(&kinds(count).remove(kind).1);
            called.ok().map(|()| used_by_server(&server) - before)
        });
    }
}
