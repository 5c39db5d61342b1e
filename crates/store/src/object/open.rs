//! Makes a client for the service at hand, with the credentials that its users know.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, RetryConfig};

use super::location::{Location, Service};
use super::wire::{Connector, Line};

/// What a service can do, whoever offers it.
pub(super) trait Bucket:
    object_store::ObjectStore + MultipartStore + PaginatedListStore
{
}

impl<T: object_store::ObjectStore + MultipartStore + PaginatedListStore> Bucket for T {}

/// How to reach an object store. Credentials that are not given come from where the service's own
/// tools look for them: the environment, a token of the workload, the machine's role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectOptions {
    pub location: Location,
    pub region: Option<String>,
    /// Instead of the service's own, for Azure and Google.
    pub endpoint: Option<String>,
    pub encryption: Option<Encryption>,
    /// Uploads above this are made in parts of this size.
    pub part_bytes: usize,
    /// How long one request may take.
    pub timeout: Duration,
    /// How long a failed request is tried again.
    pub patience: Duration,
    /// The longest that a lease of any server on this store may live.
    pub longest_lease: Duration,
    /// Memory for records that were read before.
    pub cache_bytes: u64,
    pub credentials: Credentials,
}

/// Encryption by the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encryption {
    Aes256,
    Kms { key: Option<String> },
}

/// What was given to lockd itself.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    pub access_key_id: Option<String>,
    pub secret_access_key: Option<String>,
    pub session_token: Option<String>,
    pub azure_account_key: Option<String>,
    pub azure_sas_token: Option<String>,
    /// A file.
    pub gcs_service_account: Option<String>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

impl ObjectOptions {
    #[must_use]
    pub fn new(location: Location) -> Self {
        Self {
            location,
            region: None,
            endpoint: None,
            encryption: None,
            part_bytes: 8 << 20,
            timeout: Duration::from_secs(10),
            patience: Duration::from_secs(20),
            longest_lease: Duration::from_secs(30 * 60),
            cache_bytes: 64 << 20,
            credentials: Credentials::default(),
        }
    }

    pub(super) fn connect(&self, line: &Arc<Line>) -> Result<Arc<dyn Bucket>, object_store::Error> {
        // The client takes the process's provider. Somebody may have chosen one before.
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        // Nothing is sent twice without us knowing: a write of unknown outcome is looked after.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let connector = Connector(Arc::clone(line));
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(self.timeout)
            .with_pool_idle_timeout(Duration::from_secs(30));
        match &self.location.service {
            Service::S3 { endpoint } => Ok(Arc::new(
                self.s3(endpoint.as_deref())?
                    .with_client_options(client.with_allow_http(is_http(endpoint.as_deref())))
                    .with_retry(retry)
                    .with_http_connector(connector)
                    .build()?,
            )),
            Service::Azure { account } => {
                let client = client.with_allow_http(is_http(self.endpoint.as_deref()));
                let builder = self.azure(account).with_client_options(client).with_retry(retry);
                Ok(Arc::new(builder.with_http_connector(connector).build()?))
            }
            Service::Gcs => {
                let client = client.with_allow_http(is_http(self.endpoint.as_deref()));
                let builder = self.gcs().with_client_options(client).with_retry(retry);
                Ok(Arc::new(builder.with_http_connector(connector).build()?))
            }
        }
    }

    fn s3(&self, endpoint: Option<&str>) -> Result<AmazonS3Builder, object_store::Error> {
        let given = &self.credentials;
        let given_keys = given.access_key_id.is_some() && given.secret_access_key.is_some();
        // Who gives lockd keys of its own means those, and nothing that lies around.
        let start = if given_keys { AmazonS3Builder::new() } else { AmazonS3Builder::from_env() };
        let mut builder = start
            .with_bucket_name(&self.location.bucket)
            .with_disable_tagging(true)
            // Not every store has it, and rights are told more clearly without.
            .with_disable_bulk_delete(true);
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = endpoint {
            builder = builder
                .with_endpoint(endpoint)
                .with_config(AmazonS3ConfigKey::S3Endpoint, endpoint)
                .with_virtual_hosted_style_request(false);
        }
        if let (Some(id), Some(secret)) = (&given.access_key_id, &given.secret_access_key) {
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        }
        if let Some(token) = &given.session_token {
            builder = builder.with_token(token);
        }
        match &self.encryption {
            None => {}
            Some(Encryption::Kms { key: Some(key) }) => {
                builder = builder.with_sse_kms_encryption(key);
            }
            Some(Encryption::Kms { key: None }) => {
                builder = builder.with_config("aws_server_side_encryption".parse()?, "aws:kms");
            }
            Some(Encryption::Aes256) => {
                builder = builder.with_config("aws_server_side_encryption".parse()?, "AES256");
            }
        }
        Ok(builder)
    }

    fn azure(&self, account: &str) -> MicrosoftAzureBuilder {
        let given = &self.credentials;
        let is_given = given.azure_account_key.is_some() || given.azure_sas_token.is_some();
        let start =
            if is_given { MicrosoftAzureBuilder::new() } else { MicrosoftAzureBuilder::from_env() };
        let mut builder = start.with_account(account).with_container_name(&self.location.bucket);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if let Some(key) = &given.azure_account_key {
            builder = builder.with_access_key(key);
        }
        if let Some(token) = &given.azure_sas_token {
            let token = token.trim_start_matches('?');
            let key = object_store::azure::AzureConfigKey::SasKey;
            builder = builder.with_config(key, token);
        }
        builder
    }

    fn gcs(&self) -> GoogleCloudStorageBuilder {
        let start = match self.credentials.gcs_service_account {
            Some(_) => GoogleCloudStorageBuilder::new(),
            None => GoogleCloudStorageBuilder::from_env(),
        };
        let mut builder = start.with_bucket_name(&self.location.bucket);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_base_url(endpoint);
            if is_http(Some(endpoint)) {
                // Nobody sends a secret where everybody on the way can read it: this is a double.
                builder = builder.with_bearer_token("none");
            }
        }
        if let Some(file) = &self.credentials.gcs_service_account {
            builder = builder.with_service_account_path(file);
        }
        builder
    }
}

fn is_http(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}
