//! Asking for a key.
//!
//! The request is named once and keeps its name through every repetition, so a grant whose answer
//! was lost is handed out again instead of being waited for. Time is counted from before the first
//! send; a lease that took long to get is renewed before it is handed out, so that its time is
//! known.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use http::Method;
use lockd_wire::lease::{AcquireReply, AcquireRequest};
use lockd_wire::path;

use crate::call::{Patience, new_request_id};
use crate::capped::Limit;
use crate::client::Client;
use crate::clock::Moment;
use crate::context::{LeaseContext, keepalive};
use crate::error::{AcquireKind, Error, Failed, Failure};
use crate::lease::{Lease, Unanswered, Unguarded};
use crate::reply::Loaded;
use crate::ttl::{WireSpan, granted};

/// How much longer than the wait itself an answer may take.
const GRACE: Duration = Duration::from_secs(5);
/// How often servers are tried for a wait without end, once it has begun.
const ENDLESS_PASSES: u32 = 60;
/// A grant that took longer than this part of its time to live is renewed before use.
const FRESH: u32 = 4;

/// No wait has been chosen yet.
#[derive(Clone, Copy, Debug)]
pub struct NoWaitSet(());

/// A wait has been chosen.
#[derive(Clone, Copy, Debug)]
pub struct WaitSet(());

/// What the server said when it granted a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    pub context: LeaseContext,
    pub owner: String,
    /// Of the committed state; zero when there is none.
    pub version: u64,
    pub etag: Option<String>,
    /// What was granted, after the server's limits.
    pub ttl: Duration,
    pub expires_at_unix: u64,
    pub expires_at_unix_ms: u64,
    pub correlation_id: String,
}

/// How long to wait for something that others have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}

impl Wait {
    /// At most that long.
    pub(crate) fn at_most(longest: Duration) -> Self {
        if longest.is_zero() { Self::No } else { Self::For(longest) }
    }

    /// As the wire has it: whole seconds, rounded up.
    pub(crate) fn seconds(self) -> Result<i64, Failed> {
        match self {
            Self::No => Ok(-1),
            Self::Forever => Ok(0),
            Self::For(longest) => whole_seconds(longest),
        }
    }

    /// How long and how often to ask for it, from the moment it is first asked for.
    pub(crate) fn patience(self, client: &Client, sent: Moment) -> Result<Patience, Failed> {
        let patience = client.patience();
        Ok(match self {
            Self::No => patience,
            Self::Forever => Patience { silence: None, passes_reached: ENDLESS_PASSES, ..patience },
            Self::For(_) => {
                let block = Duration::from_secs(self.seconds()?.unsigned_abs());
                let longest = block.saturating_add(GRACE);
                let until = Some(sent.plus(longest));
                let silence = Some(longest);
                Patience { silence, passes_reached: u32::MAX, until, ..patience }
            }
        })
    }
}

/// Seconds as the wire has them, rounded up.
pub(crate) fn whole_seconds(span: Duration) -> Result<i64, Failed> {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    i64::try_from(seconds).map_err(|_| Failure::invalid("the time is too long"))
}

/// A wish to hold a key; await it. Without a wait it is granted at once or not at all.
#[must_use = "nothing is asked for before it is awaited"]
pub struct Acquire<W> {
    client: Client,
    request: AcquireRequest,
    ttl: Option<Duration>,
    wait: Wait,
    name: Option<String>,
    renew: bool,
    chosen: PhantomData<W>,
}

impl Acquire<NoWaitSet> {
    /// Without a key the server generates one.
    pub(crate) fn new(client: Client, key: Option<String>) -> Self {
        let request = AcquireRequest {
            namespace: client.settings().namespace.clone(),
            generate_key: key.is_none(),
            key,
            owner: client.settings().owner.clone(),
            ..AcquireRequest::default()
        };
        Self {
            client,
            request,
            ttl: None,
            wait: Wait::No,
            name: None,
            renew: true,
            chosen: PhantomData,
        }
    }

    /// Waits that long for the key to become free, in whole seconds, rounded up.
    pub fn wait(self, longest: Duration) -> Acquire<WaitSet> {
        self.choose(Wait::at_most(longest))
    }

    /// Waits until the key is free, however long it takes.
    pub fn wait_forever(self) -> Acquire<WaitSet> {
        self.choose(Wait::Forever)
    }

    /// Does not wait, which is the default.
    pub fn no_wait(self) -> Acquire<WaitSet> {
        self.choose(Wait::No)
    }

    fn choose(self, wait: Wait) -> Acquire<WaitSet> {
        let Self { client, request, ttl, wait: _, name, renew, chosen: _ } = self;
        Acquire { client, request, ttl, wait, name, renew, chosen: PhantomData }
    }
}

