//! Instances in other languages, which know nothing but plain commands.

use std::collections::BTreeSet;

use lockd_coordinator::State;
use lockd_elect::redis::Redis;
use redis::cmd;
use rustix::process::Signal;

use super::site::{Instance, PREFIX, SOON, Site, ms, one_leads, state, until, view};

/// An instance as a plain script would be: it registers, sends heartbeats, takes and renews the
/// leader's key, each with the commands that everybody knows. Its clock may be wrong.
struct Script {
    redis: Redis,
    id: String,
    clock: i64,
    ttl: i64,
}

impl Script {
    fn new(site: &Site, id: &str, clock: i64) -> Self {
        // Whole seconds, as SETEX has them.
        Self { redis: site.commands(), id: id.into(), clock, ttl: 2 }
    }

    async fn now(&self) -> i64 {
        let (seconds, _): (i64, i64) = self.redis.send(&cmd("TIME")).await.expect("a time");
        seconds + self.clock
    }

    fn key(&self, name: &str) -> String {
        format!("{PREFIX}:{name}")
    }

    async fn register(&self) {
        let now = self.now().await;
        let entry = format!(
            r#"{{"instance_id": "{}", "started_at": {now}, "last_heartbeat": {now}, "status": "active", "worker_count": 4}}"#,
            self.id
        );
        let mut set = cmd("HSET");
        set.arg(self.key("instances")).arg(&self.id).arg(entry);
        let _new: i64 = self.redis.send(&set).await.expect("registered");
        self.beat().await;
    }

    async fn beat(&self) {
        let now = self.now().await;
        let mut set = cmd("SETEX");
        set.arg(self.key(&format!("instance:{}:heartbeat", self.id))).arg(self.ttl).arg(now);
        let _ok: String = self.redis.send(&set).await.expect("a heartbeat");
    }

    async fn takes_the_lead(&self, ttl: i64) -> bool {
        let mut set = cmd("SET");
        set.arg(self.key("leader")).arg(&self.id).arg("NX").arg("PX").arg(ttl);
        let taken: Option<String> = self.redis.send(&set).await.expect("an answer");
        if taken.is_some() {
            let mut since = cmd("SET");
            since.arg(self.key("leader:since")).arg(self.now().await);
            let _ok: String = self.redis.send(&since).await.expect("an answer");
        }
        taken.is_some()
    }

    async fn renews(&self, ttl: i64) -> bool {
        let leader: Option<String> =
            self.redis.send(cmd("GET").arg(self.key("leader"))).await.expect("an answer");
        if leader.as_deref() != Some(self.id.as_str()) {
            return false;
        }
        self.redis.send(cmd("PEXPIRE").arg(self.key("leader")).arg(ttl)).await.expect("an answer")
    }

    async fn resigns(&self) {
        let _gone: i64 =
            self.redis.send(cmd("DEL").arg(self.key("leader"))).await.expect("an answer");
    }

