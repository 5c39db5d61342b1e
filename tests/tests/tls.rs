//! Mutual TLS with the real server: who comes in under which name, who does not and what the log
//! says about it, and what changes while the server runs. `curl` and `openssl` are the clients of
//! others here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use lockd_client::{Client, ReadKind};
use lockd_pki::files::{self, Existing};
use lockd_pki::{
    Authority, Bundle, Claim, ClientBundle, ClientRequest, ServerBundle, ServerRequest,
};
use lockd_tests::http::{Connection, Place, Request};
use lockd_tests::server::{Options, Server};
use lockd_tests::tunnel::Tunnel;
use lockd_tests::wait::{eventually, within};
use tokio::runtime::Runtime;

/// How long a change of the files may take to count: a second or two, and what a busy machine adds.
const SOON: Duration = Duration::from_secs(10);

fn port(server: &Server) -> u16 {
    match &server.place {
        Place::Tcp(address) => address.port(),
        Place::Unix(_) => panic!("not over the network"),
    }
}

fn server_bundle(server: &Server) -> ServerBundle {
    match files::load(&server.bundles().join("server.pem")).unwrap().0 {
        Bundle::Server(bundle) => bundle,
        other => panic!("{}", other.kind()),
    }
}

fn write_server_bundle(server: &Server, bundle: &ServerBundle) {
    let path = server.bundles().join("server.pem");
    files::write(&path, &bundle.to_pem(), Existing::Replace).unwrap();
}

/// A client bundle in a folder of its own, as if on another machine.
struct Elsewhere {
    folder: tempfile::TempDir,
    bundle: ClientBundle,
}

impl Elsewhere {
    fn new(authority: &Authority, request: &ClientRequest, now: Timestamp) -> Self {
        let bundle = ClientBundle::new(authority, authority.issue_client(request, now).unwrap());
        let folder = tempfile::tempdir().unwrap();
        files::write(&folder.path().join("client.pem"), &bundle.to_pem(), Existing::Refuse)
            .unwrap();
        Self { folder, bundle }
    }

    fn sdk(server: &Server, name: &str, claims: &[&str]) -> Self {
        let claims = claims.iter().map(|claim| Claim::parse(claim).unwrap()).collect();
        Self::new(&server.authority(), &ClientRequest::sdk(name, claims), Timestamp::now())
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("client.pem")
    }
}

struct Answer {
    status: u16,
    body: String,
    trouble: String,
}

/// One request by curl, which takes key, certificate and CA from the same bundle.
fn curl(server: &Server, bundle: &Path, path: &str, args: &[&str]) -> Answer {
    let url = format!("https://127.0.0.1:{}{path}", port(server));
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}"])
        .arg("--cert")
        .arg(bundle)
        .arg("--key")
        .arg(bundle)
        .arg("--cacert")
        .arg(server.bundles().join("ca.pem"))
        .args(args)
        .arg(url)
        .output()
        .expect("curl can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, status) = text.rsplit_once('\n').unwrap_or(("", "0"));
    let trouble = String::from_utf8_lossy(&output.stderr).into_owned();
    Answer { status: status.parse().unwrap_or(0), body: body.to_owned(), trouble }
}

