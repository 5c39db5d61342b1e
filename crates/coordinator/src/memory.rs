//! A registry and a lock in memory, on the runtime's clock, which tests can set going as they like.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::clock::Clock;
use lockd_elect::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::{Backend, Place};
use crate::member::{Entry, Sign, missing_until_down};
use crate::registry::{
    Amended, Amendment, Answer, Beat, Fault, Leader, Myself, Pulse, Registry, Survey, Swap, Swapped,
};
use crate::settings::Settings;
use crate::task::{Mark, Run};

/// Where the registry's clock begins, in ms.
pub(crate) const START: u64 = 1_700_000_000_000;

/// What all instances of a cluster share.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) clock: Clock,
    kept: Arc<Mutex<Kept>>,
    vacated: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Whoever cannot reach the registry.
    cut_off: Vec<String>,
    leader: Option<(Candidate, Epoch, u64, u64)>,
    epoch: u64,
    instances: BTreeMap<String, Instance>,
    marks: BTreeMap<String, Mark>,
    runs: BTreeMap<String, Vec<Run>>,
    global: Option<String>,
}

#[derive(Clone, Debug)]
struct Instance {
    raw: String,
    incarnation: String,
    expires: u64,
    missing: Option<u64>,
    metrics: Option<String>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Clock::Runtime(tokio::time::Instant::now());
        Self { clock, kept: Arc::default(), vacated: Arc::default() }
    }

    pub(crate) fn now(&self) -> u64 {
        START + self.clock.unix_ms()
    }

    pub(crate) fn backend(&self, settings: &Settings) -> Backend {
        let candidate = Candidate::new(settings.instance_id.as_str());
        let member =
            Arc::new(InMemory { world: self.clone(), candidate, settings: settings.clone() });
        let place = Place::Redis { host: "memory".into(), port: 1 };
        Backend { lock: Arc::clone(&member) as _, registry: member, place }
    }

    pub(crate) fn cut_off(&self, id: &str) {
        self.kept.lock().cut_off.push(id.into());
    }

    pub(crate) fn reconnect(&self, id: &str) {
        self.kept.lock().cut_off.retain(|other| other != id);
    }

    pub(crate) fn runs(&self, task: &str) -> Vec<Run> {
        self.kept.lock().runs.get(task).cloned().unwrap_or_default()
    }

    pub(crate) fn status_of(&self, id: &str) -> Option<String> {
        let kept = self.kept.lock();
        let value: serde_json::Value =
            serde_json::from_str(&kept.instances.get(id)?.raw).expect("JSON");
        value["status"].as_str().map(Into::into)
    }
}

/// The part of one instance.
#[derive(Debug)]
struct InMemory {
    world: World,
    candidate: Candidate,
    settings: Settings,
}

impl InMemory {
    fn reach<T>(&self, ask: impl FnOnce(&mut Kept, u64) -> T) -> Result<T, Fault> {
        let now = self.world.now();
        let mut kept = self.world.kept.lock();
        if kept.cut_off.contains(&self.candidate.id) {
            return Err(Fault::Unavailable("cut off".into()));
        }
        kept.leader.take_if(|(.., until)| *until <= now);
        Ok(ask(&mut kept, now))
    }

    fn lock<T>(&self, ask: impl FnOnce(&mut Kept, u64) -> T) -> Result<T, LockError> {
        self.reach(ask).map_err(|fault| LockError::Unavailable(fault.to_string()))
    }

    fn leads(&self, kept: &Kept, epoch: Epoch) -> bool {
        let leader = kept.leader.as_ref();
        leader.is_some_and(|(who, now, ..)| *who == self.candidate && *now == epoch)
    }

    fn write(&self, kept: &mut Kept, me: &Myself, now: u64, due: bool) -> Pulse {
        let started_at = me.started_at.unwrap_or(now / 1_000);
        let raw = serde_json::json!({
            "instance_id": me.candidate.id,
            "started_at": started_at,
            "last_heartbeat": now / 1_000,
            "status": "active",
            "worker_count": me.worker_count,
        });
        let metrics = kept.instances.get(&me.candidate.id).and_then(|it| it.metrics.clone());
        let instance = Instance {
            raw: raw.to_string(),
            incarnation: me.candidate.incarnation.clone(),
            expires: now + millis(self.settings.heartbeat_ttl),
            missing: None,
            metrics,
        };
        kept.instances.insert(me.candidate.id.clone(), instance);
        Pulse { now, started_at, survey_due: due, marks: kept.marks.clone() }
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("short")
}

fn ready<'a, T: Send + 'a>(answer: T) -> BoxFuture<'a, T> {
    Box::pin(async move { answer })
}

impl LeaderLock for InMemory {
    fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    fn ttl(&self) -> Duration {
        self.settings.leader_ttl
    }