    async fn sees(&self) -> BTreeSet<String> {
        self.redis.send(cmd("HKEYS").arg(self.key("instances"))).await.expect("an answer")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_script_is_a_full_member() {
    let site = Site::redis().await;
    let script = Script::new(&site, "lua-1", 0);
    script.register().await;
    assert!(script.takes_the_lead(5_000).await);
    let ours = site.start("ours").await;
    // It sees us, we see it.
    assert_eq!(script.sees().await, BTreeSet::from(["lua-1".into(), "ours".into()]));
    until(SOON, "seen as the leader", async || {
        let view = view(&ours).await;
        view.is_healthy() && view.leader.is_some_and(|(id, since)| id == "lua-1" && since > 0)
    })
    .await;
    let member = view(&ours).await.members.into_iter().find(|it| it.instance_id == "lua-1");
    assert_eq!(member.map(|it| (it.worker_count, it.is_leader)), Some((4, true)));
    for _ in 0..10 {
        assert!(script.renews(5_000).await);
        script.beat().await;
        tokio::time::sleep(ms(100)).await;
        assert!(!ours.is_leader());
    }
    // Leadership passes to ours, and back.
    script.resigns().await;
    until(ms(4_000), "ours leads when the script has gone", async || ours.is_leader()).await;
    assert!(!script.takes_the_lead(5_000).await && !script.renews(5_000).await);
    ours.deregister().await;
    assert!(script.takes_the_lead(5_000).await);
    assert_eq!(script.sees().await, BTreeSet::from(["lua-1".into()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_falls_silent_is_marked_and_removed_by_ours() {
    let site = Site::redis().await;
    let script = Script::new(&site, "lua-1", 0);
    let ours = site.start("ours").await;
    one_leads(&[&ours]).await;
    script.register().await;
    until(SOON, "active", async || state(&ours, "lua-1").await == Some(State::Active)).await;
    until(SOON, "drifted", async || state(&ours, "lua-1").await == Some(State::Drifted)).await;
    let entry = async || -> Option<String> {
        let mut get = cmd("HGET");
        script.redis.send(get.arg("waf:cluster:instances").arg("lua-1")).await.expect("an answer")
    };
    let marked = async || entry().await.is_some_and(|it| it.contains(r#""status":"drifted""#));
    until(SOON, "written down", marked).await;
    // Its heartbeat alone brings it back, although it never writes its status.
    script.beat().await;
    let active = async || entry().await.is_some_and(|it| it.contains(r#""status":"active""#));
    until(SOON, "written down", active).await;
    until(SOON, "removed", async || entry().await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clocks_ten_minutes_apart_make_nobody_drift() {
    let site = Site::redis().await;
    let ours = site.start("ours").await;
    let (early, late) = (Script::new(&site, "early", -600), Script::new(&site, "late", 600));
    early.register().await;
    late.register().await;
    one_leads(&[&ours]).await;
    let all_there = async || {
        early.beat().await;
        late.beat().await;
        let view = view(&ours).await;
        view.is_healthy() && view.members.len() == 3
    };
    until(SOON, "all are there", all_there).await;
    for _ in 0..30 {
        early.beat().await;
        late.beat().await;
        let view = view(&ours).await;
        assert!(view.is_healthy() && view.members.len() == 3, "{view:?}");
        tokio::time::sleep(ms(100)).await;
    }
    // And they do when they are silent.
    until(SOON, "both drift", async || {
        state(&ours, "early").await == Some(State::Drifted)
            && state(&ours, "late").await == Some(State::Drifted)
    })
    .await;
}

/// A heartbeat without an end would keep a dead instance for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_without_an_end_gets_one() {
    let site = Site::redis().await;
    let ours = site.start("ours").await;
    let script = Script::new(&site, "careless", 0);
    script.register().await;
    let mut set = cmd("SET");
    set.arg("waf:cluster:instance:careless:heartbeat").arg(1);
    let _ok: String = script.redis.send(&set).await.expect("an answer");
    until(SOON, "drifted", async || state(&ours, "careless").await == Some(State::Drifted)).await;
}

/// Ours is stopped in the middle of a run. A foreign instance takes the lead with a plain SET NX
/// PX, which raises no epoch. Ours wakes, ends its run, and must record nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_leader_while_ours_is_paused() {
    let site = Site::redis().await;
    let url = format!("redis://{}/0", site.address());
    for name in ["ours", "lua-1"] {
        let ours = Instance::start(&url, "ours", 1_000, &["work:60000:all:2000"]);
        // Whoever leads says so, perhaps later than what it does as the leader.
        let time: u64 = ours.says("begins work").parse().expect("a time");
        ours.signal(Signal::STOP);
        // The same name in another language is somebody else too.
        let script = Script::new(&site, name, 0);
        until(SOON, "the key ran out", async || script.takes_the_lead(10_000).await).await;
        ours.signal(Signal::CONT);
        ours.says("follows");
        // Its run would be at its end by now.
        tokio::time::sleep(ms(2_500)).await;
        let runs: Vec<String> = script
            .redis
            .send(cmd("LRANGE").arg("waf:cluster:task:work:runs").arg(0).arg(-1))
            .await
            .expect("an answer");
        assert!(runs.iter().all(|run| !run.contains(&time.to_string())), "{runs:?}");
        // The script goes; ours leads again under a higher epoch, and runs that time again.
        script.resigns().await;
        assert_eq!(ours.says("begins work").parse(), Ok(time));
        until(SOON, "recorded once", async || {
            let runs: Vec<String> = script
                .redis
                .send(cmd("LRANGE").arg("waf:cluster:task:work:runs").arg(0).arg(-1))
                .await
                .expect("an answer");
            runs.iter().filter(|run| run.contains(&time.to_string())).count() == 1
        })
        .await;
        ours.kill();
        let _all: String = script.redis.send(&cmd("FLUSHALL")).await.expect("an answer");
    }
}
