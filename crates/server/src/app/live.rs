//! The leases that are held now, in memory: for the timer that ends them, for the operator's
//! list, and to find a key by its lease id alone. A mirror of durable records, changed only after
//! a commit and rebuilt from the store's index at start.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;

use lockd_core::ids::{LeaseId, TxnId};
use lockd_core::key::KeyName;
use lockd_core::record::{KeyRecord, Lease};
use lockd_core::time::{Now, Tick};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many ended leases can still be found by id, so that a repeated release gets its answer.
const ENDED_MAX: usize = 16 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) lease: Lease,
    pub(crate) token: u64,
    /// When it is looked at next; `None` while somebody does.
    timer: Option<Tick>,
}

#[derive(Debug, Default)]
pub(crate) struct LiveTable {
    inner: Mutex<Inner>,
    /// Told when an earlier deadline than all others came in.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    by_key: BTreeMap<KeyName, Live>,
    by_lease: HashMap<LeaseId, KeyName>,
    /// Transactions without a record, and the one key that each of them has.
    alone: HashMap<TxnId, KeyName>,
    ended: VecDeque<LeaseId>,
    /// One timer for each lease. It may be earlier than the deadline, which is looked up then.
    deadlines: BTreeSet<(Tick, KeyName)>,
}

impl LiveTable {
    /// Takes over what a commit left in the record.
    pub(crate) fn follow(&self, key: &KeyName, record: &KeyRecord) {
        let mut inner = self.inner.lock();
        match &record.lease {
            Some(lease) => {
                if inner.set(key, lease, record.fence.0) {
                    self.sooner.notify_one();
                }
            }
            None => inner.end(key),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inner.lock().by_key.len()
    }

    pub(crate) fn get(&self, key: &KeyName) -> Option<Live> {
        self.inner.lock().by_key.get(key).cloned()
    }

    /// The key that a lease holds, or held until recently.
    pub(crate) fn key_of(&self, lease: &LeaseId) -> Option<KeyName> {
        self.inner.lock().by_lease.get(lease).cloned()
    }

    /// The key that is held under a transaction which has no record.
    pub(crate) fn alone_under(&self, txn: TxnId) -> Option<KeyName> {
        self.inner.lock().alone.get(&txn).cloned()
    }

    /// The transaction under which a key is held.
    pub(crate) fn txn_of(&self, key: &KeyName) -> Option<TxnId> {
        self.inner.lock().by_key.get(key).map(|live| live.lease.txn)
    }

    /// A page of leases in key order, after `after`, whose full name starts with `prefix` and
    /// which are `shown`.
    pub(crate) fn page(
        &self,
        prefix: &str,
        after: Option<&KeyName>,
        limit: usize,
        shown: impl Fn(&KeyName, &Live) -> bool,
    ) -> Vec<(KeyName, Live)> {
        let start = match after.map(KeyName::as_str) {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let inner = self.inner.lock();
        let rest = inner.by_key.range::<str, _>((start, Bound::Unbounded));
        rest.take_while(|(key, _)| key.as_str().starts_with(prefix))
            .filter(|(key, live)| shown(key, live))
            .take(limit)
            .map(|(key, live)| (key.clone(), live.clone()))
            .collect()
    }

    /// The keys whose leases have run out, at most `limit`, taken off the timer.
    pub(crate) fn take_due(&self, now: Now, limit: usize) -> Vec<KeyName> {
        let mut inner = self.inner.lock();
        let mut due = Vec::new();
        while due.len() < limit {
            match inner.deadlines.first() {
                Some((tick, _)) if *tick <= now.tick => {}
                Some(_) | None => break,
            }
            let Some((_, key)) = inner.deadlines.pop_first() else { break };
            let Some(live) = inner.by_key.get_mut(&key) else { continue };
            live.timer = None;
            if live.lease.is_live(now) {
                let tick = live.lease.expires.tick;
                inner.schedule(&key, tick);
            } else {
                due.push(key);
            }
        }
        due
    }

    /// Puts a key back on the timer, to be tried again at `tick`.
    pub(crate) fn try_again(&self, key: &KeyName, tick: Tick) {
        self.inner.lock().schedule(key, tick);
        self.sooner.notify_one();
    }

    /// After a lease that came due was dealt with: if it is still held, it was renewed just then,
    /// and goes back on the timer.
    pub(crate) fn dealt_with(&self, key: &KeyName) {
        let deadline = self.inner.lock().by_key.get(key).map(|live| live.lease.expires.tick);
        if let Some(deadline) = deadline {
            self.try_again(key, deadline);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        self.inner.lock().deadlines.first().map(|(tick, _)| *tick)
    }

    /// Waits until there may be an earlier deadline than before.
    pub(crate) async fn sooner(&self) {
        self.sooner.notified().await;
    }
}

impl Inner {
    /// `true` when this deadline is now the first.
    fn set(&mut self, key: &KeyName, lease: &Lease, token: u64) -> bool {
        let deadline = lease.expires.tick;
        if let Some(live) = self.by_key.get_mut(key).filter(|live| live.lease.id == lease.id) {
            if lease.recorded {
                self.alone.remove(&lease.txn);
            }
            live.lease = lease.clone();
            live.token = token;
            // A later deadline of the same lease is found when the earlier timer comes.
            let early = live.timer.is_some_and(|timer| timer <= deadline);
            return !early && self.schedule(key, deadline);
        }
        self.end(key);
        self.by_lease.insert(lease.id.clone(), key.clone());
        if !lease.recorded {
            self.alone.insert(lease.txn, key.clone());
        }
        self.by_key.insert(key.clone(), Live { lease: lease.clone(), token, timer: None });
        self.schedule(key, deadline)
    }

    /// Sets the timer of a lease; `true` when it is now the first of all.
    fn schedule(&mut self, key: &KeyName, tick: Tick) -> bool {
        let Some(live) = self.by_key.get_mut(key) else { return false };
        if let Some(before) = live.timer.replace(tick) {
            self.deadlines.remove(&(before, key.clone()));
        }
        let first = self.deadlines.first().is_none_or(|(first, _)| tick < *first);
        self.deadlines.insert((tick, key.clone()));
        first
    }

    fn end(&mut self, key: &KeyName) {
        let Some(live) = self.by_key.remove(key) else { return };
        if let Some(timer) = live.timer {
            self.deadlines.remove(&(timer, key.clone()));
        }
        if !live.lease.recorded {
            self.alone.remove(&live.lease.txn);
        }
        self.ended.push_back(live.lease.id);
        if self.ended.len() > ENDED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.by_lease.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use lockd_core::ids::{LeaseId, TxnId};
    use lockd_core::key::KeyName;
    use lockd_core::record::{KeyRecord, Lease};
    use lockd_core::time::{Deadline, Now, Span, Tick, UnixMillis};

    use super::LiveTable;

    fn key(name: &str) -> KeyName {
        KeyName::parse("default", name).unwrap()
    }

    fn held(id: &str, until: u64) -> KeyRecord {
        let lease = Lease {
            id: LeaseId::new(id),
            owner: "o".into(),
            txn: TxnId::parse("00000000000000000000").unwrap(),
            recorded: false,
            ttl: Span(1),
            granted_at: UnixMillis(0),
            expires: Deadline { tick: Tick(until), wall: UnixMillis(until) },
        };
        KeyRecord { lease: Some(lease), ..KeyRecord::default() }
    }

    fn at(tick: u64) -> Now {
        Now { tick: Tick(tick), wall: UnixMillis(0) }
    }

    #[test]
    fn leases_come_due_in_order_and_once() {
        let table = LiveTable::default();
        table.follow(&key("b"), &held("2", 20));
        table.follow(&key("a"), &held("1", 10));
        assert_eq!(table.next_deadline(), Some(Tick(10)));
        assert_eq!(table.take_due(at(9), 9), []);
        assert_eq!(table.take_due(at(20), 9), [key("a"), key("b")]);
        assert_eq!(table.take_due(at(30), 9), []);
    }

    #[test]
    fn a_renewed_lease_comes_due_at_its_new_time() {
        let table = LiveTable::default();
        table.follow(&key("a"), &held("1", 10));
        table.follow(&key("a"), &held("1", 30));
        assert_eq!(table.take_due(at(10), 9), []);
        assert_eq!(table.next_deadline(), Some(Tick(30)));
        table.follow(&key("a"), &held("1", 20));
        assert_eq!(table.take_due(at(20), 9), [key("a")]);
    }

    #[test]
    fn a_lease_renewed_while_it_came_due_goes_back_on_the_timer() {
        let table = LiveTable::default();
        table.follow(&key("a"), &held("1", 10));
        assert_eq!(table.take_due(at(10), 9), [key("a")]);
        table.follow(&key("a"), &held("1", 30));
        table.dealt_with(&key("a"));
        assert_eq!(table.next_deadline(), Some(Tick(30)));
        table.follow(&key("a"), &KeyRecord::default());
        table.dealt_with(&key("a"));
        assert_eq!(table.take_due(at(99), 9), []);
    }

    #[test]
    fn a_key_that_changes_hands_often_has_one_timer() {
        let table = LiveTable::default();
        for turn in 0..100 {
            table.follow(&key("a"), &held(&turn.to_string(), 1_000 + turn));
            table.follow(&key("a"), &KeyRecord::default());
        }
        assert_eq!(table.next_deadline(), None);
        table.follow(&key("a"), &held("last", 500));
        for turn in 0..100 {
            table.follow(&key("a"), &held("last", 500 + turn));
        }
        assert_eq!(table.inner.lock().deadlines.len(), 1);
    }

    #[test]
    fn an_ended_lease_is_still_found_by_its_id_but_not_listed() {
        let table = LiveTable::default();
        table.follow(&key("a"), &held("1", 10));
        table.follow(&key("a"), &KeyRecord::default());
        assert_eq!(table.len(), 0);
        assert_eq!(table.key_of(&LeaseId::new("1")), Some(key("a")));
        assert!(table.page("", None, 9, |_, _| true).is_empty());
        assert_eq!(table.take_due(at(99), 9), []);
    }

    #[test]
    fn a_transaction_without_a_record_is_found_by_its_one_key() {
        let table = LiveTable::default();
        let txn = TxnId::parse("00000000000000000000").unwrap();
        let mut record = held("1", 10);
        table.follow(&key("a"), &record);
        assert_eq!(table.alone_under(txn), Some(key("a")));
        assert_eq!(table.txn_of(&key("a")), Some(txn));
        record.lease.as_mut().unwrap().recorded = true;
        table.follow(&key("a"), &record);
        assert_eq!(table.alone_under(txn), None, "it has a record now");
        table.follow(&key("b"), &held("2", 10));
        table.follow(&key("b"), &KeyRecord::default());
        assert_eq!(table.alone_under(txn), None, "it is over");
    }

    #[test]
    fn pages_follow_the_order_of_keys() {
        let table = LiveTable::default();
        for name in ["a/0", "a/1", "a/2", "b"] {
            table.follow(&key(name), &held(name, 10));
        }
        let names = |after: Option<&KeyName>, limit| {
            let page = table.page("default/a", after, limit, |key, _| key.key() != "a/0");
            page.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(names(None, 1), [key("a/1")]);
        assert_eq!(names(Some(&key("a/1")), 9), [key("a/2")]);
    }
}
