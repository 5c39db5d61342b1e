//! The port over an object store: a record is an object that is only ever replaced by a conditional
//! PUT, a blob is an object that is written once. Any number of servers may share one bucket: the
//! store decides every race. What a server remembers about an object is a guess until the store has
//! confirmed it, by a conditional GET or by taking a conditional PUT.

mod blob;
mod envelope;
mod location;
mod names;
mod open;
mod probe;
mod reach;
mod swap;
mod tidy;

mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, UpdateVersion};
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use crate::port::{
    Abilities, BlobReader, BlobWriter, Gauges, Name, Op, Page, Revision, Store, StoreError, Stored,
};
use crate::time::StoreTime;
use envelope::Envelope;
use names::Prefix;
use open::Bucket;
use reach::{Operation, Reach};
use wire::{Line, tick_ms};

pub use location::{BadLocation, Location, Service};
pub use open::{Credentials, Encryption, ObjectOptions};
pub use probe::{Check, Outcome, Report, Thoroughness, policy};

/// Where records, blobs and notes about uploads are under the store's prefix.
const RECORDS: &str = "records";
const BLOBS: &str = "blobs";
const UPLOADS: &str = "uploads";

/// Objects that one page of a listing names at most.
const LIST_MAX: usize = 1_000;
/// Records that a scan reads at a time.
const READ_AHEAD: usize = 32;
/// The first pause before something is tried again, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A store that is not asked anything is asked this often, for its time and whether it is there.
const PULSE: Duration = Duration::from_secs(10);
/// A store that does not answer so simple a question for so long does not answer at all.
const PULSE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is considered whether the store is there.
const JUDGE_EVERY: Duration = Duration::from_millis(250);

/// A lockd store in a bucket.
pub struct ObjectStore {
    shared: Arc<Shared>,
}

struct Shared {
    bucket: Arc<dyn Bucket>,
    line: Arc<Line>,
    prefix: Prefix,
    known: Cache<Name, Known, ByBytes>,
    timeout: Duration,
    patience: Duration,
    part_bytes: usize,
    /// Bounds the parts that all uploads together have on their way.
    part_turns: Arc<Semaphore>,
    commits: AtomicU64,
    reach: Reach,
    closed: AtomicBool,
    /// How far the search for old tombstones has come.
    tidied: [Mutex<Option<String>>; tidy::UNIQUE.len()],
}

/// An object as it was last seen here.
#[derive(Clone, Debug)]
struct Known {
    version: UpdateVersion,
    envelope: Arc<Envelope>,
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Name, Known> for ByBytes {
    fn weight(&self, name: &Name, known: &Known) -> u64 {
        (name.len() + known.envelope.weight() + 256) as u64
    }
}

impl Known {
    fn is_version(&self, other: &UpdateVersion) -> bool {
        match (&self.version.e_tag, &other.e_tag) {
            (Some(one), Some(other)) => one == other,
            _ => self.version.version == other.version,
        }
    }
}

/// What an error of the client says about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    NotFound,
    NotModified,
    /// A condition did not hold, or something else was under way.
    Lost,
    /// A right is missing, and nothing was done.
    Refused,
    /// The store does not do such a thing, and nothing was done.
    Rejected,
    /// It may have been done.
    Unclear,
}

fn fault(error: &object_store::Error) -> Fault {
    use object_store::Error as E;
    match error {
        E::NotFound { .. } => Fault::NotFound,
        E::NotModified { .. } => Fault::NotModified,
        E::AlreadyExists { .. } | E::Precondition { .. } => Fault::Lost,
        E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. } => Fault::Refused,
        E::Generic { .. } | E::JoinError { .. } | E::UnknownConfigurationKey { .. } | _ => {
            by_status(&error.to_string())
        }
    }
}

/// For errors that have their status only in words.
fn by_status(why: &str) -> Fault {
    match status(why) {
        Some(401 | 403) => Fault::Refused,
        // These ask for another try, and S3 calls it a 400 when a body was too slow.
        Some(408 | 409 | 425 | 429) => Fault::Unclear,
        Some(400) if why.contains("RequestTimeout") => Fault::Unclear,
        Some(400..=499 | 501) => Fault::Rejected,
        Some(_) | None => Fault::Unclear,
    }
}

/// The status that an error of the client names.
fn status(why: &str) -> Option<u16> {
    let (_, rest) = why.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Pauses that grow, and an end to them.
struct Patience<'a> {
    reach: &'a Reach,
    until: tokio::time::Instant,
    pause: Duration,
}

