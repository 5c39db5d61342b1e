//! What happened lately, for whoever listens. In memory, bounded; an event has the epoch of its
//! leader and a number that grows in it, and is the same on every node that relays it.
//!
//! Events say that something is different, not what all of it is: whoever was told `reset` has
//! missed some and reads again what it wants to know.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

use crate::agent::Agent;
use crate::job::Job;

/// How many events a stream is given in one go.
const BATCH: usize = 64;

/// Written `EPOCH-SEQ`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventId {
    pub(crate) epoch: u64,
    pub(crate) seq: u64,
}

impl EventId {
    /// Before all others: everything that is there.
    pub(crate) const START: Self = Self { epoch: 0, seq: 0 };

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (epoch, seq) = text.trim().split_once('-')?;
        Some(Self { epoch: epoch.parse().ok()?, seq: seq.parse().ok()? })
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.seq)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: EventId,
    pub(crate) kind: String,
    /// JSON in one line.
    pub(crate) data: String,
}

impl Event {
    fn weight(&self) -> usize {
        self.kind.len() + self.data.len() + 64
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct JobEvent {
    job_id: String,
    state: &'static str,
    job_epoch: u64,
    leader_epoch: u64,
    version: u64,
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
}

pub(crate) fn of_job(job: &Job) -> JobEvent {
    JobEvent {
        job_id: job.id.clone(),
        state: job.state.as_str(),
        job_epoch: job.job_epoch,
        leader_epoch: job.leader_epoch,
        version: job.version,
        attempts: job.attempts,
        agent: job.lease.as_ref().map(|lease| lease.taker.agent.clone()),
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct AgentEvent {
    agent: String,
    state: &'static str,
    leader_epoch: u64,
}

pub(crate) fn of_agent(agent: &Agent) -> AgentEvent {
    AgentEvent {
        agent: agent.name.clone(),
        state: if agent.is_deleted() { "deleted" } else { "active" },
        leader_epoch: agent.leader_epoch,
    }
}

/// Somebody else leads. What the one before did last may not have been told.
#[derive(Debug, Serialize)]
pub(crate) struct LeaderEvent<'a> {
    pub(crate) leader_id: &'a str,
    pub(crate) leader_epoch: u64,
}

#[derive(Debug)]
pub(crate) struct Events {
    ring: Mutex<Ring>,
    /// Grows with every change of the ring.
    changes: watch::Sender<u64>,
    events_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// How many have left it: the place of the first one.
    gone: u64,
    bytes: usize,
    latest: EventId,
    /// Grows when events were missed: whoever listens must know.
    resets: u64,
}

impl Ring {
    fn end(&self) -> u64 {
        self.gone + self.events.len() as u64
    }

    fn push(&mut self, event: Event, (events_max, bytes_max): (usize, usize)) {
        self.latest = event.id;
        self.bytes += event.weight();
        self.events.push_back(Arc::new(event));
        while self.events.len() > events_max || self.bytes > bytes_max {
            let Some(first) = self.events.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(first.weight());
            self.gone += 1;
        }
    }
}

/// Where somebody is in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    next: u64,
    resets: u64,
    /// It has missed something, and is to be told.
    missed: bool,
}

/// What somebody is told next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Events(Vec<Arc<Event>>),
    /// It has missed something.
    Reset,
    /// It was too slow: what comes next is gone.
    Overtaken,
    Nothing,
}

impl Events {
    pub(crate) fn new(events_max: usize, bytes_max: usize) -> Self {
        let changes = watch::Sender::new(0);
        Self { ring: Mutex::default(), changes, events_max, bytes_max }
    }

    /// A leader begins to tell. Its numbers begin above those that its process may have told under
    /// the same epoch before it began anew: time in microseconds is ahead of any count.
    pub(crate) fn begin(&self, epoch: u64, unix_ms: u64) {
        let mut ring = self.ring.lock();
        if epoch >= ring.latest.epoch {
            let told = if epoch == ring.latest.epoch { ring.latest.seq } else { 0 };
            ring.latest = EventId { epoch, seq: told.max(unix_ms.saturating_mul(1_000)) };
        }
    }

