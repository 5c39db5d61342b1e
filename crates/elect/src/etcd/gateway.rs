//! etcd's JSON gateway: requests as JSON, keys and values in Base64, numbers as texts.
//!
//! Any member may answer. One that fails or is silent is left for the next, at once and for all
//! that comes after, so every request here must bear being made twice: what changes a key compares
//! its revision, and a lease has a number that was chosen before.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lockd_client::chain;
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::lock::LockError;
use crate::tls::Tls;

/// How etcd is reached.
#[derive(Clone)]
pub struct EtcdSettings {
    endpoints: Vec<String>,
    user: Option<(String, String)>,
    client: Client,
}

impl fmt::Debug for EtcdSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdSettings({:?})", self.endpoints)
    }
}

/// How long a member may take for an answer, at most and at least; where there are others, a part of
/// the time to live, so that they can be asked while there is time left.
const TIMEOUT: Duration = Duration::from_secs(3);
const TIMEOUT_MIN: Duration = Duration::from_millis(400);
const TIMEOUT_PART: u32 = 6;
/// The longest line of a watch.
const EVENT_MAX: usize = 1024 * 1024;
/// How long to wait for a lease that is almost over.
const LAST_PART: Duration = Duration::from_millis(200);

impl EtcdSettings {
    /// From `etcd://[user:password@]host:port,host:port`, `etcds://` over TLS.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn parse(url: &str, tls: &Tls) -> Result<Self, String> {
        let wrong = || format!("{url:?} is not written as etcd://host:port,host:port");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let scheme = match scheme {
            "etcd" => "http",
            "etcds" => "https",
            _ => return Err(wrong()),
        };
        let (user, hosts) = match rest.trim_end_matches('/').rsplit_once('@') {
            Some((user, hosts)) => {
                let (name, password) = user.split_once(':').ok_or_else(wrong)?;
                let decoded = |text: &str| {
                    let text = percent_encoding::percent_decode_str(text).decode_utf8();
                    text.map(Into::into).map_err(|_| wrong())
                };
                (Some((decoded(name)?, decoded(password)?)), hosts)
            }
            None => (None, rest.trim_end_matches('/')),
        };
        if hosts.is_empty() || hosts.split(',').any(str::is_empty) {
            return Err(wrong());
        }
        let endpoints = hosts.split(',').map(|host| format!("{scheme}://{host}")).collect();
        if scheme == "http" && tls.is_given() {
            return Err("etcd:// is without TLS: with certificates it is etcds://".into());
        }
        let config = match scheme {
            "http" => nobody(),
            _ => tls.config()?,
        };
        let builder = Client::builder().connect_timeout(TIMEOUT).tls_backend_preconfigured(config);
        let client = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { endpoints, user, client })
    }
}

/// TLS that is never spoken: nothing needs to be known of whom this machine trusts.
fn nobody() -> rustls::ClientConfig {
    let roots = rustls::RootCertStore::empty();
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) value: String,
    /// Of its latest change.
    pub(super) revision: i64,
    /// Zero without one.
    pub(super) lease: i64,
}

/// What came of a transaction.
pub(super) struct Answer {
    pub(super) succeeded: bool,
    /// What was read, in the order of the operations.
    pub(super) kept: Vec<Option<Kept>>,
    /// As of when.
    pub(super) revision: i64,
}

/// The key was last changed there; zero if it must not exist.
pub(super) struct Compare<'a> {
    pub(super) key: &'a str,
    pub(super) revision: i64,
}

pub(super) enum Operation<'a> {
    Get(&'a str),
    Put { key: &'a str, value: &'a str, lease: i64 },
    Delete(&'a str),
}

impl Operation<'_> {
    fn written(&self) -> Value {
        match self {
            Self::Get(key) => json!({"requestRange": {"key": BASE64.encode(key)}}),
            Self::Put { key, value, lease } => json!({"requestPut": {
                "key": BASE64.encode(key),
                "value": BASE64.encode(value),
                "lease": lease.to_string(),
            }}),
            Self::Delete(key) => json!({"requestDeleteRange": {"key": BASE64.encode(key)}}),
        }
    }
}

pub(super) struct Gateway {
    settings: EtcdSettings,
    timeout: Duration,
    /// The member that is asked first.
    first: AtomicUsize,
    /// Shown with every request, where there is a user.
    token: Mutex<Option<String>>,
}

