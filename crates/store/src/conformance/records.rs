//! Records: conditions, batches, revisions, closing.

use std::collections::HashSet;

use super::{MakeStore, check, commit_one, delete, is_conflict, is_unavailable, load, name, put};
use crate::port::{Expect, Revision};

pub async fn create_and_conflict(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    assert_eq!(load(store, "a").await, None, "a fresh store is empty");
    let revision = commit_one(store, put("a", Expect::Absent, "one")).await.unwrap();
    assert_ne!(revision, Revision(0), "a revision is never zero");
    let stored = load(store, "a").await.unwrap();
    assert_eq!((&stored.bytes[..], stored.revision), (&b"one"[..], revision));
    let again = commit_one(store, put("a", Expect::Absent, "two")).await;
    assert!(is_conflict(&again), "a second create conflicts: {again:?}");
    assert_eq!(load(store, "a").await.unwrap(), stored, "a refused write changes nothing");
    store.close().await;
}

pub async fn update_needs_the_current_revision(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let missing = commit_one(store, put("a", Expect::Revision(Revision(1)), "x")).await;
    assert!(is_conflict(&missing), "an update of nothing conflicts: {missing:?}");
    let first = commit_one(store, put("a", Expect::Absent, "one")).await.unwrap();
    let second = commit_one(store, put("a", Expect::Revision(first), "two")).await.unwrap();
    assert_ne!(first, second, "every write changes the revision");
    let stale = commit_one(store, put("a", Expect::Revision(first), "three")).await;
    assert!(is_conflict(&stale), "a stale update conflicts: {stale:?}");
    let stored = load(store, "a").await.unwrap();
    assert_eq!((&stored.bytes[..], stored.revision), (&b"two"[..], second));
    let same = commit_one(store, put("a", Expect::Revision(second), "two")).await.unwrap();
    assert_ne!(same, second, "the same bytes again are a new revision");
    store.close().await;
}

pub async fn delete_removes_and_is_conditional(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let first = commit_one(store, put("a", Expect::Absent, "one")).await.unwrap();
    let second = commit_one(store, put("a", Expect::Revision(first), "two")).await.unwrap();
    let stale = commit_one(store, delete("a", Expect::Revision(first))).await;
    assert!(is_conflict(&stale), "a stale delete conflicts: {stale:?}");
    commit_one(store, delete("a", Expect::Revision(second))).await.unwrap();
    assert_eq!(load(store, "a").await, None, "a deleted record is gone");
    let again = commit_one(store, delete("a", Expect::Revision(second))).await;
    assert!(is_conflict(&again), "a second delete conflicts: {again:?}");
    commit_one(store, put("a", Expect::Absent, "three")).await.unwrap();
    assert_eq!(&load(store, "a").await.unwrap().bytes[..], b"three", "it can be made again");
    store.close().await;
}

pub async fn checks_change_nothing(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let first = commit_one(store, put("a", Expect::Absent, "one")).await.unwrap();
    commit_one(store, check("a", Expect::Revision(first))).await.unwrap();
    commit_one(store, check("b", Expect::Absent)).await.unwrap();
    assert_eq!(load(store, "a").await.unwrap().revision, first, "a check writes nothing");
    let wrong = commit_one(store, check("b", Expect::Revision(first))).await;
    assert!(is_conflict(&wrong), "a check that fails conflicts: {wrong:?}");
    if store.abilities().atomic_batch {
        let ops = vec![put("b", Expect::Absent, "x"), check("a", Expect::Absent)];
        assert!(is_conflict(&store.commit(ops).await), "a failed check stops the whole commit");
        assert_eq!(load(store, "b").await, None);
        let ops = vec![put("b", Expect::Absent, "x"), check("a", Expect::Revision(first))];
        store.commit(ops).await.unwrap();
        assert!(load(store, "b").await.is_some());
        assert_eq!(load(store, "a").await.unwrap().revision, first);
    }
    store.close().await;
}

pub async fn any_overwrites(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    commit_one(store, put("a", Expect::Any, "one")).await.unwrap();
    commit_one(store, put("a", Expect::Any, "two")).await.unwrap();
    assert_eq!(&load(store, "a").await.unwrap().bytes[..], b"two");
    commit_one(store, delete("a", Expect::Any)).await.unwrap();
    commit_one(store, delete("a", Expect::Any)).await.unwrap();
    assert_eq!(load(store, "a").await, None);
    store.close().await;
}

