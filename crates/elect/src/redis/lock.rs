//! The leader key, as instances in other languages know it, with what they lack beside it: who
//! exactly holds it, and an epoch that only grows. Each step is one script that compares all of it.
//!
//! | key | value |
//! |---|---|
//! | `{prefix}:leader` | the id of the leader, with a time to live |
//! | `{prefix}:leader:since` | seconds since 1970 when it began |
//! | `{prefix}:leader:holder` | incarnation and epoch; ours, same time to live |
//! | `{prefix}:leader:epoch` | the latest epoch; ours, for ever |
//! | `{prefix}:leader:run` | the run of Redis that granted it, and when one may have forgotten something; ours, for ever |
//! | `{prefix}:leader:unused` | the run of Redis that was not used for this election a moment ago; ours, for seconds |

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::redis::{Script, ScriptInvocation};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::address::Kind;
use super::connection::{Redis, RedisFault};
use crate::lock::{
    Attempt, Candidate, Epoch, Grant, Holder, LeaderLock, LockError, Loss, Memory, Renewal,
};

/// How long a note about an election that was never used counts, in ms.
const UNUSED_MS: u64 = 10_000;

/// Notes that this run of Redis was not used for this election a moment ago. By the time of that
/// moment, so that a note that comes late is none.
static NOTE_UNUSED: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        local left = tonumber(ARGV[1]) - now
        if left > 0 then redis.call('SET', KEYS[1], run, 'PX', string.format('%.0f', left)) end
        ",
    )
});

/// Which run of Redis this is, and when it may last have forgotten something, in ms: a Redis that
/// was started again, or that was a replica before, may have forgotten the latest that it said.
const THIS_RUN: &str = r"
        local server = redis.call('INFO', 'server')
        local run = string.match(server, 'run_id:(%w+)') or ''
        local known, forgot = string.match(redis.call('GET', KEYS[5]) or '', '^(%w*) (%d+)$')
";

/// When this run of Redis began with nothing, if nothing was lost since: a master that was never a
/// replica, threw nothing out for want of memory and was not flushed. Else nothing. What it does not
/// say about itself counts as unsure.
const BEGAN: &str = r"
        local function began(server, now)
            local up = string.match(server, 'uptime_in_seconds:(%d+)')
            local replication = redis.call('INFO', 'replication')
            local stats = redis.call('INFO', 'stats')
            local commands = redis.call('INFO', 'commandstats')
            local sure = up and string.find(server, 'redis_mode:standalone', 1, true)
                and string.find(replication, 'role:master', 1, true)
                and string.find(replication, 'second_repl_offset:-1', 1, true)
                and string.find(stats, 'evicted_keys:0', 1, true)
                and string.find(commands, 'cmdstat_info:', 1, true)
                and not string.find(commands, 'cmdstat_flush', 1, true)
                and not string.find(commands, 'script|flush', 1, true)
            if sure then return now - tonumber(up) * 1000 end
            return nil
        end
";

