//! Cycle and read with few and with many existing keys, drawn at random, on stores at rest. Each
//! number of keys has a store and a server of its own, so that they can take turns round by round
//! and a machine that changes its speed meanwhile changes it for all of them.

use std::sync::Arc;

use anyhow::{Context as _, Result};

use crate::child::Server;
use crate::driver::{AnswerBytes, Cycle, Read, Script};
use crate::measures::fill::fill;
use crate::measures::{Bench, REST_MAX};
use crate::table::{Found, Row, Target, Unit};
use crate::workload::{Keys, Order};

pub(super) const DOCUMENT_BYTES: usize = 256;
pub(super) const CONNECTIONS: u64 = 64;
const SETTLE_MAX: std::time::Duration = std::time::Duration::from_secs(30);

/// A store with so many keys, and what it did in each round.
struct Store {
    keys: u64,
    server: Server,
    cycles: Vec<f64>,
    reads: Vec<f64>,
}

/// Leaves the server with the most keys to the next measure.
pub(super) async fn measure(bench: &Bench, largest: &mut Option<Server>) -> Result<Vec<Row>> {
    let mut stores = Vec::new();
    for keys in bench.plan.key_counts.iter().copied() {
        let server = filled(bench, keys).await?;
        stores.push(Store { keys, server, cycles: Vec::new(), reads: Vec::new() });
    }
    for round in 0..bench.plan.rounds {
        // Whoever went first goes last in the next round.
        let count = stores.len().max(1);
        for turn in 0..count {
            if let Some(store) = stores.get_mut((round + turn) % count) {
                slots(bench, store, round).await?;
            }
        }
    }
    let rows = rows_of(&stores)?;
    *largest = stores.pop().map(|store| store.server);
    Ok(rows)
}

/// A server with so many keys, at rest.
pub(super) async fn filled(bench: &Bench, keys: u64) -> Result<Server> {
    let server = bench.start_lockd().await?;
    fill(&server, &bench.documents, 0..keys, DOCUMENT_BYTES).await?;
    server.settle(SETTLE_MAX).await?;
    Ok(server)
}

async fn slots(bench: &Bench, store: &mut Store, round: usize) -> Result<()> {
    let keys = store.keys;
    store.server.settle(REST_MAX).await?;
    let label = format!("read, {keys} keys, round {round}");
    let script = |number| {
        let keys = Keys::share(number, CONNECTIONS, keys, Order::Random);
        Script::Read(Read::new(keys, DOCUMENT_BYTES))
    };
    let log = bench.slot(&label, &store.server, CONNECTIONS, script).await?;
    store.reads.push(log.all()?.per_second);

    let label = format!("cycle, {keys} keys, round {round}");
    let log = bench.slot(&label, &store.server, CONNECTIONS, cycle(bench, keys)).await?;
    store.cycles.push(log.all()?.per_second);
    // What the cycles left to do is not paid by the store that comes next.
    store.server.settle(SETTLE_MAX).await
}

/// Cycles on keys drawn at random that leave them as large as they were.
pub(super) fn cycle(bench: &Bench, keys: u64) -> impl Fn(u64) -> Script + use<> {
    let documents = Arc::clone(&bench.documents);
    move |number| {
        let keys = Keys::share(number, CONNECTIONS, keys, Order::Random);
        let documents = Arc::clone(&documents);
        Script::Cycle(Cycle::new(keys, documents, DOCUMENT_BYTES, AnswerBytes::TYPICAL))
    }
}

fn rows_of(stores: &[Store]) -> Result<Vec<Row>> {
    let cycles: Vec<_> = stores.iter().map(|store| (store.keys, store.cycles.as_slice())).collect();
    let reads: Vec<_> = stores.iter().map(|store| (store.keys, store.reads.as_slice())).collect();
    let mut rows = compare("durable cycle, 64 connections", &cycles)?;
    rows.extend(compare("public read, 64 connections", &reads)?);
    Ok(rows)
}

/// One row for each number of keys, beside the smallest, and one that judges the spread.
fn compare(name: &str, stores: &[(u64, &[f64])]) -> Result<Vec<Row>> {
    let (_, base) = stores.first().context("no stores")?;
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for (keys, rounds) in stores {
        let found = Found::beside(rounds, base).context("no rounds")?;
        all.push(found);
        let name = format!("{name}, {keys} keys of {DOCUMENT_BYTES} B");
        rows.push(Row::new(name, Unit::PerSecond, found, Target::None));
    }
    let found = spread(&all).context("no rounds")?;
    let name = format!("{name}: slowest of these by fastest");
    rows.push(Row::new(name, Unit::PerSecond, found, Target::RatioAtLeast(0.75)));
    Ok(rows)
}

/// The slowest by the fastest, each taken by its ratio to the same base, since those ratios were
/// found within one round each.
fn spread(all: &[Found]) -> Option<Found> {
    let ratio = |found: &&Found| found.ratio.unwrap_or(f64::NAN);
    let slowest = all.iter().min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let fastest = all.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let ratio = ratio(&slowest) / ratio(&fastest);
    Some(Found { floor: None, lockd: slowest.lockd, ratio: Some(ratio) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_round_of_the_machine_is_no_spread() {
        let base = [100.0, 10.0, 100.0];
        let found = |rounds: &[f64]| Found::beside(rounds, &base).unwrap();
        let all = [found(&base), found(&[95.0, 9.5, 20.0]), found(&[80.0, 8.0, 8.0])];
        let spread = spread(&all).unwrap();
        assert!((spread.ratio.unwrap() - 0.8).abs() < 1e-9, "{spread:?}");
        assert!((spread.lockd - 8.0).abs() < 1e-9, "{spread:?}");
    }

    #[test]
    fn the_base_may_itself_be_the_slowest() {
        let found = |rounds: &[f64]| Found::beside(rounds, &[50.0]).unwrap();
        let spread = spread(&[found(&[50.0]), found(&[100.0])]).unwrap();
        assert!((spread.ratio.unwrap() - 0.5).abs() < 1e-9, "{spread:?}");
    }
}
