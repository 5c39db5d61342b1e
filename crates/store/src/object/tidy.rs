//! Tombstones are removed when nobody can have a write under way that they must stop. Only names
//! that are never used again lose theirs: a DELETE has no condition and may arrive late.

use std::time::Duration;

use super::envelope::Envelope;
use super::probe::AREA as PROBES;
use super::{RECORDS, Shared};
use crate::port::{Name, StoreError};

/// A tombstone this old has done its work.
const REST: Duration = Duration::from_secs(24 * 3600);
/// How many are removed in one go.
const AT_ONCE: usize = 1_000;
/// Messages and transactions: their ids are made anew each time.
pub(super) const UNIQUE: [&str; 2] = ["q/", "t/"];

/// Looks at some of them and removes old tombstones; says how many. The next call goes on from there.
pub(super) async fn tombstones(shared: &Shared) -> Result<usize, StoreError> {
    let Some(now) = shared.line.time.now(super::tick_ms()) else { return Ok(0) };
    let before = i64::try_from(now.unix_ms / 1_000).unwrap_or(0)
        - i64::try_from(REST.as_secs()).unwrap_or(i64::MAX);
    let mut removed = 0;
    for (prefix, reached) in UNIQUE.iter().zip(&shared.tidied) {
        let after = reached.lock().take();
        let mut old: Vec<Name> = Vec::new();
        shared
            .list(RECORDS, prefix, after.as_deref(), |object| {
                let may_be = object.size <= Envelope::TOMBSTONE_BYTES_MAX
                    && object.last_modified.timestamp() < before;
                if may_be && let Some(name) = shared.prefix.name(RECORDS, object.location.as_ref())
                {
                    old.push(name.into());
                }
                old.len() < AT_ONCE
            })
            .await?;
        if old.len() == AT_ONCE {
            *reached.lock() = old.last().map(ToString::to_string);
        }
        for name in old {
            let found = shared.look(&name).await?;
            if found.is_some_and(|found| found.envelope.deleted) {
                shared.remove(&shared.record_path(&name)).await?;
                shared.known.remove(&name);
                removed += 1;
            }
        }
    }
    let mut probes = Vec::new();
    shared
        .list(PROBES, "", None, |object| {
            let old = object.last_modified.timestamp() < before;
            probes.extend(old.then_some(object.location));
            probes.len() < AT_ONCE
        })
        .await?;
    for probe in probes {
        shared.remove(&probe).await?;
    }
    Ok(removed)
}
