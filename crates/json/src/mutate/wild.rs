//! Finds every place that a path with wildcards means.
//!
//! One pass: each value is visited once with the set of segments that may come next, one bit each,
//! so that repeated `...` cost no more than one. Of nested places only the outermost is found, and
//! nothing is ever created.

use std::ops::Range;

use super::MATCHES_MAX;
use super::edit::Cutter;
use super::error::{Cause, Stop};
use super::name::is_name;
use super::path::Segment;
use super::scan::{Cursor, Entry};

/// The ranges to replace or, when removing, to cut out, in the order of the document.
pub(super) fn find_all(
    document: &[u8],
    path: &[Segment],
    removing: bool,
) -> Result<Vec<Range<usize>>, Stop> {
    let cursor = Cursor::new(document);
    let mut search = Search { cursor, pattern: Pattern::new(path), removing, places: Vec::new() };
    search.walk(1)?;
    Ok(search.places)
}

/// A set of segments: bit `i` stands for segment `i` of the path.
type Segments = u128;

/// The path, sorted by what its segments match.
#[derive(Default)]
struct Pattern<'p> {
    names: Vec<Literal<'p>>,
    /// Match any member.
    members: Segments,
    /// Match any element.
    elements: Segments,
    /// Match at any depth.
    descents: Segments,
    last: Segments,
}

struct Literal<'p> {
    bit: Segments,
    name: &'p str,
    index: Option<usize>,
}

/// What the pending segments make of a child.
struct Step {
    is_place: bool,
    /// The segments that may match below it.
    pending: Segments,
}

impl<'p> Pattern<'p> {
    fn new(path: &'p [Segment]) -> Self {
        let mut pattern = Self::default();
        for (shift, segment) in (0..Segments::BITS).zip(path) {
            let bit = 1 << shift;
            match segment {
                Segment::Name(name) => {
                    pattern.names.push(Literal { bit, name, index: segment.index() });
                }
                Segment::Members => pattern.members |= bit,
                Segment::Elements => pattern.elements |= bit,
                Segment::Children => {
                    pattern.members |= bit;
                    pattern.elements |= bit;
                }
                Segment::Descendants => pattern.descents |= bit,
            }
            pattern.last = bit;
        }
        pattern
    }

    /// `...` may stand for no step at all, so what follows it may match here too.
    fn with_skipped_descents(&self, pending: Segments) -> Segments {
        let mut pending = pending;
        loop {
            let more = pending | (pending & self.descents & !self.last) << 1;
            if more == pending {
                return pending;
            }
            pending = more;
        }
    }

    fn step(&self, pending: Segments, entry: &Entry<'_>) -> Result<Step, Cause> {
        let mut matched = pending & if entry.name.is_some() { self.members } else { self.elements };
        for literal in self.names.iter().filter(|literal| literal.bit & pending != 0) {
            let is_meant = match entry.name {
                Some(written) => is_name(written, literal.name),
                None => literal.index == Some(entry.index),
            };
            if is_meant && entry.name.is_none() && literal.bit == self.last {
                return Err(Cause::InArray);
            }
            if is_meant {
                matched |= literal.bit;
            }
        }
        let descending = pending & self.descents;
        Ok(Step {
            is_place: (matched | descending) & self.last != 0,
            pending: matched << 1 | descending,
        })
    }
}

struct Search<'d, 'p> {
    cursor: Cursor<'d>,
    pattern: Pattern<'p>,
    removing: bool,
    places: Vec<Range<usize>>,
}

impl Search<'_, '_> {
    /// Searches the value at the cursor and steps over it.
    ///
    /// Recursion is as deep as the document, which was checked to be within bounds.
    fn walk(&mut self, pending: Segments) -> Result<(), Stop> {
        let Some(mut entries) = self.cursor.enter() else {
            self.cursor.skip_value()?;
            return Ok(());
        };
        let pending = self.pattern.with_skipped_descents(pending);
        let mut cutter = Cutter::default();
        while let Some(entry) = self.cursor.next_entry(&mut entries)? {
            if self.removing {
                cutter.begin(&entry, &mut self.places);
            }
            let step = self.pattern.step(pending, &entry)?;
            if step.is_place {
                self.found(&entry, &mut cutter)?;
                continue;
            }
            cutter.keep();
            if step.pending == 0 {
                self.cursor.skip_value()?;
            } else {
                self.walk(step.pending)?;
            }
        }
        Ok(())
    }

    fn found(&mut self, entry: &Entry<'_>, cutter: &mut Cutter) -> Result<(), Stop> {
        if self.places.len() >= MATCHES_MAX {
            return Err(Cause::TooManyMatches.into());
        }
        let value = self.cursor.skip_value()?;
        if self.removing {
            cutter.cut(entry, value.end, &mut self.places);
        } else {
            self.places.push(value);
        }
        Ok(())
    }
}
