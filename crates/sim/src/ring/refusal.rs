//! Core's refusals in the words of the wire. The server has a table of its own; that scenarios
//! read the same in both rings shows that the two agree.

use lockd_core::answer::StampReused;
use lockd_core::fence::FenceRefused;
use lockd_core::lease::{AcquireRefused, ProofRefused, ReleaseRefused};
use lockd_core::record::Version;
use lockd_core::state::StageRefused;
use lockd_json::mutate::MutationError;

use crate::answer::Refused;

/// A refusal that has its words.
pub(super) struct Known(pub(super) Refused);

pub(super) type No = Known;

pub(super) fn code(code: &str) -> No {
    Known(Refused::code(code))
}

fn at_version(name: &str, version: Version) -> No {
    Known(Refused { version: Some(version.0), ..Refused::code(name) })
}

impl From<ProofRefused> for No {
    fn from(refused: ProofRefused) -> Self {
        match refused {
            ProofRefused::NotHeld => code("lease_required"),
            ProofRefused::Expired => code("lease_expired"),
            ProofRefused::Revoked { .. } => code("revoked"),
            ProofRefused::Fenced { current } => {
                Self(Refused { token: Some(current.0), ..Refused::code("fencing_mismatch") })
            }
            ProofRefused::OtherTxn => code("txn_mismatch"),
        }
    }
}

impl From<FenceRefused> for No {
    fn from(refused: FenceRefused) -> Self {
        Self(Refused { token: Some(refused.current.0), ..Refused::code("fence_failed") })
    }
}

impl From<StampReused> for No {
    fn from(StampReused: StampReused) -> Self {
        code("idempotency_key_reused")
    }
}

impl From<AcquireRefused> for No {
    fn from(refused: AcquireRefused) -> Self {
        match refused {
            AcquireRefused::Held { .. } => code("waiting"),
            AcquireRefused::Exists => code("already_exists"),
            AcquireRefused::InTxn(_) => code("bug"),
            AcquireRefused::Reused(reused) => reused.into(),
        }
    }
}

impl From<ReleaseRefused> for No {
    fn from(refused: ReleaseRefused) -> Self {
        match refused {
            ReleaseRefused::Proof(proof) => proof.into(),
            ReleaseRefused::Fence(fence) => fence.into(),
            ReleaseRefused::Decided => code("txn_conflict"),
            ReleaseRefused::InTxn(_) => code("bug"),
            ReleaseRefused::Reused(reused) => reused.into(),
        }
    }
}

impl From<StageRefused> for No {
    fn from(refused: StageRefused) -> Self {
        match refused {
            StageRefused::Proof(proof) => proof.into(),
            StageRefused::Version { current, .. } => at_version("version_conflict", current),
            StageRefused::Etag { current, .. } => at_version("etag_mismatch", current),
            StageRefused::Fence(fence) => fence.into(),
            StageRefused::FencesFull => code("invalid_fence"),
            StageRefused::InTxn(_) => code("txn_conflict"),
            StageRefused::Reused(reused) => reused.into(),
        }
    }
}

impl From<MutationError> for No {
    fn from(error: MutationError) -> Self {
        Self(Refused { detail: error.to_string(), ..Refused::code("invalid_mutations") })
    }
}
