//! Sessions of PostgreSQL that have the lock of an election and do nothing for it.

use std::time::{Duration, Instant};

use lockd_cloud::Postgres;
use lockd_elect::conformance::Election;
use lockd_elect::postgres::{PostgresLock, PostgresSettings};
use lockd_elect::{Attempt, Campaign, Candidate, LeaderLock, LockError, Pace, Renewal, Tls};

use super::postgres::{InPostgres, run};
use super::{granted, granted_within, leads};

const TTL: Duration = Duration::from_secs(2);

/// The number of the advisory lock of the election, which is then free again.
async fn number(election: &InPostgres) -> String {
    let lock = election.lock(Candidate::new("first"), TTL);
    let grant = granted(&*lock).await;
    let shown = "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
                 WHERE locktype = 'advisory'";
    let number = run(election, shown);
    lock.release(grant.epoch).await.expect("released");
    number
}

/// Waits until a session of somebody else has it.
fn squat(election: &InPostgres, number: &str) -> impl Drop + use<> {
    let statement = format!("SELECT pg_advisory_lock({number}), pg_sleep(600)");
    tokio::task::block_in_place(|| {
        let session = election.0.session(&statement);
        let shown = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
        lockd_tests::eventually("it has the lock", || election.0.run(shown) == "1");
        session
    })
}

/// Whoever is judged is given a whole time to live, and not much more.
async fn takes_over(election: &InPostgres) {
    let lock = election.lock(Candidate::new("b"), TTL);
    let start = Instant::now();
    let grant = granted_within(&*lock, TTL + Duration::from_secs(2)).await;
    assert!(start.elapsed() >= TTL, "after {:?}", start.elapsed());
    assert_eq!(lock.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_nobody_is_ended_where_the_row_says_released() {
    let election = InPostgres(Postgres::start().await);
    let number = number(&election).await;
    let _squatter = squat(&election, &number);
    takes_over(&election).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_nobody_is_ended_where_there_is_no_row() {
    let election = InPostgres(Postgres::start().await);
    let number = number(&election).await;
    run(&election, "TRUNCATE lockd_leader");
    let _squatter = squat(&election, &number);
    takes_over(&election).await;
}

/// The leader's own session ended, and something else was quicker than any candidate.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_nobody_is_ended_where_the_row_is_of_another() {
    let election = InPostgres(Postgres::start().await);
    let number = number(&election).await;
    let old = election.lock(Candidate::new("a"), TTL);
    granted(&*old).await;
    drop(old);
    let _squatter = squat(&election, &number);
    takes_over(&election).await;
}

/// Stopped, as far as anybody can see.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_does_not_renew_is_deposed_and_cannot_renew_any_more() {
    let election = InPostgres(Postgres::start().await);
    let stopped = election.lock(Candidate::new("a"), TTL);
    let grant = granted(&*stopped).await;
    takes_over(&election).await;
    let lost = stopped.renew(grant.epoch).await.expect("an answer");
    assert!(matches!(lost, Renewal::Lost(_)), "{lost:?}");
}

/// Deposed, and whoever did that died before it could end the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_deposed_and_not_ended_keeps_nobody_out() {
    let election = InPostgres(Postgres::start().await);
    let stopped = election.lock(Candidate::new("a"), TTL);
    granted(&*stopped).await;
    run(&election, "UPDATE lockd_leader SET released = true");
    takes_over(&election).await;
}

/// A candidate that got the advisory lock and was stopped before it could take office.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_stops_half_way_keeps_nobody_out() {
    let election = InPostgres(Postgres::start().await);
    let old = election.lock(Candidate::new("a"), TTL);
    granted(&*old).await;
    drop(old);
    let stopped = election.lock(Candidate::new("stopped"), TTL);
    // It waits for the moment that the old one is given, and is never seen again.
    lockd_tests::eventually("its session has the lock", || {
        let tried = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(stopped.try_acquire())
        });
        assert!(matches!(tried, Ok(Attempt::Held(_))), "{tried:?}");
        run(&election, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == "1"
    });
    takes_over(&election).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_may_not_be_ended_is_named() {
    let election = InPostgres(Postgres::start().await);
    let number = number(&election).await;
    run(
        &election,
        "CREATE ROLE guest LOGIN; GRANT SELECT, INSERT, UPDATE ON lockd_leader TO guest",
    );
    let _squatter = squat(&election, &number);
    let url = election.0.url().replace("lockd@", "guest@");
    let settings = PostgresSettings::parse(&url, &Tls::default()).expect("an address");
    let guest = PostgresLock::new(settings, "cluster", Candidate::new("guest"), TTL);
    let start = Instant::now();
    let why = loop {
        match guest.try_acquire().await {
            Ok(Attempt::Held(_)) => tokio::time::sleep(TTL / 20).await,
            Err(LockError::Refused(why)) => break why,
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < TTL * 3, "it is never said");
    };
    assert!(why.contains(&number) && why.contains("does not renew"), "{why}");
}

