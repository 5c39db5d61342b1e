//! The real server as a process. It is killed when its handle goes; a panic anywhere in its log
//! fails the test, whatever else it was about.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::Timestamp;
use lockd_pki::{Authority, Bundle, Claim, ClientBundle, ClientRequest, files};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::binary;
use crate::http::{Client, Place, Request};
use crate::process;
use crate::tunnel::Tunnel;
use crate::wait::{eventually, try_within};

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    store: Option<PathBuf>,
    in_memory: bool,
    listen: Option<String>,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    security: Security,
}

/// How a server is reached over the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Security {
    #[default]
    Plain,
    /// Over mutual TLS, which the test does not see.
    Tunnel,
    /// Over mutual TLS, which is what the test is about.
    Tls,
}

impl Options {
    /// A store on disk in a folder of its own.
    #[must_use]
    pub fn new() -> Self {
        let tls = std::env::var_os("LOCKD_TEST_MTLS").is_some_and(|value| value == "1");
        let security = if tls { Security::Tunnel } else { Security::Plain };
        Self { security, ..Self::default() }
    }

    /// A store that forgets, for tests that only need speed.
    #[must_use]
    pub fn in_memory() -> Self {
        Self { in_memory: true, ..Self::new() }
    }

    /// With mutual TLS, as by default; bundles are in [`Server::bundles`].
    #[must_use]
    pub fn secure() -> Self {
        Self { in_memory: true, security: Security::Tls, ..Self::default() }
    }

    /// Without TLS, whatever the other tests are run with.
    #[must_use]
    pub fn plain(self) -> Self {
        Self { security: Security::Plain, ..self }
    }

    #[must_use]
    pub fn store(mut self, path: impl Into<PathBuf>) -> Self {
        self.store = Some(path.into());
        self
    }

    #[must_use]
    pub fn listen(mut self, addresses: &str) -> Self {
        self.listen = Some(addresses.to_owned());
        self
    }

    #[must_use]
    pub fn flag(mut self, name: &str, value: impl ToString) -> Self {
        self.flags.extend([format!("--{name}"), value.to_string()]);
        self
    }
}

impl Options {
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A server that runs, or did.
#[derive(Debug)]
pub struct Server {
    options: Options,
    child: Child,
    log: Log,
    pub place: Place,
    pub metrics: Place,
    tunnel: Option<Tunnel>,
    // Last, so that it outlives the process.
    home: TempDir,
}

/// Everything the process has said so far.
#[derive(Debug)]
struct Log {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Log {
    fn follow(child: &mut Child) -> Self {
        let stderr = child.stderr.take().expect("the log is piped");
        let text = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                let mut kept = kept.lock().expect("the log");
                kept.push_str(&String::from_utf8_lossy(&line));
                kept.push('\n');
            }
        });
        Self { text, reader: Some(reader) }
    }

    fn text(&self) -> String {
        self.text.lock().expect("the log").clone()
    }

    /// After the process has ended: reads what is left.
    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
    }

    /// What stands behind `mark` in the first line that has it.
    fn after(&self, mark: &str) -> Option<String> {
        let text = self.text();
        let line = text.lines().find_map(|line| line.split_once(mark))?;
        Some(line.1.trim().to_owned())
    }
}

impl Server {
    #[must_use]
    #[track_caller]
    pub fn start(options: Options) -> Self {
        let mut server = Self::spawn(options);
        server.await_start();
        server
    }

    /// As [`Server::start`]; how it ended if it did not start.
    #[track_caller]
    pub fn try_start(options: Options) -> Result<Self, (ExitStatus, String)> {
        let mut server = Self::spawn(options);
        server.started_or_ended().map(|()| server)
    }

    fn spawn(options: Options) -> Self {
        let home = tempfile::tempdir().expect("a folder for the server");
        let (child, log) = spawn(&options, home.path());
        let nowhere = Place::Tcp(([127, 0, 0, 1], 0).into());
        let metrics = nowhere.clone();
        Self { options, child, log, place: nowhere, metrics, tunnel: None, home }
    }

    /// A server with the usual settings and a store on disk.
    #[must_use]
    #[track_caller]
    pub fn usual() -> Self {
        Self::start(Options::new())
    }

