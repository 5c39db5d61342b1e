//! Everything an operation can say instead of yes. Which status and code each becomes is chosen
//! in `http/error.rs`.

use lockd_core::answer::StampReused;
use lockd_core::attachment::AttachRefused;
use lockd_core::fence::FenceRefused;
use lockd_core::key::NameRefused;
use lockd_core::lease::{ProofRefused, ReleaseRefused};
use lockd_core::record::{Etag, Version};
use lockd_core::state::StageRefused;
use lockd_core::time::Span;
use lockd_core::txn::{DecideRefused, JoinRefused, Outcome};
use lockd_json::JsonError;
use lockd_json::mutate::MutationError;
use lockd_store::StoreError;
use lockd_wire::ErrorCode;

use super::queue::QueueRefused;
use crate::commit::{CommitError, NotSettled};

#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The request itself is wrong: a code and what to do about it.
    #[error("{1}")]
    Request(ErrorCode, String),
    #[error(transparent)]
    Name(#[from] NameRefused),
    #[error(transparent)]
    Proof(#[from] ProofRefused),
    #[error("the key is held by another")]
    Held { retry_after: Span, version: Option<Version>, etag: Option<Etag> },
    #[error("deadlock: the holder of this key waits for this transaction")]
    Deadlock,
    #[error("the key exists already")]
    Exists,
    #[error("the key has no such attachment")]
    NoAttachment,
    #[error("an attachment has at most {max} bytes here")]
    AttachmentTooLarge { max: u64 },
    #[error("a key has at most 256 attachments")]
    AttachmentsFull,
    #[error("the version is {}", current.0)]
    Version { current: Version, etag: Option<Etag> },
    #[error("the state is not the one you expected")]
    Etag { current: Version, etag: Option<Etag> },
    #[error(transparent)]
    Fence(#[from] FenceRefused),
    #[error("at most 16 fence conditions can be kept with one transaction")]
    FencesFull,
    #[error("the lease was already released with the opposite outcome")]
    Decided,
    #[error(transparent)]
    Txn(#[from] TxnRefused),
    #[error(transparent)]
    Queue(QueueRefused),
    #[error(transparent)]
    Reused(#[from] StampReused),
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error(transparent)]
    Mutation(#[from] MutationError),
    #[error("the body has {got} bytes, expected were {expected}")]
    ExpectedBytes { expected: u64, got: u64 },
    #[error("the SHA-256 of the body is {got}")]
    ExpectedSha256 { got: String },
    #[error("a document over {max} bytes cannot be mutated on the server; update it instead")]
    MutateTooLarge { max: u64 },
    #[error("the body broke off: {0}")]
    BodyBroken(String),
    #[error("no part of the body came for {}", humantime::format_duration(*.0))]
    BodyTimeout(std::time::Duration),
    #[error("the body came more slowly than {0} bytes a second; send it faster or in parts")]
    BodySlow(u64),
    #[error("the server is shutting down")]
    Draining { retry_after: Span },
    #[error("too many requests wait for keys")]
    WaitersFull,
    #[error("too many others write the same key")]
    Contended,
    #[error("the keys changed faster than they could be read together")]
    ReadConflict,
    #[error(transparent)]
    Store(StoreError),
}

/// What stands against a wish about a transaction.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum TxnRefused {
    #[error("there is no such transaction")]
    NotFound,
    #[error("the transaction is not decided")]
    Pending,
    #[error("{0}")]
    Conflict(&'static str),
    #[error("the term {stored} of another coordinator is newer")]
    TermStale { stored: u64 },
    #[error("a coordinator decides this transaction; its term is missing")]
    TermRequired,
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<StageRefused> for Refused {
    fn from(refused: StageRefused) -> Self {
        match refused {
            StageRefused::Proof(proof) => Self::Proof(proof),
            StageRefused::Version { current, etag } => Self::Version { current, etag },
            StageRefused::Etag { current, etag } => Self::Etag { current, etag },
            StageRefused::Fence(fence) => Self::Fence(fence),
            StageRefused::FencesFull => Self::FencesFull,
            StageRefused::InTxn(_) => Self::Txn(TxnRefused::Conflict(
                "the transaction has other keys too; stage here, and release one of them",
            )),
            StageRefused::Reused(reused) => Self::Reused(reused),
        }
    }
}

impl From<ReleaseRefused> for Refused {
    fn from(refused: ReleaseRefused) -> Self {
        match refused {
            ReleaseRefused::Proof(proof) => Self::Proof(proof),
            ReleaseRefused::Fence(fence) => Self::Fence(fence),
            ReleaseRefused::Decided => Self::Decided,
            ReleaseRefused::InTxn(_) => Self::Contended,
            ReleaseRefused::Reused(reused) => Self::Reused(reused),
        }
    }
}

impl From<AttachRefused> for Refused {
    fn from(refused: AttachRefused) -> Self {
        match refused {
            AttachRefused::Proof(proof) => Self::Proof(proof),
            AttachRefused::Full => Self::AttachmentsFull,
        }
    }
}

impl From<JoinRefused> for Refused {
    fn from(refused: JoinRefused) -> Self {
        Self::Txn(TxnRefused::Conflict(match refused {
            JoinRefused::Decided => "the transaction is decided; begin another one",
            JoinRefused::Full => "the transaction has as many keys as one can have",
        }))
    }
}

impl From<NotSettled> for Refused {
    fn from(refused: NotSettled) -> Self {
        match refused {
            NotSettled::NotFound => Self::Txn(TxnRefused::NotFound),
            NotSettled::Refused(refused) => refused.into(),
        }
    }
}

impl From<DecideRefused> for Refused {
    fn from(refused: DecideRefused) -> Self {
        match refused {
            DecideRefused::Proof(proof) => Self::Proof(proof),
            DecideRefused::Fence(fence) => Self::Fence(fence),
            DecideRefused::StillHeld => Self::Contended,
            DecideRefused::Conflict(Outcome::Commit) => {
                Self::Txn(TxnRefused::Conflict("the transaction is committed"))
            }
            DecideRefused::Conflict(Outcome::Rollback(_)) => {
                Self::Txn(TxnRefused::Conflict("the transaction is rolled back"))
            }
            DecideRefused::TermStale { stored } => Self::Txn(TxnRefused::TermStale { stored }),
            DecideRefused::TermRequired => Self::Txn(TxnRefused::TermRequired),
        }
    }
}

impl<R: Into<Self>> From<CommitError<R>> for Refused {
    fn from(error: CommitError<R>) -> Self {
        match error {
            CommitError::Refused(refused) => refused.into(),
            CommitError::Store(error) => Self::Store(error),
            CommitError::Contended => Self::Contended,
        }
    }
}
