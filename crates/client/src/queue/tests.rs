//! Consumers against a scripted server over pipes in memory, with time that moves only when
//! everybody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::*;
use crate::clock::Clock;
use crate::dial::Dial;
use crate::endpoint::Endpoint;
use crate::transport::fake::{self, Answer, CLOSE, Fake, acked, delivery, extended, feed, nacked};
use crate::{DequeueKind, Lost, LostReason};

const SUBSCRIBE: &str = "/v1/queue/subscribe";
const ACK: &str = "/v1/queue/ack";
const NACK: &str = "/v1/queue/nack";
const EXTEND: &str = "/v1/queue/extend";
const VISIBILITY: Duration = Duration::from_secs(30);

/// A queue on one scripted server.
fn jobs(fake: &Fake) -> Queue {
    let (accepts, mut accepted) = mpsc::channel(1);
    let serving = fake.clone();
    fake::spawn(async move {
        while let Some(pipe) = accepted.recv().await {
            serving.serve(pipe);
        }
    });
    let endpoint = Endpoint::parse("http://fake:1").unwrap();
    let clock = Clock::Runtime(tokio::time::Instant::now());
    let servers = vec![(endpoint, Dial::memory(accepts))];
    Client::builder().owner("me").assemble(servers, clock).queue("jobs")
}

/// A consumer that runs, and what stops it.
struct Running {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), Error<DequeueKind>>>,
}

impl Running {
    fn start<F, R>(subscribe: Subscribe<F>) -> Self
    where
        F: Fn(Message) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), String>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = fake::spawn(subscribe.run(async move { drop(stopped.await) }));
        Self { stop, ended }
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap().unwrap();
    }
}

fn message(id: &str) -> Bytes {
    delivery(id, VISIBILITY, id.as_bytes())
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn what_the_handler_returns_is_the_answer() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(ACK, acked).always(NACK, nacked);
    let handler = |mut message: Message| async move {
        match &*message.bytes().await.unwrap() {
            b"good" => Ok(()),
            b"bad" => Err("no ink".to_owned()),
            _ => panic!("no paper"),
        }
    };
    let delay = Duration::from_millis(1_500);
    let running = Running::start(jobs(&fake).subscribe(handler).retry_delay(delay));
    let asked = fake.asked(SUBSCRIBE).await.json();
    let wish = json!({ "queue": "jobs", "owner": "me", "wait_seconds": 0, "page_size": 1 });
    assert_eq!(asked, wish);
    pieces.send(message("good")).await.unwrap();
    assert_eq!(fake.asked(ACK).await.json()["message_id"], "good");
    for (id, text) in [("bad", "no ink"), ("ugly", "the handler panicked: no paper")] {
        pieces.send(message(id)).await.unwrap();
        let asked = fake.asked(NACK).await.json();
        assert_eq!((&asked["message_id"], &asked["last_error"]), (&json!(id), &json!(text)));
        assert_eq!((asked.get("intent"), &asked["delay_ms"]), (None, &json!(1_500)));
    }
    pieces.send(message("good")).await.unwrap();
    fake.asked(ACK).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_answer_itself() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(ACK, acked).always(NACK, nacked);
    let handler = |message: Message| async move {
        if message.id() == "done" {
            message.ack().await.unwrap();
            seconds(20).await;
            return Err("too late to matter".to_owned());
        }
        message.nack().defer().await.unwrap();
        Ok(())
    };
    let running = Running::start(jobs(&fake).subscribe(handler));
    for id in ["done", "later"] {
        pieces.send(message(id)).await.unwrap();
    }
    assert_eq!(fake.asked(ACK).await.json()["message_id"], "done");
    let asked = fake.asked(NACK).await.json();
    assert_eq!((&asked["message_id"], &asked["intent"]), (&json!("later"), &json!("defer")));
    running.end().await;
    assert!(fake.asked_already(ACK).is_empty() && fake.asked_already(NACK).is_empty());
    assert!(fake.asked_already(EXTEND).is_empty(), "nothing to extend after the answer");
}

#[tokio::test(start_paused = true)]
async fn a_message_is_extended_at_half_of_its_time_while_it_is_worked_on() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(ACK, acked);
    fake.always(EXTEND, || extended(VISIBILITY, "e2"));
    let handler = |_: Message| async {
        seconds(40).await;
        Ok(())
    };
    let running = Running::start(jobs(&fake).subscribe(handler));
    pieces.send(message("long")).await.unwrap();
    let began = tokio::time::Instant::now();
    for half in [15, 30] {
        assert_eq!(fake.asked(EXTEND).await.json()["extend_by_seconds"], 30);
        let after = began.elapsed();
        let due = Duration::from_secs(half);
        assert!(after >= due && after < due + Duration::from_millis(500), "{after:?}");
    }
    assert_eq!(fake.asked(ACK).await.json()["meta_etag"], "e2");
    seconds(60).await;
    assert!(fake.asked_already(EXTEND).is_empty(), "not after the end");
    running.end().await;
}

