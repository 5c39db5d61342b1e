//! Bodies of requests and answers: small ones as they are, without a box around each; streams and
//! bodies of other programs in a box.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;

use super::delivery::GrantBody;

/// How much of an unwanted body is taken in, and for how long.
const DRAIN_BYTES_MAX: usize = 256 * 1024 * 1024;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);

/// Why a body broke off.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a request or an answer.
#[derive(Debug)]
pub struct Body(Kind);

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
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _keep = &guard;
            frame
        }))
    })
}

#[derive(Debug)]
enum Kind {
    /// Not sent yet; empty: nothing more comes.
    Whole(Bytes),
    Incoming(Incoming),
    Grant(GrantBody),
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
}

impl Body {
    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Kind::Whole(Bytes::new()))
    }

    /// The body of another program.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        Self(Kind::Boxed(body.map_err(Into::into).boxed_unsync()))
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

impl From<Bytes> for Body {
    fn from(whole: Bytes) -> Self {
        Self(Kind::Whole(whole))
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
        Self(Kind::Incoming(incoming))
    }
}

impl From<GrantBody> for Body {
    fn from(grant: GrantBody) -> Self {
        Self(Kind::Grant(grant))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Kind::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Incoming(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Grant(body) => Poll::Ready(body.take().map(|text| Ok(Frame::data(text)))),
            Kind::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_empty(),
            Kind::Incoming(body) => body.is_end_stream(),
            Kind::Grant(body) => body.is_taken(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Incoming(body) => body.size_hint(),
            Kind::Grant(body) => SizeHint::with_exact(body.bytes()),
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}
