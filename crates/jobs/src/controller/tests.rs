//! Controllers over a store in memory that loses answers, is late, and knows who leads.

mod duties;
pub(crate) mod memory;
mod offices;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use lockd_client::clock::Clock;
use lockd_wire::job::{JobSpec, LeaseAsk, LeaseClaim, LeaseGrant, ResultReport};
use lockd_wire::node::{Assignment, Role};
use tokio::sync::watch;

use super::submit::TakenIn;
use super::time::Time;
use super::*;
use crate::job::Job;
use crate::ledger::Kind;
use memory::{Memory, Reach};

/// One node, and whoever tells it what to be.
pub(crate) struct Node {
    pub(crate) reach: Arc<Reach>,
    pub(crate) orders: watch::Sender<Orders>,
    pub(crate) controller: Controller,
}

const A_DAY_MS: u64 = 24 * 3_600_000;

impl Node {
    pub(crate) fn start(memory: &Arc<Memory>, name: &str) -> Self {
        Self::start_with(memory, name, A_DAY_MS, |_| {})
    }

    /// With the clock on the wall so far ahead.
    pub(crate) fn start_with(
        memory: &Arc<Memory>,
        name: &str,
        ahead_ms: u64,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let reach = Arc::new(Reach::new(memory));
        let (orders, told) = watch::channel(Orders::default());
        let mut settings = Settings::new(name, Source::Told(told));
        settings.url = Some(format!("http://{name}"));
        change(&mut settings);
        let clock = Clock::Runtime(tokio::time::Instant::now());
        let time = Time { clock, ahead_ms };
        let controller = Controller::start_at(settings, Arc::clone(&reach) as _, time);
        Self { reach, orders, controller }
    }

    pub(crate) fn order(&self, role: Role, epoch: u64) {
        self.orders.send_modify(|orders| {
            orders.assignment = Assignment {
                version: orders.assignment.version + 1,
                role,
                leader_epoch: Some(epoch),
                ..Assignment::default()
            };
        });
    }

    /// Until it has acted upon the latest order.
    pub(crate) async fn settled(&self) -> RoleReply {
        let version = Some(self.orders.borrow().assignment.version);
        loop {
            let role = self.controller.role();
            if role.assignment == version {
                return role;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn lead(&self, epoch: u64) -> Arc<Office> {
        self.order(Role::Leader, epoch);
        let role = self.settled().await;
        assert_eq!((role.role, role.leader_epoch), (Role::Leader, Some(epoch)));
        self.office().expect("an office")
    }

    fn office(&self) -> Result<Arc<Office>, Refusal> {
        self.controller.shared().office()
    }

    fn events(&self) -> Vec<String> {
        let events = &self.controller.shared().events;
        let mut place = events.place(Some(EventId::START));
        let mut all = Vec::new();
        while let Next::Events(batch) = events.next(&mut place) {
            all.extend(batch.iter().map(|event| format!("{} {}", event.kind, event.data)));
        }
        all
    }
}

fn spec(text: &str) -> JobSpec {
    serde_json::from_str(text).expect("a job")
}

fn simple() -> JobSpec {
    spec(r#"{"command": ["true"]}"#)
}

async fn submit(office: &Arc<Office>, key: &str) -> Result<TakenIn, Refusal> {
    office.submit(Some(key), simple(), None).await
}

fn ask(agent: &str, request_id: &str, wait_seconds: u64) -> LeaseAsk {
    let (agent, request_id) = (agent.into(), request_id.into());
    LeaseAsk { agent, request_id, wait_seconds, incarnation: "i".into(), leader_epoch: None }
}

async fn granted(office: &Arc<Office>, agent: &str) -> LeaseGrant {
    office.ask(&ask(agent, "", 0)).await.expect("an answer").expect("work")
}

fn claim(grant: &LeaseGrant) -> LeaseClaim {
    LeaseClaim {
        job_id: grant.job_id.clone(),
        job_epoch: grant.job_epoch,
        leader_epoch: grant.leader_epoch,
    }
}

fn report(grant: &LeaseGrant, success: bool) -> ResultReport {
    ResultReport {
        lease_id: grant.lease_id.clone(),
        job_id: grant.job_id.clone(),
        job_epoch: grant.job_epoch,
        leader_epoch: grant.leader_epoch,
        agent: "a".into(),
        success,
        output: "out".into(),
        ..ResultReport::default()
    }
}

fn kept_job(memory: &Memory, id: &str) -> Job {
    let record = memory.record(Kind::Job, id).expect("a record");
    read_job(&record).expect("a job")
}

fn stale_numbers(refusal: &Refusal) -> (Option<u64>, Option<u64>) {
    let Refusal::StaleEpoch(stale) = refusal else { panic!("not stale: {refusal:?}") };
    (stale.leader_epoch, stale.job_epoch)
}

pub(crate) fn client() -> reqwest::Client {
    relay::client(None).expect("a client")
}

/// Goes on by itself.
pub(crate) fn begun<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    TaskTracker::new().spawn(future)
}
