//! Campaigns for a lock that does as it is told, on a clock that moves only when everybody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Campaign, LAST_WORD, Leadership, Pace};
use crate::lock::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};

const TTL: Duration = Duration::from_secs(6);
const LONG: Duration = Duration::from_secs(3_600);

fn pace() -> Pace {
    Pace {
        renew_every: Duration::from_secs(2),
        look_every: Duration::from_secs(5),
        grace: Duration::from_secs(20),
        notice: Duration::from_secs(1),
    }
}

/// A lock that does as it is told.
#[derive(Debug)]
struct Puppet {
    candidate: Candidate,
    says: Mutex<Says>,
    asked: AtomicUsize,
    released: Mutex<Vec<Epoch>>,
    leadership: Mutex<Option<watch::Receiver<Leadership>>>,
    /// Whether it was said that it leads when something was released.
    led: AtomicBool,
}

#[derive(Clone, Debug)]
struct Says {
    /// How long an answer to an attempt takes.
    takes: Duration,
    /// Who else has it, and until when.
    held_until: Option<Instant>,
    renewal: Duration,
    /// Whether it always seems to have been let go of.
    vacated: bool,
}

impl Puppet {
    fn new() -> Arc<Self> {
        let says = Says {
            takes: Duration::ZERO,
            held_until: None,
            renewal: Duration::ZERO,
            vacated: false,
        };
        Arc::new(Self {
            candidate: Candidate::new("a"),
            says: Mutex::new(says),
            asked: AtomicUsize::new(0),
            released: Mutex::default(),
            leadership: Mutex::default(),
            led: AtomicBool::new(false),
        })
    }

    fn say(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock());
    }

    fn runs(self: &Arc<Self>) -> Campaign {
        let lock: Arc<dyn LeaderLock> = Arc::<Self>::clone(self);
        let campaign = Campaign::start_with(lock, pace(), Clock::Runtime(Instant::now()));
        *self.leadership.lock() = Some(campaign.leadership());
        campaign
    }
}

impl LeaderLock for Puppet {
    fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    fn try_acquire(&self) -> BoxFuture<'_, Result<Attempt, LockError>> {
        Box::pin(async {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let Says { takes, held_until, .. } = self.says.lock().clone();
            tokio::time::sleep(takes).await;
            let left = held_until.map(|until| until.saturating_duration_since(Instant::now()));
            Ok(match left {
                Some(left) if !left.is_zero() => {
                    Attempt::Held(Holder { id: "b".into(), epoch: None, remaining: Some(left) })
                }
                Some(_) | None => Attempt::Granted(Grant { epoch: Epoch(7), memory: Memory::Kept }),
            })
        })
    }

    fn renew(&self, _: Epoch) -> BoxFuture<'_, Result<Renewal, LockError>> {
        let takes = self.says.lock().renewal;
        Box::pin(async move {
            tokio::time::sleep(takes).await;
            Ok(Renewal::Kept)
        })
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        self.released.lock().push(epoch);
        let leadership = self.leadership.lock();
        let now = leadership.as_ref().map(|leadership| leadership.borrow());
        if now.is_some_and(|now| matches!(*now, Leadership::Leading(_))) {
            self.led.store(true, Ordering::Relaxed);
        }
        Box::pin(async { Ok(()) })
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        Box::pin(async { Ok(None) })
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        let vacated = self.says.lock().vacated;
        Box::pin(async move {
            if !vacated {
                std::future::pending::<()>().await;
            }
        })
    }

    fn saw(&self, _: Epoch) {}
}

