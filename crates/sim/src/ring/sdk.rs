//! The SDK over a real connection to a real listener; only time is manual. What the SDK has no
//! words for (a lease by its id alone, a removal that releases) goes over a plain connection.

use std::sync::Arc;
use std::time::Duration;

use lockd_client::{Client, Error, LeaseContext, RawLease, Source};
use lockd_core::time::{BootId, Span, UnixMillis};
use lockd_server::clock::{Clock, ManualClock};
use lockd_server::ids::Ids;
use lockd_server::{Parts, Server, Settings};
use lockd_store::{MemStore, Store};
use lockd_wire::state::Metadata;
use tokio::runtime::Runtime;

use super::START;
use crate::answer::{Answer, Document, Entry, Refused};
use crate::call::{Acquire, Ask, Held, Release, Then, What, Write};
use crate::case::Ring;
use crate::link::Link;
use crate::security::Security;
use crate::wire;

/// The SDK and the server it talks to.
pub struct SdkRing {
    store: Arc<dyn Store>,
    clock: ManualClock,
    boot: u128,
    starts: u64,
    security: Security,
    process: Option<Process>,
}

struct Process {
    runtime: Runtime,
    client: Client,
    link: Link,
    _server: Server,
}

impl SdkRing {
    /// # Errors
    /// When the server does not start.
    pub fn new(security: Security) -> Result<Self, String> {
        let store: Arc<dyn Store> = Arc::new(MemStore::new());
        let clock = ManualClock::at(START);
        let mut ring = Self { store, clock, boot: 1, starts: 0, security, process: None };
        ring.start()?;
        Ok(ring)
    }

    fn start(&mut self) -> Result<(), String> {
        self.process = None;
        self.starts += 1;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let seed = self.starts;
        let parts = Parts {
            clock: Arc::new(self.clock.clone()),
            ids: Arc::new(move || Ids::seeded(seed)),
            store: Some(Arc::clone(&self.store)),
        };
        let mut settings = Settings::embedded_defaults();
        self.security.set(&mut settings);
        let opening = async {
            let server = Server::with_parts(settings, parts).await?;
            let bound = server.start().await?;
            Ok((server, bound))
        };
        let opened = runtime.block_on(opening);
        let (server, bound) =
            opened.map_err(|error: lockd_server::StartError| error.to_string())?;
        let address = bound.first().ok_or("no address")?.to_string();
        let bundle = self.security.bundle()?;
        let link = Link::new(address.clone(), bundle.as_ref())?;
        let mut client = Client::builder().endpoint(&address).attempts(1);
        if let Some(bundle) = bundle {
            client = client.bundle(bundle);
        }
        let client = client.build().map_err(|error| error.to_string())?;
        self.process = Some(Process { runtime, client, link, _server: server });
        Ok(())
    }
}

impl Ring for SdkRing {
    fn name(&self) -> &'static str {
        "SDK"
    }

    fn ask(&mut self, ask: &Ask) -> Answer {
        let Some(process) = &self.process else {
            return broken("the server did not start".into());
        };
        let now = self.clock.now().wall.0;
        process.runtime.block_on(async {
            match said(&process.client, ask, now).await {
                Some(answer) => answer,
                None => process.link.ask(ask, Some(now)).await.unwrap_or_else(broken),
            }
        })
    }

    fn advance(&mut self, ms: u64) {
        self.clock.advance(Span(ms));
    }

    fn step_wall(&mut self, by_ms: i64) {
        let wall = self.clock.now().wall.0.saturating_add_signed(by_ms);
        self.clock.set_wall(UnixMillis(wall));
    }

    fn restart(&mut self, reboot: bool) {
        self.process = None;
        self.boot += u128::from(reboot);
        self.clock.restart(BootId(self.boot));
        if let Err(error) = self.start() {
            // Every further answer tells so.
            drop(error);
        }
    }
}

fn broken(detail: String) -> Answer {
    Answer::Refused(Refused { detail, unknown: true, ..Refused::code("broken") })
}

fn refused<K>(error: &Error<K>) -> Answer {
    Answer::Refused(Refused {
        code: error.code().unwrap_or("no_code").to_owned(),
        detail: error.detail(),
        version: error.current_version(),
        token: error.current_token(),
        unknown: error.outcome_unknown(),
    })
}

fn heard<T, K>(outcome: Result<T, Error<K>>, say: impl FnOnce(T) -> Answer) -> Answer {
    match outcome {
        Ok(answer) => say(answer),
        Err(error) => refused(&error),
    }
}

