//! A store in memory, and how one node reaches it: answers are lost before or after the effect,
//! come late, or not at all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::ledger::{Answer, Kind, Ledger, LedgerFault, Opened, Record, Term, Written};

#[derive(Debug, Default)]
pub(crate) struct Memory {
    store: Mutex<Store>,
}

#[derive(Debug, Default)]
struct Store {
    terms: Vec<Term>,
    opening: u64,
    records: BTreeMap<(Kind, String), Record>,
    /// Writes that are on their way, and may arrive any time.
    late: Vec<(u64, u64, Record)>,
    /// Confirmed or not, everything that was ever kept.
    history: Vec<Record>,
    writes: usize,
}

impl Store {
    fn holds(&self, epoch: u64, opening: u64) -> bool {
        self.opening == opening && self.terms.last().is_some_and(|term| term.epoch == epoch)
    }

    fn stale(&self) -> Written {
        Written::Stale(self.terms.last().map(|term| term.epoch))
    }

    fn write(&mut self, epoch: u64, opening: u64, record: &Record) -> Written {
        if !self.holds(epoch, opening) {
            return self.stale();
        }
        let key = (record.kind, record.id.clone());
        if let Some(there) = self.records.get(&key)
            && there.version >= record.version
        {
            return if there == record { Written::Done } else { Written::Superseded };
        }
        self.writes += 1;
        self.records.insert(key, record.clone());
        self.history.push(record.clone());
        Written::Done
    }
}

impl Memory {
    pub(crate) fn record(&self, kind: Kind, id: &str) -> Option<Record> {
        self.store.lock().records.get(&(kind, id.to_owned())).cloned()
    }

    /// Somebody has put something there.
    pub(crate) fn put(&self, kind: Kind, id: &str, version: u64, body: &str) {
        let record = Record { kind, id: id.into(), version, body: body.into() };
        self.store.lock().records.insert((kind, id.into()), record);
    }

    pub(crate) fn ids(&self, kind: Kind) -> Vec<String> {
        let store = self.store.lock();
        store.records.keys().filter(|key| key.0 == kind).map(|key| key.1.clone()).collect()
    }

    /// Every state that a job ever had.
    pub(crate) fn history(&self, id: &str) -> Vec<Record> {
        let store = self.store.lock();
        store.history.iter().filter(|record| record.id == id).cloned().collect()
    }

    pub(crate) fn writes(&self) -> usize {
        self.store.lock().writes
    }

    /// What was on its way arrives; how many of them were kept.
    pub(crate) fn arrive(&self) -> usize {
        let mut store = self.store.lock();
        let late = std::mem::take(&mut store.late);
        let before = store.writes;
        for (epoch, opening, record) in late {
            store.write(epoch, opening, &record);
        }
        store.writes - before
    }

    /// Another leader opens it.
    pub(crate) fn open(&self, epoch: u64, node: &str) {
        let mut store = self.store.lock();
        store.opening += 1;
        store.terms.push(Term { epoch, node: node.into() });
    }
}

/// What happens to the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    None,
    LostBefore,
    LostAfter,
    /// The answer is lost, and the write arrives some time.
    Late,
    Refused,
    Slow(Duration),
}

/// The store as one node reaches it.
#[derive(Debug)]
pub(crate) struct Reach {
    memory: Arc<Memory>,
    opened: Mutex<Option<(u64, u64)>>,
    mishaps: Mutex<VecDeque<Mishap>>,
    /// After which jobs a leader has read, and how many of these questions remain unanswered.
    pub(crate) loads: Mutex<Vec<String>>,
    pub(crate) unanswered: std::sync::atomic::AtomicUsize,
    pub(crate) down: std::sync::atomic::AtomicBool,
}

