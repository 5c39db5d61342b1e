//! The bounds of a server, each met on purpose: sizes, numbers, times, and the files and pages
//! that belong to its listeners.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use lockd_server::config::{Address, Family, StoreSetting};
use lockd_server::{Bound, Settings};
use lockd_tests::http::Connection;
use lockd_tests::inside::Inside;
use lockd_tests::wait::try_within;
use lockd_tests::watch::Watch;
use lockd_tests::{Ask, Client, Held, Place, Reply, Request, eventually, eventually_some};
use lockd_wire::path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn place(bound: &Bound) -> Place {
    match bound {
        Bound::Tcp(address) | Bound::Tls(address) => Place::Tcp(*address),
        Bound::Unix(path) => Place::Unix(path.clone()),
    }
}

/// A request that must succeed and whose answer does not matter.
#[track_caller]
fn done(client: &mut Client, request: &Request) {
    assert_eq!(client.call(request).ok().status, 200);
}

fn local() -> Address {
    Address::Tcp { host: "127.0.0.1".into(), port: 0, family: Family::V4 }
}

fn started(settings: Settings) -> (Inside, Place) {
    let server = Inside::new(settings);
    let bound = server.runtime.block_on(server.server.start()).expect("listeners");
    let at = place(&bound[0]);
    (server, at)
}

#[test]
fn headers_over_the_limit_are_refused_and_the_connection_goes_on() {
    let settings = Settings { max_headers: 2000, ..Settings::embedded_defaults() };
    let (_server, at) = started(settings);
    let mut connection = Connection::open(&at).expect("a connection");
    let fits = Request::get(path::LEASES).header("x-filler", "f".repeat(1800));
    let over = Request::get(path::LEASES).header("x-filler", "f".repeat(2000));
    let query = Request::get(path::LEASES).query("prefix", &"p".repeat(2000));
    assert_eq!(connection.call(&fits).expect("an answer").status, 200);
    for request in [over, query] {
        let reply = connection.call(&request).expect("an answer");
        reply.refused(431, "headers_too_large");
        assert!(reply.header("x-correlation-id").is_some());
    }
    assert_eq!(connection.call(&fits).expect("an answer").status, 200);
    let crowd = (0..150).fold(Request::get(path::LEASES), |request, number| {
        request.header(&format!("x-{number}"), "y")
    });
    assert_eq!(connection.call(&crowd).expect("an answer").status, 431, "too many headers");
}

#[test]
fn a_command_body_over_the_limit_is_refused() {
    let (_server, at) = started(Settings::embedded_defaults());
    for path in [path::ACQUIRE, path::KEEPALIVE, path::RELEASE, path::READ, path::LEASES_REVOKE] {
        let mut client = Client::new(&at);
        let body = vec![b' '; 1024 * 1024 + 1];
        client.call(&Request::post(path).body(body)).refused(413, "body_too_large");
    }
    // Not even announced, let alone sent: chunk after chunk.
    let mut connection = Connection::open(&at).expect("a connection");
    let head = Request::new("POST", path::ACQUIRE).head("transfer-encoding: chunked\r\n");
    connection.socket.write_all(&head).expect("sent");
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..17 {
        connection.socket.write_all(&chunk).expect("sent");
    }
    connection.reply().expect("an answer").refused(413, "body_too_large");
}

#[test]
fn lines_have_a_longest_length() {
    let settings = Settings { max_waiters: 2, ..Settings::embedded_defaults() };
    let (_server, at) = started(settings);
    let mut client = Client::new(&at);
    let held = client.acquire(&Ask::new("k", "first"));
    let wish = |name: &str| Ask::new("k", name).block(0).request();
    let mut line: Vec<Connection> = Vec::new();
    for (number, name) in ["second", "third"].into_iter().enumerate() {
        let mut connection = Connection::open(&at).expect("a connection");
        connection.send(&wish(name)).expect("sent");
        line.push(connection);
        eventually("it waits", || client.waiters("k") == number as u64 + 1);
    }
    let reply = client.call(&wish("fourth"));
    reply.refused(503, "too_many_waiters");
    assert_eq!(reply.header("retry-after"), Some("1"));
    // Who does not want to wait is answered as ever.
    client.call(&Ask::new("k", "fifth").request()).refused(409, "waiting");
    drop(line.remove(0));
    eventually("one has left", || client.waiters("k") == 1);
    let mut late = Connection::open(&at).expect("a connection");
    late.send(&wish("sixth")).expect("sent");
    eventually("there is room again", || client.waiters("k") == 2);
    client.release(&held);
    let next = Held::of(&line[0].reply().expect("an answer"));
    assert_eq!(next.token, held.token + 1);
}

