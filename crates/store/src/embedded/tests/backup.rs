//! Backups: taken beside writers, restored elsewhere, refused when they are not whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::task::{JoinSet, spawn_blocking};

use super::{eventually, open, scratch, small};
use crate::conformance::{commit_one, delete, load, name, put};
use crate::embedded::{BackupError, EmbeddedStore, check, restore};
use crate::port::{Expect, Store, StoreError};

async fn write_blob(store: &dyn Store, name: &str, bytes: Vec<u8>) {
    let mut writer = store.put_blob(name).await.unwrap();
    writer.write(Bytes::from(bytes)).await.unwrap();
    writer.finish().await.unwrap();
}

async fn read_blob(store: &dyn Store, name: &str) -> Result<Vec<u8>, StoreError> {
    let mut reader = store.get_blob(name).await?;
    let mut read = Vec::new();
    while let Some(chunk) = reader.next().await? {
        read.extend_from_slice(&chunk);
    }
    Ok(read)
}

fn as_it_is(_: &str, bytes: Bytes) -> Result<Bytes, String> {
    Ok(bytes)
}

async fn contents(store: &dyn Store) -> BTreeMap<String, Bytes> {
    let page = store.scan("", None, 100_000).await.unwrap();
    page.into_iter().map(|(name, stored)| (name.to_string(), stored.bytes)).collect()
}

#[tokio::test]
async fn a_restored_store_is_the_one_that_was_saved() {
    let folder = scratch();
    let store = open(small(&folder.path().join("store")));
    for at in 0..300 {
        let value = format!("value {at}");
        commit_one(&*store, put(format!("k{at:03}"), Expect::Absent, value)).await.unwrap();
    }
    for at in (0..300).step_by(7) {
        commit_one(&*store, delete(format!("k{at:03}"), Expect::Any)).await.unwrap();
    }
    write_blob(&*store, "b/one", vec![1; 700_000]).await;
    write_blob(&*store, "b/two", Vec::new()).await;
    let unfinished = store.put_blob("b/unfinished").await.unwrap();
    let last = commit_one(&*store, put("last", Expect::Absent, "x")).await.unwrap();
    let file = folder.path().join("saved");
    let summary = store.backup_to(&file).unwrap();
    assert_eq!((summary.records, summary.blobs, summary.blob_bytes), (258, 2, 700_000));
    assert_eq!(summary.bytes, fs::metadata(&file).unwrap().len());
    let expected = contents(&*store).await;
    drop(unfinished);
    // What comes after is not part of it.
    commit_one(&*store, put("after", Expect::Absent, "x")).await.unwrap();
    let target = folder.path().join("restored");
    let restored = restore(&file, &target, &mut as_it_is).unwrap();
    assert_eq!((restored.records, restored.blobs, restored.blob_bytes), (258, 2, 700_000));
    let report = check(&target, &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.records, report.blobs, report.unfinished_blobs), (258, 2, 0));
    let store = open(small(&target));
    assert_eq!(contents(&*store).await, expected);
    assert_eq!(read_blob(&*store, "b/one").await.unwrap(), vec![1; 700_000]);
    assert_eq!(store.list_blobs(None, 9).await.unwrap(), ["b/one", "b/two"]);
    assert_eq!(load(&*store, "last").await.unwrap().revision, last);
    let next = commit_one(&*store, put("new", Expect::Absent, "x")).await.unwrap();
    assert!(next.0 > last.0 + 1_000_000, "the original may have given more revisions since");
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "nothing temporary is left");
}

/// Two records always written together, and a blob per commit that is deleted two commits later:
/// in every backup the two agree, and the blob they name is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_beside_writers_is_of_one_moment() {
    let folder = scratch();
    let store = open(small(&folder.path().join("store")));
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..2 {
        let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
        writers.spawn(async move {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                let blob = format!("w{writer}/{round}");
                write_blob(&*store, &blob, format!("{writer} {round}").into_bytes()).await;
                let ops = vec![
                    put(format!("one/{writer}"), Expect::Any, &blob),
                    put(format!("two/{writer}"), Expect::Any, &blob),
                ];
                store.commit(ops).await.unwrap();
                if round > 0 {
                    store.delete_blob(&format!("w{writer}/{}", round - 1)).await.unwrap();
                }
                round += 1;
            }
        });
    }
    let begun = |at: &str| store.shared().load(at).unwrap().is_some();
    eventually("both have begun", || begun("two/0") && begun("two/1")).await;
    for round in 0..5 {
        let file = folder.path().join(format!("saved{round}"));
        let (saving, to) = (Arc::clone(&store), file.clone());
        spawn_blocking(move || saving.backup_to(&to)).await.unwrap().unwrap();
        let target = folder.path().join(format!("restored{round}"));
        restore(&file, &target, &mut as_it_is).unwrap();
        let restored = open(small(&target));
        for writer in 0..2 {
            let one = load(&*restored, &format!("one/{writer}")).await.unwrap();
            let two = load(&*restored, &format!("two/{writer}")).await.unwrap();
            assert_eq!(one, two, "round {round}");
            let blob = String::from_utf8(one.bytes.to_vec()).unwrap();
            let content = read_blob(&*restored, &blob).await;
            assert!(content.is_ok(), "round {round}: {blob} is missing");
        }
    }
    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
    let left = store.list_blobs(None, 100).await.unwrap();
    assert_eq!(left.len(), 2, "what was deleted meanwhile is gone: {left:?}");
    let kept = fs::read_dir(folder.path().join("store/blobs/d.w0")).unwrap().count();
    assert_eq!(kept, 1, "also from the disk");
}

