//! One port for a node and its controller. Reads pass at any time, changes while the gate of a
//! leadership is open. What the controller does with them is its own; when the gate opens and
//! closes is left to the node.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::EXPECT;
use http::request::Parts;
use http::uri::Scheme;
use http::{HeaderValue, Method, StatusCode, Uri, Version};
use lockd_wire::node::{HA, HEALTH, LEADER, ROLE, Role, RoleReply, STANDBY};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::answer::{self, Silent};
use crate::body::{self, Held, Passing};
use crate::gate::Gate;
use crate::head::{self, FORWARDED_HEADER};
use crate::path;
use crate::rules::Rules;
use crate::upstream::{self, Carriage, Failure, Head, Upstream};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Long enough for long polls.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

const OWN_METHODS: &str = "GET, HEAD";
const METHODS: &str = "GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE";

/// What a node is now, and whether changes may pass.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    pub role: RoleReply,
    /// Of the leadership under which changes pass.
    pub gate: Option<Gate>,
}

/// How a change that is asked of a standby is passed on to the leader.
#[derive(Clone, Debug)]
pub struct Forward {
    /// For leaders at `https`.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// How long connecting to the leader may take.
    pub connect_timeout: Duration,
}

impl Default for Forward {
    fn default() -> Self {
        Self { tls: None, connect_timeout: CONNECT_TIMEOUT }
    }
}

#[derive(Clone, Debug)]
pub struct FrontSettings {
    /// Where the controller listens: `http://HOST:PORT`. A path in it is not used.
    pub controller: Uri,
    pub rules: Rules,
    /// Without it, changes that are asked of a standby are refused.
    pub forward: Option<Forward>,
    /// How long connecting to the controller may take.
    pub connect_timeout: Duration,
    /// How long an answer may take to begin while nothing of the request moves.
    pub answer_timeout: Duration,
    /// Requests under way at one time.
    pub requests_max: usize,
}

impl FrontSettings {
    /// Changes are refused on a standby, and all bounds are the usual ones.
    #[must_use]
    pub fn new(controller: Uri, rules: Rules) -> Self {
        Self {
            controller,
            rules,
            forward: None,
            connect_timeout: CONNECT_TIMEOUT,
            answer_timeout: ANSWER_TIMEOUT,
            // The rest is for those who ask what the node is.
            requests_max: (lockd_serve::connections_max() * 3 / 4).max(1),
        }
    }
}

/// The port of a node. A clone is the same front.
#[derive(Clone, Debug)]
pub struct Front {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: FrontSettings,
    standing: watch::Receiver<Standing>,
    healthy: watch::Receiver<bool>,
    controller: Upstream,
    leader: Option<Upstream>,
    places: Arc<Semaphore>,
    /// Bodies that nobody wants, on their way out.
    leftovers: TaskTracker,
}

impl Front {
    #[must_use]
    pub fn new(
        settings: FrontSettings,
        standing: watch::Receiver<Standing>,
        healthy: watch::Receiver<bool>,
    ) -> Self {
        let controller = Upstream::new(settings.connect_timeout, None);
        let leader = settings
            .forward
            .as_ref()
            .map(|forward| Upstream::new(forward.connect_timeout, forward.tls.as_deref()));
        let places = Arc::new(Semaphore::new(settings.requests_max.min(Semaphore::MAX_PERMITS)));
        let leftovers = TaskTracker::new();
        let shared = Shared { settings, standing, healthy, controller, leader, places, leftovers };
        Self { shared: Arc::new(shared) }
    }

    /// `own` answers all below `/ha/`, and authorises whom it answers.
    pub fn router(&self, own: Router) -> Router {
        let port = Port { shared: Arc::clone(&self.shared), own };
        Router::new().fallback(answer).with_state(port)
    }
}

#[derive(Clone)]
struct Port {
    shared: Arc<Shared>,
    own: Router,
}

async fn answer(State(port): State<Port>, request: Request) -> Response {
    let Port { shared, own } = port;
    let mut answer = match path::check(request.uri().path()) {
        Ok(()) => shared.route(own, request).await,
        Err(fault) => {
            let (parts, body) = request.into_parts();
            shared.refuse(&parts, body, answer::invalid_path(fault))
        }
    };
    head::stamp(answer.headers_mut(), &shared.standing.borrow().role);
    answer
}

impl Shared {
    async fn route(&self, own: Router, request: Request) -> Response {
        let path = request.uri().path();
        match path {
            ROLE | LEADER | STANDBY | HEALTH => self.own(path, request.method()),
            path if path.starts_with(HA) => match own.oneshot(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            },
            _ => self.pass(request).await,
        }
    }

    /// From what is known, so that it may be asked at any rate.
    fn own(&self, path: &str, method: &Method) -> Response {
        if *method != Method::GET && *method != Method::HEAD {
            return answer::method_not_allowed(OWN_METHODS);
        }
        let standing = self.standing.borrow().clone();
        let (role, healthy) = (&standing.role, *self.healthy.borrow());
        match path {
            ROLE => answer::json(StatusCode::OK, role),
            LEADER => {
                let leads = match role.role {
                    Role::Leader | Role::Draining => {
                        standing.gate.is_some_and(|gate| gate.is_open())
                    }
                    Role::Standby => false,
                };
                answer::is_it(leads, "leader\n", "not leader\n")
            }
            STANDBY => {
                let stands_by = role.role == Role::Standby && healthy;
                answer::is_it(stands_by, "standby\n", "not standby\n")
            }
            _ => answer::health(role, healthy),
        }
    }

