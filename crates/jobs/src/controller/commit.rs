//! The one place where a leader changes something: the ledger first, then memory, then whoever
//! listens. What has begun to be written is finished, whether or not anybody waits for it.
//!
//! An outcome can be unknown. Then the same write is repeated until it is known, and nothing else
//! is decided about that thing before.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::agents::agent_id;
use super::office::Office;
use super::refusal::Refusal;
use super::take;
use super::turn::Turn;
use crate::agent::Agent;
use crate::job::Job;
use crate::ledger::{Kind, LedgerFault, Record, Written};

/// Pauses between two tries of a write: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What is to be kept of the thing whose turn it is.
#[derive(Debug)]
pub(crate) enum Change {
    Job(Box<Job>),
    Agent(Agent),
    /// Nothing any more.
    Forget,
}

/// As it is sent.
enum Sent {
    Record(Record),
    Removal,
}

impl Sent {
    fn bytes(&self) -> usize {
        match self {
            Self::Record(record) => record.body.len(),
            Self::Removal => 0,
        }
    }
}

impl Change {
    fn sent(&self, turn: &Turn) -> Result<Sent, serde_json::Error> {
        let (version, body) = match self {
            Self::Job(job) => (job.version, serde_json::to_string(job)?),
            Self::Agent(agent) => (agent.version, serde_json::to_string(agent)?),
            Self::Forget => return Ok(Sent::Removal),
        };
        Ok(Sent::Record(Record { kind: turn.kind, id: turn.id.clone(), version, body }))
    }
}

impl Office {
    /// Keeps a change, and acts upon it once it is kept.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        turn: Turn,
        change: Change,
    ) -> Result<(), Refusal> {
        if !self.is_held() {
            return Err(Refusal::NotLeader);
        }
        let sent = match change.sent(&turn) {
            Ok(sent) => sent,
            Err(error) => {
                tracing::error!(%error, id = %turn.id, "cannot be written as JSON");
                return Err(Refusal::Unavailable);
            }
        };
        let (tell, told) = oneshot::channel();
        let writing = Writing { office: Arc::clone(self), turn, change, sent, tell: Some(tell) };
        self.tasks.spawn(writing.run());
        told.await.unwrap_or(Err(Refusal::Unknown))
    }
}

struct Writing {
    office: Arc<Office>,
    turn: Turn,
    change: Change,
    sent: Sent,
    tell: Option<oneshot::Sender<Result<(), Refusal>>>,
}

