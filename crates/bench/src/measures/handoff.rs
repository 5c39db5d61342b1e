//! Hand-off: from the moment a holder sends its release until the next waiter has its grant. The
//! new holder releases at once and queues again, so that the lease runs round and the number of
//! waiters stays as it is.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::child::Server;
use crate::client::{Answer, Connection};
use crate::driver::AnswerBytes;
use crate::latency::{Figures, Window, histogram, nanos};
use crate::measures::{Bench, REST_MAX, Rounds, Side, cycle};
use crate::request::{Lease, Requests, Wait};
use crate::table::{Found, Row, Target, Unit};

pub(super) const FEW: usize = 10;
const WAIT: Wait = Wait::Seconds(60);
/// Every waiter that could be lost would show itself within this time.
const STALL_MAX: Duration = Duration::from_secs(30);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let many = bench.plan.waiters_many;
    let pair = bench.start_pair().await?;
    let sizes = AnswerBytes::learn(pair.lockd.address, pair.floor.address).await;
    let sizes = pair.lockd.explain(sizes)?;
    let mut single = Rounds::default();
    let mut handed = [Vec::new(), Vec::new()];
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            pair.rest().await?;
            let label = format!("one connection, round {round}, {side:?}");
            let script = |number| cycle::script(bench, number, 1, sizes);
            let log = bench.slot(&label, pair.side(side), 1, script).await?;
            single.push(side, log.all()?);
        }
        for (waiters, figures) in [FEW, many].into_iter().zip(&mut handed) {
            pair.rest().await?;
            let key = format!("bench/handoff-{round}-{waiters}");
            let result = hand_round(bench, &pair.lockd, &key, waiters).await;
            let found = pair.lockd.explain(result)?;
            eprintln!(
                "  hand-off, {waiters} waiters, round {round}: {:.0} /s, median {:.0} µs, p99 {:.0} µs",
                found.per_second,
                found.median * 1e6,
                found.p99 * 1e6
            );
            figures.push(found);
        }
    }
    rows_of(&single, &handed, many)
}

fn rows_of(single: &Rounds, handed: &[Vec<Figures>; 2], many: usize) -> Result<Vec<Row>> {
    let medians = |figures: &[Figures]| figures.iter().map(|f| f.median).collect::<Vec<_>>();
    let p99s = |figures: &[Figures]| figures.iter().map(|f| f.p99).collect::<Vec<_>>();
    let [few, much] = handed;
    let request = medians(&single.lockd);
    let (of_few, of_many) = (medians(few), medians(much));
    let seconds = |name: String, found: Option<Found>, target| -> Result<Row> {
        Ok(Row::new(name, Unit::Seconds, found.context("no rounds")?, target))
    };
    Ok(vec![
        single.row(
            "one durable request, 1 connection: median".into(),
            Unit::Seconds,
            |figures| figures.median,
            Target::None,
        )?,
        seconds(
            format!("hand-off, {FEW} waiters: median, by lockd's one request"),
            Found::beside(&of_few, &request),
            Target::RatioAtMost(4.0),
        )?,
        seconds(
            format!("hand-off, {FEW} waiters: p99"),
            Found::alone(&p99s(few)),
            Target::Under(0.01),
        )?,
        seconds(
            format!("hand-off, {many} waiters: median, by that of {FEW}"),
            Found::beside(&of_many, &of_few),
            Target::RatioAtMost(1.25),
        )?,
        seconds(
            format!("hand-off, {many} waiters: p99"),
            Found::alone(&p99s(much)),
            Target::Under(0.01),
        )?,
    ])
}

/// What the waiters of one key share.
#[derive(Debug)]
struct Ring {
    key: String,
    window: Window,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// When the present holder sent its release.
    released_at: Instant,
    times: Histogram<u64>,
}

pub(super) async fn hand_round(
    bench: &Bench,
    server: &Server,
    key: &str,
    waiters: usize,
) -> Result<Figures> {
    let (mut requests, mut lease) = (Requests::default(), Lease::default());
    let mut holder = Connection::open(server.place()).await?;
    lease.read(holder.call(requests.acquire(key, Wait::No, 0)).await?.ok()?.body)?;
    let mut queue = Vec::with_capacity(waiters);
    for _ in 0..waiters {
        let mut waiter = Connection::open(server.place()).await?;
        waiter.send(requests.acquire(key, WAIT, 0)).await?;
        queue.push(waiter);
    }
    server.settle(REST_MAX).await?;
    for waiter in &queue {
        ensure!(waiter.is_silent(), "a waiter was answered while the key was held");
    }

    let window = Window::after(bench.plan.warm_up(), bench.plan.slot);
    let seen = Seen { released_at: Instant::now(), times: histogram()? };
    let ring = Arc::new(Ring { key: key.to_owned(), window, seen: Mutex::new(seen) });
    let mut tasks = JoinSet::new();
    for waiter in queue {
        tasks.spawn(wait_turns(waiter, Arc::clone(&ring)));
    }
    ring.note_release();
    holder.call(requests.release(key, &lease, 0)).await?.ok()?;

    // The first task to end does so because the window has closed, or because something is wrong;
    // the others still wait for their turn and are given up.
    let end = tokio::time::Instant::from_std(window.until) + STALL_MAX;
    match tokio::time::timeout_at(end, tasks.join_next()).await {
        Ok(Some(ended)) => ended??,
        Ok(None) => bail!("there were no waiters"),
        Err(_) => bail!("the lease was not handed on for {STALL_MAX:?}"),
    }
    tasks.shutdown().await;
    let seen = ring.seen.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(!seen.times.is_empty(), "no hand-off was seen");
    Ok(Figures::new(&seen.times, window.seconds()))
}

/// Takes grants and passes them on until the window has closed. The acquire of the first turn has
/// been sent already.
async fn wait_turns(mut connection: Connection, ring: Arc<Ring>) -> Result<()> {
    let (mut requests, mut lease) = (Requests::default(), Lease::default());
    loop {
        let answer = connection.receive().await?;
        // A wait that ran out is no error: whoever waits for long queues again.
        if answer.status != 409 {
            let is_over = ring.note_grant();
            lease.read(answer.ok().context("acquire")?.body)?;
            ring.note_release();
            let request = requests.release(&ring.key, &lease, 0);
            connection.call(request).await.and_then(Answer::ok).context("release")?;
            if is_over {
                return Ok(());
            }
        }
        connection.send(requests.acquire(&ring.key, WAIT, 0)).await?;
    }
}

impl Ring {
    fn note_release(&self) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).released_at = Instant::now();
    }

    /// Counts the hand-off that has just ended; true if it was after the window.
    fn note_grant(&self) -> bool {
        let now = Instant::now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let start = seen.released_at;
        if start >= self.window.from && now < self.window.until {
            seen.times.saturating_record(nanos(now - start));
        }
        now >= self.window.until
    }
}
