//! The lock in Redis.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use lockd_cloud::Redis as RedisServer;
use lockd_elect::conformance::{Election, run_all};
use lockd_elect::redis::{Address, Redis, RedisLock, RedisSettings};
use lockd_elect::{Attempt, Candidate, Epoch, Grant, LeaderLock, LockError, Loss, Memory, Renewal};

use super::granted;
use super::relay::Relay;

const PREFIX: &str = "waf:cluster";

struct InRedis(Mutex<RedisServer>);

impl InRedis {
    fn redis(&self) -> Redis {
        let url = self.0.lock().expect("a server").url();
        Redis::new(RedisSettings::new(Address::parse(&url).expect("an address")))
    }
}

impl Election for InRedis {
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock> {
        Arc::new(RedisLock::new(self.redis(), PREFIX, candidate, ttl))
    }

    fn forget(&self) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(async {
            let flushed: Result<String, _> = self.redis().send(&redis::cmd("FLUSHALL")).await;
            flushed.expect("forgotten");
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_redis() {
    run_all(async || InRedis(Mutex::new(RedisServer::start().await))).await;
}

/// The keys as instances in other languages know them.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_key_is_the_one_that_others_know() {
    let election = InRedis(Mutex::new(RedisServer::start().await));
    let redis = election.redis();
    let lock = election.lock(Candidate::new("forms-waf-0"), Duration::from_secs(30));
    let grant = granted(&*lock).await;
    let get = async |key: &str| -> Option<String> {
        redis.send(redis::cmd("GET").arg(format!("{PREFIX}:{key}"))).await.expect("an answer")
    };
    assert_eq!(get("leader").await.as_deref(), Some("forms-waf-0"));
    let left: u64 =
        redis.send(redis::cmd("PTTL").arg("waf:cluster:leader")).await.expect("an answer");
    assert!((25_000..=30_000).contains(&left), "{left}");
    let since: u64 = get("leader:since").await.expect("a time").parse().expect("seconds");
    assert!(since > 1_700_000_000, "{since}");
    assert_eq!(get("leader:epoch").await, Some(grant.epoch.to_string()));

    // Another one, that only knows SET NX PX.
    let take = || {
        let mut set = redis::cmd("SET");
        set.arg("waf:cluster:leader").arg("lua-1").arg("NX").arg("PX").arg(30_000);
        set
    };
    let taken: Option<String> = redis.send(&take()).await.expect("an answer");
    assert_eq!(taken, None, "ours holds it");
    lock.release(grant.epoch).await.expect("released");
    let taken: Option<String> = redis.send(&take()).await.expect("an answer");
    assert_eq!(taken.as_deref(), Some("OK"));
    match lock.try_acquire().await.expect("an answer") {
        Attempt::Held(holder) => {
            assert_eq!((holder.id.as_str(), holder.epoch), ("lua-1", None));
            assert!(holder.remaining.is_some_and(|left| left > Duration::from_secs(25)));
        }
        Attempt::Granted(grant) => panic!("{grant:?}"),
    }
    let by = Loss::TakenBy("lua-1".into());
    assert_eq!(lock.renew(grant.epoch).await.expect("an answer"), Renewal::Lost(by));
}

/// One of the same name in another language takes over while ours does not run: the name alone
/// does not make it ours again.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_in_another_language_is_somebody_else() {
    let election = InRedis(Mutex::new(RedisServer::start().await));
    let redis = election.redis();
    let ttl = Duration::from_millis(300);
    let lock = election.lock(Candidate::new("waf-0"), ttl);
    let grant = granted(&*lock).await;
    tokio::time::sleep(ttl + Duration::from_millis(50)).await;
    let mut set = redis::cmd("SET");
    set.arg("waf:cluster:leader").arg("waf-0").arg("NX").arg("PX").arg(30_000);
    let taken: Option<String> = redis.send(&set).await.expect("an answer");
    assert_eq!(taken.as_deref(), Some("OK"));
    assert_ne!(lock.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
    assert!(matches!(lock.try_acquire().await, Ok(Attempt::Held(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_with_old_data_does_not_bring_an_old_leader_back() {
    let election = InRedis(Mutex::new(RedisServer::start().await));
    let lock = election.lock(Candidate::new("a"), Duration::from_secs(30));
    let other = election.lock(Candidate::new("b"), Duration::from_secs(30));
    let old = granted(&*lock).await;
    tokio::task::block_in_place(|| election.0.lock().expect("a server").save());
    lock.release(old.epoch).await.expect("released");
    let new = granted(&*other).await;
    lock.saw(new.epoch);
    tokio::task::block_in_place(|| election.0.lock().expect("a server").start_again());
    // The data says that a leads, under an epoch that is over.
    assert_ne!(other.renew(new.epoch).await.ok(), Some(Renewal::Kept));
    let again = granted(&*lock).await;
    assert!(again.epoch > new.epoch, "{again:?} after {new:?}");
    assert!(matches!(again.memory, Memory::Lost { .. }), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_refuses_is_told_apart_from_a_redis_that_is_away() {
    let locked =
        tokio::task::block_in_place(|| RedisServer::start_with(&["--requirepass", "secret"]));
    let lock = |url: &str| {
        let settings = RedisSettings {
            timeout: Duration::from_millis(500),
            ..RedisSettings::new(Address::parse(url).expect("an address"))
        };
        RedisLock::new(Redis::new(settings), PREFIX, Candidate::new("a"), Duration::from_secs(5))
    };
    for wrong in [locked.url(), locked.url().replace("redis://", "redis://:wrong@")] {
        let refused = lock(&wrong).try_acquire().await;
        assert!(matches!(&refused, Err(LockError::Refused(_))), "{refused:?}");
    }
    let right = lock(&locked.url().replace("redis://", "redis://:secret@"));
    let grant = granted(&right).await;
    locked.pause();
    let silent = right.renew(grant.epoch).await;
    assert!(matches!(&silent, Err(LockError::Unavailable(_))), "{silent:?}");
    locked.resume();
    assert_eq!(right.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
    let nobody = lock("redis://127.0.0.1:1").try_acquire().await;
    assert!(matches!(&nobody, Err(LockError::Unavailable(_))), "{nobody:?}");
}

/// Nobody who led before is told; whoever leads next is.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_everything_ends_the_office_and_says_so() {
    let forget_by: [fn(&InRedis); 2] = [
        |election| {
            let _all = election.0.lock().expect("a server").ask(&["FLUSHALL"]);
        },
        |election| {
            let mut server = election.0.lock().expect("a server");
            server.kill();
            server.start_again();
        },
    ];
    for forget in forget_by {
        let election = InRedis(Mutex::new(RedisServer::start().await));
        let ttl = Duration::from_secs(30);
        let (a, b) =
            (election.lock(Candidate::new("a"), ttl), election.lock(Candidate::new("b"), ttl));
        let old = granted(&*a).await;
        // Without any memory an epoch is a time in milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
        tokio::task::block_in_place(|| forget(&election));
        let mut renewal = a.renew(old.epoch).await;
        if renewal.is_err() {
            renewal = a.renew(old.epoch).await;
        }
        assert_eq!(renewal.expect("an answer"), Renewal::Lost(Loss::Vanished));
        let new = granted(&*b).await;
        let before = lost(&new);
        assert!(new.epoch > old.epoch, "{new:?} after {old:?}");
        let by = Renewal::Lost(Loss::TakenBy("b".into()));
        assert_eq!(a.renew(old.epoch).await.expect("an answer"), by);
        tokio::time::sleep(Duration::from_millis(20)).await;
        b.release(new.epoch).await.expect("released");
        let again = granted(&*a).await;
        // The first one that was told may be gone; the next has to wait for the rest of the time.
        assert!(lost(&again) >= before + Duration::from_millis(20), "{new:?}, {again:?}");
    }
}

/// How long before the grant memory was lost.
#[track_caller]
fn lost(grant: &Grant) -> Duration {
    match grant.memory {
        Memory::Lost { ago } => ago,
        Memory::Kept => panic!("{grant:?}"),
    }
}

/// Seconds since this Redis was started.
fn uptime(election: &InRedis) -> u64 {
    let said = election.0.lock().expect("a server").ask(&["INFO", "server"]);
    let line = said.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    line.and_then(|seconds| seconds.trim().parse().ok()).expect("an uptime")
}

/// Who may have led with an earlier run of Redis has ended after a time to live.
async fn started_a_while_ago(ttl: Duration) -> InRedis {
    let election = InRedis(Mutex::new(RedisServer::start().await));
    while uptime(&election) <= 2 * ttl.as_secs() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    election
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_registry_in_a_redis_that_runs_for_a_while_has_forgotten_nothing() {
    let ttl = Duration::from_secs(1);
    let election = started_a_while_ago(ttl).await;
    let (a, b) = (election.lock(Candidate::new("a"), ttl), election.lock(Candidate::new("b"), ttl));
    let first = granted(&*a).await;
    assert_eq!(first.memory, Memory::Kept);
    a.release(first.epoch).await.expect("released");
    assert_eq!(granted(&*b).await.memory, Memory::Kept);
}

/// It cannot be told from one that was started again without its data.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_was_just_started_counts_from_its_start() {
    let ttl = Duration::from_secs(600);
    let election = InRedis(Mutex::new(RedisServer::start().await));
    while uptime(&election) < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let grant = granted(&*election.lock(Candidate::new("a"), ttl)).await;
    let (ago, up) = (lost(&grant), uptime(&election));
    assert!(ago >= Duration::from_secs(1) && ago < Duration::from_secs(up + 1), "{ago:?} of {up}");
}

/// However the keys were deleted: an instance that has just come does not take a registry
/// that was in use for a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_lost_its_keys_is_not_taken_for_a_new_one() {
    let ttl = Duration::from_secs(1);
    let election = started_a_while_ago(ttl).await;
    let first = granted(&*election.lock(Candidate::new("a"), ttl)).await;
    assert_eq!(first.memory, Memory::Kept);
    let ask = |words: &[&str]| election.0.lock().expect("a server").ask(words);
    let keys = ask(&["KEYS", "*"]);
    let keys: Vec<&str> = keys.split_whitespace().collect();
    assert!(keys.len() >= 5, "{keys:?}");
    ask(&[&["DEL"], keys.as_slice()].concat());
    let second = granted(&*election.lock(Candidate::new("b"), ttl)).await;
    assert!(lost(&second) < ttl, "{second:?}");
    assert!(second.epoch > first.epoch);
    ask(&["FLUSHALL"]);
    let third = granted(&*election.lock(Candidate::new("c"), ttl)).await;
    assert!(lost(&third) < ttl, "{third:?}");
    // Another election, never used: but something was flushed, and that could have been it.
    let other = RedisLock::new(election.redis(), "other:cluster", Candidate::new("d"), ttl);
    assert!(lost(&granted(&other).await) < ttl);
}

/// Two instances, of which one has seen epochs: it knows that this registry has forgotten them.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_has_seen_epochs_does_not_take_a_registry_for_new() {
    let ttl = Duration::from_secs(1);
    let election = started_a_while_ago(ttl).await;
    let (a, b) = (election.lock(Candidate::new("a"), ttl), election.lock(Candidate::new("b"), ttl));
    let far = Epoch(1 << 52);
    a.saw(far);
    let grant = granted(&*a).await;
    assert!(lost(&grant) < ttl, "{grant:?}");
    assert!(grant.epoch > far, "{grant:?}");
    a.release(grant.epoch).await.expect("released");
    let next = granted(&*b).await;
    assert!(lost(&next) < 2 * ttl, "the one that has seen nothing hears of it too: {next:?}");
}

/// A campaign gives up a request before the connection does.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_falls_silent_is_not_used_again() {
    let server = RedisServer::start().await;
    let relay = Relay::to(server.address()).await;
    let address = Address::parse(&format!("redis://{}/0", relay.address)).expect("an address");
    let redis = Redis::new(RedisSettings::new(address));
    let lock = RedisLock::new(redis, PREFIX, Candidate::new("a"), Duration::from_secs(30));
    let grant = granted(&lock).await;
    relay.loses_connections();
    let start = Instant::now();
    let patience = Duration::from_millis(500);
    let mut renewal = tokio::time::timeout(patience, lock.renew(grant.epoch)).await;
    assert!(renewal.is_err(), "{renewal:?}");
    renewal = tokio::time::timeout(patience, lock.renew(grant.epoch)).await;
    assert!(matches!(renewal, Ok(Ok(Renewal::Kept))), "{renewal:?} after {:?}", start.elapsed());
}

/// It may arrive at any time, and must not end what was granted after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_on_its_way_is_for_an_epoch_that_is_over() {
    let server = RedisServer::start().await;
    let relay = Relay::to(server.address()).await;
    let address = Address::parse(&format!("redis://{}/0", relay.address)).expect("an address");
    let redis = Redis::new(RedisSettings::new(address));
    let lock = RedisLock::new(redis, PREFIX, Candidate::new("a"), Duration::from_secs(30));
    let first = granted(&lock).await;
    relay.loses_connections();
    let release = tokio::time::timeout(Duration::from_millis(200), lock.release(first.epoch)).await;
    assert!(release.is_err(), "{release:?}");
    let second = granted(&lock).await;
    assert!(second.epoch > first.epoch, "{second:?} after {first:?}");
    lock.release(first.epoch).await.expect("nothing to do");
    assert_eq!(lock.renew(second.epoch).await.expect("an answer"), Renewal::Kept);
}
