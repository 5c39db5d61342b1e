//! Finds the one place that a path without wildcards means.
//!
//! One pass over the document: a member is entered where it is met, and where its name comes again
//! the later one counts. Arrays are walked through, never replaced or extended; other values that
//! stand in the way of a new member give way to an object.

use std::ops::Range;

use super::edit::Cutter;
use super::error::Cause;
use super::name::is_name;
use super::path::Segment;
use super::scan::{Cursor, Entries};
use crate::error::JsonError;

/// What a path leads to.
pub(super) enum Spot<'p> {
    /// Nothing to remove.
    Missing,
    /// A value to be replaced.
    Present(Range<usize>),
    /// Members to be removed, with their commas.
    Cuts(Vec<Range<usize>>),
    /// An object that lacks the first of these names.
    Lacking { at: usize, comma: bool, names: &'p [Segment] },
    /// A value that must become an object to hold these names.
    Scalar { range: Range<usize>, names: &'p [Segment] },
    /// The document does not allow it.
    Refused(Cause),
}

pub(super) fn find<'p>(
    document: &[u8],
    path: &'p [Segment],
    removing: bool,
) -> Result<Spot<'p>, JsonError> {
    Finder { cursor: Cursor::new(document), removing }.descend(path)
}

struct Finder<'d> {
    cursor: Cursor<'d>,
    removing: bool,
}

impl Finder<'_> {
    /// Follows the path from the value at the cursor and steps over that value.
    fn descend<'p>(&mut self, path: &'p [Segment]) -> Result<Spot<'p>, JsonError> {
        let Some((segment, below)) = path.split_first() else {
            return Ok(Spot::Present(self.cursor.skip_value()?));
        };
        match self.cursor.enter() {
            Some(entries) if entries.is_object() => match (below, self.removing) {
                ([], true) => self.remove_member(segment, entries),
                _ => self.member(segment, path, below, entries),
            },
            Some(entries) => self.element(segment, below, entries),
            None => {
                let range = self.cursor.skip_value()?;
                Ok(match self.removing {
                    true => Spot::Missing,
                    false => Spot::Scalar { range, names: path },
                })
            }
        }
    }

    fn member<'p>(
        &mut self,
        segment: &Segment,
        path: &'p [Segment],
        below: &'p [Segment],
        mut entries: Entries,
    ) -> Result<Spot<'p>, JsonError> {
        let mut end = self.cursor.at();
        let mut spot = None;
        while let Some(entry) = self.cursor.next_entry(&mut entries)? {
            if means(segment, entry.name) {
                spot = Some(self.descend(below)?);
            } else {
                self.cursor.skip_value()?;
            }
            end = self.cursor.at();
        }
        Ok(match spot {
            Some(spot) => spot,
            None if self.removing => Spot::Missing,
            None => Spot::Lacking { at: end, comma: entries.count() > 0, names: path },
        })
    }

    fn remove_member<'p>(
        &mut self,
        segment: &Segment,
        mut entries: Entries,
    ) -> Result<Spot<'p>, JsonError> {
        let mut cuts = Vec::new();
        let mut cutter = Cutter::default();
        while let Some(entry) = self.cursor.next_entry(&mut entries)? {
            cutter.begin(&entry, &mut cuts);
            let value = self.cursor.skip_value()?;
            if means(segment, entry.name) {
                cutter.cut(&entry, value.end, &mut cuts);
            } else {
                cutter.keep();
            }
        }
        Ok(if cuts.is_empty() { Spot::Missing } else { Spot::Cuts(cuts) })
    }

    fn element<'p>(
        &mut self,
        segment: &Segment,
        below: &'p [Segment],
        mut entries: Entries,
    ) -> Result<Spot<'p>, JsonError> {
        let wanted = segment.index();
        let mut spot = None;
        while let Some(entry) = self.cursor.next_entry(&mut entries)? {
            if wanted == Some(entry.index) {
                spot = Some(self.descend(below)?);
            } else {
                self.cursor.skip_value()?;
            }
        }
        Ok(match spot {
            Some(_) if below.is_empty() => Spot::Refused(Cause::InArray),
            Some(spot) => spot,
            None if self.removing => Spot::Missing,
            None if below.is_empty() => Spot::Refused(Cause::InArray),
            None => Spot::Refused(Cause::NoElement),
        })
    }
}

fn means(segment: &Segment, written: Option<&[u8]>) -> bool {
    match (segment, written) {
        (Segment::Name(name), Some(written)) => is_name(written, name),
        _ => false,
    }
}