impl Patience<'_> {
    /// Waits a little; `false` when it has been tried long enough, or the store is away.
    async fn wait(&mut self) -> bool {
        if tokio::time::Instant::now() >= self.until {
            return false;
        }
        let pause = self.pause.mul_f64(rand::random_range(0.5..1.0));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        tokio::select! {
            biased;
            () = self.reach.gone() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }
}

impl ObjectStore {
    /// Connects, without asking the store anything yet.
    ///
    /// # Errors
    /// When the options contradict each other or credentials are malformed.
    pub fn open(options: &ObjectOptions) -> Result<Self, StoreError> {
        let line = Line::new(&options.location.bucket, options.longest_lease);
        let bucket = options.connect(&line).map_err(unavailable)?;
        let shared = Arc::new(Shared {
            bucket,
            line,
            prefix: Prefix::new(&options.location.prefix),
            known: Cache::with_weighter(10_000, options.cache_bytes.max(1 << 20), ByBytes),
            timeout: options.timeout,
            patience: options.patience,
            part_bytes: options.part_bytes,
            part_turns: Arc::new(Semaphore::new(blob::PARTS_AT_ONCE_ALL)),
            commits: AtomicU64::new(0),
            reach: Reach::new(options.location.to_string()),
            closed: AtomicBool::new(false),
            tidied: Default::default(),
        });
        Ok(Self { shared })
    }

    /// The store's clock.
    #[must_use]
    pub fn time(&self) -> Arc<StoreTime> {
        Arc::clone(&self.shared.line.time)
    }

    /// How many requests were sent to the store.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.shared.line.requests.load(Ordering::Relaxed)
    }

    /// Finds out whether the store is there, until it is closed: asks it now and then while no
    /// request does, and more often while requests fail or wait.
    pub async fn pulse(&self) {
        let shared = Arc::clone(&self.shared);
        let path = shared.prefix.path(RECORDS, "pulse");
        let pulse_ms = i64::try_from(PULSE.as_millis()).unwrap_or(i64::MAX);
        while !shared.closed.load(Ordering::Relaxed) {
            if shared.reach.is_in_doubt(pulse_ms) {
                let begun = tick_ms();
                let head = object_store::ObjectStoreExt::head(&*shared.bucket, &path);
                let asked = tokio::time::timeout(PULSE_TIMEOUT.min(shared.timeout), head).await;
                let fault = match asked {
                    Ok(answer) => answer.err().map(|error| fault(&error)),
                    Err(_) => Some(Fault::Unclear),
                };
                shared.reach.note(Operation::Read, fault, begun);
            }
            shared.reach.judge();
            tokio::time::sleep(JUDGE_EVERY).await;
        }
    }
}

fn unavailable(error: impl std::fmt::Display) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".into())
}

impl Shared {
    fn record_path(&self, name: &str) -> Path {
        self.prefix.path(RECORDS, name)
    }

