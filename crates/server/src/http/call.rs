//! One request on its way through the API: what it asks, who serves it, and what it is called in
//! the logs.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use lockd_wire::header as names;

use super::delivery::Outbox;
use super::request::Params;
use super::router::Api;
use crate::app::App;

/// A request without its body.
pub(crate) struct Call {
    pub(crate) api: Api,
    pub(crate) correlation: Correlation,
    pub(crate) outbox: Option<Outbox>,
    head: Parts,
}

impl Call {
    pub(crate) fn new(api: Api, head: Parts, outbox: Option<Outbox>) -> Self {
        let correlation = Correlation::of(&api.app, &head.headers);
        Self { api, correlation, outbox, head }
    }

    /// What a request needs while it waits: not its head, which holds on to a buffer.
    pub(super) fn for_waiting(self) -> Waiter {
        Waiter { api: self.api, correlation: self.correlation, outbox: self.outbox }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    pub(super) fn method(&self) -> &Method {
        &self.head.method
    }

    pub(super) fn path(&self) -> &str {
        self.head.uri.path()
    }

    pub(super) fn params(&self) -> Params<'_> {
        Params::of(self.head.uri.query())
    }

    /// How much the head of the request takes, about.
    pub(super) fn head_bytes(&self) -> usize {
        let headers = self.head.headers.iter();
        let uri = self.path().len() + self.head.uri.query().map_or(0, str::len);
        headers.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>() + uri
    }
}

/// A request whose head is gone.
pub(super) struct Waiter {
    pub(super) api: Api,
    pub(super) correlation: Correlation,
    pub(super) outbox: Option<Outbox>,
}

/// Joins a request, its answer and its log lines.
#[derive(Clone, Debug)]
pub(crate) struct Correlation(HeaderValue);

impl Correlation {
    /// The caller's own if it is printable and short, else a new one. A copy: the connection's
    /// buffer is free again when the head of the request is dropped.
    fn of(app: &App, headers: &HeaderMap) -> Self {
        let sent = headers.get(names::CORRELATION_ID).filter(|sent| {
            let text = sent.as_bytes().trim_ascii();
            (1..=128).contains(&text.len()) && text.iter().all(|byte| (b' '..=b'~').contains(byte))
        });
        if let Some(sent) = sent.and_then(|sent| HeaderValue::from_bytes(sent.as_bytes()).ok()) {
            return Self(sent);
        }
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        let uuid = app.ids.uuid(app.clock().now().wall);
        let text = uuid.hyphenated().encode_lower(&mut text);
        Self(HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("?")))
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap_or_default().trim()
    }

    pub(super) fn into_header(self) -> HeaderValue {
        self.0
    }
}
