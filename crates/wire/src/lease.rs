//! Acquire, keepalive, release, and the operator's view of leases.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AcquireRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The server generates the key, and the request names none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub generate_key: bool,
    /// Zero or absent: the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// Finer than `ttl_seconds`, and stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    #[serde(default)]
    pub owner: String,
    /// -1: do not wait; 0: wait for ever; otherwise at most that long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_seconds: Option<i64>,
    /// Refuse when the key is known already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub if_not_exists: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcquireReply {
    pub namespace: String,
    /// A secret: whoever knows it can act as the holder.
    pub lease_id: String,
    #[serde(default)]
    pub txn_id: String,
    pub key: String,
    pub owner: String,
    pub expires_at_unix: u64,
    /// Zero from a server of the other implementation, like `ttl_ms`.
    #[serde(default)]
    pub expires_at_unix_ms: u64,
    /// What was granted, after the server's limits.
    #[serde(default)]
    pub ttl_ms: u64,
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_etag: Option<String>,
    pub fencing_token: u64,
    #[serde(default)]
    pub correlation_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KeepaliveRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Absent: the lease id alone says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default)]
    pub lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeepaliveReply {
    pub expires_at_unix: u64,
    /// Zero from a server of the other implementation, like `ttl_ms`.
    #[serde(default)]
    pub expires_at_unix_ms: u64,
    #[serde(default)]
    pub ttl_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Absent: the lease id alone says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default)]
    pub lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
    /// Forget what was staged instead of committing it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReleaseReply {
    pub released: bool,
}

/// A live lease as an operator sees it: never with its id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseView {
    pub namespace: String,
    pub key: String,
    pub owner: String,
    pub fencing_token: u64,
    pub granted_at_unix_ms: u64,
    pub age_ms: u64,
    pub expires_at_unix_ms: u64,
    pub remaining_ms: u64,
    /// Requests that wait for this key on this server.
    pub waiters: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeasesReply {
    pub leases: Vec<LeaseView>,
    /// Pass it as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub key: String,
    /// Told to the holder and written to the log.
    #[serde(default)]
    pub reason: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RevokeReply {
    /// Whether anybody held the key.
    pub revoked: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The token now; every earlier one is fenced off.
    pub fencing_token: u64,
}
