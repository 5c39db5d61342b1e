//! Runs a load: a number of connections, one task and one script for each, all for the same window
//! of time. Any answer that the script does not expect ends the load as an error, so that a fast
//! refusal is never taken for a fast server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::client::{Answer, Connection, Place};
use crate::latency::{Kind, Log, Window};
use crate::request::{Delivered, Lease, Requests, Then, Wait};
use crate::workload::{Documents, Keys, write_key};

/// How long answers may still be outstanding after the window has closed.
const GRACE: Duration = Duration::from_secs(30);

/// How long a producer waits for room before it looks whether the load is over.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) place: Place,
    pub(crate) connections: u64,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

/// What one connection does again and again.
#[derive(Debug)]
pub(crate) enum Script {
    Cycle(Cycle),
    Txn(Txn),
    Read(Read),
    Produce(Produce),
    Consume(Consume),
}

/// Runs the script that `script` gives to each connection, and adds up what they saw.
pub(crate) async fn drive(load: Load, script: impl Fn(u64) -> Script) -> Result<Log> {
    let mut ready = Vec::new();
    for number in 0..load.connections {
        ready.push((Connection::open(load.place.clone()).await?, script(number)));
    }
    let window = Window::after(load.warm_up, load.length);
    let mut tasks = JoinSet::new();
    for (connection, script) in ready {
        tasks.spawn(repeat(connection, script, window));
    }
    let end = tokio::time::Instant::from_std(window.until) + GRACE;
    tokio::time::timeout_at(end, async {
        let mut sum = Log::new(window)?;
        while let Some(log) = tasks.join_next().await {
            sum.add(&log??)?;
        }
        Ok(sum)
    })
    .await
    .context("the load did not end")?
}

async fn repeat(mut connection: Connection, mut script: Script, window: Window) -> Result<Log> {
    let mut log = Log::new(window)?;
    while Instant::now() < window.until {
        match &mut script {
            Script::Cycle(cycle) => cycle.step(&mut connection, &mut log).await?,
            Script::Txn(txn) => txn.step(&mut connection, &mut log).await?,
            Script::Read(read) => read.step(&mut connection, &mut log).await?,
            Script::Produce(produce) => produce.step(&mut connection, &mut log).await?,
            Script::Consume(consume) => consume.step(&mut connection, &mut log).await?,
        }
    }
    Ok(log)
}

/// Bytes that the floor answers to each request, for answers as long as lockd's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnswerBytes {
    pub(crate) acquire: usize,
    pub(crate) update: usize,
    pub(crate) release: usize,
}

impl AnswerBytes {
    /// Sizes to start with, until lockd's own answers have been seen.
    pub(crate) const TYPICAL: Self = Self { acquire: 330, update: 180, release: 40 };

    /// Bodies that make the floor's whole answers as long as lockd's, by one cycle on each.
    pub(crate) async fn learn(lockd: SocketAddr, floor: SocketAddr) -> Result<Self> {
        let wanted = wire_bytes(lockd).await.context("one cycle on lockd")?;
        let typical = wire_bytes(floor).await.context("one cycle on the floor")?;
        let fit = |body: usize, wanted: usize, typical: usize| {
            (body + wanted).saturating_sub(typical).clamp(1, 4096)
        };
        Ok(Self {
            // The lease must fit in.
            acquire: fit(Self::TYPICAL.acquire, wanted.acquire, typical.acquire).max(128),
            update: fit(Self::TYPICAL.update, wanted.update, typical.update),
            release: fit(Self::TYPICAL.release, wanted.release, typical.release),
        })
    }
}

