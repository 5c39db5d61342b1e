//! Who is there, and who leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use lockd_coordinator::{Outcome, Settings, State};

use super::site::{Instance, SOON, Site, Way, leaders, ms, one_leads, short, state, until, view};

async fn the_office_is_passed_on(site: Site) {
    // Nobody would follow for a long time if it were not told.
    let settings = |id: &str| Settings { leader_ttl: SOON, ..short(id) };
    let start = async |id: &str| site.start_with(settings(id), site.address()).await;
    let (a, b, c) = (start("a").await, start("b").await, start("c").await);
    let all = [&a, &b, &c];
    let first = one_leads(&all).await;
    until(SOON, "all three are there", async || {
        view(&a).await.is_healthy() && view(&b).await.members.len() == 3
    })
    .await;
    let epoch = first.epoch().expect("it leads");
    let others: Vec<_> = all.into_iter().filter(|one| !std::ptr::eq(*one, first)).collect();
    let gone = first.settings().instance_id.clone();
    let left = Instant::now();
    first.deregister().await;
    let second = one_leads(&others).await;
    assert!(left.elapsed() < SOON / 4, "it took {:?}", left.elapsed());
    assert!(second.epoch().expect("it leads") > epoch);
    until(SOON, "healthy without it", async || {
        let view = view(second).await;
        view.is_healthy() && view.members.iter().all(|member| member.instance_id != gone)
    })
    .await;
    for one in others {
        one.deregister().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_deregisters_is_followed_at_once_in_redis() {
    the_office_is_passed_on(Site::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_deregisters_is_followed_at_once_in_lockd() {
    the_office_is_passed_on(Site::lockd().await).await;
}

async fn silence_is_noticed(site: Site) {
    let settings = short("a");
    let (a, b) = (site.start("a").await, site.start("b").await);
    let way = Way::to(site.address()).await;
    let c = site.start_with(short("c"), way.address).await;
    until(SOON, "all three are there", async || view(&b).await.members.len() == 3).await;
    way.cut();
    let cut = Instant::now();
    let first = one_leads(&[&a, &b]).await;
    until(SOON, "drifted", async || state(first, "c").await == Some(State::Drifted)).await;
    assert!(cut.elapsed() + settings.heartbeat_interval > settings.drift_threshold);
    assert!(!view(first).await.is_healthy());
    // Mended: it is there as if nothing had been.
    way.mend();
    until(SOON, "active again", async || state(first, "c").await == Some(State::Active)).await;
    way.cut();
    let cut = Instant::now();
    until(SOON, "drifted", async || state(first, "c").await == Some(State::Drifted)).await;
    // The leader changes in between.
    let other = if std::ptr::eq(first, &a) { &b } else { &a };
    first.deregister().await;
    one_leads(&[other]).await;
    until(SOON, "removed", async || state(other, "c").await.is_none()).await;
    let took = cut.elapsed();
    let least = settings.stale_threshold - settings.heartbeat_interval;
    assert!(took > least && took < least * 2, "it took {took:?}");
    way.mend();
    until(SOON, "it registers again", async || state(other, "c").await == Some(State::Active))
        .await;
    drop(c);
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_noticed_in_redis() {
    silence_is_noticed(Site::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_noticed_in_lockd() {
    silence_is_noticed(Site::lockd().await).await;
}

async fn a_reused_name_is_recognised(site: Site) {
    let first = site.start("a").await;
    one_leads(&[&first]).await;
    let epoch = first.epoch();
    let second = site.start("a").await;
    until(SOON, "the second leads", async || second.is_leader() && !first.is_leader()).await;
    assert!(second.epoch() > epoch);
    assert_eq!(view(&second).await.members.len(), 1);
    // The first must not take the second out.
    first.deregister().await;
    assert_eq!(state(&second, "a").await, Some(State::Active));
    assert!(second.is_leader());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_name_is_recognised_in_redis() {
    a_reused_name_is_recognised(Site::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reused_name_is_recognised_in_lockd() {
    a_reused_name_is_recognised(Site::lockd().await).await;
}

async fn the_leader_works(site: Site) {
    let ran = Arc::new(AtomicU64::new(0));
    let (a, b) = (site.start("a").await, site.start("b").await);
    for one in [&a, &b] {
        let ran = Arc::clone(&ran);
        let body = move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, String>(()) }
        };
        one.register_for_leader_task("tick", ms(200), ms(0), body).expect("registered");
        let fails = |_| async { Err::<(), _>("not today") };
        one.register_for_leader_task("yearly", ms(31_536_000_000), ms(60_000), fails)
            .expect("registered");
        one.set_metric("rps", 2.5).expect("set");
    }
    let leader = one_leads(&[&a, &b]).await;
    let follower = if std::ptr::eq(leader, &a) { &b } else { &a };
    until(SOON, "five runs", async || {
        follower.runs("tick", 10).await.is_ok_and(|runs| runs.len() >= 5)
    })
    .await;
    let runs = follower.runs("tick", 10).await.expect("runs");
    let epoch = leader.epoch().expect("it leads").0;
    assert!(runs.iter().all(|run| run.outcome == Outcome::Ok && run.epoch == epoch), "{runs:?}");
    let times: Vec<u64> = runs.iter().map(|run| run.scheduled_at_ms).collect();
    assert!(times.windows(2).all(|pair| pair[0] > pair[1]), "{times:?}");
    assert!(times.iter().all(|time| (time - times[0] % 200).is_multiple_of(200)), "{times:?}");
    let asked = follower.run_now("yearly").await.expect("asked for");
    until(SOON, "it was run", async || {
        follower.runs("yearly", 1).await.is_ok_and(|runs| runs.len() == 1)
    })
    .await;
    let run = &follower.runs("yearly", 1).await.expect("runs")[0];
    assert_eq!((run.scheduled_at_ms, run.manual, run.outcome), (asked, true, Outcome::Failed));
    assert_eq!(run.error.as_deref(), Some("not today"));
    until(SOON, "added up", async || {
        let global = follower.global_metrics().await.ok().flatten();
        global.is_some_and(|it| it.metrics.get("rps").is_some_and(|total| total.sum >= 5.0))
    })
    .await;
    let global = follower.global_metrics().await.expect("an answer").expect("numbers");
    let rps = global.metrics["rps"];
    assert_eq!((global.instances, rps.min, rps.max, global.epoch), (2, 2.5, 2.5, epoch));
    assert!(leaders(&[&a, &b]).len() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_works_in_redis() {
    the_leader_works(Site::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_works_in_lockd() {
    the_leader_works(Site::lockd().await).await;
}

/// Ten times: the followers know when the key ends, and try then.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_is_followed_when_its_time_is_over() {
    let site = Site::redis().await;
    let url = format!("redis://{}/0", site.address());
    let start = |number: usize| Instance::start(&url, &format!("waf-{number}"), 1_000, &[]);
    let mut all: Vec<Instance> = (0..3).map(start).collect();
    let (mut epoch, mut took) = (0, Vec::new());
    for round in 0..10 {
        let mut leader = None;
        let found = until(SOON, "one leads", async || {
            leader = all.iter().position(|one| one.has_said("leads"));
            leader.is_some()
        })
        .await;
        if round > 0 {
            took.push(found);
        }
        let commands = site.commands();
        let now: u64 = commands
            .send(redis::cmd("GET").arg("waf:cluster:leader:epoch"))
            .await
            .expect("an epoch");
        assert!(now > epoch);
        epoch = now;
        all.remove(leader.expect("one leads")).kill();
        if round < 9 {
            // Started again later, so that it is not the one who leads.
            all.push(start(round % 3 + 10));
        }
    }
    took.sort();
    assert!(took[took.len() / 2] < ms(1_000 + 1_000), "after {took:?}");
}
