//! Names of keys, and the scripts that change several keys at once.

use crate::hash::ChunkHash;

/// The prefix of a chunk's key. The hash in lower-case hex follows.
pub(super) const CHUNK: &str = "transload:c:";

/// The prefix of a manifest's key. The handle's prefix and the name follow.
pub(super) const MANIFEST: &str = "transload:m:";

/// The number of manifests ever put. It shows a collection that a manifest was put while it was reading.
pub(super) const GENERATION: &str = "transload:generation";

/// The time of the last removal or replacement of a manifest, in the server's seconds.
pub(super) const REMOVED: &str = "transload:removed";

/// A sorted set of chunks that a collection found without references, by the time when it first did.
pub(super) const MARKS: &str = "transload:marks";

pub(super) fn chunk(hash: &ChunkHash) -> Vec<u8> {
    format!("{CHUNK}{hash}").into_bytes()
}

pub(super) fn manifest(whole_name: &str) -> Vec<u8> {
    format!("{MANIFEST}{whole_name}").into_bytes()
}

/// Publishes manifests, if all their chunks exist.
///
/// `KEYS`: generation, removed, marks, `ARGV[1]` manifests, and the chunks that have to exist. `ARGV`: the number of
/// manifests, then their values. Returns an empty list if it published all, or the numbers (from 1) of the missing
/// chunks if it published none.
///
/// `TOUCH` counts the existing chunks and makes them recently used, for the server's eviction and for collections.
///
/// The marks of these chunks are removed, so that their grace period starts when the last manifest that refers to them
/// is removed. This comes last, since a full server has to refuse the script at its first write.
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

/// Removes a manifest.
///
/// `KEYS`: removed, the manifest. `ARGV[1]`: the seconds for which it has to be unused. `ARGV[2]`: the bytes that its
/// value has to begin with. `ARGV[3]`: 1 if the grace period of its chunks does not start now, because the manifest is
/// a leftover. Returns 1 if it was removed.
///
/// A full server accepts the `SET`, since a script that has freed memory (`DEL`) may go on.
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

/// Returns a chunk's value and its SHA-1, or an empty list. `KEYS[1]`: the chunk.
pub(super) const LOOK: &str = "
local value = redis.call('GET', KEYS[1])
if not value then return {} end
return {value, redis.sha1hex(value)}
";

/// Removes a chunk if its value still has the SHA-1 that `LOOK` returned. `KEYS[1]`: the chunk. `ARGV[1]`: the SHA-1.
pub(super) const REMOVE: &str = "
local value = redis.call('GET', KEYS[1])
if value and redis.sha1hex(value) == ARGV[1] then return redis.call('UNLINK', KEYS[1]) end
return 0
";

/// Removes chunks without references.
///
/// `KEYS`: generation, removed, marks, then the chunks. `ARGV`: the generation when the manifests were read, the grace
/// period in seconds, the seconds since they were read, 1 for a dry run, 1 to assume that a manifest was removed now.
/// Returns the number of removed chunks, their bytes with headers, and the number of chunks that stayed.
///
/// A chunk is removed if it was unused for the grace period, and one of two conditions holds: no manifest was removed
/// in that period, or an earlier collection marked the chunk at least that long ago. A manifest that was put since the
/// manifests were read may refer to any chunk. In that case the chunk must also be unused since then, since putting an
/// existing chunk counts as a use.
///
/// `STRLEN` counts as a use, so it comes last and only for chunks that are removed.
///
/// A full server refuses a `ZADD`, except in a script that began with a write that needs no memory, such as the `ZREM`
/// of nothing. Marks must be possible even then, since without them nothing might ever be removed. Each is much smaller
/// than its chunk.
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