/// An epoch is at least the time of Redis in milliseconds, so that one who has lost its memory and
/// saw no leader goes on above all earlier epochs. Each grant within two times to live after memory
/// may have been lost says how long ago that was, not only the first.
/// An election that this run of Redis has never seen may have been lost when the run began, not
/// later. A candidate must have marked this run of Redis as used before it may ask, see
/// [`RedisLock::mark_used`]. An epoch that its leader has begun to let go of is not granted to it again: what lets go
/// of it may arrive late.
static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        r"
        {BEGAN}
        {THIS_RUN}
        local id, incarnation, ttl, seen = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
        local let_go, marked = tonumber(ARGV[5]), ARGV[6]
        if marked ~= run then return {{2, run}} end
        local leader = redis.call('GET', KEYS[1])
        local holder = redis.call('GET', KEYS[3])
        local stored = tonumber(redis.call('GET', KEYS[4]) or '0')
        local time = redis.call('TIME')
        local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
        if stored == 0 or stored < seen or known ~= run then
            forgot = now
            local untouched = stored == 0 and seen == 0 and not (known or leader or holder)
            if untouched and redis.call('GET', KEYS[6]) == run then
                forgot = began(server, now) or now
            end
        end
        local ago = string.format('%.0f', math.max(0, now - tonumber(forgot)))
        if tonumber(ago) >= 2 * tonumber(ttl) then ago = '-1' end
        if leader then
            local mine = string.format('%s:%.0f', incarnation, stored)
            if leader == id and holder == mine and stored >= seen and stored > let_go and known == run then
                redis.call('PEXPIRE', KEYS[1], ttl)
                redis.call('PEXPIRE', KEYS[3], ttl)
                return {{1, string.format('%.0f', stored), ago}}
            end
            if not (leader == id and holder and string.sub(holder, 1, #incarnation + 1) == incarnation .. ':') then
                return {{0, leader, redis.call('PTTL', KEYS[1]), holder or ''}}
            end
        end
        local epoch = string.format('%.0f', math.max(stored, seen, now) + 1)
        redis.call('SET', KEYS[1], id, 'PX', ttl)
        redis.call('SET', KEYS[3], incarnation .. ':' .. epoch, 'PX', ttl)
        redis.call('SET', KEYS[4], epoch)
        redis.call('SET', KEYS[2], time[1])
        redis.call('DEL', KEYS[6])
        redis.call('SET', KEYS[5], run .. ' ' .. string.format('%.0f', forgot))
        return {{1, epoch, ago}}
        "
    ))
});

/// What every script that acts for a leader begins with: `held` says whether it still leads. The
/// script's first keys are [`RedisLock::keys`], its first arguments id, incarnation and epoch. A
/// leader that was granted the lock by another run of Redis does not lead any more.
pub const IS_HELD: &str = r"
        local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
        local known = string.match(redis.call('GET', KEYS[5]) or '', '^(%w*) %d+$')
        local id, incarnation, epoch = ARGV[1], ARGV[2], ARGV[3]
        local leader = redis.call('GET', KEYS[1])
        local holder = redis.call('GET', KEYS[3])
        local held = leader == id and holder == incarnation .. ':' .. epoch
            and redis.call('GET', KEYS[4]) == epoch and known == run
";

static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        r"{IS_HELD}
        if not held then return {{0, leader or ''}} end
        redis.call('PEXPIRE', KEYS[1], ARGV[4])
        redis.call('PEXPIRE', KEYS[3], ARGV[4])
        return {{1, leader}}
        "
    ))
});

static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        r"{IS_HELD}
        if not held then return 0 end
        redis.call('DEL', KEYS[1], KEYS[3])
        redis.call('PUBLISH', KEYS[1], 'released')
        return 1
        "
    ))
});

static OBSERVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local leader = redis.call('GET', KEYS[1])
        if not leader then return {'', -2, '', redis.call('GET', KEYS[4]) or '0'} end
        local holder = redis.call('GET', KEYS[3]) or ''
        return {leader, redis.call('PTTL', KEYS[1]), holder, redis.call('GET', KEYS[4]) or '0'}
        ",
    )
});

/// The lock of one candidate.
pub struct RedisLock {
    redis: Redis,
    candidate: Candidate,
    ttl: Duration,
    prefix: String,
    seen: AtomicU64,
    /// The latest epoch that was asked to end.
    let_go: AtomicU64,
    /// The run of Redis that was marked as used.
    marked: Mutex<String>,
    vacated: std::sync::Arc<Notify>,
    stop: CancellationToken,
    listens: Mutex<bool>,
}

impl fmt::Debug for RedisLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { redis, candidate, prefix, .. } = self;
        write!(f, "RedisLock({redis:?}, {prefix}, {})", candidate.id)
    }
}

impl RedisLock {
    #[must_use]
    pub fn new(redis: Redis, prefix: &str, candidate: Candidate, ttl: Duration) -> Self {
        Self {
            redis,
            candidate,
            ttl,
            prefix: prefix.into(),
            seen: AtomicU64::new(0),
            let_go: AtomicU64::new(0),
            marked: Mutex::default(),
            vacated: std::sync::Arc::default(),
            stop: CancellationToken::new(),
            listens: Mutex::new(false),
        }
    }

    /// The keys that every script of the lock has, in this order.
    #[must_use]
    pub fn keys(prefix: &str) -> [String; 5] {
        ["", ":since", ":holder", ":epoch", ":run"].map(|part| format!("{prefix}:leader{part}"))
    }

