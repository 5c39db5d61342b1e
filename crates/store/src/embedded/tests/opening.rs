//! Opening and closing: who may, what is kept, and what is refused.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{log_only, open, scratch, small};
use crate::conformance::{commit_one, delete, load, put};
use crate::embedded::{EmbeddedOptions, EmbeddedStore, OpenError};
use crate::port::{Expect, Store};

/// Makes and changes records over several lives of a store, closed or just dropped.
async fn many_lives(options: impl Fn(&Path) -> EmbeddedOptions, close: bool) {
    let folder = scratch();
    let mut revisions = HashSet::new();
    let mut highest = 0;
    for life in 0..12 {
        let store = open(options(folder.path()));
        for key in 0..20 {
            let at = format!("k{key}");
            let there = load(&*store, &at).await;
            // Of the life before: present, or deleted by every fourth life.
            let expected =
                (life > 0 && (life - 1) % 4 != 3 - key % 2).then(|| (life - 1).to_string());
            let text =
                there.as_ref().map(|stored| String::from_utf8(stored.bytes.to_vec()).unwrap());
            assert_eq!(text, expected, "{at} in life {life}");
            let expect = Expect::unchanged(there.as_ref());
            let revision = commit_one(&*store, put(&at, expect, life.to_string())).await.unwrap();
            assert!(revisions.insert(revision), "{revision:?} came again");
            assert!(revision.0 > highest, "revisions grow over restarts");
            highest = revision.0;
            if life % 4 == 3 - key % 2 {
                commit_one(&*store, delete(&at, Expect::Revision(revision))).await.unwrap();
                highest += 1;
            }
        }
        if close {
            store.close().await;
        }
    }
}

#[tokio::test]
async fn a_closed_store_comes_back_as_it_was() {
    many_lives(small, true).await;
    many_lives(|path| EmbeddedOptions::new(path), true).await;
}

#[tokio::test]
async fn a_dropped_store_comes_back_as_it_was() {
    many_lives(small, false).await;
    many_lives(log_only, false).await;
}

/// Restarts alone must not fill the disk with segments.
#[tokio::test]
async fn restarts_go_on_in_the_same_segment() {
    let folder = scratch();
    for life in 0..30 {
        let store = open(log_only(folder.path()));
        commit_one(&*store, put(format!("k{life}"), Expect::Absent, "x")).await.unwrap();
    }
    let segments = fs::read_dir(folder.path().join("log")).unwrap().count();
    assert!(segments <= 3, "{segments} segments for 30 small commits");
}

#[tokio::test]
async fn a_second_opener_is_refused_and_told_who_has_it() {
    let folder = scratch();
    let first = open(small(folder.path()));
    let error = EmbeddedStore::open(small(folder.path())).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, OpenError::InUse { .. }), "{text}");
    assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    commit_one(&*first, put("a", Expect::Absent, "x")).await.unwrap();
    first.close().await;
    let second = open(small(folder.path()));
    assert!(load(&*second, "a").await.is_some());
    drop(first);
    assert!(EmbeddedStore::open(small(folder.path())).is_err(), "a late drop frees nothing");
}

#[test]
fn an_unknown_format_is_refused_by_name() {
    let folder = scratch();
    drop(open(small(folder.path())));
    let format = folder.path().join("FORMAT");
    let text = fs::read_to_string(&format).unwrap();
    fs::write(&format, text.replace('2', "3")).unwrap();
    let error = EmbeddedStore::open(small(folder.path())).unwrap_err();
    assert!(matches!(error, OpenError::Version { found: 3, known: 2, .. }), "{error}");
    fs::write(&format, "something else").unwrap();
    let error = EmbeddedStore::open(small(folder.path())).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

#[test]
fn a_directory_with_other_files_is_not_taken() {
    let folder = scratch();
    fs::write(folder.path().join("letter.txt"), "dear").unwrap();
    let error = EmbeddedStore::open(small(folder.path())).unwrap_err();
    assert!(matches!(&error, OpenError::NotAStore { .. }), "{error}");
    assert!(error.to_string().contains("letter.txt"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made in it");
}

#[tokio::test]
async fn only_the_owner_may_look_in() {
    let folder = scratch();
    let path = folder.path().join("store");
    let store = open(small(&path));
    commit_one(&*store, put("a", Expect::Absent, "x")).await.unwrap();
    store.put_blob("a/b").await.unwrap().finish().await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for part in ["", "log", "tree", "blobs", "blobs/d.a"] {
        assert_eq!(mode(&path.join(part)), 0o700, "{part}");
    }
    for file in ["LOCK", "FORMAT", "blobs/d.a/b.b"] {
        assert_eq!(mode(&path.join(file)), 0o600, "{file}");
    }
    for entry in fs::read_dir(path.join("log")).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
}

#[tokio::test]
async fn a_commit_larger_than_a_segment_gets_one_of_its_own() {
    for options in [small, log_only] {
        let folder = scratch();
        let big = vec![7; 100_000];
        let store = open(options(folder.path()));
        for round in 0..10 {
            commit_one(&*store, put("small", Expect::Any, "x")).await.unwrap();
            commit_one(&*store, put("big", Expect::Any, &big)).await.unwrap();
            // Too large for what is left in either kind of segment.
            let op = put(format!("after{round}"), Expect::Absent, vec![1; 3000]);
            commit_one(&*store, op).await.unwrap();
        }
        drop(store);
        let store = open(options(folder.path()));
        assert_eq!(load(&*store, "big").await.unwrap().bytes, big);
        assert_eq!(store.scan("after", None, 100).await.unwrap().len(), 10);
    }
}

#[tokio::test]
async fn too_large_is_refused_and_harms_nothing() {
    let folder = scratch();
    let store = open(small(folder.path()));
    let long = "n".repeat(super::super::NAME_BYTES_MAX + 1);
    assert!(commit_one(&*store, put(&long, Expect::Absent, "x")).await.is_err());
    let huge = vec![0; super::super::COMMIT_BYTES_MAX + 1];
    assert!(commit_one(&*store, put("huge", Expect::Absent, &huge)).await.is_err());
    commit_one(&*store, put("fine", Expect::Absent, "x")).await.unwrap();
    store.health().unwrap();
}