/// Sizes of the whole answers to one cycle.
async fn wire_bytes(address: SocketAddr) -> Result<AnswerBytes> {
    let mut connection = Connection::open(address).await?;
    let mut requests = Requests::default();
    let mut lease = Lease::default();
    let key = "bench/calibrate";
    let sizes = AnswerBytes::TYPICAL;
    let answer = connection.call(requests.acquire(key, Wait::No, sizes.acquire)).await?.ok()?;
    let acquire = answer.wire_bytes;
    lease.read(answer.body)?;
    let mut document = Vec::new();
    Documents::new().write(1, 1024, &mut document);
    let update = requests.update(key, &lease, Then::Stage, &document, sizes.update);
    let update = connection.call(update).await?.ok()?.wire_bytes;
    let release = requests.release(key, &lease, sizes.release);
    let release = connection.call(release).await?.ok()?.wire_bytes;
    Ok(AnswerBytes { acquire, update, release })
}

/// Acquire, update, release.
#[derive(Debug)]
pub(crate) struct Cycle {
    keys: Keys,
    documents: Arc<Documents>,
    document_bytes: usize,
    sizes: AnswerBytes,
    requests: Requests,
    lease: Lease,
    key: String,
    document: Vec<u8>,
    steps: u64,
}

impl Cycle {
    pub(crate) fn new(
        keys: Keys,
        documents: Arc<Documents>,
        document_bytes: usize,
        sizes: AnswerBytes,
    ) -> Self {
        Self {
            keys,
            documents,
            document_bytes,
            sizes,
            requests: Requests::default(),
            lease: Lease::default(),
            key: String::new(),
            document: Vec::new(),
            steps: 0,
        }
    }

    async fn step(&mut self, connection: &mut Connection, log: &mut Log) -> Result<()> {
        let id = self.keys.next();
        self.steps += 1;
        write_key(id, &mut self.key);
        self.documents.write(id ^ (self.steps << 32), self.document_bytes, &mut self.document);

        let start = Instant::now();
        let request = self.requests.acquire(&self.key, Wait::No, self.sizes.acquire);
        let answer = connection.call(request).await.and_then(Answer::ok).context("acquire")?;
        let start = log.note(Kind::Acquire, start);
        self.lease.read(answer.body)?;

        let (sizes, document) = (self.sizes, &self.document);
        let request =
            self.requests.update(&self.key, &self.lease, Then::Stage, document, sizes.update);
        connection.call(request).await.and_then(Answer::ok).context("update")?;
        let start = log.note(Kind::Update, start);

        let request = self.requests.release(&self.key, &self.lease, sizes.release);
        connection.call(request).await.and_then(Answer::ok).context("release")?;
        log.note(Kind::Release, start);
        Ok(())
    }
}

/// Several keys in one transaction: acquire and update each, release one.
#[derive(Debug)]
pub(crate) struct Txn {
    keys: Keys,
    leases: Vec<(String, Lease)>,
    document: Vec<u8>,
    requests: Requests,
}

impl Txn {
    pub(crate) fn new(keys: Keys, count: usize, documents: &Documents, bytes: usize) -> Self {
        let leases = vec![(String::new(), Lease::default()); count];
        let mut document = Vec::new();
        documents.write(1, bytes, &mut document);
        Self { keys, leases, document, requests: Requests::default() }
    }

    async fn step(&mut self, connection: &mut Connection, log: &mut Log) -> Result<()> {
        let mut start = Instant::now();
        let mut txn = String::new();
        for (key, lease) in &mut self.leases {
            write_key(self.keys.next(), key);
            let request = match txn.as_str() {
                "" => self.requests.acquire(key, Wait::No, 0),
                txn => self.requests.join(key, txn),
            };
            let answer = connection.call(request).await.and_then(Answer::ok).context("acquire")?;
            start = log.note(Kind::Acquire, start);
            lease.read(answer.body)?;
            txn.clone_from(&lease.txn);
        }
        for (key, lease) in &self.leases {
            let request = self.requests.update(key, lease, Then::Stage, &self.document, 0);
            connection.call(request).await.and_then(Answer::ok).context("update")?;
            start = log.note(Kind::Update, start);
        }
        if let Some((key, lease)) = self.leases.first() {
            let request = self.requests.release(key, lease, 0);
            connection.call(request).await.and_then(Answer::ok).context("release")?;
            log.note(Kind::Release, start);
        }
        Ok(())
    }
}

