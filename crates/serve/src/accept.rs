//! Accepts the connections of a port: each gets a slot and a task of its own, and nothing that a
//! client sends or does not send holds up the next one.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection::{Caller, ConnectionEvent, ConnectionLimits, Serve, Speaks, serve};
use crate::door::MutualTls;
use crate::listener::{Conn, Listener};
use crate::refusal;
use crate::slots::{SlotGuard, Slots};

/// After an error accepting waits this long, and as long as a connection takes that is closed to
/// give its file to another.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
const FILE_FREED: Duration = Duration::from_millis(1);

/// What the listeners of a port share.
pub struct HttpPort<A> {
    app: A,
    limits: ConnectionLimits,
    slots: Arc<Slots>,
    /// For connections over the network. Who may write to a socket file is on this machine and
    /// allowed to.
    tls: Option<MutualTls>,
    refusals: Arc<Semaphore>,
}

impl<A: Serve> HttpPort<A> {
    #[must_use]
    pub fn new(
        app: A,
        limits: ConnectionLimits,
        slots: Arc<Slots>,
        tls: Option<MutualTls>,
    ) -> Arc<Self> {
        let refusals = Arc::new(Semaphore::new(refusal::MAX));
        Arc::new(Self { app, limits, slots, tls, refusals })
    }
}

/// Accepts until `stop`, and has each connection served in a task of `tasks`.
pub async fn accept<A: Serve>(
    listener: Listener,
    port: Arc<HttpPort<A>>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let mut stopping = pin!(stop.cancelled());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopping => break,
        };
        match accepted {
            Ok((conn, address)) => Arc::clone(&port).take(conn, address, &tasks),
            Err(error) => tokio::time::sleep(port.recover(&error)).await,
        }
    }
    port.slots.close();
}

fn is_out_of_files(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    let codes = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    codes.iter().any(|errno| code == Some(errno.raw_os_error()))
}

impl<A: Serve> HttpPort<A> {
    /// How long to wait after a failure to accept. Without files for another connection, a silent
    /// one gives its own.
    fn recover(&self, error: &io::Error) -> Duration {
        if is_out_of_files(error)
            && let Some(stage) = self.slots.make_room()
        {
            tracing::debug!(%error, "a silent connection was closed for its file");
            self.app.saw(ConnectionEvent::Evicted(stage));
            return FILE_FREED;
        }
        tracing::warn!(%error, "a connection could not be accepted");
        ACCEPT_RETRY
    }

    fn take(self: Arc<Self>, conn: Conn, address: Option<SocketAddr>, tasks: &TaskTracker) {
        let tls = self.tls.as_ref().filter(|_| address.is_some()).cloned();
        let ip = address.map(|address| address.ip());
        match self.slots.join(ip, tls.is_some()) {
            Ok((guard, lost)) => {
                if let Some(stage) = lost {
                    self.app.saw(ConnectionEvent::Evicted(stage));
                }
                match tls {
                    Some(tls) => tasks
                        .spawn(async move { self.serve_tls(&tls, conn, address, &guard).await }),
                    None => {
                        tasks.spawn(async move { self.serve_plain(conn, address, &guard).await })
                    }
                };
            }
            Err(_full) => {
                self.app.saw(ConnectionEvent::Refused);
                // Above that there is no time for words either.
                if let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() {
                    tasks.spawn(refuse(conn, tls, permit));
                }
            }
        }
    }

    async fn serve_plain(&self, conn: Conn, address: Option<SocketAddr>, guard: &SlotGuard) {
        let caller = Caller { address, admitted: None };
        let speaks = if self.limits.plain_h2 { Speaks::Either } else { Speaks::Http1 };
        serve(&self.app, conn, caller, speaks, (guard, &self.limits)).await;
    }

    /// Serves a client that completes its handshake, until it is revoked.
    async fn serve_tls(
        &self,
        tls: &MutualTls,
        conn: Conn,
        address: Option<SocketAddr>,
        guard: &SlotGuard,
    ) {
        let shaken = tokio::select! {
            shaken = tls.handshake(conn) => shaken,
            // Its slot is lost, or the port closes: a client that is not in yet does not delay it.
            () = guard.nudged() => {
                tracing::debug!("an unfinished handshake made room");
                return;
            }
        };
        let guest = match shaken {
            Ok(guest) => guest,
            Err(error) => {
                self.app.saw(ConnectionEvent::HandshakeFailed);
                tracing::debug!(%error, "a handshake failed");
                return;
            }
        };
        guard.handshaken();
        let speaks = if guest.speaks_h2 { Speaks::Http2 } else { Speaks::Http1 };
        let (stream, admitted, changes) = guest.into_parts();
        let caller = Caller { address, admitted: Some(Arc::clone(&admitted)) };
        tokio::select! {
            () = serve(&self.app, stream, caller, speaks, (guard, &self.limits)) => {}
            () = tls.revoked(&admitted, changes, guard) => {}
        }
    }
}

/// Says why, to a client that takes it in time.
async fn refuse(conn: Conn, tls: Option<MutualTls>, _permit: OwnedSemaphorePermit) {
    let refusing = async {
        match tls {
            None => refusal::refuse(conn, false).await,
            Some(tls) => {
                if let Ok(guest) = tls.handshake(conn).await {
                    let speaks_h2 = guest.speaks_h2;
                    refusal::refuse(guest.into_parts().0, speaks_h2).await;
                }
            }
        }
    };
    let said = tokio::time::timeout(refusal::TIMEOUT, refusing).await.is_ok();
    tracing::debug!(said, "no slot for a connection");
}
