//! Which status and code each refusal becomes. One match, one table.

use http::{HeaderValue, StatusCode, header};
use lockd_core::key::{KeyName, NameRefused};
use lockd_core::lease::ProofRefused;
use lockd_core::time::Span;
use lockd_json::JsonError;
use lockd_pki::Access;
use lockd_store::StoreError;
use lockd_wire::{ErrorBody, ErrorCode};

use super::auth::{self, Who};
use super::body::Response;
use super::reply;
use crate::app::{QueueRefused, Refused, TxnRefused};

/// A refusal on its way out.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) body: Box<ErrorBody>,
    /// The key of a fence condition that failed. A transaction keeps the conditions of all its
    /// participants, so it may be a key in a namespace that this caller has no claim on.
    fenced_by: Option<KeyName>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: ErrorCode, detail: impl Into<String>) -> Self {
        let body = ErrorBody {
            error: code.as_str().to_owned(),
            detail: detail.into(),
            ..ErrorBody::default()
        };
        Self { status, body: Box::new(body), fenced_by: None }
    }

    /// Leaves out what a caller that has no claim on its namespace may not learn.
    pub(super) fn seen_by(mut self, who: &Who) -> Self {
        let fenced_by = self.fenced_by.take();
        let hidden =
            fenced_by.filter(|key| auth::permit(who, key.namespace(), Access::Any).is_err());
        if hidden.is_some() {
            self.body.detail = "a fence condition of the transaction failed".to_owned();
            self.body.current_fencing_token = None;
        }
        self
    }

    fn after(mut self, span: Span) -> Self {
        self.body.retry_after_seconds = Some(span.as_secs_up().max(1));
        self
    }
}

