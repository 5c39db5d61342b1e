//! Two builds of lockd under the same load, in turns: what a change costs. The older build takes
//! the place of the floor. Processor and disk are those of one run, so only the ratio counts.

use anyhow::{Context as _, Result};

use crate::driver::{AnswerBytes, Read, Script};
use crate::measures::cycle::{self, DOCUMENT_BYTES};
use crate::measures::fill::fill;
use crate::measures::{Bench, Pair, Rounds, Side, handoff, queue};
use crate::table::{Found, Row, Target, Unit};
use crate::workload::{Keys, Order};

const CONNECTIONS: u64 = 64;
const READ_KEYS: u64 = 1024;
/// A change may cost this much of the older build's throughput.
const RATIO_MIN: f64 = 0.97;

pub(super) async fn measure(bench: &Bench, older: &std::path::Path) -> Result<Vec<Row>> {
    let pair = Pair { floor: bench.start(older).await?, lockd: bench.start_lockd().await? };
    for server in [&pair.floor, &pair.lockd] {
        fill(server, &bench.documents, 0..READ_KEYS, DOCUMENT_BYTES).await?;
    }
    let cycle = |number| cycle::script(bench, number, CONNECTIONS, AnswerBytes::TYPICAL);
    let read = |number| {
        let keys = Keys::share(number, CONNECTIONS, READ_KEYS, Order::Random);
        Script::Read(Read::new(keys, DOCUMENT_BYTES))
    };
    Ok(vec![
        load(bench, &pair, "durable cycle", cycle).await?,
        load(bench, &pair, "public read of 1 KiB", read).await?,
        messages(bench, &pair).await?,
        hand_offs(bench, &pair).await?,
    ])
}

async fn load(
    bench: &Bench,
    pair: &Pair,
    what: &str,
    script: impl Fn(u64) -> Script + Copy,
) -> Result<Row> {
    let mut rounds = Rounds::default();
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            pair.rest().await?;
            let label = format!("{what}, round {round}, {}", name(side));
            let log = bench.slot(&label, pair.side(side), CONNECTIONS, script).await?;
            rounds.push(side, log.all()?);
        }
    }
    rounds.row(
        format!("{what}, {CONNECTIONS} connections: requests"),
        Unit::PerSecond,
        |figures| figures.per_second,
        Target::RatioAtLeast(RATIO_MIN),
    )
}

async fn messages(bench: &Bench, pair: &Pair) -> Result<Row> {
    let [mut older, mut newer] = [Vec::new(), Vec::new()];
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            pair.rest().await?;
            let rate = queue::messages(bench, pair.side(side), round, 1).await?;
            match side {
                Side::Floor => older.push(rate),
                Side::Lockd => newer.push(rate),
            }
        }
    }
    let found = Found::paired(&older, &newer).context("no rounds")?;
    let what = "queue, 8 producers, 8 consumers: messages";
    Ok(Row::new(what, Unit::PerSecond, found, Target::RatioAtLeast(RATIO_MIN)))
}

/// Hand-offs in a second: the reciprocal of their time, so that more is better here too.
async fn hand_offs(bench: &Bench, pair: &Pair) -> Result<Row> {
    let mut rounds = Rounds::default();
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            pair.rest().await?;
            let key = format!("versions-{round}");
            let server = pair.side(side);
            let found =
                server.explain(handoff::hand_round(bench, server, &key, handoff::FEW).await)?;
            eprintln!("  hand-off, round {round}, {}: {:.0} /s", name(side), found.per_second);
            rounds.push(side, found);
        }
    }
    rounds.row(
        format!("hand-off, {} waiters: hand-offs", handoff::FEW),
        Unit::PerSecond,
        |figures| figures.per_second,
        Target::RatioAtLeast(RATIO_MIN),
    )
}

fn name(side: Side) -> &'static str {
    match side {
        Side::Floor => "older",
        Side::Lockd => "newer",
    }
}
