//! Scans: order, bounds, and what changed in between.

use super::{MakeStore, commit_one, delete, put};
use crate::port::{Expect, Store};

async fn names(store: &dyn Store, prefix: &str, after: Option<&str>, limit: usize) -> Vec<String> {
    let page = store.scan(prefix, after, limit).await.unwrap();
    page.into_iter().map(|(name, _)| name.to_string()).collect()
}

async fn fill(store: &dyn Store, names: &[&str]) {
    for name in names {
        commit_one(store, put(name, Expect::Absent, name)).await.unwrap();
    }
}

pub async fn scans_walk_in_name_order(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    // Byte order: not the order of writing, of length, or of any language.
    let sorted = ["0", "9", "a", "a!b", "a-b", "a.b", "a/b", "a0", "a_b", "aa", "b", "z"];
    let mut shuffled = sorted;
    shuffled.rotate_left(4);
    shuffled.swap(0, 7);
    fill(store, &shuffled).await;
    assert_eq!(names(store, "", None, 100).await, sorted);
    for (name, stored) in store.scan("", None, 100).await.unwrap() {
        assert_eq!(&stored.bytes[..], name.as_bytes(), "a scan shows the record of the name");
    }
    store.close().await;
}

pub async fn scans_respect_prefix_after_and_limit(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    fill(store, &["k/1", "k/2", "k/3", "k/30", "k/4", "k0", "j/9", "l"]).await;
    assert_eq!(names(store, "k/", None, 100).await, ["k/1", "k/2", "k/3", "k/30", "k/4"]);
    assert_eq!(names(store, "k/", Some("k/2"), 100).await, ["k/3", "k/30", "k/4"]);
    assert_eq!(names(store, "k/", Some("k/2"), 2).await, ["k/3", "k/30"]);
    assert_eq!(names(store, "k/", Some("k/25"), 1).await, ["k/3"], "after need not exist");
    assert_eq!(names(store, "k/", Some("a"), 2).await, ["k/1", "k/2"], "after before the prefix");
    assert!(names(store, "k/", Some("z"), 9).await.is_empty(), "after behind the prefix");
    assert!(names(store, "k/", None, 0).await.is_empty());
    assert!(names(store, "nothing", None, 9).await.is_empty());
    let mut walked = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = names(store, "", after.as_deref(), 3).await;
        let short = page.len() < 3;
        walked.extend(page);
        if short {
            break;
        }
        after = walked.last().cloned();
    }
    assert_eq!(walked, ["j/9", "k/1", "k/2", "k/3", "k/30", "k/4", "k0", "l"]);
    store.close().await;
}

pub async fn scans_see_updates_and_deletions(make: &MakeStore<'_>) {
    let fixture = make().await;
    let store = &*fixture.store;
    fill(store, &["a", "b", "c", "d"]).await;
    commit_one(store, delete("a", Expect::Any)).await.unwrap();
    commit_one(store, delete("c", Expect::Any)).await.unwrap();
    let revision = commit_one(store, put("d", Expect::Any, "new")).await.unwrap();
    assert_eq!(names(store, "", None, 1).await, ["b"], "a deleted record takes no place");
    assert_eq!(names(store, "", None, 9).await, ["b", "d"]);
    let page = store.scan("d", None, 9).await.unwrap();
    assert_eq!((&page[0].1.bytes[..], page[0].1.revision), (&b"new"[..], revision));
    store.close().await;
}
