//! The other nodes: who they are, and calls to them.

use std::collections::BTreeMap;
use std::time::Duration;

use lockd_client::chain;
use lockd_client::clock::Moment;
use lockd_wire::error::ErrorBody;
use lockd_wire::node::{NodeView, SeenRole};
use reqwest::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::order::millis;
use crate::settings::{NodeSettings, StartError, is_node_id, is_url};

/// The most nodes of one cluster.
pub(crate) const NODES_MAX: usize = 64;
/// A node of which nothing was heard for this long is no longer shown.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);
/// The longest answer of another node that is read.
const ANSWER_MAX: usize = 4 * 1024 * 1024;
/// How long it may take to reach one.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// On what one node asks of another for somebody else, so that it does not go round in circles.
pub(crate) const PASSED_ON: &str = "x-lockd-ha-passed";

/// What the others said of themselves last.
#[derive(Debug)]
pub(crate) struct Table {
    own: String,
    /// Who leads, as the lock told.
    leader: Option<String>,
    known: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    view: NodeView,
    heard: Moment,
}

impl Table {
    pub(crate) fn new(own: &str) -> Self {
        Self { own: own.into(), leader: None, known: BTreeMap::new() }
    }

    /// Said by the node itself, or passed on: then it was silent for a while already. Whether it
    /// was noted.
    pub(crate) fn hear(&mut self, view: NodeView, now: Moment) -> bool {
        if view.node_id == self.own || !is_node_id(&view.node_id) || !is_url(&view.url) {
            return false;
        }
        self.forget(now);
        let newer = |known: &Entry| silence(known, now) >= Duration::from_millis(view.silent_ms);
        match self.known.get(&view.node_id) {
            Some(known) if !newer(known) => return false,
            None if self.known.len() >= NODES_MAX => return false,
            Some(_) | None => {}
        }
        let mut entry = Entry { view, heard: now };
        entry.led_by(self.leader.as_deref());
        self.known.insert(entry.view.node_id.clone(), entry);
        true
    }

    /// The lock tells who leads. What that node said before is over; it is remembered as a leader
    /// until it says otherwise under another one.
    pub(crate) fn lead(&mut self, leader: Option<&str>) {
        if self.leader.as_deref() == leader {
            return;
        }
        self.leader = leader.map(str::to_owned);
        for entry in self.known.values_mut() {
            entry.led_by(leader);
        }
    }

    fn forget(&mut self, now: Moment) {
        self.known.retain(|_, entry| silence(entry, now) < FORGOTTEN_AFTER);
    }

    pub(crate) fn views(&self, now: Moment) -> Vec<NodeView> {
        let shown = |entry: &Entry| NodeView {
            silent_ms: millis(silence(entry, now)),
            ..entry.view.clone()
        };
        self.known.values().map(shown).filter(|it| it.silent_ms < millis(FORGOTTEN_AFTER)).collect()
    }
}

impl Entry {
    fn led_by(&mut self, leader: Option<&str>) {
        let said = self.view.role;
        if leader == Some(self.view.node_id.as_str())
            && matches!(said, SeenRole::Standby | SeenRole::Unknown)
        {
            (self.view.role, self.view.controller) = (SeenRole::Leader, "open".into());
        }
    }
}

fn silence(entry: &Entry, now: Moment) -> Duration {
    Duration::from_millis(entry.view.silent_ms).saturating_add(now.since(entry.heard))
}

/// Why another node did not do it.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("not reached: {0}")]
    Unreached(String),
    #[error("answered {status}: {}", if body.detail.is_empty() { &body.error } else { &body.detail })]
    Refused { status: StatusCode, body: Box<ErrorBody> },
    #[error("not understood: {0}")]
    Unclear(String),
}

/// Calls to other nodes.
#[derive(Clone, Debug)]
pub(crate) struct Callers {
    client: reqwest::Client,
    token: Option<String>,
}

/// An answer, as it came.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
}

impl Callers {
    pub(crate) fn new(settings: &NodeSettings) -> Result<Self, StartError> {
        let nobody = || {
            let none = rustls::RootCertStore::empty();
            rustls::ClientConfig::builder().with_root_certificates(none).with_no_client_auth()
        };
        let tls = settings.peer_tls.clone().unwrap_or_else(nobody);
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .no_proxy()
            .build()
            .map_err(|error| StartError::Client(error.to_string()))?;
        Ok(Self { client, token: settings.token.as_ref().map(|token| token.text.clone()) })
    }

