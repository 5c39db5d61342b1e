//! Guards against a scripted server over pipes in memory, with time that moves only when everybody
//! waits.

use tokio::sync::mpsc;

use super::*;
use crate::clock::Clock;
use crate::dial::Dial;
use crate::endpoint::Endpoint;
use crate::transport::fake::{self, Answer, Fake, granted, released, renewed, updated};
use crate::{AcquireKind, Error, ReleaseKind, UpdateKind};

const ACQUIRE: &str = "/v1/acquire";
const KEEPALIVE: &str = "/v1/keepalive";
const RELEASE: &str = "/v1/release";
const UPDATE: &str = "/v1/update";
const TTL: Duration = Duration::from_secs(9);

/// A client of one scripted server.
fn client(fake: &Fake) -> Client {
    let (accepts, mut accepted) = mpsc::channel(1);
    let serving = fake.clone();
    fake::spawn(async move {
        while let Some(pipe) = accepted.recv().await {
            serving.serve(pipe);
        }
    });
    let endpoint = Endpoint::parse("http://fake:1").unwrap();
    let clock = Clock::Runtime(tokio::time::Instant::now());
    Client::builder().owner("me").assemble(vec![(endpoint, Dial::memory(accepts))], clock)
}

async fn held(fake: &Fake, client: &Client) -> Lease {
    fake.then(ACQUIRE, granted(TTL, 5));
    let lease = client.lease("jobs/7").ttl(TTL).await.unwrap();
    fake.asked(ACQUIRE).await;
    lease
}