/// A connection with a request in progress: it waits for a key that another holds.
fn waiting(at: &Place, server: &Inside, number: u64) -> Connection {
    let mut connection = Connection::open(at).expect("a connection");
    let wish = Ask::new("k", &format!("waiter {number}")).block(0).request();
    connection.send(&wish).expect("sent");
    let waiters = || server.look(&Request::get(path::LEASES))["leases"][0]["waiters"].clone();
    eventually("it waits", || waiters() == number);
    connection
}

#[test]
fn connections_over_the_limit_are_told_so() {
    let settings = Settings { max_connections: 3, ..Settings::embedded_defaults() };
    let (server, at) = started(settings);
    let held = server.acquire(&Ask::new("k", "first").ttl_ms(600_000));
    let mut open: Vec<Connection> = (1..=3).map(|number| waiting(&at, &server, number)).collect();
    for _ in 0..5 {
        let mut refused = Connection::open(&at).expect("a connection");
        let reply = refused.reply().expect("an answer without a question");
        reply.refused(503, "too_many_connections");
        assert_eq!(reply.header("retry-after"), Some("1"));
        let mut rest = Vec::new();
        assert_eq!(refused.socket.read_to_end(&mut rest).unwrap_or(0), 0, "and it ends");
    }
    server.done(&held.release());
    let granted = Held::of(&open.remove(0).reply().expect("an answer"));
    assert_eq!(granted.token, held.token + 1, "a connection in a request keeps its place");
    eventually("a place that was left is given away", || {
        let mut connection = Connection::open(&at).expect("a connection");
        let reply = connection.call(&Request::get(path::HEALTHZ));
        reply.is_ok_and(|reply| reply.status == 200)
    });
}

#[test]
fn silent_connections_take_no_place_from_requests_that_wait_nor_from_new_clients() {
    let settings = Settings { max_connections: 6, ..Settings::embedded_defaults() };
    let (server, at) = started(settings);
    let held = server.acquire(&Ask::new("k", "first").ttl_ms(600_000));
    let mut waiter = waiting(&at, &server, 1);
    let mut watch = Watch::open(&at, &[("key", "k")], None).expect("a watch");
    watch.snapshot("start");
    let mut crowd = Vec::new();
    for number in 0..60 {
        let mut silent = Connection::open(&at).expect("a connection");
        // The server may have closed it already.
        silent.socket.write_all([&b""[..], b"GET /heal", b"PRI * HTTP/2.0"][number % 3]).ok();
        crowd.push(silent);
        let mut fresh = Connection::open(&at).expect("a connection");
        assert_eq!(fresh.call(&Request::get(path::HEALTHZ)).expect("an answer").status, 200);
    }
    server.done(&held.release());
    let granted = Held::of(&waiter.reply().expect("the waiter kept its place"));
    assert_eq!(granted.token, held.token + 1);
    assert_eq!(watch.next().short(), format!("lease released {}", held.token));
}

#[test]
fn a_client_that_was_served_and_is_silent_makes_room_for_a_new_one() {
    let settings = Settings { max_connections: 2, ..Settings::embedded_defaults() };
    let (_server, at) = started(settings);
    let served = || {
        eventually_some("a place", || {
            let mut connection = Connection::open(&at).expect("a connection");
            let reply = connection.call(&Request::get(path::HEALTHZ)).ok()?;
            (reply.status == 200).then_some(connection)
        })
    };
    let (first, mut second) = (served(), served());
    // The second is the less silent of the two from now on.
    assert_eq!(second.call(&Request::get(path::HEALTHZ)).expect("an answer").status, 200);
    let third = served();
    end_of(first);
    assert_eq!(second.call(&Request::get(path::HEALTHZ)).expect("an answer").status, 200);
    drop(third);
}

