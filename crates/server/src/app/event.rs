//! What happened to keys, for those who watch. One ring of recent events serves every watcher: a
//! watcher that falls behind it, or resumes from before it, starts over from a snapshot. Events
//! are published only after what they tell is durable.

use std::collections::VecDeque;
use std::sync::Arc;

use lockd_core::key::KeyName;
use lockd_core::record::{Effect, End, KeyRecord};
use lockd_wire::watch::LeaseChange;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// How many events are remembered.
const RING_MAX: usize = 16 * 1024;
/// How many events a watcher takes at once.
const BATCH_MAX: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) seq: u64,
    pub(crate) key: KeyName,
    pub(crate) what: What,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum What {
    State { version: u64, etag: Option<String>, bytes: Option<u64> },
    Removed { version: u64 },
    Lease { change: LeaseChange, owner: Box<str>, token: u64, expires_unix_ms: Option<u64> },
}

/// The events after a place, or that the place is no longer known.
pub(crate) enum After {
    Events { events: Vec<Arc<Event>>, next: u64 },
    Gap,
}

#[derive(Debug)]
pub(crate) struct EventHub {
    ring: Mutex<Ring>,
    latest: watch::Sender<u64>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Arc<Event>>,
    /// The sequence number of the newest event; the first is 1.
    latest: u64,
}

impl EventHub {
    pub(crate) fn new() -> Self {
        let (latest, _) = watch::channel(0);
        Self { ring: Mutex::new(Ring { events: VecDeque::new(), latest: 0 }), latest }
    }

    /// Tells what a commit brought. Called in the order of the commits of a key.
    pub(crate) fn publish(&self, key: &KeyName, record: &KeyRecord, effects: &[Effect]) {
        self.publish_all(key, effects.iter().filter_map(|effect| What::of(record, effect)));
    }

    pub(crate) fn publish_all(&self, key: &KeyName, events: impl Iterator<Item = What>) {
        let mut events = events.peekable();
        if events.peek().is_none() {
            return;
        }
        let latest = {
            let mut ring = self.ring.lock();
            for what in events {
                ring.latest += 1;
                let event = Event { seq: ring.latest, key: key.clone(), what };
                if ring.events.len() == RING_MAX {
                    ring.events.pop_front();
                }
                ring.events.push_back(Arc::new(event));
            }
            ring.latest
        };
        self.latest.send_if_modified(|seen| {
            let newer = *seen < latest;
            *seen = latest.max(*seen);
            newer
        });
    }

    /// Something may have happened that was not told: every watcher starts over.
    pub(crate) fn forget(&self) {
        let latest = {
            let mut ring = self.ring.lock();
            ring.events.clear();
            ring.latest += 1;
            ring.latest
        };
        self.latest.send_replace(latest);
    }

    /// Whether anybody wants to hear of it.
    pub(crate) fn is_watched(&self) -> bool {
        self.latest.receiver_count() > 0
    }

    pub(crate) fn latest(&self) -> u64 {
        self.ring.lock().latest
    }

    /// Told whenever there is something new.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// The next events that `wanted` accepts, and the place up to which it has now looked.
    pub(crate) fn after(&self, seq: u64, wanted: impl Fn(&KeyName) -> bool) -> After {
        let ring = self.ring.lock();
        let oldest = ring.latest + 1 - ring.events.len() as u64;
        if seq + 1 < oldest || seq > ring.latest {
            return After::Gap;
        }
        let skip = usize::try_from(seq + 1 - oldest).unwrap_or(usize::MAX);
        let mut events = Vec::new();
        let mut next = seq;
        for event in ring.events.iter().skip(skip) {
            if events.len() == BATCH_MAX {
                break;
            }
            next = event.seq;
            if wanted(&event.key) {
                events.push(Arc::clone(event));
            }
        }
        After::Events { events, next }
    }
}

impl What {
    pub(crate) fn of(record: &KeyRecord, effect: &Effect) -> Option<Self> {
        Some(match effect {
            Effect::Granted => {
                let lease = record.lease.as_ref()?;
                Self::Lease {
                    change: LeaseChange::Granted,
                    owner: lease.owner.clone(),
                    token: record.fence.0,
                    expires_unix_ms: Some(lease.expires.wall.0),
                }
            }
            Effect::Ended { owner, fence, how } => Self::Lease {
                change: match how {
                    End::Released | End::Committed | End::RolledBack => LeaseChange::Released,
                    End::Lapsed { .. } => LeaseChange::Expired,
                    End::Revoked { .. } => LeaseChange::Revoked,
                },
                owner: owner.clone(),
                token: fence.0,
                expires_unix_ms: None,
            },
            Effect::Committed => Self::State {
                version: record.version.0,
                etag: record.state.as_ref().map(|state| state.etag.to_string()),
                bytes: record.state.as_ref().map(|state| state.bytes),
            },
            Effect::Removed => Self::Removed { version: record.version.0 },
            Effect::DropBlob(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use lockd_core::key::KeyName;
    use lockd_core::record::{Effect, KeyRecord};

    use super::{After, EventHub, RING_MAX};

    fn key() -> KeyName {
        KeyName::parse("default", "k").unwrap()
    }

    fn publish(hub: &EventHub, count: usize) {
        for _ in 0..count {
            hub.publish(&key(), &KeyRecord::default(), &[Effect::Removed]);
        }
    }

    fn seqs(after: After) -> Option<Vec<u64>> {
        match after {
            After::Events { events, .. } => Some(events.iter().map(|event| event.seq).collect()),
            After::Gap => None,
        }
    }

    #[test]
    fn a_watcher_gets_what_came_after_its_place() {
        let hub = EventHub::new();
        publish(&hub, 3);
        assert_eq!(seqs(hub.after(1, |_| true)), Some(vec![2, 3]));
        assert_eq!(seqs(hub.after(3, |_| true)), Some(vec![]));
        assert_eq!(seqs(hub.after(1, |_| false)), Some(vec![]));
    }

    #[test]
    fn a_place_that_is_forgotten_or_was_never_reached_is_a_gap() {
        let hub = EventHub::new();
        publish(&hub, RING_MAX + 5);
        assert_eq!(seqs(hub.after(4, |_| true)), None);
        assert!(seqs(hub.after(5, |_| true)).is_some());
        assert_eq!(seqs(hub.after(RING_MAX as u64 + 6, |_| true)), None);
    }

    #[test]
    fn after_something_untold_every_place_is_a_gap() {
        let hub = EventHub::new();
        publish(&hub, 3);
        hub.forget();
        assert_eq!(seqs(hub.after(3, |_| true)), None);
        assert_eq!(seqs(hub.after(hub.latest(), |_| true)), Some(vec![]));
    }
}
