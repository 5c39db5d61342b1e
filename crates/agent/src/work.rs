//! One attempt of a job: its program runs while its lease is kept, and what came of it is reported
//! until there is a definite answer. Without the lease the program is killed and nothing is said:
//! somebody else may be at it.

use std::future::Future;
use std::os::unix::process::ExitStatusExt as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use lockd_child::Program;
use lockd_client::clock::Moment;
use lockd_wire::job::{LeaseGrant, ResultReport};
use tokio_util::sync::CancellationToken;

use crate::agent::{Phase, Shared, reached};
use crate::call::Call;
use crate::claim::{Claim, Lost};
use crate::run::{Ends, Ran, Why, run};

/// One try of a report, and of giving work back, takes at most this long.
const REPORT_TRY: Duration = Duration::from_secs(5);
const RELEASE_TRY: Duration = Duration::from_secs(1);
/// A result is reported this long after the lease is over: a leader that has just come counts anew.
const REPORT_AFTER: Duration = Duration::from_secs(15);
/// How long an agent at its end goes on to tell controllers.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// What is left of an output that a controller finds too large.
const OUTPUT_SMALL: usize = 4 * 1024;

/// Work that was granted.
pub(crate) struct Work {
    shared: Arc<Shared>,
    claim: Claim,
    grant: LeaseGrant,
    granted: Moment,
    lost: CancellationToken,
}

/// What is to be said of it.
enum Verdict {
    GiveBack,
    Report(ResultReport),
}

impl Work {
    /// Granted just now to somebody who had asked then.
    pub(crate) fn new(shared: Arc<Shared>, grant: LeaseGrant, asked: Moment) -> Self {
        let claim = Claim::new(&grant, asked);
        let granted = shared.clock.now();
        Self { shared, claim, grant, granted, lost: CancellationToken::new() }
    }

    /// From its beginning to its end.
    pub(crate) async fn run(self) {
        let (job, epoch) = (&self.claim.job_id, self.claim.job_epoch);
        if let Err(lost) = self.confirm().await {
            tracing::warn!(job, epoch, ?lost, "a job was not begun: its lease is not certain");
            return;
        }
        tracing::info!(job, epoch, attempt = self.grant.attempt, "a job begins");
        let mut keep = pin!(self.claim.keep(&self.shared.controllers, &self.shared.clock));
        let ran = {
            let mut program = pin!(self.program());
            tokio::select! {
                biased;
                ran = &mut program => Some(ran),
                lost = &mut keep => {
                    tracing::warn!(job, epoch, ?lost, "a job is killed: its lease is lost");
                    self.lost.cancel();
                    let _killed = program.await;
                    None
                }
            }
        };
        let Some(ran) = ran else { return };
        match self.verdict(ran) {
            Verdict::GiveBack => self.give_back().await,
            Verdict::Report(report) => {
                let (success, code) = (report.success, report.exit_code);
                tracing::info!(job, epoch, success, code, "a job ended");
                self.report(report, keep).await;
            }
        }
    }

    /// A lease whose time has gone by while the question for work waited is renewed first.
    async fn confirm(&self) -> Result<(), Lost> {
        if self.claim.is_fresh(self.granted) {
            return Ok(());
        }
        let too_late = self.granted.plus(Duration::from_millis(self.grant.ttl_ms));
        tokio::select! {
            biased;
            () = reached(self.shared.phase(), Phase::Over) => Err(Lost::Over),
            done = self.claim.renew(&self.shared.controllers, &self.shared.clock, too_late) => done,
        }
    }

    async fn program(&self) -> Ran {
        let (grant, settings) = (&self.grant, &self.shared.settings);
        let mut environment: Vec<(String, String)> = grant.spec.env.clone().into_iter().collect();
        environment.extend([
            ("LOCKD_JOB_ID".into(), grant.job_id.clone()),
            ("LOCKD_JOB_EPOCH".into(), grant.job_epoch.to_string()),
            ("LOCKD_LEADER_EPOCH".into(), self.claim.leader_epoch().to_string()),
            ("LOCKD_JOB_ATTEMPT".into(), grant.attempt.to_string()),
            ("LOCKD_AGENT".into(), settings.name.clone()),
        ]);
        let program = Program {
            command: grant.spec.command.clone(),
            environment,
            hidden: settings.hidden.clone(),
            guard: settings.guard.clone(),
        };
        let longest = Duration::from_millis(grant.ends_in_ms);
        let now = (&self.shared.clock, self.granted);
        let ends = Ends::new(now, longest, &self.lost, self.shared.phase());
        run(&program, grant.spec.input.get().as_bytes(), settings.output_max, &ends).await
    }

