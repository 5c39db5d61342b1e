//! Work on a store that no server has open: restoring a backup, checking, looking into a record.
//! Restoring raises every fencing token, because tokens that were given after the backup was made
//! must never be given again.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use lockd_core::fence::Fence;
use lockd_core::key::KeyName;
use lockd_core::lease::{self, InTxn};
use lockd_core::message;
use lockd_core::record::{Change, Content, End, KeyRecord, State};
use lockd_core::time::{BootId, Now, Span, Tick, Timeline, UnixMillis};
use lockd_core::txn::{self, Outcome, TxnState, Why};
use lockd_store::embedded::{self, BackupError, Problem, Report, RestoreSummary};
use lockd_store::{EmbeddedOptions, EmbeddedStore, Name, OpenError, Store, StoreError, codec};
use serde_json::{Value, json};

use crate::app::queue::enqueue::ANSWER_PREFIX;
use crate::commit::MARK_PREFIX;
use crate::commit::{
    DUE_PREFIX, EXPIRY_PREFIX, FLOOR_NAME, KEY_PREFIX, LARGE_PREFIX, LEASE_PREFIX, MESSAGE_PREFIX,
    STAND_PREFIX, TXN_PREFIX, read_floor, read_stand, record_name,
};

/// Far more grants than a key can see between a backup and its restore.
const TOKENS_SKIPPED: u64 = 1 << 32;
/// Far more grants than a key can see in a millisecond.
const TOKENS_PER_MILLI: u64 = 256;

/// Why maintenance failed.
#[derive(Debug, thiserror::Error)]
pub enum MaintainError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Backup(#[from] BackupError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the record of {key} is damaged: {detail}")]
    Damaged { key: KeyName, detail: String },
    #[error("the backup does not come from a lockd server: it has no floor of tokens")]
    NoFloor,
}

/// Every stored lease counts as over: nobody reads times from a store at rest.
const NO_TIME: Timeline = Timeline {
    boot: BootId(0),
    start: Now { tick: Tick(0), wall: UnixMillis(0) },
    slack: Some(Span::ZERO),
};

/// Restores a backup into an empty or missing directory. Leases are ended, tokens go on far above
/// all that were ever given, also for keys that the backup does not know, and also when the same
/// backup was restored before: `now` sets a mark that later restores begin above.
///
/// # Errors
/// When the backup is damaged or the directory is in use; then nothing is left behind.
pub fn restore(
    backup: &Path,
    target: &Path,
    now: UnixMillis,
) -> Result<RestoreSummary, MaintainError> {
    let mut floor_seen = false;
    let mut adjust = |name: &str, bytes: Bytes| {
        floor_seen |= name == FLOOR_NAME;
        raise_tokens(name, bytes, now)
    };
    let summary = embedded::restore(backup, target, &mut adjust)?;
    if !floor_seen {
        // Without a floor, keys made after the backup would start over with token one.
        let removed = std::fs::remove_dir_all(target);
        tracing::debug!(removed = removed.is_ok(), "restore undone");
        return Err(MaintainError::NoFloor);
    }
    Ok(summary)
}

