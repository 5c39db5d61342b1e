//! Events of a watch. Each arrives as a server-sent event whose `event` line is the kind, whose
//! `data` line is one of these, and whose `id` can be sent back to resume.

use serde::{Deserialize, Serialize};

/// Kinds of events, as the `event` line has them.
pub const STATE: &str = "state";
pub const LEASE: &str = "lease";
pub const REMOVED: &str = "removed";
/// Start of a fresh snapshot: forget what you knew. `state` and `lease` events marked
/// `snapshot: true` follow, then one more `reset` with `complete: true`.
pub const RESET: &str = "reset";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeaseChange {
    Granted,
    Released,
    Expired,
    Revoked,
}

/// New committed state (`state`) or the lack of it (`removed`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateEvent {
    pub namespace: String,
    pub key: String,
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub snapshot: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseEvent {
    pub namespace: String,
    pub key: String,
    pub change: LeaseChange,
    pub owner: String,
    pub fencing_token: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub snapshot: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResetEvent {
    /// Why: `start`, `gap` (the resume point is no longer known) or `slow` (the reader fell behind).
    pub reason: String,
    /// `false` opens the snapshot, `true` ends it.
    pub complete: bool,
}
