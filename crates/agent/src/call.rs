//! One question to a controller, and what its answer means. Where the next question goes follows
//! from it; whether there is a next one is for others to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockd_client::chain;
use lockd_wire::job::{LEASES, RESULTS, STALE_EPOCH, STALE_LEASE, StaleEpoch};
use lockd_wire::node::{LEADER_EPOCH_HEADER, NOT_LEADER, NotLeader};
use parking_lot::Mutex;
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::routes::Routes;
use crate::settings::{AgentSettings, SettingsError};

/// The longest that a controller may take to be connected to.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// A machine that has vanished is noticed by this, while a question waits there.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
const ALIVE_RETRIES: u32 = 3;
/// The largest answer: a job with all that it brings, as JSON.
const ANSWER_MAX: usize = 8 * 1024 * 1024;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    Work,
    Renew(&'a str),
    Release(&'a str),
    Result,
}

impl Call<'_> {
    fn url(self, base: &str) -> Option<reqwest::Url> {
        let mut url: reqwest::Url = base.parse().ok()?;
        let (path, rest) = match self {
            Self::Work => (LEASES, None),
            Self::Renew(lease) => (LEASES, Some([lease, "renew"])),
            Self::Release(lease) => (LEASES, Some([lease, "release"])),
            Self::Result => (RESULTS, None),
        };
        let words = path.split('/').filter(|word| !word.is_empty());
        url.path_segments_mut()
            .ok()?
            .pop_if_empty()
            .extend(words.chain(rest.into_iter().flatten()));
        Some(url)
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Reply {
    Done(Vec<u8>),
    /// There is nothing; ask again after this, if it says so.
    Nothing(Option<Duration>),
    Stale(Arc<str>, StaleEpoch),
    Refused(Arc<str>, Refusal),
    /// Nothing definite. At once: somebody else is to be asked, who is said to lead.
    Unclear {
        at_once: bool,
    },
}

/// A refusal that does not go away by asking again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) code: String,
    /// Of whoever refused.
    pub(crate) leader_epoch: Option<u64>,
}

/// All controllers, of which one is asked.
#[derive(Debug)]
pub(crate) struct Controllers {
    http: reqwest::Client,
    routes: Mutex<Routes>,
    here: watch::Sender<Arc<str>>,
    is_silent: AtomicBool,
}

impl Controllers {
    pub(crate) fn new(settings: &AgentSettings) -> Result<Self, SettingsError> {
        let routes = Routes::new(&settings.controllers);
        let here = watch::Sender::new(routes.current());
        let http = http(settings)?;
        Ok(Self { http, routes: Mutex::new(routes), here, is_silent: AtomicBool::new(false) })
    }

    /// Tells when somebody else is asked.
    pub(crate) fn moves(&self) -> watch::Receiver<Arc<str>> {
        self.here.subscribe()
    }

    /// Asks once, whoever is to be asked now.
    pub(crate) async fn ask(
        &self,
        call: Call<'_>,
        body: &impl Serialize,
        within: Duration,
    ) -> Reply {
        let here = self.routes.lock().current();
        let answered = tokio::time::timeout(within, self.send(&here, call, body)).await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return self.missed(&here, &why),
            Err(_) => return self.missed(&here, "no answer in time"),
        };
        let reply = self.understand(&here, answer);
        if !matches!(reply, Reply::Unclear { .. }) {
            self.heard(&here);
        }
        reply
    }

    /// It cannot be believed: somebody else is asked next.
    pub(crate) fn leave(&self, asked: &str) {
        self.route(|routes| routes.missed(asked));
    }

    async fn send(
        &self,
        base: &str,
        call: Call<'_>,
        body: &impl Serialize,
    ) -> Result<Answer, String> {
        let url = call.url(base).ok_or("its URL has no path")?;
        let body = serde_json::to_vec(body).map_err(|error| error.to_string())?;
        let json = HeaderValue::from_static("application/json");
        let request =
            self.http.post(url).header(reqwest::header::CONTENT_TYPE, json).body(body).send();
        let mut answer = request.await.map_err(|error| chain(&error.without_url()))?;
        let (status, headers) = (answer.status(), std::mem::take(answer.headers_mut()));
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(|error| chain(&error.without_url()))? {
            body.extend_from_slice(&piece);
            if body.len() > ANSWER_MAX {
                return Err("its answer is too large".into());
            }
        }
        Ok(Answer { status, headers, body })
    }

    fn understand(&self, here: &Arc<str>, answer: Answer) -> Reply {
        let code = answer.parsed::<Code>().map(|code| code.error).unwrap_or_default();
        match answer.status.as_u16() {
            204 => Reply::Nothing(answer.number(RETRY_AFTER.as_str()).map(Duration::from_secs)),
            200..=299 => Reply::Done(answer.body),
            409 if code == NOT_LEADER => {
                let leader = answer.parsed::<NotLeader>().and_then(|body| body.leader_url);
                let mut at_once = false;
                self.route(|routes| at_once = routes.pointed(here, leader.as_deref()));
                Reply::Unclear { at_once }
            }
            409 if [STALE_EPOCH, STALE_LEASE].contains(&code.as_str()) => {
                let stale = answer.parsed().unwrap_or_default();
                Reply::Stale(Arc::clone(here), stale)
            }
            status @ (400 | 404 | 405 | 409 | 410 | 413 | 422) => {
                let leader_epoch = answer.number(LEADER_EPOCH_HEADER);
                Reply::Refused(Arc::clone(here), Refusal { status, code, leader_epoch })
            }
            status => self.missed(here, &format!("it answers {status} {code}")),
        }
    }

    fn missed(&self, here: &str, why: &str) -> Reply {
        self.route(|routes| routes.missed(here));
        // Said once, not for every question while nobody leads.
        if self.is_silent.swap(true, Ordering::Relaxed) {
            tracing::debug!(controller = here, why, "no answer from a controller");
        } else {
            tracing::warn!(controller = here, why, "no answer from a controller: others are asked");
        }
        Reply::Unclear { at_once: false }
    }

    fn heard(&self, here: &str) {
        self.routes.lock().answered(here);
        if self.is_silent.swap(false, Ordering::Relaxed) {
            tracing::info!(controller = here, "a controller answers again");
        }
    }

    fn route(&self, change: impl FnOnce(&mut Routes)) {
        let mut routes = self.routes.lock();
        change(&mut routes);
        let now = routes.current();
        self.here.send_if_modified(|here| {
            let is_other = *here != now;
            *here = now;
            is_other
        });
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

#[derive(serde::Deserialize)]
struct Code {
    error: String,
}

impl Answer {
    fn parsed<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }

    fn number(&self, header: &str) -> Option<u64> {
        self.headers.get(header)?.to_str().ok()?.trim().parse().ok()
    }
}

fn http(settings: &AgentSettings) -> Result<reqwest::Client, SettingsError> {
    let mut headers = HeaderMap::new();
    if let Some(token) = &settings.token {
        let mut value =
            HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| SettingsError::Token)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    let mut builder = reqwest::Client::builder()
        .default_headers(headers)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_MAX)
        .tcp_keepalive(ALIVE_EVERY)
        .tcp_keepalive_interval(ALIVE_EVERY)
        .tcp_keepalive_retries(ALIVE_RETRIES);
    // For what is not encrypted, no certificates of authorities are needed: a machine may have none.
    let is_open = settings.controllers.iter().all(|url| url.starts_with("http://"));
    if let Some(config) = settings.tls.clone() {
        builder = builder.tls_backend_preconfigured(config);
    } else if is_open {
        builder = builder.tls_backend_preconfigured(trusts_nobody()?);
    }
    builder.build().map_err(|error| SettingsError::Http(chain(&error)))
}

fn trusts_nobody() -> Result<rustls::ClientConfig, SettingsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SettingsError::Http(error.to_string()))?;
    Ok(config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_stays_within_its_place_in_the_path() {
        let url = |call: Call<'_>, base| call.url(base).unwrap().to_string();
        assert_eq!(url(Call::Work, "http://a"), "http://a/v1/leases");
        assert_eq!(url(Call::Renew("x"), "http://a/b/"), "http://a/b/v1/leases/x/renew");
        assert_eq!(url(Call::Release("../y?"), "http://a"), "http://a/v1/leases/..%2Fy%3F/release");
        assert_eq!(url(Call::Result, "http://a"), "http://a/v1/results");
    }
}