fn raise_tokens(name: &str, bytes: Bytes, now: UnixMillis) -> Result<Bytes, String> {
    let raised = |token: u64| (token + TOKENS_SKIPPED).max(now.0.saturating_mul(TOKENS_PER_MILLI));
    if name == FLOOR_NAME {
        let floor = read_floor(&bytes).map_err(|error| error.to_string())?;
        return Ok(raised(floor).to_string().into());
    }
    if name.starts_with(MESSAGE_PREFIX) {
        let record = codec::decode(&bytes, &NO_TIME).map_err(|error| error.to_string())?;
        let mut record = message::forgotten(&record);
        record.fence = Fence(raised(record.fence.0));
        return Ok(codec::encode(&record, NO_TIME.boot));
    }
    if name.starts_with(TXN_PREFIX) {
        let mut record = codec::decode_txn(&bytes).map_err(|error| error.to_string())?;
        if record.state == TxnState::Pending {
            // Its keys are let go of below: nobody may commit the rest of it.
            record.state = TxnState::Decided(Outcome::Rollback(Why::Lapsed));
        }
        return Ok(codec::encode_txn(&record));
    }
    if !name.starts_with(KEY_PREFIX) {
        return Ok(bytes);
    }
    let mut record = codec::decode(&bytes, &NO_TIME).map_err(|error| error.to_string())?;
    // The holder knows nothing of the restore: what it holds is worth nothing any more.
    let later = Now { tick: Tick(u64::MAX), wall: UnixMillis(0) };
    let ended = match lease::lapse(&record, later) {
        Ok(ended) => ended,
        // A transaction is over as a whole: each of its keys ends like this one.
        Err(InTxn(txn)) => {
            let key = name.strip_prefix(KEY_PREFIX).unwrap_or_default();
            let key = KeyName::parse_full(key).map_err(|error| error.to_string())?;
            txn::apply(&key, &record, txn, &Outcome::Rollback(Why::Lapsed), later)
        }
    };
    if let Some(ended) = ended.and_then(|ended| ended.record) {
        record = ended;
    }
    record.fence = Fence(raised(record.fence.0));
    Ok(codec::encode(&record, NO_TIME.boot))
}

/// Reads everything in a store and lists what is wrong. Repairs nothing.
///
/// # Errors
/// When there is no store, or a server has it open.
pub async fn check(path: &Path) -> Result<Report, MaintainError> {
    let mut named: Vec<(KeyName, Arc<str>)> = Vec::new();
    let mut report = embedded::check(path, &mut |name, bytes| verify(name, bytes, &mut named))?;
    if named.is_empty() {
        return Ok(report);
    }
    let store = EmbeddedStore::open(EmbeddedOptions::new(path))?;
    for (key, blob) in named {
        if matches!(store.get_blob(&blob).await, Err(StoreError::NoBlob)) {
            let detail = format!("names the blob {blob}, which is not there");
            report.problems.push(Problem { what: key.to_string(), detail });
        }
    }
    store.close().await;
    Ok(report)
}

fn verify(name: &str, bytes: &[u8], named: &mut Vec<(KeyName, Arc<str>)>) -> Result<(), String> {
    let key = name.strip_prefix(KEY_PREFIX).or_else(|| name.strip_prefix(MESSAGE_PREFIX));
    if let Some(key) = key {
        let key = KeyName::parse_full(key).map_err(|error| error.to_string())?;
        let record = codec::decode(&Bytes::copy_from_slice(bytes), &NO_TIME)
            .map_err(|error| error.to_string())?;
        named.extend(record.blobs().map(|blob| (key.clone(), Arc::clone(blob))));
        return Ok(());
    }
    if name.starts_with(TXN_PREFIX) {
        let record = codec::decode_txn(&Bytes::copy_from_slice(bytes));
        return record.map(drop).map_err(|error| error.to_string());
    }
    if name == FLOOR_NAME {
        return read_floor(bytes).map(drop).map_err(|error| error.to_string());
    }
    if name.starts_with(ANSWER_PREFIX) {
        let answer = codec::decode_enqueued(&Bytes::copy_from_slice(bytes));
        return answer.map(drop).map_err(|error| error.to_string());
    }
    if name.starts_with(STAND_PREFIX) {
        let stand = read_stand(bytes, NO_TIME.start);
        return stand.map(drop).ok_or_else(|| "an entry of a queue that cannot be read".into());
    }
    if [LEASE_PREFIX, DUE_PREFIX, LARGE_PREFIX, EXPIRY_PREFIX, MARK_PREFIX]
        .iter()
        .any(|known| name.starts_with(known))
    {
        return Ok(());
    }
    Err("a record of a kind that this program does not know".into())
}

/// The record of a key as JSON; `None` when there is none. Lease ids are not shown: they are
/// their holders' secrets.
///
/// # Errors
/// When there is no store, a server has it open, or the record is damaged.
pub async fn get(path: &Path, key: &KeyName) -> Result<Option<Value>, MaintainError> {
    let store = EmbeddedStore::open(EmbeddedOptions::new(path))?;
    let name: Name = record_name(key);
    let loaded = store.load(&name).await;
    store.close().await;
    let Some(stored) = loaded? else { return Ok(None) };
    let record = codec::decode(&stored.bytes, &NO_TIME)
        .map_err(|error| MaintainError::Damaged { key: key.clone(), detail: error.to_string() })?;
    Ok(Some(record_json(key, &record, stored.revision.0)))
}

