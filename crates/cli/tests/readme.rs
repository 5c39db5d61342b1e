//! The commands of the README, pasted in order by a new user: an empty home, an empty folder, and
//! the programs on their defaults. Only the ports are others, so that tests can run side by side.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod server;

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use server::LOCKD;

const README: &str = include_str!("../../../README.md");
/// Seconds until the shell gives up, on a machine that is busy with other tests.
const PATIENCE: &str = "180";

/// What a new user types: every `sh` block, but for what builds or tests the programs themselves.
fn commands() -> String {
    let mut inside = false;
    let mut commands = String::new();
    for line in README.lines() {
        if line.starts_with("```") {
            inside = !inside && line == "```sh";
        } else if inside && !line.starts_with("cargo ") && !line.starts_with("./scripts/") {
            commands.push_str(line);
            commands.push('\n');
        }
    }
    commands
}

/// Ports that are free just now, in the place of the usual ones.
struct Ports(Vec<(u16, u16)>);

impl Ports {
    fn take() -> Self {
        let usual = [9340, 9341, 9342, 9343, 9344];
        let taken = usual.map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        Self(usual.into_iter().zip(taken.iter().map(port)).collect())
    }

    /// A setting with the usual port moved.
    fn moved(&self, text: &str) -> String {
        let moved = |text: String, (usual, now): &(u16, u16)| {
            text.replace(&format!(":{usual}"), &format!(":{now}"))
        };
        self.0.iter().fold(text.to_owned(), moved)
    }
}

/// A shell and everything that it has started.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        let _gone_before = kill_process_group(group, Signal::TERM).is_err();
        drop(self.0.wait());
        let _gone_before = kill_process_group(group, Signal::KILL).is_err();
    }
}

fn pasted(home: &Path, ports: &Ports) -> Shell {
    let path = format!("{}:/usr/bin:/bin", Path::new(LOCKD).parent().unwrap().display());
    let mut shell = Command::new("timeout");
    shell.args(["--foreground", PATIENCE, "bash", "-eu", "-c", &ports.moved(&commands())]);
    shell.env_clear().env("HOME", home).env("PATH", path).current_dir(home).process_group(0);
    // Each is the default, with another port.
    for (name, usual) in [
        ("LOCKD_LISTEN", ":9341"),
        ("LOCKD_CLIENT_SERVER", "127.0.0.1:9341"),
        ("LOCKD_COORDINATOR_LISTEN", "127.0.0.1:9342"),
        ("LOCKD_COORDINATOR_URL", "http://127.0.0.1:9342"),
        ("LOCKD_CONTROLLER_LISTEN", "127.0.0.1:9343"),
        ("LOCKD_CONTROLLER_STORE", "lockd://127.0.0.1:9341"),
        ("LOCKD_NODE_CONTROLLER_URL", "http://127.0.0.1:9343"),
        ("LOCKD_NODE_LISTEN", "127.0.0.1:9344"),
        ("LOCKD_NODE_LOCK", "lockd://127.0.0.1:9341"),
        ("LOCKD_HA_URL", "http://127.0.0.1:9344"),
    ] {
        shell.env(name, ports.moved(usual));
    }
    let file = |name: &str| File::create(home.join(name)).unwrap();
    shell.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
    Shell(shell.spawn().unwrap())
}

#[test]
fn the_commands_of_the_readme_work_as_pasted_with_the_default_server() {
    let home = tempfile::tempdir().unwrap();
    let mut shell = pasted(home.path(), &Ports::take());
    let status = shell.0.wait().unwrap();
    let said = |name: &str| std::fs::read_to_string(home.path().join(name)).unwrap();
    let (out, err) = (said("stdout"), said("stderr"));
    assert!(status.success(), "{status}\n{out}\n{err}");
    for part in ["my token is 2", "hello", "healthy", "LEADER"] {
        assert!(out.contains(part), "{part}:\n{out}\n{err}");
    }
}
