//! What is done in Redis, each in one step.

use std::sync::LazyLock;

use lockd_elect::redis::IS_HELD;
use redis::Script;

/// About one instance. Keys: heartbeat, metrics, instances, incarnations, missing, surveyed, tasks.
const BEATING: &str = r#"
    local id, incarnation, ttl, started, name, workers, survey =
        ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
    local time = redis.call('TIME')
    local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
    if started == '' then started = time[1] end
    redis.call('SET', KEYS[1], time[1], 'PX', ttl)
    redis.call('HSET', KEYS[3], id, '{"instance_id":' .. name .. ',"started_at":' .. started
        .. ',"last_heartbeat":' .. time[1] .. ',"status":"active","worker_count":' .. workers .. '}')
    redis.call('HSET', KEYS[4], id, incarnation)
    redis.call('HDEL', KEYS[5], id)
    local due = 0
    if redis.call('SET', KEYS[6], id, 'NX', 'PX', survey) then due = 1 end
    return {1, now, started, due, redis.call('HGETALL', KEYS[7])}
"#;

/// The name is this process's from now on.
pub(super) static REGISTER: LazyLock<Script> = LazyLock::new(|| Script::new(BEATING));

pub(super) static BEAT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        r"
    local other = redis.call('HGET', KEYS[4], ARGV[1])
    if other and other ~= ARGV[2] and redis.call('EXISTS', KEYS[1]) == 1 then
        return {{0, '0', '0', 0, {{}}}}
    end
    {BEATING}"
    ))
});

pub(super) static DEREGISTER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
    local other = redis.call('HGET', KEYS[4], ARGV[1])
    if other and other ~= ARGV[2] then return 0 end
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('HDEL', KEYS[3], ARGV[1])
    redis.call('HDEL', KEYS[4], ARGV[1])
    redis.call('HDEL', KEYS[5], ARGV[1])
    return 1
",
    )
});

/// A page of all entries. A heartbeat without a time to live gets one: its instance may be dead.
/// Keys: instances, missing, leader, leader since, surveyed.
pub(super) static SURVEY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
    local cursor, count, ttl, prefix, longest, survey =
        ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
    local time = redis.call('TIME')
    local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
    redis.call('SET', KEYS[5], '', 'PX', survey)
    local page = redis.call('HSCAN', KEYS[1], cursor, 'COUNT', count)
    local seen = {}
    for i = 1, #page[2], 2 do
        local id, raw = page[2][i], page[2][i + 1]
        local heartbeat = prefix .. ':instance:' .. id .. ':heartbeat'
        local left = redis.call('PTTL', heartbeat)
        local since = '0'
        if left == -1 then
            redis.call('PEXPIRE', heartbeat, ttl)
            left = tonumber(ttl)
        end
        if left < 0 then
            since = redis.call('HGET', KEYS[2], id)
            if not since then
                since = now
                redis.call('HSET', KEYS[2], id, since)
            end
        else
            redis.call('HDEL', KEYS[2], id)
        end
        if #raw > longest then raw = '' end
        seen[#seen + 1] = {id, raw, left, since}
    end
    return {page[1], now, redis.call('GET', KEYS[3]) or '', redis.call('GET', KEYS[4]) or '', seen}
",
    )
});

/// Keys of the leader, then instances, incarnations, missing. Triples: id, old and new entry, or
/// id and nothing to remove it.
pub(super) static AMEND: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        r"
    {IS_HELD}
    if not held then return {{0, {{}}}} end
    local prefix, patience = ARGV[4], tonumber(ARGV[5])
    local time = redis.call('TIME')
    local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    local removed = {{}}
    for i = 6, #ARGV, 3 do
        local who, old, new = ARGV[i], ARGV[i + 1], ARGV[i + 2]
        if new ~= '' then
            if redis.call('HGET', KEYS[6], who) == old then redis.call('HSET', KEYS[6], who, new) end
        else
            local since = tonumber(redis.call('HGET', KEYS[8], who) or '')
            local of = prefix .. ':instance:' .. who
            if since and now - since >= patience and redis.call('EXISTS', of .. ':heartbeat') == 0 then
                redis.call('HDEL', KEYS[6], who)
                redis.call('HDEL', KEYS[7], who)
                redis.call('HDEL', KEYS[8], who)
                redis.call('DEL', of .. ':metrics')
                removed[#removed + 1] = who
            end
        end
    end
    return {{1, removed}}
"
    ))
});

/// Keys of the leader, then tasks and the runs of this one. No epoch: for anybody. No old revision:
/// if there is none.
pub(super) static SWAP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        r"
    {IS_HELD}
    if epoch ~= '' and not held then return {{2, ''}} end
    local task, old, new, run, keep = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
    local now = redis.call('HGET', KEYS[6], task) or ''
    local readable, mark = pcall(cjson.decode, now)
    local revision = ''
    if readable and type(mark) == 'table' then revision = string.format('%.0f', mark.revision or 0) end
    if revision ~= old then return {{0, now}} end
    redis.call('HSET', KEYS[6], task, new)
    if run ~= '' then
        redis.call('LPUSH', KEYS[7], run)
        redis.call('LTRIM', KEYS[7], 0, tonumber(keep) - 1)
    end
    return {{1, ''}}
"
    ))
});

pub(super) static SET_GLOBAL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&format!(
        r"
    {IS_HELD}
    if not held then return 0 end
    redis.call('SET', KEYS[6], ARGV[4])
    return 1
"
    ))
});
