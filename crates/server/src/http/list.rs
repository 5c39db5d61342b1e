//! Listings: live leases, keys, namespaces. Pages are joined by cursors that name the last entry.

use lockd_wire::ErrorBody;
use lockd_wire::admin::{KeyView, KeysReply, NamespacesReply};
use lockd_wire::lease::{LeaseView, LeasesReply};

use super::body::{Body, Response};
use super::call::Call;
use super::error::ApiError;
use super::reply;
use super::request::Params;
use crate::app::list::PageAsk;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

fn page_ask(params: &Params<'_>) -> Result<PageAsk, ApiError> {
    let lower = |name| params.get(name).map(str::to_ascii_lowercase);
    Ok(PageAsk {
        namespace: lower("namespace"),
        prefix: lower("prefix").unwrap_or_default(),
        after: lower("cursor"),
        limit: params.limit(PAGE_DEFAULT, PAGE_MAX)?,
    })
}

/// Live leases with holder, token, age, time left and how many wait.
#[utoipa::path(
    get, path = "/v1/leases", tag = "operators",
    params(
        ("namespace" = Option<String>, Query, description = "All that the caller may read, when absent"),
        ("prefix" = Option<String>, Query, description = "Beginning of the key, or of namespace/key without a namespace"),
        ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query),
    ),
    responses(
        (status = 200, description = "A page in key order", body = LeasesReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(super) async fn leases(call: Call, _body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let ask = page_ask(&call.params())?;
    if let Some(namespace) = &ask.namespace {
        call.permit(namespace)?;
    }
    let (rows, more) = app.leases(&ask)?;
    let now = app.clock().now();
    let next_cursor = more.map(|key| key.to_string());
    let view = |row: &crate::app::list::LeaseRow| {
        let lease = &row.live.lease;
        let remaining = lease.expires.remaining(now);
        LeaseView {
            namespace: row.key.namespace().to_owned(),
            key: row.key.key().to_owned(),
            owner: lease.owner.to_string(),
            fencing_token: row.live.token,
            granted_at_unix_ms: lease.granted_at.0,
            age_ms: now.wall.0.saturating_sub(lease.granted_at.0),
            expires_at_unix_ms: now.wall.plus(remaining).0,
            remaining_ms: remaining.0,
            waiters: row.waiters as u64,
        }
    };
    let shown = rows.iter().filter(|row| call.permit(row.key.namespace()).is_ok());
    Ok(reply::ok(&LeasesReply { leases: shown.map(view).collect(), next_cursor }))
}

/// Keys of a namespace.
#[utoipa::path(
    get, path = "/v1/keys", tag = "operators",
    params(
        ("namespace" = Option<String>, Query), ("prefix" = Option<String>, Query),
        ("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query),
    ),
    responses(
        (status = 200, description = "A page in key order", body = KeysReply),
        (status = 400, description = "The request is wrong", body = ErrorBody),
    )
)]
pub(super) async fn keys(call: Call, _body: Body) -> Result<Response, ApiError> {
    let app = &call.api.app;
    let ask = page_ask(&call.params())?;
    call.permit(app.namespace(ask.namespace.as_deref()))?;
    let keys = app.keys(&ask).await?;
    let now = app.clock().now();
    let full = keys.len() == ask.limit;
    let next_cursor = keys.last().filter(|_| full).map(|(key, _)| key.key().to_owned());
    let views = keys.iter().map(|(key, record)| KeyView {
        key: key.key().to_owned(),
        version: record.version.0,
        fencing_token: record.fence.0,
        state_etag: record.state.as_ref().map(|state| state.etag.to_string()),
        bytes: record.state.as_ref().map(|state| state.bytes),
        updated_at_unix_ms: record.updated_at.0,
        held: record.live_lease(now).is_some(),
    });
    let namespace = app.namespace(ask.namespace.as_deref()).to_owned();
    Ok(reply::ok(&KeysReply { namespace, keys: views.collect(), next_cursor }))
}

/// Namespaces that have keys.
#[utoipa::path(
    get, path = "/v1/namespaces", tag = "operators",
    params(("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query)),
    responses((status = 200, description = "A page in order", body = NamespacesReply))
)]
pub(super) async fn namespaces(call: Call, _body: Body) -> Result<Response, ApiError> {
    let ask = page_ask(&call.params())?;
    let namespaces = call.api.app.namespaces(ask.after.as_deref(), ask.limit).await?;
    let full = namespaces.len() == ask.limit;
    let next_cursor = namespaces.last().filter(|_| full).cloned();
    // Those of others are not named.
    let namespaces = namespaces.into_iter().filter(|name| call.permit(name).is_ok()).collect();
    Ok(reply::ok(&NamespacesReply { namespaces, next_cursor }))
}
