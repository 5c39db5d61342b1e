//! `multipart/related`, as messages travel in it: a part that describes, then a part with the
//! payload. Only the framing: what a part means is not known here.
//!
//! A part that tells its length ends there, without a look at what follows. The server sends the
//! next delimiter only with the next message, so waiting for it would be waiting for that.

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderValue;

use crate::call::new_request_id;
use crate::error::{Failed, Failure};

/// Bytes of all headers of one part, and of what may stand before the first.
const HEADERS_BYTES_MAX: usize = 16 * 1024;
/// RFC 2046 allows no longer one.
const BOUNDARY_BYTES_MAX: usize = 70;

/// What goes around a payload that is sent.
pub(crate) struct Envelope {
    pub(crate) content_type: HeaderValue,
    pub(crate) head: Bytes,
    pub(crate) tail: Bytes,
}

impl Envelope {
    /// For a payload of that type behind a description in JSON.
    pub(crate) fn new(meta: &[u8], payload_type: &str) -> Result<Self, Failed> {
        // It becomes a line between others, so it must be a line.
        if HeaderValue::from_str(payload_type).is_err() {
            return Err(Failure::invalid(format!("{payload_type:?} is not a content type")));
        }
        let boundary = new_request_id();
        let content_type =
            HeaderValue::from_str(&format!("multipart/related; boundary={boundary}"))
                .map_err(|error| Failure::invalid("bad boundary").because(error))?;
        let mut head = BytesMut::new();
        let disposition = "Content-Disposition: form-data; name=";
        let before = format!(
            "--{boundary}\r\n{disposition}\"meta\"\r\nContent-Type: application/json\r\n\r\n"
        );
        let between = format!(
            "\n\r\n--{boundary}\r\n{disposition}\"payload\"\r\nContent-Type: {payload_type}\r\n\r\n"
        );
        head.extend_from_slice(before.as_bytes());
        head.extend_from_slice(meta);
        head.extend_from_slice(between.as_bytes());
        let tail = format!("\r\n--{boundary}--\r\n");
        Ok(Self { content_type, head: head.freeze(), tail: tail.into() })
    }
}

/// What the headers of a part say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartHead {
    /// The name in the form.
    pub(crate) name: Option<String>,
    pub(crate) length: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A part begins.
    Begin(PartHead),
    /// Some of what is in it.
    Data(Bytes),
    /// The part is complete.
    End,
    /// There is no further part.
    Close,
}

