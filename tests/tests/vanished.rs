//! Clients that go away while they wait, behind bytes that the server has not read: they leave the
//! line, and what was granted to them goes to the next.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lockd_tests::http::{Connection, Place};
use lockd_tests::http2::Http2;
use lockd_tests::queue::{Enqueue, messages, stats, take};
use lockd_tests::tunnel::{Session, Tunnel, session};
use lockd_tests::wait::within;
use lockd_tests::{Ask, Client, Held, Options, Request, Server, eventually};
use lockd_wire::path;
use rustix::process::Signal;
use serde_json::json;

/// Far longer than any hand-over may take: a lease of this length never ends in time by itself.
const LONG_MS: u64 = 600_000;
/// "Well before its end", with room for a busy machine.
const SOON: Duration = Duration::from_secs(30);

trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// How a client reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Tls,
    /// Says goodbye in TLS before it closes.
    TlsGoodbye,
}

/// A server and a client of its own that stays.
struct Scene {
    server: Server,
    client: Client,
    metrics: Client,
    tunnel: Option<Tunnel>,
}

impl Scene {
    fn new(way: Way) -> Self {
        let options = match way {
            Way::Plain => Options::in_memory().plain(),
            Way::Tls | Way::TlsGoodbye => Options::secure(),
        };
        let server = Server::start(options);
        let (mut place, mut tunnel) = (server.place.clone(), None);
        if way != Way::Plain {
            let dug = Tunnel::dig(address(&server), &server.bundle_for_everything());
            (place, tunnel) = (Place::Tcp(dug.entrance), Some(dug));
        }
        let (client, metrics) = (Client::new(&place), server.metrics_client());
        Self { server, client, metrics, tunnel }
    }

    /// A connection without anything between the client and the server.
    fn connect(&self, way: Way) -> Box<dyn Wire> {
        match way {
            Way::Plain => Box::new(socket(&self.server)),
            Way::Tls => Box::new(tls(&self.server, b"http/1.1")),
            Way::TlsGoodbye => Box::new(Goodbye(tls(&self.server, b"http/1.1"))),
        }
    }

    fn connections(&mut self) -> u64 {
        let page = self.metrics.call(&Request::get("/metrics")).ok().text();
        let line = page.lines().find_map(|line| line.strip_prefix("lockd_connections "));
        line.and_then(|number| number.parse().ok()).expect("a number")
    }
}

fn address(server: &Server) -> std::net::SocketAddr {
    match &server.place {
        Place::Tcp(address) => *address,
        Place::Unix(_) => panic!("not over the network"),
    }
}

fn socket(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(address(server)).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    stream.set_read_timeout(Some(SOON)).expect("an option");
    stream
}

fn tls(server: &Server, protocol: &[u8]) -> Session {
    session(address(server), &server.bundle_for_everything(), protocol)
}

/// Ends its TLS session in order before it closes its socket.
struct Goodbye(Session);

impl Read for Goodbye {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Goodbye {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Goodbye {
    fn drop(&mut self) {
        self.0.conn.send_close_notify();
        self.0.flush().ok();
    }
}

/// What a client can wait for, each with what shows that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Acquire,
    Dequeue,
    Subscribe,
    Watch,
}

const WAITS: [Wait; 4] = [Wait::Acquire, Wait::Dequeue, Wait::Subscribe, Wait::Watch];

impl Wait {
    fn request(self) -> Request {
        match self {
            Self::Acquire => Ask::new("k", "ghost").ttl_ms(LONG_MS).block(0).request(),
            Self::Dequeue => take(path::QUEUE_DEQUEUE, "jobs", &json!({"wait_seconds": 0})),
            Self::Subscribe => take(path::QUEUE_SUBSCRIBE, "jobs", &json!({"wait_seconds": 0})),
            Self::Watch => Request::get(path::WATCH).query("key", "k"),
        }
    }

