//! The lock in etcd.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use lockd_cloud::Etcd;
use lockd_elect::conformance::{Election, run_all};
use lockd_elect::etcd::{EtcdLock, EtcdSettings};
use lockd_elect::{Attempt, Campaign, Candidate, LeaderLock, LockError, Pace, Renewal, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::relay::Relay;
use super::{granted, leads};

struct InEtcd(Mutex<Etcd>);

impl Election for InEtcd {
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock> {
        let url = self.0.lock().expect("a server").url();
        let settings = EtcdSettings::parse(&url, &Tls::default()).expect("an address");
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

/// A member that fails whatever it is asked.
async fn broken_member() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _some = stream.read(&mut request).await;
            let answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\
                           connection: close\r\n\r\n{}";
            let _sent = stream.write_all(answer).await;
        }
    });
    address
}

/// As one candidate reaches it, over these members, which are asked in this order.
fn lock_over(members: &[SocketAddr], id: &str, ttl: Duration) -> EtcdLock {
    let members: Vec<String> = members.iter().map(ToString::to_string).collect();
    let url = format!("etcd://{}", members.join(","));
    let settings = EtcdSettings::parse(&url, &Tls::default()).expect("an address");
    EtcdLock::new(settings, "cluster", Candidate::new(id), ttl)
}

fn pace(ttl: Duration) -> Pace {
    Pace { renew_every: ttl / 3, look_every: Duration::from_secs(60), grace: ttl, notice: ttl / 10 }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_hang_or_fail_are_passed_over_and_not_asked_again() {
    let etcd = Etcd::start().await;
    let silent = Relay::to(etcd.address()).await;
    silent.falls_silent();
    let members = [silent.address, broken_member().await, etcd.address()];
    // A member may take a sixth of it for an answer.
    let ttl = Duration::from_secs(12);
    let lock = lock_over(&members, "a", ttl);
    let grant = granted(&lock).await;
    let start = Instant::now();
    for _ in 0..5 {
        assert_eq!(lock.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
    }
    assert!(start.elapsed() < ttl / 2, "after {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_outlives_the_member_that_it_was_taken_with() {
    let etcd = Etcd::start().await;
    let relay = Relay::to(etcd.address()).await;
    let members = [relay.address, etcd.address()];
    let ttl = Duration::from_secs(6);
    let first = Campaign::start(Arc::new(lock_over(&members, "a", ttl)), pace(ttl));
    let office = leads(&first).await;
    relay.falls_silent();
    let stays = tokio::time::timeout(ttl.mul_f64(1.3), office.over().cancelled_owned()).await;
    assert!(stays.is_err(), "it is over");
    assert!(office.is_held());
    first.stop().await;
}

/// It is told nothing by a member that hangs, and finds out by itself.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_with_a_member_that_hangs_hears_of_a_release_all_the_same() {
    let etcd = Etcd::start().await;
    let relay = Relay::to(etcd.address()).await;
    let ttl = Duration::from_secs(30);
    let first = Campaign::start(Arc::new(lock_over(&[etcd.address()], "a", ttl)), pace(ttl));
    leads(&first).await;
    let members = [relay.address, etcd.address()];
    let second = Campaign::start(Arc::new(lock_over(&members, "b", ttl)), pace(ttl));
    let mut follows = second.leadership();
    follows.changed().await.expect("it follows");
    tokio::time::sleep(Duration::from_millis(300)).await;
    relay.falls_silent();
    let start = Instant::now();
    first.stop().await;
    leads(&second).await;
    assert!(start.elapsed() < Duration::from_secs(12), "after {:?}", start.elapsed());
    second.stop().await;
}

/// As an operator: what is asked for is granted.
fn operate(etcd: &Etcd, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(etcd.address()).expect("a connection");
    let length = body.len();
    let request = format!("POST /v3/{path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("200 OK"), "{path}: {answer}");
    answer
}

/// How many leases there are.
fn leases(etcd: &Etcd) -> usize {
    operate(etcd, "lease/leases", "{}").matches("\"ID\"").count()
}

/// Nobody may do anything without a name and a password.
async fn etcd_with_users() -> Etcd {
    let etcd = Etcd::start().await;
    tokio::task::block_in_place(|| {
        for (path, body) in [
            ("auth/user/add", r#"{"name": "root", "password": "p@ss:word"}"#),
            ("auth/role/add", r#"{"name": "root"}"#),
            ("auth/user/grant", r#"{"user": "root", "role": "root"}"#),
            ("auth/enable", "{}"),
        ] {
            operate(&etcd, path, body);
        }
    });
    etcd
}

fn lock_as(user: &str, etcd: &Etcd, id: &str) -> EtcdLock {
    let url = format!("etcd://{user}{}", etcd.address());
    let settings = EtcdSettings::parse(&url, &Tls::default()).expect("an address");
    EtcdLock::new(settings, "cluster", Candidate::new(id), Duration::from_secs(20))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_under_a_password_outlives_a_restart_that_forgets_who_has_shown_it() {
    let mut etcd = etcd_with_users().await;
    let lock = lock_as("root:p%40ss%3Aword@", &etcd, "a");
    let grant = granted(&lock).await;
    assert_eq!(lock.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
    for wrong in ["", "root:wrong@", "nobody:p%40ss%3Aword@"] {
        let refused = lock_as(wrong, &etcd, "b").try_acquire().await;
        assert!(matches!(refused, Err(LockError::Refused(_))), "{wrong:?}: {refused:?}");
    }
    // What it gave out for the password is not known to it any more.
    tokio::task::block_in_place(|| etcd.start_again());
    let renewing = async {
        loop {
            match lock.renew(grant.epoch).await {
                Ok(renewal) => return renewal,
                Err(LockError::Unavailable(_)) => {}
                Err(error @ LockError::Refused(_)) => panic!("{error}"),
            }
        }
    };
    let renewed = tokio::time::timeout(Duration::from_secs(10), renewing).await;
    assert_eq!(renewed.expect("in time"), Renewal::Kept);
    lock.release(grant.epoch).await.expect("released");
    let next = granted(&lock_as("root:p%40ss%3Aword@", &etcd, "b")).await;
    assert!(next.epoch > grant.epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_are_given_up_leave_no_leases_behind() {
    let etcd = Etcd::start().await;
    let ttl = Duration::from_secs(60);
    let (a, b) = (lock_over(&[etcd.address()], "a", ttl), lock_over(&[etcd.address()], "b", ttl));
    for round in 0..60 {
        let grant = granted(&b).await;
        let lost = tokio::time::timeout(Duration::from_micros(100 * round), a.try_acquire());
        drop(lost.await);
        b.release(grant.epoch).await.expect("released");
        let given_up = tokio::time::timeout(Duration::from_micros(100 * round), a.try_acquire());
        if let Ok(Ok(Attempt::Granted(grant))) = given_up.await {
            a.release(grant.epoch).await.expect("released");
        } else {
            // It may have it, and is asked what became of it.
            let grant = granted(&a).await;
            a.release(grant.epoch).await.expect("released");
        }
    }
    let left = tokio::task::block_in_place(|| leases(&etcd));
    assert!(left <= 3, "{left} leases are left");
}
