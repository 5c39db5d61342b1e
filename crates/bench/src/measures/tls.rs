//! What mutual TLS costs on connections that stay open: cycles and reads as in the other measures,
//! on lockd with and without it. The driver encrypts as much as the server does, and on the same
//! processors. Here a plain lockd takes the part of the floor.

use anyhow::Result;

use crate::child::{Security, Server};
use crate::driver::{AnswerBytes, Read, Script};
use crate::measures::cycle::{self, DOCUMENT_BYTES};
use crate::measures::fill::fill;
use crate::measures::{Bench, Pair, Rounds, Side};
use crate::table::{Row, Target, Unit};
use crate::workload::{Keys, Order};

const CONNECTIONS: u64 = 64;
const READ_KEYS: u64 = 1024;
const RATIO_MIN: f64 = 0.65;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let plain = bench.start_lockd().await?;
    let secure = Server::lockd(&bench.lockd, &bench.base, Security::Mtls).await?;
    for server in [&plain, &secure] {
        fill(server, &bench.documents, 0..READ_KEYS, DOCUMENT_BYTES).await?;
    }
    let pair = Pair { floor: plain, lockd: secure };
    let cycle = |number| cycle::script(bench, number, CONNECTIONS, AnswerBytes::TYPICAL);
    let read = |number| {
        let keys = Keys::share(number, CONNECTIONS, READ_KEYS, Order::Random);
        Script::Read(Read::new(keys, DOCUMENT_BYTES))
    };
    Ok(vec![
        row(bench, &pair, "durable cycle", cycle).await?,
        row(bench, &pair, "public read of 1 KiB", read).await?,
    ])
}

async fn row(
    bench: &Bench,
    pair: &Pair,
    what: &str,
    script: impl Fn(u64) -> Script + Copy,
) -> Result<Row> {
    let mut rounds = Rounds::default();
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            pair.rest().await?;
            let way = if side == Side::Lockd { "mutual TLS" } else { "plain" };
            let label = format!("{what} over {way}, round {round}");
            let log = bench.slot(&label, pair.side(side), CONNECTIONS, script).await?;
            rounds.push(side, log.all()?);
        }
    }
    rounds.row(
        format!("{what}, {CONNECTIONS} connections, mutual TLS by plain: requests"),
        Unit::PerSecond,
        |figures| figures.per_second,
        Target::RatioAtLeast(RATIO_MIN),
    )
}
