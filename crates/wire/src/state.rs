//! Update, mutate, metadata, remove, describe, and the read of several keys.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Kept out of query results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_hidden: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UpdateReply {
    pub new_version: u64,
    pub new_state_etag: String,
    /// Stored bytes, after insignificant white space was taken out.
    pub bytes: u64,
    #[serde(default)]
    pub metadata: Metadata,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MutateRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub mutations: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MetadataReply {
    #[serde(default)]
    pub namespace: String,
    #[serde(default)]
    pub key: String,
    pub version: u64,
    #[serde(default)]
    pub metadata: Metadata,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemoveReply {
    pub removed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_version: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DescribeReply {
    pub namespace: String,
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix_ms: Option<u64>,
    /// The token of the latest grant; zero for a key that was never granted. Absent from a server
    /// of the other implementation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_etag: Option<String>,
    /// Size of the committed document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at_unix_ms: Option<u64>,
    #[serde(default)]
    pub metadata: Metadata,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Keys of that namespace, or `namespace/key` where `full_names` is set.
    pub keys: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full_names: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadEntry {
    pub namespace: String,
    pub key: String,
    pub version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_etag: Option<String>,
    /// Absent when the key has no committed document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub state: Option<Box<RawValue>>,
}

/// All as of one moment, in the order of the request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReadReply {
    pub entries: Vec<ReadEntry>,
}
