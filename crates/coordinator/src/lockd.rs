//! The registry in lockd, for clusters without Redis. An instance is a key: its lease is the
//! heartbeat, its state the entry. Whatever a leader writes carries a fence condition on the
//! leader's key.
//!
//! | key | state |
//! |---|---|
//! | `{prefix}/leader` | none; its lease is the leadership, its fencing token the epoch |
//! | `{prefix}/instance/{id}` | the entry and the metrics of an instance |
//! | `{prefix}/task/{name}` | the mark of a task and its latest runs |
//! | `{prefix}/global` | the metrics of all |

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::time::Duration;

use futures_util::TryStreamExt;
use lockd_client::{
    AcquireKind, Client, Entry as Stored, Error, KeepaliveKind, Lease, LeaseContext, UpdateKind,
};
use lockd_elect::{Candidate, Epoch};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::member::{Entry, Sign};
use crate::registry::{
    Amended, Amendment, Answer, Beat, Fault, Leader, Myself, Pulse, Registry, Survey, Swap, Swapped,
};
use crate::settings::{Settings, SettingsError};
use crate::task::{Mark, Run};

/// How long a change of a document may take.
const CHANGE_TTL: Duration = Duration::from_secs(10);
const CHANGE_WAIT: Duration = Duration::from_secs(5);
/// How many documents are read at once.
const READ_MAX: usize = 500;
/// The longest key of lockd.
const KEY_MAX: usize = 128;

/// The registry of a cluster in lockd, for one instance.
pub struct LockdRegistry {
    client: Client,
    candidate: Candidate,
    prefix: String,
    heartbeat_ttl: Duration,
    history: usize,
    /// The lease on this instance's own key.
    held: Mutex<Option<LeaseContext>>,
    /// Where the keys are, as the server has said.
    namespace: Mutex<Option<String>>,
    metrics: Mutex<Option<Box<RawValue>>>,
    /// The server's time when it was last told, in ms.
    now: Mutex<u64>,
}

impl fmt::Debug for LockdRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockdRegistry({})", self.prefix)
    }
}

/// What is kept of an instance.
#[derive(Serialize, Deserialize)]
struct InstanceDocument {
    instance: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metrics: Option<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
struct Said<'a> {
    instance_id: &'a str,
    started_at: u64,
    last_heartbeat: u64,
    status: &'a str,
    worker_count: u64,
}

/// What is kept of a task.
#[derive(Default, Serialize, Deserialize)]
struct TaskDocument {
    mark: Option<Mark>,
    /// The newest first.
    runs: Vec<Run>,
}

impl LockdRegistry {
    /// # Errors
    /// When the names are too long for keys.
    pub fn new(
        client: Client,
        candidate: Candidate,
        settings: &Settings,
    ) -> Result<Self, SettingsError> {
        let prefix: Vec<String> = settings.prefix.split(':').map(part).collect();
        let prefix = prefix.join("/");
        let registry = Self {
            client,
            candidate,
            prefix,
            heartbeat_ttl: settings.heartbeat_ttl,
            history: settings.task_history,
            held: Mutex::new(None),
            namespace: Mutex::new(None),
            metrics: Mutex::new(None),
            now: Mutex::new(0),
        };
        if registry.instance_key(&settings.instance_id).len() > KEY_MAX {
            return Err(SettingsError::InstanceId(settings.instance_id.clone()));
        }
        Ok(registry)
    }

    #[must_use]
    pub fn leader_key(&self) -> String {
        format!("{}/leader", self.prefix)
    }

    fn instance_key(&self, id: &str) -> String {
        format!("{}/instance/{}", self.prefix, part(id))
    }

    fn task_key(&self, name: &str) -> String {
        format!("{}/task/{}", self.prefix, part(name))
    }

    fn told(&self, expires_at_ms: u64, ttl: Duration) -> u64 {
        let now = expires_at_ms.saturating_sub(millis(ttl));
        *self.now.lock() = now;
        now
    }

    /// A lease on this instance's own key, for as long as a heartbeat counts.
    async fn take(&self) -> Result<Option<u64>, Fault> {
        let key = self.instance_key(&self.candidate.id);
        let owner = format!("{}:{}", self.candidate.id, self.candidate.incarnation);
        let taking = self.client.lease(key).owner(owner).ttl(self.heartbeat_ttl).no_wait();
        match taking.detached().await {
            Ok(grant) => {
                let now = self.told(grant.expires_at_unix_ms, grant.ttl);
                self.namespace.lock().clone_from(&grant.context.namespace);
                *self.held.lock() = Some(grant.context);
                Ok(Some(now))
            }
            Err(error) if error.kind() == AcquireKind::Busy => Ok(None),
            Err(error) => Err(fault(&error)),
        }
    }

