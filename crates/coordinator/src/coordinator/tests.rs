//! Whole clusters on a simulated clock, with the constants that everybody has.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::member::State;
use crate::memory::World;
use crate::task::Outcome;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn start(world: &World, id: &str) -> Coordinator {
    let settings = Settings::new(id);
    let backend = world.backend(&settings);
    Coordinator::start_with(settings, backend, world.clock.clone()).await.unwrap()
}

async fn state(of: &Coordinator, id: &str) -> Option<State> {
    let view = of.cluster().await.unwrap();
    view.members.iter().find(|member| member.instance_id == id).map(|member| member.status)
}

#[tokio::test(start_paused = true)]
async fn silent_for_a_minute_is_drifted_and_for_five_is_removed_whoever_leads() {
    let world = World::new();
    let (a, b, c) = (start(&world, "a").await, start(&world, "b").await, start(&world, "c").await);
    tokio::time::sleep(secs(20)).await;
    let status = a.cluster_status().await.unwrap();
    assert!(status.cluster_healthy && status.active_instances == 3, "{status:?}");
    assert!(a.is_leader());
    // c was heard at 15 s and is not heard again.
    world.cut_off("c");
    tokio::time::sleep(secs(54)).await;
    assert_eq!(state(&a, "c").await, Some(State::Active));
    tokio::time::sleep(secs(3)).await;
    assert_eq!(state(&a, "c").await, Some(State::Drifted));
    assert!(!a.cluster_status().await.unwrap().cluster_healthy);
    tokio::time::sleep(secs(10)).await;
    assert_eq!(world.status_of("c").as_deref(), Some("drifted"), "the leader writes it down");
    // The leader changes in between; what was noticed stays noticed.
    a.deregister().await;
    tokio::time::sleep(secs(2)).await;
    assert!(b.is_leader());
    tokio::time::sleep(secs(222)).await;
    assert_eq!(state(&b, "c").await, Some(State::Drifted), "311 s at the latest");
    tokio::time::sleep(secs(40)).await;
    assert_eq!(state(&b, "c").await, None, "removed");
    drop(c);
}