#[test]
fn one_address_has_no_more_connections_than_its_bound() {
    let settings = Settings {
        max_connections: 10,
        max_connections_per_address: Some(3),
        ..Settings::embedded_defaults()
    };
    let (server, at) = started(settings);
    let held = server.acquire(&Ask::new("k", "first").ttl_ms(600_000));
    let waiters: Vec<Connection> = (1..=3).map(|number| waiting(&at, &server, number)).collect();
    let mut refused = Connection::open(&at).expect("a connection");
    refused.reply().expect("an answer").refused(503, "too_many_connections");
    // From another address there is room.
    let Place::Tcp(address) = at else { panic!("not over the network") };
    let answer = server.runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 2], 0).into()).expect("another address");
        let mut stream = socket.connect(address).await.expect("a connection");
        let request = b"GET /healthz HTTP/1.1\r\nhost: lockd\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    });
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(waiters);
    server.done(&held.release());
}

/// Waits for the end of a connection that says nothing any more.
fn end_of(mut connection: Connection) {
    let mut rest = Vec::new();
    // A reset is an end too, for who was still speaking.
    let _end = connection.socket.read_to_end(&mut rest);
    assert!(rest.is_empty(), "closed without a word");
}

/// A connection that has said this. Whoever is held up between opening it and saying it is taken
/// for silent: then it is opened again.
fn spoken(at: &Place, request: &Request) -> (Connection, Reply) {
    eventually_some("it is heard in time", || {
        let mut connection = Connection::open(at).expect("a connection");
        let reply = connection.call(request).ok()?;
        Some((connection, reply))
    })
}

#[test]
fn silence_ends_a_connection_but_waiting_does_not() {
    const IDLE: Duration = Duration::from_millis(300);
    let settings = Settings { idle_timeout: IDLE, ..Settings::embedded_defaults() };
    let (server, at) = started(settings);
    let held = server.acquire(&Ask::new("k", "first").ttl_ms(600_000));
    let wish = Ask::new("k", "second").block(0).request();
    let mut waiter = eventually_some("it waits", || {
        let mut connection = Connection::open(&at).expect("a connection");
        connection.send(&wish).ok()?;
        let waits = || server.look(&Request::get(path::LEASES))["leases"][0]["waiters"] == 1;
        let came = try_within(Duration::from_secs(5), || waits().then_some(()));
        came.map(|()| connection)
    });
    let mut watch = eventually_some("a watch", || Watch::open(&at, &[("key", "k")], None).ok());
    watch.snapshot("start");
    for round in 0..4 {
        let start = Instant::now();
        let silent = match round {
            0 => Connection::open(&at).expect("a connection"),
            1 => {
                let mut silent = Connection::open(&at).expect("a connection");
                // It may have been taken for silent before.
                silent.socket.write_all(b"GET /healthz HTT").ok();
                silent
            }
            2 => {
                let (silent, reply) = spoken(&at, &Request::get(path::HEALTHZ));
                assert_eq!(reply.status, 200);
                silent
            }
            // Served before, and silent since: idle from then on.
            _ => {
                let (silent, reply) = spoken(&at, &Ask::new("k", "nobody").request());
                reply.refused(409, "waiting");
                silent
            }
        };
        end_of(silent);
        let took = start.elapsed();
        assert!(took >= IDLE.mul_f64(0.8), "ended after {took:?}");
    }
    server.done(&held.release());
    let granted = Held::of(&waiter.reply().expect("the one who waited was kept"));
    assert_eq!(granted.token, held.token + 1);
    assert_eq!(watch.next().short(), format!("lease released {}", held.token));
    assert_eq!(watch.next().short(), format!("lease granted {}", granted.token));
}

