//! What every ledger of a controller must keep, over a real lockd and a real PostgreSQL: whoever
//! does not lead any more writes nothing, whatever it has decided before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockd_client::Client;
use lockd_cloud::Postgres;
use lockd_elect::Tls;
use lockd_elect::postgres::{Database, PostgresSettings};
use lockd_jobs::ledger::lockd::LockdLedger;
use lockd_jobs::ledger::postgres::PostgresLedger;
use lockd_jobs::ledger::{Kind, Ledger, Opened, Record, Term, Written};
use lockd_tests::{Dice, Options, Place, Server};

enum Site {
    Lockd(Box<Server>),
    Postgres(Postgres),
}

impl Site {
    async fn lockd() -> Self {
        let started = tokio::task::spawn_blocking(|| Server::start(Options::new()));
        Self::Lockd(Box::new(started.await.expect("a server")))
    }

    async fn postgres() -> Self {
        Self::Postgres(Postgres::start().await)
    }

    /// As one node reaches it.
    fn ledger(&self) -> Arc<dyn Ledger> {
        match self {
            Self::Lockd(server) => {
                let Place::Tcp(address) = server.place else { panic!("not over the network") };
                let client = Client::connect(&format!("http://{address}")).expect("a client");
                Arc::new(LockdLedger::new(client, "ha/controller"))
            }
            Self::Postgres(postgres) => {
                let settings =
                    PostgresSettings::parse(&postgres.url(), &Tls::default()).expect("an address");
                Arc::new(PostgresLedger::new(settings, "controller"))
            }
        }
    }
}

fn term(epoch: u64, node: &str) -> Term {
    Term { epoch, node: node.into() }
}

fn job(id: &str, version: u64, body: &str) -> Record {
    Record { kind: Kind::Job, id: id.into(), version, body: body.into() }
}

async fn opens(ledger: &dyn Ledger, epoch: u64, node: &str) -> Opened {
    ledger.open(&term(epoch, node)).await.expect("an answer")
}

async fn writes(ledger: &dyn Ledger, epoch: u64, record: &Record) -> Written {
    ledger.write(epoch, record).await.expect("an answer")
}

