//! Carries the plain bytes of a test to a server that speaks mutual TLS, and what happens to them:
//! an end of sending stays one, a reset stays a reset. With it every test can be run over TLS, also
//! those that write what no TLS library would let through.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream as Socket};
use std::sync::Arc;
use std::time::Duration;

use lockd_pki::ClientBundle;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

/// A TLS session that the test reads and writes itself.
pub type Session = StreamOwned<ClientConnection, Socket>;

/// Opens a session for a protocol such as `h2`. Its handshake is made with the first write.
#[must_use]
pub fn session(server: SocketAddr, bundle: &ClientBundle, protocol: &[u8]) -> Session {
    let mut config = lockd_pki::client_config(bundle).expect("a configuration for TLS");
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::IpAddress(server.ip().into());
    let session = ClientConnection::new(Arc::new(config), name).expect("a session");
    let socket = Socket::connect(server).expect("a connection");
    socket.set_nodelay(true).expect("an option");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
    StreamOwned::new(session, socket)
}

/// Ends, with all it carries, when it goes.
#[derive(Debug)]
pub struct Tunnel {
    pub entrance: SocketAddr,
    runtime: Option<Runtime>,
}

impl Tunnel {
    /// A way to this server for whoever does not speak TLS.
    #[must_use]
    pub fn dig(server: SocketAddr, bundle: &ClientBundle) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let config = lockd_pki::client_config(bundle).expect("a configuration for TLS");
        let tls = TlsConnector::from(Arc::new(config));
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a port");
        let entrance = listener.local_addr().expect("an address");
        runtime.spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(carry(near, server, tls.clone()));
            }
        });
        Self { entrance, runtime: Some(runtime) }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn carry(mut near: TcpStream, server: SocketAddr, tls: TlsConnector) -> io::Result<()> {
    near.set_nodelay(true)?;
    let mut far = match reach(server, tls).await {
        Ok(far) => far,
        Err(error) => {
            reset_on_close(&near)?;
            return Err(error);
        }
    };
    let carried = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    if carried.is_err() {
        reset_on_close(&near)?;
        reset_on_close(far.get_ref().0)?;
    }
    carried.map(drop)
}

async fn reach(
    server: SocketAddr,
    tls: TlsConnector,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let far = TcpStream::connect(server).await?;
    far.set_nodelay(true)?;
    let name = ServerName::IpAddress(server.ip().into());
    tls.connect(name, far).await
}

fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO))?)
}
