//! A bank whose server is killed in the middle of everything: 64 accounts in two namespaces, many
//! tellers who move money between two to five of them in one transaction, and auditors who sum up
//! all accounts as of one moment. The sum is right in every read and after every restart, and each
//! transfer is in all of its accounts or in none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockd_client::{Client, Error, Lease, ReleaseKind, Txn, secs};
use lockd_tests::bucket::bad_weather;
use lockd_tests::dice::rounds;
use lockd_tests::{Bucket, Cloud, Dice, Place, Server, within};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

const ACCOUNTS: usize = 64;
const TELLERS: usize = 16;
const AUDITORS: usize = 2;
const OPENING: i64 = 1_000;
/// Short, so that accounts held by a teller who died with the server are free soon.
const TTL: Duration = Duration::from_millis(800);

/// What an account says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Account {
    balance: i64,
    /// Every transfer that has ever changed it.
    transfers: BTreeSet<u64>,
}

/// What became of a transfer, as far as its teller was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Committed,
    RolledBack,
    Unknown,
}

struct Ledger {
    ttl: Duration,
    transfers: Mutex<BTreeMap<u64, (BTreeSet<usize>, Fate)>>,
    committed: AtomicUsize,
    deadlocks: AtomicUsize,
}

fn namespace(account: usize) -> &'static str {
    if account.is_multiple_of(2) { "savings" } else { "loans" }
}

fn full_name(account: usize) -> String {
    format!("{}/accounts/{account}", namespace(account))
}

fn client(place: &Place) -> Client {
    let Place::Tcp(address) = place else { panic!("not over the network") };
    let client = Client::builder().endpoint(format!("http://{address}")).owner("teller");
    client.attempts(1).timeout(secs(10)).build().expect("a client")
}

#[test]
fn the_sum_of_all_accounts_is_right_whenever_anybody_looks() {
    run(&mut [Server::usual()], rounds(15), Cloud::Double, None);
}

#[test]
fn also_on_two_servers_that_share_a_bucket_in_bad_weather() {
    on_bucket(Cloud::Double, 2, rounds(4));
}

#[test]
fn also_on_a_real_s3() {
    on_bucket(Cloud::Moto, 1, rounds(2));
}

#[test]
fn also_on_two_servers_that_share_a_real_azure() {
    on_bucket(Cloud::Azurite, 2, rounds(2));
}

fn on_bucket(cloud: Cloud, servers: usize, rounds: usize) {
    let bucket = Bucket::new(cloud);
    let mut servers: Vec<Server> = (0..servers).map(|_| Server::start(bucket.options())).collect();
    run(&mut servers, rounds, cloud, Some(&bucket));
}

/// Each round ends with the death of one server.
fn run(servers: &mut [Server], rounds: usize, cloud: Cloud, bucket: Option<&Bucket>) {
    let mut dice = Dice::announced("bank");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    // A bucket takes its time for each of the writes.
    let (ttl, most) = if bucket.is_some() { (4 * TTL, 40) } else { (TTL, 120) };
    let ledger = Ledger {
        ttl,
        transfers: Mutex::default(),
        committed: AtomicUsize::new(0),
        deadlocks: AtomicUsize::new(0),
    };
    runtime.block_on(open_accounts(&client(&servers[0].place)));
    for round in 0..rounds {
        let enough = ledger.committed.load(Ordering::Relaxed) + dice.between(most / 6, most);
        let over = watch::Sender::new(false);
        let places: Vec<Place> = servers.iter().map(|server| server.place.clone()).collect();
        let victim = dice.below(servers.len());
        if let Some(bucket) = bucket {
            bucket.proxy.set_plan(bad_weather());
        }
        std::thread::scope(|scope| {
            for number in 0..cloud.bears(TELLERS) {
                let place = &places[number % places.len()];
                let (dice, ledger, over) = (dice.fork(), &ledger, &over);
                let handle = runtime.handle().clone();
                scope.spawn(move || handle.block_on(tell(&client(place), dice, ledger, over)));
            }
            for number in 0..AUDITORS {
                let (place, over) = (&places[number % places.len()], &over);
                let handle = runtime.handle().clone();
                scope.spawn(move || handle.block_on(audit_on(&client(place), over)));
            }
            // Also when there is nothing to wait for any more because something is wrong.
            let _home = SentHome(&over);
            within(Duration::from_secs(300), "enough transfers", || {
                ledger.committed.load(Ordering::Relaxed) >= enough
            });
            servers[victim].kill();
        });
        if let Some(bucket) = bucket {
            bucket.proxy.heal();
        }
        servers[victim].start_again();
        let alone = servers.len() == 1;
        runtime.block_on(settle(&client(&servers[victim].place), &ledger, alone));
        println!("round {round}: {} committed", ledger.committed.load(Ordering::Relaxed));
    }
    println!("{} refused as deadlocks", ledger.deadlocks.load(Ordering::Relaxed));
}

