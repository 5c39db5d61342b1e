//! What every lock must keep, as tests that run over each of them.
#![expect(clippy::expect_used, clippy::panic, reason = "tests may fail loudly")]

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::campaign::{Campaign, Pace};
use crate::lock::{Attempt, Candidate, Epoch, Grant, LeaderLock, Loss, Renewal};

/// Makes locks that candidates of one election share.
pub trait Election: Sync {
    /// A lock of one candidate, with this time to live.
    fn lock(&self, candidate: Candidate, ttl: Duration) -> Arc<dyn LeaderLock>;

    /// Takes everything from the lock that it remembers, if that can be done to it.
    fn forget(&self) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

/// Long enough not to run out in a test.
const LONG: Duration = Duration::from_secs(60);
/// Short enough to wait for.
const SHORT: Duration = Duration::from_millis(600);
/// A time to live that any lock can count exactly.
const FAIR: Duration = Duration::from_secs(2);

/// Runs all of it, each over an election of its own.
pub async fn run_all<E: Election>(new: impl AsyncFn() -> E) {
    one_at_a_time_with_growing_epochs(&new().await).await;
    nothing_is_done_for_whom_it_does_not_belong_to(&new().await).await;
    the_same_incarnation_is_granted_again_and_another_is_not(&new().await).await;
    it_runs_out_and_not_before(&new().await).await;
    epochs_grow_even_if_the_lock_forgets(&new().await).await;
    many_at_once_are_granted_one_by_one(&new().await).await;
    a_repeated_grant_lasts_its_whole_time(&new().await).await;
    a_release_that_is_given_up_ends_no_later_grant(&new().await).await;
    attempts_that_are_given_up_hold_up_nobody(&new().await).await;
    what_is_let_go_of_before_the_wait_is_not_missed(&new().await).await;
    whoever_goes_without_a_word_is_followed_in_time(&new().await).await;
    a_campaign_passes_the_office_on(&new().await).await;
}

fn candidate(id: &str) -> Candidate {
    Candidate::new(id)
}

async fn granted(lock: &dyn LeaderLock) -> Grant {
    match lock.try_acquire().await {
        Ok(Attempt::Granted(grant)) => grant,
        other => panic!("{lock:?}: {other:?}"),
    }
}

async fn is_held(lock: &dyn LeaderLock, by: &str) {
    match lock.try_acquire().await {
        Ok(Attempt::Held(holder)) => assert_eq!(holder.id, by, "{lock:?}"),
        other => panic!("{lock:?}: {other:?}"),
    }
}

async fn one_at_a_time_with_growing_epochs(election: &impl Election) {
    let (a, b) = (election.lock(candidate("a"), LONG), election.lock(candidate("b"), LONG));
    assert_eq!(a.observe().await.expect("an answer"), None);
    let first = granted(&*a).await;
    is_held(&*b, "a").await;
    let seen = b.observe().await.expect("an answer").expect("a holder");
    assert_eq!((seen.id.as_str(), seen.epoch), ("a", Some(first.epoch)));
    assert_eq!(a.renew(first.epoch).await.expect("an answer"), Renewal::Kept);
    a.release(first.epoch).await.expect("released");
    let second = granted(&*b).await;
    assert!(second.epoch > first.epoch, "{second:?} after {first:?}");
    is_held(&*a, "b").await;
}

async fn nothing_is_done_for_whom_it_does_not_belong_to(election: &impl Election) {
    let (a, b) = (election.lock(candidate("a"), LONG), election.lock(candidate("b"), LONG));
    let first = granted(&*a).await;
    a.release(first.epoch).await.expect("released");
    assert_eq!(a.renew(first.epoch).await.expect("an answer"), Renewal::Lost(Loss::Vanished));
    let second = granted(&*b).await;
    let by = Loss::TakenBy("b".into());
    assert_eq!(a.renew(first.epoch).await.expect("an answer"), Renewal::Lost(by));
    a.release(first.epoch).await.expect("nothing to do");
    // Not even with the epoch of the other.
    assert_ne!(a.renew(second.epoch).await.ok(), Some(Renewal::Kept));
    let _may_refuse = a.release(second.epoch).await;
    assert_eq!(b.renew(second.epoch).await.expect("an answer"), Renewal::Kept);
    assert_ne!(b.renew(Epoch(second.epoch.0 + 1)).await.ok(), Some(Renewal::Kept));
}

async fn the_same_incarnation_is_granted_again_and_another_is_not(election: &impl Election) {
    let who = candidate("a");
    let a = election.lock(who.clone(), LONG);
    let first = granted(&*a).await;
    // The same name, restarted.
    let restarted = election.lock(candidate("a"), LONG);
    is_held(&*restarted, "a").await;
    assert_ne!(restarted.renew(first.epoch).await.ok(), Some(Renewal::Kept));
    assert_eq!(a.renew(first.epoch).await.expect("an answer"), Renewal::Kept);
}

async fn it_runs_out_and_not_before(election: &impl Election) {
    let (a, b) = (election.lock(candidate("a"), SHORT), election.lock(candidate("b"), SHORT));
    let start = tokio::time::Instant::now();
    let first = granted(&*a).await;
    loop {
        match b.try_acquire().await.expect("an answer") {
            Attempt::Held(_) => tokio::time::sleep(SHORT / 30).await,
            Attempt::Granted(second) => {
                assert!(second.epoch > first.epoch);
                break;
            }
        }
        assert!(start.elapsed() < SHORT * 20, "it never runs out");
    }
    assert!(start.elapsed() >= SHORT, "it ran out after {:?}", start.elapsed());
    // One that goes with its connection does not ask by whom.
    let lost = a.renew(first.epoch).await.expect("an answer");
    let ways = [Loss::TakenBy("b".into()), Loss::Vanished].map(Renewal::Lost);
    assert!(ways.contains(&lost), "{lost:?}");
}

async fn epochs_grow_even_if_the_lock_forgets(election: &impl Election) {
    let a = election.lock(candidate("a"), LONG);
    let mut latest = Epoch(0);
    for _ in 0..3 {
        let grant = granted(&*a).await;
        assert!(grant.epoch > latest);
        latest = grant.epoch;
        a.release(latest).await.expect("released");
    }
    if let Some(forgets) = election.forget() {
        forgets.await;
        let b = election.lock(candidate("b"), LONG);
        b.saw(latest);
        let grant = granted(&*b).await;
        assert!(grant.epoch > latest, "{grant:?} after {latest:?}");
        assert!(matches!(grant.memory, crate::lock::Memory::Lost { .. }), "{grant:?}");
    }
}

async fn many_at_once_are_granted_one_by_one(election: &impl Election) {
    let locks: Vec<_> =
        (0..16).map(|number| election.lock(candidate(&format!("c{number}")), LONG)).collect();
    let mut latest = Epoch(0);
    for _ in 0..4 {
        let asked = locks.iter().map(|lock| lock.try_acquire());
        let answers = futures_util::future::join_all(asked).await;
        let mut winners = locks.iter().zip(answers).filter_map(|(lock, answer)| {
            match answer.expect("an answer") {
                Attempt::Granted(grant) => Some((lock, grant)),
                Attempt::Held(_) => None,
            }
        });
        let (winner, grant) = winners.next().expect("one wins");
        assert!(winners.next().is_none(), "two win");
        assert!(grant.epoch > latest);
        latest = grant.epoch;
        winner.release(latest).await.expect("released");
    }
}

/// What a campaign takes for granted: it counts from before it asked, whatever came before.
async fn a_repeated_grant_lasts_its_whole_time(election: &impl Election) {
    let (a, b) = (election.lock(candidate("a"), FAIR), election.lock(candidate("b"), FAIR));
    let first = granted(&*a).await;
    is_held(&*b, "a").await;
    tokio::time::sleep(FAIR / 2).await;
    let start = tokio::time::Instant::now();
    let again = granted(&*a).await;
    assert_eq!(again.epoch, first.epoch);
    loop {
        let tried = b.try_acquire().await.expect("an answer");
        if start.elapsed() >= FAIR {
            break;
        }
        assert!(matches!(tried, Attempt::Held(_)), "{tried:?} after {:?}", start.elapsed());
        tokio::time::sleep(FAIR / 20).await;
    }
}

/// Gives up after that long, which may be in the middle of it.
async fn cut_short<T>(asked: impl Future<Output = T>, after: Duration) -> Option<T> {
    tokio::time::timeout(after, asked).await.ok()
}

async fn a_release_that_is_given_up_ends_no_later_grant(election: &impl Election) {
    let (a, b) = (election.lock(candidate("a"), FAIR), election.lock(candidate("b"), FAIR));
    for round in 0..8 {
        let grant = eventually_granted(&*a, FAIR * 3).await;
        cut_short(a.release(grant.epoch), Duration::from_micros(300 * round)).await;
        let grant = eventually_granted(&*a, FAIR * 3).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        is_held(&*b, "a").await;
        assert_eq!(a.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
    }
}

async fn eventually_granted(lock: &dyn LeaderLock, longest: Duration) -> Grant {
    let start = tokio::time::Instant::now();
    loop {
        match lock.try_acquire().await {
            Ok(Attempt::Granted(grant)) => return grant,
            Ok(Attempt::Held(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{lock:?}: {error}"),
        }
        assert!(start.elapsed() < longest, "{lock:?} is not granted the lock");
    }
}

async fn attempts_that_are_given_up_hold_up_nobody(election: &impl Election) {
    let (a, b) = (election.lock(candidate("a"), FAIR), election.lock(candidate("b"), FAIR));
    for round in 0..20 {
        cut_short(a.try_acquire(), Duration::from_micros(200 * round)).await;
    }
    let grant = eventually_granted(&*a, FAIR * 2).await;
    assert_eq!(a.renew(grant.epoch).await.expect("an answer"), Renewal::Kept);
    a.release(grant.epoch).await.expect("released");
    for round in 0..20 {
        cut_short(a.try_acquire(), Duration::from_micros(200 * round)).await;
    }
    // It keeps what it got, and does not know.
    eventually_granted(&*b, FAIR * 3).await;
}

async fn what_is_let_go_of_before_the_wait_is_not_missed(election: &impl Election) {
    let (a, b) = (election.lock(candidate("a"), LONG), election.lock(candidate("b"), LONG));
    let grant = granted(&*a).await;
    is_held(&*b, "a").await;
    a.release(grant.epoch).await.expect("released");
    let heard = cut_short(b.vacated(), Duration::from_secs(2)).await;
    assert!(heard.is_some(), "{b:?} has missed it");
    granted(&*b).await;
}

async fn whoever_goes_without_a_word_is_followed_in_time(election: &impl Election) {
    let pace = Pace {
        renew_every: FAIR / 5,
        look_every: Duration::from_secs(30),
        grace: FAIR,
        notice: FAIR / 10,
    };
    let a = election.lock(candidate("a"), FAIR);
    let first = granted(&*a).await;
    let next = Campaign::start(election.lock(candidate("b"), FAIR), pace);
    let mut follows = next.leadership();
    for _ in 0..3 {
        tokio::time::sleep(FAIR / 5).await;
        assert_eq!(a.renew(first.epoch).await.expect("an answer"), Renewal::Kept);
    }
    let silent = tokio::time::Instant::now();
    drop(a);
    follows.wait_for(|now| now.office().is_some()).await.expect("it leads");
    let took = silent.elapsed();
    assert!(took < FAIR + Duration::from_secs(1), "it took {took:?}");
    next.stop().await;
}

async fn a_campaign_passes_the_office_on(election: &impl Election) {
    let pace = Pace {
        renew_every: Duration::from_millis(200),
        look_every: Duration::from_secs(5),
        grace: Duration::from_secs(2),
        notice: Duration::from_millis(600),
    };
    let ttl = Duration::from_secs(6);
    let first = Campaign::start(election.lock(candidate("a"), ttl), pace);
    let mut leads = first.leadership();
    leads.wait_for(|now| now.office().is_some()).await.expect("it leads");
    let office = leads.borrow().office().cloned().expect("it leads");
    let second = Campaign::start(election.lock(candidate("b"), ttl), pace);
    let mut follows = second.leadership();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!second.is_leader() && first.is_leader());
    let start = tokio::time::Instant::now();
    first.stop().await;
    assert!(office.over().is_cancelled() && !office.is_held());
    follows.wait_for(|now| now.office().is_some()).await.expect("it leads");
    // It was told: it did not wait for the time to run out, nor for its next look.
    assert!(start.elapsed() < Duration::from_secs(1), "it took {:?}", start.elapsed());
    let next = follows.borrow().office().cloned().expect("it leads");
    assert!(next.epoch > office.epoch);
    second.stop().await;
}
