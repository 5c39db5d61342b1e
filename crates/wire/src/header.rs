//! The headers of the API, in the lower case in which HTTP libraries keep them.

pub const FENCING_TOKEN: &str = "x-fencing-token";
pub const LEASE_ID: &str = "x-lease-id";
pub const TXN_ID: &str = "x-txn-id";
pub const IF_VERSION: &str = "x-if-version";
pub const IF_STATE_ETAG: &str = "x-if-state-etag";
pub const EXPECTED_SHA256: &str = "x-expected-sha256";
pub const EXPECTED_BYTES: &str = "x-expected-bytes";
pub const QUERY_HIDDEN: &str = "x-lockd-meta-query-hidden";
pub const KEY_VERSION: &str = "x-key-version";
pub const CORRELATION_ID: &str = "x-correlation-id";
pub const IDEMPOTENCY_KEY: &str = "x-idempotency-key";
pub const FENCE_KEY: &str = "x-fence-key";
pub const FENCE_TOKEN: &str = "x-fence-token";
pub const SHUTDOWN_IMMINENT: &str = "shutdown-imminent";

/// About an attachment that is downloaded.
pub const ATTACHMENT_ID: &str = "x-attachment-id";
pub const ATTACHMENT_NAME: &str = "x-attachment-name";
pub const ATTACHMENT_SIZE: &str = "x-attachment-size";
pub const ATTACHMENT_CREATED_AT: &str = "x-attachment-created-at";
pub const ATTACHMENT_UPDATED_AT: &str = "x-attachment-updated-at";
pub const ATTACHMENT_SHA256: &str = "x-attachment-sha256";

/// Counters on the answer to a mutation.
pub const MUTATE_CANDIDATES_SEEN: &str = "x-lockd-mutate-candidates-seen";
pub const MUTATE_CANDIDATES_WRITTEN: &str = "x-lockd-mutate-candidates-written";
pub const MUTATE_BYTES_READ: &str = "x-lockd-mutate-bytes-read";
pub const MUTATE_BYTES_WRITTEN: &str = "x-lockd-mutate-bytes-written";
pub const MUTATE_BYTES_CAPTURED: &str = "x-lockd-mutate-bytes-captured";
pub const MUTATE_SPILL_COUNT: &str = "x-lockd-mutate-spill-count";
pub const MUTATE_SPILL_BYTES: &str = "x-lockd-mutate-spill-bytes";