#[test]
fn of_two_that_want_each_others_keys_one_is_refused_at_once_and_the_other_commits() {
    let server = Server::usual();
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let client = client(&server.place);
        let (one, other) = (client.txn(), client.txn());
        // Guards that renew: left alone, both would wait for ever.
        let x = one.lease("x").ttl(secs(20)).await.expect("free");
        let y = other.lease("y").ttl(secs(20)).await.expect("free");
        x.update(&1).await.expect("staged");
        y.update(&2).await.expect("staged");
        let waiting = tokio::spawn({
            let one = one.clone();
            async move { one.lease("y").wait(secs(60)).await }
        });
        eventually_waiting(&client).await;
        let asked = std::time::Instant::now();
        let refused = other.lease("x").wait(secs(60)).await.expect_err("it would wait for itself");
        assert!(asked.elapsed() < secs(20), "{:?}", asked.elapsed());
        assert_eq!(refused.code(), Some("waiting"), "{refused}");
        assert!(refused.detail().contains("deadlock"), "{refused}");
        other.rollback([y]).await.expect("rolled back");
        let y = waiting.await.expect("a task").expect("granted to the one who waits");
        y.update(&3).await.expect("staged");
        one.commit([x, y]).await.expect("committed");
        let both = client.read_many(["x", "y"]).await.expect("read");
        let values: Vec<i64> = both
            .into_iter()
            .map(|entry| entry.document.expect("one").json().expect("a number"))
            .collect();
        assert_eq!(values, [1, 3]);
    });
}