async fn saved(folder: &Path) -> std::path::PathBuf {
    let store = open(small(&folder.join("store")));
    for at in 0..20 {
        commit_one(&*store, put(format!("k{at:02}"), Expect::Absent, "value")).await.unwrap();
    }
    write_blob(&*store, "b", vec![3; 1000]).await;
    let file = folder.join("saved");
    store.backup_to(&file).unwrap();
    file
}

#[tokio::test]
async fn a_backup_that_is_not_whole_is_refused() {
    let folder = scratch();
    let file = saved(folder.path()).await;
    let whole = fs::read(&file).unwrap();
    let target = folder.path().join("restored");
    let broken = folder.path().join("broken");
    let refused = |bytes: &[u8], what: String| {
        fs::write(&broken, bytes).unwrap();
        let error = restore(&broken, &target, &mut as_it_is).unwrap_err();
        assert!(matches!(error, BackupError::Damaged(_)), "{what}: {error}");
        assert!(!target.exists(), "{what}: nothing is left");
    };
    for cut in (0..whole.len()).step_by(41) {
        refused(&whole[..cut], format!("cut to {cut}"));
    }
    for at in (0..whole.len()).step_by(37) {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        refused(&flipped, format!("flip at {at}"));
    }
    let mut longer = whole.clone();
    longer.push(0);
    refused(&longer, "a byte too many".into());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing temporary is left");
}

#[tokio::test]
async fn a_used_directory_is_not_restored_into() {
    let folder = scratch();
    let file = saved(folder.path()).await;
    let used = folder.path().join("store");
    let error = restore(&file, &used, &mut as_it_is).unwrap_err();
    assert!(matches!(error, BackupError::NotEmpty(_)), "{error}");
    assert!(load(&*open(small(&used)), "k00").await.is_some(), "it is untouched");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    restore(&file, &empty, &mut as_it_is).unwrap();
}

#[tokio::test]
async fn records_can_be_adjusted_or_refused_on_the_way() {
    let folder = scratch();
    let file = saved(folder.path()).await;
    let target = folder.path().join("restored");
    let mut refuse = |name: &str, bytes| if name == "k05" { Err("no".into()) } else { Ok(bytes) };
    let error = restore(&file, &target, &mut refuse).unwrap_err();
    assert!(matches!(&error, BackupError::Refused { name, .. } if name == "k05"), "{error}");
    assert!(!target.exists());
    let mut adjust = |name: &str, _| Ok(Bytes::from(format!("new {name}")));
    restore(&file, &target, &mut adjust).unwrap();
    assert_eq!(load(&*open(small(&target)), "k07").await.unwrap().bytes, "new k07");
}

#[tokio::test]
async fn a_damaged_blob_is_left_out_and_named() {
    let folder = scratch();
    let path = folder.path().join("store");
    let store = open(small(&path));
    write_blob(&*store, "bad", vec![3; 600_000]).await;
    write_blob(&*store, "cut", vec![3; 1000]).await;
    write_blob(&*store, "good", vec![4; 1000]).await;
    let mut bytes = fs::read(path.join("blobs/b.bad")).unwrap();
    bytes[500_000] ^= 1;
    fs::write(path.join("blobs/b.bad"), bytes).unwrap();
    fs::write(path.join("blobs/b.cut"), "x").unwrap();
    let file = folder.path().join("saved");
    let summary = store.backup_to(&file).unwrap();
    assert_eq!((summary.blobs, &summary.damaged_blobs[..]), (1, &["bad".into(), "cut".into()][..]));
    store.close().await;
    let report = check(&path, &mut |_, _| Ok(())).unwrap();
    let named: Vec<_> = report.problems.iter().map(|problem| problem.what.as_str()).collect();
    assert_eq!(named, ["blob \"bad\"", "blob \"cut\""]);
    let target = folder.path().join("restored");
    let restored = restore(&file, &target, &mut as_it_is).unwrap();
    assert_eq!(restored.damaged_blobs, ["bad", "cut"]);
    let store = open(small(&target));
    assert_eq!(store.list_blobs(None, 9).await.unwrap(), ["good"]);
}

#[tokio::test]
async fn a_check_counts_and_asks_about_every_record() {
    let folder = scratch();
    let path = folder.path().join("store");
    let error = check(&path, &mut |_, _| Ok(())).unwrap_err();
    assert!(error.to_string().contains("FORMAT"), "{error}");
    let store = open(small(&path));
    for at in 0..100 {
        commit_one(&*store, put(format!("k{at:02}"), Expect::Absent, "value")).await.unwrap();
    }
    commit_one(&*store, delete("k50", Expect::Any)).await.unwrap();
    commit_one(&*store, put("k51", Expect::Any, "odd")).await.unwrap();
    let writer = store.put_blob("u").await.unwrap();
    assert!(check(&path, &mut |_, _| Ok(())).is_err(), "not while it is open");
    // Dropped, not closed: part of it is in the log only.
    let unfinished = path.join("blobs/u.u");
    let bytes = fs::read(&unfinished).unwrap();
    drop(writer);
    drop(store);
    fs::write(&unfinished, bytes).unwrap();
    let mut seen = Vec::new();
    let report = check(&path, &mut |name, bytes| {
        seen.push(name.to_owned());
        if bytes == b"odd" { Err("odd".into()) } else { Ok(()) }
    });
    let report = report.unwrap();
    seen.sort();
    let expected: Vec<_> = (0..100).filter(|at| *at != 50).map(|at| format!("k{at:02}")).collect();
    assert_eq!(seen, expected);
    assert_eq!((report.records, report.unfinished_blobs, report.problems.len()), (99, 1, 1));
    assert_eq!(report.problems[0].what, "record \"k51\"");
    let again = EmbeddedStore::open(small(&path)).unwrap();
    assert!(again.load(&name("k51")).await.unwrap().is_some(), "a check changes nothing");
}
