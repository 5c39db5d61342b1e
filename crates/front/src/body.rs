//! Bodies on their way through the front: passed on as they come, broken off when their change is
//! given up, and holding what must be held until they end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::gate::Pass;

/// What is read of a body that nobody wants, and for how long: a client that is still sending when
/// its connection is closed may lose the answer.
const UNWANTED_MAX: usize = 256 * 1024;
const UNWANTED_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the node no longer leads")]
    Cut,
    #[error(transparent)]
    Body(#[from] axum::Error),
}

/// What a request holds until its answer is passed on.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) _place: OwnedSemaphorePermit,
    /// Of a change. What is still sent to the controller holds it too: an answer may come before
    /// all of its request has gone.
    pub(crate) pass: Option<Arc<Pass>>,
}

/// A body that passes through.
#[derive(Debug)]
pub(crate) struct Passing {
    body: Body,
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Told whenever it moves.
    moved: Option<Arc<Notify>>,
    held: Option<Held>,
    pass: Option<Arc<Pass>>,
    /// Its length is not the one that the head is about.
    bodiless: bool,
}

impl Passing {
    /// Of a request.
    pub(crate) fn up(body: Body, pass: Option<&Arc<Pass>>, moved: &Arc<Notify>) -> Self {
        let cut = pass.map(|pass| Box::pin(pass.watch()));
        let (pass, moved) = (pass.cloned(), Some(Arc::clone(moved)));
        Self { body, cut, moved, held: None, pass, bodiless: false }
    }

    /// Of an answer.
    pub(crate) fn down(body: Body, held: Held, bodiless: bool) -> Self {
        let cut = held.pass.as_ref().map(|pass| Box::pin(pass.watch()));
        Self { body, cut, moved: None, held: Some(held), pass: None, bodiless }
    }

    fn end(&mut self) {
        self.cut = None;
        self.held = None;
        self.pass = None;
    }
}

impl http_body::Body for Passing {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let this = &mut *self;
        if let Some(cut) = &mut this.cut
            && cut.as_mut().poll(cx).is_ready()
        {
            this.body = Body::empty();
            this.end();
            return Poll::Ready(Some(Err(Broken::Cut)));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(moved) = &this.moved {
            moved.notify_one();
        }
        if frame.is_none() {
            this.end();
        }
        Poll::Ready(frame.map(|frame| Ok(frame?)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.bodiless {
            true => SizeHint::default(),
            false => self.body.size_hint(),
        }
    }
}

/// Reads what a client still sends although it has its answer, within bounds.
pub(crate) async fn let_go(mut body: Body) {
    let reading = async {
        let mut left = UNWANTED_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(length) else { return };
            left = rest;
        }
    };
    if tokio::time::timeout(UNWANTED_PATIENCE, reading).await.is_err() {
        tracing::debug!("a client took long to send what nobody wants");
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http_body::Body as _;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::gate::Gate;

    /// One piece, and then nothing comes.
    fn endless() -> Body {
        let piece = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"piece"))]);
        Body::from_stream(piece.chain(stream::pending()))
    }

    async fn held(gate: &Gate, places: &Arc<Semaphore>) -> Held {
        let place = Arc::clone(places).acquire_owned().await.unwrap();
        Held { _place: place, pass: gate.enter().map(Arc::new) }
    }

    #[tokio::test]
    async fn a_cut_breaks_a_body_off_that_waits() {
        let (gate, places) = (Gate::new(), Arc::new(Semaphore::new(1)));
        let mut down = Passing::down(endless(), held(&gate, &places).await, false);
        assert_eq!(down.frame().await.unwrap().unwrap().into_data().unwrap(), "piece");
        assert!(down.frame().now_or_never().is_none());
        gate.cut();
        assert!(matches!(down.frame().now_or_never(), Some(Some(Err(Broken::Cut)))));
        assert_eq!((gate.inside(), places.available_permits()), (0, 1));
        assert!(down.frame().await.is_none());

        let (gate, moved) = (Gate::new(), Arc::new(Notify::new()));
        let pass = gate.enter().map(Arc::new);
        let mut up = Passing::up(endless(), pass.as_ref(), &moved);
        gate.cut();
        let next = up.frame().now_or_never();
        assert!(matches!(next, Some(Some(Err(Broken::Cut)))), "before more is passed on");
    }

    #[tokio::test]
    async fn what_is_held_is_held_to_the_end_and_no_longer() {
        let (gate, places) = (Gate::new(), Arc::new(Semaphore::new(2)));
        let mut whole = Passing::down(Body::from("all"), held(&gate, &places).await, false);
        assert_eq!(whole.size_hint().exact(), Some(3));
        assert!(whole.frame().await.unwrap().is_ok());
        assert_eq!((gate.inside(), places.available_permits()), (1, 1));
        assert!(whole.frame().await.is_none());
        assert_eq!((gate.inside(), places.available_permits()), (0, 2));

        let dropped = Passing::down(endless(), held(&gate, &places).await, false);
        drop(dropped);
        assert_eq!((gate.inside(), places.available_permits()), (0, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_wants_is_read_within_bounds() {
        let_go(Body::from("all")).await;
        let_go(endless()).await;
        let zeros = || Ok::<_, std::io::Error>(Bytes::from_static(&[0; 1024]));
        let_go(Body::from_stream(stream::repeat_with(zeros))).await;
    }
}