/// Why bytes are not multipart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter.
    Preamble,
    /// A delimiter was read up to its boundary.
    Delimiter,
    Headers,
    /// So many bytes are still to come.
    Counted(u64),
    /// It ends with the next delimiter.
    Open,
    /// A counted part has ended; a delimiter is the only thing that can follow.
    Between,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Parser {
    /// With the line end before it.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

impl Parser {
    /// For a body of this content type.
    pub(crate) fn new(content_type: &str) -> Result<Self, Malformed> {
        let boundary = boundary(content_type)?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Ok(Self { delimiter, buffer: BytesMut::new(), state: State::Preamble })
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        // What stands behind the last delimiter means nothing.
        if self.state != State::Closed {
            self.buffer.extend_from_slice(bytes);
        }
    }

    /// Whether the body may end here: not in the middle of a part.
    pub(crate) fn may_end(&self) -> bool {
        match self.state {
            State::Closed => true,
            State::Between | State::Preamble => self.buffer.is_empty(),
            State::Delimiter | State::Headers | State::Counted(_) | State::Open => false,
        }
    }

    /// The next piece that has arrived; `None` when more bytes are needed.
    pub(crate) fn next_piece(&mut self) -> Result<Option<Piece>, Malformed> {
        loop {
            let step = match self.state {
                State::Preamble => self.preamble()?,
                State::Delimiter => self.after_delimiter()?,
                State::Headers => return self.headers(),
                State::Counted(left) => return Ok(self.counted(left)),
                State::Open => return Ok(self.open()),
                State::Between => self.between()?,
                State::Closed => return Ok(Some(Piece::Close)),
            };
            if !step {
                return Ok(None);
            }
        }
    }

    /// The first delimiter needs no line end before it.
    fn preamble(&mut self) -> Result<bool, Malformed> {
        let bare = self.delimiter.get(2..).unwrap_or_default();
        if self.buffer.starts_with(bare) {
            self.buffer.advance(bare.len());
            self.state = State::Delimiter;
            return Ok(true);
        }
        if bare.starts_with(&self.buffer) {
            return Ok(false);
        }
        match find(&self.buffer, &self.delimiter) {
            Some(at) => {
                self.buffer.advance(at + self.delimiter.len());
                self.state = State::Delimiter;
                Ok(true)
            }
            None if self.buffer.len() > HEADERS_BYTES_MAX => Err(Malformed("no first part")),
            None => Ok(false),
        }
    }

    /// Behind a boundary: two dashes are the end, a line end begins a part.
    fn after_delimiter(&mut self) -> Result<bool, Malformed> {
        while matches!(self.buffer.first(), Some(b' ' | b'\t')) {
            self.buffer.advance(1);
        }
        let Some(two) = self.buffer.get(..2) else { return Ok(false) };
        self.state = match two {
            b"--" => State::Closed,
            b"\r\n" => State::Headers,
            _ => return Err(Malformed("a delimiter does not end")),
        };
        if self.state == State::Headers {
            self.buffer.advance(2);
        } else {
            self.buffer.clear();
        }
        Ok(true)
    }

    fn headers(&mut self) -> Result<Option<Piece>, Malformed> {
        // No header at all is an empty line at once.
        let (end, skip) = if self.buffer.starts_with(b"\r\n") {
            (0, 2)
        } else {
            match find(&self.buffer, b"\r\n\r\n") {
                Some(at) => (at, 4),
                None if self.buffer.len() > HEADERS_BYTES_MAX => {
                    return Err(Malformed("the headers of a part are too long"));
                }
                None => return Ok(None),
            }
        };
        if end > HEADERS_BYTES_MAX {
            return Err(Malformed("the headers of a part are too long"));
        }
        let head = part_head(&self.buffer.split_to(end))?;
        self.buffer.advance(skip);
        self.state = head.length.map_or(State::Open, State::Counted);
        Ok(Some(Piece::Begin(head)))
    }

    fn counted(&mut self, left: u64) -> Option<Piece> {
        if left == 0 {
            self.state = State::Between;
            return Some(Piece::End);
        }
        if self.buffer.is_empty() {
            return None;
        }
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
        self.state = State::Counted(left.saturating_sub(here as u64));
        Some(Piece::Data(self.buffer.split_to(here).freeze()))
    }

    fn open(&mut self) -> Option<Piece> {
        match find(&self.buffer, &self.delimiter) {
            Some(0) => {
                self.buffer.advance(self.delimiter.len());
                self.state = State::Delimiter;
                Some(Piece::End)
            }
            Some(at) => Some(Piece::Data(self.buffer.split_to(at).freeze())),
            None => {
                // The end of what is here may be the beginning of a delimiter.
                let kept = self.delimiter.len().saturating_sub(1);
                let sure = self.buffer.len().saturating_sub(kept);
                (sure > 0).then(|| Piece::Data(self.buffer.split_to(sure).freeze()))
            }
        }
    }

    fn between(&mut self) -> Result<bool, Malformed> {
        if self.buffer.len() < self.delimiter.len() {
            let fits = self.delimiter.starts_with(&self.buffer);
            return if fits { Ok(false) } else { Err(Malformed("a part is longer than it says")) };
        }
        if !self.buffer.starts_with(&self.delimiter) {
            return Err(Malformed("a part is longer than it says"));
        }
        self.buffer.advance(self.delimiter.len());
        self.state = State::Delimiter;
        Ok(true)
    }
}

fn boundary(content_type: &str) -> Result<String, Malformed> {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if !kind.to_ascii_lowercase().starts_with("multipart/") {
        return Err(Malformed("its content type is not multipart"));
    }
    let boundary = parameter(content_type, "boundary").unwrap_or_default();
    if boundary.is_empty() || boundary.len() > BOUNDARY_BYTES_MAX {
        return Err(Malformed("it has no boundary"));
    }
    Ok(boundary)
}

fn part_head(lines: &[u8]) -> Result<PartHead, Malformed> {
    let text = std::str::from_utf8(lines).map_err(|_| Malformed("a header is not text"))?;
    let mut head = PartHead::default();
    for line in text.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.trim().to_ascii_lowercase().as_str() {
            "content-disposition" => head.name = parameter(value, "name"),
            "content-length" => {
                let length = value.trim().parse();
                head.length =
                    Some(length.map_err(|_| Malformed("the length of a part is no number"))?);
            }
            _ => {}
        }
    }
    Ok(head)
}

