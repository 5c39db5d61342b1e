//! Who waits for which key, in order of arrival. Only the first in line may ask for the key, and
//! it asks when told that the key may be free. A waiter that goes away leaves its place without
//! disturbing the others. A transaction that would end up waiting for itself gets no place.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lockd_core::answer::Stamp;
use lockd_core::ids::TxnId;
use lockd_core::key::KeyName;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Stopwatch;

/// All lines of one server.
#[derive(Debug)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<KeyName, Line>>,
    /// Where transactions wait, once for each request. Locked after `lines`.
    waits: Mutex<Waits>,
    arrivals: AtomicU64,
    count: AtomicUsize,
    max: usize,
}

#[derive(Debug, Default)]
struct Line {
    places: VecDeque<Arc<Place>>,
    /// The same request, sent again, finds the place of the first by its stamp.
    stamped: HashMap<u128, Arc<Place>>,
    /// How many of them were left.
    left: usize,
    /// The key may have become free since the first in line last asked.
    may_be_free: bool,
    /// Runs since the key was let go of.
    freed: Option<Stopwatch>,
}

/// The keys that a transaction waits for, each with the number of its place.
type Waits = HashMap<TxnId, Vec<(KeyName, u64)>>;

#[derive(Debug, Default)]
struct Place {
    stamp: Option<Stamp>,
    txn: Option<TxnId>,
    /// Grows with every place that is taken.
    number: u64,
    turn: Notify,
    left: AtomicBool,
    /// Counts the requests that have stood here; the latest one owns the place.
    occupant: AtomicU64,
}

/// A place in line. Dropping it leaves the line.
#[derive(Debug)]
pub(crate) struct Waiting {
    lines: Arc<Lines>,
    key: KeyName,
    place: Arc<Place>,
    occupant: u64,
}

/// Why there is no place in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinRefused {
    /// Every place is taken.
    Full,
    /// Another request stands in line under the same idempotency key.
    Reused,
    /// The transaction would wait for itself.
    Deadlock,
}

/// Who wants a place.
pub(crate) struct Arrival<'a> {
    pub(crate) stamp: Option<Stamp>,
    pub(crate) txn: Option<TxnId>,
    /// The transaction under which a key is held.
    pub(crate) holder: &'a (dyn Fn(&KeyName) -> Option<TxnId> + Sync),
}

/// Why a wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// First in line, and the key may be free.
    Ask,
    /// The same request came again and stands here now.
    TakenOver,
}

