//! A request before it is sent: what to ask, and how long and how often to ask it.
//!
//! A call can be turned into an HTTP request any number of times, and each is the same, so that a
//! repetition is always a repetition of the same call.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use lockd_wire::header;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::body::{Source, Upload};
use crate::clock::Moment;
use crate::endpoint::Endpoint;
use crate::error::{Failed, Failure};

/// Everything but what a query value may hold as it is.
const QUERY: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Parameters that name something.
const NAMES: [&str; 4] = ["namespace", "key", "queue", "message_id"];

/// Whether a request that may have had its effect can be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing, or nothing more the second time.
    Harmless,
    /// It carries a name by which the server recognises the repetition.
    Named,
    /// Only when it certainly did nothing.
    Unsent,
}

/// How long and how often to ask.
#[derive(Clone)]
pub(crate) struct Patience {
    /// Longest silence within one attempt; `None` for waits that have no end.
    pub(crate) silence: Option<Duration>,
    /// How often all endpoints are tried while none of them can be reached.
    pub(crate) passes: u32,
    /// How often all endpoints are tried once one of them was.
    pub(crate) passes_reached: u32,
    /// When to stop, whatever the number of passes.
    pub(crate) until: Option<Moment>,
    /// Asked before each repetition: whether there still is a point in it.
    pub(crate) worth: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

#[derive(Debug)]
pub(crate) struct Call {
    method: Method,
    path: Cow<'static, str>,
    query: Vec<(&'static str, String)>,
    headers: HeaderMap,
    body: Source,
    /// What is named by an empty text: then the call is not made.
    empty: Option<&'static str>,
    pub(crate) repeat: Repeat,
    pub(crate) patience: Patience,
}

impl Call {
    /// A call without a body.
    pub(crate) fn new(
        method: Method,
        path: impl Into<Cow<'static, str>>,
        patience: Patience,
    ) -> Self {
        Self {
            method,
            path: path.into(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: Source::bytes(""),
            empty: None,
            repeat: Repeat::Harmless,
            patience,
        }
    }

    pub(crate) fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    pub(crate) fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        let value = value.into();
        if NAMES.contains(&name) {
            self = self.naming(name, Some(&value));
        }
        self.query.push((name, value));
        self
    }

    /// Says what the body names. Servers differ in what they make of an empty name: some fill in
    /// another one. So a call with one is never made.
    pub(crate) fn naming(mut self, what: &'static str, name: Option<&str>) -> Self {
        if name.is_some_and(|name| name.trim().is_empty()) {
            self.empty.get_or_insert(what);
        }
        self
    }

    /// The call, if all that it names has a name.
    pub(crate) fn checked(self) -> Result<Self, Failed> {
        match self.empty {
            Some(what) => Err(Failure::invalid(format!("the {what} is empty"))),
            None => Ok(self),
        }
    }

    pub(crate) fn query_if(self, name: &'static str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// Adds a header; several of one name are kept in order.
    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Result<Self, Failed> {
        if [header::LEASE_ID, header::TXN_ID].contains(&name) {
            self = self.naming(name, Some(value)).checked()?;
        }
        let value = HeaderValue::from_str(value)
            .map_err(|error| Failure::invalid(format!("bad value for {name}")).because(error))?;
        self.headers.append(HeaderName::from_static(name), value);
        Ok(self)
    }

    pub(crate) fn header_if(self, name: &'static str, value: Option<&str>) -> Result<Self, Failed> {
        match value {
            Some(value) => self.header(name, value),
            None => Ok(self),
        }
    }

    /// Names the call, so that the server recognises a repetition.
    pub(crate) fn named(self, key: &str) -> Result<Self, Failed> {
        self.repeat(Repeat::Named).header(header::IDEMPOTENCY_KEY, key)
    }

    pub(crate) fn json<T: Serialize>(self, value: &T) -> Result<Self, Failed> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| Failure::source("the request cannot be encoded", error))?;
        Ok(self.body(Source::bytes(bytes)))
    }

    pub(crate) fn body(mut self, body: Source) -> Self {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.body = body;
        self
    }

    /// A body that is not JSON.
    pub(crate) fn body_of(mut self, content_type: HeaderValue, body: Source) -> Self {
        self.headers.insert(CONTENT_TYPE, content_type);
        self.body = body;
        self
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The request for one attempt; `None` when its body was used up by an earlier one.
    pub(crate) async fn request(&self, to: &Endpoint) -> Result<Option<Request<Upload>>, Failed> {
        if let Some(what) = self.empty {
            return Err(Failure::invalid(format!("the {what} is empty")));
        }
        let opened = self.body.open().await;
        let opened = opened
            .map_err(|error| Failure::source("the document to send cannot be opened", error))?;
        let Some(body) = opened else { return Ok(None) };
        let uri = Uri::builder()
            .scheme("http")
            .authority(to.authority().clone())
            .path_and_query(self.target())
            .build()
            .map_err(|error| Failure::invalid("the request has no valid address").because(error))?;
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = self.headers.clone();
        Ok(Some(request))
    }

    fn target(&self) -> String {
        let mut target = self.path.clone().into_owned();
        let mut sign = '?';
        for (name, value) in &self.query {
            target.push(sign);
            target.push_str(name);
            target.push('=');
            target.extend(utf8_percent_encode(value, QUERY));
            sign = '&';
        }
        target
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience")
            .field("silence", &self.silence)
            .field("passes", &self.passes)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

/// Names one call; 128 random bits, so that no two are ever the same.
pub(crate) fn new_request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Call {
        let patience =
            Patience { silence: None, passes: 1, passes_reached: 1, until: None, worth: None };
        Call::new(Method::POST, "/v1/get", patience)
    }

    #[tokio::test]
    async fn values_are_escaped_and_slashes_stay_readable() {
        let endpoint = Endpoint::parse("http://h:1").unwrap();
        let call = call().query("key", "a b/ü&x=1").query_if("namespace", None).query("n", "+");
        let request = call.request(&endpoint).await.unwrap().unwrap();
        assert_eq!(request.uri().to_string(), "http://h:1/v1/get?key=a%20b/%C3%BC%26x%3D1&n=%2B");
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused_before_sending() {
        let failure = call().header(header::LEASE_ID, "two\nlines").unwrap_err();
        assert_eq!(failure.to_string(), "bad value for x-lease-id");
    }

    #[test]
    fn request_ids_differ() {
        assert_ne!(new_request_id(), new_request_id());
        assert_eq!(new_request_id().len(), 32);
    }
}
