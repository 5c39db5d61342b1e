//! Large documents pass through the server without staying in its memory, and bodies that are
//! wrong in any way change nothing and leave nothing behind. The sender hears what was wrong even
//! if it was still sending.

use std::io::Write;
use std::time::Duration;

use lockd_tests::document::Document;
use lockd_tests::http::Connection;
use lockd_tests::process::{forget_peak, peak, resident};
use lockd_tests::{Ask, Bucket, Client, Cloud, Held, Options, Reply, Request, Server, eventually};
use lockd_wire::header;
use sha2::Digest as _;

const MB: u64 = 1 << 20;

/// Sends a request whose body comes in chunks of unknown total length.
fn send_chunked(
    server: &Server,
    request: &Request,
    pieces: impl Iterator<Item = Vec<u8>>,
) -> Connection {
    let mut connection = Connection::open(&server.place).expect("a connection");
    let head = request.head("transfer-encoding: chunked\r\n");
    connection.socket.write_all(&head).expect("sent");
    for piece in pieces {
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(&piece);
        chunk.extend_from_slice(b"\r\n");
        if connection.socket.write_all(&chunk).is_err() {
            // The server stopped listening; its answer is there to be read.
            return connection;
        }
    }
    connection
}

fn finish(connection: &mut Connection) -> Reply {
    connection.socket.write_all(b"0\r\n\r\n").ok();
    connection.reply().expect("the answer comes through")
}

#[test]
fn a_hundred_megabytes_pass_through_with_little_memory() {
    let server = Server::usual();
    pass_through(&server, 48);
    assert_eq!(server.blobs().len(), 1, "the document that was replaced is gone");
}

#[test]
fn also_on_a_bucket() {
    let bucket = Bucket::new(Cloud::Double);
    let server = Server::start(bucket.options());
    pass_through(&server, 64);
    assert!(bucket.double().uploads("lockd").is_empty(), "every upload was finished");
}

/// Each upload fills one part while others are on their way, and uploads share the bound on those.
#[test]
fn uploads_at_once_share_a_bound_on_memory() {
    const UPLOADS: usize = 5;
    let bucket = Bucket::new(Cloud::Double);
    let server = Server::start(bucket.options());
    bucket.slow_down(Duration::from_millis(200));
    let before = resident(server.pid());
    forget_peak(server.pid());
    std::thread::scope(|scope| {
        for number in 0..UPLOADS {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                let held =
                    client.acquire(&Ask::new(&format!("big-{number}"), "test").ttl_ms(600_000));
                let document = Document::of_bytes(40_000_000, number);
                let mut connection = send_chunked(server, &held.update(""), document.pretty());
                finish(&mut connection).ok();
            });
        }
    });
    let grown = peak(server.pid()).saturating_sub(before) / MB;
    println!("{UPLOADS} uploads at once: the server grew by {grown} MB");
    assert!(grown < 130, "the server grew by {grown} MB");
}

/// A document of 100 MB in and out, while the server grows by no more than so many MB.
fn pass_through(server: &Server, most: u64) {
    let mut client = server.client();
    let held = client.acquire(&Ask::new("big", "test").ttl_ms(600_000));
    client.call(&held.commit("1")).ok();
    let document = Document::of_bytes(100_000_000, 1);
    let expected_bytes: usize = document.compact().map(|piece| piece.len()).sum();
    assert!(expected_bytes >= 100_000_000, "{expected_bytes}");

    let before = resident(server.pid());
    forget_peak(server.pid());
    let update = held.update("").query("then", "commit");
    let mut connection = send_chunked(server, &update, document.pretty());
    let written = finish(&mut connection).ok().json();
    assert_eq!(written["bytes"], expected_bytes);
    let written_peak = peak(server.pid()).saturating_sub(before);

    let mut expected = document.compact();
    let (mut rest, mut read) = (Vec::new(), 0_usize);
    let mut connection = Connection::open(&server.place).expect("a connection");
    let get = Request::post("/v1/get").query("key", "big").query("public", "1");
    connection.send(&get).expect("sent");
    let reply = connection.reply_to(|mut piece| {
        read += piece.len();
        while !piece.is_empty() {
            if rest.is_empty() {
                rest = expected.next().expect("no more than was written");
            }
            let count = rest.len().min(piece.len());
            assert!(rest[..count] == piece[..count], "other bytes around {read}");
            rest.drain(..count);
            piece = &piece[count..];
        }
    });
    let reply = reply.expect("the document");
    assert_eq!(read, expected_bytes);
    let hash = document.compact().fold(sha2::Sha256::new(), |mut hash, piece| {
        hash.update(&piece);
        hash
    });
    let etag = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(reply.header("etag"), Some(etag.as_str()));
    let grown = peak(server.pid()).saturating_sub(before);
    println!("grew by {} KB writing, {} KB in all", written_peak / 1024, grown / 1024);
    assert!(grown < most * MB, "the server grew by {} MB", grown / MB);
}

