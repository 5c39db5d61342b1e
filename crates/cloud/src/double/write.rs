//! Everything that changes what is stored: PUT, copies and deletes, with their conditions.

use std::time::Duration;

use http::{HeaderMap, StatusCode};

use super::ask::{Ask, decode};
use super::dialect::no_such_key;
use super::route::empty;
use super::shelf::Object;
use super::{Flaw, State};
use crate::clock::iso_date;
use crate::op::Op;
use crate::xml::{self, Answer, leaf};

/// How long a store that checks and then writes lets others in between.
const GAP: Duration = Duration::from_millis(5);

pub(super) async fn put(state: &State, ask: &Ask) -> Answer {
    let (source, now) = (ask.header(state.dialect.copy_source()), state.clock.now());
    let object = match source {
        None => Object::new(ask.body.clone(), now, attributes(&ask.headers)),
        Some(source) => match original(state, source) {
            Some(found) => Object { modified: now, ..found },
            None => return no_such_key(),
        },
    };
    match store(state, ask, object).await {
        Err(refused) => *refused,
        Ok(stored) => {
            let mut answer = match source {
                None => empty(StatusCode::OK),
                Some(_) => copied(&stored),
            };
            state.dialect.describe(&stored, answer.headers_mut());
            answer
        }
    }
}

fn original(state: &State, source: &str) -> Option<Object> {
    let source = decode(source);
    let (bucket, key) = source.trim_start_matches('/').split_once('/')?;
    state.inner.lock().shelf.get(bucket, key).cloned()
}

fn copied(object: &Object) -> Answer {
    let (tag, modified) =
        (leaf("ETag", &object.etag), leaf("LastModified", &iso_date(object.modified)));
    xml::document(StatusCode::OK, "CopyObjectResult", &format!("{modified}{tag}"))
}

/// Writes if what the request demands holds. This is the promise that flaws break.
pub(super) async fn store(state: &State, ask: &Ask, object: Object) -> Result<Object, Box<Answer>> {
    let flaw = state.inner.lock().flaw;
    let mut conditions = state.dialect.conditions(ask)?;
    conditions.iter().try_for_each(|condition| condition.refused_by(flaw))?;
    conditions.retain(|condition| !condition.is_ignored_by(flaw));
    if flaw == Flaw::ChecksThenWrites {
        {
            let inner = state.inner.lock();
            let current = inner.shelf.get(&ask.bucket, &ask.key);
            conditions.iter().try_for_each(|condition| condition.check(current))?;
        }
        tokio::time::sleep(GAP).await;
        conditions.clear();
    }
    let mut inner = state.inner.lock();
    let current = inner.shelf.get(&ask.bucket, &ask.key);
    conditions.iter().try_for_each(|condition| condition.check(current))?;
    Ok(inner.shelf.put(&ask.bucket, &ask.key, object))
}

/// What readers get back as it was sent.
pub(super) fn attributes(headers: &HeaderMap) -> HeaderMap {
    let kept = headers.iter().filter(|(name, _)| {
        let name = name.as_str();
        let plain = ["cache-control", "content-disposition", "content-encoding"];
        name.starts_with("x-amz-meta-")
            || name.starts_with("x-goog-meta-")
            || matches!(name, "content-type" | "content-language")
            || plain.contains(&name)
    });
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

pub(super) fn delete(state: &State, ask: &Ask) -> Answer {
    let conditions = match state.dialect.conditions(ask) {
        Ok(conditions) => conditions,
        Err(refused) => return *refused,
    };
    let mut inner = state.inner.lock();
    let current = inner.shelf.get(&ask.bucket, &ask.key);
    if let Err(refused) = conditions.iter().try_for_each(|condition| condition.check(current)) {
        return *refused;
    }
    let was_there = inner.shelf.remove(&ask.bucket, &ask.key);
    if was_there || state.dialect.deletes_nothing() {
        empty(StatusCode::NO_CONTENT)
    } else {
        no_such_key()
    }
}

pub(super) fn delete_many(state: &State, ask: &Ask) -> Answer {
    let denied = state.denies(Op::Delete);
    let mut results = String::new();
    for key in xml::inside(&ask.text(), "Key") {
        let shown = leaf("Key", &xml::unescape(key));
        if denied {
            let why = "<Code>AccessDenied</Code><Message>Access Denied</Message>";
            results.push_str(&format!("<Error>{shown}{why}</Error>"));
        } else {
            state.inner.lock().shelf.remove(&ask.bucket, &xml::unescape(key));
            results.push_str(&format!("<Deleted>{shown}</Deleted>"));
        }
    }
    xml::document(StatusCode::OK, "DeleteResult", &results)
}
