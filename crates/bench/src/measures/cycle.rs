//! The durable cycle: acquire, update of 1 KiB, release, each answered after its sync. Every
//! connection has keys of its own, so that nobody waits for a lease but only for the disk.

use std::sync::Arc;

use anyhow::Result;

use crate::driver::{AnswerBytes, Cycle, Script};
use crate::measures::{Bench, Rounds, Side};
use crate::table::{Row, Target, Unit};
use crate::workload::{Keys, Order};

const LEVELS: [u64; 4] = [1, 8, 64, 256];
/// The level at which the targets hold.
const JUDGED: u64 = 64;
pub(super) const DOCUMENT_BYTES: usize = 1024;
const KEYS_PER_CONNECTION: u64 = 16;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let pair = bench.start_pair().await?;
    let sizes = AnswerBytes::learn(pair.lockd.address, pair.floor.address).await;
    let sizes = pair.lockd.explain(sizes)?;
    let mut rows = Vec::new();
    for connections in LEVELS {
        let mut rounds = Rounds::default();
        for round in 0..bench.plan.rounds {
            for side in Side::order(round) {
                pair.rest().await?;
                let label = format!("cycle, {connections} connections, round {round}, {side:?}");
                let script = |number| script(bench, number, connections, sizes);
                let log = bench.slot(&label, pair.side(side), connections, script).await?;
                rounds.push(side, log.all()?);
            }
        }
        rows.extend(rows_of(connections, &rounds)?);
    }
    Ok(rows)
}

pub(super) fn script(bench: &Bench, number: u64, connections: u64, sizes: AnswerBytes) -> Script {
    let total = connections * KEYS_PER_CONNECTION;
    let keys = Keys::share(number, connections, total, Order::Turn);
    Script::Cycle(Cycle::new(keys, Arc::clone(&bench.documents), DOCUMENT_BYTES, sizes))
}

fn rows_of(connections: u64, rounds: &Rounds) -> Result<[Row; 2]> {
    let is_judged = connections == JUDGED;
    let when = |target| if is_judged { target } else { Target::None };
    let plural = if connections == 1 { "" } else { "s" };
    let name = format!("durable cycle, {connections} connection{plural}");
    Ok([
        rounds.row(
            format!("{name}: requests"),
            Unit::PerSecond,
            |figures| figures.per_second,
            when(Target::RatioAtLeast(0.6)),
        )?,
        rounds.row(
            format!("{name}: p99"),
            Unit::Seconds,
            |figures| figures.p99,
            when(Target::RatioAtMost(3.0)),
        )?,
    ])
}