#[test]
fn a_body_that_stops_coming_is_given_up() {
    const PAUSE_MAX: Duration = Duration::from_millis(200);
    let settings = Settings { body_timeout: PAUSE_MAX, ..Settings::embedded_defaults() };
    let (server, at) = started(settings);
    let held = server.acquire(&Ask::new("k", "holder").ttl_ms(600_000));
    let command = Request::new("POST", path::ACQUIRE);
    let mut document = held.update("");
    document.body = None;
    for request in [command, document] {
        let mut connection = Connection::open(&at).expect("a connection");
        connection.socket.write_all(&request.head("content-length: 10\r\n")).expect("sent");
        connection.socket.write_all(b"{\"a").expect("sent");
        connection.reply().expect("an answer").refused(408, "request_timeout");
    }
    // Slow is not silent: each piece gives the next one its time. Unless we are held up between
    // two of them: then it is tried again.
    let reply = eventually_some("all pieces come in time", || {
        let (reply, longest) = send_slowly(&at, &held, 3 * PAUSE_MAX);
        let held_up = longest >= PAUSE_MAX / 2;
        (!held_up || reply.as_ref().is_some_and(|reply| reply.status == 200)).then_some(reply)
    });
    assert_eq!(reply.expect("an answer").ok().json()["new_version"], 1);
}

/// Commits a document in small pieces for so long; the answer, and the longest pause.
fn send_slowly(at: &Place, held: &Held, total: Duration) -> (Option<Reply>, Duration) {
    let mut connection = Connection::open(at).expect("a connection");
    let request = Request { body: None, ..held.commit("") };
    let head = request.head("transfer-encoding: chunked\r\n");
    let start = Instant::now();
    let (mut last, mut longest) = (start, Duration::ZERO);
    let mut send = |bytes: &[u8]| {
        // Whoever has been given up hears so below.
        connection.socket.write_all(bytes).ok();
        longest = longest.max(last.elapsed());
        last = Instant::now();
    };
    send(&head);
    while start.elapsed() < total {
        send(b"1\r\n \r\n");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    send(b"1\r\n7\r\n0\r\n\r\n");
    (connection.reply().ok(), longest)
}

fn on_unix(path: &Path) -> Settings {
    Settings { listen: vec![Address::Unix(path.to_owned())], ..Settings::embedded_defaults() }
}

#[test]
fn a_unix_socket_serves_its_user_and_goes_with_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lockd.sock");
    let (server, at) = started(on_unix(&file));
    assert_eq!(at, Place::Unix(file.clone()));
    let mode = std::fs::metadata(&file).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its user alone");
    let mut client = Client::new(&at);
    let held = client.acquire(&Ask::new("k", "tester"));
    done(&mut client, &held.commit("[7]"));
    client.release(&held);
    assert_eq!(client.public("k").expect("a document").body, b"[7]");

    let second = Inside::new(on_unix(&file));
    let refused = second.runtime.block_on(second.server.start()).expect_err("it is taken");
    assert!(refused.to_string().contains("another server is listening"), "{refused}");
    assert!(client.public("k").is_some(), "the first goes on");

    drop(client);
    server.stop();
    assert!(!file.exists(), "the file goes with the server");
}