    /// Asks, and waits so long for the answer.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: String,
        body: Option<Vec<u8>>,
        within: Duration,
    ) -> Result<Answer, CallError> {
        let mut request = self.client.request(method, url).timeout(within).header(PASSED_ON, "1");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let unreached = |error: reqwest::Error| CallError::Unreached(chain(&error));
        let mut answer = request.send().await.map_err(unreached)?;
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(unreached)? {
            if body.len() + piece.len() > ANSWER_MAX {
                return Err(CallError::Unclear(format!("more than {ANSWER_MAX} bytes")));
            }
            body.extend_from_slice(&piece);
        }
        Ok(Answer { status: answer.status(), body })
    }

    pub(crate) async fn get<R: DeserializeOwned>(
        &self,
        url: String,
        within: Duration,
    ) -> Result<R, CallError> {
        read(self.send(Method::GET, url, None, within).await?)
    }

    pub(crate) async fn post<R: DeserializeOwned>(
        &self,
        url: String,
        body: &(impl Serialize + Sync),
        within: Duration,
    ) -> Result<R, CallError> {
        let body = serde_json::to_vec(body).map_err(|e| CallError::Unclear(e.to_string()))?;
        read(self.send(Method::POST, url, Some(body), within).await?)
    }
}

fn read<R: DeserializeOwned>(answer: Answer) -> Result<R, CallError> {
    let Answer { status, body } = answer;
    if !status.is_success() {
        let body = serde_json::from_slice(&body).unwrap_or_default();
        return Err(CallError::Refused { status, body: Box::new(body) });
    }
    serde_json::from_slice(&body).map_err(|error| CallError::Unclear(error.to_string()))
}

/// A path at another node.
pub(crate) fn at(url: &str, path: &str) -> String {
    format!("{}{path}", url.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use lockd_client::clock::Clock;

    use super::*;

    fn view(id: &str, silent_ms: u64) -> NodeView {
        NodeView { node_id: id.into(), url: "http://h:1".into(), silent_ms, ..NodeView::default() }
    }

    #[test]
    fn the_latest_word_counts_and_the_silent_are_forgotten() {
        let now = Clock::Boot.now();
        let mut table = Table::new("me");
        assert!(table.hear(view("a", 0), now));
        let later = now.plus(Duration::from_secs(5));
        assert!(!table.hear(view("a", 60_000), later), "older than what is known");
        assert!(table.hear(view("a", 1_000), later), "newer than what is known");
        assert!(!table.hear(view("me", 0), now), "nobody tells a node about itself");
        assert!(!table.hear(NodeView { url: "file:///x".into(), ..view("b", 0) }, now));
        assert_eq!(table.views(later)[0].silent_ms, 1_000);
        let much_later = later.plus(FORGOTTEN_AFTER);
        assert!(table.views(much_later).is_empty());
    }

    #[test]
    fn one_that_leads_is_remembered_as_a_leader_until_it_says_otherwise() {
        let now = Clock::Boot.now();
        let mut table = Table::new("me");
        let standby = NodeView { role: SeenRole::Standby, ..view("a", 0) };
        table.hear(standby.clone(), now);
        table.lead(Some("a"));
        assert_eq!(table.views(now)[0].role, SeenRole::Leader);
        // Said while it opened its controller.
        table.hear(standby.clone(), now);
        assert_eq!(table.views(now)[0].role, SeenRole::Leader);
        table.lead(Some("b"));
        assert_eq!(table.views(now)[0].role, SeenRole::Leader, "its last word");
        table.hear(standby, now);
        assert_eq!(table.views(now)[0].role, SeenRole::Standby);
    }

    #[test]
    fn the_table_has_a_bound() {
        let now = Clock::Boot.now();
        let mut table = Table::new("me");
        for number in 0..2 * NODES_MAX {
            table.hear(view(&format!("n{number}"), 0), now);
        }
        assert_eq!(table.views(now).len(), NODES_MAX);
        assert!(table.hear(view("n1", 0), now), "known ones are heard on");
    }
}
