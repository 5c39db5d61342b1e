//! The real program as a server, and as a client of it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

pub const LOCKD: &str = env!("CARGO_BIN_EXE_lockd");
pub const LOCKC: &str = env!("CARGO_BIN_EXE_lockc");

/// A server in memory on a free port; it ends with the test.
pub struct Server {
    child: Child,
    pub address: String,
    pub home: TempDir,
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&["--disable-mtls", "--store", "mem://"])
    }

    /// A server with these settings.
    pub fn start_with(settings: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut child = clean(&home)
            .args(settings)
            .args(["--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut log = Vec::new();
        let address = loop {
            let line = lines.next().unwrap_or_else(|| panic!("no address in {log:?}")).unwrap();
            if let Some((_, address)) = line.split_once("listening on ") {
                break address.trim().to_owned();
            }
            log.push(line);
        };
        // Goes on reading, so that the server never waits for its log.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, home }
    }

    pub fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A client command.
    pub fn client<I>(&self, arguments: I) -> Command
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let mut command = clean(&self.home);
        command.env("LOCKD_CLIENT_SERVER", &self.address).arg("client").args(arguments);
        command
    }

    /// Runs a client command that succeeds; its standard output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.client(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a client command that fails; its exit code and what it says.
    pub fn fails(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.client(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output.stdout));
        assert_eq!(text(&output.stdout), "", "data of a command that failed");
        (output.status.code().unwrap(), text(&output.stderr))
    }

    /// A shell script in which `lockd` is the program.
    pub fn shell(&self, script: &str) -> Output {
        let mut command = clean_of(Command::new("sh"), &self.home);
        let path = std::path::Path::new(LOCKD).parent().unwrap();
        let path = format!("{}:/usr/bin:/bin", path.display());
        command.env("PATH", path).env("LOCKD_CLIENT_SERVER", &self.address);
        command.current_dir(self.home.path()).args(["-eu", "-c", script]).output().unwrap()
    }

    /// Acquires a key and gives the variables to act under it.
    pub fn acquire(&self, key: &str, more: &[&str]) -> Vec<(String, String)> {
        let mut arguments = vec!["acquire", key, "--output", "json"];
        arguments.extend(more);
        let lease: serde_json::Value = serde_json::from_str(&self.ok(&arguments)).unwrap();
        [
            ("LOCKD_CLIENT_KEY", "key"),
            ("LOCKD_CLIENT_NAMESPACE", "namespace"),
            ("LOCKD_CLIENT_LEASE", "lease_id"),
            ("LOCKD_CLIENT_FENCING_TOKEN", "fencing_token"),
            ("LOCKD_CLIENT_TXN_ID", "txn_id"),
        ]
        .map(|(name, field)| {
            let value = lease.get(field).unwrap();
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            (name.to_owned(), text)
        })
        .into()
    }

    /// Runs a command under a lease with something on its standard input.
    pub fn under(&self, lease: &[(String, String)], arguments: &[&str], input: &str) -> Output {
        let mut child = self
            .client(arguments)
            .envs(lease.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The program without anything of the tester's own environment.
fn clean(home: &TempDir) -> Command {
    clean_of(Command::new(LOCKD), home)
}

fn clean_of(mut command: Command, home: &TempDir) -> Command {
    command.env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    command.stdin(Stdio::null());
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A command that is still running, whose output is read line by line.
pub struct Running {
    pub child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line that it says on standard error.
    pub fn said(&mut self) -> String {
        let err = self.child.stderr.as_mut().unwrap();
        let mut line = Vec::new();
        let mut byte = [0];
        while err.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        text(&line)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        rustix::process::kill_process(pid.unwrap(), signal).unwrap();
    }

    /// Waits for its end: exit code, the rest of its output, and what it said.
    pub fn end(mut self) -> (i32, String, String) {
        let status = self.child.wait().unwrap();
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (status.code().unwrap_or(-1), out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
