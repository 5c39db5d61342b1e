//! A way to a server that can fall silent: what is on it hears nothing more, and is not told.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Ends when it goes.
pub struct Relay {
    pub address: SocketAddr,
    /// How often it fell silent: connections from before stay so.
    silences: watch::Sender<u64>,
    /// Whether new connections are silent too.
    closed: watch::Sender<bool>,
}

impl Relay {
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (silences, heard) = watch::channel(0);
        let (closed, is_closed) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let silent = *is_closed.borrow();
                tokio::spawn(carry(near, server, heard.clone(), silent));
            }
        });
        Self { address, silences, closed }
    }

    /// A member that hangs.
    pub fn falls_silent(&self) {
        self.closed.send_replace(true);
        self.loses_connections();
    }

    /// What is on it hears nothing more; what comes anew is carried.
    pub fn loses_connections(&self) {
        self.silences.send_modify(|silences| *silences += 1);
    }
}

async fn carry(
    mut near: TcpStream,
    server: SocketAddr,
    mut heard: watch::Receiver<u64>,
    silent: bool,
) {
    heard.mark_unchanged();
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    if !silent {
        let carried = tokio::io::copy_bidirectional(&mut near, &mut far);
        tokio::select! {
            _ended = carried => return,
            changed = heard.changed() => if changed.is_err() { return },
        }
    }
    // Open, and without a word.
    while heard.changed().await.is_ok() {}
}