impl<W> Acquire<W> {
    /// How long the lease lives without renewal; the server's default when not set.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Who holds it, for people to read; the client's owner when not set.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.request.owner = owner.into();
        self
    }

    /// Only if the key is not known yet.
    pub fn if_not_exists(mut self) -> Self {
        self.request.if_not_exists = true;
        self
    }

    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.request.namespace = Some(namespace.into());
        self
    }

    /// Joins a transaction.
    pub fn txn(mut self, txn_id: impl Into<String>) -> Self {
        self.request.txn_id = Some(txn_id.into());
        self
    }

    /// Names the request, so that it can be made again after this process died. Drawn at random
    /// when not set.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.name = Some(key.into());
        self
    }

    /// Whether the guard renews the lease by itself, which it does unless told otherwise.
    pub fn renew(mut self, renew: bool) -> Self {
        self.renew = renew;
        self
    }

    /// Takes the lease without a guard: nothing is renewed, nothing is released by itself.
    pub fn detached(self) -> Detached<W> {
        Detached(self)
    }

    async fn start(self) -> Result<Lease, Error<AcquireKind>> {
        let (mut grant, mut counted_from) = self.grant().await?;
        let client = &self.client;
        if client.clock().now().since(counted_from) > grant.ttl / FRESH {
            let unguarded = Unguarded::new(client.clone(), grant.context.clone(), grant.ttl);
            let sent = client.clock().now();
            let mut patience = client.patience();
            patience.until = Some(sent.plus(grant.ttl));
            let renewed = keepalive(client, &grant.context, Some(grant.ttl), patience).await?;
            grant.ttl = renewed.ttl;
            grant.expires_at_unix = renewed.expires_at_unix;
            grant.expires_at_unix_ms = renewed.expires_at_unix_ms;
            counted_from = sent;
            unguarded.hand_over();
        }
        Ok(Lease::start(self.client, grant, counted_from, self.renew)?)
    }

    /// Asks, and tells from when on the granted time counts.
    async fn grant(&self) -> Result<(Grant, Moment), Failed> {
        let clock = self.client.clock();
        let mut request = self.request.clone();
        let ttl = WireSpan::ttl(self.ttl)?;
        (request.ttl_seconds, request.ttl_ms) = (ttl.seconds, ttl.ms);
        request.block_seconds = Some(self.wait.seconds()?);
        let name = self.name.clone().unwrap_or_else(new_request_id);
        let sent = clock.now();
        let call = self.client.call(Method::POST, path::ACQUIRE).named(&name)?.json(&request)?;
        let mut call = call
            .naming("key", request.key.as_deref())
            .naming("namespace", request.namespace.as_deref())
            .naming("owner", Some(&request.owner))
            .naming("transaction id", request.txn_id.as_deref())
            .checked()?;
        call.patience = self.wait.patience(&self.client, sent)?;
        let mut asked = Unanswered::new(self.client.clone(), call);
        if self.name.is_some() {
            // Whoever gave it a name means to ask for it again.
            asked.answered();
        }
        let loaded = asked.fetch().await?;
        let grant = Grant::read(&loaded, self.ttl)?;
        self.client.settings().caps.check(Limit::Ttl, self.ttl, grant.ttl);
        Ok((grant, sent))
    }
}

impl<W> fmt::Debug for Acquire<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("request", &self.request)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

impl<W: Send + 'static> IntoFuture for Acquire<W> {
    type Output = Result<Lease, Error<AcquireKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.choose_anyway().start())
    }
}

impl<W> Acquire<W> {
    /// Forgets whether a wait was chosen, so that there is one future type.
    fn choose_anyway(self) -> Acquire<WaitSet> {
        let Self { client, request, ttl, wait, name, renew, chosen: _ } = self;
        Acquire { client, request, ttl, wait, name, renew, chosen: PhantomData }
    }
}

/// A wish to hold a key without a guard.
#[derive(Debug)]
#[must_use = "nothing is asked for before it is awaited"]
pub struct Detached<W>(Acquire<W>);

impl<W: Send + 'static> IntoFuture for Detached<W> {
    type Output = Result<Grant, Error<AcquireKind>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let acquire = self.0.choose_anyway();
        Box::pin(async move {
            let (grant, _) = acquire.grant().await?;
            Ok(grant)
        })
    }
}

impl Grant {
    /// Reads the answer to an acquire that asked for so long a time.
    pub(crate) fn read(loaded: &Loaded, asked: Option<Duration>) -> Result<Self, Failed> {
        let reply: AcquireReply = loaded.json()?;
        let told = (reply.ttl_ms, reply.expires_at_unix_ms);
        let time = granted(&loaded.head, told, reply.expires_at_unix, asked)?;
        let context = LeaseContext {
            namespace: Some(reply.namespace),
            key: reply.key,
            lease_id: reply.lease_id,
            txn_id: Some(reply.txn_id).filter(|txn_id| !txn_id.is_empty()),
            token: Some(reply.fencing_token),
        };
        Ok(Self {
            context,
            owner: reply.owner,
            version: reply.version,
            etag: reply.state_etag,
            ttl: time.ttl,
            expires_at_unix: reply.expires_at_unix,
            expires_at_unix_ms: time.expires_at_unix_ms,
            correlation_id: reply.correlation_id,
        })
    }
}
