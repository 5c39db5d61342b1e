//! From a request to an answer.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;

use super::ask::Ask;
use super::dialect::{not_implemented, value};
use super::{State, listing, multipart, read, write};
use crate::clock::http_date;
use crate::op::Op;
use crate::serve::Hangup;
use crate::xml::{self, Answer};

pub(super) async fn answer(
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Answer, Hangup> {
    let ask = Ask::read(request).await?;
    state.tally.count(ask.op);
    let mut answer = match state.refusal(&ask) {
        Some(denied) => denied,
        None if ask.key.is_empty() => about_bucket(&state, &ask),
        None => about_object(&state, &ask).await,
    };
    let headers = answer.headers_mut();
    headers.insert("date", value(&http_date(state.clock.now())));
    headers.insert("server", HeaderValue::from_static("lockd-cloud"));
    Ok(answer)
}

fn about_bucket(state: &State, ask: &Ask) -> Answer {
    match ask.method.as_str() {
        "GET" if ask.has("uploads") => multipart::list(state, ask),
        "GET" if ask.has("location") => {
            xml::document(StatusCode::OK, "LocationConstraint", "us-east-1")
        }
        "GET" => listing::list(state, ask),
        "POST" if ask.has("delete") => write::delete_many(state, ask),
        "PUT" | "HEAD" => empty(StatusCode::OK),
        "DELETE" => empty(StatusCode::NO_CONTENT),
        _ => not_implemented("this double does not know that request to a bucket"),
    }
}

async fn about_object(state: &State, ask: &Ask) -> Answer {
    let upload = ask.query("uploadId");
    match (ask.method.as_str(), upload) {
        ("GET" | "HEAD", None) => read::read(state, ask),
        ("PUT", None) => write::put(state, ask).await,
        ("PUT", Some(id)) => multipart::part(state, ask, id),
        ("POST", None) if ask.has("uploads") => multipart::begin(state, ask),
        ("POST", Some(id)) => multipart::complete(state, ask, id).await,
        ("DELETE", None) => write::delete(state, ask),
        ("DELETE", Some(id)) => multipart::abort(state, ask, id),
        _ => not_implemented("this double does not know that request to an object"),
    }
}

impl State {
    /// What is denied as a whole. Deleting many is denied key by key, as AWS does.
    fn refusal(&self, ask: &Ask) -> Option<Answer> {
        let op = ask.op?;
        let by_key = op == Op::Delete && ask.has("delete");
        (self.denies(op) && !by_key)
            .then(|| xml::error(StatusCode::FORBIDDEN, "AccessDenied", "Access Denied"))
    }

    pub(super) fn denies(&self, op: Op) -> bool {
        self.inner.lock().denied.contains(&op)
    }
}

pub(super) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = status;
    answer
}
