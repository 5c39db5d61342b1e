//! Memory of a server under many connections that each wait for an answer: for the floor the bare
//! stack, for lockd waiters on one held key. Every round has fresh processes, since memory that
//! was freed in one round would be found again in the next.

use anyhow::{Context as _, Result, ensure};

use crate::child::Server;
use crate::client::Connection;
use crate::measures::{Bench, REST_MAX, Side};
use crate::request::{Lease, Requests, Wait};
use crate::table::{Found, Row, Target, Unit};

const KEY: &str = "bench/waiters";
const WAIT: Wait = Wait::Seconds(600);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let count = bench.plan.waiters_many;
    let (mut floor, mut lockd) = (Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            let bytes = match side {
                Side::Floor => each(&bench.start_floor().await?, side, count).await?,
                Side::Lockd => each(&bench.start_lockd().await?, side, count).await?,
            };
            eprintln!("  {count} waiters, round {round}, {side:?}: {:.1} KiB each", bytes / 1024.0);
            match side {
                Side::Floor => floor.push(bytes),
                Side::Lockd => lockd.push(bytes),
            }
        }
    }
    let name = format!("memory for each of {count} blocked waiters");
    let found = Found::paired(&floor, &lockd).context("no rounds")?;
    Ok(vec![Row::new(name, Unit::Bytes, found, Target::Under(24.0 * 1024.0))])
}

/// Bytes of server memory for each of `count` blocked requests.
async fn each(server: &Server, side: Side, count: usize) -> Result<f64> {
    let (mut requests, mut lease) = (Requests::default(), Lease::default());
    // The first request also pays for what the server sets up only once.
    let mut holder = Connection::open(server.place()).await?;
    let held = holder.call(requests.acquire(KEY, Wait::No, 200)).await?;
    lease.read(server.explain(held.ok())?.body)?;
    server.settle(REST_MAX).await?;
    let before = server.memory()?;

    let request = match side {
        Side::Floor => requests.hold(KEY, WAIT).to_vec(),
        Side::Lockd => requests.acquire(KEY, WAIT, 200).to_vec(),
    };
    let mut waiting = Vec::with_capacity(count);
    for _ in 0..count {
        let mut waiter = Connection::open(server.place()).await?;
        waiter.send(&request).await?;
        waiting.push(waiter);
    }
    server.settle(REST_MAX).await?;
    let grown = server.memory()?.saturating_sub(before);
    for waiter in &mut waiting {
        if !waiter.is_silent() {
            waiter.receive().await?.ok().context("a waiter was refused")?;
            ensure!(false, "a waiter was let through");
        }
    }
    let (grown, count) = (grown as f64, count as f64);
    Ok(grown / count)
}
