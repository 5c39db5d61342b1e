//! The adapter against doubles that misbehave on demand, and against real servers.

mod faults;
mod probes;
mod promises;

use std::sync::Arc;
use std::time::Duration;

use super::{Location, ObjectOptions, ObjectStore};

/// A store in a bucket of its own at an S3 endpoint.
fn at(endpoint: &str, prefix: &str) -> ObjectOptions {
    let address = endpoint.trim_start_matches("http://");
    let url = format!("s3://{address}/lockd/{prefix}?insecure=1");
    let mut options = ObjectOptions::new(Location::parse(&url, None).unwrap());
    options.credentials.access_key_id = Some("test".into());
    options.credentials.secret_access_key = Some("test".into());
    options.region = Some("us-east-1".into());
    options.timeout = Duration::from_secs(5);
    options.patience = Duration::from_secs(10);
    options
}

fn open(options: &ObjectOptions) -> Arc<ObjectStore> {
    Arc::new(ObjectStore::open(options).unwrap())
}
