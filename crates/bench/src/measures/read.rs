//! Public reads of 1 KiB, against a bare server that answers the same requests with 1 KiB that
//! never changes.

use anyhow::Result;

use crate::driver::{Read, Script};
use crate::measures::cycle::DOCUMENT_BYTES;
use crate::measures::fill::fill;
use crate::measures::{Bench, Rounds, Side};
use crate::table::{Row, Target, Unit};
use crate::workload::{Keys, Order};

const CONNECTIONS: u64 = 64;
const KEYS: u64 = 1024;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let pair = bench.start_pair().await?;
    fill(&pair.lockd, &bench.documents, 0..KEYS, DOCUMENT_BYTES).await?;
    let mut rounds = Rounds::default();
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            pair.rest().await?;
            let label = format!("read, {CONNECTIONS} connections, round {round}, {side:?}");
            let script = |number| {
                let keys = Keys::share(number, CONNECTIONS, KEYS, Order::Random);
                Script::Read(Read::new(keys, DOCUMENT_BYTES))
            };
            let log = bench.slot(&label, pair.side(side), CONNECTIONS, script).await?;
            rounds.push(side, log.all()?);
        }
    }
    let name = format!("public read of 1 KiB, {CONNECTIONS} connections");
    Ok(vec![
        rounds.row(
            format!("{name}: requests (wish 0.75)"),
            Unit::PerSecond,
            |figures| figures.per_second,
            Target::RatioAtLeast(0.65),
        )?,
        rounds.row(format!("{name}: p99"), Unit::Seconds, |figures| figures.p99, Target::None)?,
    ])
}