async fn only_the_latest_leader_writes(site: Site) {
    let (a, b) = (site.ledger(), site.ledger());
    assert_eq!(
        writes(&*a, 3, &job("j", 1, "1")).await,
        Written::Stale(None),
        "nobody has opened it"
    );
    assert_eq!(opens(&*a, 3, "a").await, Opened::Yes);
    assert_eq!(opens(&*a, 3, "a").await, Opened::Yes, "again");
    assert_eq!(opens(&*b, 3, "b").await, Opened::Behind(3), "the same epoch of another");
    assert_eq!(opens(&*b, 2, "b").await, Opened::Behind(3));
    assert_eq!(writes(&*a, 3, &job("j", 1, "1")).await, Written::Done);
    // Its write is decided upon, and then it stops. Another takes over and writes.
    let decided = job("j", 2, "2");
    assert_eq!(opens(&*b, 7, "b").await, Opened::Yes);
    assert_eq!(writes(&*b, 7, &job("j", 2, "3")).await, Written::Done);
    assert_eq!(writes(&*a, 3, &decided).await, Written::Stale(Some(7)), "it wakes up");
    assert_eq!(opens(&*a, 3, "a").await, Opened::Behind(7));
    let kept = b.read(Kind::Job, "j").await.expect("an answer").expect("a record");
    assert_eq!(kept.body, "3");
    assert_eq!(b.terms().await.expect("terms"), [term(7, "b"), term(3, "a")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_latest_leader_writes_to_lockd() {
    only_the_latest_leader_writes(Site::lockd().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_latest_leader_writes_to_postgres() {
    only_the_latest_leader_writes(Site::postgres().await).await;
}

async fn records_are_listed_in_order(site: Site) {
    let ledger = site.ledger();
    opens(&*ledger, 1, "a").await;
    for number in [3, 1, 2, 10] {
        writes(&*ledger, 1, &job(&format!("j{number:02}"), 1, &number.to_string())).await;
    }
    let agent = Record { kind: Kind::Agent, id: "a1".into(), version: 1, body: "{}".into() };
    writes(&*ledger, 1, &agent).await;
    let ids = async |after, limit| -> Vec<String> {
        let listed = ledger.list(Kind::Job, after, limit).await.expect("a list");
        listed.into_iter().map(|record| record.id).collect()
    };
    assert_eq!(ids(None, 100).await, ["j01", "j02", "j03", "j10"]);
    assert_eq!(ids(Some("j01"), 2).await, ["j02", "j03"]);
    assert!(ids(Some("j10"), 2).await.is_empty());
    assert_eq!(ledger.list(Kind::Agent, None, 9).await.expect("a list"), [agent]);
    assert_eq!(ledger.read(Kind::Job, "none").await.expect("an answer"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_listed_in_order_by_lockd() {
    records_are_listed_in_order(Site::lockd().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_listed_in_order_by_postgres() {
    records_are_listed_in_order(Site::postgres().await).await;
}

/// A process is killed with a write under way; its successor opens under the same epoch.
async fn only_the_latest_opening_writes(site: Site) {
    let (killed, next) = (site.ledger(), site.ledger());
    assert_eq!(opens(&*killed, 3, "a").await, Opened::Yes);
    assert_eq!(writes(&*killed, 3, &job("j", 1, "1")).await, Written::Done);
    assert_eq!(opens(&*next, 3, "a").await, Opened::Yes, "the same node under the same epoch");
    let stale = Written::Stale(Some(3));
    for _ in 0..2 {
        assert_eq!(writes(&*killed, 3, &job("j", 2, "2")).await, stale, "it is late");
        assert_eq!(writes(&*killed, 3, &job("j", 1, "1")).await, stale);
        let removed = killed.remove(3, Kind::Job, "j").await.expect("an answer");
        assert_eq!(removed, stale);
    }
    assert_eq!(writes(&*next, 3, &job("j", 2, "3")).await, Written::Done);
    let kept = next.read(Kind::Job, "j").await.expect("an answer");
    assert_eq!(kept, Some(job("j", 2, "3")));
    assert_eq!(next.terms().await.expect("terms"), [term(3, "a")], "one leadership");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_latest_opening_writes_to_lockd() {
    only_the_latest_opening_writes(Site::lockd().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_latest_opening_writes_to_postgres() {
    only_the_latest_opening_writes(Site::postgres().await).await;
}

async fn versions_only_grow(site: Site) {
    let ledger = site.ledger();
    opens(&*ledger, 1, "a").await;
    assert_eq!(writes(&*ledger, 1, &job("j", 2, "b")).await, Written::Done);
    assert_eq!(writes(&*ledger, 1, &job("j", 2, "b")).await, Written::Done, "the same again");
    assert_eq!(writes(&*ledger, 1, &job("j", 2, "c")).await, Written::Superseded);
    assert_eq!(writes(&*ledger, 1, &job("j", 1, "a")).await, Written::Superseded);
    let kept = ledger.read(Kind::Job, "j").await.expect("an answer");
    assert_eq!(kept, Some(job("j", 2, "b")));
    assert_eq!(writes(&*ledger, 1, &job("j", 7, "d")).await, Written::Done);
    // What is forgotten begins anew.
    for _ in 0..2 {
        let removed = ledger.remove(1, Kind::Job, "j").await.expect("an answer");
        assert_eq!(removed, Written::Done);
        assert_eq!(ledger.read(Kind::Job, "j").await.expect("an answer"), None);
    }
    assert!(ledger.list(Kind::Job, None, 9).await.expect("a list").is_empty());
    assert_eq!(writes(&*ledger, 1, &job("j", 1, "e")).await, Written::Done);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_only_grow_in_lockd() {
    versions_only_grow(Site::lockd().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_only_grow_in_postgres() {
    versions_only_grow(Site::postgres().await).await;
}

/// Bodies are kept as they are, and pages of large ones are small.
async fn large_and_odd_bodies_come_back(site: Site) {
    let ledger = site.ledger();
    opens(&*ledger, 1, "a").await;
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let odd = r#" { "a" : 1.0e+999, "a":123456789012345678901234567890 , "b\u0000":"\ud800" } "#;
    let large = format!("{:?}", "ü\n".repeat(250_000));
    let mut records = vec![job("a", 1, &deep), job("b", 1, odd)];
    records.extend((0..20).map(|number| job(&format!("c{number:02}"), 1, &large)));
    for record in &records {
        assert_eq!(writes(&*ledger, 1, record).await, Written::Done, "{}", record.id);
    }
    let (mut read, mut pages) = (Vec::new(), 0);
    loop {
        let after = read.last().map(|record: &Record| record.id.clone());
        let page = ledger.list(Kind::Job, after.as_deref(), 1_000).await.expect("a page");
        if page.is_empty() {
            break;
        }
        pages += 1;
        read.extend(page);
    }
    assert!(read == records, "they differ");
    assert!(pages > 1, "a page is bounded by bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_odd_bodies_come_back_from_lockd() {
    large_and_odd_bodies_come_back(Site::lockd().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_odd_bodies_come_back_from_postgres() {
    large_and_odd_bodies_come_back(Site::postgres().await).await;
}

/// Many writes at once, while somebody takes over: each is done before, or refused.
async fn writes_at_once_are_all_before_or_all_refused(site: Site) {
    let (a, b) = (site.ledger(), site.ledger());
    opens(&*a, 1, "a").await;
    let mut writing = tokio::task::JoinSet::new();
    for number in 0..40 {
        let a = Arc::clone(&a);
        writing.spawn(async move {
            let record = job(&format!("j{number:02}"), 1, "1");
            (record.id.clone(), a.write(1, &record).await)
        });
    }
    tokio::task::yield_now().await;
    assert_eq!(opens(&*b, 2, "b").await, Opened::Yes);
    let seen = b.list(Kind::Job, None, 100).await.expect("a list");
    let seen: Vec<&str> = seen.iter().map(|record| record.id.as_str()).collect();
    while let Some(written) = writing.join_next().await {
        let (id, written) = written.expect("a write");
        match written {
            Ok(Written::Done) => {
                assert!(seen.contains(&id.as_str()), "{id} came after the opening");
            }
            Ok(Written::Stale(_)) => {
                assert!(!seen.contains(&id.as_str()), "{id} was told to be stale");
            }
            Ok(Written::Superseded) => panic!("{id} was written once"),
            Err(_) => {}
        }
    }
    let after = b.list(Kind::Job, None, 100).await.expect("a list");
    assert_eq!(after.len(), seen.len(), "nothing came after the opening");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_at_once_are_all_before_or_all_refused_by_lockd() {
    writes_at_once_are_all_before_or_all_refused(Site::lockd().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_at_once_are_all_before_or_all_refused_by_postgres() {
    writes_at_once_are_all_before_or_all_refused(Site::postgres().await).await;
}

/// Four nodes take office over and over, and write what they have counted so far. Whoever is told
/// that it was done has done it: the sum of what was confirmed is what is kept at the end.
async fn nothing_confirmed_is_lost(site: Site) {
    let mut dice = Dice::announced("nothing_confirmed_is_lost");
    let next = Arc::new(std::sync::atomic::AtomicU64::new(1));
    let mut nodes = tokio::task::JoinSet::new();
    for number in 0..4 {
        let (ledger, next, mut dice) = (site.ledger(), Arc::clone(&next), dice.fork());
        nodes.spawn(async move {
            let node = format!("n{number}");
            let mut confirmed = BTreeMap::new();
            for _ in 0..25 {
                // Some are left in office for a while.
                tokio::time::sleep(Duration::from_millis(dice.below(120) as u64)).await;
                let epoch = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                if ledger.open(&term(epoch, &node)).await.expect("an answer") != Opened::Yes {
                    continue;
                }
                for _ in 0..dice.between(1, 6) {
                    // What is kept is read under the office, and changed by one.
                    let kept = ledger.read(Kind::Job, "sum").await.expect("an answer");
                    let sum: u64 = kept.map_or(0, |kept| kept.body.parse().expect("a number"));
                    let record = job("sum", sum + 1, &(sum + 1).to_string());
                    if ledger.write(epoch, &record).await.expect("an answer") != Written::Done {
                        break;
                    }
                    confirmed.insert((epoch, sum + 1), node.clone());
                }
            }
            confirmed
        });
    }
    let mut confirmed = BTreeMap::new();
    while let Some(of_node) = nodes.join_next().await {
        for (what, node) in of_node.expect("a node") {
            assert!(confirmed.insert(what, node).is_none());
        }
    }
    // In the order of epochs the sums only grow: no later leader has read behind an earlier one's
    // confirmed write.
    let sums: Vec<u64> = confirmed.keys().map(|(_, sum)| *sum).collect();
    assert!(sums.windows(2).all(|pair| pair[0] < pair[1]), "{confirmed:?}");
    let kept = site.ledger().read(Kind::Job, "sum").await.expect("an answer").expect("a record");
    assert_eq!(Some(kept.body.parse().expect("a number")), sums.last().copied());
    assert!(sums.len() > 10, "{sums:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_confirmed_is_lost_by_lockd() {
    nothing_confirmed_is_lost(Site::lockd().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_confirmed_is_lost_by_postgres() {
    nothing_confirmed_is_lost(Site::postgres().await).await;
}

/// A leader of before stopped while it had the record in hand.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stopped_in_the_middle_of_a_write_holds_up_nobody() {
    let site = Site::lockd().await;
    let Site::Lockd(server) = &site else { panic!("not lockd") };
    let Place::Tcp(address) = server.place else { panic!("not over the network") };
    let client = Client::connect(&format!("http://{address}")).expect("a client");
    let held = client.lease("ha/controller/job/j").ttl(Duration::from_secs(60)).no_wait();
    let held = held.detached().await.expect("a lease");
    let ledger = site.ledger();
    opens(&*ledger, 1, "a").await;
    let start = Instant::now();
    assert_eq!(writes(&*ledger, 1, &job("j", 1, "1")).await, Written::Done);
    assert!(start.elapsed() < Duration::from_secs(3), "after {:?}", start.elapsed());
    let late = client.raw(held.context).update(&"late").then_commit().await;
    assert!(late.is_err(), "{late:?}");
}

/// The session of those who look does not answer, and is given up after a while.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_look_put_no_write_to_postgres_in_doubt() {
    let site = Site::postgres().await;
    let Site::Postgres(postgres) = &site else { panic!("not PostgreSQL") };
    let ledger = site.ledger();
    opens(&*ledger, 1, "a").await;
    assert_eq!(writes(&*ledger, 1, &job("j", 1, "1")).await, Written::Done);
    assert_eq!(ledger.list(Kind::Job, None, 9).await.expect("a list").len(), 1);
    let settings = PostgresSettings::parse(&postgres.url(), &Tls::default()).expect("an address");
    let look = "SELECT pid::text FROM pg_stat_activity WHERE query LIKE '%ORDER BY id LIMIT%'
                AND pid <> pg_backend_pid()";
    let found = Database::new(settings, "SELECT 1").rows(look, &[]).await.expect("sessions");
    assert_eq!(found.len(), 1, "one session has listed last");
    let pid: String = found[0].get(0);
    let signal = |name: &str| {
        let signalled = std::process::Command::new("kill").args([name, &pid]).status();
        assert!(signalled.expect("kill").success());
    };
    signal("-STOP");
    let listing = {
        let ledger = Arc::clone(&ledger);
        async move { ledger.list(Kind::Job, None, 9).await }
    };
    let writing = async {
        let mut written = Vec::new();
        for version in 2..20 {
            written.push(ledger.write(1, &job("j", version, "2")).await);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        written
    };
    let (listed, written) = tokio::join!(listing, writing);
    let loaded = ledger.load(Kind::Job, None, 9).await;
    signal("-CONT");
    assert!(listed.is_err(), "{listed:?}");
    assert!(written.iter().all(|written| matches!(written, Ok(Written::Done))), "{written:?}");
    assert_eq!(loaded.expect("a list").len(), 1, "a leader reads with its own session");
    assert_eq!(ledger.list(Kind::Job, None, 9).await.expect("a list").len(), 1);
}
