//! Redis paused, restarted empty, restarted with old data, and cut off from the leader only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use lockd_cloud::Redis as RedisServer;
use lockd_coordinator::{Coordinator, Missed, Schedule, Task, TaskContext};

use super::site::{SOON, Site, Way, ms, one_leads, short, until};

/// What was seen of the one task: who worked on it when, and which times were recorded.
#[derive(Clone, Default)]
struct Witness {
    ticks: Arc<Mutex<Vec<(Instant, u64)>>>,
    begun: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Witness {
    /// A task that is always at work.
    fn give(&self, to: &Coordinator, missed: Missed) {
        let witness = self.clone();
        let body = move |task: TaskContext| {
            let witness = witness.clone();
            async move {
                witness.begun.lock().expect("a list").push((task.scheduled_at_ms, task.epoch.0));
                for _ in 0..8 {
                    let tick = (Instant::now(), task.epoch.0);
                    witness.ticks.lock().expect("a list").push(tick);
                    tokio::time::sleep(ms(5)).await;
                }
                Ok::<_, String>(())
            }
        };
        let every = Schedule::every(ms(50)).expect("an interval");
        to.register(Task::new("work", every, body).missed(missed)).expect("registered");
        // One that does not listen, and goes on for as long as it is let.
        let witness = self.clone();
        let stubborn = move |task: TaskContext| {
            let witness = witness.clone();
            async move {
                loop {
                    let tick = (Instant::now(), task.epoch.0);
                    witness.ticks.lock().expect("a list").push(tick);
                    tokio::time::sleep(ms(5)).await;
                }
                #[expect(unreachable_code, reason = "it says what kind of task it is")]
                Ok::<_, String>(())
            }
        };
        let hourly = Schedule::every(ms(3_600_000)).expect("an interval");
        let task = Task::new("stubborn", hourly, stubborn).missed(Missed::Once);
        to.register(task).expect("registered");
    }

    /// Nobody works under an old epoch once somebody does under a new one.
    fn check_no_two_at_work(&self) {
        let mut ticks = self.ticks.lock().expect("a list").clone();
        ticks.sort();
        for pair in ticks.windows(2) {
            assert!(pair[0].1 <= pair[1].1, "{} works after {} has", pair[1].1, pair[0].1);
        }
    }

    /// No time is begun under two epochs, unless it was not recorded under the first.
    fn check_begun(&self, seen_recorded: &BTreeMap<u64, u64>) {
        for (time, epoch) in self.begun.lock().expect("a list").iter() {
            if let Some(recorded) = seen_recorded.get(time) {
                assert!(epoch <= recorded, "{time} was recorded under {recorded}, begun again");
            }
        }
    }

    fn epochs(&self) -> BTreeSet<u64> {
        self.ticks.lock().expect("a list").iter().map(|(_, epoch)| *epoch).collect()
    }
}

/// Each time at most once; what was seen before is added.
async fn recorded(of: &Coordinator, seen: &mut BTreeMap<u64, u64>) {
    let runs = of.runs("work", 10_000).await.unwrap_or_default();
    let times: BTreeSet<u64> = runs.iter().map(|run| run.scheduled_at_ms).collect();
    assert_eq!(times.len(), runs.len(), "two records of one time");
    for run in runs {
        let before = seen.insert(run.scheduled_at_ms, run.epoch);
        assert!(before.is_none_or(|epoch| epoch == run.epoch), "recorded twice: {run:?}");
    }
}

async fn works(of: &Coordinator, witness: &Witness, seen: &mut BTreeMap<u64, u64>) {
    let before = witness.epochs().last().copied();
    until(SOON, "a new leader works", async || {
        let now = of.epoch().map(|epoch| epoch.0);
        now > before.map(|before| before - 1) && witness.epochs().last().copied() == now
    })
    .await;
    let count = seen.len();
    until(SOON, "it records", async || {
        recorded(of, seen).await;
        seen.len() > count + 2
    })
    .await;
}

async fn through(missed: Missed, strike: impl AsyncFn(&mut RedisServer)) {
    let mut site = Site::redis().await;
    let witness = Witness::default();
    let mut seen = BTreeMap::new();
    let mut settings = short("a");
    settings.task_history = 10_000;
    let a = site.start_with(settings.clone(), site.address()).await;
    settings.instance_id = "b".into();
    let b = site.start_with(settings, site.address()).await;
    witness.give(&a, missed);
    witness.give(&b, missed);
    let mut epochs = BTreeSet::new();
    for _ in 0..2 {
        let leader = one_leads(&[&a, &b]).await;
        works(leader, &witness, &mut seen).await;
        assert!(epochs.insert(leader.epoch().map(|epoch| epoch.0)), "the epoch is a new one");
        let Site::Redis(redis) = &mut site else { panic!("not Redis") };
        strike(redis).await;
        until(SOON, "somebody leads anew", async || {
            let now = [&a, &b].into_iter().find(|one| one.is_leader());
            now.is_some_and(|now| !epochs.contains(&now.epoch().map(|epoch| epoch.0)))
        })
        .await;
    }
    let leader = one_leads(&[&a, &b]).await;
    works(leader, &witness, &mut seen).await;
    witness.check_no_two_at_work();
    witness.check_begun(&seen);
    assert!(witness.epochs().len() >= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_paused_beyond_the_leaders_time() {
    for missed in [Missed::Skip, Missed::All] {
        through(missed, async |redis| {
            redis.pause();
            tokio::time::sleep(ms(1_500)).await;
            redis.resume();
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_started_again_with_nothing() {
    for missed in [Missed::Once, Missed::All] {
        through(missed, async |redis| {
            tokio::task::block_in_place(|| {
                redis.kill();
                redis.forget_saved();
                redis.start_again();
            });
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_started_again_with_what_it_knew_a_while_ago() {
    for missed in [Missed::Once, Missed::All] {
        through(missed, async |redis| {
            tokio::task::block_in_place(|| redis.save());
            tokio::time::sleep(ms(600)).await;
            tokio::task::block_in_place(|| {
                redis.kill();
                // The leader's key of then is over.
                std::thread::sleep(ms(1_100));
                redis.start_again();
            });
        })
        .await;
    }
}

/// The old leader's key is still there in the old data: it may go on, under the same epoch.
#[tokio::test(flavor = "multi_thread")]
async fn redis_forgets_a_little_and_the_leader_goes_on() {
    let mut site = Site::redis().await;
    let witness = Witness::default();
    let mut seen = BTreeMap::new();
    let a = site.start("a").await;
    let b = site.start("b").await;
    witness.give(&a, Missed::All);
    witness.give(&b, Missed::All);
    for _ in 0..3 {
        let leader = one_leads(&[&a, &b]).await;
        works(leader, &witness, &mut seen).await;
        let Site::Redis(redis) = &mut site else { panic!("not Redis") };
        tokio::task::block_in_place(|| redis.save());
        tokio::time::sleep(ms(300)).await;
        recorded(leader, &mut seen).await;
        let Site::Redis(redis) = &mut site else { panic!("not Redis") };
        tokio::task::block_in_place(|| redis.start_again());
        let leader = one_leads(&[&a, &b]).await;
        works(leader, &witness, &mut seen).await;
    }
    witness.check_no_two_at_work();
    witness.check_begun(&seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_alone_is_cut_off() {
    let site = Site::redis().await;
    let witness = Witness::default();
    let mut seen = BTreeMap::new();
    let mut ways = Vec::new();
    let mut all = Vec::new();
    for id in ["a", "b"] {
        let way = Way::to(site.address()).await;
        let one = site.start_with(short(id), way.address).await;
        witness.give(&one, Missed::All);
        ways.push(way);
        all.push(one);
    }
    for _ in 0..3 {
        let leader = one_leads(&all.iter().collect::<Vec<_>>()).await;
        works(leader, &witness, &mut seen).await;
        let at = usize::from(leader.settings().instance_id == "b");
        let (cut, other) = (&ways[at], &all[1 - at]);
        cut.cut();
        until(SOON, "the other leads", async || other.is_leader()).await;
        assert!(!leader.is_leader(), "it knows by its own clock");
        works(other, &witness, &mut seen).await;
        cut.mend();
        tokio::time::sleep(ms(300)).await;
        assert!(other.is_leader());
    }
    witness.check_no_two_at_work();
    witness.check_begun(&seen);
}