fn acquire(server: &Server, bundle: &Path, key: &str) -> Answer {
    let wish = format!(r#"{{"key":"{key}","owner":"curl","ttl_seconds":30}}"#);
    curl(server, bundle, "/v1/acquire", &["--data", &wish])
}

#[test]
fn the_first_start_makes_bundles_with_which_curl_gets_a_lease() {
    let server = Server::start(Options::secure());
    for file in ["ca.pem", "server.pem", "client.pem", "tc-client.pem"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(server.bundles().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert!(server.log().contains("first start"), "{}", server.log());
    for version in ["--http1.1", "--http2", "--tlsv1.3", "--tls-max"] {
        let args: &[&str] = if version == "--tls-max" { &["--tls-max", "1.2"] } else { &[version] };
        let client = server.bundles().join("client.pem");
        let wish = format!(r#"{{"key":"k{}","owner":"curl","ttl_seconds":30}}"#, args.join(""));
        let wish = wish.replace("--", "");
        let answer = curl(&server, &client, "/v1/acquire", &[args, &["--data", &wish]].concat());
        assert_eq!(answer.status, 200, "{args:?}: {} {}", answer.body, answer.trouble);
        assert!(answer.body.contains("fencing_token"), "{}", answer.body);
    }
}

#[test]
fn a_bundle_from_elsewhere_reaches_the_server_under_any_name() {
    let server = Server::start(Options::secure());
    let mut bundle = server_bundle(&server);
    let request = ServerRequest::new(&["elsewhere.example".to_owned()], None);
    bundle = bundle.reissue(&server.authority(), &request, Timestamp::now()).unwrap();
    write_server_bundle(&server, &bundle);
    let client = Elsewhere::sdk(&server, "worker-1", &[]);
    let runtime = Runtime::new().unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let endpoint = format!("{host}:{}", port(&server));
        let client =
            Client::builder().endpoint(endpoint).bundle_file(client.path()).build().unwrap();
        runtime.block_on(async {
            let lease = client.lease(format!("k-{host}")).await.unwrap();
            lease.release().await.unwrap();
        });
    }
}

/// A certificate and its key made by openssl, with extensions of the test's choice, in one text.
fn signed(folder: &Path, name: &str, extensions: &str, ca: &Path) -> String {
    let at = |kind: &str| folder.join(format!("{name}.{kind}")).display().to_string();
    std::fs::write(at("ext"), extensions).unwrap();
    let (ca, subject) = (ca.display().to_string(), format!("/CN={name}"));
    let (key, csr, ext, crt) = (at("key"), at("csr"), at("ext"), at("crt"));
    let sign = ["x509", "-req", "-set_serial", "4711", "-days", "30", "-in", &csr, "-out", &crt];
    let by = ["-CA", &ca, "-CAkey", &ca, "-extfile", &ext];
    for args in [
        vec!["genpkey", "-algorithm", "ed25519", "-out", &key],
        vec!["req", "-new", "-key", &key, "-subj", &subject, "-out", &csr],
        [&sign[..], &by].concat(),
    ] {
        let done = Command::new("openssl").args(&args).output().expect("openssl can be started");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
    [crt, key].map(|file| std::fs::read_to_string(file).unwrap()).concat()
}

/// A client made by openssl under our CA.
fn forged(server: &Server, name: &str, extensions: &str) -> Elsewhere {
    let folder = tempfile::tempdir().unwrap();
    let ca = server.bundles().join("ca.pem");
    let mut text = signed(folder.path(), name, extensions, &ca);
    text.push_str(&std::fs::read_to_string(&ca).unwrap());
    let bundle = Elsewhere::sdk(server, "unused", &[]).bundle;
    std::fs::write(folder.path().join("client.pem"), text).unwrap();
    Elsewhere { folder, bundle }
}

#[test]
fn a_client_of_a_sub_ca_is_refused_until_the_bundle_has_the_sub_ca() {
    let server = Server::start(Options::secure());
    let folder = tempfile::tempdir().unwrap();
    let at = |file: &str| folder.path().join(file);
    let constraints = "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign";
    let sub = signed(folder.path(), "sub", constraints, &server.bundles().join("ca.pem"));
    std::fs::write(at("sub.pem"), sub).unwrap();
    let intruder = "subjectAltName=URI:spiffe://lockd/tc/intruder,URI:lockd://ns/ALL?perm=rw\n\
                    extendedKeyUsage=clientAuth";
    let leaf = signed(folder.path(), "intruder", intruder, &at("sub.pem"));
    let sub = std::fs::read_to_string(at("sub.crt")).unwrap();
    std::fs::write(at("client.pem"), [leaf.as_str(), &sub].concat()).unwrap();
    let answer = acquire(&server, &at("client.pem"), "k");
    assert_eq!(answer.status, 0, "it came in: {}", answer.body);
    eventually("the reason is logged", || server.log().contains("by an intermediate CA"));

    let path = server.bundles().join("server.pem");
    let mut bundle = std::fs::read_to_string(&path).unwrap();
    bundle.push_str(&sub);
    files::write(&path, &bundle, Existing::Replace).unwrap();
    eventually("the bundle allows it", || acquire(&server, &at("client.pem"), "k").status == 200);
}

/// The SDK does not try again, and says whose certificate is at fault.
fn sdk_hears(server: &Server, bundle: &Path, who: &str) {
    let (text, runtime) = (format!("127.0.0.1:{}", port(server)), Runtime::new().unwrap());
    let client = Client::builder().endpoint(text).bundle_file(bundle).build();
    if who == "no identity" {
        assert!(client.unwrap_err().to_string().contains("no spiffe"));
        return;
    }
    let client = client.unwrap();
    let error = runtime.block_on(async { client.get("k").await.unwrap_err() });
    assert_eq!(error.kind(), ReadKind::Forbidden, "{who}: {error}");
    let expected = match who {
        "another CA" => "its certificate is not accepted here: the certificate was not issued by",
        "expired" => "it does not accept this client's certificate: it has expired",
        "revoked" => "it does not accept this client's certificate: it is revoked",
        _ => "it does not accept this client's certificate: ",
    };
    assert!(error.to_string().contains(expected), "{who}: {error}");
}

#[test]
fn whoever_is_not_let_in_is_named_in_the_log_with_the_reason() {
    let server = Server::start(Options::secure());
    let ours = server.authority();
    let other = Authority::create("lockd-ca", Timestamp::now()).unwrap();
    let long_ago = Timestamp::now() - SignedDuration::from_hours(24 * 500);
    let sdk = |name: &str| ClientRequest::sdk(name, Vec::new());
    let revoked = Elsewhere::new(&ours, &sdk("revoked"), Timestamp::now());
    let mut bundle = server_bundle(&server);
    bundle.revoke(revoked.bundle.leaf().peer.serial);
    write_server_bundle(&server, &bundle);
    eventually("the denylist is read", || server.log().contains("read again"));
    let uri = "subjectAltName=URI:spiffe://lockd/sdk/x,URI:lockd://ns/default?perm=rw";
    for (who, client, reason) in [
        (
            "another CA",
            Elsewhere::new(&other, &sdk("stranger"), Timestamp::now()),
            "not issued by a CA",
        ),
        ("expired", Elsewhere::new(&ours, &sdk("late"), long_ago), "the certificate expired at"),
        ("no purpose", forged(&server, "none", uri), "does not say what it is for"),
        (
            "another purpose",
            forged(&server, "wrong", &format!("{uri}\nextendedKeyUsage=serverAuth")),
            "is for another purpose",
        ),
        ("no identity", forged(&server, "nobody", "extendedKeyUsage=clientAuth"), "spiffe"),
        ("revoked", revoked, "is revoked"),
    ] {
        let before = server.log().len();
        let answer = acquire(&server, &client.path(), "k");
        assert_eq!(answer.status, 0, "{who} came in: {}", answer.body);
        eventually(who, || server.log()[before..].contains(reason));
        sdk_hears(&server, &client.path(), who);
    }
    // And the server still serves whoever may come in.
    let client = server.bundles().join("client.pem");
    assert_eq!(acquire(&server, &client, "k").status, 200);
}

#[test]
fn roles_and_claims_are_refused_with_their_own_codes() {
    let server = Server::start(Options::secure());
    let client = Elsewhere::sdk(&server, "worker", &["orders=r"]);
    // A lease in a namespace that the worker knows nothing of.
    assert_eq!(acquire(&server, &server.bundles().join("client.pem"), "k").status, 200);
    let tc = server.bundles().join("tc-client.pem");
    let post: &[&str] = &["--data", "{}"];
    let acquire = r#"{"key":"k","owner":"o","ttl_seconds":5,"namespace":"stock"}"#;
    let held = r#"{"key":"k","owner":"o","ttl_seconds":5,"namespace":"orders"}"#;
    for (bundle, path, args, status, code) in [
        (client.path(), "/v1/acquire", &["--data", acquire][..], 403, "namespace_forbidden"),
        (client.path(), "/v1/acquire", &["--data", held], 403, "namespace_forbidden"),
        (client.path(), "/v1/get?key=k&public=1&namespace=stock", post, 403, "namespace_forbidden"),
        (client.path(), "/v1/get?key=k&public=1&namespace=orders", post, 204, ""),
        (client.path(), "/v1/keys?namespace=stock", &[], 403, "namespace_forbidden"),
        (client.path(), "/v1/keys?namespace=orders", &[], 200, "keys"),
        (client.path(), "/v1/leases", &[], 200, r#"{"leases":[]}"#),
        (client.path(), "/v1/leases?namespace=stock", &[], 403, "namespace_forbidden"),
        (client.path(), "/v1/watch?key=k&namespace=stock", &[], 403, "namespace_forbidden"),
        (client.path(), "/v1/store/backup", post, 403, "namespace_forbidden"),
        (client.path(), "/v1/tc/leader", &[], 403, "tc_client_required"),
        (client.path(), "/v1/txn/decide", post, 403, "tc_client_required"),
        (tc.clone(), "/v1/tc/leader", &[], 503, "tc_unavailable"),
        (tc, "/v1/tc/cluster/announce", post, 403, "tc_server_required"),
        (
            server.bundles().join("server.pem"),
            "/v1/tc/cluster/announce",
            post,
            503,
            "tc_unavailable",
        ),
    ] {
        let answer = curl(&server, &bundle, path, args);
        assert_eq!(answer.status, status, "{path}: {} {}", answer.body, answer.trouble);
        assert!(answer.body.contains(code), "{path}: {}", answer.body);
    }
}

/// A watch that stays open, as a connection with something to lose.
struct OpenWatch(Child);

impl OpenWatch {
    fn new(server: &Server, bundle: &Path) -> Self {
        let url = format!("https://127.0.0.1:{}/v1/watch?prefix=", port(server));
        let mut child = Command::new("curl")
            .args(["--silent", "--no-buffer"])
            .arg("--cert")
            .arg(bundle)
            .arg("--key")
            .arg(bundle)
            .arg("--cacert")
            .arg(server.bundles().join("ca.pem"))
            .arg(url)
            .stdout(Stdio::piped())
            .spawn()
            .expect("curl can be started");
        let mut first = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut first).expect("a line");
        assert!(first.starts_with("event:"), "{first}");
        // The rest is read away, so that nothing waits for us.
        std::thread::spawn(move || lines.read_to_end(&mut Vec::new()).ok());
        Self(child)
    }

    fn is_open(&mut self) -> bool {
        self.0.try_wait().expect("a child of ours").is_none()
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[test]
fn a_revoked_client_loses_its_open_connections_and_nobody_else_does() {
    let server = Server::start(Options::secure());
    let revoked = Elsewhere::sdk(&server, "revoked", &[]);
    let other = Elsewhere::sdk(&server, "other", &[]);
    let (mut watch, mut others) =
        (OpenWatch::new(&server, &revoked.path()), OpenWatch::new(&server, &other.path()));
    let mut bundle = server_bundle(&server);
    bundle.revoke(revoked.bundle.leaf().peer.serial);
    write_server_bundle(&server, &bundle);
    within(SOON, "the open connection ends", || !watch.is_open());
    assert_eq!(acquire(&server, &revoked.path(), "k").status, 0);
    assert_eq!(acquire(&server, &other.path(), "k").status, 200);
    assert!(others.is_open(), "another client's connection was dropped");
}

#[test]
fn a_certificate_that_ends_while_its_connection_is_open_is_refused() {
    let server = Server::start(Options::secure());
    let day = SignedDuration::from_hours(24);
    // Time enough to connect on a machine that has much else to do.
    let began = Timestamp::now() - day + SignedDuration::from_secs(8);
    let request = ClientRequest { days: 1, ..ClientRequest::sdk("short", Vec::new()) };
    let client = Elsewhere::new(&server.authority(), &request, began);
    let address = SocketAddr::from(([127, 0, 0, 1], port(&server)));
    let tunnel = Tunnel::dig(address, &client.bundle);
    let mut open = Connection::open(&Place::Tcp(tunnel.entrance)).unwrap();
    let describe = Request::get("/v1/describe").query("key", "k");
    open.call(&describe).unwrap().ok();
    eventually("the certificate ends", || {
        let answer = open.call(&describe).unwrap();
        answer.says() == (403, "certificate_expired".to_owned())
    });
}

#[test]
fn a_connection_that_never_spoke_does_not_hold_up_the_end() {
    let mut server = Server::start(Options::secure());
    let silent = TcpStream::connect(("127.0.0.1", port(&server))).unwrap();
    // Accepted after the silent one.
    let client = server.bundles().join("client.pem");
    assert_eq!(curl(&server, &client, "/v1/describe?key=k", &[]).status, 200);
    server.terminate();
    assert!(server.ended(Duration::from_secs(8)).success());
    drop(silent);
}

#[test]
fn a_denylist_file_counts_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let denylist = folder.path().join("denied");
    std::fs::write(&denylist, "# nobody yet\n").unwrap();
    let server = Server::start(Options::secure().flag("denylist-path", denylist.display()));
    let client = Elsewhere::sdk(&server, "worker", &[]);
    assert_eq!(acquire(&server, &client.path(), "k").status, 200);
    std::fs::write(&denylist, format!("{}\n", client.bundle.leaf().peer.serial)).unwrap();
    within(SOON, "the client is refused", || acquire(&server, &client.path(), "k2").status == 0);
}

#[test]
fn a_new_server_bundle_keeps_the_node_and_needs_no_restart() {
    let server = Server::start(Options::secure());
    let client = server.bundles().join("client.pem");
    let mut watch = OpenWatch::new(&server, &client);
    let before = server_bundle(&server);
    let request = ServerRequest::new(&[], None);
    let after = before.reissue(&server.authority(), &request, Timestamp::now()).unwrap();
    assert_eq!(before.node_id(), after.node_id());
    assert_ne!(before.leaf().peer.serial, after.leaf().peer.serial);
    write_server_bundle(&server, &after);
    let serial = after.leaf().peer.serial.to_string();
    within(SOON, "the new certificate is shown", || shown_serial(&server).contains(&serial));
    assert!(watch.is_open(), "a connection was dropped");
    assert_eq!(acquire(&server, &client, "k").status, 200);
}

/// The serial of the certificate that the server shows, in lower case.
fn shown_serial(server: &Server) -> String {
    let client = server.bundles().join("client.pem");
    let shown = Command::new("sh")
        .arg("-c")
        .arg(
            "openssl s_client -connect \"$0\" -cert \"$1\" -key \"$1\" </dev/null 2>/dev/null \
             | openssl x509 -noout -serial",
        )
        .arg(format!("127.0.0.1:{}", port(server)))
        .arg(client)
        .output()
        .expect("openssl can be started");
    String::from_utf8_lossy(&shown.stdout).to_lowercase()
}

#[test]
fn silent_and_noisy_connections_do_not_slow_down_a_client() {
    const EACH: usize = 1_000;
    let server = Server::start(Options::secure());
    let address = SocketAddr::from(([127, 0, 0, 1], port(&server)));
    let runtime = Runtime::new().unwrap();
    let client = Client::builder()
        .endpoint(address.to_string())
        .bundle_file(server.bundles().join("client.pem"))
        .build()
        .unwrap();
    let p99 = || {
        let mut took: Vec<Duration> = (0..400)
            .map(|_| {
                let start = Instant::now();
                runtime.block_on(async { client.get("k").await.unwrap() });
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        took[took.len() * 99 / 100]
    };
    // What a scheduler may take from either measurement.
    let slack = Duration::from_millis(5);
    let mut round = 0;
    // Whatever else this machine does disturbs one of them or the other: then both are made again.
    eventually("no slower among the crowd than alone", || {
        round += 1;
        let quiet = p99();
        let silent: Vec<TcpStream> =
            (0..EACH).map(|_| TcpStream::connect(address).unwrap()).collect();
        let noisy: Vec<TcpStream> = (0..EACH)
            .map(|number| {
                let mut stream = TcpStream::connect(address).unwrap();
                let noise = format!("GET / HTTP/1.1\r\nx: {number}\r\n\r\n");
                // The server may have thrown it out already.
                stream.write_all(noise.as_bytes()).ok();
                stream
            })
            .collect();
        let crowded = p99();
        println!("{crowded:?} among the crowd, {quiet:?} alone");
        // A key that no round before holds.
        let fresh = acquire(&server, &server.bundles().join("client.pem"), &format!("k{round}"));
        assert_eq!(fresh.status, 200, "{}", fresh.trouble);
        drop((silent, noisy));
        crowded <= quiet * 2 + slack
    });
}
