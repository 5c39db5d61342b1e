//! What a leader does: it looks after the instances, adds up their numbers, and keeps the tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockd_elect::{Leadership, Loss, Office};

use crate::member::{Sign, State, judge};
use crate::metrics::{Global, added_up};
use crate::registry::{Amendment, Fault, Survey};
use crate::runner;
use crate::shared::Shared;
use crate::task::Mark;

/// Follows the leadership until told to stop.
pub(crate) async fn attend(shared: Arc<Shared>) {
    let mut leadership = shared.campaign.leadership();
    let mut known: Option<String> = None;
    loop {
        let now = leadership.borrow_and_update().clone();
        let leader = shared.known_leader();
        if leader.is_some() && leader != known {
            shared.counts.leader_changes.fetch_add(1, Ordering::Relaxed);
            known = leader;
        }
        let led = matches!(now, Leadership::Leading(_));
        if let Leadership::Leading(office) = now {
            let id = &shared.settings.instance_id;
            tracing::info!(
                epoch = %office.epoch,
                "instance_coordinator: instance '{id}' acquired leadership"
            );
            serve(&shared, &office).await;
            office.over().cancelled().await;
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            changed = leadership.changed() => if changed.is_err() { return },
        }
        if led && let Leadership::Following { lost: Some(loss), .. } = &*leadership.borrow() {
            tell_loss(loss);
        }
    }
}

fn tell_loss(loss: &Loss) {
    match loss {
        Loss::Resigned => tracing::debug!("resigned"),
        Loss::Expired(_) | Loss::TakenBy(_) | Loss::Vanished => {
            tracing::error!(
                reason = %loss,
                "instance_coordinator: failed to renew leadership: not leader"
            );
        }
    }
}

/// As long as the office is held.
async fn serve(shared: &Arc<Shared>, office: &Office) {
    let over = office.over();
    let maintaining = maintain(shared, office);
    let tasks = keep_tasks(shared, office);
    tokio::select! {
        () = over.cancelled() => {}
        // Nobody is left who could give up the office in order.
        () = shared.stop.cancelled() => shared.campaign.stand(false),
        ((), ()) = async { tokio::join!(maintaining, tasks) } => {}
    }
}

async fn maintain(shared: &Arc<Shared>, office: &Office) {
    let mut drifted = BTreeSet::new();
    loop {
        if let Err(fault) = maintain_once(shared, office, &mut drifted).await {
            tracing::warn!(%fault, "the instances could not be looked after");
        }
        if !shared.pause(shared.settings.leader_renew_interval).await {
            return;
        }
    }
}

async fn maintain_once(
    shared: &Arc<Shared>,
    office: &Office,
    drifted: &mut BTreeSet<String>,
) -> Result<(), Fault> {
    let survey = shared.survey().await?;
    tell_drifted(shared, &survey, drifted);
    let changes = amendments(shared, &survey);
    if !changes.is_empty() {
        for id in shared.registry.amend(office.epoch, &changes).await?.removed {
            tracing::error!("instance_coordinator: removing stale instance '{id}'");
        }
    }
    let ids: Vec<String> = survey.entries.iter().map(|entry| entry.id.clone()).collect();
    let pushed = shared.registry.metrics(&ids).await?;
    let (instances, metrics) = added_up(pushed.iter().map(|(_, json)| json.as_str()));
    let epoch = office.epoch.0;
    let global = Global { epoch, updated_at: survey.now / 1_000, instances, metrics };
    let json = serde_json::to_string(&global).unwrap_or_default();
    shared.registry.set_global(office.epoch, &json).await?;
    // Somebody may have asked for a run.
    for (name, mark) in shared.registry.marks().await? {
        shared.seen.saw(&name, &mark);
    }
    Ok(())
}

fn amendments(shared: &Shared, survey: &Survey) -> Vec<Amendment> {
    let change = |entry: &crate::member::Entry| {
        let id = entry.id.clone();
        match judge(entry.sign, survey.now, &shared.settings) {
            State::Down => Some(Amendment::Remove { id }),
            state @ (State::Active | State::Drifted) => {
                let new = entry.restated(state)?;
                Some(Amendment::Restate { id, old: entry.raw.clone(), new })
            }
        }
    };
    survey.entries.iter().filter_map(change).collect()
}

/// A line whenever it is not the same ones as before.
fn tell_drifted(shared: &Shared, survey: &Survey, before: &mut BTreeSet<String>) {
    let of = |sign: Sign| judge(sign, survey.now, &shared.settings);
    let drifted: BTreeSet<String> = survey
        .entries
        .iter()
        .filter(|entry| of(entry.sign) == State::Drifted)
        .map(|entry| entry.id.clone())
        .collect();
    if drifted == *before {
        return;
    }
    let active = survey.entries.iter().filter(|entry| of(entry.sign) == State::Active).count();
    let counted = format!("{active} active, {} drifted instances", drifted.len());
    if drifted.is_empty() {
        tracing::info!("instance_coordinator: cluster status - {counted}");
    } else {
        tracing::warn!(?drifted, "instance_coordinator: cluster status - {counted}");
    }
    *before = drifted;
}

/// One runner for each task, also for those that are registered later.
async fn keep_tasks(shared: &Arc<Shared>, office: &Office) {
    let Some((marks, floor)) = recollect(shared, office).await else { return };
    let mut tasks = shared.tasks.subscribe();
    let mut kept = BTreeSet::new();
    loop {
        let now = tasks.borrow_and_update().clone();
        for (name, task) in now {
            if kept.insert(name.clone()) {
                let mark = marks.get(&name).cloned();
                let keeping = runner::keep(Arc::clone(shared), office.clone(), task, mark, floor);
                let tracked = office.work().track_future(keeping);
                shared.running.spawn(tracked);
            }
        }
        if tasks.changed().await.is_err() {
            return;
        }
    }
}

/// What is known about the tasks. After memory was lost, every instance first has the time to hand
/// in what it has seen, a former leader has the time to end, and nothing up to then is run. The time
/// counts from the loss: a leader that takes over in between waits for the rest of it.
async fn recollect(shared: &Shared, office: &Office) -> Option<(BTreeMap<String, Mark>, u64)> {
    let waits = office.waits_out(shared.settings.recollection());
    if let Some(wait) = waits {
        tracing::warn!(
            ?wait,
            "the registry was started again or has forgotten something; tasks begin after this, \
             and earlier times are left out"
        );
        if !wait.is_zero() && !shared.pause(wait).await {
            return None;
        }
    }
    loop {
        match shared.registry.marks().await {
            Ok(marks) => {
                for (name, mark) in &marks {
                    shared.seen.saw(name, mark);
                }
                let now = shared.time.now().filter(|_| waits.is_some());
                // What begins now is not earlier.
                return Some((marks, now.unwrap_or(0).saturating_sub(1)));
            }
            Err(fault) => {
                tracing::warn!(%fault, "the tasks could not be read");
                if !shared.pause(runner::PAUSE_MAX).await {
                    return None;
                }
            }
        }
    }
}