    fn patience(&self) -> Patience<'_> {
        Patience {
            reach: &self.reach,
            until: tokio::time::Instant::now() + self.patience,
            pause: PAUSE_MIN,
        }
    }

    /// Whether it makes sense to ask the store anything.
    fn open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(closed());
        }
        match self.reach.why() {
            Some(why) if self.reach.is_away() => Err(StoreError::Unavailable(why)),
            Some(_) | None => Ok(()),
        }
    }

    /// One request, within its time.
    async fn ask<T>(
        &self,
        operation: Operation,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, (Fault, String)> {
        self.ask_within(self.timeout, operation, request).await
    }

    /// Ends without an answer when the store is away, which others may find out meanwhile.
    async fn ask_within<T>(
        &self,
        time: Duration,
        operation: Operation,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, (Fault, String)> {
        let begun = tick_ms();
        let waiting = self.reach.begin();
        let outcome = tokio::select! {
            biased;
            done = tokio::time::timeout(time, request) => match done {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(error)) => Err((fault(&error), error.to_string())),
                Err(_) => Err((Fault::Unclear, format!("no answer within {time:?}"))),
            },
            () = self.reach.gone() => {
                return Err((Fault::Unclear, "the store is away".to_owned()));
            }
        };
        drop(waiting);
        self.reach.note(operation, outcome.as_ref().err().map(|(fault, _)| *fault), begun);
        outcome
    }

    /// An object, or `None`; the one that is known when it has not changed.
    async fn read_once(
        &self,
        path: &Path,
        known: Option<&Known>,
    ) -> Result<Option<Known>, (Fault, String)> {
        let if_none_match = known.and_then(|known| known.version.e_tag.clone());
        let options = GetOptions { if_none_match, ..GetOptions::default() };
        let read = async {
            let got = self.bucket.get_opts(path, options).await?;
            let version =
                UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
            Ok((got.bytes().await?, version))
        };
        match self.ask(Operation::Read, read).await {
            Ok((bytes, version)) => {
                let Some(envelope) = Envelope::decode(&bytes) else {
                    return Err((Fault::Refused, format!("the object {path} is damaged")));
                };
                Ok(Some(Known { version, envelope: Arc::new(envelope) }))
            }
            Err((Fault::NotFound, _)) => Ok(None),
            Err((Fault::NotModified, _)) => Ok(known.cloned()),
            Err(failed) => Err(failed),
        }
    }

    /// As [`Shared::read_once`], tried again while the store does not answer.
    async fn read(&self, path: &Path, known: Option<&Known>) -> Result<Option<Known>, StoreError> {
        let mut patience = self.patience();
        loop {
            match self.read_once(path, known).await {
                Ok(found) => return Ok(found),
                Err((Fault::Refused, why)) if why.ends_with("is damaged") => {
                    return Err(StoreError::Damaged(why));
                }
                Err((Fault::Refused | Fault::Rejected, why)) => {
                    return Err(StoreError::Unavailable(why));
                }
                Err((_, why)) => {
                    if !patience.wait().await {
                        return Err(StoreError::Unavailable(why));
                    }
                }
            }
        }
    }

    /// What the store has under a name now, remembered.
    async fn look(&self, name: &Name) -> Result<Option<Known>, StoreError> {
        let known = self.known.get(name);
        let found = self.read(&self.record_path(name), known.as_ref()).await?;
        match &found {
            Some(found) => self.known.insert(Arc::clone(name), found.clone()),
            None => {
                self.known.remove(name);
            }
        }
        Ok(found)
    }

    /// Names of objects in order, each greater than `after`, until `take` has seen enough.
    async fn list(
        &self,
        area: &str,
        prefix: &str,
        after: Option<&str>,
        mut take: impl FnMut(ObjectMeta) -> bool + Send,
    ) -> Result<(), StoreError> {
        let prefix = self.prefix.key(area, prefix);
        let after = after.map(|after| self.prefix.key(area, after));
        let mut page_token = None;
        loop {
            let options = PaginatedListOptions {
                offset: after.clone(),
                max_keys: Some(LIST_MAX),
                page_token: page_token.take(),
                ..PaginatedListOptions::default()
            };
            let page = self.list_page(&prefix, options).await?;
            for object in page.result.objects {
                // Not every service begins where it is told to.
                let is_later =
                    after.as_deref().is_none_or(|after| object.location.as_ref() > after);
                if is_later && !take(object) {
                    return Ok(());
                }
            }
            page_token = page.page_token;
            if page_token.is_none() {
                return Ok(());
            }
        }
    }

    async fn list_page(
        &self,
        prefix: &str,
        options: PaginatedListOptions,
    ) -> Result<object_store::list::PaginatedListResult, StoreError> {
        let mut patience = self.patience();
        loop {
            let page = self.bucket.list_paginated(Some(prefix), options.clone());
            let asked = self.ask(Operation::List, page).await;
            match asked {
                Ok(page) => return Ok(page),
                Err((Fault::Refused | Fault::Rejected, why)) => {
                    return Err(StoreError::Unavailable(why));
                }
                Err((_, why)) => {
                    if !patience.wait().await {
                        return Err(StoreError::Unavailable(why));
                    }
                }
            }
        }
    }

    /// Removes an object; none there is fine.
    async fn remove(&self, path: &Path) -> Result<(), StoreError> {
        let mut patience = self.patience();
        loop {
            let delete = object_store::ObjectStoreExt::delete(&*self.bucket, path);
            let asked = self.ask(Operation::Delete, delete).await;
            match asked {
                Ok(()) | Err((Fault::NotFound, _)) => return Ok(()),
                Err((Fault::Refused | Fault::Rejected, why)) => {
                    return Err(StoreError::Unavailable(why));
                }
                Err((_, why)) => {
                    if !patience.wait().await {
                        return Err(StoreError::Unknown(why));
                    }
                }
            }
        }
    }

    async fn list_names(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Name>, StoreError> {
        let mut names: Vec<Name> = Vec::new();
        if limit > 0 {
            self.list(RECORDS, prefix, after, |object| {
                if let Some(name) = self.prefix.name(RECORDS, object.location.as_ref()) {
                    names.push(name.into());
                }
                names.len() < limit
            })
            .await?;
        }
        Ok(names)
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, StoreError> {
        let mut page = Page::new();
        let mut after = after.map(str::to_owned);
        let may_be_one = !prefix.is_empty() && !prefix.ends_with(['/', '!']);
        if may_be_one && after.as_deref().is_none_or(|after| after < prefix) {
            // Azure's client leaves out the object that is called like the prefix itself.
            let name = Name::from(prefix);
            let found = self.look(&name).await?.and_then(|found| found.envelope.stored());
            page.extend(found.map(|stored| (name, stored)));
            after = Some(prefix.to_owned());
        }
        while page.len() < limit {
            let wanted = limit - page.len();
            let names = self.list_names(prefix, after.as_deref(), wanted).await?;
            let Some(last) = names.last() else { break };
            after = Some(last.to_string());
            let is_end = names.len() < wanted;
            let found: Vec<Option<(Name, Stored)>> = stream::iter(names)
                .map(|name| async move {
                    let found = self.look(&name).await?;
                    let stored = found.and_then(|found| found.envelope.stored());
                    Ok::<_, StoreError>(stored.map(|stored| (name, stored)))
                })
                .buffered(READ_AHEAD)
                .try_collect()
                .await?;
            page.extend(found.into_iter().flatten());
            if is_end {
                break;
            }
        }
        Ok(page)
    }
}

impl Store for ObjectStore {
    fn abilities(&self) -> Abilities {
        Abilities { atomic_batch: false, snapshot: false, shared: true, watch: false }
    }

    fn load(&self, name: &Name) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        let name = Arc::clone(name);
        Box::pin(async move {
            self.shared.open()?;
            Ok(self.shared.look(&name).await?.and_then(|found| found.envelope.stored()))
        })
    }

    fn recall(&self, name: &Name) -> Option<Option<Stored>> {
        self.shared.known.get(name).map(|known| known.envelope.stored())
    }

    fn load_many(&self, names: &[Name]) -> BoxFuture<'_, Result<Vec<Option<Stored>>, StoreError>> {
        let names = names.to_vec();
        Box::pin(async move {
            let loads = names.into_iter().map(|name| async move { self.load(&name).await });
            stream::iter(loads).buffered(READ_AHEAD).try_collect().await
        })
    }

    fn scan(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Page, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        Box::pin(async move {
            self.shared.open()?;
            self.shared.scan(&prefix, after.as_deref(), limit).await
        })
    }

    fn scan_names(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Name>, StoreError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        Box::pin(async move {
            self.shared.open()?;
            self.shared.list_names(&prefix, after.as_deref(), limit).await
        })
    }

    fn commit(&self, mut ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<Revision>, StoreError>> {
        Box::pin(async move {
            self.shared.open()?;
            let Some(op) = ops.pop() else { return Ok(Vec::new()) };
            if !ops.is_empty() {
                let why = "an object store writes one record at a time";
                return Err(StoreError::Unavailable(why.into()));
            }
            let revision = self.shared.write(op).await?;
            self.shared.commits.fetch_add(1, Ordering::Relaxed);
            Ok(vec![revision])
        })
    }

    fn put_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobWriter>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.shared.open()?;
            blob::put(&self.shared, &name).await
        })
    }

    fn get_blob(&self, name: &str) -> BoxFuture<'_, Result<Box<dyn BlobReader>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.shared.open()?;
            blob::get(&self.shared, &name).await
        })
    }

    fn delete_blob(&self, name: &str) -> BoxFuture<'_, Result<(), StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.shared.open()?;
            blob::delete(&self.shared, &name).await
        })
    }

    fn list_blobs(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<String>, StoreError>> {
        let after = after.map(str::to_owned);
        Box::pin(async move {
            self.shared.open()?;
            blob::list(&self.shared, after.as_deref(), limit).await
        })
    }

    fn time(&self) -> Option<Arc<StoreTime>> {
        Some(self.time())
    }

    fn tidy(&self) -> BoxFuture<'_, Result<usize, StoreError>> {
        Box::pin(async move {
            self.shared.open()?;
            tidy::tombstones(&self.shared).await
        })
    }

    fn health(&self) -> Result<(), StoreError> {
        self.shared.open()?;
        if let Some(why) = self.shared.reach.why() {
            return Err(StoreError::Unavailable(why));
        }
        let time = self.shared.line.time.check(tick_ms());
        time.map(drop).map_err(|unknown| StoreError::Unavailable(unknown.to_string()))
    }

    fn gauges(&self) -> Gauges {
        let commits = self.shared.commits.load(Ordering::Relaxed);
        Gauges { batches: commits, commits, ..Gauges::default() }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.shared.closed.store(true, Ordering::Relaxed);
        Box::pin(async {})
    }
}

/// Bytes that are put at once.
fn payload(bytes: Bytes) -> object_store::PutPayload {
    object_store::PutPayload::from_bytes(bytes)
}

#[cfg(test)]
mod tests;
