//! Attachments: bytes of any kind beside the document of a key.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttachmentInfo {
    pub id: String,
    pub name: String,
    pub size: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plaintext_sha256: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub content_type: String,
    #[serde(default)]
    pub created_at_unix: u64,
    #[serde(default)]
    pub updated_at_unix: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttachReply {
    pub attachment: AttachmentInfo,
    /// One of that name was there, and was to stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noop: bool,
    #[serde(default)]
    pub version: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttachmentsReply {
    pub namespace: String,
    pub key: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub attachments: Vec<AttachmentInfo>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DetachReply {
    pub deleted: bool,
    #[serde(default)]
    pub version: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DetachAllReply {
    pub deleted: u64,
    #[serde(default)]
    pub version: u64,
}

/// Some servers write an empty list as null.
fn null_is_empty<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<AttachmentInfo>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