impl Lines {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let (lines, waits) = (Mutex::default(), Mutex::default());
        let (count, arrivals) = (AtomicUsize::new(0), AtomicU64::new(0));
        Arc::new(Self { lines, waits, arrivals, count, max })
    }

    /// Whether anybody waits for the key.
    pub(crate) fn has(&self, key: &KeyName) -> bool {
        self.lines.lock().contains_key(key)
    }

    pub(crate) fn len(&self, key: &KeyName) -> usize {
        self.lines.lock().get(key).map_or(0, |line| line.places.len() - line.left)
    }

    pub(crate) fn total(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Goes to the end of the line, or to the place where the same request already stands.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: &KeyName,
        arrival: &Arrival<'_>,
    ) -> Result<Waiting, JoinRefused> {
        let Arrival { stamp, txn, holder } = *arrival;
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(key)
            && let Some(place) = stamp.and_then(|stamp| line.stamped.get(&stamp.id)).cloned()
        {
            if place.stamp != stamp {
                return Err(JoinRefused::Reused);
            }
            let occupant = place.occupant.fetch_add(1, Ordering::AcqRel) + 1;
            if line.places.front().is_some_and(|first| Arc::ptr_eq(first, &place)) {
                // The former one may have been about to ask.
                line.may_be_free = true;
            }
            place.turn.notify_one();
            return Ok(Waiting { lines: Arc::clone(self), key: key.clone(), place, occupant });
        }
        if self.count.load(Ordering::Relaxed) >= self.max {
            return Err(JoinRefused::Full);
        }
        if let Some(txn) = txn
            && waits_for_itself(txn, key, &lines, &self.waits.lock(), holder)
        {
            return Err(JoinRefused::Deadlock);
        }
        let line = lines.entry(key.clone()).or_default();
        self.count.fetch_add(1, Ordering::Relaxed);
        let number = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let place = Arc::new(Place { stamp, txn, number, ..Place::default() });
        if let Some(txn) = txn {
            self.waits.lock().entry(txn).or_default().push((key.clone(), number));
        }
        if let Some(stamp) = stamp {
            line.stamped.insert(stamp.id, Arc::clone(&place));
        }
        line.places.push_back(Arc::clone(&place));
        if line.places.len() == 1 {
            // Nobody was told on its behalf: it looks once by itself.
            line.may_be_free = true;
            place.turn.notify_one();
        }
        Ok(Waiting { lines: Arc::clone(self), key: key.clone(), place, occupant: 0 })
    }

    /// The key may be free: tells the first in line.
    pub(crate) fn wake(&self, key: &KeyName) {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(key) {
            line.may_be_free = true;
            line.freed = Some(Stopwatch::start());
            if let Some(first) = line.places.front() {
                first.turn.notify_one();
            }
        }
    }

    /// Any key may be free.
    pub(crate) fn wake_all(&self) {
        let keys: Vec<KeyName> = self.lines.lock().keys().cloned().collect();
        for key in keys {
            self.wake(&key);
        }
    }

    fn is_turn(&self, key: &KeyName, place: &Arc<Place>) -> bool {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(key) else { return false };
        let first = line.places.front().is_some_and(|first| Arc::ptr_eq(first, place));
        let ask = first && line.may_be_free;
        if ask {
            line.may_be_free = false;
        }
        ask
    }

    fn leave(&self, key: &KeyName, place: &Arc<Place>) {
        let mut lines = self.lines.lock();
        place.left.store(true, Ordering::Relaxed);
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(txn) = place.txn {
            let mut waits = self.waits.lock();
            if let Some(keys) = waits.get_mut(&txn) {
                keys.retain(|(_, number)| *number != place.number);
                if keys.is_empty() {
                    waits.remove(&txn);
                }
            }
        }
        let Some(line) = lines.get_mut(key) else { return };
        line.left += 1;
        if let Some(stamp) = place.stamp {
            line.stamped.remove(&stamp.id);
        }
        let was_first = line.places.front().is_some_and(|first| Arc::ptr_eq(first, place));
        line.drop_left();
        match line.places.front() {
            None => {
                lines.remove(key);
            }
            Some(first) if was_first => first.turn.notify_one(),
            Some(_) => {}
        }
    }
}

/// Whether a transaction that waits for the key would, by way of others, wait for itself. Who
/// waits depends on the holder of the key and on everybody before it in line. Each place is looked
/// at once, however many ways lead to it.
fn waits_for_itself(
    txn: TxnId,
    key: &KeyName,
    lines: &HashMap<KeyName, Line>,
    waits: &Waits,
    holder: &dyn Fn(&KeyName) -> Option<TxnId>,
) -> bool {
    let mut search = Search { lines, holder, looked: HashMap::new(), ahead: Vec::new() };
    search.look_before(key, u64::MAX);
    let mut seen = HashSet::new();
    while let Some(other) = search.ahead.pop() {
        if other == txn {
            return true;
        }
        if seen.insert(other) {
            for (key, number) in waits.get(&other).into_iter().flatten() {
                search.look_before(key, *number);
            }
        }
    }
    false
}

struct Search<'a> {
    lines: &'a HashMap<KeyName, Line>,
    holder: &'a dyn Fn(&KeyName) -> Option<TxnId>,
    /// Up to which place a line was looked at.
    looked: HashMap<KeyName, u64>,
    /// Transactions whose own waits are still to be followed.
    ahead: Vec<TxnId>,
}

impl Search<'_> {
    /// Adds who holds the key and who stands in line before that place, unless known already.
    fn look_before(&mut self, key: &KeyName, number: u64) {
        let from = match self.looked.get(key) {
            Some(looked) if *looked >= number => return,
            Some(looked) => *looked,
            None => {
                self.ahead.extend((self.holder)(key));
                0
            }
        };
        self.looked.insert(key.clone(), number);
        let Some(line) = self.lines.get(key) else { return };
        let first = line.places.partition_point(|place| place.number < from);
        let places = line.places.iter().skip(first).take_while(|place| place.number < number);
        let present = places.filter(|place| !place.left.load(Ordering::Relaxed));
        self.ahead.extend(present.filter_map(|place| place.txn));
    }
}