    fn verdict(&self, ran: Ran) -> Verdict {
        let is_success = ran.ended.as_ref().is_ok_and(|status| status.success());
        let is_success = is_success && ran.why != Some(Why::TimedOut);
        match ran.why {
            // It was this agent that kept it from its end.
            Some(Why::Leaving | Why::Lost) if !is_success => return Verdict::GiveBack,
            Some(Why::Leaving | Why::Lost | Why::TimedOut) | None => {}
        }
        let killed_by = |signal| format!("killed by signal {signal}");
        let (exit_code, error) = match ran.ended {
            Ok(status) => (status.code(), status.signal().map(killed_by)),
            Err(error) => (None, Some(error)),
        };
        let timed_out = || (ran.why == Some(Why::TimedOut)).then(|| "timed out".to_owned());
        Verdict::Report(ResultReport {
            lease_id: self.claim.lease_id.clone(),
            job_id: self.claim.job_id.clone(),
            job_epoch: self.claim.job_epoch,
            leader_epoch: 0,
            agent: self.shared.settings.name.clone(),
            success: is_success,
            exit_code,
            output: ran.output.text,
            truncated: ran.output.is_cut,
            error: timed_out().or(error),
        })
    }

    /// Until it is kept, refused, or too late. The lease is kept on meanwhile.
    async fn report(&self, report: ResultReport, keep: Pin<&mut impl Future<Output = Lost>>) {
        let (job, epoch) = (&self.claim.job_id, self.claim.job_epoch);
        let kept = async {
            // A lease that is lost now is told by the answer to the report itself.
            let _lost = keep.await;
            std::future::pending::<()>().await;
        };
        let answered = tokio::select! {
            biased;
            answered = self.reported(report) => Some(answered),
            () = kept => None,
            () = self.too_late() => None,
            () = self.last_words() => None,
        };
        match answered {
            Some(Ok(())) => tracing::debug!(job, epoch, "a result is kept"),
            Some(Err((status, code))) => {
                tracing::warn!(job, epoch, status, %code, "a result was refused");
            }
            None => tracing::warn!(job, epoch, "a result could not be reported in time"),
        }
    }

    async fn reported(&self, mut report: ResultReport) -> Result<(), (u16, String)> {
        let (controllers, clock) = (&self.shared.controllers, &self.shared.clock);
        loop {
            let call = (Call::Result, REPORT_TRY);
            let body = |leader_epoch| ResultReport { leader_epoch, ..report.clone() };
            match self.claim.definite(controllers, clock, call, body).await {
                Ok(_) => return Ok(()),
                Err(refusal) if refusal.status == 413 && report.output.len() > OUTPUT_SMALL => {
                    let cut = report.output.len() - OUTPUT_SMALL;
                    let cut = report.output.ceil_char_boundary(cut);
                    report.output.drain(..cut);
                    report.truncated = true;
                }
                Err(refusal) => return Err((refusal.status, refusal.code)),
            }
        }
    }

    async fn too_late(&self) {
        let clock = &self.shared.clock;
        let ends = self.granted.plus(Duration::from_millis(self.grant.ends_in_ms));
        loop {
            let too_late = self.claim.until().min(ends).plus(REPORT_AFTER);
            if clock.now() >= too_late {
                return;
            }
            clock.sleep_until(too_late).await;
        }
    }

    /// Work that was not done, or not to its end, can be given out again at once.
    pub(crate) async fn give_back(&self) {
        let (job, epoch) = (&self.claim.job_id, self.claim.job_epoch);
        let (controllers, clock) = (&self.shared.controllers, &self.shared.clock);
        let call = (Call::Release(&self.claim.lease_id), RELEASE_TRY);
        let body = |leader_epoch| self.claim.shown(leader_epoch);
        let given = tokio::select! {
            biased;
            given = self.claim.definite(controllers, clock, call, body) => Some(given.is_ok()),
            () = self.too_late() => None,
            () = self.last_words() => None,
        };
        match given {
            Some(true) => tracing::info!(job, epoch, "a job was given back"),
            Some(false) => tracing::info!(job, epoch, "a job was not given back: it is over"),
            None => tracing::warn!(job, epoch, "a job could not be given back in time"),
        }
    }

    async fn last_words(&self) {
        reached(self.shared.phase(), Phase::Over).await;
        tokio::time::sleep(LAST_WORDS).await;
    }
}
