//! The queue over real connections: the bytes of a stream, consumers that go away, servers that
//! stop, and payloads that are larger than the memory they may take.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use lockd_tests::http::Connection;
use lockd_tests::queue::{Enqueue, Message, dequeue, messages, stats, take};
use lockd_tests::{Client, Options, Request, Server, eventually, process};
use lockd_wire::path;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

fn put(client: &mut Client, payload: &str) -> String {
    let reply = client.call(&Enqueue::new("jobs", payload).request()).ok().json();
    reply["message_id"].as_str().expect("an id").to_owned()
}

fn count(client: &mut Client, name: &str) -> u64 {
    client.call(&stats("jobs")).ok().json()[name].as_u64().expect("a number")
}

/// A subscription, read chunk by chunk as the server flushes it.
struct Stream {
    connection: Connection,
    boundary: String,
    text: Vec<u8>,
}

impl Stream {
    fn open(server: &Server, more: &Value) -> Self {
        let mut connection = Connection::open(&server.place).expect("a connection");
        connection.send(&take(path::QUEUE_SUBSCRIBE, "jobs", more)).expect("sent");
        let head = connection.reply_head().expect("an answer");
        assert_eq!(head.status, 200);
        let kind = head.header("content-type").expect("a type");
        let boundary = kind.strip_prefix("multipart/related; boundary=").expect("parts").to_owned();
        Self { connection, boundary, text: Vec::new() }
    }

    /// All bytes until they end like this.
    fn until(&mut self, end: &str) -> String {
        while !self.text.ends_with(end.as_bytes()) {
            let chunk = self.connection.chunk().expect("a chunk").expect("more");
            self.text.extend_from_slice(&chunk);
        }
        String::from_utf8(std::mem::take(&mut self.text)).expect("text")
    }

    /// The next message, whose payload ends like this.
    fn message(&mut self, payload: &str) -> Message {
        let text = self.until(payload);
        let json = text.split("\r\n\r\n").nth(1).and_then(|rest| rest.split("\n\r\n").next());
        let meta: Value = serde_json::from_str(json.expect("a text")).expect("JSON");
        Message { meta: meta["message"].clone(), payload: payload.into() }
    }
}

#[test]
fn a_stream_gives_each_message_whole_before_the_next_delimiter() {
    let server = Server::start(Options::in_memory());
    let mut client = server.client();
    put(&mut client, "one!");
    let mut stream = Stream::open(&server, &json!({"wait_seconds": 0, "page_size": 2}));
    let boundary = stream.boundary.clone();
    // All of it is there although nothing follows: a reader must not wait for the delimiter.
    let first = stream.until("one!");
    let frame = |text: &str, begin: &str, payload: &str| {
        let json =
            text.split("\r\n\r\n").nth(1).expect("a text").split("\r\n").next().expect("one");
        assert!(
            json.starts_with("{\"message\":{\"namespace\":\"default\",\"queue\":\"jobs\""),
            "{json}"
        );
        assert!(json.ends_with("}}\n"), "{json:?}");
        format!(
            "{begin}--{boundary}\r\n\
             Content-Disposition: form-data; name=\"meta\"\r\n\
             Content-Type: application/json\r\n\r\n\
             {json}\r\n--{boundary}\r\n\
             Content-Disposition: form-data; name=\"payload\"\r\n\
             Content-Length: {}\r\n\
             Content-Type: application/octet-stream\r\n\r\n{payload}",
            payload.len()
        )
    };
    assert_eq!(first, frame(&first, "", "one!"));
    put(&mut client, "and two");
    let second = stream.until("and two");
    assert_eq!(second, frame(&second, "\r\n", "and two"));
    server.terminate();
    assert_eq!(stream.until("--\r\n"), format!("\r\n--{boundary}--\r\n"));
    assert!(stream.connection.chunk().expect("the end").is_none());
}

