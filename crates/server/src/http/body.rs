//! Bodies of requests and answers: small ones as they are, without a box around each; streams and
//! bodies of other programs in a box. A client in this process reads bytes; for one at the other
//! end of a socket, each piece also carries the grants that are whole with it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;

use super::delivery::Piece;

/// How much of an unwanted body is taken in, and for how long.
const DRAIN_BYTES_MAX: usize = 256 * 1024 * 1024;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);

/// Why a body broke off.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request or an answer.
pub struct Body {
    kind: Kind,
    /// Dropped with the body.
    guards: Vec<Box<dyn Send>>,
}

/// An answer of the API.
pub(crate) type Response = http::Response<Body>;

/// What certainly fits into the buffers of a socket.
const SHORT_BODY_BYTES: u64 = 16 * 1024;

/// A body that streams for long is part of its request, and keeps `guard`; a short one is as good
/// as sent.
pub(crate) fn keep_until_sent<G: Send + 'static>(answer: Response, guard: G) -> Response {
    let short = answer.body().size_hint().exact().is_some_and(|bytes| bytes <= SHORT_BODY_BYTES);
    if short {
        return answer;
    }
    answer.map(|mut body| {
        body.guards.push(Box::new(guard));
        body
    })
}

#[derive(Debug)]
enum Kind {
    /// Not sent yet; empty: nothing more comes.
    Whole(Bytes),
    Incoming(Incoming),
    Grant(Option<Piece>),
    /// Some of the pieces grant something.
    Pieces(UnsyncBoxBody<Piece, BodyError>),
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
}

impl Body {
    const fn of(kind: Kind) -> Self {
        Self { kind, guards: Vec::new() }
    }

    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self::of(Kind::Whole(Bytes::new()))
    }

    /// The body of another program.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        Self::of(Kind::Boxed(body.map_err(Into::into).boxed_unsync()))
    }

    /// Pieces one after the other.
    pub fn from_stream<S, P, E>(pieces: S) -> Self
    where
        S: Stream<Item = Result<P, E>> + Send + 'static,
        P: Into<Bytes>,
        E: Into<BodyError> + 'static,
    {
        Self::new(StreamBody::new(pieces.map(|piece| piece.map(|piece| Frame::data(piece.into())))))
    }

    /// Pieces one after the other, with what they grant.
    pub(crate) fn from_pieces<S, E>(pieces: S) -> Self
    where
        S: Stream<Item = Result<Piece, E>> + Send + 'static,
        E: Into<BodyError> + 'static,
    {
        let body = StreamBody::new(pieces.map(|piece| piece.map(Frame::data)));
        Self::of(Kind::Pieces(body.map_err(Into::into).boxed_unsync()))
    }

    /// Takes in a body that nobody wants, within bounds. A sender that is still busy sending, or
    /// whose body is thrown away over HTTP/2, may never look at the answer.
    pub(crate) async fn drain(mut self) {
        if self.is_end_stream() {
            return;
        }
        let rest = async {
            let mut bytes = 0;
            while let Some(Ok(piece)) = self.piece().await {
                bytes += piece.len();
                if bytes > DRAIN_BYTES_MAX {
                    break;
                }
            }
        };
        let _in_time = tokio::time::timeout(DRAIN_TIME_MAX, rest).await.is_ok();
    }

    /// The next piece of data; whatever else may be in a body is passed over.
    pub(crate) async fn piece(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            match self.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(Ok(data)),
                    Err(_) => continue,
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Body").field(&self.kind).finish()
    }
}

impl From<Bytes> for Body {
    fn from(whole: Bytes) -> Self {
        Self::of(Kind::Whole(whole))
    }
}

impl From<Vec<u8>> for Body {
    fn from(whole: Vec<u8>) -> Self {
        Self::from(Bytes::from(whole))
    }
}

impl From<String> for Body {
    fn from(whole: String) -> Self {
        Self::from(Bytes::from(whole))
    }
}

impl From<Incoming> for Body {
    fn from(incoming: Incoming) -> Self {
        Self::of(Kind::Incoming(incoming))
    }
}

impl From<Piece> for Body {
    fn from(piece: Piece) -> Self {
        Self::of(Kind::Grant(Some(piece)))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.kind {
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Grant(piece) => {
                let bytes = piece.take().map(Piece::into_delivered);
                Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
            }
            Kind::Pieces(body) => {
                Pin::new(body).poll_frame(cx).map_ok(|frame| frame.map_data(Piece::into_delivered))
            }
            Kind::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(bytes) => bytes.is_empty(),
            Kind::Incoming(body) => body.is_end_stream(),
            Kind::Grant(piece) => piece.is_none(),
            Kind::Pieces(body) => body.is_end_stream(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Incoming(body) => body.size_hint(),
            Kind::Grant(piece) => SizeHint::with_exact(piece.as_ref().map_or(0, Piece::len)),
            Kind::Pieces(body) => body.size_hint(),
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}

/// A body on its way to a socket.
#[derive(Debug)]
pub(crate) struct Outgoing {
    body: Body,
}

impl Outgoing {
    pub(crate) const fn new(body: Body) -> Self {
        Self { body }
    }
}

impl HttpBody for Outgoing {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        match &mut self.body.kind {
            Kind::Grant(piece) => Poll::Ready(piece.take().map(|piece| Ok(Frame::data(piece)))),
            Kind::Pieces(body) => Pin::new(body).poll_frame(cx),
            Kind::Whole(_) | Kind::Incoming(_) | Kind::Boxed(_) => {
                Pin::new(&mut self.body).poll_frame(cx).map_ok(|frame| frame.map_data(Piece::plain))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
