//! Finds out whether a store keeps the promises that everything rests on, before anything is
//! trusted to it. A store may answer every condition rightly when asked one at a time and still let
//! two of many racers win: so many race, for several rounds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};
use parking_lot::Mutex;

use super::location::Service;
use super::open::{Encryption, ObjectOptions};
use super::reach::Operation;
use super::{Fault, ObjectStore, Shared, payload, status, tick_ms};
use crate::port::StoreError;

pub(super) const AREA: &str = "probe";

/// How much is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thoroughness {
    pub rounds: usize,
    pub racers: usize,
}

impl Thoroughness {
    /// At every start.
    pub const START: Self = Self { rounds: 3, racers: 12 };
    /// When asked to verify.
    pub const FULL: Self = Self { rounds: 10, racers: 24 };
}

/// One thing that was tried.
#[derive(Clone, Debug)]
pub struct Check {
    pub name: &'static str,
    pub outcome: Outcome,
    pub took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// The store does not do what it must.
    Failed(String),
    /// We may not do this.
    Denied(String),
    /// The store did not say.
    NoAnswer(String),
    /// It could not be tried, because of what failed before.
    Skipped,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub checks: Vec<Check>,
    /// How far the store's clock is ahead of this machine's, and how exactly that is known.
    pub clock: Option<(i64, u64)>,
    /// Objects of the probe that could not be removed.
    pub left: Vec<String>,
}

impl Report {
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.outcome == Outcome::Passed)
    }

    /// Whether something is missing that rights would grant.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.checks.iter().any(|check| matches!(check.outcome, Outcome::Denied(_)))
    }

    /// What failed first, in a sentence.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.checks.iter().find_map(|check| match &check.outcome {
            Outcome::Failed(why) => Some(format!("{}: {why}", check.name)),
            Outcome::Denied(why) => Some(format!("{}: denied: {why}", check.name)),
            Outcome::NoAnswer(why) => Some(format!("{}: no answer: {why}", check.name)),
            Outcome::Passed | Outcome::Skipped => None,
        })
    }

    /// Whether nothing can be said about the store.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        self.checks.iter().any(|check| matches!(check.outcome, Outcome::NoAnswer(_)))
    }
}

impl ObjectStore {
    /// Tries everything on objects of its own and removes them again. What the store does not
    /// answer is asked again for a while: that is not what it is judged by.
    pub async fn probe(&self, how: Thoroughness) -> Report {
        let id = format!("{:032x}", rand::random::<u128>());
        let probe = Probe { shared: &self.shared, id, how, made: Mutex::default() };
        let mut report = Report::default();
        for step in STEPS {
            #[expect(clippy::disallowed_methods, reason = "a measurement decides nothing")]
            let start = Instant::now();
            let race = matches!(step, Step::RaceCreate | Step::RaceReplace);
            let skip = (race && !report.passed()) || report.is_unanswered();
            let outcome = if skip { Outcome::Skipped } else { probe.tried(step).await };
            report.checks.push(Check { name: step.name(), outcome, took: start.elapsed() });
        }
        report.left = probe.clean().await;
        report.clock = self.shared.line.time.now(tick_ms()).map(|now| {
            #[expect(clippy::disallowed_methods, reason = "shown beside the store's, no more")]
            let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let wall = wall.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(0));
            (i64::try_from(now.unix_ms).unwrap_or(0) - wall, now.bound_ms)
        });
        report
    }

    /// Refuses a store that cannot keep the promises.
    ///
    /// # Errors
    /// With what was found, when anything was.
    pub async fn verify(&self, how: Thoroughness) -> Result<Report, StoreError> {
        let report = self.probe(how).await;
        match report.why() {
            None => Ok(report),
            Some(why) => Err(StoreError::Unavailable(why)),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    List,
    Write,
    Read,
    Create,
    Replace,
    Changed,
    RaceCreate,
    RaceReplace,
    Time,
    Delete,
}

const STEPS: [Step; 10] = [
    Step::List,
    Step::Write,
    Step::Read,
    Step::Create,
    Step::Replace,
    Step::Changed,
    Step::RaceCreate,
    Step::RaceReplace,
    Step::Time,
    Step::Delete,
];

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Write => "write",
            Self::Read => "read",
            Self::Create => "create only if absent",
            Self::Replace => "replace only if unchanged",
            Self::Changed => "read only if changed",
            Self::RaceCreate => "one winner of many that create",
            Self::RaceReplace => "one winner of many that replace",
            Self::Time => "tell the time",
            Self::Delete => "delete",
        }
    }
}

