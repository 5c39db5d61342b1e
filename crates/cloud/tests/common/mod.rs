//! Clients as the service uses them, without retries unless a test wants them.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, PutResult, RetryConfig,
    UpdateVersion,
};

pub const BUCKET: &str = "lockd";

pub type Client = Arc<dyn ObjectStore>;

fn options() -> ClientOptions {
    // Only the first call installs it; the tests of one program share it.
    rustls::crypto::ring::default_provider().install_default().ok();
    ClientOptions::new().with_allow_http(true).with_timeout(Duration::from_secs(5))
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

pub fn s3(endpoint: &str) -> Client {
    let built = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_region("us-east-1")
        .with_bucket_name(BUCKET)
        .with_access_key_id("test")
        .with_secret_access_key("test")
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_client_options(options())
        .with_retry(no_retries())
        .build();
    Arc::new(built.expect("a client"))
}

pub fn gcs(endpoint: &str) -> Client {
    let account = r#"{"private_key": "", "private_key_id": "", "client_email": "",
                      "disable_oauth": true}"#;
    let built = GoogleCloudStorageBuilder::new()
        .with_base_url(endpoint)
        .with_service_account_key(account)
        .with_bucket_name(BUCKET)
        .with_client_options(options())
        .with_retry(no_retries())
        .build();
    Arc::new(built.expect("a client"))
}

pub fn azure(endpoint: &str, account: &str, key: &str) -> Client {
    let built = MicrosoftAzureBuilder::new()
        .with_endpoint(endpoint.to_owned())
        .with_account(account)
        .with_access_key(key)
        .with_container_name(BUCKET)
        .with_client_options(options())
        .with_retry(no_retries())
        .build();
    Arc::new(built.expect("a client"))
}

pub async fn create(client: &Client, key: &str, text: &str) -> Result<PutResult, Error> {
    let payload = PutPayload::from(text.to_owned());
    client.put_opts(&Path::from(key), payload, PutMode::Create.into()).await
}

pub async fn update(
    client: &Client,
    key: &str,
    text: &str,
    over: &PutResult,
) -> Result<PutResult, Error> {
    let version = UpdateVersion { e_tag: over.e_tag.clone(), version: over.version.clone() };
    let payload = PutPayload::from(text.to_owned());
    client.put_opts(&Path::from(key), payload, PutMode::Update(version).into()).await
}

pub async fn get(client: &Client, key: &str) -> Result<String, Error> {
    let bytes = client.get(&Path::from(key)).await?.bytes().await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What every store must do: the same for doubles and real servers.
pub async fn conditions_hold(client: &Client) {
    let first = create(client, "a/one", "1").await.expect("created");
    let again = create(client, "a/one", "other").await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    update(client, "a/one", "2", &first).await.expect("updated");
    let stale = update(client, "a/one", "3", &first).await;
    assert!(matches!(stale, Err(Error::Precondition { .. })), "{stale:?}");
    assert_eq!(get(client, "a/one").await.expect("read"), "2");
    client.delete(&Path::from("a/one")).await.expect("deleted");
    let gone = get(client, "a/one").await;
    assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
    let deleted = update(client, "a/one", "4", &first).await;
    assert!(matches!(deleted, Err(Error::Precondition { .. })), "{deleted:?}");
}

/// How many of 16 at once could create the same key.
pub async fn race_to_create(client: &Client, key: &str) -> usize {
    let racers = (0..16).map(|number| {
        let (client, key) = (Arc::clone(client), key.to_owned());
        tokio::spawn(async move { create(&client, &key, &number.to_string()).await.is_ok() })
    });
    winners(racers.collect()).await
}

/// How many of 16 at once could update the same version.
pub async fn race_to_update(client: &Client, key: &str) -> usize {
    let first = create(client, key, "first").await.expect("created");
    let racers = (0..16).map(|number| {
        let (client, key, first) = (Arc::clone(client), key.to_owned(), first.clone());
        tokio::spawn(
            async move { update(&client, &key, &number.to_string(), &first).await.is_ok() },
        )
    });
    winners(racers.collect()).await
}

async fn winners(racers: Vec<tokio::task::JoinHandle<bool>>) -> usize {
    let mut count = 0;
    for racer in racers {
        count += usize::from(racer.await.expect("a racer"));
    }
    count
}
