//! Server-sent events, cut out of a stream of bytes. Only the framing: what an event means is not
//! known here.

use bytes::{Buf as _, BytesMut};

/// Bytes of one event, and of one line.
const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) id: Option<String>,
    pub(crate) kind: String,
    pub(crate) data: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: BytesMut,
    /// Bytes at the start of the buffer that hold no end of line.
    searched: usize,
    /// The last line ended in a carriage return, so a line feed may still belong to it.
    after_return: bool,
    partial: Message,
    has_data: bool,
    /// Stays until another comes.
    id: Option<String>,
}

impl Parser {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event that has arrived as a whole.
    pub(crate) fn next_message(&mut self) -> Result<Option<Message>, TooLong> {
        while let Some(line) = self.line() {
            if line.is_empty() {
                if let Some(message) = self.dispatch() {
                    return Ok(Some(message));
                }
            } else {
                self.field(&line);
            }
            if self.partial.data.len() > EVENT_BYTES_MAX {
                return Err(TooLong);
            }
        }
        if self.buffer.len() > EVENT_BYTES_MAX { Err(TooLong) } else { Ok(None) }
    }

    /// The next whole line without its end, which is CR, LF or both.
    fn line(&mut self) -> Option<String> {
        if self.after_return && self.buffer.first() == Some(&b'\n') {
            self.buffer.advance(1);
            self.searched = self.searched.saturating_sub(1);
        }
        if !self.buffer.is_empty() {
            self.after_return = false;
        }
        let unseen = self.buffer.get(self.searched..).unwrap_or_default();
        let Some(offset) = unseen.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + offset);
        self.after_return = self.buffer.first() == Some(&b'\r');
        self.buffer.advance(1);
        self.searched = 0;
        Some(String::from_utf8_lossy(&line).into_owned())
    }

    fn field(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => {
                if self.has_data {
                    self.partial.data.push('\n');
                }
                self.partial.data.push_str(value);
                self.has_data = true;
            }
            "event" => value.clone_into(&mut self.partial.kind),
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            // Comments, which keep the connection alive, and what nobody asked for.
            _ => {}
        }
    }

    fn dispatch(&mut self) -> Option<Message> {
        let message = std::mem::take(&mut self.partial);
        let has_data = std::mem::take(&mut self.has_data);
        has_data.then(|| Message { id: self.id.clone(), ..message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the text in pieces of every size; the result must not depend on it.
    fn check(text: &str, expected: &[(Option<&str>, &str, &str)]) {
        for size in 1..=text.len() {
            let mut parser = Parser::default();
            let mut got = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                parser.push(piece);
                while let Some(message) = parser.next_message().unwrap() {
                    got.push((message.id, message.kind, message.data));
                }
            }
            let expected: Vec<_> = expected
                .iter()
                .map(|(id, kind, data)| {
                    (id.map(str::to_owned), (*kind).to_owned(), (*data).to_owned())
                })
                .collect();
            assert_eq!(got, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn events_are_cut_at_blank_lines() {
        check(
            "id: 1\nevent: state\ndata: {\"a\":1}\n\nid:2\nevent:lease\ndata:x\n\n",
            &[(Some("1"), "state", "{\"a\":1}"), (Some("2"), "lease", "x")],
        );
    }

    #[test]
    fn every_end_of_line_counts_once() {
        check(
            "data: a\r\n\r\ndata: b\r\rdata: c\n\n",
            &[(None, "", "a"), (None, "", "b"), (None, "", "c")],
        );
    }

    #[test]
    fn comments_and_unknown_fields_are_passed_over() {
        check(": alive\n\nretry: 5\nnonsense\ndata: x\n\n: alive\n\n", &[(None, "", "x")]);
    }

    #[test]
    fn data_lines_are_joined_and_an_id_stays() {
        check(
            "id: 7\ndata: a\ndata:\ndata: ü\n\ndata: b\n\n",
            &[(Some("7"), "", "a\n\nü"), (Some("7"), "", "b")],
        );
    }

    #[test]
    fn an_event_without_data_is_none() {
        check("event: state\n\ndata: x\n\n", &[(None, "", "x")]);
    }

    #[test]
    fn endless_lines_and_events_are_refused() {
        let mut line = Parser::default();
        line.push(&vec![b'x'; EVENT_BYTES_MAX + 1]);
        assert_eq!(line.next_message(), Err(TooLong));

        let mut event = Parser::default();
        let long = format!("data: {}\n", "x".repeat(1024));
        let refused = (0..=EVENT_BYTES_MAX / 1024).any(|_| {
            event.push(long.as_bytes());
            event.next_message() == Err(TooLong)
        });
        assert!(refused);
    }
}
