//! Mutual TLS of a port: handshakes with credentials that may be replaced, and what a replacement
//! means for the connections that are open.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lockd_pki::{Admitted, LiveCredentials, OnRefusal, TlsError};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::linger_close::linger_close;
use crate::listener::Conn;
use crate::slots::SlotGuard;

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How clients of a port come in.
#[derive(Clone)]
pub enum Door {
    Plain,
    /// With certificates on both sides.
    Tls {
        live: Arc<LiveCredentials>,
        changes: watch::Receiver<u64>,
    },
}

impl Door {
    /// A door with certificates, and what tells it that they were replaced. Connections that are
    /// open then end after their requests, and their clients show their certificates again.
    #[must_use]
    pub fn tls(live: Arc<LiveCredentials>) -> (Self, CredentialChanges) {
        let (sender, changes) = watch::channel(0);
        (Self::Tls { live, changes }, CredentialChanges(sender))
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Tls { .. } => "Tls",
        })
    }
}

/// Tells a door that its credentials were replaced.
#[derive(Debug)]
pub struct CredentialChanges(watch::Sender<u64>);

impl CredentialChanges {
    pub fn announce(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// Set for requests whose client has shown a certificate.
#[derive(Clone, Copy, Debug)]
pub struct Certified;

/// What becomes of open connections when the credentials are replaced. Those of a revoked client
/// are cut in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterChange {
    /// They stay.
    Keep,
    /// They end after the requests that are in progress.
    WindDown,
}

/// The server's side of mutual TLS.
#[derive(Clone)]
pub struct MutualTls {
    acceptor: TlsAcceptor,
    live: Arc<LiveCredentials>,
    /// Counts the times the credentials were replaced.
    changes: watch::Receiver<u64>,
    after_change: AfterChange,
}

/// A client that completed its handshake.
pub(crate) struct Guest {
    pub(crate) stream: TlsStream<Conn>,
    pub(crate) admitted: Arc<Admitted>,
    pub(crate) speaks_h2: bool,
    changes: watch::Receiver<u64>,
}

impl MutualTls {
    /// # Errors
    /// When the credentials cannot be used.
    pub fn new(
        live: &Arc<LiveCredentials>,
        changes: watch::Receiver<u64>,
        after_change: AfterChange,
        on_refusal: OnRefusal,
    ) -> Result<Self, TlsError> {
        let config = lockd_pki::server_config(live, on_refusal)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor, live: Arc::clone(live), changes, after_change })
    }

    /// A handshake within its time.
    ///
    /// # Errors
    /// When it fails, or the client is refused.
    pub(crate) async fn handshake(&self, conn: Conn) -> io::Result<Guest> {
        // From before the handshake, so that no change is missed; those before concern others.
        let mut changes = self.changes.clone();
        changes.mark_unchanged();
        let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
        let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.accept(conn)).await;
        let stream = accepted.map_err(timed_out)??;
        let (_, session) = stream.get_ref();
        let speaks_h2 = session.alpn_protocol() == Some(b"h2");
        let chain = session.peer_certificates().unwrap_or_default();
        match self.live.current().admit(chain, Timestamp::now()) {
            Ok(admitted) => Ok(Guest { stream, admitted: Arc::new(admitted), speaks_h2, changes }),
            // The credentials were replaced during the handshake.
            Err(refused) => {
                tracing::warn!(reason = %refused, "a client was not let in");
                Err(io::ErrorKind::PermissionDenied.into())
            }
        }
    }

    async fn accept(&self, conn: Conn) -> io::Result<TlsStream<Conn>> {
        match self.acceptor.accept(conn).into_fallible().await {
            Ok(stream) => Ok(stream),
            Err((error, conn)) => {
                // The alert says what is wrong with the client's certificate.
                linger_close(conn).await;
                Err(error)
            }
        }
    }

    /// Ready when the client is revoked. After other changes its connection may be wound down.
    pub(crate) async fn revoked(
        &self,
        admitted: &Admitted,
        mut changes: watch::Receiver<u64>,
        guard: &SlotGuard,
    ) {
        while !self.live.is_revoked(&admitted.peer.serial) {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if self.after_change == AfterChange::WindDown {
                guard.wind_down();
            }
        }
        let serial = &admitted.peer.serial;
        tracing::warn!(%serial, "connection closed: the client was revoked");
    }
}

impl Guest {
    /// The connection, who is at its other end, and what tells of changes since the handshake began.
    pub(crate) fn into_parts(self) -> (TlsStream<Conn>, Arc<Admitted>, watch::Receiver<u64>) {
        (self.stream, self.admitted, self.changes)
    }
}
