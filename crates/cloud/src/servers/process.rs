//! A server as a child process that cannot outlive the test, however the test ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Under load a Python or Node.js program takes its time.
const START: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Kills the server as soon as its standard input ends: when we close it, and also when we die
/// without a chance to. A test that keeps its server in a static never drops it.
const TETHER: &str = r#"exec 3<&0; (read -r _ <&3; kill -9 $$) & exec "$@" </dev/null 3<&-"#;

#[derive(Debug)]
pub(super) struct Process {
    pub address: SocketAddr,
    child: Child,
    tether: Option<ChildStdin>,
}

impl Process {
    /// Starts `program`, which is below the directory of installed servers, and waits until
    /// `ready` says so.
    pub(super) fn start(
        program: &str,
        arguments: impl Fn(u16) -> Vec<String>,
        ready: impl Fn(SocketAddr) -> bool,
    ) -> Self {
        let path = installed(program);
        // Somebody else may take the port before the server does.
        for _ in 0..3 {
            let address = free_port();
            let mut process = Self::spawn(&path, &arguments(address.port()), address);
            if process.wait_until(&ready) {
                return process;
            }
        }
        panic!("{} does not start; try it by hand", path.display());
    }

    /// As [`Process::start`], for any program and at one address.
    pub(super) fn at(
        path: &Path,
        arguments: &[String],
        address: SocketAddr,
        ready: impl Fn(SocketAddr) -> bool,
    ) -> Self {
        let mut process = Self::spawn(path, arguments, address);
        assert!(process.wait_until(ready), "{} does not start; try it by hand", path.display());
        process
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn spawn(path: &Path, arguments: &[String], address: SocketAddr) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", TETHER, "sh"])
            .arg(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let tether = child.stdin.take();
        Self { address, child, tether }
    }

    /// Whether it became ready; not if it ended.
    fn wait_until(&mut self, ready: impl Fn(SocketAddr) -> bool) -> bool {
        let start = Instant::now();
        while start.elapsed() < START {
            if ready(self.address) {
                return true;
            }
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        false
    }
}

impl Drop for Process {
    /// The tether does it, so that it never sees the number of a process already waited for.
    fn drop(&mut self) {
        drop(self.tether.take());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A program of the system.
///
/// # Panics
/// With the package to install, when it is missing.
pub(super) fn on_path(name: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|place| place.join(name));
    let found = places.find(|place| place.exists());
    found.unwrap_or_else(|| panic!("{name} is missing; install {package}"))
}

/// Where `scripts/cloud-servers` put it.
fn installed(program: &str) -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cloud");
    let root = std::env::var_os("LOCKD_CLOUD_DIR").map_or_else(default, PathBuf::from);
    let path = root.join(program);
    assert!(
        path.exists(),
        "{} is not installed: run scripts/cloud-servers (LOCKD_CLOUD_DIR says where to)",
        path.display()
    );
    path
}

/// Ports that the system gives to nobody by itself, neither to listeners nor to clients: one that is
/// free for a moment, while its server is started again, stays free.
const PORTS: std::ops::Range<u16> = 10_000..22_000;

/// Nobody listens there now, and nobody else in this process is told of it.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> SocketAddr {
    static NEXT: OnceLock<AtomicUsize> = OnceLock::new();
    // Another process begins elsewhere.
    let next = NEXT.get_or_init(|| AtomicUsize::new(rand::random::<u16>().into()));
    for _ in PORTS {
        let step = next.fetch_add(1, Ordering::Relaxed) % PORTS.len();
        let port = PORTS.start + u16::try_from(step).expect("below the number of ports");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return (Ipv4Addr::LOCALHOST, port).into();
        }
    }
    panic!("no port is free");
}

/// One request without a body; its status, or nothing while nobody listens.
pub(super) fn ask(address: SocketAddr, request: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let end = format!("Host: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(format!("{request}\r\n{end}").as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    text.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// One line, and the first line of the answer to it.
pub(super) fn line(address: SocketAddr, request: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(format!("{request}\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).ok()?;
    Some(answer.trim_end().to_owned()).filter(|answer| !answer.is_empty())
}
