//! Uploads in parts. Parts may be of any size here; the real stores want 5 MiB for all but the
//! last.

use http::StatusCode;

use super::State;
use super::ask::Ask;
use super::dialect::not_implemented;
use super::route::empty;
use super::shelf::{Object, Pending};
use super::write::{attributes, store};
use crate::clock::iso_date;
use crate::xml::{self, Answer, leaf};

pub(super) fn begin(state: &State, ask: &Ask) -> Answer {
    let pending = Pending::new(&ask.bucket, &ask.key, state.clock.now(), attributes(&ask.headers));
    let id = state.inner.lock().shelf.begin(pending);
    let content =
        [leaf("Bucket", &ask.bucket), leaf("Key", &ask.key), leaf("UploadId", &id)].concat();
    xml::document(StatusCode::OK, "InitiateMultipartUploadResult", &content)
}

pub(super) fn part(state: &State, ask: &Ask, id: &str) -> Answer {
    if ask.headers.contains_key(state.dialect.copy_source()) {
        return not_implemented("this double does not copy parts");
    }
    let Some(number) = ask.query("partNumber").and_then(|text| text.parse().ok()) else {
        return xml::error(StatusCode::BAD_REQUEST, "InvalidArgument", "partNumber is no number");
    };
    let part = Object::new(ask.body.clone(), state.clock.now(), http::HeaderMap::new());
    let mut inner = state.inner.lock();
    let Some(pending) = inner.shelf.upload(&ask.bucket, &ask.key, id) else {
        return no_such_upload();
    };
    let mut answer = empty(StatusCode::OK);
    answer.headers_mut().insert("etag", super::dialect::value(&part.etag));
    pending.parts.insert(number, part);
    answer
}

pub(super) async fn complete(state: &State, ask: &Ask, id: &str) -> Answer {
    let wanted = wanted_parts(&ask.text());
    if wanted.is_empty() || !wanted.is_sorted_by(|(one, _), (next, _)| one < next) {
        let message = "The list of parts was empty or not in ascending order.";
        return xml::error(StatusCode::BAD_REQUEST, "InvalidPartOrder", message);
    }
    let assembled = {
        let mut inner = state.inner.lock();
        let Some(pending) = inner.shelf.upload(&ask.bucket, &ask.key, id) else {
            return no_such_upload();
        };
        pending.assemble(&wanted, state.clock.now())
    };
    let Some(object) = assembled else {
        let message = "One or more of the specified parts could not be found.";
        return xml::error(StatusCode::BAD_REQUEST, "InvalidPart", message);
    };
    match store(state, ask, object).await {
        Err(refused) => *refused,
        Ok(stored) => {
            state.inner.lock().shelf.end_upload(id);
            let names = [leaf("Bucket", &ask.bucket), leaf("Key", &ask.key)].concat();
            let content = format!("{names}{}", leaf("ETag", &stored.etag));
            let mut answer =
                xml::document(StatusCode::OK, "CompleteMultipartUploadResult", &content);
            state.dialect.describe(&stored, answer.headers_mut());
            answer
        }
    }
}

fn wanted_parts(text: &str) -> Vec<(u32, String)> {
    let parts = xml::inside(text, "Part");
    let read = parts.into_iter().filter_map(|part| {
        let number = xml::inside(part, "PartNumber").first()?.trim().parse().ok()?;
        Some((number, xml::unescape(xml::inside(part, "ETag").first()?.trim())))
    });
    read.collect()
}

pub(super) fn abort(state: &State, ask: &Ask, id: &str) -> Answer {
    let mut inner = state.inner.lock();
    if inner.shelf.upload(&ask.bucket, &ask.key, id).is_none() {
        return no_such_upload();
    }
    inner.shelf.end_upload(id);
    empty(StatusCode::NO_CONTENT)
}

pub(super) fn list(state: &State, ask: &Ask) -> Answer {
    let prefix = ask.query("prefix").unwrap_or_default();
    let inner = state.inner.lock();
    let mut content = [leaf("Bucket", &ask.bucket), leaf("IsTruncated", "false")].concat();
    let uploads = inner.shelf.uploads(&ask.bucket);
    for (id, pending) in uploads.filter(|(_, pending)| pending.key.starts_with(prefix)) {
        let since = leaf("Initiated", &iso_date(pending.since));
        let names = [leaf("Key", &pending.key), leaf("UploadId", id)].concat();
        content.push_str(&format!("<Upload>{names}{since}</Upload>"));
    }
    xml::document(StatusCode::OK, "ListMultipartUploadsResult", &content)
}

fn no_such_upload() -> Answer {
    let message = "The specified upload does not exist.";
    xml::error(StatusCode::NOT_FOUND, "NoSuchUpload", message)
}
