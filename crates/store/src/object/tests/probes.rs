//! Which stores are taken, and which are refused.

use std::time::Duration;

use lockd_cloud::{Azurite, Double, Flaw, GcsDouble, Moto, Op, S3Double};

use super::super::{Location, ObjectOptions, ObjectStore, Outcome, Report, Thoroughness};
use super::{at, open};

async fn probe(double: &Double) -> Report {
    open(&at(&double.endpoint(), "p")).probe(Thoroughness::START).await
}

fn failed(report: &Report) -> Vec<&'static str> {
    let failed = report.checks.iter().filter(|check| matches!(check.outcome, Outcome::Failed(_)));
    failed.map(|check| check.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn honest_stores_are_taken_and_left_as_they_were() {
    let double = S3Double::start().await;
    double.set_clock_offset(-3_600_000);
    let report = probe(&double).await;
    assert!(report.passed(), "{report:?}");
    assert_eq!(double.keys("lockd"), Vec::<String>::new(), "it cleans up");
    let (ahead, bound) = report.clock.unwrap();
    assert!((ahead + 3_600_000).unsigned_abs() <= bound + 50, "{ahead} ± {bound}");

    let google = GcsDouble::start().await;
    let location = Location::parse("gs://lockd", None).unwrap();
    let options =
        ObjectOptions { endpoint: Some(google.endpoint()), ..ObjectOptions::new(location) };
    let report = open(&options).probe(Thoroughness::START).await;
    assert!(report.passed(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn real_servers_are_taken() {
    let moto = Moto::start().await;
    let report = open(&at(&moto.endpoint(), "p")).probe(Thoroughness::FULL).await;
    assert!(report.passed(), "{report:?}");
    let azurite = Azurite::start().await;
    let url = format!("azure://{}/lockd", azurite.account());
    let mut options = ObjectOptions::new(Location::parse(&url, None).unwrap());
    options.endpoint = Some(azurite.endpoint());
    options.credentials.azure_account_key = Some(azurite.key().into());
    let report = open(&options).probe(Thoroughness::FULL).await;
    assert!(report.passed(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_that_break_their_word_are_refused() {
    for (flaw, check) in [
        (Flaw::IgnoresIfMatch, "replace only if unchanged"),
        (Flaw::IgnoresIfNoneMatch, "create only if absent"),
        (Flaw::ChecksThenWrites, "one winner of many that create"),
    ] {
        let double = S3Double::start().await;
        double.set_flaw(flaw);
        let report = probe(&double).await;
        assert_eq!(failed(&report).first(), Some(&check), "{flaw:?}: {report:?}");
        let store: ObjectStore = ObjectStore::open(&at(&double.endpoint(), "p")).unwrap();
        assert!(store.verify(Thoroughness::START).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_told_apart_from_broken_promises() {
    for (op, check) in [(Op::List, "list"), (Op::Put, "write"), (Op::Delete, "delete")] {
        let double = S3Double::start().await;
        double.deny(op);
        let report = probe(&double).await;
        assert!(report.is_denied(), "{report:?}");
        let denied = report.checks.iter().find(|one| matches!(one.outcome, Outcome::Denied(_)));
        assert_eq!(denied.map(|one| one.name), Some(check));
        assert!(report.why().unwrap().contains("denied"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clear_answer_is_not_called_no_answer() {
    for (flaw, did) in [(Flaw::RefusesIfMatch, "412"), (Flaw::DoesNotKnowIfMatch, "400")] {
        let double = S3Double::start().await;
        double.set_flaw(flaw);
        let patience = Duration::from_secs(60);
        let store = open(&ObjectOptions { patience, ..at(&double.endpoint(), "p") });
        let start = tokio::time::Instant::now();
        let report = store.probe(Thoroughness::START).await;
        assert!(start.elapsed() < patience / 2, "{flaw:?}: it took the whole retry time");
        assert!(!report.is_unanswered(), "{flaw:?}: {report:?}");
        assert_eq!(failed(&report), ["replace only if unchanged"], "{flaw:?}: {report:?}");
        assert!(report.why().unwrap().contains(did), "{flaw:?}: {:?}", report.why());
        assert_eq!(double.keys("lockd"), Vec::<String>::new(), "{flaw:?}: it cleans up");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_probe_made_is_removed_also_where_lists_are_late() {
    let double = S3Double::start().await;
    double.set_flaw(Flaw::ListsNothing);
    let report = probe(&double).await;
    assert!(report.passed(), "{report:?}");
    assert_eq!(double.keys("lockd"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_probe_cannot_remove_is_named() {
    let double = S3Double::start().await;
    double.deny(Op::Delete);
    let report = probe(&double).await;
    assert!(!report.left.is_empty());
    assert_eq!(report.left, double.keys("lockd"), "{report:?}");
}
