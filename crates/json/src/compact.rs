//! Checks a JSON document chunk by chunk and drops the blanks between its tokens.
//!
//! The rule: output is the input minus insignificant whitespace, nothing else, and it is complete
//! only once `finish` said so. A token may be cut anywhere by a chunk border; the state carried over
//! is one small enum and one byte per open container. What the document means is left to others.

mod feed;
mod number;
mod text;

#[cfg(test)]
mod tests;

use crate::error::JsonError;
use feed::{Fault, Feed};
use number::Digits;
use text::Text;

pub(crate) use feed::is_blank;
pub(crate) use text::plain_run;

/// What a document may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many containers may be open at once.
    pub depth_max: u32,
    /// How many bytes the compacted document may have.
    pub bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth_max: 512, bytes_max: 100 << 20 }
    }
}

/// Compacts a document that is already in memory.
pub fn compact(document: &[u8], limits: Limits) -> Result<Vec<u8>, JsonError> {
    let mut out = Vec::new();
    let mut compactor = Compactor::new(limits);
    compactor.push(document, &mut out)?;
    compactor.finish(&mut out)?;
    Ok(out)
}

/// A push validator: feed it chunks of any size, then ask it to `finish`.
#[derive(Clone, Debug)]
pub struct Compactor {
    limits: Limits,
    state: State,
    open: Vec<Container>,
    bytes_in: u64,
    bytes_out: u64,
    refused: Option<JsonError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

/// What may come next, or the token that a chunk border cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but blanks so far.
    Start,
    /// After `[`: a value or the end.
    FirstElement,
    /// After `{`: a name or the end.
    FirstMember,
    /// After a comma in an object.
    Name,
    /// After a name.
    Colon,
    /// After a colon, or a comma in an array.
    Value,
    /// After a value: a comma or the end of its container.
    After,
    InName(Text),
    InText(Text),
    InNumber(Digits),
    /// Inside `true`, `false` or `null`: the bytes still missing.
    InWord(&'static [u8]),
}

impl Compactor {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Start,
            open: Vec::new(),
            bytes_in: 0,
            bytes_out: 0,
            refused: None,
        }
    }

    /// Takes one chunk of any size and appends what is left of it to `out`.
    ///
    /// After a refusal every further call repeats it.
    pub fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), JsonError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let room = self.limits.bytes_max - self.bytes_out;
        let mut feed = Feed::new(chunk, out, room);
        let fault = match self.scan(&mut feed) {
            Ok(state) => {
                self.state = state;
                feed.keep().err()
            }
            // What came before the fault may have been too large already.
            Err(fault) => Some(feed.keep().err().unwrap_or(fault)),
        };
        let offset = self.bytes_in + feed.position();
        self.bytes_out += feed.kept();
        self.bytes_in += chunk.len() as u64;
        match fault {
            None => Ok(()),
            Some(fault) => {
                let error = fault.at(offset, self.limits);
                self.refused = Some(error);
                Err(error)
            }
        }
    }

    /// Says whether the pushed chunks were one whole document.
    ///
    /// Nothing is held back between chunks, so `out` gains nothing here; it is taken all the same
    /// so that callers need not know that.
    pub fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), JsonError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let error = match self.state {
            State::After if self.open.is_empty() => return Ok(()),
            State::InNumber(digits) if self.open.is_empty() && digits.may_end() => return Ok(()),
            State::Start => JsonError::Empty,
            State::FirstElement
            | State::FirstMember
            | State::Name
            | State::Colon
            | State::Value
            | State::After
            | State::InName(_)
            | State::InText(_)
            | State::InNumber(_)
            | State::InWord(_) => JsonError::CutOff,
        };
        self.refused = Some(error);
        Err(error)
    }

    /// Bytes written so far.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out
    }

    /// Bytes taken so far.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    /// Runs to the end of the chunk and returns the state to go on with.
    fn scan(&mut self, feed: &mut Feed<'_>) -> Result<State, Fault> {
        let mut state = self.state;
        while !feed.is_spent() {
            state = match state {
                State::InName(text) => text.scan(feed)?.map_or(State::Colon, State::InName),
                State::InText(text) => text.scan(feed)?.map_or(State::After, State::InText),
                State::InNumber(digits) => digits.scan(feed)?.map_or(State::After, State::InNumber),
                State::InWord(missing) => word(missing, feed)?,
                State::Start
                | State::FirstElement
                | State::FirstMember
                | State::Name
                | State::Colon
                | State::Value
                | State::After => match feed.next_token()? {
                    Some(byte) => self.token(state, byte, feed)?,
                    None => state,
                },
            };
        }
        Ok(state)
    }

    /// Takes the token that begins with `byte`, as far as this chunk has it.
    #[inline]
    fn token(&mut self, state: State, byte: u8, feed: &mut Feed<'_>) -> Result<State, Fault> {
        match (state, byte) {
            (State::After, _) => self.after_value(byte, feed),
            (State::Name | State::FirstMember, b'"') => {
                feed.take();
                if let Some(cut) = Text::Plain.scan(feed)? {
                    return Ok(State::InName(cut));
                }
                // Nearly always the colon stands right here; this saves a round of the loop.
                if feed.peek() == Some(b':') {
                    feed.take();
                    return Ok(State::Value);
                }
                Ok(State::Colon)
            }
            (State::Colon, b':') => {
                feed.take();
                Ok(State::Value)
            }
            (State::FirstMember, b'}') | (State::FirstElement, b']') => Ok(self.close(feed)),
            (State::FirstMember, _) => Err(Fault::NotJson("expected a name in quotes or }")),
            (State::Name, _) => Err(Fault::NotJson("expected a name in quotes")),
            (State::Colon, _) => Err(Fault::NotJson("expected a colon after the name")),
            _ => self.value(byte, feed),
        }
    }

    #[inline]
    fn value(&mut self, byte: u8, feed: &mut Feed<'_>) -> Result<State, Fault> {
        match byte {
            b'"' => {
                feed.take();
                Ok(Text::Plain.scan(feed)?.map_or(State::After, State::InText))
            }
            b'-' | b'0'..=b'9' => {
                Ok(Digits::Start.scan(feed)?.map_or(State::After, State::InNumber))
            }
            b'{' => self.open(Container::Object, feed),
            b'[' => self.open(Container::Array, feed),
            b't' => word(b"true", feed),
            b'f' => word(b"false", feed),
            b'n' => word(b"null", feed),
            0xef => Err(Fault::NotJson("expected a value; a byte order mark is not allowed")),
            _ => Err(Fault::NotJson("expected a value")),
        }
    }

    #[inline]
    fn after_value(&mut self, byte: u8, feed: &mut Feed<'_>) -> Result<State, Fault> {
        match (self.open.last(), byte) {
            (Some(Container::Array), b',') => {
                feed.take();
                Ok(State::Value)
            }
            (Some(Container::Object), b',') => {
                feed.take();
                Ok(State::Name)
            }
            (Some(Container::Array), b']') | (Some(Container::Object), b'}') => {
                Ok(self.close(feed))
            }
            (Some(Container::Array), _) => Err(Fault::NotJson("expected a comma or ]")),
            (Some(Container::Object), _) => Err(Fault::NotJson("expected a comma or }")),
            (None, _) => Err(Fault::Trailing),
        }
    }

    #[inline]
    fn open(&mut self, container: Container, feed: &mut Feed<'_>) -> Result<State, Fault> {
        if self.open.len() >= self.depth_max() {
            return Err(Fault::TooDeep);
        }
        feed.take();
        self.open.push(container);
        Ok(match container {
            Container::Array => State::FirstElement,
            Container::Object => State::FirstMember,
        })
    }

    fn close(&mut self, feed: &mut Feed<'_>) -> State {
        feed.take();
        self.open.pop();
        State::After
    }

    fn depth_max(&self) -> usize {
        usize::try_from(self.limits.depth_max).unwrap_or(usize::MAX)
    }
}

/// Matches the bytes of `true`, `false` or `null` that are still missing.
fn word(missing: &'static [u8], feed: &mut Feed<'_>) -> Result<State, Fault> {
    let mut missing = missing;
    while let Some((expected, rest)) = missing.split_first() {
        match feed.peek() {
            None => return Ok(State::InWord(missing)),
            Some(byte) if byte == *expected => feed.take(),
            Some(_) => return Err(Fault::NotJson("expected true, false or null")),
        }
        missing = rest;
    }
    Ok(State::After)
}
