//! Read, change and commit under one lease, again when the lease is lost on the way.
//!
//! Nothing is committed unless the lease was held from the read to the commit. A commit whose
//! outcome is unknown is not done anew, since it might then happen twice.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::Client;
use crate::error::{AcquireKind, Error, ReadKind, UpdateKind};
use crate::lease::Lost;
use crate::update::Updated;

const WAIT: Duration = Duration::from_secs(30);
const ATTEMPTS: u32 = 5;

/// Changes the state of a key under a lease of its own; await it.
#[must_use = "nothing happens before it is awaited"]
pub struct UpdateCycle<T, E, F> {
    client: Client,
    key: String,
    namespace: Option<String>,
    owner: Option<String>,
    ttl: Option<Duration>,
    wait: Duration,
    attempts: u32,
    change: F,
    value: PhantomData<fn() -> (T, E)>,
}

/// Where a cycle ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum CycleError<E> {
    /// The key could not be had.
    Acquire(Error<AcquireKind>),
    /// Its state could not be read.
    Read(Error<ReadKind>),
    /// The caller's own change failed; nothing was committed.
    Change(E),
    /// The new state could not be committed.
    Write(Error<UpdateKind>),
    /// The lease was lost while the change was made, every time; nothing was committed.
    Lost(Lost),
}

impl<T, E, F> UpdateCycle<T, E, F> {
    pub(crate) fn new(client: Client, key: String, change: F) -> Self {
        Self {
            client,
            key,
            namespace: None,
            owner: None,
            ttl: None,
            wait: WAIT,
            attempts: ATTEMPTS,
            change,
            value: PhantomData,
        }
    }

    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Who holds the lease, for people to read; the client's owner when not set.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// How long the lease lives without renewal; the server's default when not set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait for the key, each time: 30 seconds unless set.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = longest;
        self
    }

    /// How often the whole is tried: 5 times unless set.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    async fn run<R>(self) -> Result<Updated, CycleError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(Option<T>) -> R,
        R: Future<Output = Result<T, E>>,
    {
        let mut left = self.attempts;
        loop {
            left = left.saturating_sub(1);
            match self.once().await {
                Err(error) if left > 0 && error.is_lost() => {
                    tracing::debug!(key = self.key, left, "lease lost, starting anew");
                }
                done => return done,
            }
        }
    }

    async fn once<R>(&self) -> Result<Updated, CycleError<E>>
    where
        T: Serialize + DeserializeOwned,
        F: Fn(Option<T>) -> R,
        R: Future<Output = Result<T, E>>,
    {
        let mut acquire = self.client.lease(&self.key);
        if let Some(namespace) = &self.namespace {
            acquire = acquire.namespace(namespace);
        }
        if let Some(owner) = &self.owner {
            acquire = acquire.owner(owner);
        }
        if let Some(ttl) = self.ttl {
            acquire = acquire.ttl(ttl);
        }
        let lease = acquire.wait(self.wait).await.map_err(CycleError::Acquire)?;
        let state = match lease.get().await.map_err(CycleError::Read)? {
            Some(document) => Some(document.json().map_err(CycleError::Read)?),
            None => None,
        };
        let changed = tokio::select! {
            biased;
            lost = lease.lost() => return Err(CycleError::Lost(lost)),
            changed = (self.change)(state) => changed.map_err(CycleError::Change)?,
        };
        lease.finish(&changed).await.map_err(CycleError::Write)
    }
}

impl<T, E, F, R> IntoFuture for UpdateCycle<T, E, F>
where
    T: Serialize + DeserializeOwned + Send + 'static,
    E: Send + 'static,
    F: Fn(Option<T>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<T, E>> + Send + 'static,
{
    type Output = Result<Updated, CycleError<E>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<E> CycleError<E> {
    /// Whether the lease was lost, so that certainly nothing was committed.
    fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Acquire(error) => error.kind() == AcquireKind::Lost,
            Self::Read(error) => error.kind() == ReadKind::LeaseLost,
            Self::Write(error) => error.kind() == UpdateKind::LeaseLost && !error.outcome_unknown(),
            Self::Change(_) => false,
        }
    }
}

impl<E: fmt::Display> fmt::Display for CycleError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(_) => f.write_str("the key could not be had"),
            Self::Read(_) => f.write_str("the state could not be read"),
            Self::Change(error) => write!(f, "the change failed: {error}"),
            Self::Write(_) => f.write_str("the new state could not be committed"),
            Self::Lost(lost) => write!(f, "the lease was lost during the change: {lost}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for CycleError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Acquire(error) => Some(error),
            Self::Read(error) => Some(error),
            Self::Write(error) => Some(error),
            Self::Change(_) | Self::Lost(_) => None,
        }
    }
}

impl<T, E, F> fmt::Debug for UpdateCycle<T, E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateCycle").field("key", &self.key).finish_non_exhaustive()
    }
}
