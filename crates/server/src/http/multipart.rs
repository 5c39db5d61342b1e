//! Bodies of several parts: a small JSON text, then bytes of any size. Read with a library,
//! written by hand: the order of the headers, their lengths and the moment at which a part ends
//! are part of the protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use http::{HeaderMap, StatusCode, header};
use lockd_core::queue::MessageId;
use lockd_wire::ErrorCode;
use multer::{Field, Multipart};
use parking_lot::Mutex;

use super::body::Body;
use super::error::ApiError;
use super::request::{COMMAND_BYTES_MAX, bad, pieces};
use crate::app::document::Pieces;
use crate::app::{App, Refused};

/// The most that a body may have besides its payload.
const FRAME_BYTES_MAX: usize = COMMAND_BYTES_MAX + 64 * 1024;

/// The name of the part that says what a message is.
const META: &str = "meta";

/// The parts of a message on its way in.
pub(super) struct Parts {
    parts: Multipart<'static>,
    payload: Option<Field<'static>>,
    frame: Arc<Frame>,
    feed: Feed,
    /// The JSON text; empty when there was none.
    pub(super) meta: Bytes,
}

impl Parts {
    /// Reads up to the payload.
    pub(super) async fn read(app: &App, headers: &HeaderMap, body: Body) -> Result<Self, ApiError> {
        let boundary = boundary(headers)?;
        let frame = Arc::new(Frame::default());
        let mut feed = Feed::new(frame.around(pieces(app, body)));
        let mut parts = Multipart::new(feed.stream(), boundary);
        let mut meta = None;
        loop {
            match feed.next_part(&mut parts).await.map_err(broken)? {
                Some(mut part) if part.name() == Some(META) && meta.is_none() => {
                    meta = Some(small(&mut feed, &mut part).await?);
                }
                payload => {
                    frame.enter_payload();
                    let meta = meta.unwrap_or_default();
                    return Ok(Self { parts, payload, frame, feed, meta });
                }
            }
        }
    }

    /// The payload, which is whole only if the body comes to its proper end.
    pub(super) fn into_payload(self) -> Pieces {
        Box::pin(stream::try_unfold(self, |mut parts| async move {
            if let Some(part) = &mut parts.payload {
                if let Some(piece) = parts.feed.chunk(part).await.map_err(broken_off)? {
                    return Ok(Some((piece, parts)));
                }
                parts.payload = None;
            }
            parts.frame.leave_payload();
            while let Some(extra) =
                parts.feed.next_part(&mut parts.parts).await.map_err(broken_off)?
            {
                drop(extra);
            }
            Ok(None)
        }))
    }
}

/// Gives the library one block after the other, and asks it again only after each. It looks through
/// all that it keeps whenever it is asked: were it asked at each wake-up of the task, the work
/// would grow with the number of pieces times their bytes.
struct Feed {
    pieces: Pieces,
    next: Arc<Mutex<Supply>>,
}

enum Supply {
    /// Nothing before the library has said that it lacks something.
    Later,
    Piece(Result<Bytes, Refused>),
    Ended,
}

impl Feed {
    fn new(pieces: Pieces) -> Self {
        Self { pieces, next: Arc::new(Mutex::new(Supply::Later)) }
    }

    /// What the library reads.
    fn stream(&self) -> impl Stream<Item = Result<Bytes, Refused>> + Send + use<> {
        let next = Arc::clone(&self.next);
        stream::poll_fn(move |_| {
            let mut next = next.lock();
            match std::mem::replace(&mut *next, Supply::Later) {
                Supply::Later => Poll::Pending,
                Supply::Piece(piece) => Poll::Ready(Some(piece)),
                Supply::Ended => {
                    *next = Supply::Ended;
                    Poll::Ready(None)
                }
            }
        })
    }

    async fn more(&mut self) {
        let next = self.pieces.next().await.map_or(Supply::Ended, Supply::Piece);
        *self.next.lock() = next;
    }

    async fn next_part(
        &mut self,
        parts: &mut Multipart<'static>,
    ) -> multer::Result<Option<Field<'static>>> {
        loop {
            match parts.next_field().now_or_never() {
                Some(next) => return next,
                None => self.more().await,
            }
        }
    }

    async fn chunk(&mut self, part: &mut Field<'static>) -> multer::Result<Option<Bytes>> {
        loop {
            match part.chunk().now_or_never() {
                Some(next) => return next,
                None => self.more().await,
            }
        }
    }
}

/// Counts what comes in before and after the payload. The library keeps that in memory until it
/// has found where it ends.
#[derive(Debug, Default)]
struct Frame {
    in_payload: AtomicBool,
    bytes: AtomicUsize,
}

impl Frame {
    fn enter_payload(&self) {
        self.in_payload.store(true, Ordering::Relaxed);
    }

