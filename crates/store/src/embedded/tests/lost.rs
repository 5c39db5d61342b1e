//! Files of a store that are lost: each one deleted, emptied, zeroed, cut short or replaced by
//! that of another store, after a kill and after an orderly stop. Opening the store brings back
//! exactly what was acknowledged, or it is refused as damaged, and the refusal says what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;

use super::damage::{frames, segments, with_commits};
use super::faults::{Fault, FaultyDisk};
use super::{log_only, open, scratch, small};
use crate::conformance::{commit_one, load, put};
use crate::embedded::frame::{FrameBuilder, Seal};
use crate::embedded::{EmbeddedOptions, EmbeddedStore, OpenError, check, restore};
use crate::port::{Expect, Store, StoreError};

const RECORDS: usize = 60;
const BLOBS: usize = 3;

/// How the store came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Stopped,
}

/// What happens to one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Deleted,
    Emptied,
    Zeroed,
    CutInHalf,
    OfAnotherStore,
}

const HARMS: [Harm; 5] =
    [Harm::Deleted, Harm::Emptied, Harm::Zeroed, Harm::CutInHalf, Harm::OfAnotherStore];

fn value(flavour: &str, at: usize) -> String {
    format!("{flavour} {at} ").repeat(20 + at % 7)
}

/// A store with records (the last of them without a checkpoint, if it is killed) and blobs.
async fn make(path: &Path, flavour: &str, end: End, options: fn(&Path) -> EmbeddedOptions) {
    let store = open(options(path));
    for at in 0..BLOBS {
        let mut writer = store.put_blob(&format!("b/{at}")).await.unwrap();
        writer.write(Bytes::from(value(flavour, at).repeat(20))).await.unwrap();
        writer.finish().await.unwrap();
    }
    for at in 0..RECORDS {
        let op = put(format!("k{at:03}"), Expect::Absent, value(flavour, at));
        commit_one(&*store, op).await.unwrap();
        if at == RECORDS / 2 && store.checkpoints() > 0 {
            store.checkpoint_now();
        }
    }
    if end == End::Stopped {
        store.close().await;
    }
}

/// `cp` keeps the holes in the tree's journal.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

fn files(root: &Path, below: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(below).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type().unwrap().is_dir() {
            files(root, &entry.path(), found);
        } else {
            found.push(entry.path().strip_prefix(root).unwrap().to_owned());
        }
    }
}

/// The file of the other store in the same place: for a segment, whose name is its own, the
/// one that is as manieth in its folder.
fn counterpart(root: &Path, other: &Path, file: &Path) -> Option<PathBuf> {
    let same = other.join(file);
    if same.is_file() {
        return Some(same);
    }
    let listed = |folder: &Path| {
        let mut names = Vec::new();
        files(folder, folder, &mut names);
        names
    };
    let folder = file.parent()?;
    let ours = listed(&root.join(folder));
    let theirs = listed(&other.join(folder));
    let at = ours.iter().position(|name| name.file_name() == file.file_name())?;
    theirs.get(at).or(theirs.last()).map(|name| other.join(folder).join(name))
}

/// Does the harm; `false` if it would change nothing.
fn harm(root: &Path, other: &Path, file: &Path, harm: Harm) -> bool {
    let path = root.join(file);
    let content = fs::read(&path).unwrap();
    let len = content.len();
    let harmed = match harm {
        Harm::Deleted => {
            fs::remove_file(&path).unwrap();
            return true;
        }
        Harm::Emptied => Vec::new(),
        Harm::Zeroed => vec![0; len],
        Harm::CutInHalf => content[..len / 2].to_vec(),
        Harm::OfAnotherStore => match counterpart(root, other, file) {
            Some(theirs) => fs::read(theirs).unwrap(),
            None => return false,
        },
    };
    let changed = harmed != content;
    fs::write(&path, harmed).unwrap();
    changed
}

