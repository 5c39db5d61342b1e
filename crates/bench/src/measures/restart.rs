//! A server with many keys that is killed in the middle of its work: how long until it is ready
//! again, whether the keys are still there, and how much memory it has taken ten seconds later.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::child::Server;
use crate::client::Connection;
use crate::driver::{Load, drive};
use crate::measures::Bench;
use crate::measures::scale::{CONNECTIONS, DOCUMENT_BYTES, cycle, filled};
use crate::request::Requests;
use crate::table::{Found, Row, Target, Unit};
use crate::workload::{Random, write_key};

const MEMORY_AFTER: Duration = Duration::from_secs(10);
const WORK_BEFORE: Duration = Duration::from_secs(2);
const CHECKED_KEYS: usize = 200;

/// Uses the server that another measure has filled, if there is one.
pub(super) async fn measure(bench: &Bench, filled_before: Option<Server>) -> Result<Vec<Row>> {
    let keys = bench.plan.key_counts.last().copied().context("no number of keys")?;
    let mut server = match filled_before {
        Some(server) => server,
        None => filled(bench, keys).await?,
    };
    let (mut ready, mut memory) = (Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        let load = Load {
            place: server.place(),
            connections: CONNECTIONS,
            warm_up: Duration::ZERO,
            length: WORK_BEFORE * 10,
        };
        // This load never sees its end: the server dies under it.
        let work = tokio::spawn(drive(load, cycle(bench, keys)));
        tokio::time::sleep(WORK_BEFORE).await;
        server = server.kill_and_restart(&bench.lockd).await?;
        work.abort();
        ready.push(server.ready_after.as_secs_f64());
        tokio::time::sleep(MEMORY_AFTER).await;
        let bytes = server.memory()?;
        memory.push(bytes as f64);
        eprintln!(
            "  restart, {keys} keys, round {round}: ready after {:.3} s, {} MB after {} s",
            server.ready_after.as_secs_f64(),
            bytes / 1_000_000,
            MEMORY_AFTER.as_secs()
        );
        let checked = check(&server, keys, round).await;
        server.explain(checked)?;
    }
    let name = format!("restart after kill -9 with {keys} keys");
    Ok(vec![
        Row::new(
            format!("{name}: ready"),
            Unit::Seconds,
            Found::alone(&ready).context("no rounds")?,
            Target::Under(3.0),
        ),
        Row::new(
            format!("{name}: memory 10 s later"),
            Unit::Bytes,
            Found::alone(&memory).context("no rounds")?,
            Target::Under(300e6),
        ),
    ])
}

/// Some keys must have their documents: a store that is ready fast because it lost them is no use.
async fn check(server: &Server, keys: u64, round: usize) -> Result<()> {
    let mut connection = Connection::open(server.place()).await?;
    let (mut requests, mut key) = (Requests::default(), String::new());
    let mut random = Random::new(u64::try_from(round)?);
    for _ in 0..CHECKED_KEYS {
        write_key(random.below(keys), &mut key);
        let answer = connection.call(requests.read(&key)).await?;
        let answer = answer.ok().with_context(|| format!("{key} after the restart"))?;
        anyhow::ensure!(answer.body.len() == DOCUMENT_BYTES, "{key} has changed its size");
    }
    Ok(())
}