/// The SDK's answer; `None` when it has no words for this.
async fn said(client: &Client, ask: &Ask, now: u64) -> Option<Answer> {
    Some(match ask {
        Ask::Acquire(acquire) => acquired(client, acquire).await,
        Ask::Keepalive { key, held, ttl_ms } => {
            let ttl = ttl_ms.map(Duration::from_millis);
            heard(raw(client, key.as_deref(), held).keepalive(ttl).await, |renewed| {
                Answer::Renewed { ttl_ms: ms(renewed.ttl) }
            })
        }
        Ask::Write(write) => return written(client, write).await,
        Ask::Release(release) => released(client, release).await,
        Ask::Get { key } => heard(client.get(key).await, shown),
        Ask::View { key, held } => {
            let lease = raw(client, Some(key.as_deref()?), held);
            heard(lease.get().await, shown)
        }
        Ask::Describe { key } => heard(client.describe(None, key).await, |reply| {
            Answer::Described(wire::described(reply, Some(now)))
        }),
        // The SDK does not tell the version of a key without a document.
        Ask::Read { keys } => {
            let entries = match client.read_many(keys).await {
                Ok(entries) => entries,
                Err(error) => return Some(refused(&error)),
            };
            if entries.iter().any(|entry| entry.document.is_none()) {
                return None;
            }
            Answer::Entries(entries.into_iter().filter_map(entry).collect())
        }
        Ask::Revoke { key, reason } => heard(client.revoke(None, key, reason).await, |reply| {
            let owner = if reply.revoked { Some(reply.owner.unwrap_or_default()) } else { None };
            Answer::Revoked { owner, token: reply.fencing_token }
        }),
    })
}

fn raw(client: &Client, key: Option<&str>, held: &Held) -> RawLease {
    client.raw(LeaseContext {
        namespace: None,
        key: key.unwrap_or_default().to_owned(),
        lease_id: held.lease_id.clone(),
        txn_id: key.map(|_| held.txn_id.clone()),
        token: key.map(|_| held.token),
    })
}

async fn acquired(client: &Client, ask: &Acquire) -> Answer {
    let mut acquire = client.lease(&ask.key).no_wait().owner(&ask.owner);
    if let Some(ttl) = ask.ttl_ms {
        acquire = acquire.ttl(Duration::from_millis(ttl));
    }
    if ask.if_not_exists {
        acquire = acquire.if_not_exists();
    }
    if let Some(txn) = &ask.txn {
        acquire = acquire.txn(txn);
    }
    if let Some(idem) = &ask.idem {
        acquire = acquire.idempotency_key(idem);
    }
    heard(acquire.detached().await, |grant| Answer::Granted {
        held: Held {
            lease_id: grant.context.lease_id,
            txn_id: grant.context.txn_id.unwrap_or_default(),
            token: grant.context.token.unwrap_or_default(),
        },
        version: grant.version,
        etag: grant.etag,
        ttl_ms: ms(grant.ttl),
    })
}

async fn released(client: &Client, ask: &Release) -> Answer {
    let lease = raw(client, ask.key.as_deref(), &ask.held);
    let mut release = if ask.rollback { lease.rollback() } else { lease.release() };
    for fence in &ask.fences {
        release = release.fence(&fence.name, fence.token);
    }
    if let Some(idem) = &ask.idem {
        release = release.idempotency_key(idem);
    }
    heard(release.await, |()| Answer::Released)
}

macro_rules! with_options {
    ($write:expr, $ask:expr) => {{
        let mut write = $write;
        if let Some(version) = $ask.if_version {
            write = write.if_version(version);
        }
        if let Some(etag) = &$ask.if_etag {
            write = write.if_etag(etag);
        }
        for fence in &$ask.fences {
            write = write.fence(&fence.name, fence.token);
        }
        if let Some(idem) = &$ask.idem {
            write = write.idempotency_key(idem);
        }
        if $ask.then == Then::Commit {
            write = write.then_commit();
        }
        write
    }};
}

async fn written(client: &Client, ask: &Write) -> Option<Answer> {
    let lease = raw(client, Some(ask.key.as_deref()?), &ask.held);
    let document = matches!(ask.what, What::Document(_));
    if ask.then == Then::Release && !document {
        return None;
    }
    let updated = |updated: lockd_client::Updated| Answer::Written {
        version: updated.version,
        etag: Some(updated.etag),
        bytes: updated.bytes,
        hidden: updated.hidden.unwrap_or(false),
    };
    Some(match &ask.what {
        What::Document(text) => {
            let text = text.as_bytes().to_vec();
            let source = if ask.streamed {
                Source::reopen(move || std::future::ready(Ok(std::io::Cursor::new(text.clone()))))
            } else {
                Source::bytes(text)
            };
            let update = match ask.then {
                Then::Release => lease.finish_stream(source),
                Then::Stage | Then::Commit => lease.update_stream(source),
            };
            let mut update = with_options!(update, ask);
            if let Some(hidden) = ask.hidden {
                update = update.hidden(hidden);
            }
            heard(update.await, updated)
        }
        What::Mutate(expressions) => {
            heard(with_options!(lease.mutate(expressions.iter().cloned()), ask).await, updated)
        }
        What::Remove => heard(with_options!(lease.remove(), ask).await, |removed| {
            Answer::Removed { version: removed.version.filter(|_| removed.removed) }
        }),
        What::Metadata => {
            let metadata = Metadata { query_hidden: ask.hidden };
            heard(with_options!(lease.metadata(metadata), ask).await, |reply| Answer::Marked {
                version: reply.version,
                hidden: reply.metadata.query_hidden.unwrap_or(false),
            })
        }
    })
}

fn shown(document: Option<lockd_client::Document>) -> Answer {
    Answer::Document(document.map(|document| Document {
        version: document.version,
        text: String::from_utf8_lossy(&document.bytes).into(),
    }))
}

fn entry(entry: lockd_client::Entry) -> Option<Entry> {
    let document = entry.document?;
    let text = String::from_utf8_lossy(&document.bytes).into();
    Some(Entry { key: entry.key, version: document.version, text: Some(text) })
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
