//! Work is given out, renewed and given back, and its results are taken. Whoever waits for work
//! gets it in the order of arrival; work that nobody took home goes to the next.

use std::sync::Arc;
use std::time::Duration;

use lockd_wire::job::{
    LeaseAsk, LeaseClaim, LeaseGrant, Renewed, ResultKept, ResultReport, STALE_EPOCH, StaleEpoch,
};

use super::commit::Change;
use super::line::Waiter;
use super::office::Office;
use super::refusal::Refusal;
use super::submit::new_id;
use super::turn::{DOUBT_WAIT, Turn};
use crate::agent;
use crate::job::{Claim, Job, JobResult, Taker};
use crate::ledger::Kind;

/// The longest that anybody waits for work.
const WAIT_MAX: Duration = Duration::from_secs(30);
const WORD_MAX: usize = 200;

impl Office {
    /// Work for an agent, if there is any in time.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        ask: &LeaseAsk,
    ) -> Result<Option<LeaseGrant>, Refusal> {
        let arrived = self.time.now();
        self.is_meant(ask.leader_epoch)?;
        let taker = taker(ask)?;
        self.saw_agent(&taker)?;
        let wait = Duration::from_secs(ask.wait_seconds).min(WAIT_MAX);
        let ends = self.time.moment().plus(wait);
        loop {
            if let Some(job) = self.given_before(&taker).await? {
                return Ok(Some(self.grant(&job, arrived)?));
            }
            let left = ends.since(self.time.moment());
            let turn = match self.wait_for_work(&taker, left).await? {
                Comes::Turn(turn) => turn,
                Comes::Before => continue,
                Comes::Nothing => return Ok(None),
            };
            let (now, ttl) = (self.time.now(), self.settings.lease_ttl_ms());
            let (is_refused, job) = {
                let desk = self.desk.lock();
                (desk.refuses(&taker), desk.board.get(&turn.id).cloned())
            };
            if is_refused {
                return Err(Refusal::AgentDeleted);
            }
            let leased = job
                .and_then(|job| job.leased(taker.clone(), new_id(), self.epoch, (now, ttl)).ok());
            // Its deadline has come in between.
            let Some(job) = leased else { continue };
            let mut errand = Errand::new(self, &job);
            self.commit(turn, Change::Job(Box::new(job.clone()))).await?;
            let grant = self.grant(&job, arrived)?;
            errand.is_done();
            return Ok(Some(grant));
        }
    }

    /// The lease is counted from when the question arrived: whoever counts from before it asked is
    /// never late, however long it has waited. The attempt is counted from now.
    fn grant(&self, job: &Job, arrived: u64) -> Result<LeaseGrant, Refusal> {
        let lease = job.lease.as_ref().ok_or(Refusal::Unknown)?;
        Ok(LeaseGrant {
            lease_id: lease.id.clone(),
            job_id: job.id.clone(),
            job_epoch: lease.job_epoch,
            leader_epoch: self.epoch,
            ttl_ms: lease.expires_at_ms.saturating_sub(arrived),
            ends_in_ms: lease.ends_at_ms.saturating_sub(self.time.now()),
            attempt: job.attempts,
            spec: job.spec.clone(),
        })
    }

    /// What was given out upon the same question, whose answer was lost.
    async fn given_before(self: &Arc<Self>, taker: &Taker) -> Result<Option<Job>, Refusal> {
        if taker.request_id.is_empty() {
            return Ok(None);
        }
        let granting = self.desk.lock().granting.get(taker).cloned();
        if let Some(id) = granting {
            drop(self.turn(Kind::Job, &id, DOUBT_WAIT).await?);
        }
        Ok(self.desk.lock().board.taken_by(taker).cloned())
    }

    /// The turn to give out a job. A client that goes away drops this, and what was on its way goes
    /// to the next in line.
    async fn wait_for_work(
        self: &Arc<Self>,
        taker: &Taker,
        left: Duration,
    ) -> Result<Comes, Refusal> {
        let joined = {
            let mut desk = self.desk.lock();
            if !self.is_held() {
                return Err(Refusal::NotLeader);
            }
            // Since it was looked for: whoever asks twice at the same time gets one job.
            if desk.granting.contains_key(taker) || desk.board.taken_by(taker).is_some() {
                return Ok(Comes::Before);
            }
            if self.is_draining() {
                return Ok(Comes::Nothing);
            }
            desk.line.join(taker, self.settings.waiters_max)
        };
        let mut comes = joined.ok_or(Refusal::TooManyWaiters)?;
        self.dispatch();
        tokio::select! {
            biased;
            came = &mut comes => match came {
                Ok(turn) => return Ok(Comes::Turn(turn)),
                // The line was dissolved: the office is over, drains, or somebody took the place.
                Err(_) if self.over.is_cancelled() => return Err(Refusal::NotLeader),
                Err(_) => return Ok(Comes::Nothing),
            },
            () = self.time.sleep(left) => {}
        }
        comes.close();
        match comes.try_recv() {
            Ok(turn) => Ok(Comes::Turn(turn)),
            Err(_) if self.is_held() => Ok(Comes::Nothing),
            Err(_) => Err(Refusal::NotLeader),
        }
    }

    /// Brings those who wait together with the jobs that are ready.
    pub(crate) fn dispatch(self: &Arc<Self>) {
        while let Some((waiter, turn)) = self.pair() {
            if let Err(turn) = waiter.turn.send(turn) {
                turn.give_back();
            }
        }
    }

    fn pair(self: &Arc<Self>) -> Option<(Waiter, Turn)> {
        if !self.is_held() || self.is_draining() {
            return None;
        }
        let mut desk = self.desk.lock();
        let id = desk.board.next(self.time.now())?.id.clone();
        let waiter = loop {
            let waiter = desk.line.first()?;
            // It may have got in line when its deletion was under way.
            if !desk.refuses(&waiter.taker) {
                break waiter;
            }
        };
        match self.turn_at(&mut desk, Kind::Job, &id) {
            Ok(mut turn) => {
                turn.grants(&mut desk, &waiter.taker);
                Some((waiter, turn))
            }
            // Nothing that somebody changes is next; should it be, nobody loses its place.
            Err(_) => {
                desk.line.back_to_the_front(waiter);
                None
            }
        }
    }

    /// The attempt goes on.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        lease_id: &str,
        claim: &LeaseClaim,
    ) -> Result<Renewed, Refusal> {
        let arrived = self.time.now();
        let claimed = Claimed::new(lease_id, claim);
        let (turn, job) = self.claimed(&claimed).await?;
        let (now, ttl) = (self.time.now(), self.settings.lease_ttl_ms());
        let next = job.renewed(&claimed.claim(), (now, ttl));
        let next = next.map_err(|_| self.refused(&claimed, Some(&job)))?;
        let expires = next.lease.as_ref().map_or(now, |lease| lease.expires_at_ms);
        self.commit(turn, Change::Job(Box::new(next))).await?;
        let (job_epoch, leader_epoch) = (claim.job_epoch, self.epoch);
        Ok(Renewed { ttl_ms: expires.saturating_sub(arrived), job_epoch, leader_epoch })
    }

    /// The agent gives it back.
    pub(crate) async fn release(
        self: &Arc<Self>,
        lease_id: &str,
        claim: &LeaseClaim,
    ) -> Result<(), Refusal> {
        let claimed = Claimed::new(lease_id, claim);
        let (turn, job) = self.claimed(&claimed).await?;
        let next = job.released(&claimed.claim(), self.time.now());
        let next = next.map_err(|_| self.refused(&claimed, Some(&job)))?;
        self.commit(turn, Change::Job(Box::new(next))).await
    }

    /// What was given out and did not arrive, once it is certain that it was given out. It does not
    /// count as an attempt. Should it take too long, it lapses.
    async fn give_back(self: &Arc<Self>, claimed: &Claimed) {
        let patience = self.settings.lease_ttl;
        let Ok(turn) = self.turn(Kind::Job, &claimed.job_id, patience).await else { return };
        let job = self.desk.lock().board.get(&claimed.job_id).cloned();
        let back = job.and_then(|job| job.released(&claimed.claim(), self.time.now()).ok());
        let Some(back) = back else { return };
        tracing::debug!(id = %back.id, "work that nobody took home is given back");
        if let Err(refusal) = self.commit(turn, Change::Job(Box::new(back))).await {
            tracing::debug!(?refusal, "work that nobody took home is left to lapse");
        }
    }

    /// The attempt has ended. The same result, told again, gets the same answer.
    pub(crate) async fn conclude(
        self: &Arc<Self>,
        report: ResultReport,
    ) -> Result<ResultKept, Refusal> {
        let claimed = Claimed {
            lease_id: report.lease_id.clone(),
            job_id: report.job_id.clone(),
            job_epoch: report.job_epoch,
            leader_epoch: report.leader_epoch,
        };
        let (turn, job) = self.claimed(&claimed).await?;
        if job.has_result_of(&claimed.lease_id, claimed.job_epoch) {
            return Ok(self.kept(&job, claimed.job_epoch));
        }
        let now = self.time.now();
        let mut result = JobResult::told(report, now);
        if let Some(lease) = &job.lease {
            result.agent.clone_from(&lease.taker.agent);
        }
        let next = job.concluded(&claimed.claim(), result, now);
        let next = next.map_err(|_| self.refused(&claimed, Some(&job)))?;
        let kept = self.kept(&next, claimed.job_epoch);
        self.commit(turn, Change::Job(Box::new(next))).await?;
        Ok(kept)
    }

    fn kept(&self, job: &Job, job_epoch: u64) -> ResultKept {
        ResultKept {
            job_id: job.id.clone(),
            state: job.state.as_str().into(),
            job_epoch,
            leader_epoch: self.epoch,
        }
    }

    /// The job that a claim is about, and the turn to change it, if the claim is made to this
    /// leader.
    async fn claimed(self: &Arc<Self>, claimed: &Claimed) -> Result<(Turn, Job), Refusal> {
        if claimed.leader_epoch != self.epoch {
            let there = self.find(&claimed.job_id).await.ok();
            return Err(self.refused(claimed, there.as_ref()));
        }
        let turn = self.turn(Kind::Job, &claimed.job_id, Duration::ZERO).await?;
        match self.find(&claimed.job_id).await {
            Ok(job) => Ok((turn, job)),
            Err(Refusal::NotFound(_)) => Err(self.refused(claimed, None)),
            Err(refusal) => Err(refusal),
        }
    }

    /// What an agent whose claim is refused is told: whether its attempt is the job's, so that it
    /// may try again under this leader.
    fn refused(&self, claimed: &Claimed, job: Option<&Job>) -> Refusal {
        let detail = match claimed.leader_epoch == self.epoch {
            true => "of an attempt that is over",
            false => "of another leader",
        };
        let now = self.time.now();
        let job_epoch = job.and_then(|job| match &job.lease {
            Some(lease) if lease.id == claimed.lease_id && lease.expires_at_ms > now => {
                Some(lease.job_epoch)
            }
            Some(_) | None => {
                job.has_result_of(&claimed.lease_id, claimed.job_epoch).then_some(claimed.job_epoch)
            }
        });
        Refusal::StaleEpoch(Box::new(StaleEpoch {
            error: STALE_EPOCH.into(),
            detail: detail.into(),
            leader_epoch: Some(self.epoch),
            job_epoch,
            job_state: job.map(|job| job.state.as_str().into()),
        }))
    }
}