/// Why a check did not pass.
enum Trouble {
    /// The store does not do what it must.
    Broken(String),
    /// What became of a request.
    Asked(Fault, String),
}

impl From<(Fault, String)> for Trouble {
    fn from((fault, why): (Fault, String)) -> Self {
        Self::Asked(fault, why)
    }
}

type Tried = Result<(), Trouble>;

fn broken(why: impl Into<String>) -> Trouble {
    Trouble::Broken(why.into())
}

struct Probe<'a> {
    shared: &'a Arc<Shared>,
    id: String,
    how: Thoroughness,
    /// What was written, or may have been. Lists may be late, or denied.
    made: Mutex<BTreeSet<Path>>,
}

/// An answer that is clear and not the one that it must be is waited out this often: a store may
/// refuse what comes at the same time as something else.
const CLEAR_ANSWERS_MAX: usize = 3;
/// What is removed at a time, how often that is tried, and how long it may take in all.
const CLEAN_AT_ONCE: usize = 16;
const CLEAN_TRIES: usize = 3;
const CLEAN_TIME: Duration = Duration::from_secs(10);

impl Probe<'_> {
    async fn tried(&self, step: Step) -> Outcome {
        let mut patience = self.shared.patience();
        let mut clear = 0;
        for number in 0_usize.. {
            let attempt = Attempt { probe: self, under: format!("{}/{number}-{step:?}", self.id) };
            let tried = match step {
                Step::List => attempt.list().await,
                Step::Write => attempt.write().await,
                Step::Read => attempt.read().await,
                Step::Create => attempt.create().await,
                Step::Replace => attempt.replace().await,
                Step::Changed => attempt.changed().await,
                Step::RaceCreate => attempt.race_create().await,
                Step::RaceReplace => attempt.race_replace().await,
                Step::Time => attempt.time().await,
                Step::Delete => attempt.delete().await,
            };
            match tried {
                Ok(()) => return Outcome::Passed,
                Err(Trouble::Broken(why)) => return Outcome::Failed(why),
                Err(Trouble::Asked(Fault::Refused, why)) => return Outcome::Denied(why),
                Err(Trouble::Asked(Fault::Rejected, why)) => {
                    return not_done(Fault::Rejected, &why);
                }
                Err(Trouble::Asked(
                    fault @ (Fault::Lost | Fault::NotFound | Fault::NotModified),
                    why,
                )) => {
                    clear += 1;
                    if clear == CLEAR_ANSWERS_MAX || !patience.wait().await {
                        return not_done(fault, &why);
                    }
                }
                Err(Trouble::Asked(Fault::Unclear, why)) => {
                    if !patience.wait().await {
                        return Outcome::NoAnswer(why);
                    }
                }
            }
        }
        Outcome::Skipped
    }

    /// Removes everything that was made; the names of what is left.
    async fn clean(&self) -> Vec<String> {
        let made: Vec<Path> = self.made.lock().iter().cloned().collect();
        let cleaning = stream::iter(made)
            .map(|path| async move {
                for _ in 0..CLEAN_TRIES {
                    match self.remove(&path).await {
                        Ok(()) => break,
                        Err((Fault::Unclear, _)) => {}
                        Err(_) => break,
                    }
                }
            })
            .buffer_unordered(CLEAN_AT_ONCE)
            .collect::<()>();
        let _all_or_what_time_allows = tokio::time::timeout(CLEAN_TIME, cleaning).await.is_ok();
        self.made.lock().iter().map(ToString::to_string).collect()
    }

    async fn remove(&self, path: &Path) -> Result<(), (Fault, String)> {
        match self.shared.ask(Operation::Delete, self.shared.bucket.delete(path)).await {
            Ok(()) | Err((Fault::NotFound, _)) => {
                self.made.lock().remove(path);
                Ok(())
            }
            Err(other) => Err(other),
        }
    }
}

