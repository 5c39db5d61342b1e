//! The client: a cheap handle from which everything starts.
//!
//! It owns the connections and the tasks in the background: one per lease that is held, and one
//! per lease that was dropped and is being let go of.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use lockd_wire::lease::{RevokeReply, RevokeRequest};
use lockd_wire::path;
use lockd_wire::state::DescribeReply;
use lockd_wire::txn::{TxnReply, TxnRequest, TxnView};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::acquire::{Acquire, NoWaitSet};
use crate::attachment::AttachmentsView;
use crate::call::{Call, Patience, Repeat};
use crate::clock::Clock;
use crate::context::{LeaseContext, RawLease};
use crate::cycle::UpdateCycle;
use crate::endpoint::EndpointError;
use crate::error::{AdminKind, Error, Failed, ReadKind};
use crate::listing::{KeyPages, LeasePages, NamespacePages, TxnPages};
use crate::queue::{Queue, QueuePages, RawMessage, Receipt};
use crate::read::{Get, GetStream, ReadMany};
use crate::reply::{Loaded, REPLY_BYTES_MAX, Reply};
use crate::settings::{ClientBuilder, Settings};
use crate::transport::Transport;
use crate::txn::Txn;
use crate::watch::Watch;

/// How long [`Client::close`] waits for leases and messages to be let go of.
const CLOSE_MAX: Duration = Duration::from_secs(5);

/// A connection to a lockd server, or to several of one store. Cloning it is cheap.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    clock: Clock,
    settings: Settings,
    /// Releases of dropped leases, and returns of dropped messages, that are on their way.
    farewells: TaskTracker,
}

impl Client {
    /// A client for one server, or several separated by commas. Nothing is connected yet.
    ///
    /// # Errors
    /// When an address is not one.
    pub fn connect(endpoints: &str) -> Result<Self, EndpointError> {
        Self::builder().endpoint(endpoints).build()
    }

