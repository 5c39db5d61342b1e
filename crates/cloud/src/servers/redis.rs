//! Redis, as Debian has it. It can be stopped, killed, and brought back with an empty memory or
//! with an old one.

use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

use super::process::{Process, free_port, line};

/// Killed when it goes.
#[derive(Debug)]
pub struct Redis {
    process: Option<Process>,
    address: SocketAddr,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Redis {
    /// Panics with what to do if it is not installed.
    pub async fn start() -> Self {
        tokio::task::spawn_blocking(Self::start_now).await.expect("redis")
    }

    /// For tests without a runtime.
    #[must_use]
    pub fn start_now() -> Self {
        Self::start_with(&[])
    }

    /// With more arguments: `["--requirepass", "secret"]`.
    #[must_use]
    pub fn start_with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let arguments = arguments.iter().map(|&one| one.to_owned()).collect();
        let mut redis = Self { process: None, address: free_port(), folder, arguments };
        redis.begin();
        redis
    }

    fn begin(&mut self) {
        let folder = self.folder.path().to_str().expect("a path");
        let port = self.address.port().to_string();
        let fixed = ["--bind", "127.0.0.1", "--port", &port, "--dir", folder, "--save", ""];
        let mut arguments: Vec<String> = fixed.iter().map(|&one| one.to_owned()).collect();
        arguments.extend(self.arguments.iter().cloned());
        let ready = |address| line(address, "PING").is_some();
        self.process = Some(Process::at(&program(), &arguments, self.address, ready));
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    /// It answers nobody until it is resumed, and its clock goes on.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.process.as_ref().map(Process::id).expect("it runs");
        let pid = Pid::from_raw(pid.cast_signed()).expect("a pid");
        kill_process(pid, signal).expect("a signal");
    }

    /// Gone at once, with all it has not written down.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Writes down what it knows now; [`Redis::start_again`] after a [`Redis::kill`] knows that.
    pub fn save(&self) {
        assert_eq!(line(self.address, "SAVE").as_deref(), Some("+OK"));
    }

    /// What was saved is forgotten too.
    pub fn forget_saved(&self) {
        std::fs::remove_file(self.folder.path().join("dump.rdb")).ok();
    }

    /// At the same address.
    pub fn start_again(&mut self) {
        self.kill();
        self.begin();
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|place| place.join("redis-server"));
    places.find(|place| place.exists()).expect("redis-server is missing; install redis-server")
}
