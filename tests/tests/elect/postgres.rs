//! The lock in PostgreSQL.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use lockd_cloud::Postgres;
use lockd_elect::conformance::{Election, run_all};
use lockd_elect::postgres::{Database, PostgresLock, PostgresSettings};
use lockd_elect::{
    Attempt, Campaign, Candidate, LeaderLock, Leadership, LockError, Pace, Renewal, Tls,
};

use super::{granted, granted_within, leads};

pub struct InPostgres(pub Postgres);

impl Election for InPostgres {
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock> {
        let settings = PostgresSettings::parse(&self.0.url(), &Tls::default()).expect("an address");
        Arc::new(PostgresLock::new(settings, "cluster", candidate, ttl))
    }
}

/// One of many elections in one database, which do not touch each other.
struct Among {
    postgres: Arc<Postgres>,
    name: String,
}

impl Election for Among {
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock> {
        let settings =
            PostgresSettings::parse(&self.postgres.url(), &Tls::default()).expect("an address");
        Arc::new(PostgresLock::new(settings, &self.name, candidate, ttl))
    }

    fn forget(&self) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(async {
            tokio::task::block_in_place(|| self.postgres.run("TRUNCATE lockd_leader"));
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_in_postgres() {
    let postgres = Arc::new(Postgres::start().await);
    let elections = AtomicUsize::new(0);
    run_all(async || {
        let number = elections.fetch_add(1, Ordering::Relaxed);
        Among { postgres: Arc::clone(&postgres), name: format!("election {number}") }
    })
    .await;
}

pub fn run(election: &InPostgres, statement: &str) -> String {
    tokio::task::block_in_place(|| election.0.run(statement))
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

/// The database is gone, and nobody can be asked whose the lock is now.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_ends_the_office_at_once() {
    let mut election = InPostgres(Postgres::start().await);
    let pace = Pace {
        renew_every: Duration::from_secs(20),
        look_every: Duration::from_secs(20),
        grace: Duration::from_secs(1),
        notice: Duration::from_secs(1),
    };
    let ttl = Duration::from_secs(60);
    let campaign = Campaign::start(election.lock(Candidate::new("a"), ttl), pace);
    let office = leads(&campaign).await;
    let killed = Instant::now();
    tokio::task::block_in_place(|| election.0.kill());
    office.over().cancelled().await;
    assert!(killed.elapsed() < Duration::from_secs(1), "after {:?}", killed.elapsed());
    tokio::task::block_in_place(|| election.0.start_again());
    // Whoever led knows that it does not any more, and need not wait for itself.
    let next = leads(&campaign).await;
    assert!(next.epoch > office.epoch);
    campaign.stop().await;
}

/// All sessions are gone, and perhaps nobody was told.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_led_when_another_server_was_here_is_given_its_whole_time() {
    let mut election = InPostgres(Postgres::start().await);
    let ttl = Duration::from_secs(3);
    let old = granted(&*election.lock(Candidate::new("a"), ttl)).await;
    tokio::task::block_in_place(|| election.0.start_again());
    let start = Instant::now();
    let new = granted_within(&*election.lock(Candidate::new("b"), ttl), ttl * 3).await;
    assert!(start.elapsed() >= ttl, "after {:?}", start.elapsed());
    assert!(new.epoch > old.epoch);
}

/// Whatever the clock of the database says: the lock goes by what moves.
#[tokio::test(flavor = "multi_thread")]
async fn the_clock_of_the_database_neither_ends_an_office_nor_keeps_one() {
    let election = InPostgres(Postgres::start().await);
    let ttl = Duration::from_secs(2);
    let (a, b) = (election.lock(Candidate::new("a"), ttl), election.lock(Candidate::new("b"), ttl));
    let first = granted(&*a).await;
    for step in ["- interval '1 hour'", "+ interval '1 hour'"].repeat(3) {
        run(&election, &format!("UPDATE lockd_leader SET renewed_at = renewed_at {step}"));
        assert!(matches!(b.try_acquire().await, Ok(Attempt::Held(_))), "{step}");
        tokio::time::sleep(ttl / 4).await;
        assert_eq!(a.renew(first.epoch).await.expect("an answer"), Renewal::Kept);
    }
    run(&election, "UPDATE lockd_leader SET renewed_at = renewed_at + interval '1 hour'");
    let start = Instant::now();
    let second = granted_within(&*b, ttl * 2).await;
    assert!(start.elapsed() > ttl / 2, "after {:?}", start.elapsed());
    assert!(second.epoch > first.epoch);
    let lost = a.renew(first.epoch).await.expect("an answer");
    assert!(matches!(lost, Renewal::Lost(_)), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_before_is_used_on() {
    let election = InPostgres(Postgres::start().await);
    run(
        &election,
        "CREATE TABLE lockd_leader (name text PRIMARY KEY, epoch bigint NOT NULL,
            holder text NOT NULL, incarnation text NOT NULL, backend integer NOT NULL,
            renewed_at timestamptz NOT NULL, released boolean NOT NULL);
         INSERT INTO lockd_leader VALUES ('cluster', 41, 'old', 'x', 1, now(), true)",
    );
    let lock = election.lock(Candidate::new("a"), Duration::from_secs(30));
    let grant = granted(&*lock).await;
    assert_eq!(grant.epoch.0, 42);
    assert_eq!(lock.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
}

/// A database that was made by somebody else.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_use_the_table_need_not_be_allowed_to_make_it() {
    let election = InPostgres(Postgres::start().await);
    let owner = election.lock(Candidate::new("owner"), Duration::from_secs(30));
    let grant = granted(&*owner).await;
    owner.release(grant.epoch).await.expect("released");
    run(
        &election,
        "CREATE ROLE guest LOGIN; GRANT SELECT, INSERT, UPDATE ON lockd_leader TO guest;
         REVOKE CREATE ON SCHEMA public FROM public",
    );
    let url = election.0.url().replace("lockd@", "guest@");
    let settings = PostgresSettings::parse(&url, &Tls::default()).expect("an address");
    let guest =
        PostgresLock::new(settings, "cluster", Candidate::new("guest"), Duration::from_secs(30));
    granted(&guest).await;
}

fn database(election: &InPostgres) -> Database {
    let settings = PostgresSettings::parse(&election.0.url(), &Tls::default()).expect("an address");
    Database::new(settings.timeout(Duration::from_millis(1_500)), "SELECT 1")
}

async fn text(database: &Database, statement: &str) -> String {
    let rows = database.rows(statement, &[]).await.expect("rows");
    rows.first().expect("a row").get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_confirmed_is_on_a_disk_also_where_that_is_not_usual() {
    let election = InPostgres(Postgres::start().await);
    let shown = "SELECT current_setting('synchronous_commit')";
    for (usual, expected) in
        [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
    {
        run(&election, &format!("ALTER ROLE lockd SET synchronous_commit = {usual}"));
        assert_eq!(text(&database(&election), shown).await, expected, "{usual}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_ends_in_time_and_the_next_one_is_not_behind_it() {
    let election = InPostgres(Postgres::start().await);
    let database = database(&election);
    let own = "SELECT pg_backend_pid()::text";
    let first = text(&database, own).await;
    let start = Instant::now();
    let ended = database.run("SELECT pg_sleep(60)", &[]).await;
    assert!(matches!(ended, Err(LockError::Unavailable(_))), "{ended:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "after {:?}", start.elapsed());
    assert_eq!(text(&database, own).await, first, "the server ended it");

    // One that nobody waits for.
    let asked = database.run("SELECT pg_sleep(0.5)", &[]);
    assert!(tokio::time::timeout(Duration::from_millis(100), asked).await.is_err());
    assert_ne!(text(&database, own).await, first, "the next one is behind it");

    // A server that does not even say that.
    let pid = text(&database, own).await;
    let signal = |name: &str| {
        let signalled = std::process::Command::new("kill").args([name, &pid]).status();
        assert!(signalled.expect("kill").success());
    };
    signal("-STOP");
    let start = Instant::now();
    let silent = database.run("SELECT 1", &[]).await;
    assert!(matches!(silent, Err(LockError::Unavailable(_))), "{silent:?}");
    assert!(start.elapsed() < Duration::from_secs(4), "after {:?}", start.elapsed());
    assert_ne!(text(&database, own).await, pid);
    signal("-CONT");
}

/// It seems to work, as long as nobody else asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_refused() {
    let election = InPostgres(Postgres::start().await);
    let pooler = tokio::task::block_in_place(|| election.0.pooler());
    let settings = PostgresSettings::parse(&pooler.url(), &Tls::default()).expect("an address");
    let lock = PostgresLock::new(settings, "cluster", Candidate::new("a"), Duration::from_secs(30));
    for _ in 0..3 {
        let refused = lock.try_acquire().await;
        let Err(LockError::Refused(why)) = &refused else { panic!("{refused:?}") };
        assert!(why.contains("pooler"), "{why}");
    }
}
