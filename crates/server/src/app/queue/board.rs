//! Where the messages of each queue stand, in memory: who is next, who waits for one. A mirror of
//! durable records, changed only after a commit, read from the store's index when a queue is first
//! asked for and forgotten when nobody asks any more. What is handed out here is a candidate: its
//! record decides whether it is delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockd_core::ids::LeaseId;
use lockd_core::message::Place;
use lockd_core::queue::{MessageId, QueueName};
use lockd_core::time::{Now, Span, Tick, UnixMillis};
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, Semaphore};

/// A queue that nobody has asked for is forgotten after this.
const IDLE: Span = Span::secs(600);
/// Beyond so many, those that nobody uses just now are forgotten at once: they can be read again.
const BOARDS_MAX: usize = 64 * 1024;
/// How many acknowledgements are remembered, so that a repeated one gets its answer.
const ACKED_MAX: usize = 16 * 1024;

/// All queues of one server.
#[derive(Debug)]
pub(crate) struct Boards {
    boards: Mutex<HashMap<QueueName, Arc<Board>>>,
    acked: Mutex<Acked>,
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
}

#[derive(Debug, Default)]
struct Acked {
    known: HashSet<LeaseId>,
    order: VecDeque<LeaseId>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) name: QueueName,
    /// Set when what the store knew was taken over.
    pub(super) loaded: OnceCell<()>,
    inner: Mutex<Inner>,
    /// For those who only look.
    changed: Notify,
    watchers: AtomicUsize,
    subscribers: AtomicUsize,
}

#[derive(Debug, Default)]
struct Inner {
    /// What happened before the queue was loaded: newer than what the load brings.
    early: HashMap<MessageId, Place>,
    is_loaded: bool,
    stands: HashMap<MessageId, Stand>,
    queued: BTreeSet<(Tick, MessageId)>,
    /// How many of them are due up to `due_until`: counted on, never counted anew.
    due: usize,
    due_until: Tick,
    dead: BTreeSet<(UnixMillis, MessageId)>,
    in_flight: usize,
    /// Handed out, and not decided upon yet.
    taken: usize,
    /// Who waits, in order of arrival.
    line: BTreeMap<u64, Arc<Chair>>,
    arrivals: u64,
    /// Whom to tell when a message is no longer with its consumer.
    lent: HashMap<MessageId, Arc<Semaphore>>,
    touched: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Queued(Tick),
    /// Handed to a consumer that asks for its record.
    Taken(Tick),
    InFlight,
    Dead(UnixMillis),
}

/// A place in line, as the queue sees it.
#[derive(Debug)]
struct Chair {
    want: usize,
    given: Mutex<Vec<MessageId>>,
    called: Notify,
}

/// Who looks at a queue without taking from it, or stays to take more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Presence {
    Watcher,
    Subscriber,
}

/// Somebody is there until this is dropped.
#[derive(Debug)]
pub(super) struct Present {
    board: Arc<Board>,
    presence: Presence,
}

/// Too many consumers wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineFull;

/// Which messages are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shelf {
    Queued,
    Dead,
}

/// A place in the order of a queue, or of its dead.
pub(crate) type Bookmark = (u64, MessageId);

/// How many messages stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) ready: usize,
    pub(crate) delayed: usize,
    pub(crate) in_flight: usize,
    pub(crate) dead: usize,
    pub(crate) waiting: usize,
    pub(crate) subscribers: usize,
    pub(crate) watchers: usize,
}

