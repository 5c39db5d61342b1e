//! The promises of the port as tests that every adapter must pass. Each function makes its own
//! fresh store and panics with a claim when the claim does not hold; `run_all` runs them all.
//! What an adapter does not claim in its `Abilities` is not asked of it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "this is test code that other crates can call"
)]

mod blobs;
mod races;
mod records;
mod scans;

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;

pub use self::blobs::*;
pub use self::races::*;
pub use self::records::*;
pub use self::scans::*;
use crate::port::{Expect, Name, Op, Revision, Store, StoreError, Stored, Write};

/// A fresh store, and what must live as long as it (a folder, a server).
pub struct Fixture {
    pub store: Arc<dyn Store>,
    pub keep: Box<dyn Any + Send + Sync>,
}

impl Fixture {
    pub fn new(store: Arc<dyn Store>, keep: impl Any + Send + Sync) -> Self {
        Self { store, keep: Box::new(keep) }
    }
}

/// Makes a fresh, empty store each time it is called.
pub type MakeStore<'a> = dyn Fn() -> BoxFuture<'static, Fixture> + Send + Sync + 'a;

/// Every promise, one after the other. Needs a runtime with several threads.
pub async fn run_all(make: &MakeStore<'_>) {
    create_and_conflict(make).await;
    update_needs_the_current_revision(make).await;
    delete_removes_and_is_conditional(make).await;
    checks_change_nothing(make).await;
    any_overwrites(make).await;
    batches_are_all_or_nothing(make).await;
    one_name_twice_in_a_commit(make).await;
    revisions_never_repeat(make).await;
    big_records_come_back(make).await;
    many_records_are_loaded_in_order(make).await;
    scans_walk_in_name_order(make).await;
    scans_respect_prefix_after_and_limit(make).await;
    scans_see_updates_and_deletions(make).await;
    one_winner_per_revision(make).await;
    one_creator_per_name(make).await;
    snapshots_show_one_moment(make).await;
    dropped_commits_are_whole_or_nothing(make).await;
    blobs_round_trip(make).await;
    blob_names_are_used_once(make).await;
    unfinished_blobs_are_not_readable(make).await;
    dropped_writers_leave_nothing(make).await;
    blobs_are_listed_in_order(make).await;
    deleted_blobs_are_gone_but_read_to_the_end(make).await;
    bad_blob_names_are_refused(make).await;
    closed_stores_answer_unavailable(make).await;
}

pub(crate) fn name(text: impl AsRef<str>) -> Name {
    Arc::from(text.as_ref())
}

pub(crate) fn put(at: impl AsRef<str>, expect: Expect, bytes: impl AsRef<[u8]>) -> Op {
    let write = Write::Put(Bytes::copy_from_slice(bytes.as_ref()));
    Op { name: name(at), expect, write }
}

pub(crate) fn delete(at: impl AsRef<str>, expect: Expect) -> Op {
    Op { name: name(at), expect, write: Write::Delete }
}

pub(crate) fn check(at: impl AsRef<str>, expect: Expect) -> Op {
    Op { name: name(at), expect, write: Write::Check }
}

pub(crate) async fn load(store: &dyn Store, at: &str) -> Option<Stored> {
    store.load(&name(at)).await.unwrap()
}

/// Commits one op and returns its revision.
pub(crate) async fn commit_one(store: &dyn Store, op: Op) -> Result<Revision, StoreError> {
    let revisions = store.commit(vec![op]).await?;
    assert_eq!(revisions.len(), 1, "one revision per op");
    Ok(revisions[0])
}

pub(crate) fn is_conflict<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Conflict))
}

pub(crate) fn is_unavailable<T>(outcome: &Result<T, StoreError>) -> bool {
    matches!(outcome, Err(StoreError::Unavailable(_)))
}
