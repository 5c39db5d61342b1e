//! Large documents: an update of one is sent as it is read from memory, against a floor that
//! streams the same body into a file and syncs it. The validator and compactor is also measured
//! alone, in this process and on one core, since it bounds what an update can reach.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use lockd_json::{Compactor, Limits};

use crate::child::Server;
use crate::client::Connection;
use crate::latency::median;
use crate::measures::{Bench, Side};
use crate::request::{Lease, Requests, Wait};
use crate::table::{Found, Row, Target, Unit};

const KEY: &str = "bench/large";
/// Uploads that count in each round; one before them does not.
const UPLOADS: usize = 5;
/// About what a socket gives at once.
const CHUNK_BYTES: usize = 16 * 1024;

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let document = bench.documents.large(bench.plan.large_bytes);
    let pair = bench.start_pair().await?;
    let (mut floor, mut lockd, mut compacted) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        for side in Side::order(round) {
            pair.rest().await?;
            let server = pair.side(side);
            let rate = server.explain(uploads(server, side, &document).await)?;
            eprintln!("  large, round {round}, {side:?}: {rate:.0} MB/s");
            match side {
                Side::Floor => floor.push(rate),
                Side::Lockd => lockd.push(rate),
            }
        }
        let rate = tokio::task::block_in_place(|| compact(&document))?;
        eprintln!("  large, round {round}, compactor alone: {rate:.0} MB/s");
        compacted.push(rate);
    }
    let size = format!("{} MB of JSON", document.len() / 1_000_000);
    Ok(vec![
        Row::new(
            format!("validate and compact {size}, one core"),
            Unit::MegabytesPerSecond,
            Found::alone(&compacted).context("no rounds")?,
            Target::AtLeast(350.0),
        ),
        Row::new(
            format!("update of {size}"),
            Unit::MegabytesPerSecond,
            Found::paired(&floor, &lockd).context("no rounds")?,
            Target::RatioAtLeast(0.5),
        ),
    ])
}

/// The rate of the compactor alone, in MB per second.
fn compact(document: &[u8]) -> Result<f64> {
    let mut rates = Vec::new();
    let mut out = Vec::with_capacity(2 * CHUNK_BYTES);
    for _ in 0..UPLOADS {
        let mut compactor = Compactor::new(Limits::default());
        let start = Instant::now();
        for chunk in document.chunks(CHUNK_BYTES) {
            out.clear();
            compactor.push(chunk, &mut out)?;
        }
        compactor.finish(&mut out)?;
        rates.push(megabytes(document.len()) / start.elapsed().as_secs_f64());
        ensure!(u64::try_from(document.len()) == Ok(compactor.bytes_out()), "bytes were lost");
    }
    median(&rates).context("no documents")
}

/// The median rate of some uploads, in MB per second.
async fn uploads(server: &Server, side: Side, document: &[u8]) -> Result<f64> {
    let mut connection = Connection::open(server.place()).await?;
    let (mut requests, mut lease) = (Requests::default(), Lease::default());
    let mut rates = Vec::new();
    for upload in 0..=UPLOADS {
        lease.read(connection.call(requests.acquire(KEY, Wait::No, 200)).await?.ok()?.body)?;
        let target = match side {
            Side::Floor => "/stream".to_owned(),
            Side::Lockd => format!("/v1/update?key={KEY}"),
        };
        let start = Instant::now();
        let head = requests.upload(&target, &lease, document.len());
        connection.upload(head, document).await?.ok().context("update")?;
        let seconds = start.elapsed().as_secs_f64();
        connection.call(requests.release(KEY, &lease, 40)).await?.ok().context("release")?;
        if upload > 0 {
            rates.push(megabytes(document.len()) / seconds);
        }
    }
    median(&rates).context("no uploads")
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