impl Boards {
    pub(crate) fn new(waiting_max: usize) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        Self { boards: Mutex::default(), acked: Mutex::default(), waiting, waiting_max }
    }

    /// The board of a queue, new ones empty.
    pub(super) fn get(&self, queue: &QueueName, now: Now) -> Arc<Board> {
        let mut boards = self.boards.lock();
        let board = match boards.get(queue) {
            Some(board) => Arc::clone(board),
            None => {
                if boards.len() >= BOARDS_MAX {
                    boards.retain(|_, board| Arc::strong_count(board) > 1);
                }
                let board = Arc::new(Board {
                    name: queue.clone(),
                    loaded: OnceCell::new(),
                    inner: Mutex::default(),
                    changed: Notify::new(),
                    watchers: AtomicUsize::new(0),
                    subscribers: AtomicUsize::new(0),
                });
                boards.insert(queue.clone(), Arc::clone(&board));
                board
            }
        };
        board.inner.lock().touched = now.tick;
        board
    }

    /// A message stands there now. A queue that nobody has asked for does not care.
    pub(crate) fn follow(&self, queue: &QueueName, id: MessageId, place: Place, now: Now) {
        let board = self.boards.lock().get(queue).cloned();
        if let Some(board) = board {
            board.follow(id, place, now);
        }
    }

    /// The queues for which somebody waits.
    pub(crate) fn waited_for(&self) -> Vec<Arc<Board>> {
        self.loaded().into_iter().filter(|board| board.is_waited_for()).collect()
    }

    /// The queues of which everything is known.
    pub(crate) fn loaded(&self) -> Vec<Arc<Board>> {
        let boards = self.boards.lock();
        boards.values().filter(|board| board.loaded.initialized()).cloned().collect()
    }

    /// Consumers that wait, in all queues.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Forgets the queues that nobody has asked for lately.
    pub(crate) fn forget_idle(&self, now: Now) {
        self.boards.lock().retain(|_, board| {
            let in_use = Arc::strong_count(board) > 1;
            in_use || board.inner.lock().touched.until(now.tick) < IDLE
        });
    }

    pub(super) fn remember_acked(&self, lease: LeaseId) {
        let mut acked = self.acked.lock();
        if acked.order.len() >= ACKED_MAX
            && let Some(oldest) = acked.order.pop_front()
        {
            acked.known.remove(&oldest);
        }
        if acked.known.insert(lease.clone()) {
            acked.order.push_back(lease);
        }
    }

    pub(super) fn was_acked(&self, lease: &LeaseId) -> bool {
        self.acked.lock().known.contains(lease)
    }

    /// Goes to the end of the line of a queue.
    pub(super) fn sit(&self, board: &Arc<Board>, want: usize, now: Now) -> Result<Seat, LineFull> {
        if self.waiting.load(Ordering::Relaxed) >= self.waiting_max {
            return Err(LineFull);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let chair = Arc::new(Chair { want, given: Mutex::default(), called: Notify::new() });
        let mut inner = board.inner.lock();
        let number = inner.arrivals;
        inner.arrivals += 1;
        inner.line.insert(number, Arc::clone(&chair));
        inner.serve(now);
        drop(inner);
        let (board, waiting) = (Arc::clone(board), Arc::clone(&self.waiting));
        Ok(Seat { board, chair, number, waiting })
    }
}

impl Board {
    fn follow(&self, id: MessageId, place: Place, now: Now) {
        let mut inner = self.inner.lock();
        if inner.is_loaded {
            inner.set(id, place);
            inner.offer(now);
        } else {
            inner.early.insert(id, place);
        }
        drop(inner);
        self.tell_watchers();
    }

    fn is_waited_for(&self) -> bool {
        let inner = self.inner.lock();
        inner.is_loaded && !inner.line.is_empty()
    }

    /// Whether it is known where this message stands.
    pub(super) fn has(&self, id: MessageId) -> bool {
        self.inner.lock().stands.contains_key(&id)
    }

