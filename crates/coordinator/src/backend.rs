//! Where a cluster is kept: the lock and the registry, of one instance.

use std::sync::Arc;

use lockd_client::Client;
use lockd_elect::lockd::LockdLock;
use lockd_elect::redis::{Address, AddressError, Redis, RedisLock, RedisSettings};
use lockd_elect::{Candidate, LeaderLock};

use crate::lockd::LockdRegistry;
use crate::redis::RedisRegistry;
use crate::registry::Registry;
use crate::settings::{Settings, SettingsError};

/// How a place is called where it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Redis { host: String, port: u16 },
    Lockd { url: String },
}

/// The lock and the registry of one instance.
#[derive(Clone, Debug)]
pub struct Backend {
    pub(crate) lock: Arc<dyn LeaderLock>,
    pub(crate) registry: Arc<dyn Registry>,
    pub(crate) place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

impl Backend {
    /// A Redis at this address.
    ///
    /// # Errors
    /// When it is not an address, or the settings do not fit to it.
    pub fn redis(address: &str, settings: &Settings) -> Result<Self, BackendError> {
        Self::redis_with(RedisSettings::new(Address::parse(address)?), settings)
    }

    /// # Errors
    /// When the settings do not fit to it.
    pub fn redis_with(redis: RedisSettings, settings: &Settings) -> Result<Self, BackendError> {
        let first = redis.address.hosts.first().cloned();
        let (host, port) = first.ok_or_else(|| AddressError::Host(String::new()))?;
        let redis = Redis::new(redis);
        let candidate = Candidate::new(settings.instance_id.as_str());
        let registry = RedisRegistry::new(redis.clone(), candidate.clone(), settings)?;
        let lock = RedisLock::new(redis, &settings.prefix, candidate, settings.leader_ttl);
        Ok(Self {
            lock: Arc::new(lock),
            registry: Arc::new(registry),
            place: Place::Redis { host, port },
        })
    }

    /// A lockd server, instead of Redis.
    ///
    /// # Errors
    /// When the key prefix cannot be part of a key.
    pub fn lockd(client: &Client, settings: &Settings) -> Result<Self, BackendError> {
        let candidate = Candidate::new(settings.instance_id.as_str());
        let registry = LockdRegistry::new(client.clone(), candidate.clone(), settings)?;
        let lock =
            LockdLock::new(client.clone(), &registry.leader_key(), candidate, settings.leader_ttl);
        let url = client.endpoints().first().cloned().unwrap_or_default();
        Ok(Self { lock: Arc::new(lock), registry: Arc::new(registry), place: Place::Lockd { url } })
    }
}
