//! GET and HEAD of an object: whole, in part, or only if it changed.

use std::ops::Range;

use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, LAST_MODIFIED};
use http::{HeaderValue, StatusCode};
use http_body_util::Full;

use super::State;
use super::ask::Ask;
use super::dialect::{no_such_key, precondition_failed, value};
use super::route::empty;
use super::shelf::{Object, same_tag};
use crate::clock::http_date;
use crate::xml::{self, Answer};

pub(super) fn read(state: &State, ask: &Ask) -> Answer {
    let found = state.inner.lock().shelf.get(&ask.bucket, &ask.key).cloned();
    let wanted = ask.query("generation").and_then(|text| text.parse().ok());
    let found =
        found.filter(|object| wanted.is_none_or(|generation: u64| object.generation == generation));
    let Some(object) = found else { return no_such_key() };
    let matches = |tags: &str| {
        tags.split(',').any(|tag| tag.trim() == "*" || same_tag(tag.trim(), &object.etag))
    };
    if ask.header("if-match").is_some_and(|tags| !matches(tags)) {
        return precondition_failed();
    }
    let mut answer = if ask.header("if-none-match").is_some_and(matches) {
        empty(StatusCode::NOT_MODIFIED)
    } else {
        content(ask, &object)
    };
    if answer.status() != StatusCode::RANGE_NOT_SATISFIABLE {
        describe(state, &object, &mut answer);
    }
    answer
}

fn content(ask: &Ask, object: &Object) -> Answer {
    let size = object.bytes.len();
    let Some(asked) = ask.header("range").and_then(|text| text.strip_prefix("bytes=")) else {
        return with_body(StatusCode::OK, object, 0..size);
    };
    let Some(range) = range(asked, size) else {
        let message = "The requested range is not satisfiable";
        return xml::error(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange", message);
    };
    let shown = format!("bytes {}-{}/{size}", range.start, range.end - 1);
    let mut answer = with_body(StatusCode::PARTIAL_CONTENT, object, range);
    answer.headers_mut().insert(CONTENT_RANGE, value(&shown));
    answer
}

/// The length is told also for HEAD, where hyper leaves the body away.
fn with_body(status: StatusCode, object: &Object, range: Range<usize>) -> Answer {
    let mut answer = empty(status);
    answer.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(range.len()));
    *answer.body_mut() = Full::new(object.bytes.slice(range));
    answer
}

/// One range; several at once are what no client of ours asks for.
fn range(asked: &str, size: usize) -> Option<Range<usize>> {
    let (first, last) = asked.split_once('-')?;
    let range = match (first.parse::<usize>().ok(), last.parse::<usize>().ok()) {
        (Some(first), Some(last)) => first..last.saturating_add(1).min(size),
        (Some(first), None) => first..size,
        (None, Some(count)) => size.saturating_sub(count)..size,
        (None, None) => return None,
    };
    (!range.is_empty()).then_some(range)
}

fn describe(state: &State, object: &Object, answer: &mut Answer) {
    let headers = answer.headers_mut();
    headers.extend(object.attributes.clone());
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(LAST_MODIFIED, value(&http_date(object.modified)));
    state.dialect.describe(object, headers);
}