/// A table that somebody has locked, and a server that answers nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_stuck_is_told_as_such_in_time() {
    let election = InPostgres(Postgres::start().await);
    let lock = election.lock(Candidate::new("a"), TTL);
    let grant = granted(&*lock).await;
    {
        let statement = "BEGIN; LOCK TABLE lockd_leader; SELECT pg_sleep(600)";
        let _stuck = election.0.session(statement);
        let (refused, start) = loop {
            let start = Instant::now();
            match lock.renew(grant.epoch).await {
                Ok(Renewal::Kept) => {}
                other => break (other, start),
            }
        };
        assert!(matches!(refused, Err(LockError::Unavailable(_))), "{refused:?}");
        assert!(start.elapsed() < Duration::from_secs(3), "after {:?}", start.elapsed());
    }
    run(
        &election,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'BEGIN%'",
    );
    lockd_tests::eventually("it is renewed again", || {
        let renewed = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(lock.renew(grant.epoch))
        });
        matches!(renewed, Ok(Renewal::Kept))
    });
}

/// The session of the leader does not answer: its office ends when that is noticed, long before the
/// time to live.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_does_not_answer_ends_the_office() {
    let election = InPostgres(Postgres::start().await);
    let pace = Pace {
        renew_every: Duration::from_millis(200),
        look_every: Duration::from_secs(20),
        grace: Duration::from_secs(1),
        notice: Duration::from_secs(1),
    };
    let settings = PostgresSettings::parse(&election.0.url(), &Tls::default()).expect("an address");
    let settings = settings.timeout(Duration::from_millis(700));
    let lock = PostgresLock::new(settings, "cluster", Candidate::new("a"), Duration::from_secs(60));
    let campaign = Campaign::start(std::sync::Arc::new(lock), pace);
    let office = leads(&campaign).await;
    let backend = run(&election, "SELECT backend FROM lockd_leader");
    let signal = |name: &str| {
        let signalled = std::process::Command::new("kill").args([name, &backend]).status();
        assert!(signalled.expect("kill").success());
    };
    let start = Instant::now();
    signal("-STOP");
    office.over().cancelled().await;
    assert!(start.elapsed() < Duration::from_secs(4), "after {:?}", start.elapsed());
    signal("-CONT");
    let next = leads(&campaign).await;
    assert!(next.epoch > office.epoch);
    campaign.stop().await;
}

/// Each time the next one waits a moment, and none of the others keeps it from its turn.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_follows_each_time_a_session_breaks() {
    let election = InPostgres(Postgres::start().await);
    let pace = Pace {
        renew_every: Duration::from_secs(20),
        look_every: Duration::from_secs(20),
        grace: Duration::from_secs(1),
        notice: Duration::from_secs(1),
    };
    let ttl = Duration::from_secs(60);
    let start = |number: u32| {
        Campaign::start(election.lock(Candidate::new(format!("c{number}")), ttl), pace)
    };
    let campaigns: Vec<Campaign> = (0..4).map(start).collect();
    let next = async || {
        let led = campaigns.iter().map(|campaign| Box::pin(leads(campaign)));
        futures_util::future::select_all(led).await.0
    };
    let mut office = next().await;
    for _ in 0..3 {
        let broke = Instant::now();
        run(&election, "SELECT pg_terminate_backend(backend) FROM lockd_leader");
        office.over().cancelled().await;
        let following = next().await;
        assert!(broke.elapsed() < Duration::from_millis(2_500), "after {:?}", broke.elapsed());
        assert!(following.epoch > office.epoch);
        office = following;
    }
    for campaign in &campaigns {
        campaign.stop().await;
    }
}