    /// How many clients wait for it; of watches, how many connections there are.
    fn waiting(self, scene: &mut Scene) -> u64 {
        match self {
            Self::Acquire => scene.client.waiters("k"),
            Self::Dequeue | Self::Subscribe => {
                let stats = scene.client.call(&stats("jobs")).ok().json();
                stats["waiting_consumers"].as_u64().expect("a number")
            }
            Self::Watch => scene.connections(),
        }
    }
}

/// What comes behind the request and is not read while its answer is pending.
fn trails() -> Vec<(&'static str, Vec<u8>)> {
    let health = Request::get(path::HEALTHZ).bytes();
    let other = Ask::new("other", "ghost").ttl_ms(LONG_MS).request().bytes();
    vec![
        ("one byte", b"\n".to_vec()),
        ("a pipelined request", health.clone()),
        ("a pipelined acquire", other),
        ("many pipelined requests", health.repeat(400)),
    ]
}

fn vanish_everywhere(way: Way) {
    let mut scene = Scene::new(way);
    let first = scene.client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    for wait in WAITS {
        for (trail, bytes) in trails() {
            for at_once in [true, false] {
                let before = wait.waiting(&mut scene);
                let mut ghost = scene.connect(way);
                let mut all = wait.request().bytes();
                if at_once {
                    all.extend_from_slice(&bytes);
                }
                ghost.write_all(&all).and_then(|()| ghost.flush()).expect("sent");
                eventually("it waits", || wait.waiting(&mut scene) == before + 1);
                if !at_once {
                    ghost.write_all(&bytes).and_then(|()| ghost.flush()).expect("sent");
                }
                drop(ghost);
                let what = format!("{way:?}: {wait:?} ends that vanished behind {trail}");
                within(SOON, &what, || wait.waiting(&mut scene) == before);
            }
        }
    }
    scene.client.release(&first);
    let next = scene.client.acquire(&Ask::new("k", "next"));
    assert_eq!(next.token, first.token + 1, "the key was granted to a client that had gone");
    assert_eq!(scene.client.owner("other"), None, "a request behind the wait was carried out");
}

#[test]
fn a_wait_ends_with_its_client_behind_unread_bytes() {
    vanish_everywhere(Way::Plain);
}

#[test]
fn a_wait_ends_with_its_client_behind_unread_bytes_over_tls() {
    vanish_everywhere(Way::Tls);
}

#[test]
fn a_wait_ends_with_the_tls_session_of_its_client() {
    vanish_everywhere(Way::TlsGoodbye);
}

#[test]
fn a_wait_ends_when_its_http2_stream_is_reset() {
    let mut scene = Scene::new(Way::Tls);
    scene.client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    for wait in [Wait::Acquire, Wait::Dequeue, Wait::Subscribe] {
        let mut connection = Http2::open(tls(&scene.server, b"h2"), 65_535);
        let stream = connection.send(&wait.request());
        eventually("it waits", || wait.waiting(&mut scene) == 1);
        connection.reset(stream);
        let what = format!("{wait:?} ends whose stream was reset");
        within(SOON, &what, || wait.waiting(&mut scene) == 0);
        // The connection goes on.
        let health = connection.send(&Request::get(path::HEALTHZ));
        connection.await_answer(health);
    }
}

#[test]
fn eighty_clients_that_vanished_do_not_keep_a_key_from_one_that_stays() {
    for way in [Way::Plain, Way::Tls] {
        let mut scene = Scene::new(way);
        let first = scene.client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
        let mut ghosts = Vec::new();
        for place in 1..=80 {
            let mut ghost = scene.connect(way);
            ghost.write_all(&Wait::Acquire.request().bytes()).expect("sent");
            ghost.write_all(b"\r\n").and_then(|()| ghost.flush()).expect("sent");
            eventually("it waits", || scene.client.waiters("k") == place);
            ghosts.push(ghost);
        }
        let mut honest = Connection::open(&at(&scene)).expect("a connection");
        honest.socket.patience(SOON).expect("a timeout");
        honest.send(&Ask::new("k", "honest").ttl_ms(LONG_MS).block(0).request()).expect("sent");
        eventually("it waits", || scene.client.waiters("k") == 81);
        drop(ghosts);
        scene.client.release(&first);
        let held = Held::of(&honest.reply().expect("the key goes to the client that stayed"));
        assert_eq!(scene.client.owner("k").as_deref(), Some("honest"));
        scene.client.release(&held);
    }
}

/// Where a client of this scene connects without speaking TLS itself.
fn at(scene: &Scene) -> Place {
    match &scene.tunnel {
        Some(tunnel) => Place::Tcp(tunnel.entrance),
        None => scene.server.place.clone(),
    }
}

#[test]
fn eighty_clients_that_vanished_do_not_keep_a_message_from_one_that_stays() {
    for wait in [Wait::Dequeue, Wait::Subscribe] {
        let mut scene = Scene::new(Way::Plain);
        let mut ghosts = Vec::new();
        for place in 1..=80 {
            let mut ghost = scene.connect(Way::Plain);
            ghost.write_all(&wait.request().bytes()).expect("sent");
            ghost.write_all(b"\r\n").expect("sent");
            eventually("it waits", || wait.waiting(&mut scene) == place);
            ghosts.push(ghost);
        }
        let mut honest = Connection::open(&scene.server.place).expect("a connection");
        honest.socket.patience(SOON).expect("a timeout");
        honest.send(&Wait::Dequeue.request()).expect("sent");
        eventually("it waits", || wait.waiting(&mut scene) == 81);
        drop(ghosts);
        scene.client.call(&Enqueue::new("jobs", "work").request()).ok();
        let got = messages(&honest.reply().expect("the message goes to the one that stayed").ok());
        assert_eq!(got[0].payload, b"work", "{wait:?}");
        scene.client.call(&got[0].ack()).ok();
    }
}

/// Nothing waits here: the client has gone before the server reads its request.
#[test]
fn a_grant_without_a_wait_does_not_stay_with_a_client_that_has_gone() {
    for way in [Way::Plain, Way::Tls, Way::TlsGoodbye] {
        let mut scene = Scene::new(way);
        let mut ghosts: Vec<_> = (0..20).map(|_| scene.connect(way)).collect();
        for ghost in &mut ghosts {
            // What a server says at the end of a handshake is read, so that closing is no reset.
            ghost.write_all(&Request::get(path::HEALTHZ).bytes()).expect("sent");
            let mut answer = Vec::new();
            while !answer.ends_with(b"ok\n") {
                let mut piece = [0; 1024];
                let count = ghost.read(&mut piece).expect("an answer");
                answer.extend_from_slice(&piece[..count]);
            }
        }
        scene.server.signal(Signal::STOP);
        for (number, mut ghost) in ghosts.into_iter().enumerate() {
            let mut all =
                Ask::new(&format!("k/{number}"), "ghost").ttl_ms(LONG_MS).request().bytes();
            all.extend_from_slice(b"\r\n");
            ghost.write_all(&all).and_then(|()| ghost.flush()).expect("sent");
        }
        scene.server.signal(Signal::CONT);
        // All ghosts are gone, and all that was granted to them.
        eventually("their connections end", || scene.connections() <= 2);
        for number in 0..20 {
            let key = format!("k/{number}");
            let what = format!("{way:?}: {key} is free");
            within(SOON, &what, || scene.client.owner(&key).is_none());
        }
    }
}

#[test]
fn pipelined_requests_behind_a_wait_are_answered_in_order() {
    let mut scene = Scene::new(Way::Plain);
    let first = scene.client.acquire(&Ask::new("k", "first").ttl_ms(LONG_MS));
    let mut connection = Connection::open(&scene.server.place).expect("a connection");
    let mut all = Wait::Acquire.request().bytes();
    all.extend(Request::get(path::HEALTHZ).bytes().repeat(400));
    connection.socket.write_all(&all).expect("sent");
    eventually("it waits", || scene.client.waiters("k") == 1);
    // Longer than the server takes to look again behind bytes that it does not read.
    let start = std::time::Instant::now();
    eventually("a while", || start.elapsed() > Duration::from_secs(1));
    scene.client.release(&first);
    let held = Held::of(&connection.reply().expect("the grant"));
    assert_eq!(held.token, first.token + 1);
    for _ in 0..400 {
        connection.reply().expect("an answer to each").ok();
    }
    assert_eq!(
        scene.client.owner("k").as_deref(),
        Some("ghost"),
        "the lease stays with its holder"
    );
}

#[test]
fn a_grant_held_back_by_flow_control_is_not_delivered_by_another_stream() {
    let mut scene = Scene::new(Way::Tls);
    // The client takes no byte of any body.
    let mut connection = Http2::open(tls(&scene.server, b"h2"), 0);
    let acquire = connection.send(&Ask::new("k", "ghost").ttl_ms(LONG_MS).request());
    connection.await_answer(acquire);
    for _ in 0..3 {
        // Its answer is flushed, and with it the connection's buffer.
        let other = connection.send(&Request::get("/nowhere"));
        connection.await_answer(other);
    }
    assert_eq!(scene.client.owner("k").as_deref(), Some("ghost"));
    connection.reset(acquire);
    within(SOON, "the grant is given back", || scene.client.owner("k").is_none());
}

#[test]
fn a_grant_that_http2_has_carried_stays_with_its_holder() {
    let mut scene = Scene::new(Way::Tls);
    let mut connection = Http2::open(tls(&scene.server, b"h2"), 65_535);
    let acquire = connection.send(&Ask::new("k", "holder").ttl_ms(LONG_MS).request());
    let body = connection.await_body(acquire);
    assert!(String::from_utf8_lossy(&body).contains("fencing_token"));
    let before = scene.connections();
    drop(connection);
    eventually("the server has noticed", || scene.connections() == before - 1);
    assert_eq!(scene.client.owner("k").as_deref(), Some("holder"));
}
