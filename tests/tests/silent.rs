//! More connections than a port has places for, each of which says nothing or stops half way: the
//! port of every program goes on answering new clients, over plain TCP and over mutual TLS.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lockd_cloud::{Redis, free_port};
use lockd_pki::{Bundle, files};
use lockd_tests::server::{Options, Server};
use lockd_tests::{Place, eventually_some};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

/// Places that a port has here.
const PLACES: usize = 200;
/// Files with which a daemon has that many: it leaves 256 to everything else, and counts two for
/// each connection.
const FILES: usize = 256 + 2 * PLACES;
/// Connections that are too many.
const CROWD: usize = PLACES * 3 / 2;
/// A new client looks whether it is answered after so many of them.
const LOOK_EVERY: usize = 20;
/// A new client is answered within this, on a machine that has much else to do.
const ANSWERED: Duration = Duration::from_secs(20);
/// How long one connection of the attack is given to come about.
const ATTEMPT: Duration = Duration::from_secs(5);

const HALF_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
const HALF_HEAD: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: lockd\r\nx-fill";

/// What a connection of an attack does before it falls silent.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Sends these bytes, over TLS where the port speaks it.
    Sends(&'static str, &'static [u8]),
    /// Begins a TLS handshake.
    HalfHandshake,
}

const ATTACKS: [Attack; 3] = [
    Attack::Sends("http/1.1", b""),
    Attack::Sends("h2", HALF_PREFACE),
    Attack::Sends("http/1.1", HALF_HEAD),
];

/// The port under attack.
struct Port {
    address: SocketAddr,
    /// Connections of one attack.
    crowd: usize,
    path: &'static str,
    tls: Option<ClientConfig>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Port {
    async fn connect(&self, alpn: &str) -> std::io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(self.address).await?;
        let Some(config) = &self.tls else { return Ok(Box::new(stream)) };
        let mut config = config.clone();
        config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
        let name = ServerName::IpAddress(self.address.ip().into());
        Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
    }

    /// One connection of an attack; nothing where it was thrown out already.
    async fn attack(&self, attack: Attack) -> Option<Box<dyn Stream>> {
        let attempt = async {
            match attack {
                Attack::Sends(alpn, bytes) => {
                    let mut stream = self.connect(alpn).await?;
                    stream.write_all(bytes).await?;
                    Ok(stream)
                }
                Attack::HalfHandshake => {
                    let mut stream = TcpStream::connect(self.address).await?;
                    // A record of a handshake, of which the rest does not come.
                    stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await?;
                    Ok::<Box<dyn Stream>, std::io::Error>(Box::new(stream))
                }
            }
        };
        timeout(ATTEMPT, attempt).await.ok()?.ok()
    }

