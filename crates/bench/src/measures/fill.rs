//! Fills a store with keys, two requests for each: acquire, and an update that also releases. This
//! is preparation and not measured, but a store that stops taking keys is an error.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinSet;

use crate::child::Server;
use crate::client::{Answer, Connection};
use crate::request::{Lease, Requests, Then, Wait};
use crate::workload::{Documents, write_key};

const CONNECTIONS: usize = 64;
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Gives each of the keys a document of `bytes` bytes.
pub(super) async fn fill(
    server: &Server,
    documents: &Arc<Documents>,
    keys: Range<u64>,
    bytes: usize,
) -> Result<()> {
    let start = Instant::now();
    let end = keys.end;
    let next = Arc::new(AtomicU64::new(keys.start));
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let connection = Connection::open(server.place()).await?;
        tasks.spawn(take(connection, Arc::clone(documents), Arc::clone(&next), end, bytes));
    }
    let mut told = keys.start;
    let mut tick = tokio::time::interval(TELL_EVERY);
    tick.tick().await;
    loop {
        tokio::select! {
            done = tasks.join_next() => match done {
                Some(done) => server.explain(done?)?,
                None => break,
            },
            _ = tick.tick() => {
                let now = next.load(Ordering::Relaxed).min(end);
                ensure!(now > told || now == end, "no key was stored in {TELL_EVERY:?}");
                eprintln!("  filling: {now} of {end} keys after {:.0?}", start.elapsed());
                told = now;
            }
        }
    }
    eprintln!("  filled: {end} keys of {bytes} bytes, {:.1?}", start.elapsed());
    Ok(())
}

async fn take(
    mut connection: Connection,
    documents: Arc<Documents>,
    next: Arc<AtomicU64>,
    end: u64,
    bytes: usize,
) -> Result<()> {
    let (mut requests, mut lease) = (Requests::default(), Lease::default());
    let (mut key, mut document) = (String::new(), Vec::new());
    loop {
        let id = next.fetch_add(1, Ordering::Relaxed);
        if id >= end {
            return Ok(());
        }
        write_key(id, &mut key);
        documents.write(id, bytes, &mut document);
        let request = requests.acquire(&key, Wait::No, 200);
        let answer = connection.call(request).await.and_then(Answer::ok).context("acquire")?;
        lease.read(answer.body)?;
        let request = requests.update(&key, &lease, Then::Release, &document, 100);
        connection.call(request).await.and_then(Answer::ok).context("update and release")?;
    }
}
