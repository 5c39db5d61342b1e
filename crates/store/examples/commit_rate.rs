//! How many durable commits per second the embedded store makes: 64 tasks, each putting 1 KiB
//! under the revision it got last, beside the same load on a bare log with group commit and on
//! files appended plainly. Run with `--release`; arguments: folder, seconds, tasks.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a program that measures")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc as sync_mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockd_store::{EmbeddedOptions, EmbeddedStore, Expect, Name, Op, Store, Write};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

const VALUE_BYTES: usize = 1024;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| "commit-rate-data".into());
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let tasks: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    for round in 1..=3 {
        println!("round {round}");
        let plain = runtime.block_on(plain_append(folder, tasks, Duration::from_secs(seconds)))?;
        report("  append + fdatasync", plain, seconds);
        let store = runtime.block_on(embedded(folder, tasks, Duration::from_secs(seconds)))?;
        report("  embedded store    ", store, seconds);
    }
    Ok(())
}

fn report(what: &str, mut took: Vec<Duration>, seconds: u64) {
    took.sort_unstable();
    let at = |share: usize| took.get(took.len() * share / 1000).copied().unwrap_or_default();
    println!(
        "{what} {:>8} commits/s  p50 {:?}  p99 {:?}  p99.9 {:?}  max {:?}",
        took.len() as u64 / seconds,
        at(500),
        at(990),
        at(999),
        took.last().copied().unwrap_or_default(),
    );
}

async fn embedded(
    folder: &Path,
    tasks: usize,
    span: Duration,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let path = folder.join("store");
    let store = EmbeddedStore::open(EmbeddedOptions::new(&path))?;
    let mut running = JoinSet::new();
    let end = Instant::now() + span;
    for task in 0..tasks {
        let store = Arc::clone(&store);
        running.spawn(async move {
            let name: Name = Arc::from(format!("bench/{task}"));
            let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
            let mut took = Vec::new();
            let loaded = store.load(&name).await?;
            let mut expect = Expect::unchanged(loaded.as_ref());
            while Instant::now() < end {
                let begun = Instant::now();
                let write = Write::Put(value.clone());
                let op = Op { name: Arc::clone(&name), expect, write };
                let revisions = store.commit(vec![op]).await?;
                expect = revisions.first().map_or(Expect::Any, |first| Expect::Revision(*first));
                took.push(begun.elapsed());
            }
            Ok::<_, lockd_store::StoreError>(took)
        });
    }
    let mut all = Vec::new();
    while let Some(took) = running.join_next().await {
        all.extend(took??);
    }
    let gauges = store.gauges();
    println!(
        "    {} commits per sync, {} µs per sync, {} MiB on disk",
        gauges.commits / gauges.batches.max(1),
        gauges.sync_nanos / gauges.batches.max(1) / 1000,
        gauges.size_bytes >> 20,
    );
    store.close().await;
    std::fs::remove_dir_all(path)?;
    Ok(all)
}

/// What a plain program would do: one thread appends what waits and syncs the file.
async fn plain_append(
    folder: &Path,
    tasks: usize,
    span: Duration,
) -> Result<Vec<Duration>, Box<dyn std::error::Error>> {
    let path = folder.join("plain.log");
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let (sender, mut receiver) = mpsc::channel::<(Bytes, oneshot::Sender<()>)>(1024);
    let (ended, failed) = sync_mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut waiting = Vec::new();
        let mut buffer = Vec::new();
        while receiver.blocking_recv_many(&mut waiting, 1024) > 0 {
            buffer.clear();
            for (bytes, _) in &waiting {
                buffer.extend_from_slice(bytes);
            }
            if let Err(error) = file.write_all(&buffer).and_then(|()| file.sync_data()) {
                ended.send(error).ok();
                return;
            }
            for (_, answer) in waiting.drain(..) {
                answer.send(()).ok();
            }
        }
    });
    let end = Instant::now() + span;
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let sender = sender.clone();
        running.spawn(async move {
            let value = Bytes::from(vec![b'x'; VALUE_BYTES]);
            let mut took = Vec::new();
            while Instant::now() < end {
                let begun = Instant::now();
                let (answer, answered) = oneshot::channel();
                if sender.send((value.clone(), answer)).await.is_err() || answered.await.is_err() {
                    break;
                }
                took.push(begun.elapsed());
            }
            took
        });
    }
    drop(sender);
    let all = running.join_all().await.into_iter().flatten().collect();
    writer.join().map_err(|_| "the writer panicked")?;
    if let Ok(error) = failed.try_recv() {
        return Err(error.into());
    }
    std::fs::remove_file(path)?;
    Ok(all)
}