    /// What a new client is answered.
    async fn ask(&self) -> std::io::Result<String> {
        let mut stream = self.connect("http/1.1").await?;
        let path = self.path;
        let request = format!("GET {path} HTTP/1.1\r\nhost: lockd\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Not every side says goodbye at the end of TLS.
        let _end = stream.read_to_end(&mut answer).await;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    async fn answers(&self, when: &str) {
        let asked = timeout(ANSWERED, self.ask()).await;
        let Ok(answer) = asked else {
            panic!("{} {when}: no answer within {ANSWERED:?}", self.path);
        };
        let is_ok = answer.as_ref().is_ok_and(|text| text.starts_with("HTTP/1.1 200"));
        assert!(is_ok, "{} {when}: {answer:?}", self.path);
    }

    async fn withstands(&self, attack: Attack) {
        let mut crowd = Vec::with_capacity(self.crowd);
        for number in 1..=self.crowd {
            crowd.extend(self.attack(attack).await);
            if number % LOOK_EVERY == 0 {
                self.answers(&format!("after {number} connections of {attack:?}")).await;
            }
        }
        drop(crowd);
        self.answers(&format!("after an attack of {attack:?}")).await;
    }

    fn is_tried(&self) {
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async {
            self.answers("before anything").await;
            for attack in ATTACKS {
                self.withstands(attack).await;
            }
            if self.tls.is_some() {
                self.withstands(Attack::HalfHandshake).await;
            }
        });
    }
}

/// What a client with this bundle shows.
fn shows(bundle: &Path) -> ClientConfig {
    match files::load(bundle).expect("a bundle").0 {
        Bundle::Client(client) => lockd_pki::client_config(&client).expect("a configuration"),
        other => panic!("the bundle of a {}", other.kind()),
    }
}

fn over_tcp(server: &Server) -> SocketAddr {
    match server.place {
        Place::Tcp(address) => address,
        Place::Unix(_) => panic!("not over the network"),
    }
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_server() {
    let server = Server::start(Options::in_memory().plain().flag("max-connections", PLACES));
    let address = over_tcp(&server);
    Port { address, crowd: CROWD, path: "/healthz", tls: None }.is_tried();
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_server_with_mutual_tls() {
    let server = Server::start(Options::secure().flag("max-connections", PLACES));
    let tls = Some(shows(&server.bundles().join("client.pem")));
    Port { address: over_tcp(&server), crowd: CROWD, path: "/healthz", tls }.is_tried();
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_server_with_fewer_files_than_connections() {
    let words = ["--disable-mtls".to_owned(), "--store=mem://".to_owned()];
    let server = Daemon::start(&words, false);
    Port { address: server.address, crowd: FILES * 3 / 2, path: "/healthz", tls: None }.is_tried();
}

/// A program that may open few files, killed when it goes.
struct Daemon {
    child: Child,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// Listens on a port that is free, with bundles in its folder.
    fn start(words: &[String], secure: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = free_port();
        let mut words = words.to_vec();
        words.push(format!("--listen={address}"));
        if secure {
            let here = ["127.0.0.1".to_owned()];
            lockd_pki::bootstrap(folder.path(), &here, jiff::Timestamp::now()).expect("bundles");
            words.push(format!("--bundle={}", folder.path().join("server.pem").display()));
        }
        let log = File::create(folder.path().join("log")).expect("a file");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {FILES} && exec \"$0\" \"$@\"")]);
        command.arg(lockd_tests::binary::lockd()).args(&words);
        command.env_clear().env("HOME", folder.path()).env("PATH", "/usr/bin:/bin");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().expect("a daemon");
        eventually_some("it listens", || {
            let log = std::fs::read_to_string(folder.path().join("log")).expect("a log");
            assert!(child.try_wait().expect("a state").is_none(), "it ended: {log}");
            std::net::TcpStream::connect(address).ok()
        });
        Self { child, address, folder }
    }

    fn is_tried(&self, path: &'static str, secure: bool) {
        let tls = secure.then(|| shows(&self.folder.path().join("client.pem")));
        Port { address: self.address, crowd: CROWD, path, tls }.is_tried();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        if std::thread::panicking() {
            let lines: Vec<&str> = log.lines().collect();
            println!("the log ends with:\n{}", lines[lines.len().saturating_sub(20)..].join("\n"));
        } else {
            assert!(!log.contains("panicked at"), "it panicked:\n{log}");
        }
    }
}

/// A server to keep what daemons keep, and how they name it.
fn keeper() -> (Server, String) {
    let server = Server::start(Options::in_memory().plain());
    let url = format!("lockd://{}?insecure=1", over_tcp(&server));
    (server, url)
}

fn coordinator(secure: bool) {
    let redis = Redis::start_now();
    let words = ["coordinator".to_owned(), format!("--redis={}", redis.url())];
    let daemon = Daemon::start(&[&words[..], &["--instance-id=a".to_owned()]].concat(), secure);
    daemon.is_tried("/healthz", secure);
}

fn controller(secure: bool) {
    let (_server, url) = keeper();
    let words = ["controller".to_owned(), format!("--store={url}")];
    Daemon::start(&words, secure).is_tried("/healthz", secure);
}

fn node(secure: bool) {
    let (_server, url) = keeper();
    let words = [
        "node-controller".to_owned(),
        "--node-id=a".to_owned(),
        format!("--url={}://127.0.0.1:1", if secure { "https" } else { "http" }),
        format!("--lock={url}"),
        "--controller=sleep 1000".to_owned(),
        format!("--controller-url=http://{}", free_port()),
    ];
    // What the node itself answers: the rest is the controller's.
    Daemon::start(&words, secure).is_tried("/role", secure);
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_coordinator() {
    coordinator(false);
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_coordinator_with_mutual_tls() {
    coordinator(true);
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_controller() {
    controller(false);
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_controller_with_mutual_tls() {
    controller(true);
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_node() {
    node(false);
}

#[test]
fn silent_connections_do_not_close_the_port_of_a_node_with_mutual_tls() {
    node(true);
}