/// The value of a parameter, with or without quotes.
fn parameter(value: &str, wanted: &str) -> Option<String> {
    value.split(';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        name.trim().eq_ignore_ascii_case(wanted).then(|| value.to_owned())
    })
}

fn find(within: &[u8], wanted: &[u8]) -> Option<usize> {
    within.windows(wanted.len().max(1)).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "multipart/related; boundary=B";
    const META: &str = "Content-Disposition: form-data; name=\"meta\"\r\n\
                        Content-Type: application/json\r\n\r\n";

    type Part = (Option<String>, Vec<u8>);

    /// Parts as name and content, fed in pieces that are cut at every position and of every size.
    fn check(text: &[u8], expected: &[(Option<&str>, &[u8])]) {
        let whole: Vec<&[u8]> = vec![text];
        let cuts = (0..text.len()).map(|at| {
            let (one, other) = text.split_at(at);
            vec![one, other]
        });
        let sizes = (1..=text.len()).map(|size| text.chunks(size).collect());
        for pieces in std::iter::once(whole).chain(cuts).chain(sizes) {
            let parts = parse(&pieces).unwrap();
            let expected: Vec<_> = expected
                .iter()
                .map(|(name, data)| (name.map(str::to_owned), data.to_vec()))
                .collect();
            assert_eq!(parts, expected, "in {} pieces", pieces.len());
        }
    }

    fn parse(pieces: &[&[u8]]) -> Result<Vec<Part>, Malformed> {
        let mut parser = Parser::new(TYPE)?;
        let mut parts = Vec::new();
        for piece in pieces {
            parser.push(piece);
            while let Some(piece) = parser.next_piece()? {
                match piece {
                    Piece::Begin(head) => parts.push((head.name, Vec::new())),
                    Piece::Data(bytes) => parts.last_mut().unwrap().1.extend_from_slice(&bytes),
                    Piece::End => {}
                    Piece::Close => break,
                }
            }
        }
        assert!(parser.may_end(), "it is complete");
        Ok(parts)
    }

    #[test]
    fn parts_are_cut_at_delimiters_and_at_their_lengths() {
        let payload = b"line\r\n--B\r\n--Bx\r\n\r\n--B--";
        let mut text = format!("--B\r\n{META}{{\"a\":1}}\n\r\n--B\r\n").into_bytes();
        text.extend_from_slice(
            b"Content-Disposition: form-data; name=\"payload\"; filename=\"p\"\r\n",
        );
        text.extend_from_slice(format!("Content-Length: {}\r\n\r\n", payload.len()).as_bytes());
        text.extend_from_slice(payload);
        text.extend_from_slice(b"\r\n--B--\r\n");
        check(&text, &[(Some("meta"), b"{\"a\":1}\n"), (Some("payload"), payload)]);
    }

    #[test]
    fn empty_parts_and_parts_without_headers_are_parts() {
        check(
            b"--B\r\ncontent-length: 0\r\n\r\n\r\n--B\r\n\r\n\r\n--B \t\r\n\r\nx\r\n--B--",
            &[(None, b""), (None, b""), (None, b"x")],
        );
    }

    #[test]
    fn what_stands_before_the_first_delimiter_is_passed_over() {
        check(b"hello\r\n--B\r\n\r\nx\r\n--B--", &[(None, b"x")]);
        check(b"\r\n--B\r\n\r\nx\r\n--B--", &[(None, b"x")]);
    }

    #[test]
    fn a_counted_part_is_complete_before_anything_follows_it() {
        let text = format!("--B\r\n{META}{{}}\n\r\n--B\r\nContent-Length: 3\r\n\r\nabc");
        check(text.as_bytes(), &[(Some("meta"), b"{}\n"), (None, b"abc")]);
    }

    #[test]
    fn a_body_that_ends_within_a_part_is_not_complete() {
        let text = b"--B\r\nContent-Length: 3\r\n\r\nabc\r\n--B\r\n\r\nxyz";
        for end in 1..text.len() {
            let mut parser = Parser::new(TYPE).unwrap();
            parser.push(&text[..end]);
            while parser.next_piece().unwrap().is_some() {}
            let complete = end == text.len() - b"\r\n--B\r\n\r\nxyz".len();
            assert_eq!(parser.may_end(), complete, "cut at {end}");
        }
    }

    #[test]
    fn what_is_not_multipart_is_refused() {
        for text in [
            &b"--B\r\nContent-Length: 1\r\n\r\nab\r\n--B--"[..],
            b"--B\r\nContent-Length: -1\r\n\r\n",
            b"--B\r\nContent-Length: many\r\n\r\n",
            b"--Bad\r\n\r\n",
            b"--B\r\n\xff: x\r\n\r\n",
        ] {
            assert!(parse(&[text]).is_err(), "{}", String::from_utf8_lossy(text));
        }
        for kind in ["text/plain; boundary=B", "multipart/related", "multipart/x; boundary=", ""] {
            assert!(Parser::new(kind).is_err(), "{kind}");
        }
        assert!(Parser::new("Multipart/Mixed; charset=x; Boundary=\"a b\"").is_ok());
    }

    #[test]
    fn endless_headers_and_preambles_are_refused() {
        let long = vec![b'x'; HEADERS_BYTES_MAX + 1];
        assert!(parse(&[&long]).is_err());
        let headers = [b"--B\r\n".to_vec(), long].concat();
        assert!(parse(&[&headers]).is_err());
        let complete = [headers, b"\r\n\r\nx\r\n--B--".to_vec()].concat();
        assert!(parse(&[&complete]).is_err());
    }

    #[test]
    fn an_open_part_is_handed_out_while_it_arrives() {
        let mut parser = Parser::new(TYPE).unwrap();
        parser.push(b"--B\r\n\r\n");
        parser.push(&vec![b'x'; 100_000]);
        assert!(matches!(parser.next_piece(), Ok(Some(Piece::Begin(_)))));
        let Ok(Some(Piece::Data(data))) = parser.next_piece() else { panic!("data") };
        assert!(data.len() > 99_000 && parser.buffer.len() < 10, "{}", data.len());
    }

    #[test]
    fn an_envelope_is_what_a_parser_reads() {
        let envelope = Envelope::new(b"{\"queue\":\"q\"}", "text/plain").unwrap();
        let content_type = envelope.content_type.to_str().unwrap();
        let boundary = content_type.strip_prefix("multipart/related; boundary=").unwrap();
        let text = [&envelope.head[..], b"hello", &envelope.tail].concat();
        let expected = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"meta\"\r\nContent-Type: \
             application/json\r\n\r\n{{\"queue\":\"q\"}}\n\r\n--{boundary}\r\nContent-Disposition: \
             form-data; name=\"payload\"\r\nContent-Type: text/plain\r\n\r\nhello\r\n\
             --{boundary}--\r\n"
        );
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        assert!(Envelope::new(b"{}", "text/plain\r\nX: y").is_err());
    }
}
