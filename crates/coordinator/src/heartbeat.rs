//! What every instance does: it says that it is there, hands in what the registry has forgotten,
//! and looks after the others when nobody else does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::coordinator::CHANGES_MAX;
use crate::metrics;
use crate::registry::{Beat, Fault, Myself, Pulse, Swap, Swapped};
use crate::shared::Shared;
use crate::task::Mark;

/// The first pause after a heartbeat that failed; never longer than a heartbeat's interval.
const AGAIN: Duration = Duration::from_millis(500);

/// Until told to stop.
pub(crate) async fn beat(shared: Arc<Shared>) {
    let mut pause = AGAIN;
    loop {
        let every = shared.settings.heartbeat_interval;
        match beat_once(&shared).await {
            Ok(()) => pause = AGAIN,
            Err(fault) => {
                shared.counts.heartbeats_failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("instance_coordinator: heartbeat failed: {fault}");
                let wait = pause.min(every).mul_f64(0.75 + rand::random::<f64>() / 4.0);
                pause = (pause * 2).min(every);
                if !shared.pause(wait).await {
                    return;
                }
                continue;
            }
        }
        if !shared.pause(every).await {
            return;
        }
    }
}

/// Registers first, if that has not happened yet.
pub(crate) async fn beat_once(shared: &Shared) -> Result<(), Fault> {
    let me = shared.me.lock().clone();
    let beat = match me.started_at {
        Some(_) => shared.registry.beat(&me).await,
        None => shared.registry.register(&me).await.map(Beat::Counted),
    };
    shared.noted(beat.as_ref().err());
    match beat? {
        Beat::Counted(pulse) => {
            if me.started_at.is_none() {
                tell_registered(&me);
            }
            counted(shared, &pulse).await;
        }
        Beat::Displaced => {
            let id = &me.candidate.id;
            tracing::error!(
                "instance_coordinator: another process has registered as instance '{id}'; this \
                 one takes no part while that one lives. Give each its own instance id"
            );
            shared.displaced.store(true, Ordering::Relaxed);
            shared.campaign.stand(false);
        }
    }
    Ok(())
}

pub(crate) fn tell_registered(me: &Myself) {
    let id = &me.candidate.id;
    tracing::info!("instance_coordinator: registered instance '{id}'");
}

async fn counted(shared: &Shared, pulse: &Pulse) {
    shared.time.told(pulse.now);
    shared.me.lock().started_at = Some(pulse.started_at);
    shared.counts.heartbeats.fetch_add(1, Ordering::Relaxed);
    *shared.counts.latest_heartbeat.lock() = Some(shared.clock.now());
    shared.displaced.store(false, Ordering::Relaxed);
    shared.campaign.stand(true);
    if let Err(fault) = hand_in(shared, pulse).await {
        tracing::warn!(%fault, "what the registry has forgotten could not be handed in");
    }
    if pulse.survey_due
        && let Err(fault) = shared.survey().await
    {
        tracing::warn!(%fault, "nobody has looked after the instances");
    }
}

/// Times that were seen as claimed stay so, whatever the registry has forgotten.
async fn hand_in(shared: &Shared, pulse: &Pulse) -> Result<(), Fault> {
    for (name, seen) in shared.seen.all() {
        let mut now = pulse.marks.get(&name).cloned();
        for _ in 0..CHANGES_MAX {
            if now.as_ref().is_some_and(|mark| mark.last >= seen.last) {
                break;
            }
            let forgotten = Mark { claim: None, requested: None, ..seen.clone() };
            let mut new = now.as_ref().unwrap_or(&forgotten).raised(seen.last);
            new.revision = now.as_ref().map_or(0, |mark| mark.revision) + 1;
            let old = now.as_ref().map(|mark| mark.revision);
            let swap = Swap { task: &name, old, new: &new, under: None, run: None };
            match shared.registry.swap(swap).await? {
                Swapped::Done => {
                    tracing::warn!(task = %name, "the registry had forgotten runs; handed in");
                    now = Some(new);
                }
                Swapped::Changed(changed) if changed == now => break,
                Swapped::Changed(changed) => now = changed,
                Swapped::NotLeader => break,
            }
        }
    }
    for (name, mark) in &pulse.marks {
        shared.seen.saw(name, mark);
    }
    Ok(())
}

/// Pushes the instance's own numbers, until told to stop.
pub(crate) async fn push_metrics(shared: Arc<Shared>) {
    loop {
        if shared.takes_part() {
            let json = metrics::written(&numbers(&shared));
            if let Err(fault) = shared.registry.push_metrics(&json).await {
                tracing::warn!(%fault, "the metrics were not pushed");
            }
        }
        if !shared.pause(shared.settings.metrics_push_interval).await {
            return;
        }
    }
}

/// What the program has set, and what the coordinator knows of itself.
#[expect(clippy::cast_precision_loss, reason = "counts, far below the limit")]
fn numbers(shared: &Shared) -> std::collections::BTreeMap<String, f64> {
    let mut numbers = shared.numbers.lock().clone();
    let counts = &shared.counts;
    let own = [
        ("coordinator_uptime_seconds", shared.clock.now().since(shared.started).as_secs()),
        ("coordinator_heartbeats", counts.heartbeats.load(Ordering::Relaxed)),
        ("coordinator_heartbeats_failed", counts.heartbeats_failed.load(Ordering::Relaxed)),
        ("coordinator_task_runs", counts.runs.lock().values().sum()),
    ];
    numbers.extend(own.map(|(name, number)| (name.to_owned(), number as f64)));
    numbers
}
