//! Edits of a document's text: which bytes go and what comes in their place.
//!
//! Edits are in the order of the document and never overlap. Cutting an entry takes exactly one
//! comma with it, so that the rest of its container stays well formed.

use std::ops::Range;
use std::sync::Arc;

use super::path::Segment;
use super::scan::Entry;
use super::value::quote;

pub(super) struct Edit {
    pub(super) range: Range<usize>,
    pub(super) text: Arc<[u8]>,
}

/// Keeps track of the commas of one container while entries are cut from it.
#[derive(Default)]
pub(super) struct Cutter {
    /// An entry before this one stays.
    kept: bool,
    /// The cut before must reach to the next entry, to take the comma between.
    reaching: bool,
}

impl Cutter {
    /// Must be called for each entry, before anything else is cut.
    pub(super) fn begin(&mut self, entry: &Entry<'_>, cuts: &mut [Range<usize>]) {
        if self.reaching
            && let Some(cut) = cuts.last_mut()
        {
            cut.end = entry.start;
        }
        self.reaching = false;
    }

    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    /// Cuts the entry whose value ends at `end`.
    pub(super) fn cut(&mut self, entry: &Entry<'_>, end: usize, cuts: &mut Vec<Range<usize>>) {
        match entry.comma {
            Some(comma) if self.kept => cuts.push(comma..end),
            Some(_) | None => {
                cuts.push(entry.start..end);
                self.reaching = true;
            }
        }
    }
}

/// Writes the document with its edits; `None` when that takes more than `bytes_max`.
pub(super) fn rewrite(
    document: &[u8],
    edits: &[Edit],
    bytes_max: u64,
    out: &mut Vec<u8>,
) -> Option<()> {
    let gone: u64 = edits.iter().map(|edit| edit.range.len() as u64).sum();
    let added: u64 = edits.iter().map(|edit| edit.text.len() as u64).sum();
    let length = (document.len() as u64).saturating_sub(gone).saturating_add(added);
    if length > bytes_max {
        return None;
    }
    out.clear();
    out.reserve(usize::try_from(length).ok()?);
    let mut from = 0;
    for edit in edits {
        out.extend_from_slice(document.get(from..edit.range.start).unwrap_or_default());
        out.extend_from_slice(&edit.text);
        from = edit.range.end;
    }
    out.extend_from_slice(document.get(from..).unwrap_or_default());
    Some(())
}

/// The text of a member to be appended to an object, with the objects it is wrapped in.
pub(super) fn member(names: &[Segment], value: &[u8], comma: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + 16 * names.len());
    if comma {
        out.push(b',');
    }
    let mut open = 0;
    for segment in names {
        let Segment::Name(name) = segment else {
            continue;
        };
        if open > 0 {
            out.push(b'{');
        }
        out.extend_from_slice(&quote(name));
        out.push(b':');
        open += 1;
    }
    out.extend_from_slice(value);
    out.extend(std::iter::repeat_n(b'}', open.max(1) - 1));
    out
}

/// The text of objects within objects that end in the value.
pub(super) fn object(names: &[Segment], value: &[u8]) -> Vec<u8> {
    let mut out = vec![b'{'];
    out.extend_from_slice(&member(names, value, false));
    out.push(b'}');
    out
}
