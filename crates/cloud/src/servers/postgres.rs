//! PostgreSQL, as Debian has it. It can be killed and brought back.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::geteuid;

use super::process::{Process, free_port, on_path};
use super::secure::ServerFiles;

/// Killed when it goes.
#[derive(Debug)]
pub struct Postgres {
    process: Option<Process>,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Postgres {
    /// Panics with what to do if it is not installed.
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(Self::start_now).await.expect("postgres")
    }

    /// Over TLS, and only for those who show a certificate of the same authority in the name of the
    /// user.
    pub async fn start_secure(files: ServerFiles) -> Self {
        tokio::task::spawn_blocking(|| Self::started(Some(files))).await.expect("postgres")
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        Self::started(None)
    }

    fn started(secure: Option<ServerFiles>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        if geteuid().is_root() {
            let owned = Command::new("chown").arg("postgres").arg(folder.path()).status();
            assert!(owned.is_ok_and(|status| status.success()), "there is no user postgres");
        }
        let mut made = unprivileged(&program("initdb"));
        made.args(["--auth=trust", "--username=lockd", "--no-sync", "--encoding=UTF8", "-D"]);
        let made = made.arg(&data).output().expect("initdb");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        if let Some(files) = secure {
            encrypt(&data, &files);
        }
        let mut postgres = Self { process: None, address: free_port(), folder };
        postgres.begin();
        postgres
    }

    fn begin(&mut self) {
        let folder = self.folder.path();
        let mut command = unprivileged(&program("postgres"));
        command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder);
        let port = self.address.port().to_string();
        command.args(["-h", "127.0.0.1", "-p", &port, "-c", "fsync=off"]);
        let arguments: Vec<String> =
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let ready = |_| {
            let mut asked = Command::new(program("pg_isready"));
            let asked = asked.args(["-q", "-h", "127.0.0.1", "-p", &port]).status();
            asked.is_ok_and(|status| status.success())
        };
        let path = PathBuf::from(command.get_program());
        self.process = Some(Process::at(&path, &arguments, self.address, ready));
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://lockd@{}/postgres", self.address)
    }

    /// Runs a statement.
    ///
    /// # Panics
    /// When it fails.
    pub fn run(&self, statement: &str) -> String {
        let mut asked = Command::new(program("psql"));
        let asked = asked.args(["-qAtX", "-v", "ON_ERROR_STOP=1", &self.url(), "-c", statement]);
        let Output { status, stdout, stderr } = asked.output().expect("psql");
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8_lossy(&stdout).trim().to_owned()
    }

    /// Somebody else's session, which runs a statement for as long as it takes.
    ///
    /// # Panics
    /// When there is no `psql`.
    #[must_use]
    pub fn session(&self, statement: &str) -> Session {
        let mut psql = Command::new(program("psql"));
        psql.args(["-qAtX", &self.url(), "-c", statement]);
        psql.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Session(psql.spawn().expect("psql"))
    }

    /// A pooler in front of it that deals out sessions by the transaction.
    ///
    /// # Panics
    /// When it is not installed, or does not start.
    #[must_use]
    pub fn pooler(&self) -> Pooler {
        let (address, port) = (free_port(), self.address.port());
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={port} user=lockd\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\n",
            address.port()
        );
        let file = self.folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("written");
        let mut command = unprivileged(&on_path("pgbouncer", "pgbouncer"));
        command.arg("-q").arg(&file);
        let arguments: Vec<String> =
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let path = PathBuf::from(command.get_program());
        let ready = |address| TcpStream::connect(address).is_ok();
        Pooler { process: Process::at(&path, &arguments, address, ready) }
    }

    /// Gone at once, all of it.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            drop(process);
            let data = self.folder.path().join("data");
            // Its children notice; before they are gone no other one starts.
            while works_in(&data) {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::fs::remove_file(data.join("postmaster.pid")).ok();
        }
    }

    /// At the same address.
    pub fn start_again(&mut self) {
        self.kill();
        self.begin();
    }
}

/// Lets nobody in but over TLS, with a certificate.
fn encrypt(data: &Path, files: &ServerFiles) {
    let ServerFiles { authority, certificate, key } = files;
    for (file, name) in [(authority, "ca.pem"), (certificate, "server.pem"), (key, "key.pem")] {
        // As its owner would write it: a key that others may read is refused.
        let mut copied = unprivileged(Path::new("/bin/sh"));
        copied.args(["-c", "umask 077; cat > \"$0\""]).arg(data.join(name));
        let text = std::fs::File::open(file).expect("a file");
        let copied = copied.stdin(text).status();
        assert!(copied.is_ok_and(|status| status.success()), "{name} is not copied");
    }
    let settings = "ssl = on\nssl_ca_file = 'ca.pem'\nssl_cert_file = 'server.pem'\n\
                    ssl_key_file = 'key.pem'\n";
    std::fs::write(data.join("postgresql.auto.conf"), settings).expect("written");
    let who = "hostssl all all 127.0.0.1/32 cert\n";
    std::fs::write(data.join("pg_hba.conf"), who).expect("written");
}

/// Ends when it goes.
#[derive(Debug)]
pub struct Session(Child);

impl Session {
    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Killed when it goes.
#[derive(Debug)]
pub struct Pooler {
    process: Process,
}

impl Pooler {
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://lockd@{}/postgres", self.process.address)
    }
}

/// Whether any process has its working folder there.
fn works_in(folder: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut folders = processes.filter_map(|one| std::fs::read_link(one.path().join("cwd")).ok());
    folders.any(|place| place == folder)
}

/// It refuses to run as root.
fn unprivileged(program: &Path) -> Command {
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new(on_path("setpriv", "util-linux"));
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

/// The newest that is installed; its programs are not on the path.
fn program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions
        .map(|version| version.path().join("bin").join(OsStr::new(name)))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| on_path(name, "postgresql"))
}
