//! Programs behind the front: one that speaks HTTP as usual, and one that says what it is told to.

use std::net::SocketAddr;

use axum::Router;
use lockd_serve::{Bound, Door, Serving};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::stand::{Line, soon};

pub(crate) struct Program {
    pub(crate) address: SocketAddr,
    serving: Serving,
}

impl Program {
    pub(crate) async fn start(router: Router) -> Self {
        Self::at("127.0.0.1:0", router).await
    }

    pub(crate) async fn at(address: &str, router: Router) -> Self {
        let bound = Bound::bind(address).await.unwrap();
        let address = bound.address;
        Self { address, serving: bound.serve(&Door::Plain, router).unwrap() }
    }

    /// Ends, with its connections.
    pub(crate) async fn stop(self) {
        self.serving.stop().await;
    }
}

/// Takes connections in and leaves the talking to the test.
pub(crate) struct Script {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
}

impl Script {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { address: listener.local_addr().unwrap(), listener }
    }

    pub(crate) async fn accept(&self) -> Line {
        Line::on(soon(self.listener.accept()).await.unwrap().0)
    }

    /// Every connection is read to the end of a head, answered with this and closed; the heads
    /// can be received.
    pub(crate) fn always(self, answer: &'static str) -> (SocketAddr, mpsc::Receiver<String>) {
        let (heads, received) = mpsc::channel(64);
        let address = self.address;
        let tasks = TaskTracker::new();
        tasks.clone().spawn(async move {
            while let Ok((stream, _)) = self.listener.accept().await {
                let heads = heads.clone();
                tasks.spawn(async move {
                    let mut line = Line::on(stream);
                    let head = line.head().await;
                    line.write(answer).await;
                    heads.send(head).await.ok();
                });
            }
        });
        (address, received)
    }
}

/// Where nobody listens.
pub(crate) async fn nowhere() -> SocketAddr {
    Script::start().await.address
}