    async fn pass(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        if matches!(parts.method, Method::TRACE | Method::CONNECT) {
            return self.refuse(&parts, body, answer::method_not_allowed(METHODS));
        }
        if head::wants_upgrade(&parts.headers) {
            return self.refuse(&parts, body, answer::no_upgrade());
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let most = self.settings.requests_max;
            return self.refuse(&parts, body, answer::too_many(most));
        };
        if !self.settings.rules.changes(&parts.method, &parts.uri, &parts.headers) {
            return self.to_controller(&parts, body, Held { _place: place, pass: None }).await;
        }
        let Standing { role, gate } = self.standing.borrow().clone();
        if gate.is_none() && role.role != Role::Standby {
            let failure = Failure::Unsent("it is being started again".into());
            return self.refuse(&parts, body, answer::failed(Silent::Controller, &failure, true));
        }
        if let Some(pass) = gate.and_then(|gate| gate.enter()) {
            return self
                .to_controller(&parts, body, Held { _place: place, pass: Some(Arc::new(pass)) })
                .await;
        }
        match self.leader_for(&parts, &role) {
            Some((leader, uri)) => {
                let held = Held { _place: place, pass: None };
                self.to_leader(leader, uri, (&parts, body), held, &role).await
            }
            None => self.refuse(&parts, body, answer::not_leader(&role)),
        }
    }

    async fn to_controller(&self, parts: &Parts, body: Body, held: Held) -> Response {
        let authority = self.settings.controller.authority();
        let uri = authority.and_then(|place| upstream::at(&Scheme::HTTP, place, &parts.uri));
        let Some(uri) = uri else {
            let failure = Failure::Unsent("there is no address of it".into());
            return answer::failed(Silent::Controller, &failure, held.pass.is_some());
        };
        let headers = head::onward(parts, http_body::Body::is_end_stream(&body));
        let head = Head { method: parts.method.clone(), uri, headers };
        let change = held.pass.is_some();
        let how = Carriage {
            pass: held.pass.as_ref(),
            read: !change,
            patience: self.settings.answer_timeout,
        };
        let sent = self.controller.send(head, body, &how).await;
        passed_on(&parts.method, sent, held, (Silent::Controller, change))
    }

    /// Where a change goes that may not pass here; nowhere if it was passed on before, or if this
    /// node is still, or already, the one to ask.
    fn leader_for(&self, parts: &Parts, role: &RoleReply) -> Option<(&Upstream, Uri)> {
        let leader = self.leader.as_ref()?;
        let this_one = role.role != Role::Standby || role.leader_id.as_ref() == Some(&role.node_id);
        if this_one || parts.headers.contains_key(FORWARDED_HEADER) {
            return None;
        }
        let place: Uri = role.leader_url.as_ref()?.parse().ok()?;
        let uri = upstream::at(place.scheme()?, place.authority()?, &parts.uri)?;
        Some((leader, uri))
    }

    async fn to_leader(
        &self,
        leader: &Upstream,
        uri: Uri,
        (parts, body): (&Parts, Body),
        held: Held,
        role: &RoleReply,
    ) -> Response {
        let mut headers = head::onward(parts, http_body::Body::is_end_stream(&body));
        let by = HeaderValue::from_str(&role.node_id);
        headers.insert(FORWARDED_HEADER, by.unwrap_or(HeaderValue::from_static("node")));
        let head = Head { method: parts.method.clone(), uri, headers };
        let patience = self.settings.answer_timeout;
        let how = Carriage { pass: None, read: false, patience };
        let sent = leader.send(head, body, &how).await;
        passed_on(&parts.method, sent, held, (Silent::Leader, true))
    }

    /// Answers before anything of the body is read.
    fn refuse(&self, parts: &Parts, body: Body, answer: Response) -> Response {
        // A client that waits to be asked for its body is never asked.
        let unasked = parts.headers.contains_key(EXPECT);
        if !unasked && !http_body::Body::is_end_stream(&body) {
            self.leftovers.spawn(body::let_go(body));
        }
        answer
    }
}

fn passed_on(
    method: &Method,
    sent: Result<Response<hyper::body::Incoming>, Failure>,
    held: Held,
    (who, change): (Silent, bool),
) -> Response {
    let failure = match sent {
        Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
            Failure::Sent("it switched protocols unasked".into())
        }
        Ok(answer) => {
            let (mut parts, body) = answer.into_parts();
            parts.version = Version::HTTP_11;
            parts.extensions.clear();
            head::backward(&mut parts.headers);
            let bodiless = head::is_bodiless(method, parts.status);
            let body = Body::new(Passing::down(Body::new(body), held, bodiless));
            return Response::from_parts(parts, body);
        }
        Err(failure) => failure,
    };
    match &failure {
        Failure::Unsent(why) | Failure::Sent(why) | Failure::Body(why) => {
            tracing::debug!(?who, why, "a request was not answered");
        }
        Failure::Late(_) | Failure::Cut => {
            tracing::debug!(?who, %failure, "a request was given up");
        }
    }
    answer::failed(who, &failure, change)
}
