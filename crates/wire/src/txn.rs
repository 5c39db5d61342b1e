//! Transactions, as coordinators and operators see them.

use serde::{Deserialize, Serialize};

/// Decides a transaction, or adds participants to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TxnRequest {
    #[serde(default)]
    pub txn_id: String,
    /// `pending`, `commit` or `rollback`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub state: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub participants: Vec<TxnParticipant>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tc_term: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_backend_hash: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TxnParticipant {
    /// Absent: the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_hash: Option<String>,
    /// Only in answers: the decision has reached it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub applied: bool,
}

/// How a transaction stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TxnReply {
    pub txn_id: String,
    /// `pending`, `commit` or `rollback`.
    pub state: String,
    /// No key takes part: the rollback closed a transaction that had not begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}

/// A transaction whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TxnView {
    pub txn_id: String,
    pub state: String,
    /// Why it was rolled back: `asked`, `lapsed` or `revoked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub participants: Vec<TxnParticipant>,
    pub tc_term: u64,
    pub created_at_unix_ms: u64,
    pub updated_at_unix_ms: u64,
    pub expires_at_unix_ms: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TxnsReply {
    pub txns: Vec<TxnView>,
    /// Pass it as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
