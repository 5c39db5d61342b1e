//! etcd, as Debian has it. It can be killed and brought back, with or without its memory.

use std::net::SocketAddr;

use super::process::{Process, free_port, line, on_path};
use super::secure::ServerFiles;

/// Killed when it goes.
#[derive(Debug)]
pub struct Etcd {
    process: Option<Process>,
    address: SocketAddr,
    peers: SocketAddr,
    folder: tempfile::TempDir,
    secure: Option<ServerFiles>,
}

impl Etcd {
    /// Panics with what to do if it is not installed.
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(Self::start_now).await.expect("etcd")
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        Self::started(None)
    }

    /// Over TLS, and only for those who show a certificate of the same authority.
    pub async fn start_secure(files: ServerFiles) -> Self {
        tokio::task::spawn_blocking(|| Self::started(Some(files))).await.expect("etcd")
    }

    fn started(secure: Option<ServerFiles>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (address, peers) = (free_port(), free_port());
        let mut etcd = Self { process: None, address, peers, folder, secure };
        etcd.begin();
        etcd
    }

    fn begin(&mut self) {
        let folder = self.folder.path().join("data");
        let scheme = if self.secure.is_some() { "https" } else { "http" };
        let (clients, peers) =
            (format!("{scheme}://{}", self.address), format!("http://{}", self.peers));
        let mut arguments = vec![
            "--name=one".to_owned(),
            format!("--data-dir={}", folder.to_str().expect("a path")),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=one={peers}"),
        ];
        // Whether it is well is told to everybody there.
        let mut well = self.address;
        if let Some(files) = &self.secure {
            well = free_port();
            arguments.extend([
                format!("--cert-file={}", files.certificate.display()),
                format!("--key-file={}", files.key.display()),
                format!("--trusted-ca-file={}", files.authority.display()),
                "--client-cert-auth".to_owned(),
                format!("--listen-metrics-urls=http://{well}"),
            ]);
        }
        let ready = |_| {
            let health = line(well, "GET /health HTTP/1.0\r\n");
            health.is_some_and(|answer| answer.contains("200"))
        };
        let program = on_path("etcd", "etcd-server");
        self.process = Some(Process::at(&program, &arguments, self.address, ready));
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.address)
    }

    /// Gone at once.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// What it has written down is forgotten.
    ///
    /// # Panics
    /// When it runs.
    pub fn forget(&self) {
        assert!(self.process.is_none(), "kill it first");
        std::fs::remove_dir_all(self.folder.path().join("data")).ok();
    }

    /// At the same address.
    pub fn start_again(&mut self) {
        self.kill();
        self.begin();
    }
}