#[tokio::test(start_paused = true)]
async fn a_gap_is_seen_and_forgotten() {
    let world = World::new();
    let (a, _b) = (start(&world, "a").await, start(&world, "b").await);
    tokio::time::sleep(secs(20)).await;
    world.cut_off("b");
    tokio::time::sleep(secs(120)).await;
    assert_eq!(state(&a, "b").await, Some(State::Drifted));
    world.reconnect("b");
    tokio::time::sleep(secs(20)).await;
    assert_eq!(state(&a, "b").await, Some(State::Active));
    assert_eq!(world.status_of("b").as_deref(), Some("active"));
    assert!(a.cluster_status().await.unwrap().cluster_healthy);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_started_again_displaces_the_one_before() {
    let world = World::new();
    let first = start(&world, "a").await;
    tokio::time::sleep(secs(1)).await;
    assert!(first.is_leader());
    let second = start(&world, "a").await;
    tokio::time::sleep(secs(60)).await;
    assert!(second.is_leader() && !first.is_leader());
    assert_eq!(second.cluster().await.unwrap().members.len(), 1);
    second.deregister().await;
    tokio::time::sleep(secs(60)).await;
    assert!(first.is_leader(), "it takes part again when the other has gone");
}

/// Counts its runs, and whoever runs at the same time.
async fn counting(
    runs: Arc<AtomicU64>,
    at_once: Arc<AtomicU64>,
    takes: Duration,
) -> Result<(), String> {
    assert_eq!(at_once.fetch_add(1, Ordering::SeqCst), 0, "two at once");
    tokio::time::sleep(takes).await;
    at_once.fetch_sub(1, Ordering::SeqCst);
    runs.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_task_runs_at_its_times_on_the_leader_and_never_over_itself() {
    let world = World::new();
    let runs = Arc::new(AtomicU64::new(0));
    let at_once = Arc::new(AtomicU64::new(0));
    let mut all = Vec::new();
    for id in ["a", "b", "c"] {
        let instance = start(&world, id).await;
        for (name, takes) in [("quick", 0), ("slow", 25)] {
            let (runs, at_once) = (Arc::clone(&runs), Arc::default());
            let body = move |_| counting(Arc::clone(&runs), Arc::clone(&at_once), secs(takes));
            instance.register_for_leader_task(name, secs(10), secs(60), body).unwrap();
        }
        all.push(instance);
    }
    tokio::time::sleep(secs(59)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 0, "the first delay");
    tokio::time::sleep(secs(102)).await;
    let quick = world.runs("quick");
    assert_eq!(quick.len(), 10 + 1, "{quick:?}");
    let gaps: BTreeSet<u64> =
        quick.windows(2).map(|pair| pair[0].scheduled_at_ms - pair[1].scheduled_at_ms).collect();
    assert_eq!(gaps, BTreeSet::from([10_000]));
    // A run that takes 25 s leaves two times out.
    let slow: Vec<u64> = world.runs("slow").iter().map(|run| run.scheduled_at_ms).collect();
    assert!(slow.windows(2).all(|pair| pair[0] - pair[1] >= 20_000), "{slow:?}");
    assert!(slow.len() >= 3 && at_once.load(Ordering::SeqCst) == 0);
    assert!(quick.iter().all(|run| run.outcome == Outcome::Ok && run.instance_id == "a"));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_in_time_and_records_nothing() {
    let world = World::new();
    let a = start(&world, "a").await;
    tokio::time::sleep(secs(1)).await;
    let b = start(&world, "b").await;
    let ended = Arc::new(Mutex::new(Vec::new()));
    for instance in [&a, &b] {
        let (ended, clock) = (Arc::clone(&ended), world.clock.clone());
        let id = instance.settings().instance_id.clone();
        let body = move |task: TaskContext| {
            let (ended, clock, id) = (Arc::clone(&ended), clock.clone(), id.clone());
            async move {
                task.cancelled.cancelled().await;
                ended.lock().push((id, clock.unix_ms()));
                std::future::pending::<()>().await;
                Ok::<_, String>(())
            }
        };
        let task = Task::new("endless", Schedule::every(secs(3_600)).unwrap(), body);
        instance.register(task.missed(Missed::All)).unwrap();
    }
    tokio::time::sleep(secs(20)).await;
    assert!(a.is_leader() && world.runs("endless").is_empty());
    world.cut_off("a");
    let cut = world.clock.unix_ms();
    tokio::time::sleep(secs(40)).await;
    assert!(!a.is_leader() && b.is_leader());
    let (who, at) = ended.lock()[0].clone();
    assert_eq!(who, "a");
    assert!(at < cut + 30_000, "before the lock runs out");
    world.reconnect("a");
    tokio::time::sleep(secs(60)).await;
    assert!(world.runs("endless").is_empty(), "the old leader was dropped in the middle");
    let mark = &world.backend(a.settings()).registry.marks().await.unwrap()["endless"];
    assert_eq!(mark.claim.as_ref().unwrap().instance, "b", "the new one runs it again");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_goes_on_purpose_waits_for_its_task_and_records_it() {
    let world = World::new();
    let a = start(&world, "a").await;
    tokio::time::sleep(secs(1)).await;
    let b = start(&world, "b").await;
    let body = |task: TaskContext| async move {
        task.cancelled.cancelled().await;
        tokio::time::sleep(secs(3)).await;
        Err::<(), _>("told to stop")
    };
    a.register_for_leader_task("long", secs(3_600), secs(0), body).unwrap();
    tokio::time::sleep(secs(20)).await;
    let began = world.clock.unix_ms();
    a.deregister().await;
    assert!((3_000..4_000).contains(&(world.clock.unix_ms() - began)));
    let runs = world.runs("long");
    assert_eq!((runs.len(), runs[0].outcome), (1, Outcome::Cancelled), "{runs:?}");
    tokio::time::sleep(secs(1)).await;
    assert!(b.is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_run_can_be_asked_for_anywhere() {
    let world = World::new();
    let (a, b) = (start(&world, "a").await, start(&world, "b").await);
    let fails = |_| async { Err::<(), _>("x".repeat(5_000)) };
    a.register_for_leader_task("yearly", secs(365 * 86_400), secs(86_400), fails).unwrap();
    tokio::time::sleep(secs(20)).await;
    assert!(matches!(b.run_now("nothing").await, Err(TaskError::Unknown(_))));
    let asked = b.run_now("yearly").await.unwrap();
    assert_eq!(b.run_now("yearly").await.unwrap(), asked, "one request is enough");
    tokio::time::sleep(secs(11)).await;
    let runs = b.runs("yearly", 10).await.unwrap();
    assert_eq!(runs.len(), 1);
    assert!(runs[0].manual && runs[0].scheduled_at_ms == asked);
    assert_eq!((runs[0].outcome, runs[0].error.as_ref().unwrap().len()), (Outcome::Failed, 1_024));
}

#[tokio::test(start_paused = true)]
async fn numbers_are_pushed_and_added_up() {
    let world = World::new();
    let (a, b) = (start(&world, "a").await, start(&world, "b").await);
    a.set_metric("rps", 5.0).unwrap();
    b.set_metric("rps", 7.0).unwrap();
    assert!(b.set_metric("", 1.0).is_err() && b.set_metric("x", f64::NAN).is_err());
    tokio::time::sleep(secs(45)).await;
    let global = b.global_metrics().await.unwrap().unwrap();
    assert_eq!(global.instances, 2);
    let rps = global.metrics["rps"];
    assert_eq!((rps.sum, rps.min, rps.max), (12.0, 5.0, 7.0));
    assert_eq!(Some(global.epoch), a.epoch().map(|epoch| epoch.0));
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_dropped_ends() {
    let world = World::new();
    let a = start(&world, "a").await;
    tokio::time::sleep(secs(1)).await;
    let b = start(&world, "b").await;
    drop(a);
    tokio::time::sleep(secs(31)).await;
    assert!(b.is_leader());
    tokio::time::sleep(secs(60)).await;
    assert_eq!(state(&b, "a").await, Some(State::Drifted));
}

#[test]
fn names_of_tasks_are_plain() {
    assert!(is_task_name("daily_report-2.b"));
    for wrong in ["", "a b", "a/b", "ä", "x\ny", &"x".repeat(101)] {
        assert!(!is_task_name(wrong), "{wrong}");
    }
}