#[test]
fn one_delivery_is_framed_byte_for_byte() {
    let server = Server::start(Options::in_memory());
    let mut client = server.client();
    put(&mut client, "pay\r\nload");
    let reply = client.call(&dequeue("jobs", &json!({}))).ok();
    let boundary = reply.header("content-type").and_then(|kind| kind.split_once("boundary="));
    let boundary = boundary.expect("a boundary").1;
    let text = reply.text();
    let json = text.split("\r\n\r\n").nth(1).expect("a text").split("\r\n--").next().expect("one");
    let expected = format!(
        "--{boundary}\r\n\
         Content-Disposition: form-data; name=\"meta\"\r\n\
         Content-Type: application/json\r\n\r\n\
         {json}\r\n--{boundary}\r\n\
         Content-Disposition: form-data; name=\"payload\"\r\n\
         Content-Length: 9\r\n\
         Content-Type: application/octet-stream\r\n\r\n\
         pay\r\nload\r\n--{boundary}--\r\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn a_subscriber_has_no_more_messages_than_it_asked_for() {
    let server = Server::start(Options::in_memory());
    let mut client = server.client();
    for payload in ["m0", "m1", "m2", "m3", "m4"] {
        put(&mut client, payload);
    }
    let mut stream = Stream::open(&server, &json!({"wait_seconds": 0, "page_size": 2}));
    let first = stream.message("m0");
    let second = stream.message("m1");
    assert_eq!((count(&mut client, "in_flight"), count(&mut client, "ready")), (2, 3));
    client.call(&first.ack()).ok();
    let third = stream.message("m2");
    client.call(&second.nack(&json!({"delay_seconds": 600}))).ok();
    stream.message("m3");
    assert_eq!((count(&mut client, "in_flight"), count(&mut client, "ready")), (2, 1));
    client.call(&third.ack()).ok();
    stream.message("m4");
}

#[test]
fn an_empty_queue_is_said_at_once_or_after_the_wait() {
    let server = Server::start(Options::in_memory());
    let mut client = server.client();
    let now = take(path::QUEUE_SUBSCRIBE, "jobs", &json!({}));
    let reply = client.call(&now);
    reply.refused(409, "waiting");
    assert_eq!(reply.header("retry-after"), None);
    let reply = client.call(&dequeue("jobs", &json!({"wait_seconds": 1})));
    reply.refused(409, "waiting");
    assert_eq!(reply.header("retry-after"), Some("1"));
    put(&mut client, "last");
    let mut stream = Stream::open(&server, &json!({"wait_seconds": -1}));
    let boundary = stream.boundary.clone();
    let message = stream.message("last");
    // Now it may have another one, and there is none.
    client.call(&message.ack()).ok();
    assert_eq!(stream.until("--\r\n"), format!("\r\n--{boundary}--\r\n"));
}

#[test]
fn a_delivery_that_nobody_reads_comes_back_at_once_and_counts_for_nothing() {
    let server = Server::start(Options::in_memory().plain());
    let mut client = server.client();
    let mut connection = Connection::open(&server.place).expect("a connection");
    connection.send(&dequeue("jobs", &json!({"wait_seconds": 0}))).expect("sent");
    eventually("it waits", || count(&mut client, "waiting_consumers") == 1);
    connection.socket.reset();
    eventually("its place is free", || count(&mut client, "waiting_consumers") == 0);
    // A payload that does not fit into the buffers of a socket that nobody reads.
    let payload = "x".repeat(40 << 20);
    put(&mut client, &payload);
    let mut connection = Connection::open(&server.place).expect("a connection");
    connection.send(&dequeue("jobs", &json!({"visibility_timeout_seconds": 600}))).expect("sent");
    let mut piece = [0; 1024];
    connection.socket.read_exact(&mut piece).expect("the beginning");
    assert_eq!(count(&mut client, "in_flight"), 1);
    connection.socket.reset();
    eventually("it is back", || count(&mut client, "ready") == 1);
    let message = messages(&client.call(&dequeue("jobs", &json!({})))).remove(0);
    assert_eq!((message.number("attempts"), message.number("failure_attempts")), (1, 0));
    assert_eq!(message.payload.len(), payload.len());
}

#[test]
fn consumers_finish_their_messages_while_the_server_drains() {
    let mut server = Server::start(
        Options::new().flag("drain-grace", "60s").variable("LOCKD_DRAIN_LEASES", "true"),
    );
    let mut client = server.client();
    for payload in ["a", "b", "c"] {
        put(&mut client, payload);
    }
    let all = messages(&client.call(&dequeue("jobs", &json!({"page_size": 3}))));
    server.terminate();
    eventually("it drains", || client.call(&Request::get("/readyz")).status == 503);
    client.call(&dequeue("jobs", &json!({}))).refused(503, "shutdown_draining");
    client.call(&all[0].ack()).ok();
    client.call(&all[1].nack(&json!({}))).ok();
    let longer = client.call(&all[2].extend(&json!({"extend_by_seconds": 60}))).ok().json();
    assert!(longer["meta_etag"].is_string());
    client.call(&all[2].ack()).ok();
    let status = server.ended(Duration::from_secs(20));
    assert_eq!(status.code(), Some(0));
    server.start_again();
    let mut client = server.client();
    let left = messages(&client.call(&dequeue("jobs", &json!({"page_size": 9}))));
    assert_eq!(left.iter().map(|one| one.payload.as_slice()).collect::<Vec<_>>(), [b"b"]);
}

#[test]
fn a_watch_tells_when_there_is_something_to_take() {
    let server = Server::start(Options::in_memory());
    let mut client = server.client();
    let mut connection = Connection::open(&server.place).expect("a connection");
    let ask = Request::post(path::QUEUE_WATCH).json(&json!({"queue": "jobs"}));
    connection.send(&ask).expect("sent");
    let head = connection.reply_head().expect("an answer");
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    assert_eq!(head.header("x-accel-buffering"), Some("no"));
    let mut event = || {
        let chunk = connection.chunk().expect("a chunk").expect("an event");
        let text = String::from_utf8(chunk).expect("text");
        let mut lines = text.lines().map(str::to_owned);
        let (id, kind) = (lines.next().expect("an id"), lines.next().expect("a kind"));
        let data = lines.next().expect("data");
        assert_eq!(kind, "event: queue_watch");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        (id, data["available"] == true, data["head_message_id"].as_str().map(str::to_owned))
    };
    assert_eq!(event(), ("id: 1".into(), false, None));
    assert_eq!(client.call(&stats("jobs")).ok().json()["has_active_watcher"], true);
    let first = put(&mut client, "a");
    assert_eq!(event(), ("id: 2".into(), true, Some(first)));
    let second = put(&mut client, "b");
    let message = messages(&client.call(&dequeue("jobs", &json!({})))).remove(0);
    assert_eq!(event(), ("id: 3".into(), true, Some(second)));
    client.call(&message.ack()).ok();
    let message = messages(&client.call(&dequeue("jobs", &json!({})))).remove(0);
    assert_eq!(event(), ("id: 4".into(), false, None));
    client.call(&message.ack()).ok();
}

#[test]
fn too_large_a_payload_and_too_many_consumers_are_refused() {
    let options =
        Options::in_memory().flag("queue-payload-max", "1MiB").flag("queue-max-consumers", 1);
    let server = Server::start(options);
    let mut client = server.client();
    let large = Enqueue::new("jobs", vec![7; (1 << 20) + 1]).request();
    client.call(&large).refused(413, "payload_too_large");
    client.call(&Enqueue::new("jobs", vec![7; 1 << 20]).request()).ok();
    assert_eq!(count(&mut client, "ready"), 1);
    let mut waiting = Connection::open(&server.place).expect("a connection");
    waiting.send(&dequeue("other", &json!({"wait_seconds": 0}))).expect("sent");
    eventually("it waits", || client.call(&stats("other")).ok().json()["waiting_consumers"] == 1);
    client.call(&dequeue("third", &json!({"wait_seconds": 0}))).refused(503, "queue_busy");
}

#[test]
fn what_stands_before_a_payload_is_bounded() {
    let server = Server::start(Options::in_memory());
    for opening in ["", "--x\r\nA: "] {
        let before = process::resident(server.pid());
        let mut connection = Connection::open(&server.place).expect("a connection");
        let request = Request::post(path::QUEUE_ENQUEUE)
            .header("content-type", "multipart/related; boundary=x");
        let head = request.head("content-length: 1000000000\r\n");
        connection.socket.write_all(&[head, opening.into()].concat()).expect("sent");
        let piece = vec![b'a'; 1 << 20];
        // It stops reading, or answers, long before the end.
        let sent = (0..200).take_while(|_| connection.socket.write_all(&piece).is_ok()).count();
        let grown = process::resident(server.pid()).saturating_sub(before);
        assert!(grown < 64 << 20, "{} MiB after {sent} MiB", grown >> 20);
        if let Ok(reply) = connection.reply() {
            reply.refused(400, "multipart_error");
        }
    }
}

/// The boundary of the request below.
const BOUNDARY: &str = "large";

#[test]
fn two_hundred_megabytes_go_through_in_little_memory() {
    const PIECE: usize = 1 << 20;
    const PIECES: u64 = 200;
    const GROWTH_MAX: u64 = 48 << 20;
    let server = Server::usual();
    let before = process::resident(server.pid());
    let mut peak = before;
    let begin = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"meta\"\r\n\r\n{{\"queue\":\"jobs\"}}\n\
         \r\n--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"payload\"\r\n\r\n"
    );
    let end = format!("\r\n--{BOUNDARY}--\r\n");
    let length = PIECES * PIECE as u64;
    let whole = begin.len() as u64 + length + end.len() as u64;
    let request = Request::post(path::QUEUE_ENQUEUE)
        .header("content-type", format!("multipart/related; boundary={BOUNDARY}"));
    let mut connection = Connection::open(&server.place).expect("a connection");
    let head = request.head(&format!("content-length: {whole}\r\n"));
    connection.socket.write_all(&[head, begin.into_bytes()].concat()).expect("sent");
    let (mut piece, mut sent) = (vec![0_u8; PIECE], Sha256::new());
    for number in 0..PIECES {
        piece[..8].copy_from_slice(&number.to_le_bytes());
        sent.update(&piece);
        connection.socket.write_all(&piece).expect("sent");
        peak = peak.max(process::resident(server.pid()));
    }
    connection.socket.write_all(end.as_bytes()).expect("sent");
    assert_eq!(connection.reply().expect("an answer").ok().json()["payload_bytes"], length);

    connection.send(&dequeue("jobs", &json!({}))).expect("sent");
    assert_eq!(connection.reply_head().expect("an answer").status, 200);
    // Head, payload and end come as chunks; the payload is what lies between the two frames.
    let (mut read, mut frames, mut bytes) = (Sha256::new(), Vec::new(), 0_u64);
    while let Some(chunk) = connection.chunk().expect("a chunk") {
        if frames.is_empty() || bytes == length {
            frames.extend_from_slice(&chunk);
        } else {
            bytes += chunk.len() as u64;
            read.update(&chunk);
        }
        peak = peak.max(process::resident(server.pid()));
    }
    assert_eq!(bytes, length);
    let sent: String = sent.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let read: String = read.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(sent, read);
    let frames = String::from_utf8(frames).expect("text");
    assert!(frames.contains(&format!("Content-Length: {length}\r\n")), "{frames}");
    assert!(frames.contains(&format!("\"payload_sha256\":\"{sent}\"")), "{frames}");
    assert!(peak - before < GROWTH_MAX, "{} MiB", (peak - before) >> 20);
    println!("grew by {} MiB", (peak - before) >> 20);
}
