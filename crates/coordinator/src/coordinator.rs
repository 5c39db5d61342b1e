//! The coordinator of one instance.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockd_client::clock::Clock;
use lockd_elect::{Campaign, Epoch, Leadership, Pace};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, Place};
use crate::metrics::{Global, NAME_MAX, NUMBERS_MAX};
use crate::registry::{Fault, Myself, Swap, Swapped};
use crate::schedule::{Schedule, ScheduleError};
use crate::settings::{Settings, SettingsError};
use crate::shared::{ClusterView, Counts, Health, Seen, Shared, StoreTime};
use crate::task::{Mark, Missed, Run};
use crate::{attend, heartbeat};

/// Why a coordinator did not start.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The registry says no, and would say so again.
    #[error("{0}")]
    Refused(String),
}

/// Why a task was not registered, or not started.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TaskError {
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error("{0:?} is no name of a task: 1 to 100 letters, digits, '-', '_' and '.'")]
    Name(String),
    #[error("there is a task {0:?} already")]
    Twice(String),
    #[error("there are {0} tasks already, and no more are possible")]
    TooMany(usize),
    #[error("there is no task {0:?}")]
    Unknown(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// How often a change is tried again because others came before it.
pub(crate) const CHANGES_MAX: usize = 20;
/// The most tasks of one cluster.
const TASKS_MAX: usize = 1_000;
const TASK_NAME_MAX: usize = 100;

/// What a task is given when it runs.
#[derive(Clone, Debug)]
pub struct TaskContext {
    pub name: String,
    /// The time it runs for, in ms since 1970 of the registry's clock.
    pub scheduled_at_ms: u64,
    /// Whatever the task writes elsewhere should carry it.
    pub epoch: Epoch,
    /// Asked for by hand.
    pub manual: bool,
    /// Fires the moment the leadership is lost or in doubt. A task that goes on is dropped when
    /// somebody else may lead.
    pub cancelled: CancellationToken,
}

pub(crate) type Body = dyn Fn(TaskContext) -> BoxFuture<'static, Result<(), String>> + Send + Sync;

/// A task that runs on the leader only.
pub struct Task {
    pub(crate) name: String,
    pub(crate) schedule: Schedule,
    pub(crate) missed: Missed,
    pub(crate) delay: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) body: Box<Body>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Task({}, {})", self.name, self.schedule)
    }
}