    fn tell_watchers(&self) {
        if self.watchers.load(Ordering::Relaxed) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// What was known may be wrong: until it is loaded anew, nothing is handed out.
    pub(super) fn doubt(&self) {
        let mut inner = self.inner.lock();
        inner.early.clear();
        inner.is_loaded = false;
    }

    /// Takes over what the store knew when it was looked through, and forgets what it did not.
    pub(super) fn load(&self, known: impl IntoIterator<Item = (MessageId, Place)>, now: Now) {
        let known: HashMap<MessageId, Place> = known.into_iter().collect();
        let mut inner = self.inner.lock();
        let early = std::mem::take(&mut inner.early);
        // Those that follow are counted as they come.
        inner.due(now);
        let forgotten: Vec<MessageId> =
            inner.stands.keys().filter(|id| !known.contains_key(id)).copied().collect();
        for id in forgotten {
            inner.stand(id, None);
        }
        for (id, place) in known {
            inner.set(id, place);
        }
        for (id, place) in early {
            inner.set(id, place);
        }
        inner.is_loaded = true;
        inner.serve(now);
    }

    /// Up to so many messages that are due, for one who came when nobody waited.
    pub(super) fn take(self: &Arc<Self>, want: usize, now: Now) -> Vec<Candidate> {
        let mut inner = self.inner.lock();
        if !inner.line.is_empty() {
            return Vec::new();
        }
        let taken = inner.take(want, now);
        drop(inner);
        self.candidates(taken)
    }

    fn candidates(self: &Arc<Self>, taken: Vec<MessageId>) -> Vec<Candidate> {
        taken.into_iter().map(|id| Candidate { board: Arc::clone(self), id, open: true }).collect()
    }

    /// The message that is next, and when it may be delivered.
    pub(super) fn head(&self) -> Option<(Tick, MessageId)> {
        self.inner.lock().queued.first().copied()
    }

    pub(crate) fn counts(&self, now: Now) -> Counts {
        let mut inner = self.inner.lock();
        let ready = inner.due(now);
        Counts {
            ready,
            delayed: inner.queued.len() - ready,
            // No message is nowhere, not even while it is on its way to its consumer.
            in_flight: inner.in_flight + inner.taken,
            dead: inner.dead.len(),
            waiting: inner.line.len(),
            subscribers: self.subscribers.load(Ordering::Relaxed),
            watchers: self.watchers.load(Ordering::Relaxed),
        }
    }

    /// How long the message that is next could have been delivered by now.
    pub(crate) fn oldest_ready(&self, now: Now) -> Span {
        self.head().map_or(Span::ZERO, |(due, _)| due.until(now.tick))
    }

    /// Messages in order: those in the queue by the tick at which they are due, the dead by the
    /// time at which they died.
    pub(super) fn shelf(
        &self,
        shelf: Shelf,
        after: Option<Bookmark>,
        limit: usize,
    ) -> Vec<Bookmark> {
        let inner = self.inner.lock();
        match shelf {
            Shelf::Queued => {
                let after = after.map(|(tick, id)| (Tick(tick), id));
                let page = page(&inner.queued, after, limit);
                page.into_iter().map(|(tick, id)| (tick.0, id)).collect()
            }
            Shelf::Dead => {
                let after = after.map(|(since, id)| (UnixMillis(since), id));
                let page = page(&inner.dead, after, limit);
                page.into_iter().map(|(since, id)| (since.0, id)).collect()
            }
        }
    }

    /// The semaphore gets a permit when the message is no longer with its consumer.
    pub(super) fn lend(&self, id: MessageId, back: &Arc<Semaphore>) {
        let mut inner = self.inner.lock();
        if inner.stands.get(&id) == Some(&Stand::InFlight) {
            // Delivered to another meanwhile: whoever came first does not have it any more.
            if let Some(former) = inner.lent.insert(id, Arc::clone(back)) {
                former.add_permits(1);
            }
        } else {
            back.add_permits(1);
        }
    }

    pub(super) fn enter(self: &Arc<Self>, presence: Presence) -> Present {
        self.present(presence).fetch_add(1, Ordering::Relaxed);
        Present { board: Arc::clone(self), presence }
    }

    fn present(&self, presence: Presence) -> &AtomicUsize {
        match presence {
            Presence::Watcher => &self.watchers,
            Presence::Subscriber => &self.subscribers,
        }
    }

    /// Ready when something has changed since this was called.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

fn page<T: Copy + Ord>(all: &BTreeSet<T>, after: Option<T>, limit: usize) -> Vec<T> {
    let start = after.map_or(Bound::Unbounded, Bound::Excluded);
    all.range((start, Bound::Unbounded)).take(limit).copied().collect()
}

impl Drop for Present {
    fn drop(&mut self) {
        self.board.present(self.presence).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    fn set(&mut self, id: MessageId, place: Place) {
        let stand = match place {
            Place::Draft | Place::Gone => None,
            Place::Queued(visible) => Some(Stand::Queued(visible.tick)),
            Place::InFlight => Some(Stand::InFlight),
            Place::Dead(since) => Some(Stand::Dead(since)),
        };
        self.stand(id, stand);
    }

    fn stand(&mut self, id: MessageId, stand: Option<Stand>) {
        let before = match stand {
            Some(stand) => self.stands.insert(id, stand),
            None => self.stands.remove(&id),
        };
        if before == stand {
            return;
        }
        match before {
            Some(Stand::Queued(tick)) => {
                self.queued.remove(&(tick, id));
                self.due -= usize::from(tick <= self.due_until);
            }
            Some(Stand::InFlight) => {
                self.in_flight -= 1;
                if let Some(back) = self.lent.remove(&id) {
                    back.add_permits(1);
                }
            }
            Some(Stand::Dead(since)) => {
                self.dead.remove(&(since, id));
            }
            Some(Stand::Taken(_)) => self.taken -= 1,
            None => {}
        }
        match stand {
            Some(Stand::Queued(tick)) => {
                let first = self.queued.first().is_none_or(|(first, _)| tick < *first);
                self.queued.insert((tick, id));
                self.due += usize::from(tick <= self.due_until);
                if first {
                    self.call_first();
                }
            }
            Some(Stand::InFlight) => self.in_flight += 1,
            Some(Stand::Dead(since)) => {
                self.dead.insert((since, id));
            }
            Some(Stand::Taken(_)) => self.taken += 1,
            None => {}
        }
    }

    /// How many could be delivered. Each message that has become due since it was last asked is
    /// looked at once, so asking often costs nothing.
    fn due(&mut self, now: Now) -> usize {
        if now.tick > self.due_until {
            let last = MessageId(u128::MAX);
            let since = Bound::Excluded((self.due_until, last));
            self.due += self.queued.range((since, Bound::Included((now.tick, last)))).count();
            self.due_until = now.tick;
        }
        self.due
    }

    /// The first in line sleeps until the next message is due: it looks again when that is.
    fn call_first(&self) {
        if let Some((_, chair)) = self.line.first_key_value() {
            chair.called.notify_one();
        }
    }

    fn take(&mut self, want: usize, now: Now) -> Vec<MessageId> {
        let mut taken = Vec::new();
        while taken.len() < want {
            match self.queued.first() {
                Some(&(tick, id)) if tick <= now.tick => {
                    self.stand(id, Some(Stand::Taken(tick)));
                    taken.push(id);
                }
                Some(_) | None => break,
            }
        }
        taken
    }

    /// One who wants more than there is takes what has come when it looks: messages that were
    /// committed together go to one consumer, not one to each of several.
    fn offer(&mut self, now: Now) {
        match (self.line.first_key_value(), self.queued.first()) {
            (Some((_, chair)), Some((due, _))) if chair.want > self.queued.len() => {
                if *due <= now.tick {
                    chair.called.notify_one();
                }
            }
            (Some(_), Some(_)) => self.serve(now),
            (None, _) | (_, None) => {}
        }
    }

    /// Gives what is due to those who wait, in their order.
    fn serve(&mut self, now: Now) {
        while self.queued.first().is_some_and(|(tick, _)| *tick <= now.tick) {
            let Some((_, chair)) = self.line.pop_first() else { return };
            *chair.given.lock() = self.take(chair.want, now);
            chair.called.notify_one();
            self.call_first();
        }
    }

    fn put_back(&mut self, id: MessageId) {
        if let Some(Stand::Taken(tick)) = self.stands.get(&id).copied() {
            self.stand(id, Some(Stand::Queued(tick)));
        }
    }
}

/// Somebody's place in line. Dropping it leaves the line; what was given and not taken goes back.
#[derive(Debug)]
pub(super) struct Seat {
    board: Arc<Board>,
    chair: Arc<Chair>,
    number: u64,
    waiting: Arc<AtomicUsize>,
}

impl Seat {
    /// What was given, if anything was by now.
    pub(super) fn given(&self, now: Now) -> Option<Vec<Candidate>> {
        self.board.inner.lock().serve(now);
        let given = std::mem::take(&mut *self.chair.given.lock());
        (!given.is_empty()).then(|| self.board.candidates(given))
    }

    /// When to look again without being called: known to the first in line only.
    pub(super) fn next_due(&self) -> Option<Tick> {
        let inner = self.board.inner.lock();
        let (first, _) = inner.line.first_key_value()?;
        let head = inner.queued.first().filter(|_| *first == self.number)?;
        Some(head.0)
    }

    pub(super) async fn called(&self) {
        self.chair.called.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let given = std::mem::take(&mut *self.chair.given.lock());
        let mut inner = self.board.inner.lock();
        inner.line.remove(&self.number);
        for id in &given {
            inner.put_back(*id);
        }
        inner.call_first();
        drop(inner);
        if !given.is_empty() {
            self.board.tell_watchers();
        }
    }
}

/// A message that somebody may have, if its record agrees. Dropped undecided, it goes back to
/// where it was.
#[derive(Debug)]
pub(super) struct Candidate {
    board: Arc<Board>,
    pub(super) id: MessageId,
    open: bool,
}

impl Candidate {
    /// Its record was read, and says this.
    pub(super) fn found(mut self, place: Place, now: Now) {
        self.open = false;
        let mut inner = self.board.inner.lock();
        // Unless a commit has told about it since.
        if let Some(Stand::Taken(_)) = inner.stands.get(&self.id) {
            inner.set(self.id, place);
            inner.serve(now);
        }
        drop(inner);
        self.board.tell_watchers();
    }

    /// A commit has told about it.
    pub(super) fn decided(mut self) -> MessageId {
        self.open = false;
        self.id
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        if self.open {
            let mut inner = self.board.inner.lock();
            inner.put_back(self.id);
            // Whoever is first in line now looks, with the time of its own clock.
            inner.call_first();
            drop(inner);
            self.board.tell_watchers();
        }
    }
}

#[cfg(test)]
mod tests;
