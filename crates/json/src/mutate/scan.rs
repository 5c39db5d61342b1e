//! A cursor over the text of a document, value by value.
//!
//! Documents are checked before a cursor sees them, so this reads loosely and fast; where the text
//! is torn all the same it stops with an error. Values are stepped over without recursion.

use std::ops::Range;

use crate::compact::{is_blank, plain_run};
use crate::error::JsonError;

pub(super) struct Cursor<'a> {
    document: &'a [u8],
    at: usize,
}

/// An object or array being read; see [`Cursor::next_entry`].
pub(super) struct Entries {
    is_object: bool,
    count: usize,
}

/// A member or element; the cursor stands at its value.
pub(super) struct Entry<'a> {
    /// The comma before it, unless it is the first.
    pub(super) comma: Option<usize>,
    /// Where its name, or the value of an element, begins.
    pub(super) start: usize,
    pub(super) index: usize,
    /// What stands between the quotes of its name; elements have none.
    pub(super) name: Option<&'a [u8]>,
}

impl Entries {
    pub(super) fn is_object(&self) -> bool {
        self.is_object
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }
}

impl<'a> Cursor<'a> {
    pub(super) fn new(document: &'a [u8]) -> Self {
        Self { document, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Steps into an object or array; `None`, without a step, at any other value.
    pub(super) fn enter(&mut self) -> Option<Entries> {
        let is_object = match self.token() {
            Some(b'{') => true,
            Some(b'[') => false,
            _ => return None,
        };
        self.at += 1;
        Some(Entries { is_object, count: 0 })
    }

    /// Goes to the value of the next entry, or past the closing bracket.
    ///
    /// The caller must have stepped over the value of the entry before.
    pub(super) fn next_entry(
        &mut self,
        entries: &mut Entries,
    ) -> Result<Option<Entry<'a>>, JsonError> {
        if matches!(self.token(), Some(b'}' | b']')) {
            self.at += 1;
            return Ok(None);
        }
        let comma = match entries.count {
            0 => None,
            _ => Some(self.expect(b',')?),
        };
        let first = self.token();
        let start = self.at;
        let mut name = None;
        if entries.is_object {
            if first != Some(b'"') {
                return Err(self.torn());
            }
            self.skip_text()?;
            name = self.document.get(start + 1..self.at - 1);
            self.expect(b':')?;
            self.token();
        }
        let index = entries.count;
        entries.count += 1;
        Ok(Some(Entry { comma, start, index, name }))
    }

    /// Steps over one value and tells where it stood.
    pub(super) fn skip_value(&mut self) -> Result<Range<usize>, JsonError> {
        let first = self.token();
        let start = self.at;
        match first {
            Some(b'"') => self.skip_text()?,
            Some(b'{' | b'[') => self.skip_container()?,
            Some(_) => {
                let scalar = self
                    .rest()
                    .iter()
                    .take_while(|byte| !is_blank(**byte) && !matches!(byte, b',' | b']' | b'}'));
                self.at += scalar.count();
            }
            None => {}
        }
        // A value of no bytes would make callers turn in circles.
        if self.at == start { Err(self.torn()) } else { Ok(start..self.at) }
    }

    fn skip_container(&mut self) -> Result<(), JsonError> {
        let mut depth = 0_usize;
        loop {
            let dull = self
                .rest()
                .iter()
                .take_while(|byte| !matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'));
            self.at += dull.count();
            match self.document.get(self.at) {
                Some(b'"') => {
                    self.skip_text()?;
                    continue;
                }
                Some(b'{' | b'[') => depth += 1,
                Some(_) => depth = depth.checked_sub(1).ok_or_else(|| self.torn())?,
                None => return Err(self.torn()),
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Steps over a string; the cursor stands at its opening quote.
    fn skip_text(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        loop {
            self.at += plain_run(self.rest());
            match self.document.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
                None => return Err(self.torn()),
            }
        }
    }

    /// Steps over blanks and shows the byte after them.
    fn token(&mut self) -> Option<u8> {
        while let Some(byte) = self.document.get(self.at) {
            if !is_blank(*byte) {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    fn expect(&mut self, byte: u8) -> Result<usize, JsonError> {
        if self.token() != Some(byte) {
            return Err(self.torn());
        }
        self.at += 1;
        Ok(self.at - 1)
    }

    fn rest(&self) -> &'a [u8] {
        self.document.get(self.at..).unwrap_or_default()
    }

    fn torn(&self) -> JsonError {
        JsonError::NotJson { offset: self.at as u64, what: "the document is torn here" }
    }
}