/// What was lost without a word; `None` if nothing was.
async fn silent_loss(store: &EmbeddedStore, flavour: &str) -> Option<String> {
    for at in 0..RECORDS {
        let name = format!("k{at:03}");
        match store.load(&name.as_str().into()).await {
            Ok(Some(stored)) if stored.bytes == value(flavour, at) => {}
            Ok(Some(_)) => return Some(format!("{name} is another")),
            Ok(None) => return Some(format!("{name} is missing")),
            Err(StoreError::Damaged(_)) => {}
            Err(other) => return Some(format!("{name}: {other}")),
        }
    }
    for at in 0..BLOBS {
        let name = format!("b/{at}");
        let mut read = Vec::new();
        let outcome = async {
            let mut reader = store.get_blob(&name).await?;
            while let Some(chunk) = reader.next().await? {
                read.extend_from_slice(&chunk);
            }
            Ok(())
        };
        match outcome.await {
            Ok(()) if read == value(flavour, at).repeat(20).as_bytes() => {}
            Ok(()) => return Some(format!("blob {name} is another")),
            // A record that names a blob that is not there is damaged: the server says so.
            Err(StoreError::Damaged(_) | StoreError::NoBlob) => {}
            Err(other) => return Some(format!("blob {name}: {other}")),
        }
    }
    None
}

