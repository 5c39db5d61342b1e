//! The driver against the floor, both in this process, for a moment.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::client::Connection;
use crate::driver::{AnswerBytes, Cycle, Load, Read, Script, drive};
use crate::floor;
use crate::latency::Kind;
use crate::request::{Lease, Requests, Wait};
use crate::workload::{Documents, Keys, Order};

/// A floor that ends with the test's runtime.
async fn start() -> (SocketAddr, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(floor::accept(listener, floor::Floor::open(dir.path()).unwrap()));
    (address, dir)
}

fn load(address: SocketAddr) -> Load {
    let length = Duration::from_millis(200);
    Load { place: address.into(), connections: 4, warm_up: Duration::from_millis(20), length }
}

fn keys(number: u64) -> Keys {
    Keys::share(number, 4, 64, Order::Turn)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_floor_answers_cycles_with_one_record_for_each_request() {
    let (address, dir) = start().await;
    let documents = Arc::new(Documents::new());
    let script = |number| {
        let documents = Arc::clone(&documents);
        Script::Cycle(Cycle::new(keys(number), documents, 1024, AnswerBytes::TYPICAL))
    };
    let log = drive(load(address), script).await.unwrap();
    let all = log.all().unwrap();
    assert!(all.per_second > 10.0 && all.p99 >= all.median, "{all:?}");
    // Four connections that are never idle: their rate and their latency tell the same.
    let busy = all.median * all.per_second;
    assert!((0.5..6.0).contains(&busy), "{all:?}");
    for kind in [Kind::Acquire, Kind::Update, Kind::Release] {
        assert!(log.of(kind).per_second > 0.0, "{kind:?}");
    }
    let written = std::fs::metadata(dir.path().join("floor.log")).unwrap().len();
    assert_eq!(written, log.total * 1024);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_floor_answers_reads_without_the_disk() {
    let (address, dir) = start().await;
    let read = |number| Script::Read(Read::new(keys(number), 1024));
    let log = drive(load(address), read).await.unwrap();
    assert!(log.of(Kind::Read).per_second > 10.0);
    assert_eq!(std::fs::metadata(dir.path().join("floor.log")).unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unexpected_answer_ends_the_load() {
    let (address, _dir) = start().await;
    let read = |number| Script::Read(Read::new(keys(number), 1000));
    let error = drive(load(address), read).await.unwrap_err();
    assert!(error.to_string().contains("has 1024 bytes instead of 1000"), "{error:#}");
}

#[tokio::test]
async fn the_floor_answers_as_many_bytes_as_it_is_asked_for() {
    let (address, _dir) = start().await;
    let mut connection = Connection::open(address).await.unwrap();
    let mut requests = Requests::default();
    for bytes in [1, 200, 4096] {
        let answer = connection.call(requests.acquire("k", Wait::No, bytes)).await.unwrap();
        assert_eq!((answer.status, answer.body.len()), (200, bytes));
    }
}

#[tokio::test]
async fn sizes_learnt_from_a_floor_are_its_own() {
    let (address, _dir) = start().await;
    let learnt = AnswerBytes::learn(address, address).await.unwrap();
    assert_eq!(learnt, AnswerBytes::TYPICAL);
}

#[tokio::test]
async fn a_held_request_is_silent_and_a_streamed_one_leaves_no_file() {
    let (address, dir) = start().await;
    let mut held = Connection::open(address).await.unwrap();
    let mut requests = Requests::default();
    held.send(requests.hold("k", Wait::Seconds(1))).await.unwrap();

    let body = vec![b' '; 3_000_000];
    let mut connection = Connection::open(address).await.unwrap();
    let head = requests.upload("/stream", &Lease::default(), body.len());
    let answer = connection.upload(head, &body).await.unwrap().ok().unwrap();
    assert_eq!(answer.body.len(), 100);
    assert!(held.is_silent());
    // The removal follows the answer.
    tokio::time::timeout(Duration::from_secs(10), async {
        while dir.path().join("body-0").exists() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}
