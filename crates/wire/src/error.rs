//! Error codes and the envelope they travel in. A code is for ever: programs branch on it. The
//! status that goes with each is chosen by the server.

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// A stable name for what went wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
        }

        impl ErrorCode {
            /// Every code, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The code with this name, if there is one.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The body is not what the endpoint takes: not JSON, unknown fields, more than one value.
    InvalidBody = "invalid_body",
    InvalidNamespace = "invalid_namespace",
    InvalidKey = "invalid_key",
    MissingKey = "missing_key",
    /// A read needs a key, and a lease id unless it is public.
    MissingParams = "missing_params",
    MissingOwner = "missing_owner",
    InvalidOwner = "invalid_owner",
    MissingLease = "missing_lease",
    MissingTxn = "missing_txn",
    MissingFencingToken = "missing_fencing_token",
    InvalidFencingToken = "invalid_fencing_token",
    InvalidTtl = "invalid_ttl",
    InvalidTxn = "invalid_txn",
    MissingTxnId = "missing_txn_id",
    InvalidTxnId = "invalid_txn_id",
    /// The state of a transaction is pending, commit or rollback.
    InvalidState = "invalid_state",
    /// A coordinator has spoken about this transaction; its term is missing.
    TcTermRequired = "tc_term_required",
    InvalidVersion = "invalid_version",
    InvalidExpectedBytes = "invalid_expected_bytes",
    InvalidExpectedSha256 = "invalid_expected_sha256",
    InvalidMetadata = "invalid_metadata",
    InvalidMutations = "invalid_mutations",
    /// A name or an id says which attachment is meant.
    MissingAttachment = "missing_attachment",
    InvalidMaxBytes = "invalid_max_bytes",
    MissingQueue = "missing_queue",
    InvalidQueue = "invalid_queue",
    /// A call about a message says which, and under which lease.
    MissingFields = "missing_fields",
    InvalidMessageId = "invalid_message_id",
    InvalidNackIntent = "invalid_nack_intent",
    InvalidNackLastError = "invalid_nack_last_error",
    InvalidDelay = "invalid_delay",
    /// A message is enqueued as multipart.
    InvalidContentType = "invalid_content_type",
    /// The parts of the body cannot be told apart.
    MultipartError = "multipart_error",
    /// The fence condition headers do not pair up or do not parse.
    InvalidFence = "invalid_fence",
    InvalidIdempotencyKey = "invalid_idempotency_key",
    /// A query parameter does not parse.
    InvalidParams = "invalid_params",
    /// A page cursor that this server did not give.
    InvalidCursor = "invalid_cursor",
    /// Through a node: the path does not decode to a text.
    InvalidPath = "invalid_path",
    /// Nobody holds the key under that lease.
    LeaseRequired = "lease_required",
    LeaseExpired = "lease_expired",
    /// An operator took the lease away.
    Revoked = "revoked",
    FencingMismatch = "fencing_mismatch",
    /// The state of a message lives as long as its delivery: extend that.
    QueueStateKeepaliveUnsupported = "queue_state_keepalive_unsupported",
    /// The certificate has no claim that allows this in the namespace.
    NamespaceForbidden = "namespace_forbidden",
    /// A claim in the certificate cannot be read; nothing is allowed with it.
    InvalidNamespaceClaims = "invalid_namespace_claims",
    /// The certificate was revoked after its connection was made.
    CertificateRevoked = "certificate_revoked",
    /// The certificate ended after its connection was made.
    CertificateExpired = "certificate_expired",
    /// For transaction coordinators only.
    TcClientRequired = "tc_client_required",
    /// For servers only.
    TcServerRequired = "tc_server_required",
    /// The CA of the certificate is not trusted for coordinators.
    TcForbidden = "tc_forbidden",
    /// A coordinator asks for a bearer token.
    TokenRequired = "token_required",
    /// Whoever asks a coordinator may not do this.
    NotAllowed = "not_allowed",
    /// What keeps a cluster of instances cannot be asked.
    RegistryUnavailable = "registry_unavailable",
    /// A change was asked of a node that does not lead.
    NotLeader = "NOT_LEADER",
    /// Of a leader or an attempt that is over.
    StaleEpoch = "STALE_EPOCH",
    /// The controller beside a node gives no answer.
    ControllerUnavailable = "controller_unavailable",
    /// A change was to be passed on to the leader, which gives no answer.
    LeaderUnreachable = "leader_unreachable",
    /// A node ceased to lead while a change was under way.
    LeadershipLost = "leadership_lost",
    /// Through a node no connection can become another kind of connection.
    UpgradeUnsupported = "upgrade_unsupported",
    /// The leadership cannot be handed over as it was asked for.
    SwitchoverRefused = "switchover_refused",
    /// Nothing happens to a job any more that is over.
    JobOver = "job_over",
    /// An agent that was deleted asks for work.
    AgentDeleted = "agent_deleted",
    NotFound = "not_found",
    AttachmentNotFound = "attachment_not_found",
    MethodNotAllowed = "method_not_allowed",
    /// The client took too long to send its request.
    RequestTimeout = "request_timeout",
    /// The key is held by somebody else.
    Waiting = "waiting",
    AlreadyExists = "already_exists",
    VersionConflict = "version_conflict",
    EtagMismatch = "etag_mismatch",
    TxnMismatch = "txn_mismatch",
    TxnConflict = "txn_conflict",
    TxnNotFound = "txn_not_found",
    /// The transaction is not decided.
    TxnPending = "txn_pending",
    /// The participant is on another store.
    TxnBackendMismatch = "txn_backend_mismatch",
    /// A newer coordinator has spoken about this transaction.
    TcTermStale = "tc_term_stale",
    /// The message is not, or no longer, delivered under that lease.
    QueueMessageLeaseMismatch = "queue_message_lease_mismatch",
    ExpectedBytesMismatch = "expected_bytes_mismatch",
    ExpectedSha256Mismatch = "expected_sha256_mismatch",
    /// Lost too many races for the same record.
    CasMismatch = "cas_mismatch",
    /// A fence condition did not hold.
    FenceFailed = "fence_failed",
    IdempotencyKeyReused = "idempotency_key_reused",
    ReadConflict = "read_conflict",
    DocumentTooLarge = "document_too_large",
    AttachmentTooLarge = "attachment_too_large",
    PayloadTooLarge = "payload_too_large",
    /// The key has as many attachments as one can have.
    TooManyAttachments = "too_many_attachments",
    /// Another request body than a document is larger than it may be.
    BodyTooLarge = "body_too_large",
    HeadersTooLarge = "headers_too_large",
    Internal = "internal_error",
    /// Stored data does not check out and is not served.
    StoreDamaged = "store_damaged",
    /// There is no transaction coordinator here.
    TcUnavailable = "tc_unavailable",
    QueryDisabled = "query_disabled",
    IndexUnavailable = "index_unavailable",
    NamespaceConfigUnavailable = "namespace_config_unavailable",
    /// The store has no way to do this.
    StoreUnsupported = "store_unsupported",
    ShutdownDraining = "shutdown_draining",
    StoreUnavailable = "store_unavailable",
    /// Too many requests wait for keys already.
    TooManyWaiters = "too_many_waiters",
    /// Too many consumers wait for messages already.
    QueueBusy = "queue_busy",
    /// Too many connections are open already.
    TooManyConnections = "too_many_connections",
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The body of every refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// The code; see the error pages for what to do about each.
    pub error: String,
    /// For people. Wording may change.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader_endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_version: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_etag: Option<String>,
    /// The token that fences the caller off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_fencing_token: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u64>,
    /// `unknown` when the write may or may not have happened: read before you retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::{ErrorBody, ErrorCode};

    #[test]
    fn every_code_is_unique_and_parses_back() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
        }
        assert_eq!(ErrorCode::parse("no_such_code"), None);
    }

    #[test]
    fn the_envelope_leaves_out_what_is_not_known() {
        let body = ErrorBody { error: "waiting".into(), ..ErrorBody::default() };
        assert_eq!(serde_json::to_string(&body).unwrap(), r#"{"error":"waiting"}"#);
    }
}
