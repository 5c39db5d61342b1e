//! Running for the lock, leading, and losing it. The leader counts from before it asked, on a clock
//! that runs through suspend; its office is over by that count, whatever the lock says later.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::{Clock, Moment};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lock::{Attempt, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal};

/// How often things are done.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A leader renews this often.
    pub renew_every: Duration,
    /// Everybody else looks at least this often.
    pub look_every: Duration,
    /// How long work may take to end when the office is given up on purpose.
    pub grace: Duration,
    /// An office that was not renewed is in doubt, and over, this long before its time: work in it
    /// can still end while nobody else can have it.
    pub notice: Duration,
}

/// After the holder's time is over, so that it is over there too.
const AFTER_END: Duration = Duration::from_millis(20);
/// The longest rest between two looks at a lock that seems to be free and is not.
const REST_MAX: Duration = Duration::from_millis(160);
/// Pauses after a lock that could not be asked: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A request is given at least this long, however short the time to live is. Offices end by their
/// own count, not by an answer.
const PATIENCE_MIN: Duration = Duration::from_millis(1_200);
/// How long whoever stops still waits for an answer, in order to give back what it may have got.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What is known about who leads.
#[derive(Clone, Debug)]
pub enum Leadership {
    /// Somebody else does, or nobody, or it is not known.
    Following {
        leader: Option<Holder>,
        /// How the latest office of this candidate ended.
        lost: Option<Loss>,
    },
    Leading(Office),
}

impl Leadership {
    /// The office, if it is held at this moment.
    #[must_use]
    pub fn office(&self) -> Option<&Office> {
        match self {
            Self::Leading(office) if office.is_held() => Some(office),
            Self::Leading(_) | Self::Following { .. } => None,
        }
    }
}

/// A leadership from its grant to its end.
#[derive(Clone, Debug)]
pub struct Office {
    pub epoch: Epoch,
    pub memory: Memory,
    since: Moment,
    /// When the answer was there: [`Memory::Lost`] counts to the moment of the grant, which was
    /// not later.
    answered: Moment,
    clock: Clock,
    until: Arc<Mutex<Moment>>,
    over: CancellationToken,
    gone: CancellationToken,
    work: TaskTracker,
}

impl Office {
    fn new(grant: &Grant, clock: &Clock, sent: Moment, ttl: Duration) -> Self {
        Self {
            epoch: grant.epoch,
            memory: grant.memory,
            since: sent,
            answered: clock.now(),
            clock: clock.clone(),
            until: Arc::new(Mutex::new(sent.plus(ttl))),
            over: CancellationToken::new(),
            gone: CancellationToken::new(),
            work: TaskTracker::new(),
        }
    }

    /// Whether it is certainly held, by this machine's own count.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.over.is_cancelled() && self.clock.now() < *self.until.lock()
    }

    /// How long it is certainly held if it is not renewed again.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.over.is_cancelled() {
            return Duration::ZERO;
        }
        self.until.lock().since(self.clock.now())
    }

    /// What is left of `span`, counted from when the lock may have forgotten something; `None` if
    /// it has forgotten nothing.
    #[must_use]
    pub fn waits_out(&self, span: Duration) -> Option<Duration> {
        match self.memory {
            Memory::Kept => None,
            Memory::Lost { ago } => {
                let since = ago.saturating_add(self.clock.now().since(self.answered));
                Some(span.saturating_sub(since))
            }
        }
    }

    /// How long ago it was asked for.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.clock.now().since(self.since)
    }

    /// Fires the moment the office is lost, given up or in doubt.
    #[must_use]
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Fires when somebody else may have the lock: work that has not ended by then must not go on.
    /// Never before [`Office::over`].
    #[must_use]
    pub fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// Work that is done in office: when it is given up on purpose, the lock is kept until all of
    /// it has ended, or the grace is over.
    #[must_use]
    pub fn work(&self) -> &TaskTracker {
        &self.work
    }
}

/// A candidate that runs, until it is stopped.
#[derive(Debug)]
pub struct Campaign {
    leadership: watch::Receiver<Leadership>,
    stands: watch::Sender<bool>,
    stop: CancellationToken,
    runs: TaskTracker,
}

impl Campaign {
    /// Starts to run in the background.
    #[must_use]
    pub fn start(lock: Arc<dyn LeaderLock>, pace: Pace) -> Self {
        Self::start_with(lock, pace, Clock::Boot)
    }