async fn every_file(end: End, options: fn(&Path) -> EmbeddedOptions) {
    let folder = scratch();
    let (whole, other) = (folder.path().join("whole"), folder.path().join("other"));
    make(&whole, "ours", end, options).await;
    make(&other, "theirs", end, options).await;
    let mut all = Vec::new();
    files(&whole, &whole, &mut all);
    let mut wrong = Vec::new();
    let mut refused = 0;
    for file in &all {
        for kind in HARMS {
            let case = folder.path().join("case");
            copy(&whole, &case);
            if harm(&case, &other, file, kind) {
                match EmbeddedStore::open(options(&case)) {
                    Ok(store) => {
                        if let Some(loss) = silent_loss(&store, "ours").await {
                            wrong.push(format!("{} {kind:?}: {loss}", file.display()));
                        }
                    }
                    Err(error @ OpenError::Damaged { .. }) => {
                        refused += 1;
                        let text = error.to_string();
                        if !text.contains("lockd store restore") {
                            wrong.push(format!("{} {kind:?}: what to do? {text}", file.display()));
                        }
                    }
                    Err(error) => {
                        wrong.push(format!(
                            "{} {kind:?}: not called damage: {error}",
                            file.display()
                        ));
                    }
                }
            }
            fs::remove_dir_all(&case).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{end:?}, {} of it wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused > 0, "nothing was refused");
}

#[tokio::test]
async fn no_lost_file_goes_unnoticed_after_a_kill() {
    every_file(End::Killed, small).await;
}

#[tokio::test]
async fn no_lost_file_goes_unnoticed_after_an_orderly_stop() {
    every_file(End::Stopped, small).await;
}

/// Before the first checkpoint everything is in the log.
#[tokio::test]
async fn no_lost_log_segment_goes_unnoticed_after_a_kill() {
    every_file(End::Killed, log_only).await;
}

/// The log is cut at each boundary of two frames in its last segment, as if what came after had
/// never been written. After a kill that cannot be told from a crash, for as long as no manifest
/// knows better; what an earlier segment holds is never missed silently. After an orderly stop
/// every cut is noticed.
#[tokio::test]
async fn a_cut_between_frames_hides_only_what_no_manifest_knows() {
    let folder = scratch();
    let (killed, stopped) = (folder.path().join("killed"), folder.path().join("stopped"));
    with_commits(&killed, 40, 200).await;
    with_commits(&stopped, 40, 200).await;
    open(log_only(&stopped)).close().await;
    for (whole, end) in [(&killed, End::Killed), (&stopped, End::Stopped)] {
        let (path, seal) = segments(whole).pop().unwrap();
        let boundaries = frames(&path, seal);
        assert!(boundaries.len() > 2, "{boundaries:?}");
        for cut in &boundaries[..boundaries.len() - 1] {
            let case = folder.path().join("case");
            copy(whole, &case);
            let mut bytes = fs::read(&path).unwrap();
            bytes[*cut..].fill(0);
            fs::write(case.join("log").join(path.file_name().unwrap()), bytes).unwrap();
            match EmbeddedStore::open(log_only(&case)) {
                Ok(store) => {
                    assert_eq!(end, End::Killed, "cut at {cut}: a stop knows its end");
                    let lost = boundaries.iter().filter(|begin| *begin >= cut).count() - 1;
                    for at in 0..40 - lost {
                        let name = format!("k{at:03}");
                        assert!(load(&*store, &name).await.is_some(), "{name}, cut at {cut}");
                    }
                }
                Err(error) => assert!(matches!(error, OpenError::Damaged { .. }), "{error}"),
            }
            fs::remove_dir_all(&case).unwrap();
        }
    }
}

/// The files of a store as the version without a manifest made it, killed.
fn make_without_manifest(path: &Path, records: usize) -> PathBuf {
    for part in ["log", "tree", "blobs"] {
        fs::create_dir_all(path.join(part)).unwrap();
    }
    fs::remove_dir(path.join("tree")).unwrap();
    fs::write(path.join("FORMAT"), "lockd embedded store 1\n").unwrap();
    let seal = Seal { segment: 1, salt: 77 };
    let mut segment = Vec::new();
    for at in 0..records {
        let mut frame = FrameBuilder::default();
        frame.clear();
        let revision = at as u64 + 1;
        frame.push(revision, &[put(format!("k{at:03}"), Expect::Any, value("old", at))]);
        segment.extend_from_slice(frame.seal(seal, revision));
    }
    segment.resize(segment.len().next_multiple_of(4096), 0);
    let file = path.join("log").join(format!("{:016x}-{:016x}.seg", seal.segment, seal.salt));
    fs::write(&file, segment).unwrap();
    file
}

async fn assert_upgraded(store: &EmbeddedStore, records: usize, context: &str) {
    for at in 0..records {
        let stored = load(store, &format!("k{at:03}")).await;
        assert_eq!(stored.unwrap().bytes, value("old", at), "k{at:03} {context}");
    }
}

#[tokio::test]
async fn a_store_without_a_manifest_is_upgraded_whatever_crashes_meanwhile() {
    let folder = scratch();
    for strike in 0.. {
        let path = folder.path().join(format!("store{strike}"));
        make_without_manifest(&path, 9);
        let disk = FaultyDisk::striking(strike, Fault::PowerCut, strike);
        let options = EmbeddedOptions { disk: std::sync::Arc::new(disk.clone()), ..small(&path) };
        if let Ok(store) = EmbeddedStore::open(options) {
            commit_one(&*store, put("new", Expect::Any, "x")).await.ok();
            disk.cut_power();
        }
        let store = open(small(&path));
        assert_upgraded(&store, 9, &format!("power cut at operation {strike}")).await;
        commit_one(&*store, put("newer", Expect::Absent, "x")).await.unwrap();
        drop(store);
        let text = fs::read_to_string(path.join("FORMAT")).unwrap();
        assert_eq!(text, "lockd embedded store 2\n", "power cut at operation {strike}");
        let store = open(small(&path));
        assert_upgraded(&store, 9, "opened again").await;
        assert!(load(&*store, "newer").await.is_some());
        if !disk.has_struck() {
            assert!(strike > 5, "an upgrade has fewer operations than it should: {strike}");
            break;
        }
    }
}

/// A crash came after the manifest and before the new version, and then the earlier version of
/// the program was used again: its segments count, not the manifest.
#[tokio::test]
async fn a_manifest_beside_the_earlier_version_does_not_count() {
    let folder = scratch();
    let path = folder.path().join("store");
    let segment = make_without_manifest(&path, 9);
    fs::write(path.join("MANIFEST"), "of an upgrade that was cut short").unwrap();
    fs::write(path.join("MANIFEST.tmp"), "too").unwrap();
    let report = check(&path, &mut |_, _| Ok(())).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let store = open(log_only(&path));
    assert_upgraded(&store, 9, "with a manifest").await;
    drop(store);
    // From now on the old segment is missed too.
    let content = fs::read(&segment).unwrap();
    for harmed in [None, Some(vec![0; content.len()]), Some(Vec::new())] {
        match harmed {
            None => fs::remove_file(&segment).unwrap(),
            Some(harmed) => fs::write(&segment, harmed).unwrap(),
        }
        let error = EmbeddedStore::open(log_only(&path)).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
        let report = check(&path, &mut |_, _| Ok(())).unwrap();
        assert_eq!(report.problems[0].what, "log", "{report:?}");
        fs::write(&segment, &content).unwrap();
    }
    assert_upgraded(&open(log_only(&path)), 9, "put back").await;
}

/// A restored store knows what it must hold before it was ever opened.
#[tokio::test]
async fn a_restored_store_misses_its_tree() {
    let folder = scratch();
    let (path, target) = (folder.path().join("store"), folder.path().join("restored"));
    make(&path, "ours", End::Killed, small).await;
    let saved = folder.path().join("saved");
    open(small(&path)).backup_to(&saved).unwrap();
    restore(&saved, &target, &mut |_, bytes| Ok(bytes)).unwrap();
    assert!(check(&target, &mut |_, _| Ok(())).unwrap().is_clean());
    fs::remove_dir_all(target.join("tree")).unwrap();
    let error = EmbeddedStore::open(small(&target)).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains("tree"), "{error}");
}