/// The store has answered, and it was not the answer that it must give.
fn not_done(fault: Fault, why: &str) -> Outcome {
    let what = match fault {
        Fault::Lost => "refused what it must do, as if a condition did not hold",
        Fault::NotFound => "did not find what was there",
        Fault::NotModified => "called unchanged what had changed",
        Fault::Rejected | Fault::Refused | Fault::Unclear => "refused what it must do",
    };
    let status = status(why).map_or_else(String::new, |status| format!(" ({status})"));
    Outcome::Failed(format!("the store {what}{status}: {why}"))
}

/// One attempt at one check, with objects of its own.
struct Attempt<'a> {
    probe: &'a Probe<'a>,
    under: String,
}

impl Attempt<'_> {
    fn shared(&self) -> &Shared {
        self.probe.shared
    }

    fn path(&self, name: &str) -> Path {
        self.shared().prefix.path(AREA, &format!("{}/{name}", self.under))
    }

    async fn put(
        &self,
        name: &str,
        text: &str,
        mode: PutMode,
    ) -> Result<UpdateVersion, (Fault, String)> {
        let options = PutOptions { mode, ..PutOptions::default() };
        // Never the same bytes twice: an ETag made of the content would be the same too.
        let body = Bytes::from(format!("{text} {:032x}", rand::random::<u128>()));
        let path = self.path(name);
        let put = self.shared().bucket.put_opts(&path, payload(body), options);
        let done = self.shared().ask(Operation::Write, put).await;
        if matches!(done, Ok(_) | Err((Fault::Unclear, _))) {
            self.probe.made.lock().insert(path);
        }
        Ok(done?.into())
    }

    async fn list(&self) -> Tried {
        let prefix = self.shared().prefix.key(AREA, &self.under);
        let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
        let page = self.shared().bucket.list_paginated(Some(&prefix), options);
        self.shared().ask(Operation::List, page).await?;
        Ok(())
    }

    async fn write(&self) -> Tried {
        let version = self.put("plain", "first", PutMode::Overwrite).await?;
        if version.e_tag.is_none() && version.version.is_none() {
            return Err(broken("a PUT is answered without an ETag"));
        }
        Ok(())
    }

    async fn read(&self) -> Tried {
        let sent = tick_ms();
        self.put("plain", "first", PutMode::Overwrite).await?;
        let written = tick_ms();
        let path = self.path("plain");
        let read = async {
            let got = self.shared().bucket.get_opts(&path, GetOptions::default()).await?;
            Ok((got.meta.last_modified.timestamp(), got.bytes().await?))
        };
        let (modified, body) = self.shared().ask(Operation::Read, read).await?;
        // The store itself has dated the write: a gateway whose clock is wrong contradicts it.
        self.shared().line.time.weigh(modified.saturating_mul(1_000), sent, written);
        if body.starts_with(b"first ") { Ok(()) } else { Err(broken("another body came back")) }
    }

    async fn create(&self) -> Tried {
        self.put("created", "first", PutMode::Create).await?;
        match self.put("created", "second", PutMode::Create).await {
            Err((Fault::Lost, _)) => Ok(()),
            Ok(_) => Err(broken("If-None-Match: * is ignored, an object was created twice")),
            Err(other) => Err(other.into()),
        }
    }

    async fn replace(&self) -> Tried {
        let first = self.put("replaced", "first", PutMode::Create).await?;
        let second = self.put("replaced", "second", PutMode::Update(first.clone())).await?;
        match self.put("replaced", "stale", PutMode::Update(first)).await {
            Err((Fault::Lost, _)) => {}
            Ok(_) => return Err(broken("If-Match is ignored, an old version was replaced")),
            Err(other) => return Err(other.into()),
        }
        match self.put("missing", "stale", PutMode::Update(second)).await {
            Err((Fault::Lost | Fault::NotFound, _)) => Ok(()),
            Ok(_) => Err(broken("If-Match is ignored for an object that is not there")),
            Err(other) => Err(other.into()),
        }
    }

    async fn changed(&self) -> Tried {
        let version = self.put("read", "first", PutMode::Overwrite).await?;
        let path = self.path("read");
        let get = |if_none_match: Option<String>| {
            let options = GetOptions { if_none_match, ..GetOptions::default() };
            self.shared().ask(Operation::Read, self.shared().bucket.get_opts(&path, options))
        };
        match get(version.e_tag.clone()).await {
            Err((Fault::NotModified, _)) | Ok(_) => {}
            Err(other) => return Err(other.into()),
        }
        self.put("read", "second", PutMode::Overwrite).await?;
        match get(version.e_tag).await {
            Ok(_) => Ok(()),
            Err((Fault::NotModified, _)) => Err(broken("a changed object is called unchanged")),
            Err(other) => Err(other.into()),
        }
    }

    async fn race_create(&self) -> Tried {
        let how = self.probe.how;
        for round in 0..how.rounds {
            let name = format!("race-{round}");
            let tries = (0..how.racers).map(|_| self.put(&name, "racer", PutMode::Create));
            one_winner(round, join_all(tries).await)?;
        }
        Ok(())
    }

    async fn race_replace(&self) -> Tried {
        let how = self.probe.how;
        let mut version = self.put("race", "start", PutMode::Create).await?;
        for round in 0..how.rounds {
            let mode = PutMode::Update(version);
            let tries = (0..how.racers).map(|_| self.put("race", "racer", mode.clone()));
            version = match one_winner(round, join_all(tries).await)? {
                Some(version) => version,
                None => self.put("race", "again", PutMode::Overwrite).await?,
            };
        }
        Ok(())
    }

    /// Every answer so far has told it.
    async fn time(&self) -> Tried {
        self.list().await?;
        match self.shared().line.time.check(tick_ms()) {
            Ok(_) => Ok(()),
            Err(unknown) => Err(broken(unknown.to_string())),
        }
    }

    async fn delete(&self) -> Tried {
        self.put("deleted", "first", PutMode::Overwrite).await?;
        let path = self.path("deleted");
        self.probe.remove(&path).await?;
        match self.shared().ask(Operation::Read, self.shared().bucket.head(&path)).await {
            Err((Fault::NotFound, _)) => Ok(()),
            Ok(_) => Err(broken("an object that was deleted is still there")),
            Err(other) => Err(other.into()),
        }
    }
}

