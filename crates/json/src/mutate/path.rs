//! Paths into a document: JSON Pointers and dotted paths, read into the same segments.
//!
//! Whether a segment exists, and what a number means, is decided where the document is at hand.

use std::sync::Arc;

use super::SEGMENTS_MAX;
use super::error::Cause;

/// One step down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// A member of that name, or the element of that index.
    Name(Arc<str>),
    /// `*`: every member of an object.
    Members,
    /// `[]`: every element of an array.
    Elements,
    /// `**`: every child of either.
    Children,
    /// `...`: any depth, this one included.
    Descendants,
}

impl Segment {
    pub(super) fn is_wildcard(&self) -> bool {
        match self {
            Self::Name(_) => false,
            Self::Members | Self::Elements | Self::Children | Self::Descendants => true,
        }
    }

    /// The array index that this segment can mean.
    pub(super) fn index(&self) -> Option<usize> {
        match self {
            Self::Name(name) => index(name),
            Self::Members | Self::Elements | Self::Children | Self::Descendants => None,
        }
    }
}

/// Appends the segments of `path` to those of the groups around it.
pub(super) fn read_path(path: &str, segments: &mut Vec<Segment>) -> Result<(), Cause> {
    let path = path.trim();
    if path.is_empty() {
        return Err(Cause::NoPath);
    }
    if path == "/" {
        return Err(Cause::Root);
    }
    if path.contains(['{', '}']) {
        return Err(Cause::Braces);
    }
    match path.strip_prefix('/') {
        Some(pointer) => {
            for part in pointer.split('/') {
                push(part, pointer_name, segments)?;
            }
        }
        None => read_dotted(path, segments)?,
    }
    Ok(())
}

fn read_dotted(path: &str, segments: &mut Vec<Segment>) -> Result<(), Cause> {
    let mut start = 0;
    let mut escaped = false;
    for (at, byte) in path.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'.' => {
                push_dotted(path.get(start..at), segments)?;
                start = at + 1;
            }
            _ => {}
        }
    }
    push_dotted(path.get(start..), segments)
}

fn push_dotted(part: Option<&str>, segments: &mut Vec<Segment>) -> Result<(), Cause> {
    match part {
        None | Some("") => Err(Cause::EmptyName),
        Some(part) => push(part, dotted_name, segments),
    }
}

/// Adds one written part, which may be a name with `[]` behind it.
fn push(
    part: &str,
    unescape: fn(&str) -> Result<String, Cause>,
    segments: &mut Vec<Segment>,
) -> Result<(), Cause> {
    let name = part.trim_end_matches("[]");
    let elements = (part.len() - name.len()) / 2;
    let first = match name {
        "" if elements > 0 => None,
        "*" => Some(Segment::Members),
        "**" => Some(Segment::Children),
        "..." => Some(Segment::Descendants),
        _ => Some(Segment::Name(unescape(name)?.into())),
    };
    if segments.len() + usize::from(first.is_some()) + elements > SEGMENTS_MAX {
        return Err(Cause::TooManySegments);
    }
    segments.extend(first);
    segments.extend(std::iter::repeat_n(Segment::Elements, elements));
    Ok(())
}

fn pointer_name(part: &str) -> Result<String, Cause> {
    unescape(part, '~', |code| match code {
        '0' => Some('~'),
        '1' => Some('/'),
        _ => None,
    })
}

fn dotted_name(part: &str) -> Result<String, Cause> {
    unescape(part, '\\', |code| matches!(code, '.' | '\\').then_some(code))
}

fn unescape(part: &str, mark: char, meaning: fn(char) -> Option<char>) -> Result<String, Cause> {
    let mut name = String::with_capacity(part.len());
    let mut letters = part.chars();
    while let Some(letter) = letters.next() {
        if letter == mark {
            name.push(letters.next().and_then(meaning).ok_or(Cause::Escape)?);
        } else {
            name.push(letter);
        }
    }
    Ok(name)
}

/// Reads an array index; `+1` and `01` are names, not indices.
fn index(name: &str) -> Option<usize> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = name == "0" || !name.starts_with('0');
    if plain && canonical { name.parse().ok() } else { None }
}
