//! The server under a service manager: it says when it is ready, when it reads its files again,
//! and when it stops.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const LOCKD: &str = env!("CARGO_BIN_EXE_lockd");

struct Service(Child);

impl Service {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_service_manager_is_told_of_every_turn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let heard = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer.iter().copied().take(length).collect()).unwrap()
    };
    let child = Command::new(LOCKD)
        .env_clear()
        .env("HOME", folder.path())
        .env("NOTIFY_SOCKET", &path)
        .args(["--store", "mem://", "--listen", "127.0.0.1:0", "--drain-grace", "0s"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut service = Service(child);
    assert_eq!(heard(), "READY=1\n");
    service.signal(Signal::HUP);
    assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(heard(), "READY=1\n");
    service.signal(Signal::TERM);
    assert_eq!(heard(), "STOPPING=1\n");
    assert!(service.0.wait().unwrap().success());
}
