//! One request on its way through the API: what it asks, who serves it, and what it is called in
//! the logs.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};
use lockd_core::ids::LeaseId;
use lockd_core::key::KeyName;
use lockd_core::queue::{self, QueueName, Role};
use lockd_pki::{Access, Namespaces};
use lockd_wire::{ErrorCode, header as names};

use super::auth::{self, Right, Who};
use super::delivery::{Outbox, Watching};
use super::error::ApiError;
use super::request::{self, Params};
use super::router::Api;
use crate::app::App;

/// A request without its body.
pub(crate) struct Call {
    pub(crate) api: Api,
    pub(crate) correlation: Correlation,
    pub(crate) outbox: Option<Outbox>,
    who: Who,
    right: Right,
    head: Parts,
}

/// Through whom a request came in.
#[derive(Clone, Default)]
pub(crate) struct Origin {
    pub(crate) outbox: Option<Outbox>,
    pub(crate) who: Who,
}

impl Call {
    pub(crate) fn new(api: Api, head: Parts, origin: Origin, right: Right) -> Self {
        let correlation = Correlation::of(&api.app, &head.headers);
        Self { api, correlation, outbox: origin.outbox, who: origin.who, right, head }
    }

    pub(super) fn who(&self) -> &Who {
        &self.who
    }

    pub(super) fn right(&self) -> Right {
        self.right
    }

    /// A key as the caller names it, if it may touch it in the way of this route. Messages are
    /// not touched by their keys.
    pub(super) fn key(&self, namespace: Option<&str>, key: &str) -> Result<KeyName, ApiError> {
        no_message(self.any_key(namespace, key)?)
    }

    /// The same, written with its namespace.
    pub(super) fn full_key(&self, key: &str) -> Result<KeyName, ApiError> {
        no_message(self.permitted(KeyName::parse_full(key)?)?)
    }

    /// The same, for those who may touch messages too.
    pub(super) fn any_key(&self, namespace: Option<&str>, key: &str) -> Result<KeyName, ApiError> {
        self.permitted(self.api.app.key(namespace, key)?)
    }

    /// A queue as the caller names it, if it may touch it in the way of this route.
    pub(super) fn queue(
        &self,
        namespace: Option<&str>,
        queue: Option<&str>,
    ) -> Result<QueueName, ApiError> {
        let Some(queue) = queue.map(str::trim).filter(|queue| !queue.is_empty()) else {
            return Err(request::bad(ErrorCode::MissingQueue, "say which queue: queue"));
        };
        let queue = QueueName::parse(self.api.app.namespace(namespace), queue)?;
        self.permit(queue.namespace())?;
        Ok(queue)
    }

    /// The key in the query string.
    pub(super) fn query_key(&self, params: &Params<'_>) -> Result<KeyName, ApiError> {
        self.key(params.given("namespace"), params.get("key").unwrap_or_default())
    }

    /// The key of a lease that is named by its id alone. A lease in a namespace that the caller
    /// has no claim on is as unknown as one that never was.
    pub(super) fn key_of_lease(&self, lease: &LeaseId) -> Result<Option<KeyName>, ApiError> {
        let key = self.api.app.key_of_lease(lease);
        let key = key.filter(|key| self.knows(key.namespace()));
        key.map(|key| no_message(self.permitted(key)?)).transpose()
    }

    pub(super) fn permitted(&self, key: KeyName) -> Result<KeyName, ApiError> {
        self.permit(key.namespace())?;
        Ok(key)
    }

    /// Whether the caller may work in this namespace in the way of this route.
    pub(super) fn permit(&self, namespace: &str) -> Result<(), ApiError> {
        match self.right {
            Right::Namespace(access) => self.permit_to(namespace, access),
            // Decided at the entrance.
            Right::Open | Right::Everything | Right::TcClient | Right::TcServer => Ok(()),
        }
    }

    pub(super) fn permit_to(&self, namespace: &str, access: Access) -> Result<(), ApiError> {
        auth::permit(&self.who, namespace, access)
    }

    /// Whether the caller may read and write every namespace.
    pub(super) fn permit_everywhere(&self) -> Result<(), ApiError> {
        auth::permit_everywhere(&self.who)
    }

    /// The namespaces that the caller may read.
    pub(super) fn readable(&self) -> Namespaces {
        auth::namespaces(&self.who, Access::Read)
    }

    /// Whether the caller has any claim on this namespace.
    pub(super) fn knows(&self, namespace: &str) -> bool {
        self.permit_to(namespace, Access::Any).is_ok()
    }

    /// What a request needs while it waits: not its head, which holds on to a buffer.
    pub(super) fn for_waiting(self) -> Waiter {
        let watching = self.watch();
        let Self { api, correlation, outbox, .. } = self;
        Waiter { api, correlation, outbox, watching }
    }

    /// While this lives, the request ends when its client goes, even behind unread bytes.
    pub(super) fn watch(&self) -> Option<Watching> {
        self.outbox.as_ref().map(Outbox::watch)
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

fn no_message(key: KeyName) -> Result<KeyName, ApiError> {
    match queue::role(&key) {
        Some(Role::Message) => Err(belongs_to_queue()),
        Some(Role::State) | None => Ok(key),
    }
}

/// What is refused about keys that a queue has made.
pub(super) fn belongs_to_queue() -> ApiError {
    let detail = "this key belongs to a queue: use /v1/queue/dequeue, ack, nack and extend";
    request::bad(ErrorCode::InvalidKey, detail)
}

/// A request whose head is gone.
pub(super) struct Waiter {
    pub(super) api: Api,
    pub(super) correlation: Correlation,
    pub(super) outbox: Option<Outbox>,
    pub(super) watching: Option<Watching>,
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
