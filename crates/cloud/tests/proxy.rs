//! Each fault of the proxy does what it says.

mod common;

use std::time::{Duration, Instant};

use common::{BUCKET, Client, conditions_hold, create, get, s3, update};
use http::{Method, StatusCode};
use lockd_cloud::{Counts, Fault, Plan, Proxy, S3Double};
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutPayload};

async fn behind_proxy() -> (S3Double, Proxy, Client) {
    let double = S3Double::start().await;
    let proxy = Proxy::start(&double.endpoint()).await;
    let client = s3(&proxy.endpoint());
    (double, proxy, client)
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn without_a_plan_it_only_passes_on() {
    let (double, proxy, client) = behind_proxy().await;
    conditions_hold(&client).await;
    let (large, path) = (vec![7_u8; 3 << 20], Path::parse("large ü+%").unwrap());
    client.put(&path, PutPayload::from(large.clone())).await.unwrap();
    assert_eq!(double.object(BUCKET, "large ü+%").unwrap(), large);
    let back = client.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(back, large);
    assert_eq!(client.head(&path).await.unwrap().size, 3 << 20);
    assert_eq!(proxy.requests(), double.requests());
    assert_eq!((proxy.faults(), proxy.requests().puts), (0, 6));
}

#[tokio::test]
async fn what_is_dropped_before_never_arrives() {
    let (double, proxy, client) = behind_proxy().await;
    proxy.arm(Fault::DropRequest, Method::PUT, "k");
    create(&client, "k", "x").await.expect_err("no answer");
    proxy.arm(Fault::ErrorBefore(StatusCode::SERVICE_UNAVAILABLE), Method::PUT, "k");
    let error = create(&client, "k", "x").await.expect_err("503");
    assert!(format!("{error:?}").contains("503"), "{error:?}");
    assert_eq!((double.requests().total(), proxy.requests().puts), (0, 2));
    create(&client, "k", "x").await.expect("armed once");
}

#[tokio::test]
async fn what_fails_after_is_there() {
    let (double, proxy, client) = behind_proxy().await;
    proxy.arm(Fault::DropAnswer, Method::PUT, "dropped");
    proxy.arm(Fault::ErrorAfter(StatusCode::INTERNAL_SERVER_ERROR), Method::PUT, "failed");
    assert_eq!(proxy.armed(), 2);
    create(&client, "failed", "x").await.expect_err("500");
    create(&client, "dropped", "x").await.expect_err("no answer");
    assert_eq!((proxy.armed(), proxy.faults()), (0, 2));
    assert_eq!(double.keys(BUCKET), ["dropped", "failed"]);
}

#[tokio::test]
async fn conflicts_strike_only_conditional_writes() {
    let (double, proxy, client) = behind_proxy().await;
    proxy.set_plan(Plan { conflict: 1000, ..Plan::default() });
    client.put(&Path::from("k"), PutPayload::from_static(b"x")).await.expect("no condition");
    let error = create(&client, "new", "x").await.expect_err("409");
    assert!(format!("{error:?}").contains("ConditionalRequestConflict"), "{error:?}");
    assert_eq!((double.keys(BUCKET), proxy.faults()), (vec!["k".to_owned()], 1));
}

#[tokio::test]
async fn a_late_request_arrives_when_nobody_waits_for_it() {
    let (double, proxy, client) = behind_proxy().await;
    let first = create(&client, "k", "first").await.unwrap();
    proxy.arm(Fault::Late(Duration::from_secs(3)), Method::PUT, "k");
    update(&client, "k", "late", &first).await.expect_err("no answer");
    assert_eq!((get(&client, "k").await.unwrap().as_str(), proxy.late()), ("first", 1));
    eventually("it arrives", || proxy.late() == 0).await;
    assert_eq!(double.object(BUCKET, "k").unwrap(), "late");
    proxy.set_plan(Plan { late: 1000, late_up_to: Duration::from_millis(50), ..Plan::default() });
    for number in 0..10 {
        create(&client, &format!("many/{number}"), "x").await.expect_err("no answer");
    }
    eventually("all arrive", || double.keys(BUCKET).len() == 11).await;
}

#[tokio::test]
async fn a_store_can_be_away_and_come_back() {
    let (double, proxy, client) = behind_proxy().await;
    proxy.hold();
    let waiting = tokio::spawn(async move { create(&client, "k", "x").await });
    eventually("it is asked", || proxy.requests().puts == 1).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(double.requests().total(), 0);
    proxy.release();
    waiting.await.unwrap().expect("it came back");
    assert_eq!(double.keys(BUCKET), ["k"]);
}

#[tokio::test]
async fn latency_is_added_to_every_request() {
    let (_double, proxy, client) = behind_proxy().await;
    let latency = Duration::from_millis(60);
    proxy.set_plan(Plan { latency, ..Plan::default() });
    let start = Instant::now();
    create(&client, "k", "x").await.unwrap();
    assert!(start.elapsed() >= latency);
    proxy.heal();
    assert_eq!(proxy.plan(), Plan::default());
}

#[tokio::test]
async fn chance_is_as_planned_and_repeats() {
    let (double, proxy, client) = behind_proxy().await;
    let plan = Plan {
        drop_request: 100,
        drop_answer: 100,
        error_before: 100,
        error_after: 100,
        ..Plan::default()
    };
    proxy.set_plan(plan);
    let mut runs = Vec::new();
    for run in 0..2 {
        proxy.set_seed(42);
        let mut outcome = Vec::new();
        for number in 0..200 {
            let key = format!("{run}/{number:03}");
            let answered = create(&client, &key, "x").await.is_ok();
            outcome.push((answered, double.object(BUCKET, &key).is_some()));
        }
        runs.push(outcome);
    }
    assert_eq!(runs[0], runs[1]);
    let count = |seen| runs[0].iter().filter(|outcome| **outcome == seen).count();
    let (lost, unsure) = (count((false, false)), count((false, true)));
    assert!((20..=60).contains(&lost) && (20..=60).contains(&unsure), "{lost} {unsure}");
    assert_eq!(proxy.requests(), Counts { puts: 400, ..Counts::default() });
}

#[tokio::test]
async fn a_store_that_is_gone_answers_nothing() {
    let (double, _proxy, client) = behind_proxy().await;
    drop(double);
    let gone = get(&client, "k").await;
    assert!(matches!(gone, Err(Error::Generic { .. })), "{gone:?}");
}
