//! Kinds of errors: what the caller should do next. One table turns a failure into a class; each
//! operation then keeps the classes that can happen there.

use std::fmt;

use http::StatusCode;
use lockd_wire::ErrorCode;

use super::{Cause, Failure, Refusal};

/// Everything that any operation distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Busy,
    Exists,
    LeaseLost,
    Conflict,
    FenceFailed,
    TxnConflict,
    Invalid,
    TooLarge,
    Forbidden,
    Unavailable,
    OutcomeUnknown,
    Source,
    Other,
}

pub(crate) trait FromClass {
    fn of(class: Class) -> Self;
}

/// A kind of error of some operation.
#[expect(private_bounds, reason = "kinds are made here and nowhere else")]
pub trait Kind:
    fmt::Debug + fmt::Display + Copy + PartialEq + Send + Sync + 'static + FromClass
{
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $text:literal if $($class:ident)|+,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl FromClass for $name {
            fn of(class: Class) -> Self {
                match class {
                    $($(Class::$class)|+ => Self::$variant,)*
                }
            }
        }

        impl Kind for $name {}

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)*
                })
            }
        }
    )*};
}

kinds! {
    /// Why a lease was not granted.
    AcquireKind {
        /// Somebody else holds the key: ask again later, or wait.
        Busy = "the key is held by another" if Busy,
        /// The key exists, and the request was only for a new one.
        Exists = "the key exists already" if Exists,
        /// It was granted, and over before it could be used: ask for a longer time to live.
        Lost = "the lease was over before it could be used" if LeaseLost,
        /// The request cannot be granted as it is: change it.
        Invalid = "the request is not valid"
            if Invalid | TooLarge | Conflict | FenceFailed | TxnConflict | Source,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked: try again later. The grant may have been lost on its way; it
        /// then runs out by itself.
        Unavailable = "no server is available" if Unavailable | OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why a lease was not renewed.
    KeepaliveKind {
        /// The lease is over: stop writing.
        LeaseLost = "the lease is lost" if LeaseLost,
        /// The request cannot be served as it is: change it.
        Invalid = "the request is not valid" if Invalid | TooLarge | Conflict | FenceFailed
            | TxnConflict | Source | Busy | Exists,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked: try again while the lease lives.
        Unavailable = "no server is available" if Unavailable | OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why a lease was not released.
    ReleaseKind {
        /// The lease was over before: nothing that was staged has been committed.
        LeaseLost = "the lease is lost" if LeaseLost,
        /// A fence condition did not hold; nothing changed.
        FenceFailed = "fenced off" if FenceFailed,
        /// The transaction was decided otherwise, or has other participants.
        TxnConflict = "the transaction was decided otherwise" if TxnConflict,
        /// The request cannot be served as it is: change it.
        Invalid = "the request is not valid"
            if Invalid | TooLarge | Conflict | Source | Busy | Exists,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked; nothing changed.
        Unavailable = "no server is available" if Unavailable,
        /// It may or may not have happened: read the key to find out.
        OutcomeUnknown = "it is not known whether it happened" if OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why a write under a lease did not happen.
    UpdateKind {
        /// The lease is over: stop writing.
        LeaseLost = "the lease is lost" if LeaseLost,
        /// The key is not at the expected version or etag: read again.
        Conflict = "the state is not the expected one" if Conflict,
        /// A fence condition did not hold; nothing changed.
        FenceFailed = "fenced off" if FenceFailed,
        /// The lease belongs to a transaction that does not allow this.
        TxnConflict = "the transaction does not allow it" if TxnConflict,
        /// The document or the request is not valid: change it.
        Invalid = "the request is not valid" if Invalid | Busy | Exists,
        /// The document is larger than the server takes.
        TooLarge = "the document is too large" if TooLarge,
        /// The document to send could not be read or encoded.
        Source = "the document cannot be read" if Source,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked; nothing changed.
        Unavailable = "no server is available" if Unavailable,
        /// It may or may not have happened: read the key to find out.
        OutcomeUnknown = "it is not known whether it happened" if OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why a message was not enqueued.
    EnqueueKind {
        /// A fence condition did not hold; nothing was enqueued.
        FenceFailed = "fenced off" if FenceFailed,
        /// The transaction is over, or does not allow this.
        TxnConflict = "the transaction does not allow it" if TxnConflict,
        /// The request cannot be served as it is: change it.
        Invalid = "the request is not valid" if Invalid | Busy | Exists | Conflict | LeaseLost,
        /// The payload is larger than the server takes.
        TooLarge = "the payload is too large" if TooLarge,
        /// The payload could not be read, or the attributes not be encoded.
        Source = "the message cannot be read" if Source,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked; nothing was enqueued.
        Unavailable = "no server is available" if Unavailable,
        /// It may or may not be in the queue. Enqueue it again under the same name.
        OutcomeUnknown = "it is not known whether it happened" if OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why no message could be taken. An empty queue is not an error.
    DequeueKind {
        /// The transaction is over, or does not allow this.
        TxnConflict = "the transaction does not allow it" if TxnConflict,
        /// The request cannot be served as it is: change it.
        Invalid = "the request is not valid" if Invalid | TooLarge | Conflict | FenceFailed
            | Source | Busy | Exists | LeaseLost,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked: try again later. A message that was lost on its way comes
        /// again when its time is over.
        Unavailable = "no server is available" if Unavailable,
        /// Under a transaction: a message may have joined it that nobody has seen. Roll it back.
        OutcomeUnknown = "it is not known whether a message was taken" if OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why a message was not acknowledged, given back or extended.
    SettleKind {
        /// It is delivered to somebody else, or gone: stop working on it.
        LeaseLost = "the message is no longer ours" if LeaseLost,
        /// A fence condition did not hold; nothing changed.
        FenceFailed = "fenced off" if FenceFailed,
        /// Its transaction was decided otherwise.
        TxnConflict = "the transaction was decided otherwise" if TxnConflict,
        /// The request cannot be served as it is: change it.
        Invalid = "the request is not valid"
            if Invalid | TooLarge | Conflict | Source | Busy | Exists,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked; nothing changed.
        Unavailable = "no server is available" if Unavailable,
        /// It may or may not have happened. Asking again does no harm.
        OutcomeUnknown = "it is not known whether it happened" if OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why something could not be read or watched.
    ReadKind {
        /// The lease under which it was to be read is over.
        LeaseLost = "the lease is lost" if LeaseLost,
        /// The request cannot be served as it is: change it.
        Invalid = "the request is not valid" if Invalid | Busy | Exists | Conflict | FenceFailed
            | TxnConflict,
        /// The document is larger than this client may take into memory: stream it.
        TooLarge = "the document is too large" if TooLarge,
        /// The document is not of the type that was asked for.
        Decode = "the document is of another type" if Source,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked: try again later.
        Unavailable = "no server is available" if Unavailable | OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }

    /// Why an operator's request was not carried out.
    AdminKind {
        /// The request cannot be served as it is: change it.
        Invalid = "the request is not valid" if Invalid | TooLarge | Conflict | FenceFailed
            | TxnConflict | Source | Busy | Exists | LeaseLost,
        /// The caller may not do this.
        Forbidden = "not allowed" if Forbidden,
        /// No server could be asked; nothing changed.
        Unavailable = "no server is available" if Unavailable,
        /// It may or may not have happened.
        OutcomeUnknown = "it is not known whether it happened" if OutcomeUnknown,
        /// A defect in the server or on the way to it.
        Other = "the server failed" if Other,
    }
}

impl Class {
    pub(crate) fn of(failure: &Failure) -> Self {
        let class = match &failure.cause {
            Cause::Refused(refusal) => Self::of_refusal(refusal),
            Cause::Connect | Cause::Broken | Cause::TimedOut(_) => Self::Unavailable,
            Cause::Distrust(_) => Self::Forbidden,
            Cause::Garbled(_) => Self::Other,
            Cause::TooLarge(_) => Self::TooLarge,
            Cause::Source(_) => Self::Source,
            Cause::Invalid(_) => Self::Invalid,
            Cause::Lost(_) => Self::LeaseLost,
        };
        if failure.unknown && class == Self::Unavailable { Self::OutcomeUnknown } else { class }
    }

    fn of_refusal(refusal: &Refusal) -> Self {
        match ErrorCode::parse(&refusal.body.error) {
            Some(code) => Self::of_code(code),
            None => Self::of_status(refusal.status),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one table: every code, once")]
    fn of_code(code: ErrorCode) -> Self {
        use ErrorCode as C;
        match code {
            C::Waiting => Self::Busy,
            C::AlreadyExists => Self::Exists,
            C::LeaseRequired
            | C::LeaseExpired
            | C::Revoked
            | C::FencingMismatch
            | C::QueueMessageLeaseMismatch => Self::LeaseLost,
            C::VersionConflict | C::EtagMismatch => Self::Conflict,
            C::FenceFailed => Self::FenceFailed,
            C::TxnMismatch
            | C::TxnConflict
            | C::TxnPending
            | C::TxnBackendMismatch
            | C::TcTermStale => Self::TxnConflict,
            C::DocumentTooLarge
            | C::AttachmentTooLarge
            | C::PayloadTooLarge
            | C::BodyTooLarge
            | C::HeadersTooLarge => Self::TooLarge,
            C::InvalidBody
            | C::InvalidNamespace
            | C::InvalidKey
            | C::MissingKey
            | C::MissingParams
            | C::MissingOwner
            | C::InvalidOwner
            | C::MissingLease
            | C::MissingTxn
            | C::MissingFencingToken
            | C::InvalidFencingToken
            | C::InvalidTtl
            | C::InvalidTxn
            | C::MissingTxnId
            | C::InvalidTxnId
            | C::InvalidState
            | C::TcTermRequired
            | C::TxnNotFound
            | C::InvalidVersion
            | C::InvalidExpectedBytes
            | C::InvalidExpectedSha256
            | C::InvalidMetadata
            | C::InvalidMutations
            | C::MissingAttachment
            | C::InvalidMaxBytes
            | C::AttachmentNotFound
            | C::TooManyAttachments
            | C::MissingQueue
            | C::InvalidQueue
            | C::MissingFields
            | C::InvalidMessageId
            | C::InvalidNackIntent
            | C::InvalidNackLastError
            | C::InvalidDelay
            | C::InvalidContentType
            | C::MultipartError
            | C::QueueStateKeepaliveUnsupported
            | C::InvalidFence
            | C::InvalidIdempotencyKey
            | C::InvalidParams
            | C::InvalidCursor
            | C::ExpectedBytesMismatch
            | C::ExpectedSha256Mismatch
            | C::IdempotencyKeyReused
            | C::NotFound
            | C::InvalidPath
            | C::MethodNotAllowed => Self::Invalid,
            C::NamespaceForbidden
            | C::InvalidNamespaceClaims
            | C::CertificateRevoked
            | C::CertificateExpired
            | C::TcClientRequired
            | C::TcServerRequired
            | C::TcForbidden
            | C::TokenRequired
            | C::NotAllowed => Self::Forbidden,
            C::CasMismatch
            | C::ReadConflict
            | C::RequestTimeout
            | C::ShutdownDraining
            | C::StoreUnavailable
            | C::RegistryUnavailable
            | C::ControllerUnavailable
            | C::LeaderUnreachable
            | C::LeadershipLost
            | C::TcUnavailable
            | C::TooManyWaiters
            | C::QueueBusy
            | C::TooManyConnections => Self::Unavailable,
            // Of nodes and their controllers, which this client does not talk to.
            C::NotLeader
            | C::StaleEpoch
            | C::UpgradeUnsupported
            | C::SwitchoverRefused
            | C::JobOver
            | C::AgentDeleted
            | C::Internal
            | C::StoreDamaged
            | C::QueryDisabled
            | C::IndexUnavailable
            | C::NamespaceConfigUnavailable
            | C::StoreUnsupported => Self::Other,
        }
    }

    /// For codes that this client does not know, and for proxies, which have none.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Forbidden,
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Self::Unavailable,
            status if status.is_client_error() => Self::Invalid,
            _ => Self::Other,
        }
    }
}
