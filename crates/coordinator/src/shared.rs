//! What the parts of one coordinator share: its settings, where it keeps things, what it has seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockd_client::clock::{Clock, Moment};
use lockd_elect::{Campaign, Epoch, Leadership, Office};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::coordinator::Task;
use crate::member::{Member, State, judge};
use crate::registry::{Fault, Leader, Myself, Registry, Survey};
use crate::settings::Settings;
use crate::task::{Mark, Outcome};

/// A survey is used for so long by whoever asks for one.
const FRESH: Duration = Duration::from_secs(1);

/// The parts of one coordinator.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) campaign: Campaign,
    pub(crate) clock: Clock,
    pub(crate) time: StoreTime,
    pub(crate) me: Mutex<Myself>,
    pub(crate) started: Moment,
    /// Another process has the name.
    pub(crate) displaced: AtomicBool,
    pub(crate) tasks: watch::Sender<BTreeMap<String, Arc<Task>>>,
    pub(crate) seen: Seen,
    pub(crate) numbers: Mutex<BTreeMap<String, f64>>,
    pub(crate) counts: Counts,
    pub(crate) surveyed: tokio::sync::Mutex<Option<Surveyed>>,
    pub(crate) stop: CancellationToken,
    pub(crate) running: TaskTracker,
}

/// When all were looked after, and what came of it.
type Surveyed = (Moment, Result<Arc<Survey>, Fault>);

/// Counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) heartbeats: AtomicU64,
    pub(crate) heartbeats_failed: AtomicU64,
    pub(crate) leader_changes: AtomicU64,
    pub(crate) runs: Mutex<BTreeMap<(String, &'static str), u64>>,
    pub(crate) latest_heartbeat: Mutex<Option<Moment>>,
    pub(crate) latest_fault: Mutex<Option<String>>,
}

impl Counts {
    pub(crate) fn ran(&self, task: &str, outcome: Outcome) {
        *self.runs.lock().entry((task.into(), outcome.as_str())).or_default() += 1;
    }
}

/// How this instance fares.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Since the latest heartbeat that counted.
    pub heartbeat_age: Option<Duration>,
    pub heartbeats: u64,
    pub heartbeats_failed: u64,
    pub leader_changes: u64,
    /// By task and outcome.
    pub runs: BTreeMap<(String, &'static str), u64>,
    /// Why the latest request to the registry failed, if it did.
    pub fault: Option<String>,
}

/// The registry's clock, as far as it was told.
pub(crate) struct StoreTime {
    clock: Clock,
    told: Mutex<Option<(u64, Moment)>>,
}

impl StoreTime {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, told: Mutex::new(None) }
    }

    /// It was `now` there a moment ago.
    pub(crate) fn told(&self, now: u64) {
        *self.told.lock() = Some((now, self.clock.now()));
    }

    pub(crate) fn now(&self) -> Option<u64> {
        let (then, at) = (*self.told.lock())?;
        let since = u64::try_from(self.clock.now().since(at).as_millis()).unwrap_or(u64::MAX);
        Some(then.saturating_add(since))
    }
}

/// Tasks as they were seen in the registry, which may forget them.
#[derive(Default)]
pub(crate) struct Seen {
    marks: Mutex<BTreeMap<String, Mark>>,
    changed: Notify,
}

impl Seen {
    /// The mark as it is now.
    pub(crate) fn saw(&self, name: &str, mark: &Mark) {
        let mut marks = self.marks.lock();
        let last = marks.get(name).map_or(0, |known| known.last);
        marks.insert(name.into(), mark.raised(last));
        drop(marks);
        self.changed.notify_waiters();
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Mark> {
        self.marks.lock().clone()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Mark> {
        self.marks.lock().get(name).cloned()
    }

    /// Ready when something was seen after this was called.
    pub(crate) fn changes(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}

/// The cluster as one instance sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    pub leader: Option<(String, u64)>,
    pub members: Vec<Member>,
}

impl ClusterView {
    #[must_use]
    pub fn count(&self, state: State) -> usize {
        self.members.iter().filter(|member| member.status == state).count()
    }

    /// A live leader, somebody active, and nobody drifted.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        let active = |member: &Member| member.status == State::Active;
        self.members.iter().any(|member| member.is_leader && active(member))
            && self.members.iter().all(active)
    }
}

impl Shared {
    pub(crate) fn office(&self) -> Option<Office> {
        self.campaign.leadership().borrow().office().cloned()
    }

