//! Blobs: what is finished comes back whole, what is not is never seen.

use bytes::Bytes;

use super::MakeStore;
use crate::port::{BlobReader, Store, StoreError};

fn content(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(31).wrapping_add(seed) >> 3).to_le_bytes()[0]).collect()
}

/// Writes a blob in chunks of odd sizes.
async fn write(store: &dyn Store, name: &str, bytes: &[u8]) {
    let mut writer = store.put_blob(name).await.unwrap();
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut step = 1;
    while !rest.is_empty() {
        let chunk = rest.split_to(rest.len().min(step));
        writer.write(chunk).await.unwrap();
        step = (step * 3 + 7) % 150_000 + 1;
    }
    writer.finish().await.unwrap();
}

async fn read_on(reader: &mut dyn BlobReader) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(chunk) = reader.next().await.unwrap() {
        read.extend_from_slice(&chunk);
    }
    assert!(reader.next().await.unwrap().is_none(), "the end stays the end");
    read
}

async fn read(store: &dyn Store, name: &str) -> Vec<u8> {
    read_on(&mut *store.get_blob(name).await.unwrap()).await
}

async fn is_missing(store: &dyn Store, name: &str) -> bool {
    matches!(store.get_blob(name).await.map(drop), Err(StoreError::NoBlob))
}

pub async fn blobs_round_trip(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    assert!(is_missing(store, "nothing").await);
    let sizes = [0, 1, 65_536, 262_143, 262_144, 262_145, 5_000_000];
    for size in sizes {
        write(store, &format!("s/{size}"), &content(size, size)).await;
    }
    for size in sizes {
        let back = read(store, &format!("s/{size}")).await;
        assert!(back == content(size, size), "a blob of {size} bytes comes back");
    }
    store.close().await;
}

pub async fn blob_names_are_used_once(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    write(store, "a/b", b"first").await;
    let again = store.put_blob("a/b").await.map(drop);
    assert!(matches!(again, Err(StoreError::Conflict)), "{again:?}");
    assert_eq!(read(store, "a/b").await, b"first");
    store.close().await;
}

pub async fn unfinished_blobs_are_not_readable(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let mut writer = store.put_blob("u/1").await.unwrap();
    for _ in 0..40 {
        writer.write(Bytes::from(content(100_000, 1))).await.unwrap();
    }
    assert!(is_missing(store, "u/1").await, "it is not there before it is finished");
    writer.finish().await.unwrap();
    assert_eq!(read(store, "u/1").await.len(), 4_000_000);
    // The collector may take one that is being written; its writer then learns of it.
    // Where others write too it may come too late for that: the collector meets it again.
    let writer = store.put_blob("u/2").await.unwrap();
    store.delete_blob("u/2").await.unwrap();
    let finished = writer.finish().await;
    if store.abilities().shared && finished.is_ok() {
        assert!(store.list_blobs(None, 9).await.unwrap().contains(&"u/2".to_owned()));
    } else {
        assert!(matches!(finished, Err(StoreError::NoBlob)), "it was deleted");
        assert!(is_missing(store, "u/2").await);
    }
    store.close().await;
}

pub async fn dropped_writers_leave_nothing(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    for (at, chunks) in [0, 1, 30].into_iter().enumerate() {
        let name = format!("dropped/{at}");
        let mut writer = store.put_blob(&name).await.unwrap();
        for _ in 0..chunks {
            writer.write(Bytes::from(content(100_000, 1))).await.unwrap();
        }
        drop(writer);
        assert!(is_missing(store, &name).await);
        // A write may still be on its way to the disk; soon it is gone.
        for attempt in 0.. {
            if store.list_blobs(None, 10).await.unwrap().is_empty() {
                break;
            }
            assert!(attempt < 1000, "an abandoned blob is left");
            tokio::task::yield_now().await;
        }
    }
    store.close().await;
}

pub async fn blobs_are_listed_in_order(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let sorted = ["..", "a", "a-b", "a-b/x", "a.b", "a/-", "a/a", "a/b/c", "a/z", "a0", "~/~"];
    let mut shuffled = sorted;
    shuffled.rotate_left(5);
    shuffled.swap(2, 9);
    for name in shuffled {
        write(store, name, name.as_bytes()).await;
    }
    assert_eq!(store.list_blobs(None, 100).await.unwrap(), sorted);
    for (at, after) in sorted.iter().enumerate() {
        assert_eq!(store.list_blobs(Some(after), 100).await.unwrap(), sorted[at + 1..]);
        let two: Vec<_> = sorted[at + 1..].iter().take(2).collect();
        assert_eq!(store.list_blobs(Some(after), 2).await.unwrap().iter().collect::<Vec<_>>(), two);
    }
    assert_eq!(store.list_blobs(Some("a/c"), 2).await.unwrap(), ["a/z", "a0"]);
    assert!(store.list_blobs(None, 0).await.unwrap().is_empty());
    let writer = store.put_blob("b/unfinished").await.unwrap();
    // Where others write too, what has not begun to arrive there is not there.
    let begun = store.list_blobs(Some("a0"), 9).await.unwrap();
    assert!(store.abilities().shared || begun.contains(&"b/unfinished".to_owned()));
    drop(writer);
    for name in sorted {
        assert_eq!(read(store, name).await, name.as_bytes());
    }
    store.close().await;
}

pub async fn deleted_blobs_are_gone_but_read_to_the_end(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let bytes = content(3_000_000, 5);
    write(store, "d/1", &bytes).await;
    write(store, "d/2", b"other").await;
    let mut reader = store.get_blob("d/1").await.unwrap();
    let mut begun = reader.next().await.unwrap().unwrap().to_vec();
    store.delete_blob("d/1").await.unwrap();
    store.delete_blob("d/1").await.unwrap();
    assert!(is_missing(store, "d/1").await);
    assert_eq!(store.list_blobs(None, 9).await.unwrap(), ["d/2"]);
    begun.extend(read_on(&mut *reader).await);
    assert!(begun == bytes, "a reader that has begun reads to the end");
    store.delete_blob("d/2").await.unwrap();
    store.delete_blob("never/there").await.unwrap();
    assert!(store.list_blobs(None, 9).await.unwrap().is_empty());
    store.close().await;
}

pub async fn bad_blob_names_are_refused(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    let long = "x".repeat(201);
    for name in ["", "/", "a/", "/a", "a//b", "A", "a b", "ä", "a\\b", "a\0b", long.as_str()] {
        assert!(store.put_blob(name).await.is_err(), "{name:?} was accepted");
    }
    // Names that mean something to a file system mean nothing here.
    for name in ["..", ".", "../../x", "./..", &"y".repeat(200)] {
        write(store, name, b"here").await;
        assert_eq!(read(store, name).await, b"here", "{name:?}");
        store.delete_blob(name).await.unwrap();
    }
    store.close().await;
}
