//! A full disk: nothing acknowledged is lost, nothing needs a restart, and when there is room
//! again everything works again. Mounts a small tmpfs, which takes the right to mount.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use super::faults::FaultyDisk;
use super::{eventually, healed, log_only, open, scratch};
use crate::conformance::{commit_one, load, name, put};
use crate::embedded::EmbeddedOptions;
use crate::port::{Expect, Store, StoreError, Stored};

struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    fn mount(size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder.path())
            .status();
        assert!(
            mounted.as_ref().is_ok_and(std::process::ExitStatus::success),
            "this test has to mount a tmpfs and may not: run it as root ({mounted:?})"
        );
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Takes all the room there is; the file gives it back when removed.
    fn fill(&self) -> std::path::PathBuf {
        use std::io::Write;
        let ballast = self.path().join("ballast");
        let mut file = fs::File::create(&ballast).unwrap();
        for size in [1 << 20, 4096] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(self.path()).status().ok();
    }
}

/// Commits until one is refused; returns how many were taken.
async fn commit_until_refused(store: &dyn Store, first: usize) -> (usize, StoreError) {
    for at in first.. {
        let op = put(format!("k{at:06}"), Expect::Absent, vec![b'v'; 2000]);
        if let Err(error) = commit_one(store, op).await {
            return (at, error);
        }
        assert!(at < 1_000_000, "the disk never fills");
    }
    unreachable!()
}

/// Loads; on a disk this full the store may have to open itself again in between.
async fn load_patiently(store: &dyn Store, at: &str) -> Option<Stored> {
    loop {
        match store.load(&name(at)).await {
            Ok(stored) => return stored,
            Err(StoreError::Unavailable(_)) => healed(store).await,
            Err(other) => panic!("{other}"),
        }
    }
}

async fn assert_all_there(store: &dyn Store, count: usize) {
    for at in 0..count {
        let stored = load_patiently(store, &format!("k{at:06}")).await;
        assert_eq!(stored.map(|stored| stored.bytes.len()), Some(2000), "k{at:06} of {count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_heals_by_itself_when_there_is_room() {
    let disk = SmallDisk::mount("64m");
    let path = disk.path().join("store");
    let mut options = EmbeddedOptions::new(&path);
    options.backoff_max = Duration::from_millis(200);
    let store = open(options.clone());
    for at in 0..100 {
        let op = put(format!("k{at:06}"), Expect::Absent, vec![b'v'; 2000]);
        commit_one(&*store, op).await.unwrap();
    }
    let mut taken = 100;
    for round in 0..3 {
        let ballast = disk.fill();
        let (reached, error) = commit_until_refused(&*store, taken).await;
        assert!(matches!(error, StoreError::Unavailable(_) | StoreError::Unknown(_)), "{error}");
        // An unknown one may be there: then it is taken.
        taken = reached;
        assert!(store.health().is_err(), "round {round}: a store that refuses is not healthy");
        fs::remove_file(ballast).unwrap();
        healed(&*store).await;
        if load_patiently(&*store, &format!("k{taken:06}")).await.is_some() {
            assert!(matches!(error, StoreError::Unknown(_)), "a refused commit was made");
            taken += 1;
        }
        assert_all_there(&*store, taken).await;
        for _ in 0..200 {
            let op = put(format!("k{taken:06}"), Expect::Any, vec![b'v'; 2000]);
            match commit_one(&*store, op).await {
                Ok(_) => taken += 1,
                Err(StoreError::Unavailable(_)) => healed(&*store).await,
                Err(other) => panic!("{other}"),
            }
        }
    }
    store.close().await;
    let store = open(options);
    assert_all_there(&*store, taken).await;
}

/// With records alone, until nothing fits any more, and then a restart on the full disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_filled_by_records_loses_none() {
    let disk = SmallDisk::mount("24m");
    let path = disk.path().join("store");
    let store = open(EmbeddedOptions::new(&path));
    let (taken, error) = commit_until_refused(&*store, 0).await;
    assert!(matches!(error, StoreError::Unavailable(_) | StoreError::Unknown(_)), "{error}");
    assert!(taken > 2000, "{taken} records of 2 kB on 24 MB");
    drop(store);
    let store = open(EmbeddedOptions::new(&path));
    assert_all_there(&*store, taken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_does_not_fit_leaves_nothing() {
    let disk = SmallDisk::mount("16m");
    let path = disk.path().join("store");
    let store = open(EmbeddedOptions::new(&path));
    commit_one(&*store, put("a", Expect::Absent, "x")).await.unwrap();
    let mut writer = store.put_blob("big").await.unwrap();
    let mut refused = None;
    for _ in 0..64 {
        if let Err(error) = writer.write(Bytes::from(vec![1; 1 << 20])).await {
            refused = Some(error);
            break;
        }
    }
    let refused = match refused {
        Some(error) => {
            drop(writer);
            error
        }
        None => writer.finish().await.unwrap_err(),
    };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
    assert!(matches!(store.get_blob("big").await.map(drop), Err(StoreError::NoBlob)));
    eventually("it is removed", || !path.join("blobs/u.big").exists()).await;
    assert!(store.list_blobs(None, 9).await.unwrap().is_empty());
    let mut writer = store.put_blob("small").await.unwrap();
    writer.write(Bytes::from(vec![1; 1 << 20])).await.unwrap();
    writer.finish().await.unwrap();
    commit_one(&*store, put("b", Expect::Absent, "x")).await.unwrap();
}

/// No room for the next segment: commits are refused with nothing written, reads go on.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_new_segment_commits_are_refused_and_reads_work() {
    let folder = scratch();
    let disk = FaultyDisk::default();
    let mut options = log_only(folder.path());
    options.backoff_min = Duration::from_millis(1);
    options.disk = Arc::new(disk.clone());
    let store = open(options);
    commit_one(&*store, put("k000000", Expect::Absent, vec![b'v'; 2000])).await.unwrap();
    disk.set_full(true);
    let (taken, error) = commit_until_refused(&*store, 1).await;
    assert!(matches!(error, StoreError::Unavailable(_)), "nothing was written: {error}");
    assert!(store.health().is_err());
    assert_all_there(&*store, taken).await;
    assert!(load(&*store, &format!("k{taken:06}")).await.is_none());
    disk.set_full(false);
    healed(&*store).await;
    commit_one(&*store, put("later", Expect::Absent, "x")).await.unwrap();
    assert_eq!(store.gauges().reopened, 0, "it was never closed");
}