impl Line {
    /// Takes places that were left off the front, and all of them when they are too many.
    fn drop_left(&mut self) {
        while self.places.front().is_some_and(|place| place.left.load(Ordering::Relaxed)) {
            self.places.pop_front();
            self.left -= 1;
        }
        if self.left > 32 && self.left > self.places.len() / 2 {
            self.places.retain(|place| !place.left.load(Ordering::Relaxed));
            self.left = 0;
        }
    }
}

impl Waiting {
    /// Waits for the turn to ask for the key. After a refused ask, wait again.
    pub(crate) async fn turn(&self) -> Turn {
        loop {
            self.place.turn.notified().await;
            if !self.is_occupant() {
                // The one who stands here now may have been meant.
                self.place.turn.notify_one();
                return Turn::TakenOver;
            }
            if self.lines.is_turn(&self.key, &self.place) {
                return Turn::Ask;
            }
        }
    }
}

impl Waiting {
    /// How long ago the key was let go of, if anybody had it while this one waited.
    pub(crate) fn since_freed(&self) -> Option<Duration> {
        let mut lines = self.lines.lines.lock();
        lines.get_mut(&self.key)?.freed.take().map(Stopwatch::elapsed)
    }

    /// The key was granted to this one: whatever was told before speaks of the time before.
    pub(crate) fn took_it(&self) {
        if let Some(line) = self.lines.lines.lock().get_mut(&self.key) {
            line.may_be_free = false;
        }
    }

    /// Whether nobody stands before this one.
    pub(crate) fn is_first(&self) -> bool {
        let lines = self.lines.lines.lock();
        let first = lines.get(&self.key).and_then(|line| line.places.front());
        self.is_occupant() && first.is_some_and(|first| Arc::ptr_eq(first, &self.place))
    }

