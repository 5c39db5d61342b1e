//! What the port promises, over every kind of store that can be had.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use lockd_cloud::{Azurite, GcsDouble, Moto, S3Double};

use super::super::{Location, ObjectOptions};
use super::{at, open};
use crate::conformance::{self, Fixture};

/// Runs the whole suite, each part in a prefix of its own.
async fn keep(options: impl Fn(String) -> ObjectOptions + Send + Sync + 'static) {
    let number = AtomicUsize::new(0);
    let options = Arc::new(options);
    conformance::run_all(&move || {
        let options = Arc::clone(&options);
        let prefix = format!("suite-{}", number.fetch_add(1, Ordering::Relaxed));
        async move { Fixture::new(open(&options(prefix)), ()) }.boxed()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_by_the_double_of_s3() {
    let double = S3Double::start().await;
    let endpoint = double.endpoint();
    keep(move |prefix| ObjectOptions { part_bytes: 1 << 20, ..at(&endpoint, &prefix) }).await;
    assert_eq!(double.uploads("lockd").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_by_the_double_of_google() {
    let double = GcsDouble::start().await;
    let endpoint = double.endpoint();
    keep(move |prefix| {
        let location = Location::parse(&format!("gs://lockd/{prefix}"), None).unwrap();
        let endpoint = Some(endpoint.clone());
        ObjectOptions { endpoint, ..ObjectOptions::new(location) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_by_moto() {
    let moto = Moto::start().await;
    let endpoint = moto.endpoint();
    keep(move |prefix| at(&endpoint, &prefix)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_by_azurite() {
    let azurite = Azurite::start().await;
    let (endpoint, key) = (azurite.endpoint(), azurite.key());
    let account = azurite.account();
    keep(move |prefix| {
        let url = format!("azure://{account}/lockd/{prefix}");
        let mut options = ObjectOptions::new(Location::parse(&url, None).unwrap());
        options.endpoint = Some(endpoint.clone());
        options.credentials.azure_account_key = Some(key.into());
        options
    })
    .await;
}