impl ApiError {
    pub(crate) fn into_response(self) -> Response {
        let mut response = reply::json(self.status, &self.body);
        if let Some(seconds) = self.body.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<NameRefused> for ApiError {
    fn from(refused: NameRefused) -> Self {
        Refused::Name(refused).into()
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let detail = refused.to_string();
        let say = |status: StatusCode, code: ErrorCode| Self::new(status, code, detail.clone());
        let soon = |status, code| say(status, code).after(Span::secs(1));
        match refused {
            Refused::Request(code, _) => say(StatusCode::BAD_REQUEST, code),
            Refused::Name(name) => say(StatusCode::BAD_REQUEST, code_of(name)),
            Refused::Proof(proof) => from_proof(&proof, detail),
            Refused::Held { retry_after, version, etag } => {
                let mut error = say(StatusCode::CONFLICT, ErrorCode::Waiting).after(retry_after);
                error.body.current_version = version.map(|version| version.0);
                error.body.current_etag = etag.map(|etag| etag.to_string());
                error
            }
            Refused::Deadlock => soon(StatusCode::CONFLICT, ErrorCode::Waiting),
            Refused::Txn(refused) => from_txn(refused, detail),
            Refused::Queue(refused) => from_queue(&refused, detail),
            Refused::NoAttachment => say(StatusCode::NOT_FOUND, ErrorCode::AttachmentNotFound),
            Refused::AttachmentTooLarge { .. } => {
                say(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::AttachmentTooLarge)
            }
            Refused::AttachmentsFull => say(StatusCode::CONFLICT, ErrorCode::TooManyAttachments),
            Refused::Exists => say(StatusCode::CONFLICT, ErrorCode::AlreadyExists),
            Refused::Version { current, etag } => {
                let mut error = say(StatusCode::CONFLICT, ErrorCode::VersionConflict);
                error.body.current_version = Some(current.0);
                error.body.current_etag = etag.map(|etag| etag.to_string());
                error
            }
            Refused::Etag { current, etag } => {
                let mut error = say(StatusCode::CONFLICT, ErrorCode::EtagMismatch);
                error.body.current_version = Some(current.0);
                error.body.current_etag = etag.map(|etag| etag.to_string());
                error
            }
            Refused::Fence(fence) => {
                let mut error = say(StatusCode::CONFLICT, ErrorCode::FenceFailed);
                error.body.current_fencing_token = Some(fence.current.0);
                error.fenced_by = Some(fence.key);
                error
            }
            Refused::FencesFull => say(StatusCode::BAD_REQUEST, ErrorCode::InvalidFence),
            Refused::Decided => say(StatusCode::CONFLICT, ErrorCode::TxnConflict),
            Refused::Reused(_) => say(StatusCode::CONFLICT, ErrorCode::IdempotencyKeyReused),
            Refused::Json(JsonError::TooLarge { .. }) | Refused::MutateTooLarge { .. } => {
                say(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::DocumentTooLarge)
            }
            Refused::Json(_) | Refused::BodyBroken(_) => {
                say(StatusCode::BAD_REQUEST, ErrorCode::InvalidBody)
            }
            Refused::Mutation(_) => say(StatusCode::BAD_REQUEST, ErrorCode::InvalidMutations),
            Refused::ExpectedBytes { .. } => {
                say(StatusCode::CONFLICT, ErrorCode::ExpectedBytesMismatch)
            }
            Refused::ExpectedSha256 { .. } => {
                say(StatusCode::CONFLICT, ErrorCode::ExpectedSha256Mismatch)
            }
            Refused::BodyTimeout(_) | Refused::BodySlow(_) => {
                say(StatusCode::REQUEST_TIMEOUT, ErrorCode::RequestTimeout)
            }
            Refused::Draining { retry_after } => {
                say(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::ShutdownDraining).after(retry_after)
            }
            Refused::WaitersFull => {
                soon(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::TooManyWaiters)
            }
            Refused::Contended => soon(StatusCode::CONFLICT, ErrorCode::CasMismatch),
            Refused::ReadConflict => soon(StatusCode::CONFLICT, ErrorCode::ReadConflict),
            Refused::Store(error) => from_store(&error),
        }
    }
}

fn code_of(refused: NameRefused) -> ErrorCode {
    match refused {
        NameRefused::Namespace | NameRefused::Reserved => ErrorCode::InvalidNamespace,
        NameRefused::KeyMissing => ErrorCode::MissingKey,
        NameRefused::Key => ErrorCode::InvalidKey,
        NameRefused::Queue => ErrorCode::InvalidQueue,
    }
}

fn from_queue(refused: &QueueRefused, detail: String) -> ApiError {
    let (status, code) = match refused {
        QueueRefused::Empty { .. } => (StatusCode::CONFLICT, ErrorCode::Waiting),
        QueueRefused::Busy => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::QueueBusy),
        QueueRefused::TooLarge { .. } => {
            (StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::PayloadTooLarge)
        }
        QueueRefused::NotFound => (StatusCode::NOT_FOUND, ErrorCode::NotFound),
        QueueRefused::LeaseMismatch => (StatusCode::CONFLICT, ErrorCode::QueueMessageLeaseMismatch),
        QueueRefused::Etag(_) => (StatusCode::CONFLICT, ErrorCode::CasMismatch),
    };
    let error = ApiError::new(status, code, detail);
    match refused {
        QueueRefused::Empty { waited: Some(waited) } => error.after(*waited),
        QueueRefused::Busy => error.after(Span::secs(1)),
        QueueRefused::Empty { waited: None }
        | QueueRefused::TooLarge { .. }
        | QueueRefused::NotFound
        | QueueRefused::LeaseMismatch
        | QueueRefused::Etag(_) => error,
    }
}

fn from_txn(refused: TxnRefused, detail: String) -> ApiError {
    let (status, code) = match refused {
        TxnRefused::NotFound => (StatusCode::NOT_FOUND, ErrorCode::TxnNotFound),
        TxnRefused::Pending => (StatusCode::CONFLICT, ErrorCode::TxnPending),
        TxnRefused::Conflict(_) => (StatusCode::CONFLICT, ErrorCode::TxnConflict),
        TxnRefused::TermStale { .. } => (StatusCode::CONFLICT, ErrorCode::TcTermStale),
        TxnRefused::TermRequired => (StatusCode::BAD_REQUEST, ErrorCode::TcTermRequired),
    };
    ApiError::new(status, code, detail)
}

fn from_proof(refused: &ProofRefused, detail: String) -> ApiError {
    let (status, code) = match refused {
        ProofRefused::NotHeld => (StatusCode::FORBIDDEN, ErrorCode::LeaseRequired),
        ProofRefused::Expired => (StatusCode::FORBIDDEN, ErrorCode::LeaseExpired),
        ProofRefused::Revoked { .. } => (StatusCode::FORBIDDEN, ErrorCode::Revoked),
        ProofRefused::Fenced { .. } => (StatusCode::FORBIDDEN, ErrorCode::FencingMismatch),
        ProofRefused::OtherTxn => (StatusCode::CONFLICT, ErrorCode::TxnMismatch),
    };
    let mut error = ApiError::new(status, code, detail);
    if let ProofRefused::Fenced { current } = refused {
        error.body.current_fencing_token = Some(current.0);
    }
    error
}

/// What went wrong inside goes to the log, not to the caller.
fn from_store(error: &StoreError) -> ApiError {
    match error {
        StoreError::Unavailable(why) => {
            tracing::debug!(%why, "answered as unavailable");
            let detail = "the store cannot be used right now; nothing was changed, try again";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::StoreUnavailable, detail)
                .after(Span::secs(1))
        }
        StoreError::Unknown(why) => {
            tracing::warn!(%why, "a write has an unknown outcome");
            let detail = "the store failed during the write; read before you try again, or repeat \
                          the request with the same idempotency key";
            let code = ErrorCode::StoreUnavailable;
            let mut error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, detail);
            error.body.outcome = Some("unknown".into());
            error.after(Span::secs(1))
        }
        StoreError::Conflict => {
            let detail = "too many others write the same key";
            ApiError::new(StatusCode::CONFLICT, ErrorCode::CasMismatch, detail).after(Span::secs(1))
        }
        StoreError::Damaged(why) => {
            tracing::error!(%why, "stored data is damaged and not served");
            let detail = "the stored data of this key is damaged; run `lockd store check`";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::StoreDamaged, detail)
        }
        StoreError::NoBlob => {
            tracing::error!("a blob that a record names is missing");
            let detail = "the stored data of this key is missing; run `lockd store check`";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::StoreDamaged, detail)
        }
    }
}