#[test]
fn readers_that_stall_cost_little_memory() {
    let server = Server::usual();
    let mut client = server.client();
    let held = client.acquire(&Ask::new("big", "test").ttl_ms(600_000));
    let document = Document::of_bytes(30_000_000, 1);
    let update = held.update("").query("then", "commit");
    finish(&mut send_chunked(&server, &update, document.pretty())).ok();
    let before = resident(server.pid());
    forget_peak(server.pid());
    let get = Request::post("/v1/get").query("key", "big").query("public", "1");
    let mut stalled: Vec<Connection> = (0..24)
        .map(|_| {
            let mut connection = Connection::open(&server.place).expect("a connection");
            connection.send(&get).expect("sent");
            connection
        })
        .collect();
    // The head of each answer shows that its document is on the way; nobody takes it.
    for connection in &mut stalled {
        assert_eq!(connection.reply_head().expect("an answer").status, 200);
    }
    // One more reader takes all of it, in which time the others could have been filled up.
    for _ in 0..3 {
        assert!(client.public("big").expect("the document").body.len() >= 30_000_000);
    }
    let grown = peak(server.pid()).saturating_sub(before);
    println!("24 stalled readers of 30 MB each: grew by {} KB", grown / 1024);
    assert!(grown < 200 * MB, "the server grew by {} MB", grown / MB);
}

/// A server with a document in a file of its own, and its holder.
struct Scene {
    server: Server,
    client: Client,
    held: Held,
    before: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        Self::with(Options::new().flag("json-max", "1MiB"), 600_000)
    }

    fn with(options: Options, ttl_ms: u64) -> Self {
        let server = Server::start(options);
        let mut client = server.client();
        let first = client.acquire(&Ask::new("k", "test"));
        let before = Document::of_bytes(100_000, 7).whole();
        client.call(&first.update(before.clone()).query("then", "release")).ok();
        let held = client.acquire(&Ask::new("k", "test").ttl_ms(ttl_ms));
        Self { server, client, held, before }
    }

    fn update(&self) -> Request {
        self.held.update("").query("then", "commit")
    }

    /// Sends the body with its length announced.
    fn send(&mut self, request: &Request) -> Reply {
        let bytes = request.bytes();
        let mut connection = Connection::open(&self.server.place).expect("a connection");
        // Also after a refusal the rest is taken, so that a simple sender gets to the answer.
        connection.socket.write_all(&bytes).expect("the server takes it all");
        connection.reply().expect("the answer comes through")
    }

    /// Everything is as it was, and no file is left of what came in.
    #[track_caller]
    fn is_unchanged(&mut self) {
        let public = self.client.public("k").expect("the document");
        assert_eq!(public.version, 1);
        assert!(public.body == self.before, "the document has changed");
        eventually("no file is left behind", || self.server.blobs().len() == 1);
    }

    /// The holder sees no change either, and can go on.
    #[track_caller]
    fn goes_on(&mut self) {
        self.is_unchanged();
        let own = self.client.call(&self.held.get()).ok();
        assert!(own.body == self.before, "something was staged");
        let document = Document::of_bytes(90_000, 8).whole();
        self.client.call(&self.held.commit(document.clone())).ok();
        assert!(self.client.public("k").expect("a document").body == document);
    }
}

