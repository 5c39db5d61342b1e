//! One task of a leader: wait for its time, claim it, run it, record it. Nothing overlaps, because
//! one after the other is done here and nobody else holds the office.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lockd_elect::Office;

use crate::coordinator::{Task, TaskContext};
use crate::registry::{Fault, Swap, Swapped};
use crate::shared::Shared;
use crate::task::{Claim, Mark, Next, Outcome, Run};

/// Pauses while the registry cannot be asked.
const PAUSE_MIN: Duration = Duration::from_millis(100);
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The registry's clock may be set: it is looked at at least this often.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The longest text of an error that is recorded.
const ERROR_MAX: usize = 1_024;

/// Keeps a task as long as the office is held. Nothing up to `floor` is run.
pub(crate) async fn keep(
    shared: Arc<Shared>,
    office: Office,
    task: Arc<Task>,
    mark: Option<Mark>,
    floor: u64,
) {
    let keeper = Keeper { shared: &shared, office: &office, task: &task, floor };
    keeper.keep(mark).await;
}

struct Keeper<'a> {
    shared: &'a Shared,
    office: &'a Office,
    task: &'a Task,
    floor: u64,
}

/// What came of a change.
enum Change {
    Done(Mark),
    /// It is so now; think again.
    Again(Option<Mark>),
    /// Another one leads.
    Over,
}

