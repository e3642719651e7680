//! `libkv_store_redis.so`: stores in a Redis or Valkey server, `redis://host[:port][/db[/prefix]]`, for every engine
//! with `kv_store_v1`. [`RedisStore`] does the work.

use transload_store::backend::redis::RedisStore;

transload_store::export!(RedisStore);