#[test]
fn a_body_that_is_not_json_is_refused() {
    let mut scene = Scene::new();
    let long = |text: &str| format!("[{text}{}]", ",1".repeat(200_000));
    for body in [
        String::new(),
        "   ".to_owned(),
        "{".to_owned(),
        "[1,]".to_owned(),
        "{\"a\":1}x".to_owned(),
        "'single'".to_owned(),
        "01".to_owned(),
        "\"\u{1}\"".to_owned(),
        "\"\\ud800\" nul".to_owned(),
        long("nul"),
        long("\"tab\tinside\""),
        format!("{} 2", long("1")),
    ] {
        let reply = scene.send(&scene.update().body(body.clone()));
        assert_eq!(reply.says(), (400, "invalid_body".into()), "{body:.60}");
    }
    let invalid_utf8 = [&b"\""[..], &[0xff, 0xfe], &b"\""[..]].concat();
    scene.send(&scene.update().body(invalid_utf8)).refused(400, "invalid_body");
    scene.goes_on();
}

#[test]
fn nesting_is_limited_to_512() {
    let mut scene = Scene::new();
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    scene.send(&scene.update().body(nested(513))).refused(400, "invalid_body");
    scene.send(&scene.update().body(objects(513))).refused(400, "invalid_body");
    scene.send(&scene.update().body(nested(1_000_000))).refused(400, "invalid_body");
    scene.goes_on();
    scene.client.call(&scene.held.commit(nested(512))).ok();
    assert!(scene.client.public("k").expect("a document").body == nested(512).as_bytes());
}

#[test]
fn a_body_that_is_cut_off_changes_nothing() {
    let mut scene = Scene::new();
    let whole = Document::of_bytes(300_000, 9).whole();
    for cut in [0, 1, 70_000, 290_000, whole.len() - 1] {
        let framing = format!("content-length: {}\r\n", whole.len());
        let mut connection = Connection::open(&scene.server.place).expect("a connection");
        connection.socket.write_all(&scene.update().head(&framing)).expect("sent");
        connection.socket.write_all(&whole[..cut]).expect("sent");
        connection.socket.reset();
    }
    // A chunked body that is whole JSON, but whose last chunk never comes.
    for hard in [true, false] {
        let pieces = std::iter::once(whole.clone());
        let mut connection = send_chunked(&scene.server, &scene.update(), pieces);
        if hard {
            connection.socket.reset();
        } else {
            connection.socket.finish_sending().expect("a shutdown");
            // Whatever the answer is, it is no success.
            let said = connection.reply().map(|reply| reply.status);
            assert!(!matches!(said, Ok(200)), "half a body was taken");
        }
    }
    scene.goes_on();
}

#[test]
fn a_body_that_is_slower_than_its_lease_is_refused() {
    for size in [10, 300_000] {
        let mut scene = Scene::with(Options::new(), 300);
        let whole = Document::of_bytes(size, 3).whole();
        let (first, second) = whole.split_at(whole.len() / 2);
        let pieces = std::iter::once(first.to_vec());
        let mut connection = send_chunked(&scene.server, &scene.update(), pieces);
        eventually("the lease ran out", || scene.client.owner("k").is_none());
        let chunk = [format!("{:x}\r\n", second.len()).as_bytes(), second, b"\r\n"].concat();
        connection.socket.write_all(&chunk).expect("sent");
        finish(&mut connection).refused(403, "lease_expired");
        scene.is_unchanged();
    }
}

#[test]
fn a_body_that_pauses_too_long_is_refused() {
    let mut scene = Scene::with(Options::new().flag("body-timeout", "1500ms"), 600_000);
    let pieces = std::iter::once(b"[1,2".to_vec());
    let mut connection = send_chunked(&scene.server, &scene.update(), pieces);
    connection.reply().expect("the answer comes through").refused(408, "request_timeout");
    // The same for the body of a command.
    let mut connection = Connection::open(&scene.server.place).expect("a connection");
    let head = Ask::new("k2", "slow").request().head("content-length: 100\r\n");
    connection.socket.write_all(&head).expect("sent");
    connection.reply().expect("the answer comes through").refused(408, "request_timeout");
    scene.goes_on();
}

