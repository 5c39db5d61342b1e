//! Workers written with the SDK, against the real server: functions that are called for each
//! message, and jobs in one transaction.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockd_client::{Client, Message, secs};
use lockd_tests::{Options, Place, Server};
use serde_json::{Value, json};
use tokio::sync::Notify;

fn connect(server: &Server) -> Client {
    let Place::Tcp(address) = &server.place else { panic!("not over the network") };
    Client::connect(&format!("http://{address}")).expect("a client")
}

/// Runs a worker until it has had enough, within a generous deadline.
fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async { tokio::time::timeout(secs(60), work).await.expect("in time") });
}

/// A machine that stands still for longer than this takes messages away from their workers.
const VISIBILITY: Duration = Duration::from_secs(4);

#[derive(Debug)]
struct Oops;

impl std::fmt::Display for Oops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not today")
    }
}

#[test]
fn a_function_is_called_for_every_message_until_it_succeeds() {
    let server = Server::start(Options::in_memory());
    run(async {
        let queue = connect(&server).queue("jobs");
        for number in 0..40_u32 {
            let ask = queue.enqueue_json(&json!({"number": number})).max_attempts(3);
            ask.await.expect("enqueued");
        }
        let calls: Arc<Mutex<BTreeMap<u64, u32>>> = Arc::default();
        let (enough, done) = (Arc::new(Notify::new()), Arc::new(AtomicU32::new(0)));
        let (seen, told) = (Arc::clone(&calls), Arc::clone(&enough));
        let handler = move |mut message: Message| {
            let (seen, told, done) = (Arc::clone(&seen), Arc::clone(&told), Arc::clone(&done));
            async move {
                let job: Value = message.json().await.expect("a job");
                let number = job["number"].as_u64().expect("a number");
                let calls = {
                    let mut seen = seen.lock().expect("calls");
                    let calls = seen.entry(number).or_default();
                    *calls += 1;
                    *calls
                };
                match number {
                    // Fails at first, then succeeds.
                    0..5 if calls == 1 => return Err(Oops),
                    5 if calls == 1 => panic!("a worker that dies"),
                    // Never succeeds.
                    6 => return Err(Oops),
                    // Takes twice as long as it has.
                    7 => tokio::time::sleep(2 * VISIBILITY).await,
                    _ => {}
                }
                if done.fetch_add(1, Ordering::Relaxed) + 1 == 39 {
                    told.notify_one();
                }
                Ok(())
            }
        };
        let subscribe = queue.subscribe(handler).concurrency(8).retry_delay(Duration::ZERO);
        let subscribe = subscribe.visibility(VISIBILITY);
        let dead = async {
            loop {
                let stats = queue.stats().await.expect("stats");
                if [stats.ready, stats.delayed, stats.in_flight, stats.dead]
                    == [0, 0, 0, 1].map(Some)
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let stop = async {
            enough.notified().await;
            dead.await;
        };
        subscribe.run(stop).await.expect("a consumer");
        let calls = calls.lock().expect("calls").clone();
        for (number, calls) in calls {
            let expected = match number {
                0..=5 => 2,
                6 => 3,
                _ => 1,
            };
            assert_eq!(calls, expected, "message {number}");
        }
        let dead = queue.dead_letters().next_page().await.expect("a page").expect("one");
        let error = dead[0].last_error.as_ref().expect("an error").get();
        assert_eq!((dead[0].failure_attempts, error), (3, "\"not today\""));
        // What is brought back now must not go to a consumer that has just left.
        while queue.stats().await.expect("stats").total_consumers > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(queue.redrive_all().await.expect("redriven"), 1);
        assert_eq!(queue.purge().await.expect("purged"), 1);
    });
}

#[test]
fn a_job_in_one_transaction_happens_as_a_whole() {
    let server = Server::start(Options::in_memory());
    run(async {
        let client = connect(&server);
        let (inbox, outbox) = (client.queue("inbox"), client.queue("outbox"));
        inbox.enqueue("order 7".to_owned().into_bytes()).await.expect("enqueued");
        for commit in [false, true] {
            let txn = client.txn();
            let message = inbox.dequeue().in_txn(&txn).no_wait().await.expect("an answer");
            let mut message = message.expect("a message");
            assert_eq!(message.bytes().await.expect("bytes"), "order 7");
            let stock = txn.lease("stock").await.expect("free");
            stock.update(&1).await.expect("staged");
            let sent = outbox.enqueue("order 7 done".to_owned().into_bytes()).in_txn(&txn);
            sent.await.expect("enqueued");
            if commit {
                txn.commit([stock]).await.expect("committed");
            } else {
                txn.rollback([stock]).await.expect("rolled back");
            }
            drop(message);
            let count = async |queue: &lockd_client::Queue| {
                let stats = queue.stats().await.expect("stats");
                stats.ready.unwrap_or_default() + stats.in_flight.unwrap_or_default()
            };
            let expected = if commit { (0, 1) } else { (1, 0) };
            assert_eq!((count(&inbox).await, count(&outbox).await), expected);
            assert_eq!(client.get("stock").await.expect("read").is_some(), commit);
        }
    });
}

#[test]
fn the_state_of_a_message_goes_from_one_worker_to_the_next() {
    let server = Server::start(Options::in_memory());
    run(async {
        let queue = connect(&server).queue("jobs");
        queue.enqueue("x".to_owned().into_bytes()).await.expect("enqueued");
        let enough = Arc::new(Notify::new());
        let told = Arc::clone(&enough);
        let handler = move |message: Message| {
            let told = Arc::clone(&told);
            async move {
                let state = message.state().expect("state");
                let step: u32 = match state.get().await.expect("read") {
                    Some(document) => document.json().expect("a number"),
                    None => 0,
                };
                if step == 3 {
                    told.notify_one();
                    return Ok(());
                }
                state.update(&(step + 1)).await.expect("staged");
                Err(Oops)
            }
        };
        let subscribe = queue.subscribe(handler).with_state().retry_delay(Duration::ZERO);
        subscribe.run(async { enough.notified().await }).await.expect("a consumer");
        let stats = queue.stats().await.expect("stats");
        assert_eq!([stats.ready, stats.in_flight, stats.dead], [Some(0); 3]);
    });
}
