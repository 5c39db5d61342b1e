//! Listings: live leases, keys, namespaces. What the caller may not see is left out before a page
//! is cut, so that a page and its cursor say nothing about it.

use lockd_core::key::{self, KeyName};
use lockd_wire::ErrorBody;
use lockd_wire::admin::{KeyView, KeysReply, NamespacesReply};
use lockd_wire::lease::{LeaseView, LeasesReply};

use super::body::{Body, Response};
use super::call::Call;
use super::cursor::Listing;
use super::error::ApiError;
use super::reply;
use crate::app::list::PageAsk;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

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
    let params = call.params();
    let lower = |name| params.get(name).map(str::to_ascii_lowercase);
    let namespace = params.given("namespace").map(key::parse_namespace).transpose()?;
    let prefix = lower("prefix").unwrap_or_default();
    if let Some(namespace) = &namespace {
        call.permit(namespace)?;
    }
    let listing = Listing::new("leases", [namespace.as_deref().unwrap_or_default(), &prefix]);
    let after = listing.last(params.get("cursor"), |last| KeyName::parse_full(&last).ok())?;
    let limit = params.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let ask = PageAsk { namespace: namespace.clone(), prefix: prefix.clone(), after, limit };
    let page = app.leases(&ask, &call.readable())?;
    let now = app.clock().now();
    let next_cursor = page.end().map(|row| listing.cursor(row.key.as_str()));
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
    Ok(reply::ok(&LeasesReply { leases: page.rows.iter().map(view).collect(), next_cursor }))
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
    let params = call.params();
    let lower = |name| params.get(name).map(str::to_ascii_lowercase);
    let namespace = key::parse_namespace(app.namespace(params.given("namespace")))?;
    let prefix = lower("prefix").unwrap_or_default();
    call.permit(&namespace)?;
    let listing = Listing::new("keys", [&namespace, &prefix]);
    let fits = |last: &String| last.starts_with(&prefix);
    let after = listing.last(params.get("cursor"), |last| Some(last).filter(fits))?;
    let limit = params.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let (of, start) = (Some(namespace.clone()), prefix.clone());
    let page = app.keys(&PageAsk { namespace: of, prefix: start, after, limit }).await?;
    let now = app.clock().now();
    let next_cursor = page.end().map(|(key, _)| listing.cursor(key.key()));
    let views = page.rows.iter().map(|(key, record)| KeyView {
        key: key.key().to_owned(),
        version: record.version.0,
        fencing_token: record.fence.0,
        state_etag: record.state.as_ref().map(|state| state.etag.to_string()),
        bytes: record.state.as_ref().map(|state| state.bytes),
        updated_at_unix_ms: record.updated_at.0,
        held: record.live_lease(now).is_some(),
    });
    Ok(reply::ok(&KeysReply { namespace, keys: views.collect(), next_cursor }))
}

/// Namespaces that have keys.
#[utoipa::path(
    get, path = "/v1/namespaces", tag = "operators",
    params(("cursor" = Option<String>, Query), ("limit" = Option<u32>, Query)),
    responses((status = 200, description = "A page in order", body = NamespacesReply))
)]
pub(super) async fn namespaces(call: Call, _body: Body) -> Result<Response, ApiError> {
    let params = call.params();
    let listing = Listing::new("namespaces", ["", ""]);
    let parse = |last: String| key::parse_namespace(&last).ok();
    let after = listing.last(params.get("cursor"), parse)?;
    let limit = params.limit(PAGE_DEFAULT, PAGE_MAX)?;
    let page = call.api.app.namespaces(after.as_deref(), limit, &call.readable()).await?;
    let next_cursor = page.end().map(|last| listing.cursor(last));
    Ok(reply::ok(&NamespacesReply { namespaces: page.rows, next_cursor }))
}
