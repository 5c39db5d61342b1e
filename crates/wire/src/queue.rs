//! The queue: messages that are delivered at least once, to one consumer at a time.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The `meta` part of an enqueue. Fields that are not known are ignored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EnqueueRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Not delivered before so many seconds have passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<i64>,
    /// How long a consumer has it, unless the consumer says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility_timeout_seconds: Option<i64>,
    /// Removed when nobody took it for so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// Dead after so many failed deliveries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// Anything that the consumer wants to know before it reads the payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub attributes: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_content_type: Option<String>,
    /// Delivered only after this transaction is committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EnqueueReply {
    #[serde(default)]
    pub namespace: String,
    pub queue: String,
    pub message_id: String,
    pub attempts: u32,
    pub max_attempts: u32,
    pub not_visible_until_unix: u64,
    /// What was taken, after the server's limits.
    pub visibility_timeout_seconds: u64,
    /// As above; absent when it stays until it is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    pub payload_bytes: u64,
    #[serde(default)]
    pub correlation_id: String,
}

/// Asks for messages: dequeue and subscribe, with and without state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DequeueRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Acknowledged when this transaction is committed, given back when it is rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
    /// Zero or absent: what was said when the message was enqueued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility_timeout_seconds: Option<i64>,
    /// Finer than `visibility_timeout_seconds`, and stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility_timeout_ms: Option<u64>,
    /// -1: do not wait; 0 or absent: wait for ever; otherwise at most that long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<i64>,
    /// Dequeue: how many at once, 1 to 64. Subscribe: how many may be delivered and not yet
    /// acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size: Option<i64>,
    /// Taken and ignored: messages come in the order of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_after: Option<String>,
}

/// A message as its consumer gets it; the payload is a part of its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeliveredMessage {
    #[serde(default)]
    pub namespace: String,
    pub queue: String,
    pub message_id: String,
    /// How often it was delivered, this time included.
    pub attempts: u32,
    /// Dead after so many failed deliveries; zero: never.
    pub max_attempts: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failure_attempts: u32,
    pub not_visible_until_unix: u64,
    pub visibility_timeout_seconds: u64,
    #[serde(default)]
    pub visibility_timeout_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub attributes: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub payload_content_type: String,
    pub payload_bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub payload_sha256: String,
    #[serde(default)]
    pub enqueued_at_unix_ms: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub correlation_id: String,
    /// A secret: whoever knows it can acknowledge the message.
    pub lease_id: String,
    pub lease_expires_at_unix: u64,
    #[serde(default)]
    pub lease_expires_at_unix_ms: u64,
    pub fencing_token: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub txn_id: String,
    /// Changes with every delivery and extension.
    pub meta_etag: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lease_expires_at_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_txn_id: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The `meta` part of a delivery.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Delivery {
    pub message: DeliveredMessage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AckRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub queue: String,
    #[serde(default)]
    pub message_id: String,
    #[serde(default)]
    pub lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_fencing_token: Option<u64>,
    /// Several messages of the queue, instead of one; at most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<AckOne>,
}

/// One of several messages that are acknowledged at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AckOne {
    #[serde(default)]
    pub message_id: String,
    #[serde(default)]
    pub lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AckReply {
    /// All of them.
    pub acked: bool,
    #[serde(default)]
    pub correlation_id: String,
    /// What became of each of several, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<AckResult>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AckResult {
    pub message_id: String,
    pub acked: bool,
    /// The code of what stood against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NackRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub queue: String,
    #[serde(default)]
    pub message_id: String,
    #[serde(default)]
    pub lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_fencing_token: Option<u64>,
    /// Not delivered again before so many seconds have passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_seconds: Option<i64>,
    /// Finer than `delay_seconds`, and stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// `failure` (the default) counts against `max_attempts`; `defer` does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
    /// Why it failed. Not with `defer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub last_error: Option<Box<RawValue>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NackReply {
    pub requeued: bool,
    /// It failed too often and is dead now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dead: bool,
    pub meta_etag: String,
    #[serde(default)]
    pub correlation_id: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub queue: String,
    #[serde(default)]
    pub message_id: String,
    #[serde(default)]
    pub lease_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta_etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lease_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_fencing_token: Option<u64>,
    /// Counted from now. Zero or absent: as long as the delivery was for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extend_by_seconds: Option<i64>,
    /// Finer than `extend_by_seconds`, and stronger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extend_by_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExtendReply {
    pub lease_expires_at_unix: u64,
    #[serde(default)]
    pub lease_expires_at_unix_ms: u64,
    pub visibility_timeout_seconds: u64,
    #[serde(default)]
    pub visibility_timeout_ms: u64,
    /// To be sent with the next call about this message.
    pub meta_etag: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_lease_expires_at_unix: Option<u64>,
    #[serde(default)]
    pub correlation_id: String,
}

/// Names one queue: stats, watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct QueueRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub queue: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatsReply {
    pub namespace: String,
    pub queue: String,
    pub waiting_consumers: u64,
    /// The same as `ready`.
    pub pending_candidates: u64,
    /// Waiting and subscribed.
    pub total_consumers: u64,
    pub has_active_watcher: bool,
    /// A message could be delivered now.
    pub available: bool,
    /// To be delivered now. Absent, like the next three, where the server does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<u64>,
    /// With a consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// To be delivered later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed: Option<u64>,
    /// Failed too often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead: Option<u64>,
    /// Since the message at the head became deliverable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ready_age_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_enqueued_at_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_not_visible_until_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_age_seconds: Option<u64>,
    #[serde(default)]
    pub correlation_id: String,
}

/// The data of a `queue_watch` event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WatchEvent {
    pub namespace: String,
    pub queue: String,
    pub available: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_message_id: Option<String>,
    pub changed_at_unix: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub correlation_id: String,
}

pub const WATCH_EVENT: &str = "queue_watch";

/// Looks at messages without taking them: peek and the list of the dead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PeekRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub queue: String,
    /// 1 to 1000; absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// From the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A message as one who only looks sees it: without its lease.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageView {
    pub message_id: String,
    /// `ready`, `delayed`, `in_flight` or `dead`.
    pub status: String,
    pub attempts: u32,
    pub failure_attempts: u32,
    pub max_attempts: u32,
    pub enqueued_at_unix_ms: u64,
    pub not_visible_until_unix_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_at_unix_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    pub visibility_timeout_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub attributes: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub last_error: Option<Box<RawValue>>,
    pub payload_content_type: String,
    pub payload_bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub payload_sha256: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub correlation_id: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PeekReply {
    pub namespace: String,
    pub queue: String,
    pub messages: Vec<MessageView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Says which dead messages are meant: some, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeadRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub queue: String,
    /// At most 1000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub message_ids: Vec<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CountReply {
    /// How many messages it was done to.
    pub count: u64,
}

/// Removes what waits in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PurgeRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default)]
    pub queue: String,
    /// The dead ones too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dead: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct QueuesReply {
    pub namespace: String,
    pub queues: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