    async fn register_now(&self, me: &Myself) -> Result<Pulse, Fault> {
        let now = match self.take().await? {
            Some(now) => now,
            // Whoever had the name before loses it: a process that is gone, or should be.
            None => {
                let key = self.instance_key(&self.candidate.id);
                let reason = format!("{} was started again", self.candidate.id);
                self.client.revoke(None, &key, &reason).await.map_err(|error| fault(&error))?;
                let taken = self.take().await?;
                taken.ok_or_else(|| Fault::Unavailable("the name was taken in between".into()))?
            }
        };
        self.write(me, now).await?;
        self.pulse(me, now).await
    }

    async fn beat_now(&self, me: &Myself) -> Result<Beat, Fault> {
        let held = self.held.lock().clone();
        let now = match held {
            Some(context) => {
                match self.client.raw(context).keepalive(Some(self.heartbeat_ttl)).await {
                    Ok(renewed) => Some(self.told(renewed.expires_at_unix_ms, renewed.ttl)),
                    Err(error) if error.kind() == KeepaliveKind::LeaseLost => self.take().await?,
                    Err(error) => return Err(fault(&error)),
                }
            }
            None => self.take().await?,
        };
        let Some(now) = now else { return Ok(Beat::Displaced) };
        self.write(me, now).await?;
        Ok(Beat::Counted(self.pulse(me, now).await?))
    }

    async fn pulse(&self, me: &Myself, now: u64) -> Result<Pulse, Fault> {
        let started_at = me.started_at.unwrap_or(now / 1_000);
        let marks = self.all_marks().await?;
        // When a heartbeat went missing is in the store itself: nobody has to look.
        Ok(Pulse { now, started_at, survey_due: false, marks })
    }

    async fn write(&self, me: &Myself, now: u64) -> Result<(), Fault> {
        let said = Said {
            instance_id: &me.candidate.id,
            started_at: me.started_at.unwrap_or(now / 1_000),
            last_heartbeat: now / 1_000,
            status: "active",
            worker_count: me.worker_count,
        };
        let metrics = self.metrics.lock().clone();
        let document = InstanceDocument { instance: raw(&said)?, metrics };
        let held = self.held.lock().clone();
        let Some(context) = held else { return Ok(()) };
        let lease = self.client.raw(context);
        match lease.update(&document).then_commit().await {
            Ok(_) => Ok(()),
            Err(error) => Err(fault(&error)),
        }
    }

    async fn documents(&self, prefix: &str) -> Result<Vec<Stored>, Fault> {
        let keys = self.client.keys(prefix).into_stream();
        let keys: Vec<String> =
            keys.map_ok(|view| view.key).try_collect().await.map_err(|error| fault(&error))?;
        let mut documents = Vec::new();
        for keys in keys.chunks(READ_MAX) {
            let read = self.client.read_many(keys.iter().cloned()).await;
            documents.extend(read.map_err(|error| fault(&error))?);
        }
        Ok(documents)
    }

    async fn all_marks(&self) -> Result<BTreeMap<String, Mark>, Fault> {
        let prefix = format!("{}/task/", self.prefix);
        let mut marks = BTreeMap::new();
        for stored in self.documents(&prefix).await? {
            let Some(name) = stored.key.strip_prefix(&prefix).and_then(unpart) else { continue };
            let Some(document) = stored.document else { continue };
            if let Ok(TaskDocument { mark: Some(mark), .. }) =
                serde_json::from_slice(&document.bytes)
            {
                marks.insert(name, mark);
            }
        }
        Ok(marks)
    }

