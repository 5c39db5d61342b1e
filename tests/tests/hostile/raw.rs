//! Bytes that are hardly HTTP, over real connections. Each connection must come to its end with an
//! HTTP answer or with none, and another client must not notice.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockd_tests::dice::rounds;
use lockd_tests::http::{Connection, Socket};
use lockd_tests::inside::Inside;
use lockd_tests::{Ask, Client, Dice, Place, Request, eventually};
use lockd_wire::{header, path};

use crate::{measured, place, record_panics, refuse_panics, settings};

const SENDERS: usize = 4;
const CONNECTIONS: usize = 10_400;
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn no_bytes_disturb_the_server_or_its_other_clients() {
    record_panics();
    let mut dice = Dice::announced("raw bytes");
    let server = Inside::new(settings());
    let bound = server.runtime.block_on(server.server.start()).expect("listeners");
    let at = place(&bound[0]);
    let metrics = place(&server.server.metrics_bound().expect("metrics"));
    let done = AtomicBool::new(false);
    let each = rounds(CONNECTIONS).div_ceil(SENDERS);
    std::thread::scope(|scope| {
        let prober = scope.spawn(|| probe(&at, &done));
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| {
                let (at, mut dice) = (&at, dice.fork());
                scope.spawn(move || (0..each).for_each(|_| one(at, &mut dice)))
            })
            .collect();
        let ends: Vec<_> = senders.into_iter().map(|sender| sender.join()).collect();
        done.store(true, Ordering::Relaxed);
        let probes = prober.join().expect("the other client noticed nothing");
        assert!(ends.iter().all(Result::is_ok), "a sender failed");
        println!("{} connections, {probes} cycles of another client", each * SENDERS);
    });
    eventually("all connections have ended", || measured(&metrics, "lockd_connections") <= 1.0);
    assert!(measured(&metrics, "lockd_waiters") == 0.0);
    refuse_panics();
}

/// An ordinary client that is served all the time.
fn probe(at: &Place, done: &AtomicBool) -> usize {
    let mut client = Client::new(at);
    let mut cycles = 0;
    while !done.load(Ordering::Relaxed) || cycles == 0 {
        let held = client.acquire(&Ask::new("probe", "prober"));
        let written = client.call(&held.commit(cycles.to_string())).ok().json();
        assert_eq!(written["new_version"], cycles + 1);
        client.release(&held);
        cycles += 1;
    }
    cycles
}

fn one(at: &Place, dice: &mut Dice) {
    match dice.below(20) {
        0 => pipelined(at, dice),
        1 => slowly(at, dice),
        2 => broken_off(at, dice),
        3 => refused_as(at, &huge_header(dice), "HTTP/1.1 431 "),
        4 => {
            let lengths = "content-length: 3\r\ncontent-length: 5\r\n";
            let text = format!("POST /v1/acquire HTTP/1.1\r\nhost: x\r\n{lengths}\r\nabcde");
            refused_as(at, text.as_bytes(), "HTTP/1.1 400 ");
        }
        5 => {
            let text = "GET http://elsewhere.example/healthz HTTP/1.1\r\nhost: x\r\n\r\n";
            refused_as(at, text.as_bytes(), "HTTP/1.1 200 ");
        }
        6 => refused_as(at, b"GET /healthz HTTP/1.0\r\n\r\n", "HTTP/1.0 200 "),
        _ => {
            let bytes = mangled(dice);
            let answer = exchange(at, &bytes);
            let shown = String::from_utf8_lossy(&answer);
            let known = answer.is_empty() || shown.starts_with("HTTP/1.");
            let lacking = shown.starts_with("HTTP/1.1 501") || shown.contains("tc_unavailable");
            let failed = shown.starts_with("HTTP/1.1 5") && !lacking;
            assert!(known && !failed, "{:?} got {shown}", String::from_utf8_lossy(&bytes));
        }
    }
}

/// Sends everything, says that this was all, and reads to the end.
fn exchange(at: &Place, bytes: &[u8]) -> Vec<u8> {
    let mut socket = Socket::open(at).expect("a connection");
    socket.patience(PATIENCE).expect("a timeout");
    // The server may have hung up before all was sent.
    if socket.write_all(bytes).is_ok() {
        socket.finish_sending().ok();
    }
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(bytes)),
    }
    answer
}

/// Reads while the connection is still open on both sides: there must be an answer.
fn refused_as(at: &Place, bytes: &[u8], start: &str) {
    let mut socket = Socket::open(at).expect("a connection");
    socket.patience(PATIENCE).expect("a timeout");
    socket.write_all(bytes).expect("sent");
    let mut answer = vec![0; start.len()];
    socket.read_exact(&mut answer).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&answer), start);
}

/// Several requests at once are answered in their order.
fn pipelined(at: &Place, dice: &mut Dice) {
    let count = dice.between(2, 12);
    let request = |number: usize| {
        let request = match number % 3 {
            0 => Request::get(path::HEALTHZ),
            1 => Request::post(path::ACQUIRE).body("{}"),
            _ => Request::post("/nowhere").body("some text"),
        };
        request.header(header::CORRELATION_ID, format!("number-{number}"))
    };
    let all: Vec<u8> = (0..count).flat_map(|number| request(number).bytes()).collect();
    let mut connection = Connection::open(at).expect("a connection");
    connection.socket.write_all(&all).expect("sent");
    for number in 0..count {
        let reply = connection.reply().expect("an answer to each");
        assert_eq!(reply.status, [200, 400, 404][number % 3]);
        let expected = format!("number-{number}");
        assert_eq!(reply.header(header::CORRELATION_ID), Some(expected.as_str()));
    }
}

