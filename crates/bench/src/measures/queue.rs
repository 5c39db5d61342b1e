//! The queue: eight producers and eight consumers, each message enqueued, delivered and
//! acknowledged durably. Beside the floor, of whose requests each message needs three; many at a
//! time beside one at a time; and with many queues full of messages beside none.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinSet;

use crate::child::Server;
use crate::client::{Answer, Connection};
use crate::driver::{AnswerBytes, Consume, Produce, Room, Script};
use crate::latency::Kind;
use crate::measures::{Bench, REST_MAX, cycle};
use crate::process;
use crate::request::Requests;
use crate::table::{Found, Row, Target, Unit};

const PRODUCERS: u64 = 8;
const CONNECTIONS: u64 = 16;
const PAYLOAD_BYTES: usize = 1024;
const MANY: usize = 32;
/// Enough that every consumer has twice what it takes at a time.
const ROOM: usize = 512;
/// Each message is one durable request to enqueue, one to dequeue, one to acknowledge.
const REQUESTS: f64 = 3.0;
const FILLERS: u64 = 32;
const FILL_BYTES: usize = 64;
/// Long enough for every pass that a server makes beside requests at most once a minute.
const IDLE: Duration = Duration::from_secs(40);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let pair = bench.start_pair().await?;
    let (mut floor, mut single, mut many) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        pair.rest().await?;
        let label = format!("queue, round {round}, floor");
        let script = |number| cycle::script(bench, number, CONNECTIONS, AnswerBytes::TYPICAL);
        let log = bench.slot(&label, &pair.floor, CONNECTIONS, script).await?;
        floor.push(log.all()?.per_second / REQUESTS);
        single.push(messages(bench, &pair.lockd, round, 1).await?);
        many.push(messages(bench, &pair.lockd, round, MANY).await?);
    }
    let empty = pair.lockd;
    drop(pair.floor);
    let mut rows = vec![
        Row::new(
            "queue, 8 producers, 8 consumers: messages, by a third of the floor's requests",
            Unit::PerSecond,
            Found::paired(&floor, &single).context("no rounds")?,
            Target::RatioAtLeast(0.7),
        ),
        Row::new(
            format!("queue, {MANY} messages at a time, by one at a time"),
            Unit::PerSecond,
            Found::beside(&many, &single).context("no rounds")?,
            Target::RatioAtLeast(2.0),
        ),
    ];
    rows.extend(beside_many(bench, empty).await?);
    Ok(rows)
}

/// Messages through one queue while many others are full of them; what those cost when nobody asks
/// for them, and when everybody does.
async fn beside_many(bench: &Bench, empty: Server) -> Result<Vec<Row>> {
    let mut full = bench.start_lockd().await?;
    let (queues, each) = bench.plan.waiting_messages;
    fill(bench, &full, queues, each).await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds {
        alone.push(messages(bench, &empty, round, 1).await?);
        beside.push(messages(bench, &full, round, 1).await?);
    }
    drop(empty);
    let total = queues * each;
    let name = format!("{total} messages in {queues} queues");
    let mut rows = vec![Row::new(
        format!("queue, beside {name}, by none"),
        Unit::PerSecond,
        Found::beside(&beside, &alone).context("no rounds")?,
        Target::RatioAtLeast(0.75),
    )];
    full.settle(REST_MAX).await?;
    let before = process::processor_time(full.pid())?;
    tokio::time::sleep(IDLE).await;
    let idle = (process::processor_time(full.pid())? - before).as_secs_f64();
    rows.push(Row::new(
        format!("{name}: processor time while idle for {} s", IDLE.as_secs()),
        Unit::Seconds,
        Found::alone(&[idle]).context("no rounds")?,
        Target::Under(0.1),
    ));
    full = full.kill_and_restart(&bench.lockd).await?;
    full.settle(REST_MAX).await?;
    let (memory, start) = (full.memory()?, Instant::now());
    let mut connection = Connection::open(full.place()).await?;
    let mut requests = Requests::default();
    for queue in 0..queues {
        let request = requests.stats(&format!("full-{queue}"));
        let answer = connection.call(request).await.and_then(Answer::ok).context("stats")?;
        let text = String::from_utf8_lossy(answer.body);
        ensure!(text.contains(&format!("\"ready\":{each},")), "messages are missing: {text}");
    }
    let took = start.elapsed().as_secs_f64();
    let grown = full.memory()?.saturating_sub(memory) as f64 / total as f64;
    rows.push(Row::new(
        format!("{name}: asking for each queue once after a restart"),
        Unit::Seconds,
        Found::alone(&[took]).context("no rounds")?,
        Target::None,
    ));
    rows.push(Row::new(
        format!("{name}: memory for each message of a queue in use"),
        Unit::Bytes,
        Found::alone(&[grown]).context("no rounds")?,
        Target::None,
    ));
    Ok(rows)
}

/// Messages that went all the way, in a second.
pub(super) async fn messages(
    bench: &Bench,
    server: &Server,
    round: usize,
    at_once: usize,
) -> Result<f64> {
    server.settle(REST_MAX).await?;
    let queue = format!("bench-{at_once}");
    let label = format!("queue, {at_once} at a time, round {round}");
    let room = Room::new(ROOM);
    let script = |number| {
        if number < PRODUCERS {
            Script::Produce(Produce::new(&queue, &bench.documents, PAYLOAD_BYTES, &room))
        } else {
            Script::Consume(Consume::new(&queue, at_once, &room))
        }
    };
    let log = bench.slot(&label, server, CONNECTIONS, script).await?;
    Ok(log.of(Kind::Ack).per_second)
}

/// Fills queues with messages that nobody takes.
async fn fill(bench: &Bench, server: &Server, queues: u64, each: u64) -> Result<()> {
    let mut tasks = JoinSet::new();
    for filler in 0..FILLERS {
        let mut connection = Connection::open(server.place()).await?;
        let mut payload = Vec::new();
        bench.documents.write(filler, FILL_BYTES, &mut payload);
        tasks.spawn(async move {
            let mut requests = Requests::default();
            for number in (filler..queues * each).step_by(usize::try_from(FILLERS)?) {
                let queue = format!("full-{}", number % queues);
                let request = requests.enqueue(&queue, &payload, 300);
                connection.call(request).await.and_then(Answer::ok).context("enqueue")?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        server.explain(done?)?;
    }
    eprintln!("  filled: {queues} queues with {each} messages each");
    Ok(())
}
