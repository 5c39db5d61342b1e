//! What happens to the bytes on disk: cut short, flipped, stale, missing. Damage is reported and
//! never served; a torn end is no damage.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;

use super::{log_only, open, scratch, small};
use crate::conformance::{commit_one, load, put};
use crate::embedded::frame::{
    FRAME_HEADER_BYTES, FrameBuilder, SEGMENT_HEADER_BYTES, Seal, frame_at, later_frame,
};
use crate::embedded::log::parse_name;
use crate::embedded::{EmbeddedStore, OpenError, check};
use crate::port::{Expect, Store, StoreError};

/// Segments in order of use, those with frames only.
pub(super) fn segments(store: &Path) -> Vec<(PathBuf, Seal)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(store.join("log")).unwrap() {
        let path = entry.unwrap().path();
        if let Some(seal) = path.file_name().unwrap().to_str().and_then(parse_name)
            && frame_at(&fs::read(&path).unwrap(), SEGMENT_HEADER_BYTES, seal).is_some()
        {
            found.push((path, seal));
        }
    }
    found.sort_by_key(|(_, seal)| seal.segment);
    found
}

/// Where the frames of a segment begin, and where the last ends.
pub(super) fn frames(path: &Path, seal: Seal) -> Vec<usize> {
    let bytes = fs::read(path).unwrap();
    let mut offsets = vec![SEGMENT_HEADER_BYTES];
    while let Some(frame) = frame_at(&bytes, *offsets.last().unwrap(), seal) {
        offsets.push(frame.end);
    }
    offsets
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// `cp` keeps the holes in the tree's journal, which is 64 MiB of nothing.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// A dropped store with these records, one commit each, all in the log.
pub(super) async fn with_commits(path: &Path, commits: usize, bytes: usize) {
    let store = open(log_only(path));
    for at in 0..commits {
        let value = vec![at.to_le_bytes()[0]; bytes];
        commit_one(&*store, put(format!("k{at:03}"), Expect::Absent, value)).await.unwrap();
    }
}

#[tokio::test]
async fn an_end_torn_at_any_byte_loses_the_last_commit_only() {
    let folder = scratch();
    let whole = folder.path().join("whole");
    with_commits(&whole, 5, 30).await;
    let (path, seal) = segments(&whole).pop().unwrap();
    let ends = frames(&path, seal);
    let [.., begin, end] = ends[..] else { panic!("{ends:?}") };
    let content = fs::read(&path).unwrap();
    for cut in begin..end {
        for garbage in [0, 0xff] {
            let torn = folder.path().join(format!("torn{cut}-{garbage}"));
            copy(&whole, &torn);
            let mut bytes = content.clone();
            // Padding may be anything: it is not part of the frame.
            let payload_ends = frame_at(&content, begin, seal).unwrap().payload.len();
            let is_padding = cut >= begin + FRAME_HEADER_BYTES + payload_ends;
            let header_ends =
                cut >= begin + FRAME_HEADER_BYTES - 4 && cut < begin + FRAME_HEADER_BYTES;
            bytes[cut..end].fill(garbage);
            let changed = bytes != content && !is_padding && !header_ends;
            fs::write(torn.join("log").join(path.file_name().unwrap()), bytes).unwrap();
            let store = open(log_only(&torn));
            for at in 0..4 {
                assert!(load(&*store, &format!("k{at:03}")).await.is_some(), "cut at {cut}");
            }
            let last = load(&*store, "k004").await;
            assert!(last.is_none() || !changed, "a torn commit is not there, cut at {cut}");
            commit_one(&*store, put("k004", Expect::unchanged(last.as_ref()), "new"))
                .await
                .unwrap();
            drop(store);
            let store = open(log_only(&torn));
            assert_eq!(load(&*store, "k004").await.unwrap().bytes, "new", "cut at {cut}");
            drop(store);
            fs::remove_dir_all(torn).unwrap();
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_before_the_end_is_damage() {
    let folder = scratch();
    let whole = folder.path().join("whole");
    // Three segments of some frames each.
    with_commits(&whole, 40, 200).await;
    let all = segments(&whole);
    assert!(all.len() >= 3, "{} segments", all.len());
    for (which, (path, seal)) in all.iter().enumerate() {
        let ends = frames(path, *seal);
        let is_last = which + 1 == all.len();
        // Every frame that has another behind it, in this segment or in the next.
        let covered = ends.len() - 1 - usize::from(is_last);
        for begin in &ends[..covered] {
            for at in [0, 9, 13, 17, FRAME_HEADER_BYTES + 3, FRAME_HEADER_BYTES + 100] {
                let damaged = folder.path().join("damaged");
                copy(&whole, &damaged);
                flip(&damaged.join("log").join(path.file_name().unwrap()), begin + at);
                let error = EmbeddedStore::open(log_only(&damaged)).unwrap_err();
                assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains(".seg"), "the segment is named: {text}");
                let report = check(&damaged, &mut |_, _| Ok(())).unwrap();
                assert_eq!(report.problems[0].what, "log", "{report:?}");
                fs::remove_dir_all(damaged).unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_missing_segment_is_damage() {
    let folder = scratch();
    let whole = folder.path().join("whole");
    with_commits(&whole, 40, 200).await;
    let all = segments(&whole);
    for (path, _) in &all[..all.len() - 1] {
        let damaged = folder.path().join("damaged");
        copy(&whole, &damaged);
        fs::remove_file(damaged.join("log").join(path.file_name().unwrap())).unwrap();
        let error = EmbeddedStore::open(log_only(&damaged)).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        fs::remove_dir_all(damaged).unwrap();
    }
    // A tree that was lost is missed too, once the log no longer holds everything.
    let store = open(small(&whole));
    for at in 0..100 {
        commit_one(&*store, put("x", Expect::Any, vec![1; at])).await.unwrap();
    }
    store.close().await;
    let store = open(small(&whole));
    commit_one(&*store, put("x", Expect::Any, "y")).await.unwrap();
    drop(store);
    fs::remove_dir_all(whole.join("tree")).unwrap();
    let error = EmbeddedStore::open(small(&whole)).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_damaged_tree_is_not_served() {
    let folder = scratch();
    let whole = folder.path().join("whole");
    let store = open(small(&whole));
    for at in 0..200 {
        let value = format!("needle-{at:04}-").repeat(20);
        commit_one(&*store, put(format!("k{at:03}"), Expect::Absent, value)).await.unwrap();
    }
    store.close().await;
    // Every table file in turn, hit where a value lies.
    let (mut hit, mut served) = (0, 0);
    for table in tables(&whole.join("tree")) {
        let content = fs::read(&table).unwrap();
        let needle = b"needle-";
        // The last one: the first block also holds the position in the log.
        let Some(at) = content.windows(needle.len()).rposition(|window| window == needle) else {
            continue;
        };
        let damaged = folder.path().join("damaged");
        copy(&whole, &damaged);
        flip(&damaged.join(table.strip_prefix(&whole).unwrap()), at + 2);
        hit += 1;
        let store = match EmbeddedStore::open(small(&damaged)) {
            Ok(store) => store,
            // It lies beside the position, which is read first.
            Err(error) => {
                assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
                fs::remove_dir_all(damaged).unwrap();
                continue;
            }
        };
        served += 1;
        let mut failures = 0;
        for at in 0..200 {
            let expected = format!("needle-{at:04}-").repeat(20);
            match store.load(&Arc::from(format!("k{at:03}"))).await {
                Ok(Some(stored)) => assert_eq!(stored.bytes, expected, "damage was served"),
                Ok(None) => panic!("damage looks like absence"),
                Err(StoreError::Damaged(_)) => failures += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(failures > 0, "the damage went unnoticed");
        let scanned = store.scan("k", None, 1000).await;
        assert!(matches!(scanned, Err(StoreError::Damaged(_))), "{scanned:?}");
        drop(store);
        let report = check(&damaged, &mut |_, _| Ok(())).unwrap();
        assert!(report.problems.iter().any(|problem| problem.what == "tree"), "{report:?}");
        fs::remove_dir_all(damaged).unwrap();
    }
    assert!(served > 0, "none of {hit} damaged tables could be opened");
}

fn tables(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tables(&path));
        } else if path.parent().unwrap().ends_with("tables") {
            found.push(path);
        }
    }
    found
}

async fn read_blob(store: &dyn Store, name: &str) -> Result<Vec<u8>, StoreError> {
    let mut reader = store.get_blob(name).await?;
    let mut read = Vec::new();
    while let Some(chunk) = reader.next().await? {
        read.extend_from_slice(&chunk);
    }
    Ok(read)
}

#[tokio::test]
async fn a_damaged_blob_is_not_served() {
    let folder = scratch();
    let store = open(small(folder.path()));
    let content: Vec<u8> = (0..700_000_u32).map(|at| (at / 3).to_le_bytes()[0]).collect();
    let mut writer = store.put_blob("a/b").await.unwrap();
    writer.write(Bytes::from(content.clone())).await.unwrap();
    writer.finish().await.unwrap();
    let path = folder.path().join("blobs/d.a/b.b");
    let whole = fs::read(&path).unwrap();
    // Header, first frame's header and content, a frame in the middle, the trailer.
    for at in [0, 9, 17, 24, 28, 33, 262_144 + 40, 600_000, whole.len() - 24, whole.len() - 1] {
        flip(&path, at);
        let read = read_blob(&*store, "a/b").await;
        assert!(matches!(read, Err(StoreError::Damaged(_))), "flip at {at}: {:?}", read.is_ok());
        fs::write(&path, &whole).unwrap();
    }
    for cut in [0, 1, 24, 100, 262_144, whole.len() - 25, whole.len() - 1] {
        fs::write(&path, &whole[..cut]).unwrap();
        let read = read_blob(&*store, "a/b").await;
        assert!(matches!(read, Err(StoreError::Damaged(_))), "cut to {cut}");
    }
    let mut longer = whole.clone();
    longer.extend_from_slice(&whole[whole.len() - 24..]);
    fs::write(&path, &longer).unwrap();
    assert!(read_blob(&*store, "a/b").await.is_err(), "something was appended");
    fs::write(&path, &whole).unwrap();
    assert_eq!(read_blob(&*store, "a/b").await.unwrap(), content);
}

/// A recycled segment is full of frames that were valid under its old name.
#[tokio::test]
async fn recycled_segments_never_bring_back_stale_frames() {
    let folder = scratch();
    let mut expected = Vec::new();
    for life in 0..20 {
        let store = open(small(folder.path()));
        assert_eq!(store.scan("", None, 1000).await.unwrap().len(), expected.len(), "life {life}");
        // The same shape every time, so that old frames lie exactly where new ones would.
        for at in 0..60 {
            let value = format!("{life}/{at}").repeat(20);
            let at = format!("k{}", at % 10);
            commit_one(&*store, put(&at, Expect::Any, &value)).await.unwrap();
            expected.retain(|(name, _)| *name != at);
            expected.push((at, value));
        }
        for (name, value) in &expected {
            assert_eq!(load(&*store, name).await.unwrap().bytes, value, "life {life}");
        }
    }
    let files = fs::read_dir(folder.path().join("log")).unwrap().count();
    assert!(files < 12, "segments are recycled: {files} files");
}

#[test]
fn a_frame_counts_only_under_its_own_seal() {
    let seal = Seal { segment: 7, salt: 99 };
    let mut builder = FrameBuilder::default();
    builder.clear();
    builder.push(5, &[put("name", Expect::Any, "bytes")]);
    let bytes = builder.seal(seal, 3).to_vec();
    assert_eq!(frame_at(&bytes, 0, seal).unwrap().number, 3);
    for other in [Seal { segment: 8, ..seal }, Seal { salt: 98, ..seal }] {
        assert!(frame_at(&bytes, 0, other).is_none(), "{other:?}");
    }
    let mut shifted = vec![1; 40];
    shifted.extend_from_slice(&bytes);
    assert_eq!(later_frame(&shifted, 0, 3, seal), Some((40, 3)));
    assert_eq!(later_frame(&shifted, 0, 4, seal), None, "an earlier number is no later frame");
}