/// A request that comes byte by byte is a request.
fn slowly(at: &Place, dice: &mut Dice) {
    let mut connection = Connection::open(at).expect("a connection");
    let bytes = Request::post(path::ACQUIRE).body("{\"owner\":7}").bytes();
    let start = dice.below(bytes.len());
    connection.socket.write_all(&bytes[..start]).expect("sent");
    for byte in &bytes[start..] {
        connection.socket.write_all(&[*byte]).expect("sent");
    }
    connection.reply().expect("an answer").refused(400, "invalid_body");
}

/// A client that goes away in the middle, politely or not.
fn broken_off(at: &Place, dice: &mut Dice) {
    let mut socket = Socket::open(at).expect("a connection");
    let request = match dice.below(3) {
        0 => Ask::new("broken", "breaker").block(0).request(),
        1 => Request::get(path::WATCH),
        _ => Request::post(path::UPDATE).query("key", "x").body(vec![b' '; 3000]),
    };
    let bytes = request.bytes();
    let end = dice.between(1, bytes.len() + 1);
    socket.write_all(&bytes[..end]).expect("sent");
    if dice.one_in(2) {
        socket.reset();
    }
}

fn huge_header(dice: &mut Dice) -> Vec<u8> {
    let filler = "f".repeat(dice.between(66_000, 120_000));
    format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx-filler: {filler}\r\n\r\n").into_bytes()
}

const HEADS: &[&str] = &[
    "GET /healthz HTTP/1.1\r\nhost: x\r\n",
    "POST /v1/acquire HTTP/1.1\r\nhost: x\r\n",
    "POST /v1/update?key=k HTTP/1.1\r\nhost: x\r\nx-lease-id: a\r\nx-fencing-token: 1\r\n",
    "POST /v1/release HTTP/1.0\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n",
    "GET /healthz\r\n",
    "GET  /healthz  HTTP/1.1\r\n",
    "GET /healthz HTTP/3.0\r\n",
    "GET /a b HTTP/1.1\r\n",
    "OPTIONS * HTTP/1.1\r\nhost: x\r\n",
    "CONNECT elsewhere:80 HTTP/1.1\r\nhost: x\r\n",
    "get /healthz http/1.1\r\n",
    "\r\n\r\nGET /healthz HTTP/1.1\r\n",
    "\u{16}\u{3}\u{1}\u{2}",
    "POST /v1/mutate?key=%00%ff&namespace=%zz HTTP/1.1\r\nhost: x\r\n",
];
const LINES: &[&str] = &[
    "content-length: 5\r\n",
    "content-length: -1\r\n",
    "content-length: 99999999999999999999\r\n",
    "content-length: 5, 5\r\n",
    "content-length: 5\r\ncontent-length: 5\r\n",
    "content-length:\r\n",
    "transfer-encoding: chunked\r\n",
    "transfer-encoding: gzip\r\n",
    "Transfer-Encoding : chunked\r\n",
    "transfer-encoding: chunked, chunked\r\n",
    "transfer-encoding: xchunked\r\n",
    " folded: x\r\n",
    "expect: 100-continue\r\n",
    "connection: upgrade\r\nupgrade: h2c\r\n",
    "connection: close\r\n",
    "x: \u{0}\r\n",
    "\u{0}: x\r\n",
    "no colon\r\n",
    ": empty\r\n",
    "x: y\n",
    "x: y\r",
    "host: y\r\n",
    "x-fencing-token: \u{7f}\r\n",
    "trailer: x\r\n",
    "te: trailers\r\n",
];
const BODIES: &[&str] = &[
    "",
    "{}",
    "hello",
    "0\r\n\r\n",
    "5\r\nhello\r\n0\r\n\r\n",
    "5\r\nhel",
    "zz\r\nhello\r\n",
    "-1\r\n",
    "ffffffffffffffffff\r\n",
    "5\r\nhelloX\r\n0\r\n\r\n",
    "5;ext=\"\r\nhello\r\n0\r\n\r\n",
    "2\r\n{}\r\n0\r\nx-trailer: y\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n",
    "\r\n\r\n\r\n",
    "\u{0}\u{0}\u{0}",
    "GET /healthz HTTP/1.1\r\n\r\n",
    "00000000000000000005\r\nhello\r\n0\r\n\r\n",
];

fn mangled(dice: &mut Dice) -> Vec<u8> {
    if dice.one_in(10) {
        let count = dice.below(500);
        return dice.bytes(count);
    }
    let mut bytes = dice.pick(HEADS).as_bytes().to_vec();
    let lines = if dice.one_in(30) { 120 } else { dice.below(4) };
    for _ in 0..lines {
        bytes.extend_from_slice(dice.pick(LINES).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(dice.pick(BODIES).as_bytes());
    if dice.one_in(3) {
        let end = dice.below(bytes.len() + 1);
        bytes.truncate(end);
    }
    if dice.one_in(3) {
        for _ in 0..=dice.below(3) {
            let at = dice.below(bytes.len());
            let byte = dice.next() as u8;
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
    }
    bytes
}
