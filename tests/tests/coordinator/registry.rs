//! What a registry must keep, asked directly: whoever does not lead changes nothing, whatever it
//! believes.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::Client;
use lockd_coordinator::lockd::LockdRegistry;
use lockd_coordinator::redis::RedisRegistry;
use lockd_coordinator::registry::{Amendment, Beat, Myself, Registry, Swap, Swapped};
use lockd_coordinator::{Mark, Outcome, Run, Schedule, Sign};
use lockd_elect::lockd::LockdLock;
use lockd_elect::redis::RedisLock;
use lockd_elect::{Attempt, Candidate, Epoch, LeaderLock};
use redis::cmd;

use super::site::{Site, ms, short};

/// One instance: its lock and its registry.
struct Part {
    me: Myself,
    lock: Arc<dyn LeaderLock>,
    registry: Arc<dyn Registry>,
}

impl Part {
    fn of(site: &Site, id: &str) -> Self {
        let mut settings = short(id);
        settings.leader_ttl = Duration::from_secs(60);
        settings.heartbeat_ttl = ms(400);
        settings.stale_threshold = ms(800);
        let candidate = Candidate::new(id);
        let me = Myself { candidate: candidate.clone(), worker_count: 1, started_at: None };
        let ttl = settings.leader_ttl;
        let (lock, registry): (Arc<dyn LeaderLock>, Arc<dyn Registry>) = match site {
            Site::Redis(_) => {
                let redis = site.commands();
                let registry = RedisRegistry::new(redis.clone(), candidate.clone(), &settings);
                let lock = RedisLock::new(redis, &settings.prefix, candidate, ttl);
                (Arc::new(lock), Arc::new(registry.expect("a registry")))
            }
            Site::Lockd(_) => {
                let client = Client::connect(&format!("http://{}", site.address()));
                let client = client.expect("a client");
                let registry = LockdRegistry::new(client.clone(), candidate.clone(), &settings);
                let registry = registry.expect("a registry");
                let lock = LockdLock::new(client, &registry.leader_key(), candidate, ttl);
                (Arc::new(lock), Arc::new(registry))
            }
        };
        Self { me, lock, registry }
    }

    async fn leads(&self) -> Epoch {
        match self.lock.try_acquire().await.expect("an answer") {
            Attempt::Granted(grant) => grant.epoch,
            Attempt::Held(holder) => panic!("{holder:?}"),
        }
    }

    /// Whether it may write as a leader under this epoch: all three kinds of writes say the same.
    async fn may_write(&self, epoch: Epoch) -> bool {
        let marks = self.registry.marks().await.expect("marks");
        let old = marks.get("task").map(|mark| mark.revision);
        let new = mark(old.unwrap_or(0) + 1);
        let run = run(epoch, new.revision);
        let swap = Swap { task: "task", old, new: &new, under: Some(epoch), run: Some(&run) };
        let swapped = match self.registry.swap(swap).await.expect("an answer") {
            Swapped::Done => true,
            Swapped::NotLeader => false,
            Swapped::Changed(now) => panic!("{now:?}"),
        };
        let set = self.registry.set_global(epoch, "{}").await.expect("an answer");
        assert_eq!(set, swapped);
        let gone = [Amendment::Remove { id: "gone".into() }];
        let amended = self.registry.amend(epoch, &gone).await.expect("an answer");
        assert!(amended.led == swapped || amended.removed.is_empty());
        let recorded = self.registry.runs("task", 100).await.expect("runs");
        assert_eq!(recorded.contains(&run), swapped);
        swapped
    }
}

fn mark(revision: u64) -> Mark {
    let every = Schedule::every(ms(1_000)).expect("an interval");
    Mark { revision, ..Mark::defined(None, &every, 0, 1_000) }
}

fn run(epoch: Epoch, time: u64) -> Run {
    Run {
        scheduled_at_ms: time,
        epoch: epoch.0,
        instance_id: "a".into(),
        started_at_ms: time,
        duration_ms: 1,
        outcome: Outcome::Ok,
        error: None,
        manual: false,
    }
}

