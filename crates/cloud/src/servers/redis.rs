//! Redis, as Debian has it. It can be stopped, killed, and brought back with an empty memory or
//! with an old one.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

use super::process::{Process, free_port, line, on_path};

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

    /// A sentinel with this configuration, which it writes to.
    #[must_use]
    pub fn sentinel(configuration: &Path) -> Self {
        let file = configuration.to_str().expect("a path");
        let folder = tempfile::tempdir().expect("a folder");
        let mut redis = Self { process: None, address: free_port(), folder, arguments: Vec::new() };
        let port = redis.address.port().to_string();
        let arguments = [file, "--sentinel", "--bind", "127.0.0.1", "--port", &port];
        let arguments: Vec<String> = arguments.iter().map(|&one| one.to_owned()).collect();
        let ready = |address| line(address, "PING").is_some();
        redis.process = Some(Process::at(&program(), &arguments, redis.address, ready));
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

    /// Its answer to one command: a number, a text, lines for a list, nothing for what is not there.
    ///
    /// # Panics
    /// When it does not answer, or with an error.
    #[must_use]
    pub fn ask(&self, words: &[&str]) -> String {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            write!(request, "${}\r\n{word}\r\n", word.len()).expect("written");
        }
        let stream = TcpStream::connect(self.address).expect("a connection");
        (&stream).write_all(request.as_bytes()).expect("sent");
        answer(&mut BufReader::new(stream)).unwrap_or_else(|error| panic!("{words:?}: {error}"))
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

/// One answer in Redis' protocol.
fn answer(from: &mut impl BufRead) -> Result<String, String> {
    let mut first = String::new();
    from.read_line(&mut first).map_err(|error| error.to_string())?;
    match first.trim_end().split_at_checked(1) {
        Some(("$" | "*", "-1")) => Ok(String::new()),
        Some((":" | "+", rest)) => Ok(rest.to_owned()),
        Some(("$", length)) => {
            let mut text = vec![0; length.parse::<usize>().map_err(|_| first.clone())? + 2];
            from.read_exact(&mut text).map_err(|error| error.to_string())?;
            text.truncate(text.len() - 2);
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
        Some(("*", count)) => {
            let count = count.parse::<usize>().map_err(|_| first.clone())?;
            let items: Result<Vec<_>, _> = (0..count).map(|_| answer(from)).collect();
            Ok(items?.join("\n"))
        }
        _ => Err(first),
    }
}

fn program() -> PathBuf {
    on_path("redis-server", "redis-server")
}
