//! The lock in lockd.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use lockd_client::Client;
use lockd_elect::conformance::{Election, run_all};
use lockd_elect::lockd::LockdLock;
use lockd_elect::{Candidate, Epoch, LeaderLock, LockError, Memory, Renewal};
use lockd_tests::{Options, Place, Server};

use super::granted;
use super::relay::Relay;

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

const TTL: Duration = Duration::from_secs(30);

fn election() -> InLockd {
    tokio::task::block_in_place(|| InLockd(Mutex::new(Server::start(Options::in_memory()))))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lockd_that_has_forgotten_a_little_is_led_past_it() {
    let election = election();
    let lock = election.lock(Candidate::new("a"), TTL);
    lock.saw(Epoch(200));
    let grant = granted(&*lock).await;
    assert_eq!(grant.epoch, Epoch(201));
    assert!(matches!(grant.memory, Memory::Lost { .. }), "{grant:?}");
}

/// An epoch of Redis is a time in milliseconds: lockd would never come so far.
#[tokio::test(flavor = "multi_thread")]
async fn a_lockd_that_has_forgotten_too_much_says_so_at_once_and_holds_up_nobody() {
    let election = election();
    let lock = election.lock(Candidate::new("a"), TTL);
    lock.saw(Epoch(1_700_000_000_000));
    for _ in 0..3 {
        let start = Instant::now();
        let refused = lock.try_acquire().await;
        let Err(LockError::Refused(why)) = &refused else { panic!("{refused:?}") };
        assert!(why.contains("1700000000000") && why.contains("restore"), "{why}");
        assert!(start.elapsed() < Duration::from_secs(2), "after {:?}", start.elapsed());
    }
    // Whoever saw nothing of it may lead.
    granted(&*election.lock(Candidate::new("b"), TTL)).await;
}

/// It may arrive at any time, and must not end what was granted after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_on_its_way_is_for_an_epoch_that_is_over() {
    let election = election();
    let place = election.0.lock().expect("a server").place.clone();
    let Place::Tcp(address) = place else { panic!("not over the network") };
    let relay = Relay::to(address).await;
    let client = Client::connect(&format!("http://{}", relay.address)).expect("a client");
    let lock = LockdLock::new(client, "cluster/leader", Candidate::new("a"), TTL);
    let first = granted(&lock).await;
    relay.loses_connections();
    let release = tokio::time::timeout(Duration::from_millis(200), lock.release(first.epoch)).await;
    assert!(release.is_err(), "{release:?}");
    let second = granted(&lock).await;
    assert!(second.epoch > first.epoch, "{second:?} after {first:?}");
    lock.release(first.epoch).await.expect("nothing to do");
    assert_eq!(lock.renew(second.epoch).await.expect("an answer"), Renewal::Kept);
}