#[tokio::test(start_paused = true)]
async fn time_counts_from_before_the_request_was_sent() {
    let fake = Fake::default();
    let client = client(&fake);
    let (answer, later) = granted(TTL, 5).when();
    fake.then(ACQUIRE, later);
    let asking = fake::spawn(client.lease("jobs/7").ttl(TTL).into_future());
    fake.asked(ACQUIRE).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    answer.send(()).unwrap();
    let lease = asking.await.unwrap().unwrap();
    let left = lease.expires_in();
    assert!(left <= Duration::from_secs(7), "{left:?} left, two seconds are gone");
    assert!(left > Duration::from_millis(6_900), "{left:?} left, only two seconds are gone");
    assert_eq!((lease.token(), lease.version(), lease.key()), (5, 3, "jobs/7"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_long_waited_for_is_renewed_before_it_is_handed_out() {
    let fake = Fake::default();
    let client = client(&fake);
    let (answer, later) = granted(TTL, 5).when();
    fake.then(ACQUIRE, later).then(KEEPALIVE, renewed(TTL));
    let wish = client.lease("jobs/7").ttl(TTL).wait(Duration::from_secs(60));
    let asking = fake::spawn(wish.into_future());
    assert_eq!(fake.asked(ACQUIRE).await.json()["block_seconds"], 60);
    tokio::time::sleep(Duration::from_secs(50)).await;
    answer.send(()).unwrap();
    let lease = asking.await.unwrap().unwrap();
    assert_eq!(fake.asked_already(KEEPALIVE).len(), 1);
    assert!(lease.is_held());
    assert!(lease.expires_in() > TTL - Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_before_it_is_handed_out_is_an_error_and_let_go() {
    let fake = Fake::default();
    let client = client(&fake);
    let (answer, later) = granted(TTL, 5).when();
    fake.then(ACQUIRE, later).then(KEEPALIVE, Answer::error(403, "lease_expired"));
    fake.always(RELEASE, released);
    let wish = client.lease("jobs/7").ttl(TTL).wait_forever();
    let asking = fake::spawn(wish.into_future());
    fake.asked(ACQUIRE).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    answer.send(()).unwrap();
    assert_eq!(asking.await.unwrap().unwrap_err().kind(), AcquireKind::Lost);
    assert_eq!(fake.asked(RELEASE).await.json()["rollback"], true);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_crosses_a_dropped_wait_is_given_back() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(ACQUIRE, Answer::Silence).then(ACQUIRE, granted(TTL, 5)).then(RELEASE, released());
    let wish = client.lease("jobs/7").wait(Duration::from_secs(60)).into_future();
    assert!(tokio::time::timeout(Duration::from_secs(1), wish).await.is_err());
    let (first, again) = (fake.asked(ACQUIRE).await, fake.asked(ACQUIRE).await);
    assert_eq!((first.name(), &first.body), (again.name(), &again.body));
    assert_eq!(fake.asked(RELEASE).await.json()["rollback"], true);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_for_a_busy_key_ends_soon_and_a_named_one_is_left_alone() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.always(ACQUIRE, || Answer::Silence);
    let short = Duration::from_secs(1);
    let wish = client.lease("jobs/7").wait_forever().into_future();
    assert!(tokio::time::timeout(short, wish).await.is_err());
    let start = client.clock().now();
    client.close().await;
    assert!(client.clock().now().since(start) <= Duration::from_millis(501));
    assert_eq!(fake.asked_already(ACQUIRE).len(), 2);

    let wish = client.lease("jobs/7").idempotency_key("mine").wait_forever().into_future();
    assert!(tokio::time::timeout(short, wish).await.is_err());
    client.close().await;
    assert_eq!(fake.asked_already(ACQUIRE).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_at_a_third_of_its_time() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.always(KEEPALIVE, || renewed(TTL));
    let clock = client.clock().clone();
    let lease = held(&fake, &client).await;
    let start = clock.now();
    for _ in 0..20 {
        let asked = fake.asked(KEEPALIVE).await;
        assert_eq!(asked.json()["lease_id"], "L1");
        assert_eq!(asked.json()["ttl_seconds"], 9);
        assert_eq!(asked.header("x-fencing-token"), Some("5"));
    }
    let gone = clock.now().since(start);
    assert!(gone > Duration::from_secs(59) && gone < Duration::from_secs(61), "{gone:?}");
    assert!(lease.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_slow_renewal_gives_only_what_is_left_of_it() {
    let fake = Fake::default();
    let client = client(&fake);
    let (answer, later) = renewed(TTL).when();
    fake.then(KEEPALIVE, later);
    let lease = held(&fake, &client).await;
    fake.asked(KEEPALIVE).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(lease.expires_in() < TTL / 2);
    answer.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let left = lease.expires_in();
    assert!(left > TTL / 2, "renewed");
    assert!(left <= TTL - Duration::from_secs(2), "{left:?} left, two seconds are gone");
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_renewal_runs_out() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(ACQUIRE, granted(TTL, 5));
    let lease = client.lease("jobs/7").renew(false).await.unwrap();
    let lost = lease.lost().await;
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(lost.held_for <= TTL);
    assert!(!lease.is_held());
    assert!(fake.asked_already(KEEPALIVE).is_empty());
    drop(lease);
    client.close().await;
    assert!(fake.asked_already(RELEASE).is_empty(), "there is nothing left to release");
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_in_time() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(KEEPALIVE, Answer::Hangup)
        .then(KEEPALIVE, Answer::error(503, "store_unavailable"))
        .then(KEEPALIVE, Answer::Silence)
        .always(KEEPALIVE, || renewed(TTL));
    let lease = held(&fake, &client).await;
    for _ in 0..4 {
        fake.asked(KEEPALIVE).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(lease.is_held());
    assert!(lease.expires_in() > TTL - Duration::from_secs(2), "{:?}", lease.expires_in());
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_means_loss_no_later_than_the_server_would_say() {
    for silence in [|| Answer::Silence, || Answer::Hangup] {
        let fake = Fake::default();
        let client = client(&fake);
        fake.always(KEEPALIVE, silence);
        let clock = client.clock().clone();
        let start = clock.now();
        let lease = held(&fake, &client).await;
        let lost = lease.lost().await;
        assert_eq!(lost.reason, LostReason::Unreachable, "{lost}");
        assert!(!lost.detail.is_empty());
        assert!(clock.now().since(start) <= TTL);
        assert!(clock.now().since(start) > TTL - Duration::from_millis(50));
        assert!(fake.asked_already(KEEPALIVE).len() >= 2, "asked more than once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_tells_why_the_lease_is_lost() {
    let fenced = || {
        Answer::Json(
            403,
            Vec::new(),
            serde_json::json!({ "error": "fencing_mismatch", "current_fencing_token": 8 }),
        )
    };
    let cases: [(Answer, LostReason); 4] = [
        (Answer::error(403, "revoked"), LostReason::Revoked("as scripted".to_owned())),
        (Answer::error(403, "lease_expired"), LostReason::Expired),
        (Answer::error(403, "lease_required"), LostReason::Gone),
        (fenced(), LostReason::Fenced { current: Some(8) }),
    ];
    for (answer, reason) in cases {
        let fake = Fake::default();
        let client = client(&fake);
        fake.then(KEEPALIVE, answer);
        let lease = held(&fake, &client).await;
        let lost = lease.lost().await;
        assert_eq!(lost.reason, reason);
        assert!(lost.held_for < TTL / 2, "known at the first renewal");
        assert!(!lease.is_held());
        assert_eq!(lease.expires_in(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_tells_the_guard_and_later_ones_are_not_sent() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(UPDATE, Answer::error(403, "revoked"));
    let lease = held(&fake, &client).await;
    let lost = lease.lost();
    assert_eq!(lease.update(&1).await.unwrap_err().kind(), UpdateKind::LeaseLost);
    assert_eq!(lost.await.reason, LostReason::Revoked("as scripted".to_owned()));
    fake.asked(UPDATE).await;

    let refused = lease.update(&2).await.unwrap_err();
    assert_eq!(refused.kind(), UpdateKind::LeaseLost);
    assert!(refused.lost().is_some());
    assert!(fake.asked_already(UPDATE).is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_after_a_release() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.always(KEEPALIVE, || renewed(TTL)).then(RELEASE, released());
    let lease = held(&fake, &client).await;
    let lost = lease.lost();
    lease.release().await.unwrap();
    assert_eq!(lost.await.reason, LostReason::Released);
    let asked = fake.asked(RELEASE).await;
    assert_eq!(asked.json()["lease_id"], "L1");
    assert_eq!(asked.json()["txn_id"], "T1");
    assert_eq!(asked.header("x-fencing-token"), Some("5"));
    tokio::time::sleep(TTL * 3).await;
    assert!(fake.asked_already(KEEPALIVE).is_empty());
    assert!(fake.asked_already(RELEASE).is_empty(), "released once");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_under_way_during_a_release_revives_nothing() {
    let fake = Fake::default();
    let client = client(&fake);
    let (answer_renewal, renewal) = renewed(TTL).when();
    let (answer_release, release) = released().when();
    fake.then(KEEPALIVE, renewal).then(RELEASE, release);
    let lease = held(&fake, &client).await;
    fake.asked(KEEPALIVE).await;
    let tenure = Arc::clone(&lease.tenure);
    let releasing = fake::spawn(lease.release().into_future());
    fake.asked(RELEASE).await;
    assert!(!tenure.is_held(), "let go of, so not held");
    assert!(answer_renewal.send(()).is_err(), "nobody waits for the renewal any more");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!tenure.is_held());
    answer_release.send(()).unwrap();
    releasing.await.unwrap().unwrap();
    tokio::time::sleep(TTL * 3).await;
    assert!(fake.asked_already(KEEPALIVE).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lease_is_rolled_back_without_waiting() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(RELEASE, Answer::Hangup).then(RELEASE, released());
    let lease = held(&fake, &client).await;
    let lost = lease.lost();
    let clock = client.clock().clone();
    let before = clock.now();
    drop(lease);
    assert_eq!(clock.now(), before, "dropping takes no time");
    let first = fake.asked(RELEASE).await;
    let second = fake.asked(RELEASE).await;
    assert_eq!(first.json()["rollback"], true);
    assert_eq!(first.name(), second.name());
    assert_eq!(lost.await.reason, LostReason::Released);
    client.close().await;
    tokio::time::sleep(TTL * 3).await;
    assert!(fake.asked_already(KEEPALIVE).is_empty());
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_dropped_leases_and_not_for_ever() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(RELEASE, Answer::Silence);
    let lease = held(&fake, &client).await;
    drop(lease);
    let start = client.clock().now();
    client.close().await;
    let waited = client.clock().now().since(start);
    assert!(waited > Duration::from_secs(4) && waited < Duration::from_secs(6), "{waited:?}");
    assert_eq!(fake.asked_already(RELEASE).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_lost_its_lease_says_so() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(RELEASE, Answer::error(403, "lease_expired"));
    let lease = held(&fake, &client).await;
    let error: Error<ReleaseKind> = lease.release().await.unwrap_err();
    assert_eq!(error.kind(), ReleaseKind::LeaseLost);
    fake.asked(RELEASE).await;
    client.close().await;
    assert!(fake.asked_already(RELEASE).is_empty(), "it is over, there is nothing to roll back");
}

#[tokio::test(start_paused = true)]
async fn a_release_dropped_halfway_is_rolled_back() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(RELEASE, Answer::Silence).then(RELEASE, released());
    let lease = held(&fake, &client).await;
    let halfway = tokio::time::timeout(Duration::from_secs(1), lease.release().into_future());
    assert!(halfway.await.is_err());
    assert_eq!(fake.asked(RELEASE).await.json().get("rollback"), None);
    assert_eq!(fake.asked(RELEASE).await.json()["rollback"], true);
}

#[tokio::test(start_paused = true)]
async fn finishing_renews_while_the_document_is_on_its_way_and_not_after() {
    let fake = Fake::default();
    let client = client(&fake);
    let (answer, later) = updated(4).when();
    fake.then(UPDATE, later).always(KEEPALIVE, || renewed(TTL));
    let lease = held(&fake, &client).await;
    let lost = lease.lost();
    let finishing = fake::spawn(lease.finish(&1).into_future());
    let asked = fake.asked(UPDATE).await;
    assert_eq!(asked.query["then"], "release");
    fake.asked(KEEPALIVE).await;
    fake.asked(KEEPALIVE).await;
    answer.send(()).unwrap();
    assert_eq!(finishing.await.unwrap().unwrap().version, 4);
    assert_eq!(lost.await.reason, LostReason::Released);
    fake.asked_already(KEEPALIVE);
    tokio::time::sleep(TTL * 3).await;
    assert!(fake.asked_already(KEEPALIVE).is_empty());
    assert!(fake.asked_already(RELEASE).is_empty());
}

#[tokio::test(start_paused = true)]
async fn finishing_that_fails_lets_go() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.then(UPDATE, Answer::error(409, "fence_failed")).then(RELEASE, released());
    let lease = held(&fake, &client).await;
    let error = lease.finish(&1).await.unwrap_err();
    assert_eq!(error.kind(), UpdateKind::FenceFailed);
    assert_eq!(fake.asked(RELEASE).await.json()["rollback"], true);
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_moves_may_take_long_and_one_that_stands_still_may_not() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.always(KEEPALIVE, || renewed(TTL)).then(UPDATE, updated(4));
    let lease = held(&fake, &client).await;
    let (mut pieces, reader) = tokio::io::duplex(64);
    let sending = fake::spawn(lease.update_stream(Source::once(reader)).into_future());
    for piece in ["[1", ",2", ",3", ",4", "]"] {
        tokio::time::sleep(Duration::from_secs(10)).await;
        tokio::io::AsyncWriteExt::write_all(&mut pieces, piece.as_bytes()).await.unwrap();
    }
    drop(pieces);
    assert_eq!(sending.await.unwrap().unwrap().version, 4);

    let (_stuck, reader) = tokio::io::duplex(64);
    let error = lease.update_stream(Source::once(reader)).await.unwrap_err();
    assert!(error.to_string().contains("within 15s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_write_is_not_repeated_once_the_lease_is_lost() {
    let fake = Fake::default();
    let client = client(&fake);
    fake.always(UPDATE, || Answer::error(503, "store_unavailable").with("retry-after", &10));
    fake.always(KEEPALIVE, || Answer::Silence);
    let lease = held(&fake, &client).await;
    let error = lease.update(&1).await.unwrap_err();
    assert_eq!(error.kind(), UpdateKind::Unavailable);
    assert!(!lease.is_held());
    assert_eq!(fake.asked_already(UPDATE).len(), 1);
}