/// A member that was asked. Unless it answers, also if nobody waits for that any more, another one
/// is asked first from now on.
struct Asked<'a> {
    first: &'a AtomicUsize,
    member: usize,
    next: usize,
    answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.answered {
            self.first.store(self.member, Ordering::Relaxed);
        } else {
            let (relaxed, member) = (Ordering::Relaxed, self.member);
            let _others = self.first.compare_exchange(member, self.next, relaxed, relaxed);
        }
    }
}

impl Gateway {
    pub(super) fn new(settings: EtcdSettings, ttl: Duration) -> Self {
        let alone = settings.endpoints.len() < 2;
        let timeout =
            if alone { TIMEOUT } else { (ttl / TIMEOUT_PART).clamp(TIMEOUT_MIN, TIMEOUT) };
        Self { settings, timeout, first: AtomicUsize::new(0), token: Mutex::new(None) }
    }

    /// Nothing happens unless all of the keys are as they should be.
    pub(super) async fn transact(
        &self,
        compares: &[Compare<'_>],
        then: &[Operation<'_>],
    ) -> Result<Answer, LockError> {
        let compares: Vec<Value> = compares
            .iter()
            .map(|compare| {
                json!({
                    "key": BASE64.encode(compare.key),
                    "target": "MOD",
                    "result": "EQUAL",
                    "modRevision": compare.revision.to_string(),
                })
            })
            .collect();
        let then: Vec<Value> = then.iter().map(Operation::written).collect();
        let answer = self.ask("/v3/kv/txn", &json!({"compare": compares, "success": then})).await?;
        let revision = number(at(&answer, "/header/revision")).ok_or_else(|| garbled(&answer))?;
        let responses = at(&answer, "/responses").as_array().cloned().unwrap_or_default();
        let kept = responses.iter().map(|one| kept(at(one, "/response_range/kvs/0"))).collect();
        let succeeded = at(&answer, "/succeeded").as_bool().unwrap_or(false);
        Ok(Answer { succeeded, kept, revision })
    }

    /// A lease of this number for that time, rounded up to what etcd can count.
    pub(super) async fn grant(&self, lease: i64, ttl: Duration) -> Result<(), LockError> {
        let seconds = ttl.as_millis().div_ceil(1_000).to_string();
        let body = json!({"ID": lease.to_string(), "TTL": seconds});
        match self.ask("/v3/lease/grant", &body).await {
            Ok(_) => Ok(()),
            // By the same request, a moment ago: one member did it, and another one was asked.
            Err(LockError::Refused(why)) if why.contains("already exists") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether it is still there.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<bool, LockError> {
        let answer = self.ask("/v3/lease/keepalive", &json!({"ID": lease.to_string()})).await?;
        Ok(number(at(&answer, "/result/TTL")).is_some_and(|left| left > 0))
    }

    pub(super) async fn remaining(&self, lease: i64) -> Result<Option<Duration>, LockError> {
        if lease == 0 {
            return Ok(None);
        }
        let answer = self.ask("/v3/lease/timetolive", &json!({"ID": lease.to_string()})).await?;
        let left = number(at(&answer, "/TTL")).and_then(|left| u64::try_from(left).ok());
        // Whole seconds, rounded down: the last one may be any part of one.
        Ok(Some(Duration::from_secs(left.unwrap_or(0)).max(LAST_PART)))
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<(), LockError> {
        match self.ask("/v3/lease/revoke", &json!({"ID": lease.to_string()})).await {
            // It may be over by itself.
            Ok(_) | Err(LockError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends when the key is deleted after that revision. A watch that breaks never ends.
    pub(super) async fn deleted(&self, key: &str, since: i64) {
        // From the beginning of the watch on, if it is zero.
        let start = if since > 0 { since + 1 } else { 0 };
        let body = json!({"create_request": {
            "key": BASE64.encode(key),
            "filters": ["NOPUT"],
            "start_revision": start.to_string(),
        }});
        let opened = self.send("/v3/watch", &body, Duration::MAX);
        let Ok(Ok(mut answer)) = tokio::time::timeout(self.timeout, opened).await else {
            return std::future::pending().await;
        };
        let mut heard = Vec::new();
        while let Ok(Some(piece)) = answer.chunk().await {
            heard.extend_from_slice(&piece);
            if heard.len() > EVENT_MAX {
                break;
            }
            while let Some(end) = heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = heard.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap_or_default();
                if at(&event, "/result/events").as_array().is_some_and(|events| !events.is_empty())
                {
                    return;
                }
            }
        }
        // The next look finds out.
        std::future::pending::<()>().await;
    }

    async fn ask(&self, path: &str, body: &Value) -> Result<Value, LockError> {
        let answer = self.send(path, body, self.timeout).await?;
        answer.json().await.map_err(|error| {
            // It began to answer, and stopped.
            let next = self.first.load(Ordering::Relaxed) + 1;
            self.first.store(next % self.settings.endpoints.len().max(1), Ordering::Relaxed);
            LockError::Unavailable(chain(&error))
        })
    }

    /// The answer of the first member that has one.
    async fn send(
        &self,
        path: &str,
        body: &Value,
        timeout: Duration,
    ) -> Result<Response, LockError> {
        let endpoints = &self.settings.endpoints;
        let mut failed = LockError::Unavailable("there are no endpoints".into());
        let first = self.first.load(Ordering::Relaxed);
        let turns = endpoints.iter().enumerate().cycle().skip(first).take(endpoints.len());
        for (member, endpoint) in turns {
            let next = (member + 1) % endpoints.len();
            let mut asked = Asked { first: &self.first, member, next, answered: false };
            match self.send_to(endpoint, path, body, timeout).await {
                Ok(answer) => {
                    asked.answered = true;
                    return Ok(answer);
                }
                Err(error @ LockError::Refused(_)) => {
                    asked.answered = true;
                    return Err(error);
                }
                Err(error @ LockError::Unavailable(_)) => failed = error,
            }
        }
        Err(failed)
    }

    async fn send_to(
        &self,
        endpoint: &str,
        path: &str,
        body: &Value,
        timeout: Duration,
    ) -> Result<Response, LockError> {
        let mut request = self.settings.client.post(format!("{endpoint}{path}")).json(body);
        if timeout < Duration::MAX {
            request = request.timeout(timeout);
        }
        if let Some(token) = self.token(endpoint).await? {
            request = request.header("authorization", token);
        }
        let answer = request.send().await;
        let answer = answer.map_err(|error| LockError::Unavailable(chain(&error)))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(self.refused(answer).await)
    }

    async fn token(&self, endpoint: &str) -> Result<Option<String>, LockError> {
        let Some((name, password)) = &self.settings.user else { return Ok(None) };
        let mut token = self.token.lock().await;
        if token.is_none() {
            let body = json!({"name": name, "password": password});
            let url = format!("{endpoint}/v3/auth/authenticate");
            let asked = self.settings.client.post(url).timeout(self.timeout).json(&body).send();
            let answer = asked.await.map_err(|error| LockError::Unavailable(chain(&error)))?;
            if answer.status().is_server_error() {
                return Err(LockError::Unavailable(answer.status().to_string()));
            }
            if !answer.status().is_success() {
                return Err(LockError::Refused(format!("etcd refuses the user {name:?}")));
            }
            let answer: Value =
                answer.json().await.map_err(|error| LockError::Unavailable(chain(&error)))?;
            *token = at(&answer, "/token").as_str().map(Into::into);
        }
        Ok(token.clone())
    }

    async fn refused(&self, answer: Response) -> LockError {
        let status = answer.status();
        let body: Value = answer.json().await.unwrap_or_default();
        let why = at(&body, "/error").as_str().or_else(|| at(&body, "/message").as_str());
        let text = why.map_or_else(|| status.to_string(), Into::into);
        if status == StatusCode::UNAUTHORIZED || text.contains("auth token") {
            // Asked for anew with the next request.
            *self.token.lock().await = None;
            return LockError::Unavailable(text);
        }
        if status.is_server_error() || text.contains("leader") || text.contains("timed out") {
            return LockError::Unavailable(text);
        }
        LockError::Refused(text)
    }
}

/// A part of an answer; nothing where there is none.
fn at<'a>(answer: &'a Value, path: &str) -> &'a Value {
    answer.pointer(path).unwrap_or(&Value::Null)
}

fn kept(written: &Value) -> Option<Kept> {
    let value = BASE64.decode(at(written, "/value").as_str()?).ok()?;
    Some(Kept {
        value: String::from_utf8(value).ok()?,
        revision: number(at(written, "/mod_revision"))?,
        lease: number(at(written, "/lease")).unwrap_or(0),
    })
}

fn number(written: &Value) -> Option<i64> {
    written.as_str().and_then(|text| text.parse().ok()).or_else(|| written.as_i64())
}

fn garbled(answer: &Value) -> LockError {
    LockError::Unavailable(format!("an answer that is not etcd's: {answer}"))
}
