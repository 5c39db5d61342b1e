//! Listings over a server that counts what it is asked, and lets answers wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::extract::{Query, State};
use axum::routing::{get, post};
use lockd_serve::{Bound, Door, Serving};
use lockd_wire::admin::{KeyView, KeysReply};
use lockd_wire::path;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use super::*;

#[derive(Default)]
struct Store {
    keys: Mutex<BTreeSet<String>>,
    /// How often keys were asked for, and how many of a page.
    pages: AtomicUsize,
    limits: Mutex<BTreeSet<String>>,
    /// The next pages take so long.
    slow: Mutex<Duration>,
    /// Reads of the first page that wait until they are let through, if there is a gate.
    gate: Mutex<Option<Arc<Semaphore>>>,
    waits: Notify,
}

impl Store {
    fn put(&self, ids: impl IntoIterator<Item = u32>) {
        self.keys.lock().extend(ids.into_iter().map(|id| format!("p/job/{id:05}")));
    }

    fn pages(&self) -> usize {
        self.pages.swap(0, Ordering::SeqCst)
    }
}

async fn keys(
    State(store): State<Arc<Store>>,
    Query(asked): Query<BTreeMap<String, String>>,
) -> Json<KeysReply> {
    let slow = *store.slow.lock();
    tokio::time::sleep(slow).await;
    store.pages.fetch_add(1, Ordering::SeqCst);
    let limit = asked.get("limit").cloned().unwrap_or_else(|| "100".into());
    store.limits.lock().insert(limit.clone());
    let (limit, after) = (limit.parse().unwrap(), asked.get("cursor").cloned().unwrap_or_default());
    let view = |key: &String| KeyView {
        key: key.clone(),
        state_etag: Some("e".into()),
        ..KeyView::default()
    };
    let prefix = &asked["prefix"];
    let there = store.keys.lock();
    let page = there.iter().filter(|key| key.starts_with(prefix) && **key > after);
    let keys: Vec<KeyView> = page.take(limit).map(view).collect();
    let next_cursor = keys.last().filter(|_| keys.len() == limit).map(|last| last.key.clone());
    Json(KeysReply { keys, next_cursor, ..KeysReply::default() })
}

async fn read(State(store): State<Arc<Store>>, Json(asked): Json<Value>) -> Json<Value> {
    let gate = store.gate.lock().take();
    if let Some(gate) = gate {
        store.waits.notify_one();
        gate.acquire().await.unwrap().forget();
    }
    let kept = json!({"version": 1, "body": "{}"});
    let entry = |key: &Value| json!({"namespace": "n", "key": key, "version": 1, "state": kept});
    let entries: Vec<Value> = asked["keys"].as_array().unwrap().iter().map(entry).collect();
    Json(json!({"entries": entries}))
}

async fn served() -> (Serving, Arc<Store>, LockdLedger) {
    let store = Arc::new(Store::default());
    let router = axum::Router::new()
        .route(path::KEYS, get(keys))
        .route(path::READ, post(read))
        .with_state(Arc::clone(&store));
    let bound = Bound::bind("127.0.0.1:0").await.expect("a port");
    let client = Client::connect(&format!("http://{}", bound.address)).expect("a client");
    let serving = bound.serve(&Door::Plain, router).expect("a server");
    (serving, store, LockdLedger::new(client, "p"))
}

/// As after an opening.
fn opened(ledger: &LockdLedger, word: &str) {
    let term = Term { epoch: 1, node: "a".into() };
    *ledger.office.lock() = Some(Office { term, word: word.into(), fence: ("f".into(), 1) });
}

fn ids(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.id.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_read_in_one_walk() {
    let (_serving, store, ledger) = served().await;
    opened(&ledger, "w");
    store.put(0..2_500);
    let (mut after, mut count) = (None, 0);
    loop {
        let page = ledger.load(Kind::Job, after.as_deref(), 256).await.expect("a page");
        let Some(last) = page.last() else { break };
        (after, count) = (Some(last.id.clone()), count + page.len());
    }
    assert_eq!(count, 2_500);
    assert_eq!(*store.limits.lock(), BTreeSet::from(["1000".to_owned()]));
    assert_eq!(store.pages(), 3, "none is asked for twice, and the end is remembered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_took_too_long_goes_on_where_it_was() {
    let (_serving, store, mut ledger) = served().await;
    ledger.listing = Duration::from_millis(250);
    store.put(0..5_000);
    store.put([9_000]);
    // Five pages have nothing after this.
    *store.slow.lock() = Duration::from_millis(100);
    let mut tries = 0;
    let found = loop {
        tries += 1;
        match ledger.load(Kind::Job, Some("05000"), 9).await {
            Ok(found) => break found,
            Err(LedgerFault::Unavailable(_)) if tries < 9 => {}
            Err(fault) => panic!("after {tries}: {fault}"),
        }
    };
    assert_eq!(ids(&found), ["09000"]);
    assert!(tries > 1, "it was too slow for one try");
    assert!(ledger.load(Kind::Job, Some("09000"), 9).await.expect("a page").is_empty());
}

/// A client's listing has its names from before an opening, and stops where the new leader's does.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_listed_at_the_same_time_does_not_show_in_what_a_leader_loads() {
    for reader in [Reader::Client, Reader::Leader] {
        let (_serving, store, ledger) = served().await;
        store.put([1, 2, 4, 5]);
        opened(&ledger, "before");
        let gate = Arc::new(Semaphore::new(0));
        *store.gate.lock() = Some(Arc::clone(&gate));
        let listing = ledger.list_now(reader, (Kind::Job, None), 2);
        let leads = async {
            store.waits.notified().await;
            // Accepted by the leader of before, after the names were listed.
            store.put([3]);
            opened(&ledger, "after");
            let first = ledger.load(Kind::Job, None, 2).await.expect("a page");
            gate.add_permits(1);
            first
        };
        let (listed, first) = tokio::join!(listing, leads);
        assert_eq!(ids(&listed.expect("a page")), ids(&first));
        let next = ledger.load(Kind::Job, Some("00002"), 9).await.expect("a page");
        assert_eq!(ids(&next), ["00003", "00004", "00005"], "{reader:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_have_listed_is_remembered_for_a_short_time_only() {
    let (_serving, store, ledger) = served().await;
    store.put(0..10);
    let page = async |after| ledger.list(Kind::Job, after, 5).await.expect("a page");
    // Two at the same time.
    for _ in 0..2 {
        assert_eq!(page(None).await.len(), 5);
    }
    for _ in 0..2 {
        assert_eq!(page(Some("00004")).await.len(), 5);
    }
    assert_eq!(store.pages(), 2);
    store.put([10]);
    tokio::time::timeout(Duration::from_secs(10), async {
        while ids(&page(Some("00009")).await) != ["00010"] {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("what has come since is listed");
}
