//! The servers under test as processes of their own, each in a directory of its own. A server is
//! killed when its handle goes, and only then is its directory removed.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use lockd_pki::Bundle;
use lockd_pki::bootstrap::CLIENT_FILE;
use tempfile::TempDir;
use tokio_rustls::TlsConnector;

use crate::client::{Connection, Place};
use crate::process;
use crate::request::READYZ;

const START_MAX: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(2);

/// How lockd is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Security {
    Plain,
    Mtls,
}

/// A process that does not outlive its handle.
#[derive(Debug)]
struct Leashed(Child);

impl Drop for Leashed {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Where a server keeps its data and its log, until the last handle has gone.
#[derive(Debug)]
pub(crate) struct Home(TempDir);

impl Home {
    pub(crate) fn new(base: &Path) -> Result<Self> {
        let made = tempfile::Builder::new().prefix("lockd-bench-").tempdir_in(base);
        Ok(Self(made.with_context(|| format!("make a directory in {}", base.display()))?))
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("server.log")
    }

    /// Where lockd makes its bundles, if it speaks TLS.
    fn bundles(&self) -> PathBuf {
        self.0.path().join("bundles")
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn log_end(&self) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines.get(lines.len().saturating_sub(10)..).unwrap_or_default().join("\n")
    }
}

pub(crate) struct Server {
    // The order matters: the process ends before its directory is removed.
    process: Leashed,
    home: Home,
    pub(crate) address: SocketAddr,
    tls: Option<TlsConnector>,
    /// From the start of the process to its readiness.
    pub(crate) ready_after: Duration,
}

impl Server {
    pub(crate) async fn floor(base: &Path) -> Result<Self> {
        let home = Home::new(base)?;
        let program = std::env::current_exe().context("find this program")?;
        let mut command = Command::new(program);
        command.args(["floor", "--listen", "127.0.0.1:0", "--dir"]).arg(home.data());
        command.stdout(Stdio::piped()).stderr(File::create(home.log())?).stdin(Stdio::null());
        let start = Instant::now();
        let mut process = Leashed(command.spawn().context("start the floor")?);
        let output = process.0.stdout.take().context("the floor's output")?;
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(output).read_line(&mut line).map(|_| line)
        });
        let line =
            tokio::time::timeout(START_MAX, line).await.context("the floor is silent")???;
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            bail!("the floor did not start: {}", home.log_end());
        };
        let address = address.parse().context("the floor's address")?;
        Ok(Self { process, home, address, tls: None, ready_after: start.elapsed() })
    }

    pub(crate) async fn lockd(program: &Path, base: &Path, security: Security) -> Result<Self> {
        Self::lockd_at(program, Home::new(base)?, security).await
    }

    async fn lockd_at(program: &Path, home: Home, security: Security) -> Result<Self> {
        let address = free_address()?;
        let log = File::options().create(true).append(true).open(home.log())?;
        let mut command = Command::new(program);
        command.arg("--listen").arg(address.to_string());
        match security {
            Security::Plain => command.arg("--disable-mtls"),
            Security::Mtls => command.arg("--config-dir").arg(home.bundles()),
        };
        command.arg("--store").arg(format!("embedded://{}", home.data().display()));
        command.arg("--metrics-listen").arg("");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let start = Instant::now();
        let process = Leashed(
            command.spawn().with_context(|| format!("start lockd: {}", program.display()))?,
        );
        let mut server = Self { process, home, address, tls: None, ready_after: Duration::ZERO };
        while !server.is_ready(security).await {
            if let Some(status) = server.process.0.try_wait()? {
                bail!("lockd ended with {status}: {}", server.home.log_end());
            }
            if start.elapsed() > START_MAX {
                bail!("lockd is not ready after {START_MAX:?}: {}", server.home.log_end());
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
        server.ready_after = start.elapsed();
        Ok(server)
    }

    /// Kills the server as a power cut would end it, and starts it again on the same data.
    pub(crate) async fn kill_and_restart(self, program: &Path) -> Result<Self> {
        let Self { process, home, .. } = self;
        drop(process);
        Self::lockd_at(program, home, Security::Plain).await
    }

    pub(crate) fn place(&self) -> Place {
        Place { address: self.address, tls: self.tls.clone() }
    }

    async fn is_ready(&mut self, security: Security) -> bool {
        if security == Security::Mtls && self.tls.is_none() {
            self.tls = connector(&self.home.bundles().join(CLIENT_FILE)).ok();
            if self.tls.is_none() {
                return false;
            }
        }
        let ask = async {
            let mut connection = Connection::open(self.place()).await?;
            connection.call(READYZ).await.map(|answer| answer.status)
        };
        matches!(tokio::time::timeout(Duration::from_secs(5), ask).await, Ok(Ok(200)))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    pub(crate) fn memory(&self) -> Result<u64> {
        process::memory(self.pid())
    }

    /// Waits until the server neither works nor grows, and says so if it never does.
    pub(crate) async fn settle(&self, limit: Duration) -> Result<()> {
        if !process::settle(self.pid(), limit).await? {
            eprintln!("  the server is still at work after {limit:?}; going on");
        }
        Ok(())
    }

    /// Adds the end of the server's log to an error that it may have caused.
    pub(crate) fn explain<T>(&self, result: Result<T>) -> Result<T> {
        result.with_context(|| match self.home.log_end().as_str() {
            "" => "the server's log is empty".to_owned(),
            lines => format!("the server's log ends with:\n{lines}\n"),
        })
    }
}

/// TLS with a bundle that lockd has made.
fn connector(path: &Path) -> Result<TlsConnector> {
    match lockd_pki::files::load(path)?.0 {
        Bundle::Client(bundle) => {
            Ok(TlsConnector::from(Arc::new(lockd_pki::client_config(&bundle)?)))
        }
        other @ (Bundle::Ca(_) | Bundle::Server(_)) => {
            bail!("{} is the bundle of a {}", path.display(), other.kind())
        }
    }
}

/// An address that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr()?)
}