    async fn survey_all(&self) -> Result<Survey, Fault> {
        let prefix = format!("{}/instance/", self.prefix);
        let all = format!("{}/", self.prefix);
        let mut leases = self.client.leases().prefix(all);
        if let Some(namespace) = self.namespace.lock().as_deref() {
            leases = leases.namespace(namespace);
        }
        let leases = leases.into_stream();
        let leases: Vec<_> = leases.try_collect().await.map_err(|error| fault(&error))?;
        let keys = self.client.keys(prefix.as_str()).into_stream();
        let keys: Vec<_> = keys.try_collect().await.map_err(|error| fault(&error))?;
        let leader = leases.iter().find(|lease| lease.key == self.leader_key());
        let leader = leader.map(|lease| Leader {
            id: lease.owner.clone(),
            since: lease.granted_at_unix_ms / 1_000,
        });
        let told = leases.iter().map(|lease| lease.expires_at_unix_ms - lease.remaining_ms).max();
        let now = told.unwrap_or_else(|| *self.now.lock());
        let left: BTreeMap<&str, u64> =
            leases.iter().map(|lease| (lease.key.as_str(), lease.remaining_ms)).collect();
        let mut entries = Vec::new();
        let documents = self.documents(&prefix).await?;
        let mut documents: BTreeMap<String, Stored> =
            documents.into_iter().map(|stored| (stored.key.clone(), stored)).collect();
        for view in keys {
            let Some(id) = view.key.strip_prefix(&prefix).and_then(unpart) else { continue };
            let Some(document) = documents.remove(&view.key).and_then(|stored| stored.document)
            else {
                continue;
            };
            let Ok(document) = serde_json::from_slice::<InstanceDocument>(&document.bytes) else {
                continue;
            };
            let sign = match left.get(view.key.as_str()) {
                Some(left) => Sign::Heard {
                    age: self.heartbeat_ttl.saturating_sub(Duration::from_millis(*left)),
                },
                None => Sign::Missing {
                    since: view.updated_at_unix_ms.saturating_add(millis(self.heartbeat_ttl)),
                },
            };
            entries.push(Entry { id, raw: document.instance.get().to_owned(), sign });
        }
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(Survey { now, leader, entries })
    }

    /// What readers say of an instance follows from its lease, so only removals are written.
    async fn amend_all(&self, epoch: Epoch, changes: &[Amendment]) -> Result<Amended, Fault> {
        let mut amended = Amended { led: true, removed: Vec::new() };
        for change in changes {
            let Amendment::Remove { id } = change else { continue };
            let Some(lease) = self.open(&self.instance_key(id), None).await? else { continue };
            let fence = self.fence(&lease);
            match lease.remove().fence(fence, epoch.0).then_commit().await {
                Ok(_) => amended.removed.push(id.clone()),
                Err(error) if error.kind() == UpdateKind::FenceFailed => {
                    amended.led = false;
                    return Ok(amended);
                }
                Err(error) => return Err(fault(&error)),
            }
        }
        Ok(amended)
    }

    /// The leader's key, in the same namespace as another.
    fn fence(&self, lease: &Lease) -> String {
        format!("{}/{}", lease.namespace(), self.leader_key())
    }

    /// A lease to change a document; `None` if somebody has it, and goes on having it.
    async fn open(&self, key: &str, wait: Option<Duration>) -> Result<Option<Lease>, Fault> {
        let lease = self.client.lease(key).owner(&self.candidate.id).ttl(CHANGE_TTL);
        let lease = match wait {
            Some(longest) => lease.wait(longest).await,
            None => lease.no_wait().await,
        };
        match lease {
            Ok(lease) => Ok(Some(lease)),
            Err(error) if error.kind() == AcquireKind::Busy => Ok(None),
            Err(error) => Err(fault(&error)),
        }
    }

    async fn swap_now(&self, swap: Swap<'_>) -> Result<Swapped, Fault> {
        let lease = self.open(&self.task_key(swap.task), Some(CHANGE_WAIT)).await?;
        let lease = lease.ok_or_else(|| Fault::Unavailable("the task is being changed".into()))?;
        let kept = lease.get().await.map_err(|error| fault(&error))?;
        let mut document: TaskDocument =
            kept.and_then(|kept| serde_json::from_slice(&kept.bytes).ok()).unwrap_or_default();
        if document.mark.as_ref().map(|mark| mark.revision) != swap.old {
            return Ok(Swapped::Changed(document.mark));
        }
        document.mark = Some(swap.new.clone());
        if let Some(run) = swap.run {
            document.runs.insert(0, run.clone());
            document.runs.truncate(self.history);
        }
        let fence = self.fence(&lease);
        let mut finish = lease.finish(&document);
        if let Some(epoch) = swap.under {
            finish = finish.fence(fence, epoch.0);
        }
        match finish.await {
            Ok(_) => Ok(Swapped::Done),
            Err(error) if error.kind() == UpdateKind::FenceFailed => Ok(Swapped::NotLeader),
            Err(error) => Err(fault(&error)),
        }
    }

    async fn set_global_now(&self, epoch: Epoch, json: &str) -> Result<bool, Fault> {
        let key = format!("{}/global", self.prefix);
        let Some(lease) = self.open(&key, Some(CHANGE_WAIT)).await? else { return Ok(false) };
        let fence = self.fence(&lease);
        let document = RawValue::from_string(json.to_owned()).map_err(|error| broken(&error))?;
        match lease.finish(&document).fence(fence, epoch.0).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == UpdateKind::FenceFailed => Ok(false),
            Err(error) => Err(fault(&error)),
        }
    }
}