fn record_json(key: &KeyName, record: &KeyRecord, revision: u64) -> Value {
    let lease = record.lease.as_ref().map(|lease| {
        json!({
            "owner": lease.owner,
            "txn_explicit": lease.recorded,
            "ttl_ms": lease.ttl.0,
            "granted_at_unix_ms": lease.granted_at.0,
            "expires_at_unix_ms": lease.expires.wall.0,
        })
    });
    let staged = record.staged.as_ref().map(|staged| {
        let change = match &staged.change {
            Change::Keep => json!("keep"),
            Change::Remove => json!("remove"),
            Change::Write(state) => state_json(state),
        };
        json!({ "version": staged.version.0, "query_hidden": staged.hidden, "change": change })
    });
    let ended = record.ended.as_ref().map(|ended| {
        let how = match &ended.how {
            End::Released => "released",
            End::Committed => "committed",
            End::RolledBack => "rolled_back",
            End::Lapsed { lost: false } => "expired",
            End::Lapsed { lost: true } => "expired_with_staged_data",
            End::Revoked { .. } => "revoked",
        };
        json!({ "fencing_token": ended.fence.0, "how": how })
    });
    json!({
        "namespace": key.namespace(),
        "key": key.key(),
        "revision": revision,
        "fencing_token": record.fence.0,
        "version": record.version.0,
        "updated_at_unix_ms": record.updated_at.0,
        "query_hidden": record.hidden,
        "state": record.state.as_ref().map(state_json),
        "lease": lease,
        "staged": staged,
        "last_ended": ended,
        "answers_remembered": record.answers.len(),
    })
}

fn state_json(state: &State) -> Value {
    let mut value = json!({ "etag": state.etag.to_string(), "bytes": state.bytes });
    let (name, content) = match &state.content {
        Content::Blob(blob) => ("blob", json!(&**blob)),
        Content::Inline(bytes) => match serde_json::from_slice(bytes) {
            Ok(document) => ("document", document),
            Err(_) => ("document_text", json!(String::from_utf8_lossy(bytes))),
        },
    };
    if let Some(fields) = value.as_object_mut() {
        fields.insert(name.to_owned(), content);
    }
    value
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lockd_core::fence::Fence;
    use lockd_core::record::KeyRecord;
    use lockd_core::time::UnixMillis;
    use lockd_store::codec;

    use super::{FLOOR_NAME, NO_TIME, TOKENS_SKIPPED, raise_tokens};

    fn raised(token: u64, now: u64) -> u64 {
        let record = KeyRecord { stored: true, fence: Fence(token), ..KeyRecord::default() };
        let bytes = codec::encode(&record, NO_TIME.boot);
        let bytes = raise_tokens("k/default/a", bytes, UnixMillis(now)).unwrap();
        codec::decode(&bytes, &NO_TIME).unwrap().fence.0
    }

    #[test]
    fn restoring_raises_the_token_of_every_key_and_the_floor() {
        assert_eq!(raised(7, 0), 7 + TOKENS_SKIPPED);
        let floor = raise_tokens(FLOOR_NAME, Bytes::from_static(b"3"), UnixMillis(0)).unwrap();
        assert_eq!(floor, Bytes::from((3 + TOKENS_SKIPPED).to_string()));
        let index = raise_tokens("l/default/a", Bytes::new(), UnixMillis(0)).unwrap();
        assert_eq!(index, Bytes::new());
    }

    #[test]
    fn restoring_the_same_backup_again_begins_above_the_first_time() {
        let today = 1_800_000_000_000;
        let an_hour_of_grants = 3_600_000 * 100;
        assert!(raised(7, today + 3_600_000) > raised(7, today) + an_hour_of_grants);
        assert!(raised(7, today) < 1 << 53, "still exact where numbers are floating");
    }
}