impl Keeper<'_> {
    async fn keep(&self, mut mark: Option<Mark>) {
        let (over, mut pause) = (self.office.over(), PAUSE_MIN);
        while !over.is_cancelled() {
            let stepped = tokio::select! {
                () = over.cancelled() => return,
                stepped = self.step(&mark) => stepped,
            };
            // What is begun goes on when the office is over, until it is gone.
            let done = match stepped {
                Ok(Step::Change(change)) => Ok(change),
                Ok(Step::Run(mark, claim)) => self.run(mark, claim).await,
                Err(fault) => Err(fault),
            };
            match done {
                Ok(Change::Done(new)) => (mark, pause) = (Some(new), PAUSE_MIN),
                Ok(Change::Again(new)) => (mark, pause) = (new, PAUSE_MIN),
                Ok(Change::Over) => return,
                Err(fault) => {
                    tracing::warn!(%fault, task = %self.task.name, "the task has to wait");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Up to the next change, or a run that is due. May be dropped at any point: a claim whose
    /// answer was lost is found again.
    async fn step(&self, mark: &Option<Mark>) -> Result<Step, Fault> {
        let task = self.task;
        let Some(now) = self.shared.time.now() else {
            return Err(Fault::Unavailable("the registry's time is not known yet".into()));
        };
        let seen = self.shared.seen.get(&task.name).map_or(0, |seen| seen.last);
        let wanted = Mark::defined(mark.as_ref(), &task.schedule, task.delay_ms(), now)
            .raised(seen)
            .forgotten_up_to(self.floor, self.office.epoch.0);
        let changed = match wanted.next(&task.schedule, task.missed, now, self.office.epoch.0) {
            Next::Run(claim) => return Ok(Step::Run(wanted, claim)),
            Next::Claim { time, manual } => {
                let instance = self.shared.settings.instance_id.clone();
                let epoch = self.office.epoch.0;
                let claim = Claim { time, epoch, started: now, instance, manual };
                self.change(mark, wanted.claimed(claim), None).await?
            }
            Next::Settle(claim) => {
                let run = run_of(&claim, Outcome::Lost, 0, Some("its leader went".into()));
                match wanted.finished(&claim, self.office.epoch.0) {
                    Some(new) => self.change(mark, new, Some(&run)).await?,
                    None => Change::Again(Some(wanted)),
                }
            }
            Next::Wait(_) if Some(&wanted) != mark.as_ref() => {
                self.change(mark, wanted, None).await?
            }
            Next::Wait(until) => Change::Again(self.wait(wanted, now, until).await),
        };
        Ok(Step::Change(changed))
    }

    /// Until it is due, or somebody has changed the task.
    async fn wait(&self, mark: Mark, now: u64, until: Option<u64>) -> Option<Mark> {
        let clock = &self.shared.clock;
        let due = async {
            match until {
                Some(until) => {
                    let left = Duration::from_millis(until.saturating_sub(now)).min(LOOK_AGAIN);
                    clock.sleep_until(clock.now().plus(left)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::pin!(due);
        loop {
            let changes = self.shared.seen.changes();
            tokio::pin!(changes);
            changes.as_mut().enable();
            if let Some(seen) = self.shared.seen.get(&self.task.name)
                && seen.revision > mark.revision
            {
                return Some(seen);
            }
            tokio::select! {
                () = &mut due => return Some(mark),
                () = changes => {}
            }
        }
    }

    async fn change(
        &self,
        old: &Option<Mark>,
        mut new: Mark,
        run: Option<&Run>,
    ) -> Result<Change, Fault> {
        let old = old.as_ref().map(|old| old.revision);
        new.revision = old.unwrap_or(0) + 1;
        let (task, under) = (self.task.name.as_str(), Some(self.office.epoch));
        let swapped = self.shared.registry.swap(Swap { task, old, new: &new, under, run }).await?;
        Ok(match swapped {
            Swapped::Done => {
                self.shared.seen.saw(task, &new);
                if let Some(run) = run {
                    self.shared.counts.ran(task, run.outcome);
                }
                Change::Done(new)
            }
            Swapped::Changed(now) => {
                if let Some(now) = &now {
                    self.shared.seen.saw(task, now);
                }
                Change::Again(now)
            }
            Swapped::NotLeader => Change::Over,
        })
    }

    /// Runs what was claimed, and records it unless somebody else leads by then.
    async fn run(&self, mark: Mark, claim: Claim) -> Result<Change, Fault> {
        let gone = self.office.gone();
        let began = self.shared.clock.now();
        let ended = tokio::select! {
            biased;
            () = gone.cancelled() => None,
            ended = self.ended(&claim) => Some(ended),
        };
        let Some((outcome, error)) = ended else {
            tracing::warn!(task = %self.task.name, "dropped in the middle: no longer the leader");
            return Ok(Change::Over);
        };
        if let Some(error) = &error {
            tracing::warn!(task = %self.task.name, outcome = outcome.as_str(), %error, "a run ended");
        }
        let took = self.shared.clock.now().since(began).as_millis();
        let run = run_of(&claim, outcome, u64::try_from(took).unwrap_or(u64::MAX), error);
        let recorded = tokio::select! {
            biased;
            () = gone.cancelled() => Change::Over,
            recorded = self.record(mark, &claim, &run) => recorded,
        };
        if matches!(recorded, Change::Over) {
            tracing::warn!(task = %self.task.name, "a run was not recorded: no longer the leader");
        }
        Ok(recorded)
    }

    /// Until it is certain. A record that is there already is not made again: the claim is gone.
    async fn record(&self, mut mark: Mark, claim: &Claim, run: &Run) -> Change {
        let mut pause = PAUSE_MIN;
        loop {
            let Some(new) = mark.finished(claim, self.office.epoch.0) else {
                return Change::Again(Some(mark));
            };
            match self.change(&Some(mark.clone()), new, Some(run)).await {
                Ok(Change::Again(Some(now))) => mark = now,
                Ok(change) => return change,
                Err(fault) => {
                    tracing::warn!(%fault, task = %self.task.name, "a run is not recorded yet");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    async fn ended(&self, claim: &Claim) -> (Outcome, Option<String>) {
        let over = self.office.over();
        let context = TaskContext {
            name: self.task.name.clone(),
            scheduled_at_ms: claim.time,
            epoch: self.office.epoch,
            manual: claim.manual,
            cancelled: over.clone(),
        };
        let body = AssertUnwindSafe(async { (self.task.body)(context).await }).catch_unwind();
        let ended = match self.task.timeout {
            Some(longest) => tokio::time::timeout(longest, body).await.ok(),
            None => Some(body.await),
        };
        match ended {
            Some(Ok(Ok(()))) => (Outcome::Ok, None),
            Some(Ok(Err(error))) if over.is_cancelled() => (Outcome::Cancelled, cut(error)),
            Some(Ok(Err(error))) => (Outcome::Failed, cut(error)),
            Some(Err(_)) => (Outcome::Failed, Some("the task panicked".into())),
            None => (Outcome::Timeout, Some("it took longer than it may".into())),
        }
    }
}

enum Step {
    Change(Change),
    Run(Mark, Claim),
}

fn run_of(claim: &Claim, outcome: Outcome, duration_ms: u64, error: Option<String>) -> Run {
    Run {
        scheduled_at_ms: claim.time,
        epoch: claim.epoch,
        instance_id: claim.instance.clone(),
        started_at_ms: claim.started,
        duration_ms,
        outcome,
        error,
        manual: claim.manual,
    }
}

fn cut(mut error: String) -> Option<String> {
    if error.len() > ERROR_MAX {
        let end = (0..=ERROR_MAX).rev().find(|at| error.is_char_boundary(*at)).unwrap_or(0);
        error.truncate(end);
    }
    Some(error)
}