    /// A client with settings of its own.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    pub(crate) fn new(transport: Transport, clock: Clock, settings: Settings) -> Self {
        let farewells = TaskTracker::new();
        Self { inner: Arc::new(Inner { transport, clock, settings, farewells }) }
    }

    /// The servers, in the order in which they were given.
    pub fn endpoints(&self) -> Vec<String> {
        self.inner.transport.names().map(str::to_owned).collect()
    }

    /// Asks for a key: `client.lease("jobs/7").ttl(secs(30)).wait(secs(5)).await?`.
    pub fn lease(&self, key: impl Into<String>) -> Acquire<NoWaitSet> {
        Acquire::new(self.clone(), Some(key.into()))
    }

    /// Begins a transaction over several keys.
    ///
    /// ```no_run
    /// # async fn transfer(client: lockd_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use lockd_client::secs;
    ///
    /// let txn = client.txn();
    /// let from = txn.lease("accounts/a").wait(secs(5)).await?;
    /// let to = txn.lease("accounts/b").wait(secs(5)).await?;
    /// from.mutate(["/balance=-10"]).await?;
    /// to.mutate(["/balance=+10"]).await?;
    /// txn.commit([from, to]).await?; // both, or neither
    /// # Ok(())
    /// # }
    /// ```
    pub fn txn(&self) -> Txn {
        Txn::new(self.clone())
    }

    /// A queue of messages, by its name.
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue::new(self.clone(), name.into())
    }

    /// The names of the queues of a namespace.
    pub fn queues(&self) -> QueuePages {
        QueuePages::new(self.clone())
    }

    /// Answers for a message that was delivered elsewhere, without a guard: nothing is extended,
    /// nothing is given back by itself.
    pub fn raw_message(&self, receipt: Receipt) -> RawMessage {
        RawMessage::new(self.clone(), receipt)
    }

    /// Asks for a key that the server generates, different for every caller.
    pub fn lease_new_key(&self) -> Acquire<NoWaitSet> {
        Acquire::new(self.clone(), None)
    }

    /// Reads the state of a key, changes it and commits it, all under one lease. The whole is done
    /// again, a bounded number of times, when the lease is lost on the way.
    pub fn acquire_for_update<T, E, F, R>(
        &self,
        key: impl Into<String>,
        change: F,
    ) -> UpdateCycle<T, E, F>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
        F: Fn(Option<T>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, E>> + Send + 'static,
    {
        UpdateCycle::new(self.clone(), key.into(), change)
    }

    /// Reads committed state; needs no lease.
    pub fn get(&self, key: impl Into<String>) -> Get {
        Get::public(self.clone(), key.into())
    }

    /// Reads committed state piece by piece; needs no lease.
    pub fn get_stream(&self, key: impl Into<String>) -> GetStream {
        GetStream::public(self.clone(), key.into())
    }

    /// The committed attachments of a key; needs no lease.
    pub fn attachments(&self, key: impl Into<String>) -> AttachmentsView {
        AttachmentsView::public(self.clone(), key.into())
    }

    /// Reads several keys as of one moment.
    pub fn read_many<I>(&self, keys: I) -> ReadMany
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let keys = keys.into_iter().map(|key| key.as_ref().to_owned()).collect();
        ReadMany::new(self.clone(), keys)
    }

    /// What is known about a key, without its state.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn describe(
        &self,
        namespace: Option<&str>,
        key: &str,
    ) -> Result<DescribeReply, Error<ReadKind>> {
        let call = self
            .call(Method::GET, path::DESCRIBE)
            .query("key", key)
            .query_if("namespace", self.namespace_or(namespace));
        Ok(self.fetch(&call).await?.json()?)
    }

    /// The keys whose names begin with `prefix`.
    pub fn keys(&self, prefix: impl Into<String>) -> KeyPages {
        KeyPages::new(self.clone(), prefix.into())
    }

    /// All namespaces that have keys.
    pub fn namespaces(&self) -> NamespacePages {
        NamespacePages::new(self.clone())
    }

    /// The leases that are held now.
    pub fn leases(&self) -> LeasePages {
        LeasePages::new(self.clone())
    }

    /// The transactions that have a record, in the order of their ids; for operators.
    pub fn txns(&self) -> TxnPages {
        TxnPages::new(self.clone())
    }

    /// One transaction whole; for operators.
    ///
    /// # Errors
    /// When there is none, or it cannot be had.
    pub async fn txn_record(&self, txn_id: &str) -> Result<TxnView, Error<ReadKind>> {
        let id = percent_encoding::utf8_percent_encode(txn_id, percent_encoding::NON_ALPHANUMERIC);
        let path = path::TXN.replace("{id}", &id.to_string());
        Ok(self.fetch(&self.call(Method::GET, path)).await?.json()?)
    }

    /// Decides a transaction in place of its holders, or adds participants to it; for
    /// coordinators.
    ///
    /// # Errors
    /// When it was decided otherwise, or could not be done.
    pub async fn decide_txn(&self, request: &TxnRequest) -> Result<TxnReply, Error<AdminKind>> {
        Ok(self.fetch(&self.call(Method::POST, path::TXN_DECIDE).json(request)?).await?.json()?)
    }

    /// Finishes a transaction as far as that can be done now; for coordinators.
    ///
    /// # Errors
    /// When there is none, or it could not be done.
    pub async fn replay_txn(&self, txn_id: &str) -> Result<TxnReply, Error<AdminKind>> {
        let request = TxnRequest { txn_id: txn_id.to_owned(), ..TxnRequest::default() };
        Ok(self.fetch(&self.call(Method::POST, path::TXN_REPLAY).json(&request)?).await?.json()?)
    }

    /// Takes a key from its holder, for operators. The holder is told the reason.
    ///
    /// # Errors
    /// When it could not be done.
    pub async fn revoke(
        &self,
        namespace: Option<&str>,
        key: &str,
        reason: &str,
    ) -> Result<RevokeReply, Error<AdminKind>> {
        let request = RevokeRequest {
            namespace: self.namespace_or(namespace).map(str::to_owned),
            key: key.to_owned(),
            reason: reason.to_owned(),
        };
        let call = self.call(Method::POST, path::LEASES_REVOKE).repeat(Repeat::Unsent);
        let call = call.naming("key", Some(key)).naming("namespace", self.namespace_or(namespace));
        Ok(self.fetch(&call.json(&request)?).await?.json()?)
    }

    /// Follows what happens to one key.
    pub fn watch(&self, key: impl Into<String>) -> Watch {
        Watch::new(self.clone()).key(key)
    }

    /// Follows what happens to all keys whose names begin with `prefix`.
    pub fn watch_prefix(&self, prefix: impl Into<String>) -> Watch {
        Watch::new(self.clone()).prefix(prefix)
    }

    /// Acts under a lease that was granted elsewhere, without a guard: nothing is renewed, nothing
    /// is released by itself.
    pub fn raw(&self, context: LeaseContext) -> RawLease {
        RawLease::new(self.clone(), context)
    }

    /// Waits until the leases and messages that were dropped have been let go of, at most a few
    /// seconds. Worth calling before the runtime ends.
    pub async fn close(&self) {
        self.inner.farewells.close();
        if tokio::time::timeout(CLOSE_MAX, self.inner.farewells.wait()).await.is_err() {
            tracing::debug!("closed before all that was dropped was let go of");
        }
        self.inner.farewells.reopen();
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// How many servers may be asked.
    pub(crate) fn servers(&self) -> u32 {
        u32::try_from(self.inner.transport.names().len()).unwrap_or(u32::MAX).max(1)
    }

    /// The given namespace, else this client's.
    pub(crate) fn namespace_or<'a>(&'a self, given: Option<&'a str>) -> Option<&'a str> {
        given.or(self.inner.settings.namespace.as_deref())
    }

    pub(crate) fn patience(&self) -> Patience {
        let Settings { timeout, passes, .. } = self.inner.settings;
        let (silence, passes_reached) = (Some(timeout), passes);
        Patience { silence, passes, passes_reached, until: None, worth: None }
    }

    pub(crate) fn call(&self, method: Method, path: impl Into<Cow<'static, str>>) -> Call {
        Call::new(method, path, self.patience())
    }

    pub(crate) async fn open(&self, call: &Call) -> Result<Reply, Failed> {
        self.inner.transport.open(call).await
    }

    pub(crate) async fn fetch(&self, call: &Call) -> Result<Loaded, Failed> {
        self.inner.transport.fetch(call, REPLY_BYTES_MAX).await
    }

    pub(crate) async fn fetch_document(&self, call: &Call) -> Result<Loaded, Failed> {
        self.inner.transport.fetch(call, self.inner.settings.document_bytes_max).await
    }

    /// Runs a last request of a dropped lease or message; [`Client::close`] waits for it.
    pub(crate) fn spawn_farewell(
        &self,
        runtime: &Handle,
        farewell: impl Future<Output = ()> + Send + 'static,
    ) {
        self.inner.farewells.spawn_on(farewell, runtime);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.endpoints()).finish_non_exhaustive()
    }
}
