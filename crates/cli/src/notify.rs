//! Tells the service manager, if there is one, when the server is ready, reads its files again, or
//! stops. `NOTIFY_SOCKET` names where to say it; not being able to is no reason not to serve.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// Whom to tell.
#[derive(Debug)]
pub(crate) struct Notify(Option<OsString>);

impl Notify {
    pub(crate) fn of_environment() -> Self {
        Self(std::env::var_os(VARIABLE).filter(|socket| !socket.is_empty()))
    }

    /// Connections are taken from now on.
    pub(crate) fn ready(&self) {
        self.tell("READY=1\n");
    }

    /// Files are read again; [`Notify::ready`] says when that is done.
    pub(crate) fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\n"));
    }

    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\n");
    }

    fn tell(&self, state: &str) {
        let Some(socket) = &self.0 else { return };
        if let Err(error) = send(socket, state) {
            tracing::warn!("cannot notify the service manager: {error}");
        }
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    // A name that begins with @ is not in the file system.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn the_manager_hears_each_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let notify = Notify(Some(path.into_os_string()));
        notify.ready();
        assert_eq!(heard(&socket), "READY=1\n");
        notify.reloading();
        assert!(heard(&socket).starts_with("RELOADING=1\nMONOTONIC_USEC="));
        notify.stopping();
        assert_eq!(heard(&socket), "STOPPING=1\n");
    }

    #[test]
    fn an_abstract_name_is_understood() {
        let name = format!("lockd-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Notify(Some(format!("@{name}").into())).ready();
        assert_eq!(heard(&socket), "READY=1\n");
    }

    #[test]
    fn nobody_to_tell_is_no_error() {
        Notify(None).ready();
        Notify(Some("/no/such/socket".into())).ready();
    }
}