#[test]
fn a_document_over_the_limit_is_refused_while_it_is_still_being_sent() {
    let mut scene = Scene::new();
    // Counted without white space: this is many megabytes as sent, and fits.
    let padded = format!("[{}1]", " ".repeat(8_000_000));
    scene.client.call(&scene.held.update(padded)).ok();
    let own = scene.client.call(&scene.held.get()).ok();
    assert_eq!(own.body, b"[1]");
    scene.client.call(&scene.held.update(scene.before.clone())).ok();
    let huge = Document::of_bytes(64_000_000, 2);
    let mut connection = send_chunked(&scene.server, &scene.update(), huge.pretty());
    finish(&mut connection).refused(413, "document_too_large");
    let whole = Document::of_bytes(20_000_000, 2).whole();
    scene.send(&scene.update().body(whole)).refused(413, "document_too_large");
    eventually("two files are left: the staged and the committed one", || {
        scene.server.blobs().len() == 2
    });
    scene.client.call(&scene.held.rollback()).ok();
    scene.is_unchanged();
}

#[test]
fn exactly_the_limit_fits() {
    let mut scene = Scene::new();
    let of_bytes = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let over = scene.update().body(of_bytes((1 << 20) + 1));
    scene.send(&over).refused(413, "document_too_large");
    scene.goes_on();
    let reply = scene.send(&scene.update().body(of_bytes(1 << 20))).ok();
    assert_eq!(reply.json()["bytes"], 1 << 20);
}

#[test]
fn a_body_that_is_not_what_was_announced_is_refused() {
    let mut scene = Scene::new();
    for size in [10, 300_000] {
        let body = Document::of_bytes(size, 4).whole();
        let update = scene.update().body(body.clone());
        let wrong = update.clone().header(header::EXPECTED_BYTES, body.len() + 1);
        scene.send(&wrong).refused(409, "expected_bytes_mismatch");
        let wrong = update.clone().header(header::EXPECTED_SHA256, "00".repeat(32));
        scene.send(&wrong).refused(409, "expected_sha256_mismatch");
        scene.is_unchanged();
    }
    let body = Document::of_bytes(300_000, 4).whole();
    let right = scene.update().body(body.clone()).header(header::EXPECTED_BYTES, body.len());
    let hash = lockd_tests::document::etag_of(&body);
    scene.send(&right.header(header::EXPECTED_SHA256, hash)).ok();
    assert!(scene.client.public("k").expect("a document").body == body);
}

#[test]
fn a_refusal_that_is_known_before_the_body_reaches_a_sender_in_full_flow() {
    let mut scene = Scene::with(Options::new(), 600_000);
    let body = Document::of_bytes(30_000_000, 5).whole();
    let update = scene.update().body(body);
    let lease = update.clone().with(header::LEASE_ID, "0000000000000000000g");
    scene.send(&lease).refused(403, "lease_required");
    let token = update.clone().with(header::FENCING_TOKEN, 1);
    scene.send(&token).refused(403, "fencing_mismatch");
    scene.send(&update.clone().without(header::TXN_ID)).refused(400, "missing_txn");
    let fenced = update.header(header::FENCE_KEY, "default/x").header(header::FENCE_TOKEN, 4);
    scene.send(&fenced).refused(409, "fence_failed");
    let acquire = Request::post("/v1/acquire").body(vec![b' '; 5_000_000]);
    scene.send(&acquire).refused(413, "body_too_large");
    scene.goes_on();
}

#[test]
fn an_upload_ends_early_when_its_lease_is_over() {
    let mut scene = Scene::with(Options::new(), 600_000);
    let document = Document::of_bytes(40_000_000, 6);
    let (mut sent, mut released) = (0, false);
    let (held, mut other) = (scene.held.clone(), scene.server.client());
    let pieces = document.pretty().inspect(|piece| {
        sent += piece.len();
        if sent > 6_000_000 && !released {
            released = true;
            other.release(&held);
        }
    });
    let mut connection = send_chunked(&scene.server, &scene.update(), pieces);
    connection.socket.patience(Duration::from_secs(20)).expect("a timeout");
    finish(&mut connection).refused(403, "lease_required");
    scene.is_unchanged();
}
