//! The paths, and what stands before all of them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{delete, get, post};
use http::header::ORIGIN;
use http::{HeaderName, HeaderValue, Method};
use lockd_serve::Certified;
use lockd_wire::job::{AGENTS, EVENTS, JOBS, LEASES, RESULTS};
use lockd_wire::node::{
    HEALTH, LEADER_EPOCH_HEADER, LEADER_ID_HEADER, NODE_ID_HEADER, ROLE, ROLE_HEADER,
};

use super::access::Access;
use super::answer::{Refused, no_such_method, no_such_path, no_token, of_a_page, refusal};
use super::{body, changes, events, reads};
use crate::controller::{Office, Refusal, Shared};

pub(super) struct Api {
    pub(super) shared: Arc<Shared>,
    access: Access,
}

impl Api {
    pub(super) fn office(&self) -> Result<Arc<Office>, Refused> {
        self.shared.office().map_err(|refusal| self.refused(refusal))
    }

    pub(super) fn refused(&self, why: Refusal) -> Refused {
        refusal(why, &self.shared.role())
    }
}

pub(crate) fn router(shared: Arc<Shared>, access: Access) -> Router {
    let api = Arc::new(Api { shared, access });
    Router::new()
        .route(JOBS, post(changes::submit).get(reads::jobs))
        .route(&format!("{JOBS}/{{id}}"), get(reads::job).delete(changes::cancel))
        .route(LEASES, post(changes::lease))
        .route(&format!("{LEASES}/{{id}}/renew"), post(changes::renew))
        .route(&format!("{LEASES}/{{id}}/release"), post(changes::release))
        .route(RESULTS, post(changes::conclude))
        .route(AGENTS, get(reads::agents))
        .route(&format!("{AGENTS}/{{name}}"), delete(changes::delete_agent))
        .route(EVENTS, get(events::events))
        .route(ROLE, get(reads::role))
        .route(HEALTH, get(reads::health))
        .route("/metrics", get(reads::metrics))
        .fallback(|| async { no_such_path() })
        .method_not_allowed_fallback(|| async { no_such_method() })
        // Each handler has a bound of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&api), gate))
        .with_state(api)
}

/// Who may pass, and what every answer carries.
async fn gate(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let is_open_to_all = [ROLE, HEALTH].contains(&request.uri().path());
    let is_change = ![Method::GET, Method::HEAD].contains(request.method());
    // A page in somebody's browser must not act through a port that trusts this machine.
    let is_of_a_page = is_change && request.headers().contains_key(ORIGIN);
    let certified = request.extensions().get::<Certified>().is_some();
    let mut answer = if !is_open_to_all && !api.access.allows(request.headers(), certified) {
        body::let_go(request.into_body().into_data_stream()).await;
        no_token(api.access.is_open())
    } else if is_of_a_page && api.access.is_open() {
        body::let_go(request.into_body().into_data_stream()).await;
        of_a_page()
    } else {
        next.run(request).await
    };
    sign(&api, &mut answer);
    answer
}

fn sign(api: &Api, answer: &mut Response) {
    let role = api.shared.role();
    let epoch = role.leader_epoch.map(|epoch| epoch.to_string());
    let signs = [
        (NODE_ID_HEADER, Some(role.node_id)),
        (ROLE_HEADER, Some(role.role.as_str().to_owned())),
        (LEADER_EPOCH_HEADER, epoch),
        (LEADER_ID_HEADER, role.leader_id),
    ];
    for (name, value) in signs {
        let value = value.and_then(|value| HeaderValue::try_from(value).ok());
        if let Some(value) = value {
            answer.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
}