    /// The highest epoch that was ever seen here.
    #[must_use]
    pub fn seen(&self) -> Epoch {
        Epoch(self.seen.load(Ordering::Relaxed))
    }

    fn invoke<'a>(&self, script: &'a Script) -> ScriptInvocation<'a> {
        let mut invocation = script.prepare_invoke();
        for key in Self::keys(&self.prefix) {
            invocation.key(key);
        }
        invocation.arg(&self.candidate.id).arg(&self.candidate.incarnation);
        invocation
    }

    fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX)
    }

    /// Marks this run of Redis as one that was used for this election, and notes it if it was not
    /// before, unless this candidate knows of an earlier one. The mark is a script in the cache of
    /// Redis, which lasts as long as its run: deleted or evicted keys do not take it with them.
    async fn mark_used(&self) -> Result<(), RedisFault> {
        // In a cluster each shard has a cache of its own.
        if self.redis.address().kind == Kind::Cluster {
            return Ok(());
        }
        let name: String = self.prefix.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mark = format!("return 'lockd leader {name}'");
        let is_new = self.seen() == Epoch(0);
        let (seconds, micros): (u64, u64) = match is_new {
            true => self.redis.send(&::redis::cmd("TIME")).await?,
            false => (0, 0),
        };
        let hash = Script::new(&mark);
        let exists = ::redis::cmd("SCRIPT").arg("EXISTS").arg(hash.get_hash()).to_owned();
        let used: Vec<bool> = self.redis.send(&exists).await?;
        if used.iter().all(|used| *used) {
            return Ok(());
        }
        if is_new {
            let until = (seconds * 1_000 + micros / 1_000).saturating_add(UNUSED_MS);
            let mut note = NOTE_UNUSED.prepare_invoke();
            self.redis.run::<()>(note.key(self.unused()).arg(until)).await?;
        }
        // After the note: another candidate finds the note, or no mark either.
        let load = ::redis::cmd("SCRIPT").arg("LOAD").arg(&mark).to_owned();
        self.redis.send::<()>(&load).await
    }

    fn unused(&self) -> String {
        format!("{}:leader:unused", self.prefix)
    }

    async fn try_now(&self) -> Result<Attempt, LockError> {
        match self.acquire().await? {
            Acquired::Unmarked(run) => {
                match self.mark_used().await {
                    // Without the rights for it nothing is noted, and a new election waits.
                    Ok(()) | Err(RedisFault::Refused(_)) => *self.marked.lock() = run,
                    Err(fault @ RedisFault::Unavailable(_)) => return Err(fault.into()),
                }
                self.attempt(self.acquire().await?)
            }
            acquired @ (Acquired::Granted(..) | Acquired::Held(..)) => self.attempt(acquired),
        }
    }

    async fn acquire(&self) -> Result<Acquired, RedisFault> {
        let mut ask = self.invoke(&ACQUIRE);
        ask.key(self.unused());
        ask.arg(self.ttl_ms()).arg(self.seen().0).arg(self.let_go.load(Ordering::Relaxed));
        let marked = self.marked.lock().clone();
        self.redis.run(ask.arg(marked)).await
    }

    fn attempt(&self, acquired: Acquired) -> Result<Attempt, LockError> {
        match acquired {
            Acquired::Granted(epoch, lost) => {
                self.saw(epoch);
                let memory = match u64::try_from(lost) {
                    Ok(ago) => Memory::Lost { ago: Duration::from_millis(ago) },
                    Err(_) => Memory::Kept,
                };
                Ok(Attempt::Granted(Grant { epoch, memory }))
            }
            Acquired::Held(leader, left, holder) => {
                let holder = holder_of(leader, left, &holder);
                holder.epoch.inspect(|epoch| self.saw(*epoch));
                Ok(Attempt::Held(holder))
            }
            // It was started again in this moment: the next attempt marks it.
            Acquired::Unmarked(_) => {
                let fault = RedisFault::Unavailable("it was started again".into());
                Err(fault.into())
            }
        }
    }

    /// One task listens, from the first time that somebody waits.
    fn listen(&self) {
        let mut listens = self.listens.lock();
        if std::mem::replace(&mut *listens, true) {
            return;
        }
        let (redis, vacated, stop) =
            (self.redis.clone(), std::sync::Arc::clone(&self.vacated), self.stop.clone());
        let [channel, ..] = Self::keys(&self.prefix);
        #[expect(clippy::disallowed_methods, reason = "ends with the lock, by its token")]
        tokio::spawn(async move { redis.listen(&channel, &vacated, &stop).await });
    }
}

