//! The registry in Redis: keys and values that instances in other languages share, and keys of our
//! own beside them. Every step is one script.
//!
//! | key | value |
//! |---|---|
//! | `{prefix}:instances` | hash: id to JSON |
//! | `{prefix}:instance:{id}:heartbeat` | seconds since 1970, with a time to live |
//! | `{prefix}:incarnations` | hash: id to the process that has it; ours |
//! | `{prefix}:missing` | hash: id to when its heartbeat was first missed; ours |
//! | `{prefix}:surveyed` | somebody has looked after all lately; ours |
//! | `{prefix}:tasks` | hash: task to JSON; ours |
//! | `{prefix}:task:{name}:runs` | list of JSON, the newest first; ours |
//! | `{prefix}:instance:{id}:metrics` | JSON, with a time to live |
//! | `{prefix}:metrics:global` | JSON |

mod scripts;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use lockd_elect::redis::{Kind, Redis, RedisFault, RedisLock};
use lockd_elect::{Candidate, Epoch};
use redis::{Cmd, Script, ScriptInvocation, cmd};

use crate::member::{Entry, Sign, missing_until_down};
use crate::registry::{
    Amended, Amendment, Answer, Beat, Fault, INSTANCES_MAX, Leader, Myself, Pulse, Registry,
    Survey, Swap, Swapped,
};
use crate::settings::{Settings, SettingsError, has_hash_tag};
use crate::task::{Mark, Run};

/// How many entries one script looks at, or changes. A thousand take Redis about a millisecond.
const PAGE: usize = 2_000;
const AMENDMENTS: usize = 500;
/// An entry that is longer is not read.
const ENTRY_MAX: usize = 16 * 1024;

/// The registry of a cluster in Redis, for one instance.
pub struct RedisRegistry {
    redis: Redis,
    candidate: Candidate,
    prefix: String,
    heartbeat_ttl: Duration,
    survey_every: Duration,
    missing_until_down: Duration,
    metrics_ttl: Duration,
    history: usize,
}

impl fmt::Debug for RedisRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisRegistry({:?}, {})", self.redis, self.prefix)
    }
}