pub async fn batches_are_all_or_nothing(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let both = || vec![put("a", Expect::Absent, "one"), put("b", Expect::Absent, "two")];
    if !store.abilities().atomic_batch {
        let refused = store.commit(both()).await;
        assert!(is_unavailable(&refused), "several writes are refused: {refused:?}");
        store.close().await;
        return;
    }
    let revisions = store.commit(both()).await.unwrap();
    assert_eq!(revisions.len(), 2, "one revision per op");
    for (at, revision) in [("a", revisions[0]), ("b", revisions[1])] {
        assert_eq!(load(store, at).await.unwrap().revision, revision);
    }
    let mixed = vec![
        put("c", Expect::Absent, "x"),
        delete("a", Expect::Revision(revisions[0])),
        put("b", Expect::Absent, "y"),
    ];
    assert!(is_conflict(&store.commit(mixed).await), "one failed condition refuses all");
    assert_eq!(load(store, "c").await, None, "nothing of a refused commit is there");
    assert!(load(store, "a").await.is_some());
    assert_eq!(&load(store, "b").await.unwrap().bytes[..], b"two");
    store.close().await;
}

/// Conditions are tested before anything is applied; of two writes to one record the last stays.
pub async fn one_name_twice_in_a_commit(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    if store.abilities().atomic_batch {
        let ops = vec![put("a", Expect::Absent, "one"), put("a", Expect::Absent, "two")];
        store.commit(ops).await.unwrap();
        assert_eq!(&load(store, "a").await.unwrap().bytes[..], b"two");
        let revision = load(store, "a").await.unwrap().revision;
        let ops = vec![
            put("a", Expect::Revision(revision), "three"),
            delete("a", Expect::Revision(revision)),
        ];
        store.commit(ops).await.unwrap();
        assert_eq!(load(store, "a").await, None);
    }
    store.close().await;
}

pub async fn revisions_never_repeat(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let mut seen = HashSet::new();
    for round in 0..20 {
        let made = commit_one(store, put("a", Expect::Absent, "same")).await.unwrap();
        let changed = commit_one(store, put("a", Expect::Revision(made), "same")).await.unwrap();
        for revision in [made, changed] {
            assert!(seen.insert(revision), "{revision:?} came again in round {round}");
        }
        commit_one(store, delete("a", Expect::Revision(changed))).await.unwrap();
        for old in &seen {
            let ghost = commit_one(store, put("a", Expect::Revision(*old), "x")).await;
            assert!(is_conflict(&ghost), "an old revision is never current again");
        }
    }
    store.close().await;
}

pub async fn big_records_come_back(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let content = |size: usize| -> Vec<u8> { (0..size).map(|at| at.to_le_bytes()[0]).collect() };
    for (at, size) in [("none", 0), ("one", 1), ("page", 4096), ("large", 300_000)] {
        commit_one(store, put(at, Expect::Absent, content(size))).await.unwrap();
    }
    for (at, size) in [("none", 0), ("one", 1), ("page", 4096), ("large", 300_000)] {
        assert_eq!(load(store, at).await.unwrap().bytes, content(size), "{size} bytes");
    }
    store.close().await;
}

pub async fn many_records_are_loaded_in_order(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    commit_one(store, put("a", Expect::Absent, "1")).await.unwrap();
    commit_one(store, put("c", Expect::Absent, "3")).await.unwrap();
    let names = [name("c"), name("b"), name("a"), name("a")];
    let loaded = store.load_many(&names).await.unwrap();
    let texts: Vec<_> =
        loaded.iter().map(|stored| stored.as_ref().map(|stored| &stored.bytes[..])).collect();
    assert_eq!(texts, [Some(&b"3"[..]), None, Some(&b"1"[..]), Some(&b"1"[..])]);
    assert!(store.load_many(&[]).await.unwrap().is_empty());
    store.close().await;
}

pub async fn closed_stores_answer_unavailable(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    commit_one(store, put("a", Expect::Absent, "1")).await.unwrap();
    store.health().unwrap();
    store.close().await;
    store.close().await;
    assert!(store.health().is_err(), "a closed store is not healthy");
    assert!(is_unavailable(&store.load(&name("a")).await));
    assert!(is_unavailable(&store.load_many(&[name("a")]).await));
    assert!(is_unavailable(&store.scan("", None, 1).await));
    assert!(is_unavailable(&commit_one(store, put("b", Expect::Absent, "1")).await));
    assert!(is_unavailable(&store.put_blob("x").await.map(drop)));
    assert!(is_unavailable(&store.get_blob("x").await.map(drop)));
    assert!(is_unavailable(&store.delete_blob("x").await));
    assert!(is_unavailable(&store.list_blobs(None, 1).await));
}