    /// Under an epoch; nothing once a later one has begun.
    pub(crate) fn tell<T: Serialize>(&self, epoch: u64, kind: &str, data: &T) {
        let Ok(data) = serde_json::to_string(data) else { return };
        {
            let mut ring = self.ring.lock();
            if epoch != ring.latest.epoch {
                return;
            }
            let id = EventId { epoch, seq: ring.latest.seq.saturating_add(1) };
            let event = Event { id, kind: kind.into(), data };
            ring.push(event, (self.events_max, self.bytes_max));
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// What another leader has told. What is not after the latest is known already, or too late.
    pub(crate) fn relay(&self, event: Event) {
        {
            let mut ring = self.ring.lock();
            if event.id <= ring.latest {
                return;
            }
            ring.push(event, (self.events_max, self.bytes_max));
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Some of what another leader has told was missed: nobody can resume from before this.
    pub(crate) fn reset(&self) {
        {
            let mut ring = self.ring.lock();
            ring.gone = ring.end();
            ring.events.clear();
            ring.bytes = 0;
            ring.resets += 1;
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// The latest event that is there, from which a relay goes on.
    pub(crate) fn latest(&self) -> Option<EventId> {
        self.ring.lock().events.back().map(|event| event.id)
    }

    /// After an event; without one, from now on.
    pub(crate) fn place(&self, after: Option<EventId>) -> Place {
        let ring = self.ring.lock();
        let (end, resets) = (ring.end(), ring.resets);
        match after {
            None => Place { next: end, resets, missed: false },
            Some(EventId::START) => Place { next: ring.gone, resets, missed: false },
            Some(after) => match ring.events.binary_search_by(|event| event.id.cmp(&after)) {
                Ok(at) => Place { next: ring.gone + at as u64 + 1, resets, missed: false },
                Err(_) => Place { next: end, resets, missed: true },
            },
        }
    }

    pub(crate) fn next(&self, place: &mut Place) -> Next {
        let ring = self.ring.lock();
        if place.missed || place.resets != ring.resets {
            let next = if place.missed { place.next } else { ring.gone };
            *place = Place { next, resets: ring.resets, missed: false };
            return Next::Reset;
        }
        let Some(skip) = place.next.checked_sub(ring.gone) else { return Next::Overtaken };
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let events: Vec<_> = ring.events.iter().skip(skip).take(BATCH).cloned().collect();
        if events.is_empty() {
            return Next::Nothing;
        }
        place.next += events.len() as u64;
        Next::Events(events)
    }

    /// Hears of changes from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Events {
        Events::new(3, 10_000)
    }

    fn told(events: &Events, place: &mut Place) -> Vec<String> {
        match events.next(place) {
            Next::Events(events) => {
                events.iter().map(|event| format!("{} {}", event.id, event.data)).collect()
            }
            other @ (Next::Reset | Next::Overtaken | Next::Nothing) => vec![format!("{other:?}")],
        }
    }

    fn relayed(epoch: u64, seq: u64) -> Event {
        Event { id: EventId { epoch, seq }, kind: "job".into(), data: "0".into() }
    }

    #[test]
    fn whoever_comes_back_goes_on_after_what_it_has_seen() {
        let events = events();
        events.begin(4, 0);
        for number in 1..=3 {
            events.tell(4, "job", &number);
        }
        let mut place = events.place(EventId::parse("4-1"));
        assert_eq!(told(&events, &mut place), ["4-2 2", "4-3 3"]);
        assert_eq!(events.next(&mut place), Next::Nothing);
        events.tell(4, "job", &4);
        assert_eq!(told(&events, &mut place), ["4-4 4"]);
        assert_eq!(events.next(&mut events.place(None)), Next::Nothing, "from now on");
        let mut all = events.place(Some(EventId::START));
        assert_eq!(told(&events, &mut all), ["4-2 2", "4-3 3", "4-4 4"]);
    }

    #[test]
    fn what_cannot_be_resumed_is_told_first() {
        let events = events();
        events.begin(4, 0);
        (1..=5).for_each(|number| events.tell(4, "job", &number));
        for gone in ["4-1", "4-9", "3-3", "7-1"] {
            let mut place = events.place(EventId::parse(gone));
            assert_eq!(events.next(&mut place), Next::Reset, "{gone}");
            assert_eq!(events.next(&mut place), Next::Nothing);
        }
        assert_eq!(EventId::parse("x"), None);
    }

    #[test]
    fn a_slow_reader_is_overtaken() {
        let events = events();
        events.begin(1, 0);
        let mut slow = events.place(None);
        (1..=4).for_each(|number| events.tell(1, "job", &number));
        assert_eq!(events.next(&mut slow), Next::Overtaken);
    }

    #[test]
    fn nothing_of_a_lower_epoch_follows_a_higher_one() {
        let events = events();
        events.relay(relayed(4, 7));
        events.relay(relayed(4, 7));
        events.begin(5, 0);
        events.tell(4, "job", &1);
        events.relay(relayed(4, 8));
        events.tell(5, "leader", &2);
        let mut place = events.place(EventId::parse("4-7"));
        assert_eq!(told(&events, &mut place), ["5-1 2"]);
    }

    #[test]
    fn a_process_that_begins_anew_uses_no_number_again() {
        let events = events();
        events.begin(4, 1_000);
        events.tell(4, "leader", &1);
        let mut place = events.place(Some(EventId::START));
        assert_eq!(told(&events, &mut place), ["4-1000001 1"]);
        events.begin(4, 900);
        events.tell(4, "leader", &2);
        assert_eq!(told(&events, &mut place), ["4-1000002 2"]);
    }

    #[test]
    fn a_relay_that_missed_something_says_so() {
        let events = events();
        events.relay(relayed(4, 1));
        let mut place = events.place(None);
        events.reset();
        events.relay(relayed(4, 9));
        assert_eq!(events.next(&mut place), Next::Reset);
        assert_eq!(told(&events, &mut place), ["4-9 0"]);
        assert_eq!(events.next(&mut events.place(EventId::parse("4-1"))), Next::Reset);
    }
}