    /// Whether it is registered, under a name that is its own.
    pub(crate) fn takes_part(&self) -> bool {
        self.me.lock().started_at.is_some() && !self.displaced.load(Ordering::Relaxed)
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.campaign.is_leader()
    }

    /// The latest leader that was heard of, without asking anybody.
    pub(crate) fn known_leader(&self) -> Option<String> {
        match &*self.campaign.leadership().borrow() {
            Leadership::Leading(office) if office.is_held() => {
                Some(self.settings.instance_id.clone())
            }
            Leadership::Leading(_) => None,
            Leadership::Following { leader, .. } => leader.as_ref().map(|holder| holder.id.clone()),
        }
    }

    /// Asks anew, and keeps the answer for whoever asks next.
    pub(crate) async fn survey(&self) -> Result<Arc<Survey>, Fault> {
        let mut kept = self.surveyed.lock().await;
        self.survey_into(&mut kept).await
    }

    /// As it was at most a second ago. Many who ask at once ask once.
    pub(crate) async fn fresh_survey(&self) -> Result<Arc<Survey>, Fault> {
        let mut kept = self.surveyed.lock().await;
        match &*kept {
            Some((at, survey)) if self.clock.now().since(*at) < FRESH => survey.clone(),
            Some(_) | None => self.survey_into(&mut kept).await,
        }
    }

    async fn survey_into(&self, kept: &mut Option<Surveyed>) -> Result<Arc<Survey>, Fault> {
        let survey = self.registry.survey().await.map(Arc::new);
        self.noted(survey.as_ref().err());
        if let Ok(survey) = &survey {
            self.time.told(survey.now);
        }
        *kept = Some((self.clock.now(), survey.clone()));
        survey
    }

    pub(crate) fn view(&self, survey: &Survey) -> ClusterView {
        let leader = self.leader_of(survey);
        let name = leader.as_ref().map(|leader| leader.id.as_str());
        let member = |entry: &crate::member::Entry| {
            entry.member(judge(entry.sign, survey.now, &self.settings), name)
        };
        let members = survey.entries.iter().map(member).collect();
        ClusterView { leader: leader.map(|leader| (leader.id, leader.since)), members }
    }

    /// One that knows that it does not lead any more does not say so because of an old survey.
    fn leader_of(&self, survey: &Survey) -> Option<Leader> {
        let me = &self.settings.instance_id;
        survey.leader.clone().filter(|leader| leader.id != *me || self.is_leader())
    }

    pub(crate) fn noted(&self, fault: Option<&Fault>) {
        *self.counts.latest_fault.lock() = fault.map(ToString::to_string);
    }

    pub(crate) fn health(&self) -> Health {
        let counts = &self.counts;
        let latest = *counts.latest_heartbeat.lock();
        Health {
            heartbeat_age: latest.map(|at| self.clock.now().since(at)),
            heartbeats: counts.heartbeats.load(Ordering::Relaxed),
            heartbeats_failed: counts.heartbeats_failed.load(Ordering::Relaxed),
            leader_changes: counts.leader_changes.load(Ordering::Relaxed),
            runs: counts.runs.lock().clone(),
            fault: counts.latest_fault.lock().clone(),
        }
    }

    /// Ready when the coordinator stops, or after that time.
    pub(crate) async fn pause(&self, span: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = self.clock.sleep_until(self.clock.now().plus(span)) => true,
        }
    }

    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.office().map(|office| office.epoch)
    }
}
