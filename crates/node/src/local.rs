//! The local endpoint: what the programs beside a node learn from it. Only this machine reaches it,
//! and only those who were given its token are answered.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use lockd_serve::{Bound, Door, Secret, ServeError, Serving, bearer};
use serde::Deserialize;
use tokio::sync::watch;

use crate::order::Order;

/// The longest wait for a change.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What programs are to show.
pub(crate) fn random_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[derive(Clone)]
struct Local {
    node_id: Arc<str>,
    secret: Arc<Secret>,
    orders: watch::Receiver<Order>,
}

pub(crate) async fn serve(
    node_id: &str,
    secret: Secret,
    orders: watch::Receiver<Order>,
) -> Result<Serving, ServeError> {
    let local = Local { node_id: node_id.into(), secret: Arc::new(secret), orders };
    let router = Router::new().route("/assignment", get(assignment)).with_state(local);
    Bound::bind("127.0.0.1:0").await?.serve(&Door::Plain, router)
}

#[derive(Debug, Deserialize)]
struct Asked {
    after: Option<u64>,
    #[serde(default)]
    wait_ms: u64,
}

async fn assignment(
    State(mut local): State<Local>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Response {
    if !bearer(&headers).is_some_and(|shown| local.secret.is(shown)) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if let Some(after) = asked.after {
        let wait = Duration::from_millis(asked.wait_ms).min(WAIT_MAX);
        let changed = local.orders.wait_for(|order| order.version > after || order.end);
        let _in_time = tokio::time::timeout(wait, changed).await.is_ok();
    }
    let assignment = local.orders.borrow().assignment(&local.node_id);
    ([(header::CACHE_CONTROL, "no-store")], Json(assignment)).into_response()
}