    fn is_occupant(&self) -> bool {
        self.place.occupant.load(Ordering::Acquire) == self.occupant
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_occupant() {
            self.lines.leave(&self.key, &self.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use lockd_core::key::KeyName;

    use lockd_core::ids::TxnId;

    use super::{Arrival, JoinRefused, Lines, Stamp, Turn, Waiting};

    fn key() -> KeyName {
        KeyName::parse("default", "k").unwrap()
    }

    fn join(lines: &Arc<Lines>) -> Waiting {
        lines.join(&key(), &plain(None)).unwrap()
    }

    fn plain(stamp: Option<Stamp>) -> Arrival<'static> {
        Arrival { stamp, txn: None, holder: &|_| None }
    }

    fn asks(waiting: &Waiting) -> bool {
        waiting.turn().now_or_never() == Some(Turn::Ask)
    }

    #[test]
    fn the_first_looks_once_and_then_only_when_told() {
        let lines = Lines::new(10);
        let (first, second) = (join(&lines), join(&lines));
        assert!(asks(&first));
        assert!(!asks(&first) && !asks(&second));
        lines.wake(&key());
        assert!(!asks(&second), "not its turn");
        assert!(asks(&first));
    }

    #[test]
    fn who_leaves_is_skipped_and_the_wake_up_is_not_lost() {
        let lines = Lines::new(10);
        let (first, second, third) = (join(&lines), join(&lines), join(&lines));
        assert!(asks(&first));
        drop(second);
        lines.wake(&key());
        drop(first);
        assert!(asks(&third), "the key was told free to one who then left");
    }

    #[test]
    fn the_next_in_line_does_not_ask_before_it_is_told() {
        let lines = Lines::new(10);
        let (first, second) = (join(&lines), join(&lines));
        assert!(asks(&first));
        drop(first);
        assert!(!asks(&second), "the first was granted the key");
        lines.wake(&key());
        assert!(asks(&second));
    }

    #[test]
    fn the_same_request_again_takes_over_the_place() {
        let lines = Lines::new(10);
        let stamp = Some(Stamp { id: 7, request: 1 });
        let first = lines.join(&key(), &plain(stamp)).unwrap();
        let second = join(&lines);
        assert!(asks(&first));
        let again = lines.join(&key(), &plain(stamp)).unwrap();
        assert_eq!(first.turn().now_or_never(), Some(Turn::TakenOver));
        drop(first);
        assert_eq!(lines.len(&key()), 2);
        assert!(asks(&again));
        assert!(!asks(&second));
        let other = lines.join(&key(), &plain(Some(Stamp { id: 7, request: 2 })));
        assert_eq!(other.unwrap_err(), JoinRefused::Reused);
        assert_eq!(again.turn().now_or_never(), None, "the place is still its own");
    }

    /// Waits for a key as one of the transactions a to z; `held` says who holds what.
    fn wait_as(
        lines: &Arc<Lines>,
        name: char,
        wanted: &str,
        held: &[(&str, char)],
    ) -> Result<Waiting, JoinRefused> {
        let txn = |name: char| TxnId::parse(&name.to_string().repeat(20)).unwrap();
        let holder = |key: &KeyName| {
            held.iter().find(|(held, _)| *held == key.key()).map(|(_, by)| txn(*by))
        };
        let wanted = KeyName::parse("default", wanted).unwrap();
        lines.join(&wanted, &Arrival { stamp: None, txn: Some(txn(name)), holder: &holder })
    }

    #[test]
    fn the_last_to_close_a_circle_of_waits_is_refused() {
        let lines = Lines::new(10);
        let held = [("x", 'a'), ("y", 'b'), ("z", 'c')];
        let first = wait_as(&lines, 'a', "y", &held).unwrap();
        let _second = wait_as(&lines, 'b', "z", &held).unwrap();
        assert_eq!(wait_as(&lines, 'c', "x", &held).unwrap_err(), JoinRefused::Deadlock);
        // Somebody else may wait for the same key, and the circle is gone when one of it leaves.
        let _other = wait_as(&lines, 'd', "x", &held).unwrap();
        drop(first);
        let _third = wait_as(&lines, 'c', "x", &held).unwrap();
    }

    #[test]
    fn who_stands_before_one_in_line_is_waited_for_too() {
        let lines = Lines::new(10);
        let held = [("x", 'a'), ("y", 'c')];
        // b waits for x behind nobody, then a would wait for y behind b.
        let _b = wait_as(&lines, 'b', "y", &held).unwrap();
        let _b_too = wait_as(&lines, 'b', "x", &held).unwrap();
        assert_eq!(wait_as(&lines, 'a', "y", &held).unwrap_err(), JoinRefused::Deadlock);
        // Those who come later are not in anybody's way.
        let _d = wait_as(&lines, 'd', "x", &held).unwrap();
        let _c = wait_as(&lines, 'c', "w", &held).unwrap();
    }

    #[test]
    fn the_same_request_again_is_no_deadlock() {
        let lines = Lines::new(10);
        let txn = Some(TxnId::parse("00000000000000000000").unwrap());
        let stamp = Some(Stamp { id: 7, request: 1 });
        let arrival = Arrival { stamp, txn, holder: &|_| None };
        let _first = lines.join(&key(), &arrival).unwrap();
        let _again = lines.join(&key(), &arrival).unwrap();
        let other = Arrival { stamp: None, ..arrival };
        assert_eq!(lines.join(&key(), &other).unwrap_err(), JoinRefused::Deadlock);
    }

    #[test]
    fn thousands_in_one_line_are_looked_at_once_each() {
        let lines = Lines::new(20_000);
        let watch = crate::clock::Stopwatch::start();
        let waiting: Vec<Waiting> = (0..5_000)
            .map(|number: u64| {
                let txn = Some(TxnId::parse(&format!("{number:020}")).unwrap());
                lines.join(&key(), &Arrival { stamp: None, txn, holder: &|_| None }).unwrap()
            })
            .collect();
        assert_eq!(waiting.len(), 5_000);
        // Looking at each of them again for each of them would take minutes.
        assert!(watch.elapsed() < std::time::Duration::from_secs(20));
    }

    #[test]
    fn a_transaction_does_not_wait_for_what_it_holds() {
        let lines = Lines::new(10);
        let refused = wait_as(&lines, 'a', "x", &[("x", 'a')]).unwrap_err();
        assert_eq!(refused, JoinRefused::Deadlock);
        assert_eq!(lines.total(), 0);
    }

    #[test]
    fn lines_are_bounded_and_vanish_when_empty() {
        let lines = Lines::new(1);
        let only = join(&lines);
        assert_eq!(lines.join(&key(), &plain(None)).unwrap_err(), JoinRefused::Full);
        drop(only);
        assert!(!lines.has(&key()));
        assert_eq!(lines.total(), 0);
    }

    #[test]
    fn many_who_leave_do_not_pile_up() {
        let lines = Lines::new(10_000);
        let first = join(&lines);
        for _ in 0..10_000 {
            assert!(!asks(&join(&lines)), "the first in line is still there");
        }
        assert!(lines.lines.lock()[&key()].places.len() < 100);
        drop(first);
    }
}