async fn eventually_waiting(client: &Client) {
    let look = async {
        loop {
            let leases = client.leases().next_page().await.expect("a page").unwrap_or_default();
            if leases.iter().any(|lease| lease.key == "y" && lease.waiters == 1) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(secs(30), look).await.expect("it waits in line");
}

/// Everybody stops when it goes.
struct SentHome<'a>(&'a watch::Sender<bool>);

impl Drop for SentHome<'_> {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

async fn open_accounts(client: &Client) {
    for account in 0..ACCOUNTS {
        let lease = client.lease(format!("accounts/{account}")).namespace(namespace(account));
        let opened = Account { balance: OPENING, ..Account::default() };
        lease.await.expect("free").finish(&opened).await.expect("opened");
    }
}

/// Moves money until the server is gone.
async fn tell(client: &Client, mut dice: Dice, ledger: &Ledger, over: &watch::Sender<bool>) {
    while !*over.borrow() {
        let id = dice.next();
        let mut accounts = BTreeSet::new();
        let count = dice.between(2, 6);
        while accounts.len() < count {
            accounts.insert(dice.below(ACCOUNTS));
        }
        // Half of the tellers take them in any order, and run into each other.
        let mut order: Vec<usize> = accounts.iter().copied().collect();
        if dice.one_in(2) {
            order.reverse();
        }
        let gives_up = dice.one_in(8);
        let mut ends = over.subscribe();
        // Whoever is still at it when the server is gone is sent home, and knows nothing.
        let fate = tokio::select! {
            fate = transfer(client, id, &order, gives_up, ledger) => fate,
            _ = ends.wait_for(|over| *over) => Fate::Unknown,
        };
        if fate == Fate::Committed {
            ledger.committed.fetch_add(1, Ordering::Relaxed);
        }
        ledger.transfers.lock().expect("the ledger").insert(id, (accounts, fate));
        tokio::task::yield_now().await;
    }
}

async fn transfer(
    client: &Client,
    id: u64,
    accounts: &[usize],
    gives_up: bool,
    ledger: &Ledger,
) -> Fate {
    let txn = client.txn();
    let mut leases = Vec::new();
    for account in accounts {
        match hold(&txn, *account, ledger.ttl).await {
            Ok(lease) => leases.push(lease),
            Err(error) => {
                if error.detail().contains("deadlock") {
                    ledger.deadlocks.fetch_add(1, Ordering::Relaxed);
                }
                return abandon(txn, leases).await;
            }
        }
    }
    // The first gives to all others.
    let others = i64::try_from(leases.len() - 1).expect("a few");
    for (index, lease) in leases.iter().enumerate() {
        let Ok(Some(document)) = lease.get().await else { return abandon(txn, leases).await };
        let mut account: Account = document.json().expect("an account");
        account.balance += if index == 0 { -7 * others } else { 7 };
        account.transfers.insert(id);
        if lease.update(&account).await.is_err() {
            return abandon(txn, leases).await;
        }
    }
    if gives_up {
        return fate_of(txn.rollback(leases).await, Fate::RolledBack);
    }
    fate_of(txn.commit(leases).await, Fate::Committed)
}

async fn hold(
    txn: &Txn,
    account: usize,
    ttl: Duration,
) -> Result<Lease, Error<lockd_client::AcquireKind>> {
    let ask = txn.lease(format!("accounts/{account}")).namespace(namespace(account));
    ask.ttl(ttl).wait(secs(2)).await
}

/// Before any commit was asked for: it never happens, whatever becomes of the leases.
async fn abandon(txn: Txn, leases: Vec<Lease>) -> Fate {
    if !leases.is_empty() {
        // It runs out by itself if this does not arrive.
        txn.rollback(leases).await.ok();
    }
    Fate::RolledBack
}

fn fate_of(answer: Result<(), Error<ReleaseKind>>, wish: Fate) -> Fate {
    match answer {
        Ok(()) => wish,
        Err(error) if error.kind() == ReleaseKind::LeaseLost => Fate::RolledBack,
        Err(error) if error.outcome_unknown() => {
            if wish == Fate::RolledBack {
                wish
            } else {
                Fate::Unknown
            }
        }
        Err(error) if error.kind() == ReleaseKind::Unavailable => Fate::RolledBack,
        Err(error) => panic!("{error}"),
    }
}

/// All accounts as of one moment; `None` when the server is gone.
async fn read_all(client: &Client) -> Option<Vec<Account>> {
    let names: Vec<String> = (0..ACCOUNTS).map(full_name).collect();
    let entries = client.read_many(names).full_names().await.ok()?;
    let account = |document: lockd_client::Document| document.json().expect("an account");
    Some(entries.into_iter().map(|entry| account(entry.document.expect("one"))).collect())
}

/// All accounts as of one moment, for which a busy machine may take several attempts.
async fn read_all_at_last(client: &Client) -> Vec<Account> {
    let look = async {
        loop {
            if let Some(accounts) = read_all(client).await {
                return accounts;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(secs(120), look).await.expect("the server is back")
}

/// The sum is right, and nothing is half there.
fn check(accounts: &[Account]) -> BTreeMap<u64, BTreeSet<usize>> {
    let sum: i64 = accounts.iter().map(|account| account.balance).sum();
    assert_eq!(sum, OPENING * i64::try_from(ACCOUNTS).expect("a few"), "money was made or lost");
    let mut seen: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    for (index, account) in accounts.iter().enumerate() {
        for id in &account.transfers {
            seen.entry(*id).or_default().insert(index);
        }
    }
    seen
}

async fn audit_on(client: &Client, over: &watch::Sender<bool>) {
    while !*over.borrow() {
        if let Some(accounts) = read_all(client).await {
            check(&accounts);
        }
    }
}

/// After a restart: what was answered is so, and what was not is whole or absent. Unless the server
/// was alone, what nobody was told may still be on its way.
async fn settle(client: &Client, ledger: &Ledger, alone: bool) {
    let accounts = read_all_at_last(client).await;
    let seen = check(&accounts);
    let mut transfers = ledger.transfers.lock().expect("the ledger");
    for (id, (parties, fate)) in transfers.iter_mut() {
        let there = seen.get(id);
        match (*fate, there) {
            (Fate::Committed, Some(found)) => assert_eq!(found, parties, "half of {id}"),
            (Fate::Committed, None) => panic!("transfer {id} was answered and is missing"),
            (Fate::RolledBack, None) => {}
            (Fate::RolledBack, Some(found)) => panic!("transfer {id} is there: {found:?}"),
            (Fate::Unknown, Some(found)) => {
                assert_eq!(found, parties, "half of {id}");
                *fate = Fate::Committed;
            }
            (Fate::Unknown, None) if alone => *fate = Fate::RolledBack,
            (Fate::Unknown, None) => {}
        }
    }
}