impl Task {
    pub fn new<F, R, E>(name: impl Into<String>, schedule: Schedule, body: F) -> Self
    where
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let body = move |context| -> BoxFuture<'static, Result<(), String>> {
            let running = body(context);
            Box::pin(async move { running.await.map_err(|error| error.to_string()) })
        };
        Self {
            name: name.into(),
            schedule,
            missed: Missed::default(),
            delay: Duration::ZERO,
            timeout: None,
            body: Box::new(body),
        }
    }

    /// What becomes of times that passed while nobody could run them.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// When the task is first seen by the cluster, its first time comes so much later.
    #[must_use]
    pub fn initial_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// A run that takes longer is dropped, and recorded as such.
    #[must_use]
    pub fn timeout(mut self, longest: Duration) -> Self {
        self.timeout = Some(longest);
        self
    }

    pub(crate) fn delay_ms(&self) -> u64 {
        u64::try_from(self.delay.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A task, as it is shown.
#[derive(Clone, Debug)]
pub struct TaskView {
    pub name: String,
    /// Whether this instance could run it.
    pub registered: bool,
    pub missed: Option<Missed>,
    pub mark: Option<Mark>,
    /// In ms since 1970.
    pub next: Option<u64>,
}

/// An instance's part in its cluster. Clones are the same one.
#[derive(Clone)]
pub struct Coordinator {
    shared: Arc<Shared>,
    place: Place,
    /// With the last clone everything ends.
    _ends: Arc<DropGuard>,
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coordinator({})", self.shared.settings.instance_id)
    }
}

impl Coordinator {
    /// Registers the instance and runs for leader. A registry that cannot be reached is asked again
    /// and again; one that says no ends the start.
    ///
    /// # Errors
    /// When the settings do not fit together, or the registry refuses the instance.
    pub async fn start(settings: Settings, backend: Backend) -> Result<Self, StartError> {
        Self::start_with(settings, backend, Clock::Boot).await
    }

    pub(crate) async fn start_with(
        settings: Settings,
        backend: Backend,
        clock: Clock,
    ) -> Result<Self, StartError> {
        settings.check()?;
        let pace = Pace {
            renew_every: settings.leader_renew_interval,
            look_every: settings.leader_renew_interval,
            grace: settings.grace,
            notice: settings.notice(),
        };
        let candidate = backend.lock.candidate().clone();
        let (worker_count, started_at) = (settings.worker_count, None);
        let mut me = Myself { candidate, worker_count, started_at };
        match backend.registry.register(&me).await {
            Ok(pulse) => {
                me.started_at = Some(pulse.started_at);
                heartbeat::tell_registered(&me);
            }
            Err(Fault::Refused(why)) => return Err(StartError::Refused(why)),
            // The heartbeats go on trying.
            Err(Fault::Unavailable(_)) => {}
        }
        let campaign = Campaign::start_with(backend.lock, pace, clock.clone());
        let shared = Arc::new(Shared {
            settings,
            registry: backend.registry,
            campaign,
            time: StoreTime::new(clock.clone()),
            me: Mutex::new(me),
            started: clock.now(),
            displaced: AtomicBool::new(false),
            tasks: watch::Sender::new(BTreeMap::new()),
            seen: Seen::default(),
            numbers: Mutex::default(),
            counts: Counts::default(),
            surveyed: tokio::sync::Mutex::new(None),
            stop: CancellationToken::new(),
            running: TaskTracker::new(),
            clock,
        });
        let running = &shared.running;
        running.spawn(heartbeat::beat(Arc::clone(&shared)));
        running.spawn(heartbeat::push_metrics(Arc::clone(&shared)));
        running.spawn(attend::attend(Arc::clone(&shared)));
        let ends = Arc::new(shared.stop.clone().drop_guard());
        Ok(Self { shared, place: backend.place, _ends: ends })
    }

    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Whether this instance certainly leads, by its own clock.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.shared.is_leader()
    }

    /// Under which epoch, if it leads.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.shared.epoch()
    }

    /// The epoch of the present leader, as far as this instance knows it.
    #[must_use]
    pub fn known_epoch(&self) -> Option<Epoch> {
        match &*self.shared.campaign.leadership().borrow() {
            Leadership::Leading(office) => Some(office.epoch),
            Leadership::Following { leader, .. } => leader.as_ref()?.epoch,
        }
    }

    /// Who leads, now and from now on.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.shared.campaign.leadership()
    }

    /// The latest leader that this instance has heard of.
    #[must_use]
    pub fn known_leader(&self) -> Option<String> {
        self.shared.known_leader()
    }

    /// A task for the leader, every `interval`; the first time `initial_delay` after the cluster
    /// has first heard of it.
    ///
    /// # Errors
    /// When the name or the interval cannot be used.
    pub fn register_for_leader_task<F, R, E>(
        &self,
        name: &str,
        interval: Duration,
        initial_delay: Duration,
        task: F,
    ) -> Result<(), TaskError>
    where
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let schedule = Schedule::every(interval)?;
        self.register(Task::new(name, schedule, task).initial_delay(initial_delay))
    }

    /// A task for the leader.
    ///
    /// # Errors
    /// When its name cannot be used.
    pub fn register(&self, task: Task) -> Result<(), TaskError> {
        if !is_task_name(&task.name) {
            return Err(TaskError::Name(task.name));
        }
        let mut problem = None;
        self.shared.tasks.send_if_modified(|tasks| {
            if tasks.contains_key(&task.name) {
                problem = Some(TaskError::Twice(task.name.clone()));
            } else if tasks.len() >= TASKS_MAX {
                problem = Some(TaskError::TooMany(TASKS_MAX));
            } else {
                tasks.insert(task.name.clone(), Arc::new(task));
            }
            problem.is_none()
        });
        problem.map_or(Ok(()), Err)
    }

    /// Asks for a run as soon as possible, whoever leads. Returns the time it was asked for.
    ///
    /// # Errors
    /// When there is no such task, or the registry cannot be asked.
    pub async fn run_now(&self, name: &str) -> Result<u64, TaskError> {
        let shared = &self.shared;
        let mut mark = shared.registry.marks().await?.remove(name);
        for _ in 0..CHANGES_MAX {
            let Some(old) = &mark else { return Err(TaskError::Unknown(name.into())) };
            let now = shared
                .time
                .now()
                .ok_or_else(|| Fault::Unavailable("the registry's time is not known yet".into()))?;
            let mut new = old.requested(now);
            new.revision += 1;
            let at = new.requested.unwrap_or(now);
            let old = Some(old.revision);
            let swap = Swap { task: name, old, new: &new, under: None, run: None };
            match shared.registry.swap(swap).await? {
                Swapped::Done => {
                    shared.seen.saw(name, &new);
                    return Ok(at);
                }
                Swapped::Changed(now) => mark = now,
                Swapped::NotLeader => return Err(TaskError::Unknown(name.into())),
            }
        }
        Err(Fault::Unavailable("the task changes all the time".into()).into())
    }

    /// All tasks that the cluster knows of, and those of this instance.
    ///
    /// # Errors
    /// When the registry cannot be asked.
    pub async fn tasks(&self) -> Result<Vec<TaskView>, Fault> {
        let mut marks = self.shared.registry.marks().await?;
        let now = self.shared.time.now().unwrap_or(0);
        let registered = self.shared.tasks.borrow().clone();
        let mut views = Vec::new();
        for (name, task) in registered {
            let mark = marks.remove(&name);
            let next =
                mark.as_ref().and_then(|mark| task.schedule.after(mark.last.max(now), mark.base));
            let missed = Some(task.missed);
            views.push(TaskView { name, registered: true, missed, mark, next });
        }
        views.extend(marks.into_iter().map(|(name, mark)| TaskView {
            name,
            registered: false,
            missed: None,
            mark: Some(mark),
            next: None,
        }));
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    /// The latest runs of a task, the newest first.
    ///
    /// # Errors
    /// When the registry cannot be asked.
    pub async fn runs(&self, task: &str, limit: usize) -> Result<Vec<Run>, Fault> {
        self.shared.registry.runs(task, limit).await
    }

    /// The cluster as it was at most a second ago.
    ///
    /// # Errors
    /// When the registry cannot be asked.
    pub async fn cluster(&self) -> Result<ClusterView, Fault> {
        let survey = self.shared.fresh_survey().await?;
        Ok(self.shared.view(&survey))
    }

    /// How the cluster fares.
    ///
    /// # Errors
    /// When the registry cannot be asked.
    pub async fn cluster_status(&self) -> Result<crate::api::Status, Fault> {
        Ok(crate::api::Status::of(&self.cluster().await?, self))
    }

    #[must_use]
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Sets a number that is pushed for this instance, and added up by the leader.
    ///
    /// # Errors
    /// With what is wrong with it.
    pub fn set_metric(&self, name: &str, value: f64) -> Result<(), String> {
        self.set_metrics(BTreeMap::from([(name.to_owned(), Some(value))]))
    }

    /// Sets several numbers, all or none; nothing instead of a number takes one away.
    ///
    /// # Errors
    /// With what is wrong with one of them.
    pub fn set_metrics(&self, changes: BTreeMap<String, Option<f64>>) -> Result<(), String> {
        for (name, value) in &changes {
            if name.is_empty() || name.len() > NAME_MAX {
                return Err(format!("{name:?} is no name of a metric: 1 to {NAME_MAX} bytes"));
            }
            if value.is_some_and(|value| !value.is_finite()) {
                return Err(format!("{name}: not a finite number"));
            }
        }
        let mut numbers = self.shared.numbers.lock();
        let mut new = numbers.clone();
        for (name, value) in changes {
            match value {
                Some(value) => new.insert(name, value),
                None => new.remove(&name),
            };
        }
        if new.len() > NUMBERS_MAX {
            return Err(format!("more than {NUMBERS_MAX} metrics"));
        }
        *numbers = new;
        Ok(())
    }

    /// What the leader has added up.
    ///
    /// # Errors
    /// When the registry cannot be asked.
    pub async fn global_metrics(&self) -> Result<Option<Global>, Fault> {
        let json = self.shared.registry.global().await?;
        Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
    }

    /// Ends the tasks, gives up the leadership so that the next one can have it at once, and takes
    /// the instance out of the registry.
    pub async fn deregister(&self) {
        let shared = &self.shared;
        shared.stop.cancel();
        shared.campaign.stop().await;
        shared.running.close();
        if tokio::time::timeout(shared.settings.grace, shared.running.wait()).await.is_err() {
            tracing::warn!("something goes on after the grace");
        }
        let me = shared.me.lock().clone();
        if let Err(fault) = shared.registry.deregister(&me).await {
            tracing::warn!(%fault, "not deregistered; the others will notice");
        }
    }
}

fn is_task_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=TASK_NAME_MAX).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests;