    fn leave_payload(&self) {
        self.in_payload.store(false, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    fn around(self: &Arc<Self>, pieces: Pieces) -> Pieces {
        let frame = Arc::clone(self);
        Box::pin(pieces.map(move |piece| {
            let piece = piece?;
            if !frame.in_payload.load(Ordering::Relaxed) {
                let before = frame.bytes.fetch_add(piece.len(), Ordering::Relaxed);
                // The piece that brings the beginning of the payload may be as large as it likes.
                if before > FRAME_BYTES_MAX {
                    let why = "there is too much before the payload, or after it";
                    return Err(Refused::BodyBroken(why.to_owned()));
                }
            }
            Ok(piece)
        }))
    }
}

async fn small(feed: &mut Feed, part: &mut Field<'static>) -> Result<Bytes, ApiError> {
    let mut text = Vec::new();
    while let Some(piece) = feed.chunk(part).await.map_err(broken)? {
        text.extend_from_slice(&piece);
        if text.len() > COMMAND_BYTES_MAX {
            let detail = format!("the part meta may have at most {COMMAND_BYTES_MAX} bytes");
            let status = StatusCode::PAYLOAD_TOO_LARGE;
            return Err(ApiError::new(status, ErrorCode::BodyTooLarge, detail));
        }
    }
    Ok(text.into())
}

fn broken(error: multer::Error) -> ApiError {
    let refused = broken_off(error);
    if let Refused::BodyBroken(why) = &refused {
        let detail = format!("the parts of the body cannot be told apart: {why}");
        return bad(ErrorCode::MultipartError, detail);
    }
    refused.into()
}

/// What ended the body, if it did not end the parts.
fn broken_off(error: multer::Error) -> Refused {
    let multer::Error::StreamReadFailed(error) = error else {
        return Refused::BodyBroken(error.to_string());
    };
    match error.downcast::<Refused>() {
        Ok(refused) => *refused,
        Err(error) => Refused::BodyBroken(error.to_string()),
    }
}

fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let refused = || {
        let detail =
            "send the message as multipart/related; boundary=..., with the parts meta and payload";
        bad(ErrorCode::InvalidContentType, detail)
    };
    let text = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let parsed: mime::Mime = text.and_then(|text| text.parse().ok()).ok_or_else(refused)?;
    let boundary = parsed.get_param(mime::BOUNDARY).map(|boundary| boundary.as_str().to_owned());
    boundary
        .filter(|boundary| parsed.type_() == mime::MULTIPART && (1..=70).contains(&boundary.len()))
        .ok_or_else(refused)
}

/// The frames around the parts of an answer.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    boundary: String,
    begun: bool,
}

/// What an answer calls its parts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Naming {
    /// One message, or an endless stream of them.
    Single,
    /// One of several, with its place.
    Numbered(usize),
}

impl Frames {
    pub(super) fn new(unique: &str) -> Self {
        Self { boundary: format!("lockd-{unique}"), begun: false }
    }

    pub(super) fn content_type(&self) -> String {
        format!("multipart/related; boundary={}", self.boundary)
    }

    /// Everything before the bytes of a payload: its delimiter, the JSON text about it, and the
    /// headers of its own part.
    pub(super) fn open(
        &mut self,
        naming: Naming,
        meta: &[u8],
        payload_type: &str,
        payload_bytes: u64,
    ) -> Vec<u8> {
        let (meta_file, payload_file) = match naming {
            Naming::Single => (String::new(), String::new()),
            Naming::Numbered(number) => (
                format!("; filename=\"meta-{number}.json\""),
                format!("; filename=\"payload-{number}\""),
            ),
        };
        let first = if self.begun { "\r\n" } else { "" };
        self.begun = true;
        let boundary = &self.boundary;
        let mut text = format!(
            "{first}--{boundary}\r\n\
             Content-Disposition: form-data; name=\"meta\"{meta_file}\r\n\
             Content-Type: application/json\r\n\r\n"
        )
        .into_bytes();
        text.extend_from_slice(meta);
        text.extend_from_slice(
            format!(
                "\r\n--{boundary}\r\n\
                 Content-Disposition: form-data; name=\"payload\"{payload_file}\r\n\
                 Content-Length: {payload_bytes}\r\n\
                 Content-Type: {payload_type}\r\n\r\n"
            )
            .as_bytes(),
        );
        text
    }

    /// After the last payload.
    pub(super) fn close(&self) -> Bytes {
        let first = if self.begun { "\r\n" } else { "" };
        Bytes::from(format!("{first}--{}--\r\n", self.boundary))
    }
}

/// The id in a query or a body.
pub(super) fn message_id(text: &str) -> Result<MessageId, ApiError> {
    MessageId::parse(text.trim())
        .map_err(|error| bad(ErrorCode::InvalidMessageId, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{Frames, Naming};

    #[test]
    fn one_message_is_framed_byte_for_byte() {
        let mut frames = Frames::new("x");
        assert_eq!(frames.content_type(), "multipart/related; boundary=lockd-x");
        let mut bytes = frames.open(Naming::Single, b"{\"message\":{}}\n", "text/plain", 2);
        bytes.extend_from_slice(b"hi");
        bytes.extend_from_slice(&frames.close());
        let expected = "--lockd-x\r\n\
            Content-Disposition: form-data; name=\"meta\"\r\n\
            Content-Type: application/json\r\n\
            \r\n\
            {\"message\":{}}\n\
            \r\n--lockd-x\r\n\
            Content-Disposition: form-data; name=\"payload\"\r\n\
            Content-Length: 2\r\n\
            Content-Type: text/plain\r\n\
            \r\n\
            hi\
            \r\n--lockd-x--\r\n";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn several_messages_are_numbered_and_the_delimiter_comes_with_the_next() {
        let mut frames = Frames::new("x");
        let first = frames.open(Naming::Numbered(0), b"{}\n", "a/b", 0);
        assert!(first.starts_with(b"--lockd-x\r\n"));
        let second =
            String::from_utf8(frames.open(Naming::Numbered(1), b"{}\n", "a/b", 0)).unwrap();
        assert!(second.starts_with("\r\n--lockd-x\r\n"), "{second:?}");
        assert!(second.contains("form-data; name=\"meta\"; filename=\"meta-1.json\"\r\n"));
        assert!(second.contains("form-data; name=\"payload\"; filename=\"payload-1\"\r\n"));
    }

    #[test]
    fn nothing_at_all_is_closed_at_once() {
        assert_eq!(Frames::new("x").close(), "--lockd-x--\r\n");
    }
}