    /// As [`Campaign::start`], with another clock.
    #[must_use]
    pub fn start_with(lock: Arc<dyn LeaderLock>, pace: Pace, clock: Clock) -> Self {
        let (told, leadership) = watch::channel(Leadership::Following { leader: None, lost: None });
        let stop = CancellationToken::new();
        let (stands, standing) = watch::channel(true);
        let runner = Runner { lock, pace, clock, told, standing, stop: stop.clone() };
        let runs = TaskTracker::new();
        runs.spawn(runner.run());
        runs.close();
        Self { leadership, stands, stop, runs }
    }

    /// Who leads, now and from now on.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leadership.borrow().office().is_some()
    }

    /// Whether it runs for the lock. One that does not gives up the office, if held, and only looks
    /// who leads.
    pub fn stand(&self, stands: bool) {
        self.stands.send_if_modified(|was| std::mem::replace(was, stands) != stands);
    }

    /// Gives up the office, if held, and runs no more.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.runs.wait().await;
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

struct Runner {
    lock: Arc<dyn LeaderLock>,
    pace: Pace,
    clock: Clock,
    told: watch::Sender<Leadership>,
    standing: watch::Receiver<bool>,
    stop: CancellationToken,
}

impl Runner {
    async fn run(self) {
        let mut pause = PAUSE_MIN;
        let mut rest = Duration::ZERO;
        let mut lost = None;
        // Whether the lock may have granted something that was not heard of.
        let mut unsure = false;
        while !self.stop.is_cancelled() {
            let sent = self.clock.now();
            let stands = *self.standing.borrow();
            if unsure && !stands {
                unsure = false;
                self.settle().await;
            }
            match self.answer(stands).await {
                Ok(Attempt::Granted(grant)) => {
                    (pause, rest, unsure) = (PAUSE_MIN, Duration::ZERO, false);
                    if self.gives_up() {
                        self.release(grant.epoch).await;
                        continue;
                    }
                    lost = Some(self.lead(&grant, sent).await);
                    self.tell(None, lost.clone());
                }
                Ok(Attempt::Held(holder)) => {
                    (pause, unsure) = (PAUSE_MIN, false);
                    let ends = holder.remaining.map(|left| left.saturating_add(AFTER_END));
                    self.tell(Some(holder).filter(|holder| !holder.id.is_empty()), lost.clone());
                    let ends = ends.filter(|_| stands).unwrap_or(self.pace.look_every);
                    rest = self.wait(stands, ends.min(self.pace.look_every), rest).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the lock cannot be asked");
                    unsure |= stands;
                    self.tell(None, lost.clone());
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = self.stands_otherwise_than(stands) => {}
                        () = tokio::time::sleep(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0)) => {}
                    }
                    pause = (pause * 2).min(PAUSE_MAX).min(self.patience());
                }
            }
        }
        if unsure {
            self.settle().await;
        }
    }

    /// Until it is worth asking again: when the holder's time `ends`, or somebody let go. Whoever
    /// comes for nothing rests longer and longer before the next time; tells how long.
    async fn wait(&self, stands: bool, ends: Duration, rest: Duration) -> Duration {
        let start = self.clock.now();
        let vacated = async {
            tokio::time::sleep(rest).await;
            self.lock.vacated().await;
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.stands_otherwise_than(stands) => {}
            () = vacated, if stands => {}
            () = tokio::time::sleep(ends.max(rest)) => {}
        }
        if self.clock.now().since(start) > REST_MAX {
            return Duration::ZERO;
        }
        (rest * 2).clamp(AFTER_END, REST_MAX)
    }

    /// The answer to one request, in time. Whoever stops meanwhile does not wait as long for it.
    async fn answer(&self, stands: bool) -> Result<Attempt, LockError> {
        let asked = tokio::time::timeout(self.patience(), self.ask(stands));
        let last_word = async {
            self.stop.cancelled().await;
            tokio::time::sleep(LAST_WORD).await;
        };
        tokio::select! {
            biased;
            answer = asked => answer.unwrap_or_else(|_| Err(silent())),
            () = last_word => Err(silent()),
        }
    }

    /// What may have been granted without being heard of is asked for again, and given back.
    async fn settle(&self) {
        let asked = tokio::time::timeout(LAST_WORD, self.lock.try_acquire()).await;
        if let Ok(Ok(Attempt::Granted(grant))) = asked {
            self.release(grant.epoch).await;
        }
    }

    fn gives_up(&self) -> bool {
        self.stop.is_cancelled() || !*self.standing.borrow()
    }

    /// One that does not stand only looks.
    async fn ask(&self, stands: bool) -> Result<Attempt, LockError> {
        if stands {
            return self.lock.try_acquire().await;
        }
        Ok(Attempt::Held(self.lock.observe().await?.unwrap_or_default()))
    }

    async fn stands_otherwise_than(&self, stood: bool) {
        let mut standing = self.standing.clone();
        if standing.wait_for(|stands| *stands != stood).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn tell(&self, leader: Option<Holder>, lost: Option<Loss>) {
        self.told.send_replace(Leadership::Following { leader, lost });
    }

    /// No request may take so long that the next one comes too late.
    fn patience(&self) -> Duration {
        (self.lock.ttl() / 3).max(PATIENCE_MIN)
    }

    /// When a renewal that failed is tried again.
    fn again(&self) -> Duration {
        (self.lock.ttl() / 10).min(PAUSE_MAX)
    }

    async fn lead(&self, grant: &Grant, sent: Moment) -> Loss {
        let office = Office::new(grant, &self.clock, sent, self.lock.ttl());
        self.told.send_replace(Leadership::Leading(office.clone()));
        let loss = self.hold(&office, sent).await;
        // Whoever works in office hears of it before anybody else can have it.
        office.over.cancel();
        office.work.close();
        match &loss {
            Loss::Resigned => {
                self.keep_while_working(&office).await;
                office.gone.cancel();
                self.release(office.epoch).await;
            }
            Loss::Expired(_) => {
                let until = *office.until.lock();
                tokio::select! {
                    () = office.work.wait() => {}
                    () = self.clock.sleep_until(until) => {}
                }
            }
            Loss::TakenBy(_) | Loss::Vanished => {}
        }
        office.gone.cancel();
        loss
    }

    async fn release(&self, epoch: Epoch) {
        let released = tokio::time::timeout(self.patience(), self.lock.release(epoch)).await;
        if let Err(error) = released.unwrap_or_else(|_| Err(silent())) {
            tracing::warn!(%error, "the lock was not released; it runs out by itself");
        }
    }

    /// Renews until it is over.
    async fn hold(&self, office: &Office, sent: Moment) -> Loss {
        let mut due = sent.plus(self.pace.renew_every);
        let mut in_doubt = sent.plus(self.lock.ttl().saturating_sub(self.pace.notice));
        let mut why = String::from("no answer");
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Loss::Resigned,
                () = self.stands_otherwise_than(true) => return Loss::Resigned,
                () = self.clock.sleep_until(in_doubt) => return Loss::Expired(why),
                () = self.lock.shaken() => {}
                () = self.clock.sleep_until(due) => {}
            }
            let asked = self.clock.now();
            let renewal = tokio::select! {
                biased;
                () = self.stop.cancelled() => return Loss::Resigned,
                () = self.stands_otherwise_than(true) => return Loss::Resigned,
                () = self.clock.sleep_until(in_doubt) => return Loss::Expired(why),
                renewal = tokio::time::timeout(self.patience(), self.lock.renew(office.epoch)) => {
                    renewal.unwrap_or_else(|_| Err(silent()))
                }
            };
            match renewal {
                Ok(Renewal::Kept) => {
                    *office.until.lock() = asked.plus(self.lock.ttl());
                    in_doubt = asked.plus(self.lock.ttl().saturating_sub(self.pace.notice));
                    due = asked.plus(self.pace.renew_every);
                }
                Ok(Renewal::Lost(loss)) => return loss,
                Err(error) => {
                    tracing::warn!(%error, epoch = %office.epoch, "not renewed");
                    why = error.to_string();
                    due = self.clock.now().plus(self.again());
                }
            }
        }
    }

    /// The office is over for those who work in it; the lock is kept until they have heard, or the
    /// grace is over.
    async fn keep_while_working(&self, office: &Office) {
        let renewing = async {
            loop {
                // At once: a renewal that was under way when the office was given up is lost.
                let asked = self.clock.now();
                let renewal = tokio::time::timeout(self.patience(), self.lock.renew(office.epoch));
                let next = match renewal.await.unwrap_or_else(|_| Err(silent())) {
                    Ok(Renewal::Kept) => {
                        *office.until.lock() = asked.plus(self.lock.ttl());
                        self.pace.renew_every
                    }
                    Ok(Renewal::Lost(_)) => return,
                    Err(error) => {
                        tracing::warn!(%error, epoch = %office.epoch, "not renewed");
                        self.again()
                    }
                };
                tokio::time::sleep(next).await;
            }
        };
        let running_out = async {
            loop {
                let until = *office.until.lock();
                self.clock.sleep_until(until).await;
                if until == *office.until.lock() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = office.work.wait() => {}
            () = renewing => {}
            () = running_out => {}
            () = tokio::time::sleep(self.pace.grace) => {
                tracing::warn!(epoch = %office.epoch, "work goes on after the grace");
            }
        }
    }
}

fn silent() -> LockError {
    LockError::Unavailable("no answer in time".into())
}

#[cfg(test)]
mod tests;
