//! Applies mutations to a document, one after the other, each seeing what the one before left.
//!
//! All or nothing: the result is handed out only when every mutation succeeded. The document is
//! checked first, whoever vouches for it. Each mutation reads the text once and rewrites it once.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::edit::{Edit, member, object, rewrite};
use super::error::{MutationError, Stop};
use super::file::{FileValues, file_value};
use super::find::{Spot, find};
use super::path::Segment;
use super::time;
use super::value::quote;
use super::wild::find_all;
use super::{Action, Mutation, RESULT_BYTES_MAX, Value, WORK_BYTES_MAX};
use crate::compact::{Compactor, Limits, is_blank};
use crate::error::JsonError;

/// Applies mutations to an object; no document, or an empty one, counts as `{}`.
///
/// `now_rfc3339_nano` is what `NOW` stands for.
pub fn apply(
    document: Option<&[u8]>,
    mutations: &[Mutation],
    now_rfc3339_nano: &str,
    files: &dyn FileValues,
) -> Result<Vec<u8>, MutationError> {
    apply_within(document, mutations, now_rfc3339_nano, files, RESULT_BYTES_MAX)
}

/// As [`apply`], with a bound on the bytes of the result and of everything between.
pub fn apply_within(
    document: Option<&[u8]>,
    mutations: &[Mutation],
    now_rfc3339_nano: &str,
    files: &dyn FileValues,
    bytes_max: u64,
) -> Result<Vec<u8>, MutationError> {
    let document = document.filter(|text| !text.is_empty()).unwrap_or(b"{}");
    if document.len() as u64 > bytes_max {
        return Err(MutationError::TooLarge { max: bytes_max });
    }
    check(document).map_err(MutationError::Document)?;
    if document.iter().find(|byte| !is_blank(**byte)) != Some(&b'{') {
        return Err(MutationError::NotAnObject);
    }
    let mut text = Cow::Borrowed(document);
    let mut spare = Vec::new();
    let mut work = 0_u64;
    for mutation in mutations {
        let cost = cost(mutation, text.len());
        work = work.saturating_add(cost);
        if work > WORK_BYTES_MAX {
            return Err(MutationError::TooMuchWork { at_most: WORK_BYTES_MAX / cost.max(1) });
        }
        let edits =
            plan(&text, mutation, now_rfc3339_nano, files).map_err(|stop| stop.at(mutation))?;
        if edits.is_empty() {
            continue;
        }
        rewrite(&text, &edits, bytes_max, &mut spare)
            .ok_or(MutationError::TooLarge { max: bytes_max })?;
        let before = std::mem::replace(&mut text, Cow::Owned(std::mem::take(&mut spare)));
        if let Cow::Owned(buffer) = before {
            spare = buffer;
        }
    }
    Ok(text.into_owned())
}

/// What a mutation reads; a wildcard path compares each name with many segments at once.
fn cost(mutation: &Mutation, bytes: usize) -> u64 {
    const SEGMENTS_PER_PASS: usize = 8;
    let wild = mutation.path.iter().any(Segment::is_wildcard);
    let passes = if wild { mutation.path.len().div_ceil(SEGMENTS_PER_PASS) } else { 1 };
    (bytes as u64).saturating_mul(passes as u64)
}

/// Runs the document through the compactor without keeping what it writes.
fn check(document: &[u8]) -> Result<(), JsonError> {
    const CHUNK_BYTES: usize = 16 * 1024;
    let mut compactor = Compactor::new(Limits { bytes_max: u64::MAX, ..Limits::default() });
    let mut scratch = Vec::with_capacity(CHUNK_BYTES);
    for chunk in document.chunks(CHUNK_BYTES) {
        scratch.clear();
        compactor.push(chunk, &mut scratch)?;
    }
    compactor.finish(&mut scratch)
}

fn plan(
    text: &[u8],
    mutation: &Mutation,
    now: &str,
    files: &dyn FileValues,
) -> Result<Vec<Edit>, Stop> {
    let path = mutation.path.as_slice();
    let wild = path.iter().any(Segment::is_wildcard);
    match (&mutation.action, wild) {
        (Action::Remove, true) => Ok(cut(find_all(text, path, true)?)),
        (Action::Remove, false) => match find(text, path, true)? {
            Spot::Cuts(cuts) => Ok(cut(cuts)),
            Spot::Refused(cause) => Err(cause.into()),
            Spot::Missing | Spot::Present(_) | Spot::Lacking { .. } | Spot::Scalar { .. } => {
                Ok(Vec::new())
            }
        },
        (Action::Set(value), true) => {
            let value = value_text(value, now, files)?;
            let places = find_all(text, path, false)?;
            Ok(places.into_iter().map(|range| Edit { range, text: Arc::clone(&value) }).collect())
        }
        (Action::Set(value), false) => {
            let value = value_text(value, now, files)?;
            put(find(text, path, false)?, |_| Ok(Arc::clone(&value)))
        }
        (Action::Add(delta), true) => {
            let mut edits = Vec::new();
            for range in find_all(text, path, false)? {
                let sum = delta.add_to(text.get(range.clone()).unwrap_or_default())?;
                edits.push(Edit { range, text: sum.into_bytes().into() });
            }
            Ok(edits)
        }
        (Action::Add(delta), false) => put(find(text, path, false)?, |present| {
            let sum = match present {
                Some(range) => delta.add_to(text.get(range).unwrap_or_default())?,
                None => delta.alone(),
            };
            Ok(sum.into_bytes().into())
        }),
    }
}

/// Puts a value where the path leads, with the objects that are missing on the way.
fn put(
    spot: Spot<'_>,
    value: impl Fn(Option<Range<usize>>) -> Result<Arc<[u8]>, Stop>,
) -> Result<Vec<Edit>, Stop> {
    Ok(vec![match spot {
        Spot::Present(range) => Edit { range: range.clone(), text: value(Some(range))? },
        Spot::Lacking { at, comma, names } => {
            Edit { range: at..at, text: member(names, &value(None)?, comma).into() }
        }
        Spot::Scalar { range, names } => Edit { range, text: object(names, &value(None)?).into() },
        Spot::Refused(cause) => return Err(cause.into()),
        Spot::Missing | Spot::Cuts(_) => return Ok(Vec::new()),
    }])
}

fn cut(cuts: Vec<Range<usize>>) -> Vec<Edit> {
    let nothing: Arc<[u8]> = Arc::new([]);
    cuts.into_iter().map(|range| Edit { range, text: Arc::clone(&nothing) }).collect()
}

fn value_text(value: &Value, now: &str, files: &dyn FileValues) -> Result<Arc<[u8]>, Stop> {
    Ok(match value {
        Value::Json(text) => Arc::clone(text),
        Value::Now => quote(&time::normalise(now)?).into(),
        Value::File { kind, path } => file_value(*kind, path, files)?.into(),
    })
}