#[test]
fn a_socket_left_behind_is_replaced_but_no_other_file_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("lockd.sock");
    drop(UnixListener::bind(&file).expect("a socket"));
    assert!(file.exists(), "a killed server leaves its file");
    let (server, at) = started(on_unix(&file));
    Client::new(&at).acquire(&Ask::new("k", "tester"));
    server.stop();

    let precious = folder.path().join("notes.txt");
    std::fs::write(&precious, "do not lose me").expect("a file");
    let third = Inside::new(on_unix(&precious));
    let refused = third.runtime.block_on(third.server.start()).expect_err("it is no socket");
    assert!(refused.to_string().contains("no socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(&precious).expect("the file"), "do not lose me");
}

const NAMES: &[&str] = &[
    "lockd_requests_total{",
    "lockd_request_duration_seconds_bucket{",
    "lockd_request_duration_seconds_count{",
    "lockd_leases_granted_total ",
    "lockd_leases_ended_total{",
    "lockd_fence_rejections_total{",
    "lockd_lease_handoff_seconds_count ",
    "lockd_store_conflicts_total ",
    "lockd_store_sync_seconds_count ",
    "lockd_store_batch_commits_count ",
    "lockd_leases ",
    "lockd_waiters ",
    "lockd_connections ",
    "lockd_store_size_bytes ",
    "lockd_store_reopened ",
    "lockd_build_info{version=",
];

/// The number behind a series on the page.
fn number(page: &str, series: &str) -> f64 {
    let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {series} in\n{page}"))
}

#[test]
fn the_metrics_page_has_its_names_and_counts_what_happened() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = Settings {
        store: StoreSetting::Embedded(folder.path().join("data")),
        metrics_listen: Some(local()),
        ..Settings::embedded_defaults()
    };
    let (server, at) = started(settings);
    let metrics = place(&server.server.metrics_bound().expect("metrics"));
    let mut client = Client::new(&at);
    let first = client.acquire(&Ask::new("a", "one"));
    client.call(&Ask::new("a", "two").request()).refused(409, "waiting");
    done(&mut client, &first.commit("{}"));
    client.call(&first.update("{}").with("x-fencing-token", 99)).refused(403, "fencing_mismatch");
    let fenced = first.update("{}").header("x-fence-key", "default/b").header("x-fence-token", 5);
    client.call(&fenced).refused(409, "fence_failed");
    let mut waiter = Connection::open(&at).expect("a connection");
    waiter.send(&Ask::new("a", "three").block(0).request()).expect("sent");
    eventually("it waits", || client.waiters("a") == 1);
    let mut pages = Client::new(&metrics);
    let reply = pages.call(&Request::get(path::METRICS)).ok();
    assert!(
        reply
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("application/openmetrics-text"))
    );
    let page = reply.text();
    assert_eq!((number(&page, "lockd_leases"), number(&page, "lockd_waiters")), (1.0, 1.0));
    client.release(&first);
    let second = Held::of(&waiter.reply().expect("an answer"));
    done(&mut client, &second.rollback());
    let third = client.acquire(&Ask::new("a", "four"));
    let order = serde_json::json!({"key": third.key, "reason": "a test"});
    done(&mut client, &Request::post(path::LEASES_REVOKE).json(&order));

    let page = pages.call(&Request::get(path::METRICS)).ok().text();
    for name in NAMES {
        assert!(page.lines().any(|line| line.starts_with(name)), "no {name} in\n{page}");
    }
    assert!(page.ends_with("# EOF\n"), "a whole page");
    for (series, expected) in [
        (r#"lockd_requests_total{operation="acquire",outcome="ok"}"#, 3.0),
        (r#"lockd_requests_total{operation="acquire",outcome="refused"}"#, 1.0),
        (r#"lockd_requests_total{operation="update",outcome="ok"}"#, 1.0),
        (r#"lockd_requests_total{operation="update",outcome="refused"}"#, 2.0),
        (r#"lockd_requests_total{operation="release",outcome="ok"}"#, 2.0),
        (r#"lockd_requests_total{operation="revoke",outcome="ok"}"#, 1.0),
        (r#"lockd_request_duration_seconds_count{operation="acquire"}"#, 4.0),
        ("lockd_leases_granted_total", 3.0),
        (r#"lockd_leases_ended_total{how="released"}"#, 2.0),
        (r#"lockd_leases_ended_total{how="revoked"}"#, 1.0),
        (r#"lockd_fence_rejections_total{resource="key"}"#, 1.0),
        (r#"lockd_fence_rejections_total{resource="condition"}"#, 1.0),
        ("lockd_lease_handoff_seconds_count", 1.0),
        ("lockd_leases", 0.0),
        ("lockd_waiters", 0.0),
        ("lockd_store_reopened", 0.0),
    ] {
        assert_eq!(number(&page, series), expected, "{series} in\n{page}");
    }
    assert!(number(&page, "lockd_store_sync_seconds_count") >= 1.0);
    assert!(number(&page, "lockd_store_size_bytes") > 0.0);
    assert!(number(&page, "lockd_connections") >= 3.0);

    assert_eq!(pages.call(&Request::get(path::HEALTHZ)).ok().text(), "ok\n");
    assert_eq!(pages.call(&Request::get(path::READYZ)).ok().text(), "ready\n");
    pages.call(&Request::post(path::ACQUIRE).body("{}")).refused(404, "not_found");
    client.call(&Request::get(path::METRICS)).refused(404, "not_found");
}
