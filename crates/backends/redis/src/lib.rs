//! `libkv_store_redis.so`: stores in a Redis or Valkey server, `redis://host[:port][/db[/prefix]]`, for every
//! engine that speaks `kv_store_v1`. What it does is [`RedisStore`]'s.

use transload_store::backend::redis::RedisStore;

transload_store::export!(RedisStore);