#[tokio::test(start_paused = true)]
async fn whoever_stands_down_while_it_asks_gives_back_what_it_gets() {
    let lock = Puppet::new();
    lock.say(|says| says.takes = Duration::from_millis(500));
    let campaign = lock.runs();
    tokio::time::sleep(Duration::from_millis(100)).await;
    campaign.stand(false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(*lock.released.lock(), [Epoch(7)]);
    assert!(!lock.led.load(Ordering::Relaxed), "it said that it leads");
    campaign.stop().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_while_it_asks_gives_back_what_it_gets() {
    let lock = Puppet::new();
    lock.say(|says| says.takes = Duration::from_millis(500));
    let campaign = lock.runs();
    tokio::time::sleep(Duration::from_millis(100)).await;
    campaign.stop().await;
    assert_eq!(*lock.released.lock(), [Epoch(7)]);
    assert!(!lock.led.load(Ordering::Relaxed), "it said that it leads");
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_granted_unheard_is_given_back() {
    let lock = Puppet::new();
    lock.say(|says| says.takes = LONG);
    let campaign = lock.runs();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    lock.say(|says| says.takes = Duration::ZERO);
    campaign.stop().await;
    assert_eq!(*lock.released.lock(), [Epoch(7)]);
    assert!(start.elapsed() <= LAST_WORD, "it took {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_never_answers_does_not_keep_anybody_from_stopping() {
    let lock = Puppet::new();
    lock.say(|says| says.takes = LONG);
    let campaign = lock.runs();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    campaign.stop().await;
    assert!(start.elapsed() <= LAST_WORD * 3, "it took {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_while_work_ends_are_given_up_and_made_again() {
    let lock = Puppet::new();
    let campaign = lock.runs();
    let mut leadership = campaign.leadership();
    leadership.wait_for(|now| now.office().is_some()).await.unwrap();
    let office = leadership.borrow().office().cloned().unwrap();
    let gone = office.gone();
    let work = office.work().spawn(async move {
        tokio::time::sleep(Duration::from_secs(8)).await;
        !gone.is_cancelled()
    });
    lock.say(|says| says.renewal = LONG);
    campaign.stand(false);
    office.over().cancelled().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    lock.say(|says| says.renewal = Duration::ZERO);
    assert!(work.await.unwrap(), "somebody else may have had it");
    campaign.stop().await;
    assert!(office.gone().is_cancelled());
    assert_eq!(*lock.released.lock(), [Epoch(7)]);
}

#[tokio::test(start_paused = true)]
async fn an_office_that_cannot_be_renewed_is_gone_in_time_also_while_work_ends() {
    let lock = Puppet::new();
    let campaign = lock.runs();
    let mut leadership = campaign.leadership();
    leadership.wait_for(|now| now.office().is_some()).await.unwrap();
    let office = leadership.borrow().office().cloned().unwrap();
    office.work().spawn(tokio::time::sleep(LONG));
    lock.say(|says| says.renewal = LONG);
    let start = Instant::now();
    campaign.stand(false);
    office.gone().cancelled().await;
    assert!(start.elapsed() <= TTL, "after {:?}", start.elapsed());
    drop(campaign);
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_time_is_over_is_taken_at_once() {
    for left in [1, 150, 1_000, 4_321] {
        let lock = Puppet::new();
        let until = Instant::now() + Duration::from_millis(left);
        lock.say(|says| says.held_until = Some(until));
        let campaign = lock.runs();
        campaign.leadership().wait_for(|now| now.office().is_some()).await.unwrap();
        assert!(until.elapsed() < Duration::from_millis(100), "after {:?}", until.elapsed());
        campaign.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_never_let_go_of_is_not_asked_without_rest() {
    let lock = Puppet::new();
    lock.say(|says| (says.vacated, says.held_until) = (true, Some(Instant::now() + LONG)));
    let campaign = lock.runs();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let asked = lock.asked.load(Ordering::Relaxed);
    assert!((10..100).contains(&asked), "asked {asked} times");
    campaign.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_given_up_is_still_a_stop() {
    let lock = Puppet::new();
    let campaign = lock.runs();
    campaign.leadership().wait_for(|now| now.office().is_some()).await.unwrap();
    let office = campaign.leadership().borrow().office().cloned().unwrap();
    office.work().spawn(tokio::time::sleep(Duration::from_secs(3)));
    assert!(tokio::time::timeout(Duration::from_secs(1), campaign.stop()).await.is_err());
    campaign.stop().await;
    assert_eq!(*lock.released.lock(), [Epoch(7)]);
    let lost = campaign.leadership().borrow().clone();
    assert!(matches!(lost, Leadership::Following { lost: Some(Loss::Resigned), .. }));
}
