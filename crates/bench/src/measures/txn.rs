//! What transactions over several keys cost: transactions of two keys beside cycles on one, and the
//! release that decides over ten keys beside the release of one.

use anyhow::{Context as _, Result};

use crate::child::Server;
use crate::driver::{AnswerBytes, Script, Txn};
use crate::latency::{Figures, Kind};
use crate::measures::cycle::{self, DOCUMENT_BYTES};
use crate::measures::{Bench, REST_MAX};
use crate::table::{Found, Row, Target, Unit};
use crate::workload::{Keys, Order};

const CONNECTIONS: u64 = 64;
/// Keys of one connection: more than the largest transaction has.
const KEYS_PER_CONNECTION: u64 = 20;
const FEW: usize = 2;
const MANY: usize = 10;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let server = bench.start_lockd().await?;
    let (mut cycles, mut txns) = (Vec::new(), Vec::new());
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        let alone = run(bench, &server, round, CONNECTIONS, 1).await?;
        let few = run(bench, &server, round, CONNECTIONS, FEW).await?;
        cycles.push(alone.per_second);
        txns.push(few.per_second);
        one.push(run(bench, &server, round, 1, 1).await?.median);
        many.push(run(bench, &server, round, 1, MANY).await?.median);
    }
    Ok(vec![
        Row::new(
            format!("transactions of {FEW} keys, {CONNECTIONS} connections, by cycles on one"),
            Unit::PerSecond,
            Found::beside(&txns, &cycles).context("no rounds")?,
            Target::RatioAtLeast(0.45),
        ),
        Row::new(
            format!("release that decides over {MANY} keys: median, by the release of one"),
            Unit::Seconds,
            Found::beside(&many, &one).context("no rounds")?,
            Target::RatioAtMost(4.0),
        ),
    ])
}

/// Releases: each ends a transaction of so many keys.
async fn run(
    bench: &Bench,
    server: &Server,
    round: usize,
    connections: u64,
    keys: usize,
) -> Result<Figures> {
    server.settle(REST_MAX).await?;
    let label = format!("transactions of {keys}, {connections} connections, round {round}");
    let script = |number| {
        if keys == 1 {
            return cycle::script(bench, number, connections, AnswerBytes::TYPICAL);
        }
        let total = connections * KEYS_PER_CONNECTION;
        let share = Keys::share(number, connections, total, Order::Turn);
        Script::Txn(Txn::new(share, keys, &bench.documents, DOCUMENT_BYTES))
    };
    Ok(bench.slot(&label, server, connections, script).await?.of(Kind::Release))
}
