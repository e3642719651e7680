//! Names of keys, and the scripts that change several at once.

use crate::hash::ChunkHash;

/// In front of a chunk's hash in lower-case hex.
pub(super) const CHUNK: &str = "transload:c:";

/// In front of a manifest's name, which begins with the prefix of the handle that put it.
pub(super) const MANIFEST: &str = "transload:m:";

/// Counts the manifests ever put, so that a collection notices one that came while it was reading.
pub(super) const GENERATION: &str = "transload:generation";

/// When a manifest was last removed or replaced, in the server's seconds.
pub(super) const REMOVED: &str = "transload:removed";

/// A sorted set: chunks that a collection found nothing to refer to, by when it first did.
pub(super) const MARKS: &str = "transload:marks";

pub(super) fn chunk(hash: &ChunkHash) -> Vec<u8> {
    format!("{CHUNK}{hash}").into_bytes()
}

pub(super) fn manifest(whole_name: &str) -> Vec<u8> {
    format!("{MANIFEST}{whole_name}").into_bytes()
}

/// `KEYS`: generation, removed, marks, `ARGV[1]` manifests, and the chunks that have to be there.
/// `ARGV`: number of manifests, then their values. Publishes all of them and answers nothing, or publishes
/// nothing and answers the numbers (from 1) of the chunks that are missing.
///
/// `TOUCH` counts what is there and makes it recently used, for the server's eviction and for collections.
///
/// The marks of these chunks go: when the last manifest that refers to them does, their grace period begins. Last,
/// since a full server has to refuse the script at its first write.
pub(super) const PUBLISH: &str = "
local manifests = tonumber(ARGV[1])
local first = 4 + manifests
local missing = {}
for from = first, #KEYS, 1000 do
    local to = math.min(from + 999, #KEYS)
    if redis.call('TOUCH', unpack(KEYS, from, to)) < to - from + 1 then
        for i = from, to do
            if redis.call('EXISTS', KEYS[i]) == 0 then missing[#missing + 1] = i - first + 1 end
        end
    end
end
if #missing > 0 then return missing end
redis.call('INCR', KEYS[1])
for i = 1, manifests do
    if redis.call('STRLEN', KEYS[3 + i]) > 16 then
        redis.call('SET', KEYS[2], redis.call('TIME')[1])
    end
    redis.call('SET', KEYS[3 + i], ARGV[1 + i])
end
for from = first, #KEYS, 1000 do
    redis.call('ZREM', KEYS[3], unpack(KEYS, from, math.min(from + 999, #KEYS)))
end
return missing
";

/// `KEYS`: removed, a manifest. `ARGV[1]`: how many seconds it has to be unused. `ARGV[2]`: what its value has to
/// begin with. `ARGV[3]`: 1 if the grace period of what it refers to does not begin now, since nobody reads that.
/// Answers 1 if it went.
///
/// A server that is full takes the `SET`, since a `DEL` came before: a script that has freed something may go on.
pub(super) const DELETE: &str = "
if tonumber(ARGV[1]) > 0 then
    local idle = redis.call('OBJECT', 'IDLETIME', KEYS[2])
    if not idle or idle < tonumber(ARGV[1]) then return 0 end
end
if ARGV[2] ~= '' and redis.call('GETRANGE', KEYS[2], 0, #ARGV[2] - 1) ~= ARGV[2] then return 0 end
if redis.call('DEL', KEYS[2]) == 0 then return 0 end
if ARGV[3] == '1' then return 1 end
redis.call('SET', KEYS[1], redis.call('TIME')[1])
return 1
";

/// `KEYS[1]`: a chunk. Answers its value, if there is one, and what tells that from any other.
pub(super) const LOOK: &str = "
local value = redis.call('GET', KEYS[1])
if not value then return {} end
return {value, redis.sha1hex(value)}
";

/// `KEYS[1]`: a chunk. `ARGV[1]`: what `LOOK` answered. Removes that value and no other.
pub(super) const REMOVE: &str = "
local value = redis.call('GET', KEYS[1])
if value and redis.sha1hex(value) == ARGV[1] then return redis.call('UNLINK', KEYS[1]) end
return 0
";

/// Removes chunks that nothing refers to.
///
/// `KEYS`: generation, removed, marks, then the chunks. `ARGV`: the generation when the manifests were
/// read, grace in seconds, seconds since they were read, 1 for a dry run, 1 as if a manifest was removed now.
/// Answers how many went, their bytes with headers, and how many stayed.
///
/// A chunk goes if it was unused for the grace period, and either no manifest was removed in that time or an
/// earlier collection saw, that long ago, that nothing referred to it. If a manifest came since they were
/// read, it may refer to anything that was there before: then a chunk has to be unused since then as well,
/// since every put of a chunk that is there is a use of it.
///
/// `STRLEN` is a use, so it comes last, and only for what goes.
///
/// A server that is full refuses a `ZADD`, except from a script that began with a write that needs no memory, such as
/// a `ZREM` of nothing. It has to be possible: without marks nothing might ever go, and each is much smaller than
/// its chunk.
pub(super) const COLLECT: &str = "
if ARGV[4] ~= '1' then redis.call('ZREM', KEYS[3], '') end
local now = tonumber(redis.call('TIME')[1])
local grace = tonumber(ARGV[2])
local unused = grace
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then unused = math.max(grace, tonumber(ARGV[3])) end
local removed = tonumber(redis.call('GET', KEYS[2]) or '-1')
local quiet = (removed < 0 or now - removed >= grace) and ARGV[5] ~= '1'
local gone, bytes, kept = 0, 0, 0
for i = 4, #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 1 then
        local idle = 0
        if unused > 0 then idle = redis.call('OBJECT', 'IDLETIME', KEYS[i]) end
        local marked = tonumber(redis.call('ZSCORE', KEYS[3], KEYS[i]) or now)
        if idle >= unused and (quiet or now - marked >= grace) then
            gone = gone + 1
            bytes = bytes + redis.call('STRLEN', KEYS[i])
            if ARGV[4] ~= '1' then
                redis.call('UNLINK', KEYS[i])
                redis.call('ZREM', KEYS[3], KEYS[i])
            end
        else
            kept = kept + 1
            if ARGV[4] ~= '1' then redis.call('ZADD', KEYS[3], 'NX', now, KEYS[i]) end
        end
    end
end
return {gone, bytes, kept}
";
