//! Messages out of the body of an answer: a description, then a payload, and so on. All state is
//! kept here, so a future that is dropped in the middle loses nothing.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use lockd_wire::queue::{DeliveredMessage, Delivery};

use crate::error::{Cause, Failed, Failure};
use crate::multipart::{Malformed, Parser, PartHead, Piece};
use crate::reply::Reply;
use crate::transport::chunk;

/// Bytes of the description of a message.
const META_BYTES_MAX: usize = 1024 * 1024;
/// Pieces behind the last message that are read for the sake of the connection.
const REST_PIECES_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct Deliveries {
    body: Incoming,
    parser: Parser,
    silence: Option<Duration>,
    place: Place,
    /// Of the message whose payload is being kept.
    kept: Option<Kept>,
}

#[derive(Debug)]
enum Place {
    Outside,
    Meta(BytesMut),
    /// The description is complete and the payload has not begun.
    Described(Box<DeliveredMessage>),
    Payload,
}

#[derive(Debug)]
struct Kept {
    message: Box<DeliveredMessage>,
    payload: BytesMut,
    /// It has more bytes than may be kept.
    too_large: bool,
}

/// A message, and its payload if that is small enough.
pub(super) struct Whole {
    pub(super) message: Box<DeliveredMessage>,
    pub(super) payload: Option<Bytes>,
}

impl Deliveries {
    /// Reads an answer, which may fall silent for so long.
    pub(super) fn new(reply: Reply, silence: Option<Duration>) -> Result<Self, Failed> {
        let content_type = reply.head.text(CONTENT_TYPE.as_str()).unwrap_or_default();
        let parser = Parser::new(&content_type).map_err(garbled)?;
        let (place, kept) = (Place::Outside, None);
        Ok(Self { body: reply.into_body(), parser, silence, place, kept })
    }

    /// The next message, with its payload if that has at most so many bytes; `None` at the end.
    pub(super) async fn next_whole(&mut self, bytes_max: usize) -> Result<Option<Whole>, Failed> {
        if self.kept.is_none() {
            let Some(message) = self.next().await? else { return Ok(None) };
            let too_large = message.payload_bytes > bytes_max as u64;
            self.kept = Some(Kept { message, payload: BytesMut::new(), too_large });
        }
        while let Some(bytes) = self.chunk().await? {
            let Some(kept) = &mut self.kept else { break };
            kept.too_large |= kept.payload.len().saturating_add(bytes.len()) > bytes_max;
            if kept.too_large {
                kept.payload = BytesMut::new();
            } else {
                kept.payload.extend_from_slice(&bytes);
            }
        }
        Ok(self.kept.take().map(Kept::whole))
    }

    /// The message whose payload broke off: it is with this consumer all the same.
    pub(super) fn broken_off(&mut self) -> Option<Whole> {
        self.kept.take().map(|kept| Whole { message: kept.message, payload: None })
    }

    /// The next message, up to the beginning of its payload; `None` at the end. What is left of
    /// the payload before is passed over.
    pub(super) async fn next(&mut self) -> Result<Option<Box<DeliveredMessage>>, Failed> {
        loop {
            let piece = self.piece().await?;
            match (&mut self.place, piece) {
                (Place::Outside, Piece::Begin(head)) => {
                    expect(&head, "meta")?;
                    self.place = Place::Meta(BytesMut::new());
                }
                (Place::Outside, Piece::Close) => return Ok(None),
                (Place::Meta(text), Piece::Data(bytes)) => {
                    if text.len().saturating_add(bytes.len()) > META_BYTES_MAX {
                        return Err(Failure::garbled("a message has too long a description"));
                    }
                    text.extend_from_slice(&bytes);
                }
                (Place::Meta(text), Piece::End) => {
                    let delivery: Delivery = serde_json::from_slice(text).map_err(|error| {
                        Failure::garbled("a message is not readable").because(error)
                    })?;
                    self.place = Place::Described(Box::new(delivery.message));
                }
                (Place::Described(message), Piece::Begin(head)) => {
                    expect(&head, "payload")?;
                    if head.length.is_some_and(|length| length != message.payload_bytes) {
                        return Err(Failure::garbled(
                            "a payload has another length than it should",
                        ));
                    }
                    let message = std::mem::take(message);
                    self.place = Place::Payload;
                    return Ok(Some(message));
                }
                // An empty payload at the end may be left out.
                (Place::Described(message), Piece::Close) if message.payload_bytes == 0 => {
                    let message = std::mem::take(message);
                    self.place = Place::Outside;
                    return Ok(Some(message));
                }
                (Place::Payload, Piece::Data(_)) => {}
                (Place::Payload, Piece::End) => self.place = Place::Outside,
                (
                    Place::Outside | Place::Meta(_) | Place::Described(_) | Place::Payload,
                    Piece::Begin(_) | Piece::Data(_) | Piece::End | Piece::Close,
                ) => return Err(Failure::garbled("its parts are not in order")),
            }
        }
    }

    /// The next piece of the payload; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failed> {
        if !matches!(self.place, Place::Payload) {
            return Ok(None);
        }
        match self.piece().await? {
            Piece::Data(bytes) => Ok(Some(bytes)),
            Piece::End => {
                self.place = Place::Outside;
                Ok(None)
            }
            Piece::Begin(_) | Piece::Close => Err(Failure::garbled("its parts are not in order")),
        }
    }

    /// Reads what little follows the last message, so that the connection can be used again.
    pub(super) async fn finish(&mut self) {
        for _ in 0..REST_PIECES_MAX {
            if !matches!(chunk(&mut self.body, self.silence).await, Ok(Some(_))) {
                return;
            }
        }
    }

    async fn piece(&mut self) -> Result<Piece, Failed> {
        loop {
            if let Some(piece) = self.parser.next_piece().map_err(garbled)? {
                return Ok(piece);
            }
            match chunk(&mut self.body, self.silence).await? {
                Some(bytes) => self.parser.push(&bytes),
                None if self.parser.may_end() => return Ok(Piece::Close),
                None => return Err(Failure::new(Cause::Broken)),
            }
        }
    }
}

impl Kept {
    fn whole(self) -> Whole {
        let payload = (!self.too_large).then(|| self.payload.freeze());
        Whole { message: self.message, payload }
    }
}

fn expect(head: &PartHead, name: &str) -> Result<(), Failed> {
    match head.name.as_deref() {
        None => Ok(()),
        Some(known) if known.is_empty() || known == name => Ok(()),
        Some(_) => Err(Failure::garbled("its parts are not in order")),
    }
}

fn garbled(malformed: Malformed) -> Failed {
    Failure::garbled(malformed.0)
}