    #[track_caller]
    fn await_start(&mut self) {
        let started = try_within(Duration::from_secs(60), || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the server ended at once with {status}:\n{}", self.log.text());
            }
            Some((self.log.after("listening on ")?, self.log.after("metrics on ")?))
        });
        let (place, metrics) = started.expect("the server says where it listens");
        self.place = read_place(&place);
        if let (Security::Tunnel, Place::Tcp(address)) = (self.options.security, &self.place) {
            let tunnel = Tunnel::dig(*address, &self.bundle_for_everything());
            self.place = Place::Tcp(tunnel.entrance);
            self.tunnel = Some(tunnel);
        }
        self.metrics = read_place(metrics.trim_end_matches("/metrics"));
    }

    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(&self.place)
    }

    #[must_use]
    pub fn metrics_client(&self) -> Client {
        Client::new(&self.metrics)
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn log(&self) -> String {
        self.log.text()
    }

    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.options.store.clone().unwrap_or_else(|| self.home.path().join("data"))
    }

    /// The folder of CA and bundles, made at the first start.
    #[must_use]
    pub fn bundles(&self) -> PathBuf {
        self.home.path().join(".lockd")
    }

    /// The CA that was made at the first start.
    #[must_use]
    pub fn authority(&self) -> Authority {
        match files::load(&self.bundles().join("ca.pem")).expect("a bundle").0 {
            Bundle::Ca(ca) => ca.authority(None).expect("a key without a password"),
            other => panic!("the bundle of a {}", other.kind()),
        }
    }

    /// A client that may use all namespaces.
    #[must_use]
    pub fn bundle_for_everything(&self) -> ClientBundle {
        let request = ClientRequest::sdk("tests", vec![Claim::all()]);
        let authority = self.authority();
        let leaf = authority.issue_client(&request, Timestamp::now()).expect("a certificate");
        ClientBundle::new(&authority, leaf)
    }

    /// The files of documents that are too large for their records.
    #[must_use]
    pub fn blobs(&self) -> Vec<PathBuf> {
        files_below(&self.store().join("blobs"))
    }

    /// Ends the process as a power cut would, as far as the process can tell.
    pub fn kill(&mut self) {
        process::signal(&self.child, Signal::KILL);
        self.child.wait().expect("the process ends");
        self.finish();
    }

    pub fn signal(&self, signal: Signal) {
        process::signal(&self.child, signal);
    }

    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// How the process ended, within the deadline.
    #[track_caller]
    pub fn ended(&mut self, deadline: Duration) -> ExitStatus {
        let ended = try_within(deadline, || self.child.try_wait().expect("a child of ours"));
        let status =
            ended.unwrap_or_else(|| panic!("still there after {deadline:?}:\n{}", self.log()));
        self.finish();
        status
    }

    /// Starts the server again on the same store.
    #[track_caller]
    pub fn start_again(&mut self) {
        let (child, log) = spawn(&self.options, self.home.path());
        self.child = child;
        self.log = log;
        self.await_start();
    }

    /// Tries to start it again; how it ended if it did not start.
    #[track_caller]
    pub fn try_start_again(&mut self) -> Result<(), (ExitStatus, String)> {
        let (child, log) = spawn(&self.options, self.home.path());
        self.child = child;
        self.log = log;
        self.started_or_ended()
    }

    #[track_caller]
    fn started_or_ended(&mut self) -> Result<(), (ExitStatus, String)> {
        let mut ended = None;
        eventually("the server starts or ends", || {
            ended = self.child.try_wait().expect("a child of ours");
            ended.is_some() || self.log.after("metrics on ").is_some()
        });
        match ended {
            Some(status) => {
                self.finish();
                Err((status, self.log()))
            }
            None => {
                self.await_start();
                Ok(())
            }
        }
    }

    /// Whether it says that it is ready.
    pub fn is_ready(&self) -> bool {
        let reply = self.client().try_call(&Request::get("/readyz"));
        reply.is_ok_and(|reply| reply.status == 200)
    }

    fn finish(&mut self) {
        self.log.finish();
        self.refuse_panics();
    }

    #[track_caller]
    pub fn refuse_panics(&self) {
        let log = self.log();
        assert!(!log.contains("panicked at"), "the server panicked:\n{log}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        self.child.kill().ok();
        self.child.wait().ok();
        self.log.finish();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines.len().saturating_sub(20);
            println!("the server's log ends with:\n{}", lines[end..].join("\n"));
        } else {
            self.refuse_panics();
        }
    }
}

fn spawn(options: &Options, home: &Path) -> (Child, Log) {
    let mut command = command(home);
    if options.security == Security::Plain {
        command.arg("--disable-mtls");
    }
    command.args(["--metrics-listen", "127.0.0.1:0"]);
    command.args(["--listen", options.listen.as_deref().unwrap_or("127.0.0.1:0"), "--store"]);
    match &options.store {
        _ if options.in_memory => command.arg("mem://"),
        Some(path) => command.arg(path),
        None => command.arg(home.join("data")),
    };
    command.envs(options.environment.iter().map(|(name, value)| (name, value)));
    command.args(&options.flags).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("lockd can be started");
    let log = Log::follow(&mut child);
    (child, log)
}

/// The program, with nothing around it but an empty home folder.
#[must_use]
pub fn command(home: &Path) -> Command {
    let mut command = Command::new(binary::lockd());
    command.env_clear().env("HOME", home).stdin(Stdio::null()).current_dir(home);
    command
}

/// Runs the program to its end.
#[must_use]
pub fn run(home: &Path, args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = command(home);
    command.args(args.iter().map(OsStr::new)).envs(environment.iter().copied());
    command.output().expect("lockd can be started")
}

fn read_place(text: &str) -> Place {
    match text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) {
        Some(address) => Place::Tcp(address.parse().expect("an address")),
        None => Place::Unix(text.strip_prefix("unix://").expect("an address").into()),
    }
}

/// All files in a folder and the folders in it.
#[must_use]
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files.extend(files_below(&entry.path())),
            Ok(_) => files.push(entry.path()),
            // It went away meanwhile.
            Err(_) => {}
        }
    }
    files.sort();
    files
}