/// Says when it is dropped.
struct Told(Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_stopped_when_its_message_is_lost() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(ACK, acked);
    fake.then(EXTEND, Answer::error(409, "queue_message_lease_mismatch"));
    let stopped = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stopped);
    let handler = move |message: Message| {
        let told = Told(Arc::clone(&told));
        async move {
            let _told = told;
            if message.id() == "lost" {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    };
    let running = Running::start(jobs(&fake).subscribe(handler));
    pieces.send(message("lost")).await.unwrap();
    fake.asked(EXTEND).await;
    pieces.send(message("next")).await.unwrap();
    assert_eq!(fake.asked(ACK).await.json()["message_id"], "next", "its place is free");
    assert!(stopped.load(Ordering::Relaxed));
    assert!(fake.asked_already(NACK).is_empty(), "it is not ours to give back");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_goes_on_learns_of_the_loss() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer);
    fake.always(EXTEND, || Answer::Hangup);
    let (tell, mut told) = mpsc::channel::<Lost>(1);
    let handler = move |message: Message| {
        let tell = tell.clone();
        async move {
            tell.send(message.lost().await).await.unwrap();
            Ok(())
        }
    };
    let running = Running::start(jobs(&fake).subscribe(handler).stop_when_lost(false));
    let began = tokio::time::Instant::now();
    pieces.send(message("lost")).await.unwrap();
    let lost = told.recv().await.unwrap();
    assert_eq!(lost.reason, LostReason::Unreachable);
    assert!(began.elapsed() <= VISIBILITY, "no later than the server would say");
    running.end().await;
    assert!(fake.asked_already(ACK).is_empty(), "there is no point in asking");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_stands_still_loses_its_message() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(ACK, acked);
    fake.always(EXTEND, || extended(VISIBILITY, "e2"));
    let (tell, mut told) = mpsc::channel::<(Lost, Duration)>(1);
    let handler = move |message: Message| {
        let tell = tell.clone();
        async move {
            let began = tokio::time::Instant::now();
            for _ in 0..6 {
                seconds(10).await;
                message.progress();
            }
            let lost = message.lost().await;
            tell.send((lost, began.elapsed())).await.unwrap();
            Ok(())
        }
    };
    let subscribe = jobs(&fake).subscribe(handler).stop_when_lost(false);
    let running = Running::start(subscribe.stalled_after(Duration::from_secs(20)));
    pieces.send(message("slow")).await.unwrap();
    let (lost, after) = told.recv().await.unwrap();
    assert_eq!(lost.reason, LostReason::Expired);
    assert!(lost.detail.contains("no progress"), "{lost}");
    assert!(after > Duration::from_secs(80), "it was extended while it moved: {after:?}");
    assert!(after <= Duration::from_secs(112), "and not for long after: {after:?}");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_handlers_run_than_asked_for() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(ACK, acked);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&now), Arc::clone(&most));
    let handler = move |_: Message| {
        let (now, most) = counts.clone();
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            seconds(1).await;
            now.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        }
    };
    let running = Running::start(jobs(&fake).subscribe(handler).concurrency(3));
    assert_eq!(fake.asked(SUBSCRIBE).await.json()["page_size"], 3);
    for id in ["a", "b", "c", "d", "e", "f", "g"] {
        pieces.send(message(id)).await.unwrap();
    }
    for _ in 0..7 {
        fake.asked(ACK).await;
    }
    assert_eq!(most.load(Ordering::Relaxed), 3);
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_lets_handlers_finish_and_gives_back_what_has_not_begun() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(ACK, acked).always(NACK, nacked);
    fake.always(EXTEND, || extended(VISIBILITY, "e2"));
    let begun = Arc::new(Notify::new());
    let tell = Arc::clone(&begun);
    let handler = move |_: Message| {
        let tell = Arc::clone(&tell);
        async move {
            tell.notify_one();
            seconds(60).await;
            Ok(())
        }
    };
    let running = Running::start(jobs(&fake).subscribe(handler));
    pieces.send(message("begun")).await.unwrap();
    begun.notified().await;
    pieces.send(message("waiting")).await.unwrap();
    running.stop.send(()).unwrap();
    let given_back = fake.asked(NACK).await.json();
    assert_eq!(given_back["message_id"], "waiting");
    assert_eq!((&given_back["intent"], &given_back["delay_ms"]), (&json!("defer"), &json!(500)));
    assert!(!running.ended.is_finished(), "one is still at work");
    running.ended.await.unwrap().unwrap();
    assert_eq!(fake.asked(ACK).await.json()["message_id"], "begun");
    assert!(!fake.asked_already(EXTEND).is_empty(), "it was extended to its end");
    assert!(pieces.is_closed(), "nobody listens any more");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_consumer_gives_its_messages_back() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer).always(NACK, nacked);
    let begun = Arc::new(Notify::new());
    let tell = Arc::clone(&begun);
    let handler = move |_: Message| {
        tell.notify_one();
        std::future::pending::<Result<(), String>>()
    };
    let jobs = jobs(&fake);
    let running = Running::start(jobs.subscribe(handler));
    pieces.send(message("begun")).await.unwrap();
    begun.notified().await;
    running.ended.abort();
    drop(running.ended.await);
    jobs.client.close().await;
    let given_back = fake.asked_already(NACK).pop().unwrap().json();
    assert_eq!(
        (&given_back["message_id"], &given_back["intent"]),
        (&json!("begun"), &json!("defer"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_empty_queue_is_not_asked_about_all_the_time() {
    let fake = Fake::default();
    fake.always(SUBSCRIBE, || Answer::error(409, "waiting"));
    let running = Running::start(jobs(&fake).subscribe(|_| async { Ok(()) }));
    seconds(20).await;
    let asked = fake.asked_already(SUBSCRIBE).len();
    assert!((10..=21).contains(&asked), "{asked} times in twenty seconds");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_is_made_anew_for_the_room_that_is_left() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    let (more, second) = feed();
    let (last, third) = feed();
    fake.then(SUBSCRIBE, answer).then(SUBSCRIBE, Answer::Hangup).then(SUBSCRIBE, second);
    fake.then(SUBSCRIBE, third).always(ACK, acked);
    fake.always(EXTEND, || extended(VISIBILITY, "e2"));
    let finish = Arc::new(Notify::new());
    let wait = Arc::clone(&finish);
    let handler = move |message: Message| {
        let wait = Arc::clone(&wait);
        async move {
            if message.id() == "long" {
                wait.notified().await;
            }
            Ok(())
        }
    };
    let running = Running::start(jobs(&fake).subscribe(handler).concurrency(2));
    assert_eq!(fake.asked(SUBSCRIBE).await.json()["page_size"], 2);
    pieces.send(message("long")).await.unwrap();
    drop(pieces);
    for _ in 0..2 {
        assert_eq!(fake.asked(SUBSCRIBE).await.json()["page_size"], 1, "one place is taken");
    }
    more.send(message("short")).await.unwrap();
    assert_eq!(fake.asked(ACK).await.json()["message_id"], "short");
    finish.notify_one();
    assert_eq!(fake.asked(ACK).await.json()["message_id"], "long");
    assert_eq!(fake.asked(SUBSCRIBE).await.json()["page_size"], 2, "all places are free again");
    last.send(message("other")).await.unwrap();
    assert_eq!(fake.asked(ACK).await.json()["message_id"], "other");
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_is_opened_again() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    let (more, second) = feed();
    fake.then(SUBSCRIBE, answer).then(SUBSCRIBE, second).always(ACK, acked);
    let running = Running::start(jobs(&fake).subscribe(|_| async { Ok(()) }));
    pieces.send(message("a")).await.unwrap();
    pieces.send(Bytes::from_static(CLOSE)).await.unwrap();
    drop(pieces);
    more.send(message("b")).await.unwrap();
    for id in ["a", "b"] {
        assert_eq!(fake.asked(ACK).await.json()["message_id"], id);
    }
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_consumer_ends_when_it_is_refused_for_good_and_not_before() {
    let fake = Fake::default();
    let (pieces, answer) = feed();
    fake.then(SUBSCRIBE, answer);
    for _ in 0..20 {
        fake.then(SUBSCRIBE, Answer::error(503, "store_unavailable"));
    }
    fake.then(SUBSCRIBE, Answer::error(403, "namespace_forbidden"));
    drop(pieces);
    let running = Running::start(jobs(&fake).subscribe(|_| async { Ok(()) }));
    let error = running.ended.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), DequeueKind::Forbidden);
    assert_eq!(fake.asked_already(SUBSCRIBE).len(), 22);

    fake.always(SUBSCRIBE, || Answer::error(503, "store_unavailable"));
    let running = Running::start(jobs(&fake).subscribe(|_| async { Ok(()) }));
    let error = running.ended.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), DequeueKind::Unavailable, "it never worked, so it is told");
}