/// What comes to whoever asks for work.
enum Comes {
    Turn(Turn),
    /// Upon the same question a job is given out already.
    Before,
    Nothing,
}

/// A grant on its way to whoever asked. If that one goes away, and cannot ask the same question
/// again, the job is given back: nobody will ever run this attempt.
struct Errand {
    office: Arc<Office>,
    undelivered: Option<Claimed>,
}

impl Errand {
    fn new(office: &Arc<Office>, job: &Job) -> Self {
        let lease = job.lease.as_ref().filter(|lease| lease.taker.request_id.is_empty());
        let undelivered = lease.map(|lease| Claimed {
            lease_id: lease.id.clone(),
            job_id: job.id.clone(),
            job_epoch: lease.job_epoch,
            leader_epoch: lease.leader_epoch,
        });
        Self { office: Arc::clone(office), undelivered }
    }

    fn is_done(&mut self) {
        self.undelivered = None;
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        let Some(claimed) = self.undelivered.take() else { return };
        let office = Arc::clone(&self.office);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let tasks = office.tasks.clone();
            tasks.spawn_on(async move { office.give_back(&claimed).await }, &runtime);
        }
    }
}

/// A claim with its own words.
struct Claimed {
    lease_id: String,
    job_id: String,
    job_epoch: u64,
    leader_epoch: u64,
}

impl Claimed {
    fn new(lease_id: &str, claim: &LeaseClaim) -> Self {
        Self {
            lease_id: lease_id.into(),
            job_id: claim.job_id.clone(),
            job_epoch: claim.job_epoch,
            leader_epoch: claim.leader_epoch,
        }
    }

    fn claim(&self) -> Claim<'_> {
        Claim {
            lease_id: &self.lease_id,
            job_epoch: self.job_epoch,
            leader_epoch: self.leader_epoch,
        }
    }
}

fn taker(ask: &LeaseAsk) -> Result<Taker, Refusal> {
    if !agent::is_name(&ask.agent) {
        let why = "agent is a name: 1 to 100 letters, digits, '-', '_' and '.'";
        return Err(Refusal::Invalid(why.into()));
    }
    if ask.incarnation.len() > WORD_MAX || ask.request_id.len() > WORD_MAX {
        let why = format!("incarnation and request_id have at most {WORD_MAX} bytes");
        return Err(Refusal::Invalid(why));
    }
    Ok(Taker {
        agent: ask.agent.clone(),
        incarnation: ask.incarnation.clone(),
        request_id: ask.request_id.clone(),
    })
}
