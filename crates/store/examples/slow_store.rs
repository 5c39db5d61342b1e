//! What a slow object store costs: one object for each key against a log with one writer. Each of
//! many clients takes a key, updates it and lets go of it, which is three durable writes.
//!
//! `cargo run --release -p lockd-store --example slow_store`
#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "an example prints its table, measures with the real clock and may stop at a fault"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockd_cloud::{Plan, Proxy, S3Double};
use lockd_store::object::{Location, ObjectOptions};
use lockd_store::{Expect, Name, ObjectStore, Op, Store, Write};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

const CLIENTS: usize = 64;
const WRITES: usize = 3;
const RECORD_BYTES: usize = 1_300;
const WINDOW: Duration = Duration::from_secs(6);

#[tokio::main]
async fn main() {
    println!("{CLIENTS} clients, {WRITES} writes of {RECORD_BYTES} bytes in a cycle");
    println!("latency  layout            cycles/s  of what round trips allow  PUTs in a cycle");
    for latency in [50, 100] {
        let latency = Duration::from_millis(latency);
        show("an object a key", latency, per_key).await;
        show("a log, one writer", latency, one_log).await;
    }
}

async fn show<F>(layout: &str, latency: Duration, run: fn(Arc<ObjectStore>) -> F)
where
    F: Future<Output = u64>,
{
    let double = S3Double::start().await;
    let proxy = Proxy::start(&double.endpoint()).await;
    let address = proxy.endpoint().replace("http://", "");
    let url = format!("s3://{address}/lockd?insecure=1");
    let mut options = ObjectOptions::new(Location::parse(&url, None).expect("a location"));
    options.credentials.access_key_id = Some("x".into());
    options.credentials.secret_access_key = Some("x".into());
    let store = Arc::new(ObjectStore::open(&options).expect("a store"));
    proxy.set_plan(Plan { latency, ..Plan::default() });
    let start = Instant::now();
    let cycles = run(store).await;
    let rate = cycles as f64 / start.elapsed().as_secs_f64();
    let possible = CLIENTS as f64 / (WRITES as f64 * latency.as_secs_f64());
    let puts = proxy.requests().puts as f64 / cycles.max(1) as f64;
    println!(
        "{:>4} ms  {layout:<17} {rate:>8.0}  {:>25.2}  {puts:>15.2}",
        latency.as_millis(),
        rate / possible
    );
}

/// Every client writes the object of its own key.
async fn per_key(store: Arc<ObjectStore>) -> u64 {
    let end = Instant::now() + WINDOW;
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let store = Arc::clone(&store);
        clients.spawn(async move {
            let name: Name = format!("k/default/{client}").into();
            let (mut expect, mut cycles) = (Expect::Absent, 0);
            while Instant::now() < end {
                for _ in 0..WRITES {
                    let write = Write::Put(Bytes::from(vec![0; RECORD_BYTES]));
                    let op = Op { name: Arc::clone(&name), expect, write };
                    let written = store.commit(vec![op]).await.expect("written");
                    expect = Expect::Revision(written[0]);
                }
                cycles += 1;
            }
            cycles
        });
    }
    clients.join_all().await.into_iter().sum()
}

/// Every client hands its writes to one, who writes whatever has come by then as the next object.
async fn one_log(store: Arc<ObjectStore>) -> u64 {
    let end = Instant::now() + WINDOW;
    let (send, mut receive) = mpsc::channel::<oneshot::Sender<()>>(CLIENTS);
    let cycles = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        let (send, cycles) = (send.clone(), Arc::clone(&cycles));
        tasks.spawn(async move {
            while Instant::now() < end {
                for _ in 0..WRITES {
                    let (done, answered) = oneshot::channel();
                    send.send(done).await.expect("the writer is there");
                    answered.await.expect("written");
                }
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    drop(send);
    tasks.spawn(async move {
        let mut waiting = Vec::new();
        for number in 0_u64.. {
            if receive.recv_many(&mut waiting, CLIENTS).await == 0 {
                return;
            }
            let name: Name = format!("log/{number:020}").into();
            let write = Write::Put(Bytes::from(vec![0; RECORD_BYTES * waiting.len()]));
            let op = Op { name, expect: Expect::Never, write };
            store.commit(vec![op]).await.expect("written");
            for done in waiting.drain(..) {
                done.send(()).expect("somebody waits for it");
            }
        }
    });
    tasks.join_all().await;
    cycles.load(Ordering::Relaxed)
}