    fn try_acquire(&self) -> BoxFuture<'_, Result<Attempt, LockError>> {
        ready(self.lock(|kept, now| match &kept.leader {
            Some((who, epoch, _, until)) if *who != self.candidate => Attempt::Held(Holder {
                id: who.id.clone(),
                epoch: Some(*epoch),
                remaining: Some(Duration::from_millis(until - now)),
            }),
            _ => {
                kept.epoch += 1;
                let epoch = Epoch(kept.epoch);
                let until = now + millis(self.settings.leader_ttl);
                kept.leader = Some((self.candidate.clone(), epoch, now / 1_000, until));
                Attempt::Granted(Grant { epoch, memory: Memory::Kept })
            }
        }))
    }

    fn renew(&self, epoch: Epoch) -> BoxFuture<'_, Result<Renewal, LockError>> {
        ready(self.lock(|kept, now| {
            if !self.leads(kept, epoch) {
                return Renewal::Lost(Loss::Vanished);
            }
            if let Some((.., until)) = &mut kept.leader {
                *until = now + millis(self.settings.leader_ttl);
            }
            Renewal::Kept
        }))
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        ready(self.lock(|kept, _| {
            if self.leads(kept, epoch) {
                kept.leader = None;
                self.world.vacated.notify_waiters();
            }
        }))
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        ready(self.lock(|kept, _| {
            let leader = kept.leader.as_ref();
            leader.map(|(who, epoch, ..)| Holder {
                id: who.id.clone(),
                epoch: Some(*epoch),
                remaining: None,
            })
        }))
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.world.vacated.notified())
    }

    fn saw(&self, _epoch: Epoch) {}
}

impl Registry for InMemory {
    fn register<'a>(&'a self, me: &'a Myself) -> Answer<'a, Pulse> {
        ready(self.reach(|kept, now| self.write(kept, me, now, false)))
    }

    fn beat<'a>(&'a self, me: &'a Myself) -> Answer<'a, Beat> {
        ready(self.reach(|kept, now| {
            let other = kept.instances.get(&me.candidate.id);
            if other
                .is_some_and(|it| it.incarnation != me.candidate.incarnation && it.expires > now)
            {
                return Beat::Displaced;
            }
            Beat::Counted(self.write(kept, me, now, true))
        }))
    }

    fn deregister<'a>(&'a self, me: &'a Myself) -> Answer<'a, ()> {
        ready(self.reach(|kept, _| {
            kept.instances.remove(&me.candidate.id);
        }))
    }

    fn survey(&self) -> Answer<'_, Survey> {
        let ttl = millis(self.settings.heartbeat_ttl);
        ready(self.reach(|kept, now| {
            let mut entries = Vec::new();
            for (id, instance) in &mut kept.instances {
                let sign = if instance.expires > now {
                    instance.missing = None;
                    Sign::Heard { age: Duration::from_millis(ttl - (instance.expires - now)) }
                } else {
                    Sign::Missing { since: *instance.missing.get_or_insert(now) }
                };
                entries.push(Entry { id: id.clone(), raw: instance.raw.clone(), sign });
            }
            let leader = kept.leader.as_ref();
            let leader =
                leader.map(|(who, _, since, _)| Leader { id: who.id.clone(), since: *since });
            Survey { now, leader, entries }
        }))
    }

    fn amend<'a>(&'a self, epoch: Epoch, changes: &'a [Amendment]) -> Answer<'a, Amended> {
        let patience = millis(missing_until_down(&self.settings));
        ready(self.reach(|kept, now| {
            if !self.leads(kept, epoch) {
                return Amended::default();
            }
            let mut removed = Vec::new();
            for change in changes {
                match change {
                    Amendment::Restate { id, old, new } => {
                        let instance = kept.instances.get_mut(id).filter(|it| it.raw == *old);
                        if let Some(instance) = instance {
                            instance.raw.clone_from(new);
                        }
                    }
                    Amendment::Remove { id } => {
                        let since = kept.instances.get(id).and_then(|it| it.missing);
                        if since.is_some_and(|since| now - since >= patience) {
                            kept.instances.remove(id);
                            removed.push(id.clone());
                        }
                    }
                }
            }
            Amended { led: true, removed }
        }))
    }

    fn marks(&self) -> Answer<'_, BTreeMap<String, Mark>> {
        ready(self.reach(|kept, _| kept.marks.clone()))
    }

    fn swap<'a>(&'a self, swap: Swap<'a>) -> Answer<'a, Swapped> {
        ready(self.reach(|kept, _| {
            if swap.under.is_some_and(|epoch| !self.leads(kept, epoch)) {
                return Swapped::NotLeader;
            }
            let now = kept.marks.get(swap.task).cloned();
            if now.as_ref().map(|mark| mark.revision) != swap.old {
                return Swapped::Changed(now);
            }
            kept.marks.insert(swap.task.into(), swap.new.clone());
            if let Some(run) = swap.run {
                kept.runs.entry(swap.task.into()).or_default().insert(0, run.clone());
            }
            Swapped::Done
        }))
    }

    fn runs<'a>(&'a self, task: &'a str, limit: usize) -> Answer<'a, Vec<Run>> {
        ready(self.reach(|kept, _| {
            kept.runs.get(task).into_iter().flatten().take(limit).cloned().collect()
        }))
    }

    fn push_metrics<'a>(&'a self, json: &'a str) -> Answer<'a, ()> {
        ready(self.reach(|kept, _| {
            if let Some(instance) = kept.instances.get_mut(&self.candidate.id) {
                instance.metrics = Some(json.into());
            }
        }))
    }

    fn metrics<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<(String, String)>> {
        ready(self.reach(|kept, _| {
            let of = |id: &String| Some((id.clone(), kept.instances.get(id)?.metrics.clone()?));
            ids.iter().filter_map(of).collect()
        }))
    }

    fn set_global<'a>(&'a self, epoch: Epoch, json: &'a str) -> Answer<'a, bool> {
        ready(self.reach(|kept, _| {
            let leads = self.leads(kept, epoch);
            if leads {
                kept.global = Some(json.into());
            }
            leads
        }))
    }

    fn global(&self) -> Answer<'_, Option<String>> {
        ready(self.reach(|kept, _| kept.global.clone()))
    }
}