impl RedisRegistry {
    /// # Errors
    /// When the keys would be spread over a Redis cluster.
    pub fn new(
        redis: Redis,
        candidate: Candidate,
        settings: &Settings,
    ) -> Result<Self, SettingsError> {
        let prefix = settings.prefix.clone();
        if redis.address().kind == Kind::Cluster && !has_hash_tag(&prefix) {
            return Err(SettingsError::HashTag(prefix));
        }
        Ok(Self {
            redis,
            candidate,
            prefix,
            heartbeat_ttl: settings.heartbeat_ttl,
            // The leader looks every interval; the others only when it does not.
            survey_every: settings.leader_renew_interval * 3 / 2,
            missing_until_down: missing_until_down(settings),
            metrics_ttl: settings.heartbeat_ttl.max(settings.metrics_push_interval * 3),
            history: settings.task_history,
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    fn heartbeat(&self, id: &str) -> String {
        self.key(&format!("instance:{id}:heartbeat"))
    }

    fn metrics_of(&self, id: &str) -> String {
        self.key(&format!("instance:{id}:metrics"))
    }

    /// For scripts about one instance.
    fn of_instance<'a>(&self, script: &'a Script, me: &Myself) -> ScriptInvocation<'a> {
        let id = &me.candidate.id;
        let mut ask = script.prepare_invoke();
        ask.key(self.heartbeat(id)).key(self.metrics_of(id));
        for name in ["instances", "incarnations", "missing", "surveyed", "tasks"] {
            ask.key(self.key(name));
        }
        ask.arg(id).arg(&me.candidate.incarnation);
        ask
    }

    /// For scripts that act for a leader.
    fn of_leader<'a>(&self, script: &'a Script, epoch: Option<Epoch>) -> ScriptInvocation<'a> {
        let mut ask = script.prepare_invoke();
        for key in RedisLock::keys(&self.prefix) {
            ask.key(key);
        }
        ask.arg(&self.candidate.id).arg(&self.candidate.incarnation);
        ask.arg(epoch.map(|epoch| epoch.to_string()).unwrap_or_default());
        ask
    }

    async fn run<T: redis::FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Fault> {
        self.redis.run(script).await.map_err(|fault| self.told(fault))
    }

    async fn send<T: redis::FromRedisValue>(&self, command: &Cmd) -> Result<T, Fault> {
        self.redis.send(command).await.map_err(|fault| self.told(fault))
    }

    fn told(&self, fault: RedisFault) -> Fault {
        match fault {
            RedisFault::Unavailable(why) => Fault::Unavailable(why),
            RedisFault::Refused(why) if why.contains("WRONGTYPE") => Fault::Refused(format!(
                "a key that begins with {:?} has another type than it should; use another \
                 --key-prefix, or delete it ({why})",
                self.prefix
            )),
            RedisFault::Refused(why) => Fault::Refused(why),
        }
    }

    async fn beat_with(&self, script: &Script, me: &Myself) -> Result<Beat, Fault> {
        let mut ask = self.of_instance(script, me);
        ask.arg(millis(self.heartbeat_ttl))
            .arg(me.started_at.map(|at| at.to_string()).unwrap_or_default())
            .arg(serde_json::Value::from(me.candidate.id.as_str()).to_string())
            .arg(me.worker_count)
            .arg(millis(self.survey_every));
        let (counted, now, started_at, survey_due, marks): (bool, u64, u64, bool, Vec<String>) =
            self.run(&ask).await?;
        if !counted {
            return Ok(Beat::Displaced);
        }
        Ok(Beat::Counted(Pulse { now, started_at, survey_due, marks: marks_of(marks) }))
    }

    async fn survey_all(&self) -> Result<Survey, Fault> {
        let mut found = BTreeMap::new();
        let mut survey = Survey::default();
        let mut cursor = String::from("0");
        loop {
            let mut ask = scripts::SURVEY.prepare_invoke();
            ask.key(self.key("instances")).key(self.key("missing")).key(self.key("leader"));
            ask.key(self.key("leader:since")).key(self.key("surveyed"));
            ask.arg(&cursor).arg(PAGE).arg(millis(self.heartbeat_ttl)).arg(&self.prefix);
            ask.arg(ENTRY_MAX).arg(millis(self.survey_every));
            let (next, now, leader, since, page): (String, u64, String, String, Vec<Seen>) =
                self.run(&ask).await?;
            survey.now = now;
            let since = since.parse().unwrap_or(0);
            survey.leader = (!leader.is_empty()).then_some(Leader { id: leader, since });
            for (id, raw, left, missing) in page {
                let sign = match u64::try_from(left) {
                    Ok(left) => Sign::Heard {
                        age: self.heartbeat_ttl.saturating_sub(Duration::from_millis(left)),
                    },
                    Err(_) => Sign::Missing { since: missing },
                };
                found.insert(id.clone(), Entry { id, raw, sign });
            }
            if found.len() > INSTANCES_MAX {
                return Err(Fault::Refused(format!(
                    "{} has more than {INSTANCES_MAX} entries; delete it, the living register again",
                    self.key("instances")
                )));
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
        survey.entries = found.into_values().collect();
        Ok(survey)
    }

    async fn amend_all(&self, epoch: Epoch, changes: &[Amendment]) -> Result<Amended, Fault> {
        let mut amended = Amended { led: true, removed: Vec::new() };
        for changes in changes.chunks(AMENDMENTS) {
            let mut ask = self.of_leader(&scripts::AMEND, Some(epoch));
            for name in ["instances", "incarnations", "missing"] {
                ask.key(self.key(name));
            }
            ask.arg(&self.prefix).arg(millis(self.missing_until_down));
            for change in changes {
                match change {
                    Amendment::Restate { id, old, new } => ask.arg(id).arg(old).arg(new),
                    Amendment::Remove { id } => ask.arg(id).arg("").arg(""),
                };
            }
            let (led, removed): (bool, Vec<String>) = self.run(&ask).await?;
            amended.removed.extend(removed);
            if !led {
                amended.led = false;
                break;
            }
        }
        Ok(amended)
    }

    async fn swap_now(&self, swap: Swap<'_>) -> Result<Swapped, Fault> {
        let new = serde_json::to_string(swap.new).map_err(unwritable)?;
        let run = swap.run.map(serde_json::to_string).transpose().map_err(unwritable)?;
        let mut ask = self.of_leader(&scripts::SWAP, swap.under);
        ask.key(self.key("tasks")).key(self.runs_of(swap.task));
        ask.arg(swap.task).arg(swap.old.map(|old| old.to_string()).unwrap_or_default());
        ask.arg(new).arg(run.unwrap_or_default()).arg(self.history);
        let (answer, now): (i64, String) = self.run(&ask).await?;
        Ok(match answer {
            1 => Swapped::Done,
            0 => Swapped::Changed(serde_json::from_str(&now).ok()),
            _ => Swapped::NotLeader,
        })
    }

    fn runs_of(&self, task: &str) -> String {
        self.key(&format!("task:{task}:runs"))
    }
}

/// Id, entry, what is left of its heartbeat, since when that is missing.
type Seen = (String, String, i64, u64);

/// What cannot be read is as if it was not there.
fn marks_of(flat: Vec<String>) -> BTreeMap<String, Mark> {
    let mut flat = flat.into_iter();
    let mut marks = BTreeMap::new();
    while let (Some(name), Some(mark)) = (flat.next(), flat.next()) {
        if let Ok(mark) = serde_json::from_str(&mark) {
            marks.insert(name, mark);
        }
    }
    marks
}

#[expect(clippy::needless_pass_by_value, reason = "it is made to be given to map_err")]
fn unwritable(error: serde_json::Error) -> Fault {
    Fault::Refused(error.to_string())
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Registry for RedisRegistry {
    fn register<'a>(&'a self, me: &'a Myself) -> Answer<'a, Pulse> {
        Box::pin(async move {
            match self.beat_with(&scripts::REGISTER, me).await? {
                Beat::Counted(pulse) => Ok(pulse),
                Beat::Displaced => Err(Fault::Refused("the name was not given".into())),
            }
        })
    }

    fn beat<'a>(&'a self, me: &'a Myself) -> Answer<'a, Beat> {
        Box::pin(self.beat_with(&scripts::BEAT, me))
    }

    fn deregister<'a>(&'a self, me: &'a Myself) -> Answer<'a, ()> {
        Box::pin(async move {
            let ask = self.of_instance(&scripts::DEREGISTER, me);
            let _was_there: bool = self.run(&ask).await?;
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
        Box::pin(
            async move { Ok(marks_of(self.send(cmd("HGETALL").arg(self.key("tasks"))).await?)) },
        )
    }

    fn swap<'a>(&'a self, swap: Swap<'a>) -> Answer<'a, Swapped> {
        Box::pin(self.swap_now(swap))
    }

    fn runs<'a>(&'a self, task: &'a str, limit: usize) -> Answer<'a, Vec<Run>> {
        Box::pin(async move {
            let last = i64::try_from(limit).unwrap_or(i64::MAX) - 1;
            let mut command = cmd("LRANGE");
            let runs: Vec<String> =
                self.send(command.arg(self.runs_of(task)).arg(0).arg(last)).await?;
            Ok(runs.iter().filter_map(|run| serde_json::from_str(run).ok()).collect())
        })
    }

    fn push_metrics<'a>(&'a self, json: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut command = cmd("SET");
            command.arg(self.metrics_of(&self.candidate.id)).arg(json);
            self.send(command.arg("PX").arg(millis(self.metrics_ttl))).await
        })
    }

    fn metrics<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<(String, String)>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for ids in ids.chunks(AMENDMENTS) {
                let mut command = cmd("MGET");
                for id in ids {
                    command.arg(self.metrics_of(id));
                }
                let values: Vec<Option<String>> = self.send(&command).await?;
                let pairs = ids.iter().zip(values);
                found.extend(pairs.filter_map(|(id, value)| Some((id.clone(), value?))));
            }
            Ok(found)
        })
    }

    fn set_global<'a>(&'a self, epoch: Epoch, json: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let mut ask = self.of_leader(&scripts::SET_GLOBAL, Some(epoch));
            ask.key(self.key("metrics:global")).arg(json);
            self.run(&ask).await
        })
    }

    fn global(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move { self.send(cmd("GET").arg(self.key("metrics:global"))).await })
    }
}