impl Reach {
    pub(crate) fn new(memory: &Arc<Memory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            opened: Mutex::new(None),
            mishaps: Mutex::default(),
            loads: Mutex::default(),
            unanswered: std::sync::atomic::AtomicUsize::new(0),
            down: std::sync::atomic::AtomicBool::new(false),
        }
    }

    pub(crate) fn next(&self, mishaps: impl IntoIterator<Item = Mishap>) {
        self.mishaps.lock().extend(mishaps);
    }

    fn check(&self) -> Result<(), LedgerFault> {
        if self.down.load(std::sync::atomic::Ordering::SeqCst) { Err(lost()) } else { Ok(()) }
    }
}

fn lost() -> LedgerFault {
    LedgerFault::Unavailable("lost".into())
}

impl Ledger for Reach {
    fn open<'a>(&'a self, term: &'a Term) -> Answer<'a, Opened> {
        Box::pin(async move {
            self.check()?;
            let mut store = self.memory.store.lock();
            if let Some(last) = store.terms.last()
                && last.epoch >= term.epoch
                && last != term
            {
                return Ok(Opened::Behind(last.epoch));
            }
            if store.terms.last() != Some(term) {
                store.terms.push(term.clone());
            }
            store.opening += 1;
            *self.opened.lock() = Some((term.epoch, store.opening));
            Ok(Opened::Yes)
        })
    }

    fn write<'a>(&'a self, epoch: u64, record: &'a Record) -> Answer<'a, Written> {
        Box::pin(async move {
            self.check()?;
            let opened = self.opened.lock().filter(|(opened, _)| *opened == epoch);
            let Some((_, opening)) = opened else { return Ok(Written::Stale(None)) };
            let is_job = record.kind == Kind::Job;
            let mishap = if is_job { self.mishaps.lock().pop_front() } else { None };
            match mishap.unwrap_or(Mishap::None) {
                Mishap::None => {}
                Mishap::LostBefore => return Err(lost()),
                Mishap::Refused => return Err(LedgerFault::Refused("no".into())),
                Mishap::Late => {
                    self.memory.store.lock().late.push((epoch, opening, record.clone()));
                    return Err(lost());
                }
                Mishap::LostAfter => {
                    self.memory.store.lock().write(epoch, opening, record);
                    return Err(lost());
                }
                Mishap::Slow(span) => tokio::time::sleep(span).await,
            }
            Ok(self.memory.store.lock().write(epoch, opening, record))
        })
    }

    fn remove<'a>(&'a self, epoch: u64, kind: Kind, id: &'a str) -> Answer<'a, Written> {
        Box::pin(async move {
            self.check()?;
            let opened = self.opened.lock().filter(|(opened, _)| *opened == epoch);
            let mut store = self.memory.store.lock();
            if !opened.is_some_and(|(epoch, opening)| store.holds(epoch, opening)) {
                return Ok(store.stale());
            }
            store.records.remove(&(kind, id.to_owned()));
            Ok(Written::Done)
        })
    }

    fn read<'a>(&'a self, kind: Kind, id: &'a str) -> Answer<'a, Option<Record>> {
        Box::pin(async move {
            self.check()?;
            Ok(self.memory.record(kind, id))
        })
    }

    fn list<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        Box::pin(async move {
            self.check()?;
            let store = self.memory.store.lock();
            let after = after.unwrap_or("").to_owned();
            let all = store.records.iter().filter(|((of, id), _)| *of == kind && *id > after);
            Ok(all.map(|(_, record)| record.clone()).take(limit.min(3)).collect())
        })
    }

    fn load<'a>(
        &'a self,
        kind: Kind,
        after: Option<&'a str>,
        limit: usize,
    ) -> Answer<'a, Vec<Record>> {
        if kind == Kind::Job {
            use std::sync::atomic::Ordering::SeqCst;
            self.loads.lock().push(after.unwrap_or_default().to_owned());
            if after.is_some()
                && self.unanswered.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
            {
                return Box::pin(async { Err(lost()) });
            }
        }
        self.list(kind, after, limit)
    }

    fn terms(&self) -> Answer<'_, Vec<Term>> {
        Box::pin(async move {
            self.check()?;
            Ok(self.memory.store.lock().terms.iter().rev().cloned().collect())
        })
    }
}