/// At most one may win. None is possible too: a service may refuse all that come at the same time.
fn one_winner(
    round: usize,
    tries: Vec<Result<UpdateVersion, (Fault, String)>>,
) -> Result<Option<UpdateVersion>, Trouble> {
    let racers = tries.len();
    let mut winners = Vec::new();
    for tried in tries {
        match tried {
            Ok(version) => winners.push(version),
            Err((fault @ (Fault::Refused | Fault::Rejected), why)) => {
                return Err(Trouble::Asked(fault, why));
            }
            Err(_) => {}
        }
    }
    if winners.len() > 1 {
        return Err(broken(format!(
            "{} of {racers} writers won the same race (round {round}): the store checks the \
             condition and writes later, so two servers could hold one lease",
            winners.len()
        )));
    }
    Ok(winners.pop())
}

/// The rights that a server needs, as the service would have them written down.
#[must_use]
pub fn policy(options: &ObjectOptions) -> String {
    let location = &options.location;
    let kms = match &options.encryption {
        Some(Encryption::Kms { key }) => {
            let key = key.as_deref().unwrap_or("the bucket's key");
            format!(
                ",\n    {{\n      \"Effect\": \"Allow\",\n      \"Action\": [\"kms:Decrypt\", \
                 \"kms:GenerateDataKey\"],\n      \"Resource\": \"{key}\"\n    }}"
            )
        }
        Some(Encryption::Aes256) | None => String::new(),
    };
    let bucket = &location.bucket;
    let under =
        if location.prefix.is_empty() { String::new() } else { format!("{}/", location.prefix) };
    match &location.service {
        Service::S3 { .. } => format!(
            r#"{{
  "Version": "2012-10-17",
  "Statement": [
    {{
      "Effect": "Allow",
      "Action": ["s3:ListBucket"],
      "Resource": "arn:aws:s3:::{bucket}"
    }},
    {{
      "Effect": "Allow",
      "Action": [
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload"
      ],
      "Resource": "arn:aws:s3:::{bucket}/{under}*"
    }}{kms}
  ]
}}"#
        ),
        Service::Azure { account } => format!(
            "the role \"Storage Blob Data Contributor\" on container {bucket} of account \
             {account}, or a SAS token for the container with sp=racwdl"
        ),
        Service::Gcs => format!("the role roles/storage.objectUser on bucket {bucket}"),
    }
}