impl Writing {
    async fn run(mut self) {
        let office = Arc::clone(&self.office);
        let (mut pause, mut in_doubt) = (PAUSE_MIN, false);
        let mut place = None;
        loop {
            let sent = self.send().await;
            drop(place.take());
            match sent {
                Ok(Written::Done) => return self.done(),
                Ok(Written::Stale(seen)) => return self.fenced(seen),
                Ok(Written::Superseded) => {
                    tracing::error!(id = %self.turn.id, "the store has another version; read again");
                    self.read_again().await;
                    return self.told(Err(Refusal::Unavailable));
                }
                // What was sent before may have arrived: then this says nothing.
                Err(LedgerFault::Refused(why)) if !in_doubt => {
                    tracing::error!(%why, id = %self.turn.id, "the store refuses a write");
                    return self.told(Err(Refusal::Unavailable));
                }
                Err(LedgerFault::Unavailable(why) | LedgerFault::Refused(why)) => {
                    if !in_doubt {
                        in_doubt = true;
                        tracing::warn!(%why, id = %self.turn.id, "a write is in doubt");
                        self.turn.is_in_doubt();
                        if let Some(tell) = self.tell.take() {
                            let _nobody_waits = tell.send(Err(Refusal::Unknown)).is_err();
                        }
                    }
                }
            }
            let again = async {
                office.time.sleep(pause).await;
                // Repeated writes of many things do not all come at once.
                office.repeats.acquire().await.ok()
            };
            // What waits to be sent again is not sent for an office that is over.
            place = tokio::select! {
                biased;
                () = office.over.cancelled() => return,
                place = again => place,
            };
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn send(&self) -> Result<Written, LedgerFault> {
        let (ledger, epoch) = (&self.office.ledger, self.office.epoch);
        match &self.sent {
            Sent::Record(record) => ledger.write(epoch, record).await,
            Sent::Removal => ledger.remove(epoch, self.turn.kind, &self.turn.id).await,
        }
    }

    /// The store knows another leader.
    fn fenced(self, seen: Option<u64>) {
        let epoch = self.office.epoch;
        tracing::warn!(epoch, store_epoch = seen, "the store knows another leader");
        self.office.fence(seen);
        // Only a later one is named: under the same epoch the attempt would seem to be over.
        let later = seen.filter(|seen| *seen > epoch);
        self.told(Err(Refusal::stale(later, "the store knows another leader")));
    }

    /// It is kept: memory follows, then whoever listens hears of it, and last whoever asked.
    fn done(mut self) {
        let (office, now) = (Arc::clone(&self.office), self.office.time.now());
        match std::mem::replace(&mut self.change, Change::Forget) {
            Change::Job(job) => {
                let event = super::events::of_job(&job);
                let shows = office.is_news(&job);
                office.desk.lock().put(*job, self.sent.bytes(), now);
                if shows {
                    office.events.tell(office.epoch, "job", &event);
                }
            }
            Change::Agent(agent) => {
                let event = super::events::of_agent(&agent);
                if office.put_agent(agent, now) {
                    office.events.tell(office.epoch, "agent", &event);
                }
            }
            Change::Forget => match self.turn.kind {
                Kind::Job => office.desk.lock().forget(&self.turn.id),
                Kind::Agent => {}
            },
        }
        self.told(Ok(()));
    }

    /// The turn ends before the answer leaves, so that the next request finds it ended.
    fn told(self, outcome: Result<(), Refusal>) {
        drop(self.turn);
        if let Some(tell) = self.tell {
            let _nobody_waits = tell.send(outcome).is_err();
        }
    }

    /// What is kept is not what is remembered.
    async fn read_again(&self) {
        let (office, id) = (&self.office, &self.turn.id);
        let read = office.ledger.read(self.turn.kind, id).await;
        let mut desk = office.desk.lock();
        match (self.turn.kind, read) {
            (Kind::Job, Ok(None)) => desk.forget(id),
            (Kind::Job, Ok(Some(record))) => match take::read_job(&record) {
                Ok(job) => desk.put(job, record.body.len(), office.time.now()),
                Err(_) => desk.misread(id),
            },
            (Kind::Job, Err(_)) => desk.misread(id),
            // Whatever it says, the next write goes above it.
            (Kind::Agent, Ok(Some(record))) => {
                let mut agents = desk.agents.values_mut();
                if let Some(known) = agents.find(|known| agent_id(&known.kept.name) == *id) {
                    known.kept.version = record.version;
                }
            }
            (Kind::Agent, Ok(None) | Err(_)) => {}
        }
    }
}

impl Office {
    /// A renewal is no news.
    fn is_news(&self, job: &Job) -> bool {
        let desk = self.desk.lock();
        let before = desk.board.get(&job.id);
        before.is_none_or(|before| (before.state, before.job_epoch) != (job.state, job.job_epoch))
    }

    /// Tells whether it is news.
    fn put_agent(&self, agent: Agent, now: u64) -> bool {
        let mut desk = self.desk.lock();
        // Here, and not by whoever asked for it: that one may be gone.
        if let Some(tombstone) = &agent.tombstone {
            desk.line.dismiss(&agent.name, &tombstone.incarnation);
        }
        let Some(known) = desk.agents.get_mut(&agent.name) else { return false };
        let was = (known.kept.version == 0, &known.kept.incarnation, known.kept.is_deleted());
        let is_news = was != (false, &agent.incarnation, agent.is_deleted());
        known.written_ms = Some(now);
        known.kept = agent;
        is_news
    }
}
