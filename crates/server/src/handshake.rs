//! TLS handshakes: each in the task of its connection, never in the accept loop, and with a bound
//! on how many may be unfinished. Where there are too many, the oldest makes room for the newest:
//! connections that open and say nothing cost those who speak nothing, and established ones are
//! never touched.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lockd_pki::{Admitted, LiveCredentials};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::farewell;
use crate::identity::Identity;
use crate::listen::Conn;
use crate::metrics::Metrics;

/// Handshakes that may be under way at once.
const UNFINISHED_MAX: usize = 1_024;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes in connections over TLS.
#[derive(Clone)]
pub(crate) struct Door {
    acceptor: TlsAcceptor,
    live: Arc<LiveCredentials>,
    changes: watch::Receiver<u64>,
    unfinished: Arc<Unfinished>,
    metrics: Arc<Metrics>,
}

/// A client that has come in.
pub(crate) struct Guest {
    pub(crate) stream: TlsStream<Conn>,
    pub(crate) who: Arc<Admitted>,
    pub(crate) speaks_h2: bool,
}

impl Door {
    pub(crate) fn new(
        identity: &Identity,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, lockd_pki::TlsError> {
        let on_refusal = crate::identity::log_refusal(metrics);
        let config = lockd_pki::server_config(&identity.live, on_refusal)?;
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            live: Arc::clone(&identity.live),
            changes: identity.changes(),
            unfinished: Arc::default(),
            metrics: Arc::clone(metrics),
        })
    }

    /// The handshake; `None` when it did not come about.
    pub(crate) async fn shake(&self, conn: Conn) -> Option<Guest> {
        let place = self.unfinished.join();
        let stream = tokio::select! {
            shaken = tokio::time::timeout(PATIENCE, self.accept(conn)) => {
                shaken.unwrap_or_else(|_| {
                    self.failed(&io::ErrorKind::TimedOut.into());
                    None
                })?
            }
            () = place.sent_away.notified() => {
                self.metrics.tls.handshakes_dropped.inc();
                tracing::debug!("an unfinished handshake made room for another");
                return None;
            }
        };
        let (_, session) = stream.get_ref();
        let speaks_h2 = session.alpn_protocol() == Some(b"h2");
        let chain = session.peer_certificates().unwrap_or_default();
        match self.live.current().admit(chain, Timestamp::now()) {
            Ok(admitted) => Some(Guest { who: Arc::new(admitted), speaks_h2, stream }),
            // Replaced while the handshake went on.
            Err(refused) => {
                tracing::warn!(reason = %refused, "a client was not let in");
                None
            }
        }
    }

    async fn accept(&self, conn: Conn) -> Option<TlsStream<Conn>> {
        match self.acceptor.accept(conn).into_fallible().await {
            Ok(stream) => Some(stream),
            Err((error, conn)) => {
                self.failed(&error);
                // The alert says what is wrong with the client's certificate.
                farewell::part(conn).await;
                None
            }
        }
    }

    fn failed(&self, error: &io::Error) {
        self.metrics.tls.handshakes_failed.inc();
        tracing::debug!(%error, "a handshake failed");
    }

    /// Ready when the client may no longer be here.
    pub(crate) async fn revoked(&self, who: &Admitted) {
        let mut changes = self.changes.clone();
        while !self.live.is_revoked(&who.peer.serial) {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        tracing::warn!(serial = %who.peer.serial, "connection closed: the client was revoked");
    }
}

/// Handshakes under way, the oldest first.
#[derive(Debug, Default)]
struct Unfinished {
    places: Mutex<VecDeque<Arc<Place>>>,
}

#[derive(Debug, Default)]
struct Place {
    sent_away: Notify,
}

/// Leaves its place when it goes.
struct Shaking {
    all: Arc<Unfinished>,
    place: Arc<Place>,
}

impl std::ops::Deref for Shaking {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Unfinished {
    fn join(self: &Arc<Self>) -> Shaking {
        let place = Arc::new(Place::default());
        let mut places = self.places.lock();
        if places.len() >= UNFINISHED_MAX
            && let Some(oldest) = places.pop_front()
        {
            oldest.sent_away.notify_one();
        }
        places.push_back(Arc::clone(&place));
        Shaking { all: Arc::clone(self), place }
    }
}

impl Drop for Shaking {
    fn drop(&mut self) {
        let mut places = self.all.places.lock();
        if let Some(at) = places.iter().position(|place| Arc::ptr_eq(place, &self.place)) {
            places.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{UNFINISHED_MAX, Unfinished};

    #[tokio::test]
    async fn the_oldest_makes_room_for_the_newest() {
        let unfinished = Arc::new(Unfinished::default());
        let mut shaking: Vec<_> = (0..UNFINISHED_MAX).map(|_| unfinished.join()).collect();
        let newest = unfinished.join();
        shaking.remove(0).sent_away.notified().await;
        assert_eq!(unfinished.places.lock().len(), UNFINISHED_MAX);
        drop(newest);
        shaking.clear();
        assert!(unfinished.places.lock().is_empty());
    }
}
