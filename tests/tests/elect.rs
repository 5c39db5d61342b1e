//! What every leader lock must keep, over a real Redis and a real lockd.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use lockd_client::Client;
use lockd_cloud::{Etcd, Postgres, Redis as RedisServer};
use lockd_elect::conformance::{Election, run_all};
use lockd_elect::etcd::{EtcdLock, EtcdSettings};
use lockd_elect::lockd::LockdLock;
use lockd_elect::postgres::{PostgresLock, PostgresSettings};
use lockd_elect::redis::{Address, Redis, RedisLock, RedisSettings};
use lockd_elect::{
    Attempt, Campaign, Candidate, Grant, LeaderLock, Leadership, LockError, Loss, Memory, Pace,
    Renewal,
};
use lockd_tests::{Options, Place, Server};

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

struct InLockd(Mutex<Server>);

impl Election for InLockd {
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock> {
        let Place::Tcp(address) = self.0.lock().expect("a server").place.clone() else {
            panic!("not over the network")
        };
        let client = Client::connect(&format!("http://{address}")).expect("a client");
        Arc::new(LockdLock::new(client, "cluster/leader", candidate, ttl))
    }

    fn forget(&self) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(async {
            tokio::task::block_in_place(|| {
                let mut server = self.0.lock().expect("a server");
                server.kill();
                server.start_again();
            });
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_lockd() {
    let start = || InLockd(Mutex::new(Server::start(Options::in_memory())));
    run_all(async || tokio::task::block_in_place(start)).await;
}

struct InPostgres(Postgres);

impl Election for InPostgres {
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock> {
        let settings = PostgresSettings::parse(&self.0.url()).expect("an address");
        Arc::new(PostgresLock::new(settings, "cluster", candidate, ttl))
    }

    fn forget(&self) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(async {
            tokio::task::block_in_place(|| self.0.run("TRUNCATE lockd_leader"));
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_postgres() {
    run_all(async || InPostgres(Postgres::start().await)).await;
}

/// Long before the time to live is over: the session is what is noticed.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_breaks_is_noticed_by_all() {
    let election = InPostgres(Postgres::start().await);
    let pace = Pace {
        renew_every: Duration::from_secs(20),
        look_every: Duration::from_secs(20),
        grace: Duration::from_secs(1),
        notice: Duration::from_secs(1),
    };
    let ttl = Duration::from_secs(60);
    let start = |id: &str| Campaign::start(election.lock(Candidate::new(id), ttl), pace);
    let a = start("a");
    a.leadership().wait_for(|now| now.office().is_some()).await.expect("it leads");
    let office = a.leadership().borrow().office().cloned().expect("it leads");
    let b = start("b");
    let mut follows = b.leadership();
    let of_a = |now: &Leadership| matches!(now, Leadership::Following { leader: Some(leader), .. } if leader.id == "a");
    follows.wait_for(of_a).await.expect("it follows");
    let broke = Instant::now();
    let ended = "SELECT pg_terminate_backend(backend) FROM lockd_leader";
    assert_eq!(tokio::task::block_in_place(|| election.0.run(ended)), "t");
    office.over().cancelled().await;
    assert!(broke.elapsed() < Duration::from_secs(1), "after {:?}", broke.elapsed());
    let (mut of_a, mut of_b) = (a.leadership(), b.leadership());
    let next = tokio::select! {
        next = of_a.wait_for(|now| now.office().is_some()) => next,
        next = of_b.wait_for(|now| now.office().is_some()) => next,
    };
    let next = next.expect("one leads").office().cloned().expect("it leads");
    assert!(broke.elapsed() < Duration::from_secs(2), "after {:?}", broke.elapsed());
    assert!(next.epoch > office.epoch);
    a.stop().await;
    b.stop().await;
}

struct InEtcd(Mutex<Etcd>);

impl Election for InEtcd {
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock> {
        let url = self.0.lock().expect("a server").url();
        let settings = EtcdSettings::parse(&url, None).expect("an address");
        Arc::new(EtcdLock::new(settings, "cluster", candidate, ttl))
    }

    fn forget(&self) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(async {
            tokio::task::block_in_place(|| {
                let mut etcd = self.0.lock().expect("a server");
                etcd.kill();
                etcd.forget();
                etcd.start_again();
            });
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_etcd() {
    run_all(async || InEtcd(Mutex::new(Etcd::start().await))).await;
}

/// A connection that broke is made anew for the second attempt.
async fn granted(lock: &dyn LeaderLock) -> Grant {
    let mut answer = lock.try_acquire().await;
    if matches!(answer, Err(LockError::Unavailable(_))) {
        answer = lock.try_acquire().await;
    }
    match answer {
        Ok(Attempt::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
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
    assert_eq!(again.memory, Memory::Lost);
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