/// Public reads.
#[derive(Debug)]
pub(crate) struct Read {
    keys: Keys,
    document_bytes: usize,
    requests: Requests,
    key: String,
}

impl Read {
    pub(crate) fn new(keys: Keys, document_bytes: usize) -> Self {
        Self { keys, document_bytes, requests: Requests::default(), key: String::new() }
    }

    async fn step(&mut self, connection: &mut Connection, log: &mut Log) -> Result<()> {
        write_key(self.keys.next(), &mut self.key);
        let start = Instant::now();
        let answer = connection.call(self.requests.read(&self.key)).await?;
        log.note(Kind::Read, start);
        let answer = answer.ok().with_context(|| format!("read of {}", self.key))?;
        anyhow::ensure!(
            answer.body.len() == self.document_bytes,
            "{} has {} bytes instead of {}",
            self.key,
            answer.body.len(),
            self.document_bytes
        );
        Ok(())
    }
}

/// Room in a queue for so many messages: producers that are ahead wait for consumers, so that what
/// is measured could go on for ever.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Semaphore>);

impl Room {
    pub(crate) fn new(messages: usize) -> Self {
        Self(Arc::new(Semaphore::new(messages)))
    }
}

/// Messages into a queue.
#[derive(Debug)]
pub(crate) struct Produce {
    queue: String,
    payload: Vec<u8>,
    room: Room,
    requests: Requests,
}

impl Produce {
    pub(crate) fn new(queue: &str, documents: &Documents, bytes: usize, room: &Room) -> Self {
        let mut payload = Vec::new();
        documents.write(1, bytes, &mut payload);
        let (queue, room) = (queue.to_owned(), room.clone());
        Self { queue, payload, room, requests: Requests::default() }
    }

    pub(crate) async fn step(&mut self, connection: &mut Connection, log: &mut Log) -> Result<()> {
        match tokio::time::timeout(PATIENCE, self.room.0.acquire()).await {
            Ok(permit) => permit.context("room")?.forget(),
            // No message went: the consumers have ended.
            Err(_) => return Ok(()),
        }
        let start = Instant::now();
        let request = self.requests.enqueue(&self.queue, &self.payload, 300);
        connection.call(request).await.and_then(Answer::ok).context("enqueue")?;
        log.note(Kind::Enqueue, start);
        Ok(())
    }
}

/// Messages out of a queue, so many at a time, each acknowledged.
#[derive(Debug)]
pub(crate) struct Consume {
    queue: String,
    at_once: usize,
    room: Room,
    requests: Requests,
}

impl Consume {
    pub(crate) fn new(queue: &str, at_once: usize, room: &Room) -> Self {
        let (queue, room) = (queue.to_owned(), room.clone());
        Self { queue, at_once, room, requests: Requests::default() }
    }

    async fn step(&mut self, connection: &mut Connection, log: &mut Log) -> Result<()> {
        let start = Instant::now();
        let request = self.requests.dequeue(&self.queue, self.at_once);
        let answer = connection.call(request).await.context("dequeue")?;
        if answer.status == 409 {
            // Nothing came: the producers have ended.
            return Ok(());
        }
        let messages = Delivered::all(answer.ok().context("dequeue")?.body)?;
        let count = messages.len() as u64;
        let start = log.note_several(Kind::Dequeue, start, count);
        let request = self.requests.ack(&self.queue, &messages);
        let answer = connection.call(request).await.and_then(Answer::ok).context("ack")?;
        anyhow::ensure!(answer.body.starts_with(b"{\"acked\":true"), "not acknowledged");
        log.note_several(Kind::Ack, start, count);
        self.room.0.add_permits(messages.len());
        Ok(())
    }
}
