//! One chunk on its way through the compactor: the place reached, and the run of bytes to keep.
//!
//! The rule: bytes are copied in runs, from one blank to the next, never one by one. The size limit
//! is enforced here, because here is the only place that writes.

use super::Limits;
use crate::error::JsonError;

/// A refusal at the place the feed has reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    NotJson(&'static str),
    NotUtf8,
    TooDeep,
    TooLarge,
    Trailing,
}

impl Fault {
    pub(super) fn at(self, offset: u64, limits: Limits) -> JsonError {
        match self {
            Self::NotJson(what) => JsonError::NotJson { offset, what },
            Self::NotUtf8 => JsonError::NotUtf8 { offset },
            Self::TooDeep => JsonError::TooDeep { offset, max: limits.depth_max },
            Self::TooLarge => JsonError::TooLarge { max: limits.bytes_max },
            Self::Trailing => JsonError::Trailing { offset },
        }
    }
}

pub(super) struct Feed<'a> {
    chunk: &'a [u8],
    /// The next byte to look at.
    at: usize,
    /// Where the run begins that is not yet copied.
    run: usize,
    out: &'a mut Vec<u8>,
    room: u64,
    kept: u64,
}

impl<'a> Feed<'a> {
    pub(super) fn new(chunk: &'a [u8], out: &'a mut Vec<u8>, room: u64) -> Self {
        let wanted = usize::try_from(room).unwrap_or(usize::MAX).min(chunk.len());
        out.reserve(wanted);
        Self { chunk, at: 0, run: 0, out, room, kept: 0 }
    }

    #[inline]
    pub(super) fn is_spent(&self) -> bool {
        self.at >= self.chunk.len()
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.chunk.get(self.at).copied()
    }

    /// What is left of the chunk.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.chunk.get(self.at..).unwrap_or_default()
    }

    /// Steps over one byte that stays.
    #[inline]
    pub(super) fn take(&mut self) {
        self.at += 1;
    }

    /// Steps over bytes that stay.
    #[inline]
    pub(super) fn take_many(&mut self, count: usize) {
        self.at += count;
    }

    /// Drops blanks and shows the byte after them.
    #[inline]
    pub(super) fn next_token(&mut self) -> Result<Option<u8>, Fault> {
        match self.peek() {
            Some(byte) if byte > b' ' => Ok(Some(byte)),
            other => self.drop_blanks(other),
        }
    }

    fn drop_blanks(&mut self, first: Option<u8>) -> Result<Option<u8>, Fault> {
        if !first.is_some_and(is_blank) {
            return Ok(first);
        }
        self.keep()?;
        self.at += blanks(self.rest());
        self.run = self.at;
        Ok(self.peek())
    }

    /// Copies the run up to here.
    pub(super) fn keep(&mut self) -> Result<(), Fault> {
        let run = self.chunk.get(self.run..self.at).unwrap_or_default();
        let length = run.len() as u64;
        if length > self.room - self.kept {
            return Err(Fault::TooLarge);
        }
        self.out.extend_from_slice(run);
        self.kept += length;
        self.run = self.at;
        Ok(())
    }

    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    pub(super) fn position(&self) -> u64 {
        self.at as u64
    }
}

#[inline]
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// How many blanks `bytes` begins with; indentation is compared eight spaces at a time.
#[inline]
fn blanks(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        while let Some((word, tail)) = rest.split_first_chunk::<8>()
            && word == b"        "
        {
            rest = tail;
        }
        match rest.split_first() {
            Some((byte, tail)) if is_blank(*byte) => rest = tail,
            _ => return bytes.len() - rest.len(),
        }
    }
}