fn raw<T: Serialize>(value: &T) -> Result<Box<RawValue>, Fault> {
    serde_json::value::to_raw_value(value).map_err(|error| broken(&error))
}

fn broken(error: &serde_json::Error) -> Fault {
    Fault::Refused(error.to_string())
}

fn fault<K: lockd_client::Kind>(error: &Error<K>) -> Fault {
    match error.status() {
        Some(400..=403) => Fault::Refused(lockd_client::chain(error)),
        _ => Fault::Unavailable(lockd_client::chain(error)),
    }
}

/// A name as part of a key, which knows neither capitals nor much else.
fn part(name: &str) -> String {
    let mut part = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte) {
            part.push(char::from(byte));
        } else {
            let _written = write!(part, "_{byte:02x}").is_ok();
        }
    }
    part
}

fn unpart(part: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'_' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Registry for LockdRegistry {
    fn register<'a>(&'a self, me: &'a Myself) -> Answer<'a, Pulse> {
        Box::pin(self.register_now(me))
    }

    fn beat<'a>(&'a self, me: &'a Myself) -> Answer<'a, Beat> {
        Box::pin(self.beat_now(me))
    }

    fn deregister<'a>(&'a self, _me: &'a Myself) -> Answer<'a, ()> {
        Box::pin(async move {
            let held = self.held.lock().take();
            let Some(context) = held else { return Ok(()) };
            let lease = self.client.raw(context);
            // A lease that is over belongs to somebody else by now, or will be removed.
            if lease.remove().await.is_ok() {
                lease.release().await.map_err(|error| fault(&error))?;
            }
            Ok(())
        })
    }

    fn survey(&self) -> Answer<'_, Survey> {
        Box::pin(self.survey_all())
    }

    fn amend<'a>(&'a self, epoch: Epoch, changes: &'a [Amendment]) -> Answer<'a, Amended> {
        Box::pin(self.amend_all(epoch, changes))
    }

    fn marks(&self) -> Answer<'_, BTreeMap<String, Mark>> {
        Box::pin(self.all_marks())
    }

    fn swap<'a>(&'a self, swap: Swap<'a>) -> Answer<'a, Swapped> {
        Box::pin(self.swap_now(swap))
    }

    fn runs<'a>(&'a self, task: &'a str, limit: usize) -> Answer<'a, Vec<Run>> {
        Box::pin(async move {
            let kept = self.client.get(self.task_key(task)).await;
            let kept = kept.map_err(|error| fault(&error))?;
            let document: TaskDocument =
                kept.and_then(|kept| serde_json::from_slice(&kept.bytes).ok()).unwrap_or_default();
            Ok(document.runs.into_iter().take(limit).collect())
        })
    }

    /// They go out with the next heartbeat.
    fn push_metrics<'a>(&'a self, json: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let metrics = RawValue::from_string(json.to_owned()).map_err(|error| broken(&error))?;
            *self.metrics.lock() = Some(metrics);
            Ok(())
        })
    }

    fn metrics<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<(String, String)>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for ids in ids.chunks(READ_MAX) {
                let keys = ids.iter().map(|id| self.instance_key(id));
                let read = self.client.read_many(keys).await.map_err(|error| fault(&error))?;
                for (id, stored) in ids.iter().zip(read) {
                    let Some(document) = stored.document else { continue };
                    if let Ok(InstanceDocument { metrics: Some(metrics), .. }) =
                        serde_json::from_slice(&document.bytes)
                    {
                        found.push((id.clone(), metrics.get().to_owned()));
                    }
                }
            }
            Ok(found)
        })
    }

    fn set_global<'a>(&'a self, epoch: Epoch, json: &'a str) -> Answer<'a, bool> {
        Box::pin(self.set_global_now(epoch, json))
    }

    fn global(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            let kept = self.client.get(format!("{}/global", self.prefix)).await;
            let kept = kept.map_err(|error| fault(&error))?;
            Ok(kept.map(|kept| String::from_utf8_lossy(&kept.bytes).into_owned()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_part_of_a_key_and_back() {
        for name in ["forms-waf-0", "Forms_WAF", "a/b:c", "ü", "..", "_"] {
            let part = part(name);
            assert!(
                part.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b))
            );
            assert_eq!(unpart(&part).as_deref(), Some(name));
        }
        assert_ne!(part("waf"), part("WAF"));
        assert_eq!(unpart("_4"), None);
    }
}