async fn only_the_leader_writes(site: &Site) -> (Part, Epoch) {
    let (a, b, again) = (Part::of(site, "a"), Part::of(site, "b"), Part::of(site, "a"));
    let first = a.leads().await;
    assert!(a.may_write(first).await);
    // Neither another instance, nor another process of the same name, nor under another epoch.
    assert!(!b.may_write(first).await || matches!(site, Site::Lockd(_)));
    assert!(!again.may_write(first).await || matches!(site, Site::Lockd(_)));
    assert!(!a.may_write(Epoch(first.0 + 1)).await);
    a.lock.release(first).await.expect("released");
    let second = b.leads().await;
    assert!(!a.may_write(first).await, "it was paused, and does not know");
    assert!(b.may_write(second).await);
    (b, second)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_writes_in_redis() {
    let mut site = Site::redis().await;
    let (b, epoch) = only_the_leader_writes(&site).await;
    // A foreign instance takes the key, under its own name and under that of ours.
    let commands = site.commands();
    for name in ["lua-1", "b"] {
        let _gone: i64 = commands
            .send(cmd("DEL").arg("waf:cluster:leader").arg("waf:cluster:leader:holder"))
            .await
            .expect("an answer");
        let mut set = cmd("SET");
        set.arg("waf:cluster:leader").arg(name).arg("NX").arg("PX").arg(60_000);
        let _ok: String = commands.send(&set).await.expect("taken");
        assert!(!b.may_write(epoch).await, "{name} leads");
    }
    let _gone: i64 = commands.send(cmd("DEL").arg("waf:cluster:leader")).await.expect("an answer");
    let epoch = b.leads().await;
    assert!(b.may_write(epoch).await);
    // Another run of Redis, with the very same data.
    let Site::Redis(redis) = &mut site else { panic!("not Redis") };
    tokio::task::block_in_place(|| {
        redis.save();
        redis.start_again();
    });
    // The connection that broke is made anew for the second question.
    let _broken = b.registry.marks().await;
    assert!(!b.may_write(epoch).await, "it was granted by another run");
    assert!(b.leads().await > epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_leader_writes_in_lockd() {
    only_the_leader_writes(&Site::lockd().await).await;
}

/// A task is changed by those who know how it is.
async fn nobody_overwrites(site: Site) {
    let (a, b) = (Part::of(&site, "a"), Part::of(&site, "b"));
    let first = mark(1);
    let swap = |old, new| Swap { task: "task", old, new, under: None, run: None };
    assert_eq!(a.registry.swap(swap(None, &first)).await.expect("an answer"), Swapped::Done);
    let second = mark(2);
    assert_eq!(
        b.registry.swap(swap(None, &second)).await.expect("an answer"),
        Swapped::Changed(Some(first.clone()))
    );
    assert_eq!(b.registry.swap(swap(Some(1), &second)).await.expect("done"), Swapped::Done);
    assert_eq!(
        a.registry.swap(swap(Some(1), &mark(2))).await.expect("an answer"),
        Swapped::Changed(Some(second))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_overwrites_in_redis() {
    nobody_overwrites(Site::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_overwrites_in_lockd() {
    nobody_overwrites(Site::lockd().await).await;
}

/// One that came back after it was seen as down, and before it was removed, stays.
async fn the_living_are_not_removed(site: Site) {
    let (a, mut b) = (Part::of(&site, "a"), Part::of(&site, "b"));
    let epoch = a.leads().await;
    a.registry.register(&a.me).await.expect("registered");
    b.me.started_at = Some(b.registry.register(&b.me).await.expect("registered").started_at);
    let since = loop {
        let survey = a.registry.survey().await.expect("a survey");
        let entry = survey.entries.iter().find(|entry| entry.id == "b").expect("an entry");
        if let Sign::Missing { since } = entry.sign
            && survey.now >= since + 400
        {
            break since;
        }
        tokio::time::sleep(ms(20)).await;
    };
    assert!(since > 0);
    assert!(matches!(b.registry.beat(&b.me).await, Ok(Beat::Counted(_))));
    let remove = [Amendment::Remove { id: "b".into() }];
    let amended = a.registry.amend(epoch, &remove).await.expect("an answer");
    assert!(amended.led && amended.removed.is_empty(), "{amended:?}");
    let survey = a.registry.survey().await.expect("a survey");
    assert!(survey.entries.iter().any(|entry| entry.id == "b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_living_are_not_removed_in_redis() {
    the_living_are_not_removed(Site::redis().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_living_are_not_removed_in_lockd() {
    the_living_are_not_removed(Site::lockd().await).await;
}