impl Drop for RedisLock {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The answer of the script.
enum Acquired {
    /// The epoch, and how many ms ago memory was lost; below zero: it was not.
    Granted(Epoch, i64),
    Held(String, i64, String),
    /// This run of Redis is to be marked first.
    Unmarked(String),
}

impl ::redis::FromRedisValue for Acquired {
    fn from_redis_value(value: ::redis::Value) -> Result<Self, ::redis::ParsingError> {
        let (granted, rest): (i64, Vec<::redis::Value>) = {
            let mut parts: Vec<::redis::Value> = ::redis::from_redis_value(value)?;
            if parts.is_empty() {
                return Err("an empty answer".into());
            }
            (::redis::from_redis_value(parts.remove(0))?, parts)
        };
        let mut rest = rest.into_iter();
        let mut next = || rest.next().ok_or(::redis::ParsingError::from("too short an answer"));
        if granted == 1 {
            let epoch: u64 = ::redis::from_redis_value(next()?)?;
            return Ok(Self::Granted(Epoch(epoch), ::redis::from_redis_value(next()?)?));
        }
        let leader = ::redis::from_redis_value(next()?)?;
        if granted == 2 {
            return Ok(Self::Unmarked(leader));
        }
        let left = ::redis::from_redis_value(next()?)?;
        Ok(Self::Held(leader, left, ::redis::from_redis_value(next()?)?))
    }
}

fn holder_of(id: String, left: i64, holder: &str) -> Holder {
    let epoch = holder.rsplit_once(':').and_then(|(_, epoch)| epoch.parse().ok()).map(Epoch);
    let remaining = u64::try_from(left).ok().map(Duration::from_millis);
    Holder { id, epoch, remaining }
}

impl LeaderLock for RedisLock {
    fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    fn ttl(&self) -> Duration {
        self.ttl
    }

    fn try_acquire(&self) -> BoxFuture<'_, Result<Attempt, LockError>> {
        Box::pin(self.try_now())
    }

    fn renew(&self, epoch: Epoch) -> BoxFuture<'_, Result<Renewal, LockError>> {
        Box::pin(async move {
            let mut ask = self.invoke(&RENEW);
            ask.arg(epoch.0).arg(self.ttl_ms());
            let (kept, leader): (bool, String) = self.redis.run(&ask).await?;
            Ok(match (kept, leader.is_empty()) {
                (true, _) => Renewal::Kept,
                (false, true) => Renewal::Lost(Loss::Vanished),
                (false, false) => Renewal::Lost(Loss::TakenBy(leader)),
            })
        })
    }

    fn release(&self, epoch: Epoch) -> BoxFuture<'_, Result<(), LockError>> {
        Box::pin(async move {
            self.let_go.fetch_max(epoch.0, Ordering::Relaxed);
            let mut ask = self.invoke(&RELEASE);
            ask.arg(epoch.0);
            let _was_held: i64 = self.redis.run(&ask).await?;
            Ok(())
        })
    }

    fn observe(&self) -> BoxFuture<'_, Result<Option<Holder>, LockError>> {
        Box::pin(async move {
            let ask = self.invoke(&OBSERVE);
            let (leader, left, holder, epoch): (String, i64, String, u64) =
                self.redis.run(&ask).await?;
            self.saw(Epoch(epoch));
            Ok((!leader.is_empty()).then(|| holder_of(leader, left, &holder)))
        })
    }

    fn vacated(&self) -> BoxFuture<'_, ()> {
        self.listen();
        Box::pin(self.vacated.notified())
    }

    fn saw(&self, epoch: Epoch) {
        self.seen.fetch_max(epoch.0, Ordering::Relaxed);
    }
}
